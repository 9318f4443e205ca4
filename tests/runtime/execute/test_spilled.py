"""Values are right when activations leave the arena and come back, or are recomputed in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pimflow.compiled import CompiledModel
from pimflow.ir import Array
from pimflow.runtime.execute.arena import run_in_arena
from pimflow.runtime.execute.ort import random_inputs
from pimflow.runtime.execute.spilled import run_spilled
from pimflow.runtime.offload.run import Recording
from pimflow.runtime.offload.spill import Spill, SpillWay
from support.offload import compiled_short


def results(model: CompiledModel, spill: Spill) -> dict[str, Array]:
    return run_spilled(model.graph, model.memory, spill, random_inputs(model.graph, 1))


@pytest.mark.parametrize("way", ["auto", "offload", "recompute"])
def test_values_match_those_of_the_full_arena(way: SpillWay) -> None:
    """To the last bit, in less memory."""
    model, spill = compiled_short(way)
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
    model, spill = compiled_short("offload")
    run = spill.found.run
    if fault == "overlaps":
        busiest = max(spill.stays, key=lambda stay: stay.offset)
        wrong = replace(spill, stays=tuple(replace(s, offset=0) if s is busiest else s for s in spill.stays))
    else:
        log = tuple(moment._replace(what="run", which=0) if moment.what == "loaded" else moment for moment in run.log)
        recording = Recording(spill.trace, log, run.starts_us, run.ends_us)
        wrong = replace(spill, found=replace(spill.found, run=replace(run, recording=recording)))
    expected, actual = results(model, spill), results(model, wrong)
    assert any(not np.array_equal(actual[name], array) for name, array in expected.items())
