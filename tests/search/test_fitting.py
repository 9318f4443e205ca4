"""The cheapest cover that fits into the memories equals the integer program's, however little is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.search.chain import Interval
from pimflow.search.fitting import Fitting, cover_that_fits
from pimflow.search.ilp import status_name
from pimflow.search.pool import Entry, Pool

Load = tuple[int, ...]
DEVICES = ("pim", "dpu")


@dataclass(frozen=True)
class Space:
    """Candidates, each of which also stands for its copies one or more periods later, and the known shares of their
    costs and of their memory."""

    size: int
    period: int
    intervals: list[Interval[Load]]
    known: list[float]
    tightness: list[float]
    capacities: dict[str, int]

    def pool(self) -> Pool[int]:
        """The candidates with their known costs; those that are fully known are priced."""
        pool: Pool[int] = Pool(self.size)
        for place, (one, share) in enumerate(zip(self.intervals, self.known, strict=True)):
            entry = Entry(place, one.start, one.stop, place, share * one.cost, priced=share == 1)
            pool.add(entry, range(0, self.size - one.stop + 1, self.period))
        return pool

    def everywhere(self) -> list[Interval[Load]]:
        """All candidates at all of their positions."""
        return [
            Interval(one.start + shift, one.stop + shift, one.cost, one.payload)
            for one in self.intervals
            for shift in range(0, self.size - one.stop + 1, self.period)
        ]


@dataclass
class Refiner:
    """Prices candidates in two steps, as long as there is time."""

    space: Space
    left: int = 10**6

    def has_time(self) -> bool:
        return self.left > 0

    def refine(self, entry: Entry[int]) -> None:
        self.left -= 1
        assert not entry.priced, "priced costs are known"
        cost = self.space.intervals[entry.place].cost
        entry.us, entry.priced = max(entry.us, cost / 2), entry.us >= cost / 2
        entry.us = cost if entry.priced else entry.us

    def min_kept(self, payload: int) -> Mapping[str, int]:
        return {device: int(self.space.tightness[payload] * amount) for device, amount in self.kept(payload).items()}

    def kept(self, payload: int) -> Mapping[str, int]:
        return dict(zip(self.space.capacities, self.space.intervals[payload].payload, strict=True))


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """Positions that can be covered without memory, and cheaper candidates that need some."""
    size = draw(st.integers(1, 7))
    period = draw(st.integers(1, size))
    memories = draw(st.integers(1, 2))
    nothing = (0,) * memories
    found = [Interval(index, index + 1, float(draw(st.integers(8, 30))), nothing) for index in range(period)]
    for _ in range(draw(st.integers(0, 18))):
        start = draw(st.integers(0, period - 1))
        stop = draw(st.integers(start + 1, min(size, start + 3)))
        load = tuple(draw(st.integers(0, 9)) for _ in range(memories))
        found.append(Interval(start, stop, float(draw(st.integers(0, 25))), load))
    certain = [1.0] * period
    known = certain + [draw(st.sampled_from([0.0, 0.3, 0.6, 1.0])) for _ in found[period:]]
    tightness = [draw(st.sampled_from([0.0, 0.5, 1.0])) for _ in found]
    return Space(
        size, period, found, known, tightness, {device: draw(st.integers(1, 25)) for device in DEVICES[:memories]}
    )


def by_integer_program(space: Space) -> float:
    """The optimum, by a solver that shares nothing with the tested one."""
    intervals = space.everywhere()
    problem = pulp.LpProblem("fit", pulp.LpMinimize)
    new_variable = getattr(problem, "add_variable", pulp.LpVariable)  # PuLP before 3.3 has only the class
    take = [new_variable(f"x{index}", cat=pulp.LpBinary) for index in range(len(intervals))]
    problem += pulp.lpSum(x * interval.cost for x, interval in zip(take, intervals, strict=True))
    for position in range(space.size):
        over = [x for x, item in zip(take, intervals, strict=True) if item.start <= position < item.stop]
        problem += pulp.lpSum(over) == 1
    for index, capacity in enumerate(space.capacities.values()):
        problem += pulp.lpSum(x * item.payload[index] for x, item in zip(take, intervals, strict=True)) <= capacity
    assert status_name(problem.solve(pulp.HiGHS(msg=False, gapRel=0))) == "Optimal"
    return float(pulp.value(problem.objective) or 0.0)


def fit(space: Space, most_labels: int = 10**6, refinements: int = 10**6) -> Fitting[int] | None:
    return cover_that_fits(space.pool(), Refiner(space, refinements), space.capacities, most_labels)


def assert_sound(found: Fitting[int], space: Space) -> None:
    intervals = [space.intervals[taken.entry.place] for taken in found.chosen]
    positions = [
        position
        for taken in found.chosen
        for position in range(taken.entry.start + taken.shift, taken.entry.stop + taken.shift)
    ]
    assert positions == list(range(space.size))
    assert sum(one.cost for one in intervals) == pytest.approx(found.cost)
    for index, capacity in enumerate(space.capacities.values()):
        assert sum(one.payload[index] for one in intervals) <= capacity


@given(spaces())
@settings(max_examples=60)
def test_it_is_the_integer_programs_optimum(space: Space) -> None:
    found = fit(space)
    assert found is not None
    assert_sound(found, space)
    assert found.cost == pytest.approx(by_integer_program(space))
    assert found.bound == pytest.approx(found.cost)


@given(spaces(), st.integers(0, 12))
@settings(max_examples=60)
def test_an_interrupted_search_still_fits_and_its_bound_holds(space: Space, refinements: int) -> None:
    short, late, best = fit(space, most_labels=0), fit(space, refinements=refinements), fit(space)
    assert short is not None
    assert late is not None
    assert best is not None
    for found in (short, late):
        assert_sound(found, space)
        assert found.cost >= best.cost - 1e-9
    assert short.bound <= best.cost + 1e-9


def test_nothing_fits_if_everything_needs_more() -> None:
    assert fit(Space(1, 1, [Interval(0, 1, 1.0, (5,))], [1.0], [0.0], {"pim": 4})) is None


def test_many_partial_covers_take_time_linear_in_their_number() -> None:
    """A knapsack of 40 distinct pairs: there are many labels, and each is compared with one other."""
    n = 40
    found: list[Interval[Load]] = [Interval(place, place + 1, 1000.0 + place, (0,)) for place in range(n)]
    found += [Interval(place, place + 1, 1.0 * (place * 37 % 101), (100 + place * 53 % 97,)) for place in range(n)]
    space = Space(n, n, found, [1.0] * len(found), [0.0] * len(found), {"pim": 2000})
    best = fit(space)
    assert best is not None
    assert_sound(best, space)
    assert best.bound == pytest.approx(best.cost)
    assert best.cost == pytest.approx(by_integer_program(space))


def test_for_equal_layers_the_optimum_is_proven_at_once() -> None:
    """At some price of memory, each may leave or stay: as many leave as fit, without any partial cover."""
    layers: list[Interval[Load]] = [Interval(0, 1, 5.0, (0,)), Interval(0, 1, 1.0, (2,))]
    found = fit(Space(1000, 1, layers, [1.0, 0.0], [0.0, 0.0], {"pim": 900}), most_labels=0)
    assert found is not None
    assert found.cost == found.bound == 550 * 5.0 + 450 * 1.0
