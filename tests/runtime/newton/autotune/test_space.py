"""The mapping space: fills that hold fewer pixels than fit, equal groups, and what problems share."""

from __future__ import annotations

from dataclasses import replace
from inspect import unwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimflow.codegen import ConvProblem, MatmulProblem, MatrixProblem
from pimflow.codegen.newton import Mapping
from pimflow.runtime.newton.autotune import schemes, space
from pimflow.runtime.newton.autotune.choose import MappingSearch
from pimflow.runtime.newton.cost import PimCost
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.targets import PimSpec
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


@given(st.integers(1, 400), st.sampled_from([16, 96, 144, 500]), st.integers(1, 200))
def test_groups_of_one_size_share_fills_evenly(pixels: int, depth: int, columns: int) -> None:
    found = space.candidates(MatmulProblem(pixels, depth, columns), timing_profile(PIM, "strict"))
    for mapping in (entry.mapping for entry in found if len(entry.mapping.runs) == 1 < len(entry.mapping.groups)):
        if len({group.channels for group in mapping.groups}) == 1 == mapping.runs[0].count:
            each = mapping.runs[0].pixels
            fills = [-(-(share.stop - share.start) // each) for group in mapping.groups for share in group.shares]
            assert max(fills) - min(fills) <= 1


def test_equal_fills_of_four_groups() -> None:
    """50 fills of two pixels: two groups of 12, two of 13."""
    found = space.candidates(MatmulProblem(100, 256, 64), timing_profile(PIM, "strict"))
    spans = [[share for group in entry.mapping.groups for share in group.shares] for entry in found]
    shared = [[share.stop - share.start for share in shares] for shares in spans if len(shares) == 4]
    assert [26, 26, 24, 24] in shared


@pytest.mark.parametrize(
    "machine", [PIM, replace(PIM, any_slot_any_column=True), replace(PIM, columns=80, buffer_columns=80)]
)
def test_problems_that_share_schemes_have_candidates_of_their_own(
    machine: PimSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = timing_profile(machine, "strict")
    problems = [
        MatmulProblem(pixels, 16, columns, constant_rhs=is_constant)
        for pixels in (1, 3, 16, 40, 63, 64, 65, 80, 81, 900)
        for columns in (10, 100)
        for is_constant in (True, False)
    ]

    def listed(problem: MatrixProblem) -> list[tuple[float, Mapping]]:
        return [(entry.cycles, entry.mapping) for entry in space.candidates(problem, profile)]

    shared = [listed(problem) for problem in problems]
    monkeypatch.setattr(schemes, "_schemes_of", unwrap(vars(schemes)["_schemes_of"]))
    for problem, found in zip(problems, shared, strict=True):
        assert listed(problem) == found
        most = max(run.pixels for _, mapping in found for run in mapping.runs)
        assert most == min(problem.pixels, machine.columns)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=10), st.integers(1, 5))
def test_no_partition_into_as_many_groups_is_faster(rates: list[float], groups: int) -> None:
    channels, rate = len(rates), (0.0, *rates)

    def most(left: int, groups: int, largest: int) -> float:
        sizes = range(1, min(left, largest) + 1) if groups else ()
        return max([0.0, *(rate[size] + most(left - size, groups - 1, size) for size in sizes)])

    found = space.partitions(rate, channels, min(groups, channels))
    for number in range(1, min(groups, channels) + 1):
        best = max(sum(rate[size] for size in sizes) for sizes in found if len(sizes) <= number)
        assert most(channels, number, channels) / 1.0001**number <= best
    assert all(sum(sizes) <= channels and list(sizes) == sorted(sizes, reverse=True) for sizes in found)
