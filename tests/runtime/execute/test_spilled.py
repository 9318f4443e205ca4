"""Values are right where activations leave the arena and come back, or are made again in it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import pimflow
from pimflow.compiled import CompiledModel
from pimflow.ir import Array, Builder
from pimflow.onnxio.export import to_onnx
from pimflow.passes.differentiate import Differentiate
from pimflow.runtime.execute.arena import run_in_arena
from pimflow.runtime.execute.ort import random_inputs
from pimflow.runtime.execute.spilled import run_spilled
from pimflow.runtime.offload.spill import Spill, SpillWay
from pimflow.targets import load_target
from pimflow.targets.schema import GpuMemory


@cache
def step() -> bytes:
    """A training step of convolutions with residual sums in place, padding, and a concatenation."""
    build = Builder()
    x = build.conv(build.input(2, 8, 16, 16), 16, 3, pad=1)
    for _ in range(3):
        x = build.add(x, build.conv(build.tanh(build.sigmoid(x)), 16, 3, pad=1))
    graph = Differentiate("mean-squared").run(build.graph(build.concat(1, x, build.relu(x)))).graph
    return bytes(to_onnx(graph).SerializeToString())


@cache
def spilled(way: SpillWay) -> tuple[CompiledModel, Spill]:
    target = load_target("a100-ssd")
    assert target.memory is not None
    room = replace(target.memory, gpu=GpuMemory(0.327 / 1024, 0.0))
    model = pimflow.compile(
        step(), target=replace(target, memory=room), policy="gpu", spill=way, use_cache=False, check=False
    )
    assert model.spill is not None
    return model, model.spill


def results(model: CompiledModel, spill: Spill) -> dict[str, Array]:
    return run_spilled(model.graph, model.memory, spill, random_inputs(model.graph, 1))


@pytest.mark.parametrize("way", ["auto", "offload", "recompute"])
def test_values_are_those_of_the_arena_that_holds_all(way: SpillWay) -> None:
    """To the last bit, in less room."""
    model, spill = spilled(way)
    plan = spill.found.plan
    assert (bool(plan.offloaded), bool(plan.recomputed)) in {
        "auto": [(True, True), (True, False), (False, True)],
        "offload": [(True, False)],
        "recompute": [(False, True)],
    }[way]
    assert spill.arena_bytes < model.memory.arena_bytes
    expected = run_in_arena(model.graph, model.memory, random_inputs(model.graph, 1)).outputs
    for name, array in results(model, spill).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    assert model.verify(arena=True).passed


@pytest.mark.parametrize("fault", ["overlaps", "is not asked back"])
def test_a_wrong_plan_gives_wrong_values(fault: str) -> None:
    model, spill = spilled("offload")
    run = spill.found.run
    if fault == "overlaps":
        busiest = max(spill.stays, key=lambda stay: stay.offset)
        wrong = replace(spill, stays=tuple(replace(s, offset=0) if s is busiest else s for s in spill.stays))
    else:
        log = tuple(moment._replace(what="run", which=0) if moment.what == "loaded" else moment for moment in run.log)
        wrong = replace(spill, found=replace(spill.found, run=replace(run, log=log)))
    expected, actual = results(model, spill), results(model, wrong)
    assert any(not np.array_equal(actual[name], array) for name, array in expected.items())
