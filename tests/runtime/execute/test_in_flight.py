"""Several inferences in one arena give ONNX Runtime's results one by one; with one copy less they do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

import pimflow
from pimflow.errors import InputDataError
from pimflow.runtime.execute.in_flight import run_in_flight
from pimflow.runtime.execute.ort import random_inputs
from pimflow.runtime.memory.in_flight import MemoryInFlight
from support.in_flight import NETS, TARGETS, one_copy_less, placed, planned
from support.onnx_models import model_of
from support.values import run_in_ort


def wrong(name: str, target: str, memory: MemoryInFlight) -> list[int]:
    """The inferences whose outputs differ from those of the graph run alone."""
    graph, _, steady = planned(name, target)
    inputs = [random_inputs(graph, seed) for seed in range(steady.in_flight + 2)]
    found = run_in_flight(graph, steady, memory, inputs)
    pairs = [(run_in_ort(graph, given), outputs) for given, outputs in zip(inputs, found, strict=True)]
    return [
        number
        for number, (expected, outputs) in enumerate(pairs)
        if not all(np.allclose(outputs[key], expected[key], rtol=1e-4, atol=1e-5) for key in expected)
    ]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NETS)
def test_every_inference_gives_its_own_values(name: str, target: str) -> None:
    assert wrong(name, target, placed(name, target)) == []


def test_a_missing_copy_gives_wrong_values() -> None:
    several = [name for name in NETS if placed(name, "pimflow").most_copies > 1]
    assert several
    for name in several:
        assert wrong(name, "pimflow", one_copy_less(placed(name, "pimflow"))), name


def test_an_overlapping_region_gives_wrong_values() -> None:
    memory = placed("heavy", "pimflow")
    moved = replace(memory, offsets=tuple((0,) * len(copies) for copies in memory.offsets))
    assert wrong("heavy", "pimflow", moved)


def test_inputs_that_do_not_fit_are_refused() -> None:
    graph, _, steady = planned("heavy", "pimflow")
    with pytest.raises(InputDataError):
        run_in_flight(graph, steady, placed("heavy", "pimflow"), [{"other": np.zeros(1)}])


@pytest.mark.parametrize("nodes", [[], [helper.make_node("Identity", ["x"], ["y"])]], ids=["no nodes", "a view"])
def test_inferences_of_a_model_that_takes_no_time_do_not_overlap(nodes: list[onnx.NodeProto]) -> None:
    model = model_of(nodes, {"x": (2, 8)}, ["y" if nodes else "x"])
    compiled = pimflow.compile(model, objective="throughput", use_cache=False)
    result = compiled.verify(pim="values")
    assert result.passed, result.text()
    assert "busy       nothing of it" in compiled.summary()
