"""The dynamic program and the integer program against brute force, and against each other."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.errors import OptionError
from pimflow.search.chain import Interval, solve_chain
from pimflow.search.ilp import SolverName, available_solvers, solve_intervals


def brute_force(n: int, intervals: list[Interval[int]]) -> float:
    """The minimum cost over every subset of intervals that covers 0 .. n-1 once (no ordering, no recurrence)."""
    best = math.inf
    for size in range(n + 1):
        for subset in itertools.combinations(intervals, size):
            covered = sorted(position for item in subset for position in range(item.start, item.stop))
            if covered == list(range(n)):
                best = min(best, math.fsum(item.cost for item in subset))
    return best


@st.composite
def instances(draw: st.DrawFn, max_n: int, max_extra: int) -> tuple[int, list[Interval[int]]]:
    n = draw(st.integers(1, max_n))
    cost = st.floats(0.0, 100.0, allow_nan=False)
    intervals = [Interval(i, i + 1, draw(cost), i) for i in range(n)]
    for index in range(draw(st.integers(0, max_extra))):
        start = draw(st.integers(0, n - 1))
        stop = draw(st.integers(start + 1, n))
        intervals.append(Interval(start, stop, draw(cost), 1000 + index))
    return n, intervals


def assert_covers(n: int, chosen: tuple[Interval[int], ...]) -> None:
    assert [position for item in chosen for position in range(item.start, item.stop)] == list(range(n))


@given(instances(max_n=5, max_extra=6))
@settings(max_examples=60)
def test_dynamic_program_is_optimal_by_brute_force(instance: tuple[int, list[Interval[int]]]) -> None:
    n, intervals = instance
    cost, chosen = solve_chain(n, intervals)
    assert_covers(n, chosen)
    assert cost == pytest.approx(sum(item.cost for item in chosen), rel=1e-12)
    assert cost == pytest.approx(brute_force(n, intervals), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("solver", available_solvers())
@pytest.mark.parametrize("seed", range(4))
def test_integer_program_agrees_on_random_instances(solver: SolverName, seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randint(20, 60)
    intervals = [Interval(i, i + 1, rng.uniform(1, 10), i) for i in range(n)]
    for index in range(6 * n):
        start = rng.randrange(n)
        stop = min(n, start + rng.randint(1, 9))
        intervals.append(Interval(start, stop, (stop - start) * rng.uniform(1, 10), n + index))
    cost, chosen = solve_chain(n, intervals)
    ilp_cost, ilp_chosen = solve_intervals(n, intervals, solver)
    assert_covers(n, chosen)
    assert_covers(n, ilp_chosen)
    assert len(chosen) < n, "the instance should reward long intervals"
    assert ilp_cost == pytest.approx(cost, rel=1e-7)


def test_single_positions_need_not_be_offered() -> None:
    intervals = [Interval(0, 2, 5.0, 0), Interval(2, 5, 5.0, 1), Interval(0, 3, 1.0, 2)]
    cost, chosen = solve_chain(5, intervals)
    assert cost == 10.0
    assert [item.payload for item in chosen] == [0, 1]
    assert solve_intervals(5, intervals)[0] == 10.0


def test_first_listed_wins_a_tie() -> None:
    _, chosen = solve_chain(2, [Interval(0, 1, 1.0, 0), Interval(1, 2, 1.0, 1), Interval(0, 2, 2.0, 2)])
    assert [item.payload for item in chosen] == [0, 1]
    _, chosen = solve_chain(2, [Interval(0, 2, 2.0, 2), Interval(0, 1, 1.0, 0), Interval(1, 2, 1.0, 1)])
    assert [item.payload for item in chosen] == [2]


def test_nothing_to_cover_costs_nothing() -> None:
    assert solve_chain(0, []) == (0.0, ())
    assert solve_intervals(0, []) == (0.0, ())


@pytest.mark.parametrize("solve", [solve_chain, solve_intervals])
def test_impossible_instances_are_refused(solve: object) -> None:
    assert callable(solve)
    with pytest.raises(ValueError, match="cover"):
        solve(3, [Interval(0, 2, 1.0, 0), Interval(1, 3, 1.0, 1)])
    with pytest.raises(ValueError, match="ends beyond 1"):
        solve(1, [Interval(0, 2, 1.0, 0)])


@pytest.mark.parametrize(("start", "stop", "cost"), [(1, 1, 1.0), (-1, 1, 1.0), (0, 1, math.nan), (0, 1, -1.0)])
def test_intervals_are_checked(start: int, stop: int, cost: float) -> None:
    with pytest.raises(ValueError, match="interval"):
        Interval(start, stop, cost, 0)


def test_unknown_solver_is_an_option_error() -> None:
    with pytest.raises(OptionError, match="gurobi"):
        solve_intervals(1, [Interval(0, 1, 1.0, 0)], "gurobi")  # type: ignore[arg-type]  # no solver of ours
