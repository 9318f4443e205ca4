"""`pimflow train`: a training step, and the plan for its activations."""

from __future__ import annotations

import math

import pytest

from pimflow.runtime.offload.channel import Channel
from pimflow.runtime.offload.run import ActivationPlan
from pimflow.runtime.offload.trace import Buffer, Kernel, Trace
from pimflow.targets import load_target
from support.cli import Capture, document, run
from support.offload import Clock


def test_train_prints_its_plan(capsys: Capture) -> None:
    assert run("train", "zoo:toy", "--target", "a100-ssd", "--loss", "cross-entropy", "--optimiser", "adam") == 0
    text = capsys.readouterr().out
    assert "zoo:toy trained on a100-ssd: activations take" in text
    assert "years until the rated endurance of the drives is reached" in text
    assert "conv1" in text


def test_the_document_has_the_same_figures(capsys: Capture) -> None:
    found = document(capsys, "train", "zoo:toy", "--target", "a100-ssd", "--activations", "offload")
    assert found["plan"]["peak_bytes"] <= found["kept"]["peak_bytes"]
    assert found["plan"]["slowed_us"] > 0
    parts_us = sum(found["plan"][f"{part}_us"] for part in ("stall", "recompute", "slowed"))
    assert found["plan"]["time_us"] == pytest.approx(found["kept"]["time_us"] + parts_us)
    offloaded = sum(row["bytes"] for row in found["saved"] if row["becomes"] == "offloaded")
    assert found["plan"]["offloaded_bytes"] == offloaded == found["ssd"]["written_bytes"] > 0


@pytest.mark.parametrize(
    ("way", "wanted"), [("offload", ("--limit-gib", "0.00035")), ("recompute", ("--slower", "30"))]
)
def test_the_document_is_all_that_a_replay_needs(way: str, wanted: tuple[str, str], capsys: Capture) -> None:
    """A tick-by-tick simulation of what it contains takes the same time and has the same peak."""
    found = document(capsys, "train", "zoo:toy", "--target", "a100-ssd", "--activations", way, *wanted)
    names = {buffer["name"]: number for number, buffer in enumerate(found["buffers"])}
    places = {kernel["name"]: place for place, kernel in enumerate(found["kernels"])}

    def numbers(buffers: list[str]) -> tuple[int, ...]:
        return tuple(names[name] for name in buffers)

    kernels = [
        Kernel(item["name"], item["time_us"], numbers(item["reads"]), numbers(item["writes"]))
        for item in found["kernels"]
    ]
    buffers = [Buffer(item["name"], item["bytes"], 0, item["fixed"]) for item in found["buffers"]]
    trace = Trace(tuple(kernels), found["nodes"]["forward"], tuple(buffers))
    moved = [row for row in found["saved"] if row["becomes"] == "offloaded"]
    loads = [(names[row["name"]], places[row["before"]]) for row in sorted(moved, key=lambda row: row["load_us"])]
    again = {
        names[row["name"]]: tuple(places[name] for name in row["again"])
        for row in found["saved"]
        if row["becomes"] == "recomputed"
    }
    assert bool(loads) == (way == "offload") != bool(again)
    target = load_target("a100-ssd")
    assert target.memory is not None
    assert target.memory.ssd is not None
    channel = Channel.of(target.memory.ssd, target.any_gpu)
    plan = ActivationPlan(tuple(loads), again)
    limit = found["plan"]["limit_bytes"] or math.inf
    time_us, peak = Clock(trace, plan, channel, limit, tick_us=0.02).run()
    assert found["plan"]["time_us"] == pytest.approx(time_us, rel=0.05)
    assert found["plan"]["peak_bytes"] == peak < found["kept"]["peak_bytes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--loss", "hinge"), "unknown loss 'hinge'; choose one of sum, mean-squared, cross-entropy"),
        (("--slower", "-1"), "'-1' is not a number"),
        (("--activations", "rule"), "'pimflow' has no SSDs"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], message: str, capsys: Capture) -> None:
    assert run("train", "zoo:toy", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
