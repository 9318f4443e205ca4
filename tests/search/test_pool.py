"""The cheapest cover, priced only where it may matter, is the one that pricing everything finds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.search.chain import Interval, solve_chain
from pimflow.search.pool import Entry, Pool

COSTS = st.sampled_from([1.0, 2.0, 3.0, 4.5, 7.0])  # few, so that covers tie


def lazily(size: int, intervals: list[Interval[int]], known: list[float], step: float) -> tuple[Pool[int], set[int]]:
    """The pool once its cheapest cover is priced, and which candidates were: bounds rise by `step` at a look."""
    pool: Pool[int] = Pool(size)
    for place, (interval, share) in enumerate(zip(intervals, known, strict=True)):
        pool.add(Entry(place, interval.start, interval.stop, place, share * interval.cost))
    while unsure := [entry for entry in pool.cheapest() if not entry.priced]:
        for entry in unsure:
            pool.take(entry)
            entry.us = min(entry.us + step, intervals[entry.place].cost)
            entry.priced = entry.us == intervals[entry.place].cost
            pool.add(entry)
    return pool, {interval.payload for interval in pool.priced()}


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_it_is_the_cover_that_pricing_everything_finds(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 7))
    spans = [(index, index + 1) for index in range(size)]
    for _ in range(data.draw(st.integers(0, 14))):
        start = data.draw(st.integers(0, size - 1))
        spans.append((start, data.draw(st.integers(start + 1, size))))
    spans = data.draw(st.permutations(spans))
    intervals = [Interval(start, stop, data.draw(COSTS), place) for place, (start, stop) in enumerate(spans)]
    known = [data.draw(st.sampled_from([0.0, 0.5, 1.0])) for _ in intervals]
    pool, _ = lazily(size, intervals, known, data.draw(st.sampled_from([0.5, 9.0])))
    cost, chosen = solve_chain(size, intervals)
    found = pool.cheapest()
    assert [entry.payload for entry in found] == [interval.payload for interval in chosen]
    assert sum(entry.us for entry in found) == pytest.approx(cost)
    assert solve_chain(size, pool.priced())[1] == chosen


def test_what_cannot_win_is_not_priced() -> None:
    intervals = [Interval(0, 1, 1.0, 0), Interval(1, 2, 1.0, 1), Interval(0, 2, 9.0, 2), Interval(0, 1, 3.0, 3)]
    assert lazily(2, intervals, [0.5, 0.5, 0.5, 0.5], 9.0)[1] == {0, 1}


def test_what_cannot_be_is_no_candidate() -> None:
    pool: Pool[str] = Pool(1)
    assert pool.cheapest() == ()
    pool.add(Entry(0, 0, 1, "impossible", math.inf))
    assert pool.cheapest() == ()
    pool.add(Entry(1, 0, 1, "dear", 5.0, priced=True))
    assert [entry.payload for entry in pool.cheapest()] == ["dear"]
