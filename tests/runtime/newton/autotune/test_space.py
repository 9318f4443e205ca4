"""Mappings whose fills hold fewer pixels than fit."""

from __future__ import annotations

import pytest

from pimflow.codegen import ConvProblem, MatrixProblem
from pimflow.runtime.newton.autotune import space
from pimflow.runtime.newton.autotune.choose import MappingSearch
from pimflow.runtime.newton.cost import PimCost
from pimflow.runtime.newton.profiles import timing_profile
from support.newton.problems import PIM

FIVE_FIT = ConvProblem(1, 96, 24, 56, 56, (1, 1))
"""A layer with 6 slots; its second tile's pixels are divided among channels."""


def chosen(problem: MatrixProblem, timing: str) -> PimCost:
    cost = MappingSearch(timing_profile(PIM, timing)).choose(problem, "auto")
    assert isinstance(cost, PimCost)
    return cost


def test_fewer_pixels_are_divided_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    thinned = chosen(FIVE_FIT, "strict")
    monkeypatch.setattr(space, "_thinned", lambda *_: [])
    full = chosen(FIVE_FIT, "strict")
    assert thinned.cycles < 0.97 * full.cycles
    slots = PIM.buffer_columns
    assert any(run.columns * run.pixels + run.columns <= slots for run in thinned.mapping.runs)
    assert all(run.columns * run.pixels + run.columns > slots for run in full.mapping.runs)


def test_mappings_with_fewer_pixels_are_marked() -> None:
    found = space.candidates(FIVE_FIT, timing_profile(PIM, "strict"))
    for entry in found:
        most = [min(PIM.buffer_columns // run.columns, FIVE_FIT.pixels) for run in entry.mapping.runs]
        is_full = [run.pixels for run in entry.mapping.runs] == most
        assert entry.thinned != is_full
    assert {entry.thinned for entry in found} == {True, False}
