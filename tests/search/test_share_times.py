"""Lower bounds on the times of shares: against every way to divide a node's rows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimflow.search.share_times import DividedTimes, OnePart, PartTimes, ShareTimes

ROUNDING = 1 + 1e-9


@st.composite
def prices(draw: st.DrawFn, sizes: st.SearchStrategy[int]) -> list[float]:
    """Prices by count, from 0 rows to all: none is below that of fewer rows."""
    size, us = draw(sizes), [0.0]
    launch = draw(st.floats(0.1, 5))
    for _ in range(size):
        us.append(us[-1] + draw(st.sampled_from([0.0, 0.0, 0.0, 0.3, 2.0])) + launch * (len(us) == 1))
    return us


def share_times(us: list[float], every: int = 1) -> ShareTimes:
    """What is known if only every so manieth count is priced, the first and the last among them."""
    size = len(us) - 1
    counts = sorted({1, *range(1, size, every), size})
    return ShareTimes(
        tuple((count, us[count]) for count in counts), min(us[count] / count for count in range(1, size + 1))
    )


def cheapest_divided(us: list[float]) -> list[float]:
    """By count, the cheapest sum in two parts or more, among all of them."""
    divided, parts = [math.inf] * len(us), list(us)
    for count in range(2, len(us)):
        divided[count] = min(parts[first] + parts[count - first] for first in range(1, count))
        parts[count] = min(us[count], divided[count])
    return divided


def by_count(cells: list[float], times: PartTimes) -> list[float]:
    """Values by count, given those by cell."""
    counts = range(int(times.cells.last[-1]) + 1)
    return [cells[int(times.cells.last.searchsorted(count))] for count in counts]


@given(prices(st.one_of(st.integers(1, 12), st.integers(60, 200))), st.sampled_from([1, 3, 10]))
def test_no_share_takes_less(us: list[float], every: int) -> None:
    times = PartTimes.of(share_times(us, every))
    divided = cheapest_divided(us)
    assert times.all_us <= min(us[-1], divided[-1]) * ROUNDING
    for least, exact in ((times.single_us, us), (times.divided_us, divided)):
        found = by_count(list(map(float, least)), times)
        assert all(own <= other * ROUNDING for own, other in zip(found, exact, strict=True))


@given(prices(st.integers(2, 64)))
def test_every_part_counts(us: list[float]) -> None:
    """With all prices known, the bound is one part of any size plus the others at their best rate."""
    times = PartTimes.of(share_times(us))
    assert times.single_us.tolist() == pytest.approx(us)
    size = len(us) - 1
    expected = min(
        us[largest]
        + max(us[1], min(us[part] / part for part in range(1, min(largest, size - largest) + 1)) * (size - largest))
        for largest in range(1, size)
    )
    assert times.divided_us[-1] == pytest.approx(expected)


def test_a_kernel_that_takes_as_long_for_one_row_counts_twice() -> None:
    flat, linear = ([0.0] + [7.0] * 20, [0.5 * count for count in range(21)])
    assert PartTimes.of(share_times(flat)).divided_us[-1] == pytest.approx(14.0)
    assert PartTimes.of(share_times(linear)).divided_us[-1] == pytest.approx(10.0)


def test_a_faster_kernel_for_more_rows_is_a_bound_for_fewer() -> None:
    times = PartTimes.of(ShareTimes(((1, 5.0), (2, 3.0), (4, 6.0)), 1.0))
    assert times.single_us.tolist() == [0.0, 3.0, 3.0, 3.0, 6.0]


@given(prices(st.integers(2, 64)), st.sampled_from([1, 4]))
def test_a_part_of_any_size_takes_what_is_known_of_its_size(us: list[float], every: int) -> None:
    found = OnePart(share_times(us, every))
    least = [found.least_us(count) for count in range(1, len(us))]
    assert all(own <= price * ROUNDING for own, price in zip(least, us[1:], strict=True))
    if every == 1:
        assert least == pytest.approx(us[1:])
    assert least == sorted(least)


def test_a_faster_kernel_for_more_rows_is_a_bound_for_one_part_of_fewer() -> None:
    found = OnePart(ShareTimes(((1, 5.0), (2, 3.0), (4, 6.0)), 1.25))
    assert [found.least_us(count) for count in (1, 2, 3, 4)] == [3.0, 3.0, 3.75, 6.0]


def test_times_may_be_limited() -> None:
    limited = share_times([0.0, 4.0, 4.0, 9.0]).at_most(3.0)
    assert limited == ShareTimes(((1, 3.0), (2, 3.0), (3, 3.0)), 1.0)


@given(st.integers(1, 100).flatmap(lambda size: st.tuples(*[prices(st.just(size))] * 2)), st.sampled_from([1, 4]))
def test_alone_a_node_runs_on_one_device_or_is_shared(both: tuple[list[float], list[float]], every: int) -> None:
    host, unit = both
    rows = len(host) - 1
    parts = [[min(pair) for pair in zip(us, cheapest_divided(us), strict=True)] for us in both]
    exact = min(max(parts[0][count], parts[1][rows - count]) for count in range(rows + 1))
    found = DividedTimes(PartTimes.of(share_times(host, every)), (PartTimes.of(share_times(unit, every)),)).alone_us
    assert found <= exact * ROUNDING
    if every == 1 and rows <= 64:
        alone = [min(pair) for pair in zip(PartTimes.of(share_times(host)).parts_us, host, strict=True)]
        assert found >= min(alone[-1], 0.5 * exact)


def test_any_of_several_units_may_compute_a_part() -> None:
    first, second = PartTimes.of(share_times([0.0, 2.0, 8.0])), PartTimes.of(share_times([0.0, 5.0, 6.0]))
    either = PartTimes.of_any([first, second])
    assert either.single_us.tolist() == [0.0, 2.0, 6.0]
    assert (either.whole_us, either.divided_us[-1]) == (6.0, 4.0)
