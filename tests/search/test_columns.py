"""The columns that a linear program for throughput may take shares of: without the others, its optimum is the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from pimflow.ir import OnDevice
from pimflow.search.columns import Column, Columns, lower_left_hull

POINTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12)
STRETCHES = ((0, 1), (1, 2), (0, 2))


def column(start: int, stop: int, **loads: float) -> Column:
    return Column(start, stop, (OnDevice(f"{start} to {stop}", "gpu"),), loads)


def optimum(columns: Sequence[Column], size: int, total: float) -> float:
    """The smallest interval of a mixture of covers, with a weight on all loads, written out anew."""
    resources = sorted({name for some in columns for name in some.loads})
    loads = np.array([[some.loads.get(name, 0.0) for some in columns] for name in resources])
    cost = [*(total * loads.sum(axis=0)), 1.0]
    above = np.hstack([loads, -np.ones((len(resources), 1))])
    cuts = [[(some.start == at) - (some.stop == at) for some in columns] + [0] for at in range(size + 1)]
    flow = [1.0, *[0.0] * (size - 1), -1.0]
    found = linprog(cost, A_ub=above, b_ub=np.zeros(len(resources)), A_eq=cuts, b_eq=flow, method="highs")
    return float(found.fun)


@given(POINTS)
def test_every_point_lies_above_a_mixture_of_corners(points: list[tuple[int, int]]) -> None:
    corners = lower_left_hull(sorted(points))
    assert corners == sorted(corners)
    xs, ys = zip(*corners, strict=True)
    assert list(ys) == sorted(set(ys), reverse=True)
    for x, y in points:
        assert x >= xs[0]
        assert y >= np.interp(x, xs, ys) - 1e-9


@given(POINTS)
def test_no_corner_lies_above_a_mixture_of_others(points: list[tuple[int, int]]) -> None:
    corners = lower_left_hull(sorted(points))
    for (x0, y0), (x, y), (x1, y1) in zip(corners, corners[1:], corners[2:], strict=False):
        assert y < y0 + (y1 - y0) * (x - x0) / (x1 - x0)


LOADS = st.dictionaries(st.sampled_from(["gpu", "pim", "link"]), st.integers(1, 20), min_size=1, max_size=3)


@given(st.lists(st.tuples(st.sampled_from(STRETCHES), LOADS), max_size=14), st.sampled_from([0.0, 1e-3]))
def test_the_optimum_is_that_of_all_columns(made: list[tuple[tuple[int, int], dict[str, float]]], total: float) -> None:
    columns = Columns()
    columns.add([column(0, 1, gpu=20), column(1, 2, gpu=20)])
    columns.add([column(start, stop, **loads) for (start, stop), loads in made])
    assert optimum(columns.on_hulls(), 2, total) == pytest.approx(optimum(list(columns), 2, total))


@given(POINTS, st.data())
def test_prices_move_columns_onto_the_hull_and_off_it(points: list[tuple[int, int]], data: st.DataObject) -> None:
    columns = Columns()
    columns.add([column(0, 1, gpu=x, pim=y) for x, y in points])
    for some in list(columns):
        higher = data.draw(st.none() | st.integers(0, 5))
        columns.on_hulls()
        columns.price(some, None if higher is None else {"gpu": some.loads["gpu"] + higher, "pim": some.loads["pim"]})
        assert higher is None or some.priced
    again = Columns()
    again.add(list(columns))
    assert columns.on_hulls() == again.on_hulls()
    assert len(columns) == len(list(columns))


def test_columns_keep_their_order() -> None:
    first, second, third = (column(0, 1, gpu=x, pim=y) for x, y in ((3, 1), (2, 2), (1, 4)))
    other = column(1, 2, gpu=5.0)
    columns = Columns()
    columns.add([first, other])
    columns.add([second, third])
    assert columns.on_hulls() == list(columns) == [first, other, second, third]


def test_of_columns_on_more_than_two_resources_all_stay() -> None:
    columns = Columns()
    columns.add([column(0, 1, gpu=1, pim=1, link=1), column(0, 1, gpu=2, pim=2, link=2)])
    assert len(columns.on_hulls()) == 2
