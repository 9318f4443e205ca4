"""The cheapest runs: against every start and every choice of devices, with what each device waits for."""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimflow.search.run_bound import Runs, Ways, costs_of_run

Costs = tuple[float, float, float]
PRICES = 3


class Step(NamedTuple):
    """A step by price: its costs on the host, on units and on both, and what it adds if the other device waits."""

    on: tuple[Costs, ...]
    host_waits: float
    units_wait: float
    before_us: float

    @property
    def ways(self) -> Ways:
        host, units, both = (np.array(costs) for costs in zip(*self.on, strict=True))
        return Ways(host, units, both, host + self.units_wait, units + self.host_waits)


COST = st.one_of(st.floats(0.5, 20), st.just(math.inf))
STEP = st.builds(
    Step,
    st.lists(st.tuples(st.floats(0.5, 20), COST, COST), min_size=PRICES, max_size=PRICES).map(tuple),
    st.floats(0, 5),
    st.floats(0, 5),
    st.floats(0, 30),
)


def cost(run: list[Step], way: tuple[int, ...], price: int) -> float:
    """The cost of a run: 0 is the host, 1 units, 2 both."""
    total = sum(step.on[price][device] for step, device in zip(run, way, strict=True))
    for waiting, busy in ((0, "host_waits"), (1, "units_wait")):
        work = [at for at, device in enumerate(way) if device in (waiting, 2)] or [len(run)]
        total += sum(getattr(step, busy) for at, step in enumerate(run) if not work[0] <= at <= work[-1])
    return total


def cheapest(steps: list[Step], price: int) -> float:
    """The cheapest run of two or more that ends with the last step, with what precedes it."""
    return min(
        steps[start].before_us + cost(steps[start:], way, price)
        for start in range(len(steps) - 1)
        for way in product(range(3), repeat=len(steps) - start)
    )


def found(steps: list[Step]) -> Runs:
    runs = Runs.from_step(steps[0].before_us, steps[0].ways)
    for step in steps[1:-1]:
        runs = runs.with_step(step.ways).or_from_step(step.before_us, step.ways)
    return runs.with_step(steps[-1].ways)


@given(st.lists(STEP, min_size=2, max_size=5))
def test_the_cheapest_of_all_runs(steps: list[Step]) -> None:
    least_us = found(steps).least_us
    assert least_us.tolist() == pytest.approx([cheapest(steps, price) for price in range(PRICES)])


@given(st.lists(STEP, min_size=2, max_size=5), st.integers(0, PRICES - 1))
def test_the_costs_of_its_steps_add_up(steps: list[Step], price: int) -> None:
    least_us = float(found(steps).least_us[price])
    costs = costs_of_run(((step.ways, step.before_us) for step in reversed(steps)), price, least_us)
    assert 2 <= len(costs) <= len(steps)
    assert steps[-len(costs)].before_us + sum(costs) == pytest.approx(least_us)
    for step, us in zip(steps[::-1], costs, strict=False):
        assert us in [way[price] for way in step.ways.by_state]


def test_a_unit_waits_for_what_only_the_host_computes() -> None:
    """A unit that computes the second of two steps has nothing to do before a part of the first."""
    inf = math.inf
    first, second = Step(((6.0, inf, inf),), 0.0, 4.0, 0.0), Step(((inf, 5.0, inf),), 3.0, 0.0, 0.0)
    assert found([first, second]).least_us.tolist() == [6.0 + 4.0 + 5.0 + 3.0]


def test_nothing_is_known_of_a_step_but_its_cost() -> None:
    cost = np.array([1.0, 2.0, 3.0])
    assert (Ways.anywhere(cost).by_state == cost).all()
