"""The cheapest cover, with candidates priced only if they may matter, equals the one found by pricing everything."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.search.chain import Interval, solve_chain
from pimflow.search.covers import from_quanta
from pimflow.search.pool import Entry, Near, Pool

COSTS = st.sampled_from([1.0, 2.0, 3.0, 4.5, 7.0])  # few, so that covers tie


def lazily(
    size: int, intervals: list[Interval[int]], known: list[float], step: float, period: int
) -> tuple[Pool[int], set[int]]:
    """The pool after its cheapest cover is priced, and the set of priced candidates; bounds rise by `step` each time.

    Each candidate also stands for its copies one or more periods later.
    """
    pool: Pool[int] = Pool(size)
    for place, (interval, share) in enumerate(zip(intervals, known, strict=True)):
        entry = Entry(place, interval.start, interval.stop, place, share * interval.cost)
        pool.add(entry, range(0, size - interval.stop + 1, period))
    while unsure := {taken.entry.place: taken.entry for taken in pool.cheapest() if not taken.entry.priced}:
        for entry in unsure.values():
            pool.take(entry)
            entry.us = min(entry.us + step, intervals[entry.place].cost)
            entry.priced = entry.us == intervals[entry.place].cost
            pool.add(entry)
    return pool, {entry.payload for entry, _ in pool.priced()}


def everywhere(size: int, intervals: list[Interval[int]], period: int) -> list[Interval[int]]:
    """The candidates and the copies that they stand for, in the order of the list."""
    return [
        Interval(one.start + shift, one.stop + shift, one.cost, one.payload)
        for one in intervals
        for shift in range(0, size - one.stop + 1, period)
    ]


@given(st.data())
@settings(max_examples=200)
def test_the_cover_equals_that_of_pricing_everything(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 7))
    period = data.draw(st.integers(1, size))
    spans = [(index, index + 1) for index in range(period)]
    for _ in range(data.draw(st.integers(0, 14))):
        start = data.draw(st.integers(0, period - 1))
        spans.append((start, data.draw(st.integers(start + 1, size))))
    spans = data.draw(st.permutations(spans))
    intervals = [Interval(start, stop, data.draw(COSTS), place) for place, (start, stop) in enumerate(spans)]
    known = [data.draw(st.sampled_from([0.0, 0.5, 1.0])) for _ in intervals]
    pool, _ = lazily(size, intervals, known, data.draw(st.sampled_from([0.5, 9.0])), period)
    cost, chosen = solve_chain(size, everywhere(size, intervals, period))
    found = [(taken.entry.start + taken.shift, taken.entry.payload) for taken in pool.cheapest()]
    assert found == [(interval.start, interval.payload) for interval in chosen]
    assert sum(intervals[place].cost for _, place in found) == pytest.approx(cost)
    priced = [intervals[entry.payload] for entry, _ in pool.priced()]
    assert solve_chain(size, everywhere(size, priced, period))[1] == chosen


@given(st.data())
@settings(max_examples=100)
def test_stretches_are_covered_at_any_costs(data: st.DataObject) -> None:
    """The dynamic program over all stretches, which never tie, finds the same, at costs given from outside."""
    size = data.draw(st.integers(1, 7))
    period = data.draw(st.integers(1, size))
    spans = {(index, index + 1) for index in range(period)}
    spans |= {(start, start + length) for start in range(period) for length in (2, 3) if start + length <= size}
    intervals = [Interval(start, stop, 0.0, place) for place, (start, stop) in enumerate(sorted(spans))]
    pool, _ = lazily(size, intervals, [1.0] * len(intervals), 1.0, period)
    costs = [data.draw(st.integers(1, 40)) + 2.0**-place for place in range(len(intervals))]
    covers = pool.covers_at(costs)
    total, found = from_quanta(covers.costs()[-1]), covers.cheapest()
    priced = [Interval(one.start, one.stop, costs[one.payload], one.payload) for one in intervals]
    best, chosen = solve_chain(size, everywhere(size, priced, period))
    assert total == pytest.approx(best)
    covered = [pool.stretches[number].start + shift for number, shift in found]
    assert covered == [one.start for one in chosen]


@given(st.data())
@settings(max_examples=150)
def test_after_any_changes_the_cover_is_that_of_a_new_pool(data: st.DataObject) -> None:
    """Candidates come, get dearer or cheaper, or tie with others; a new pool has looked for no cover before."""
    size = data.draw(st.integers(1, 7))
    period = data.draw(st.integers(1, size))
    pool: Pool[int] = Pool(size)
    entries: list[Entry[int]] = []
    for place in data.draw(st.permutations(range(data.draw(st.integers(1, 16))))):
        start = data.draw(st.integers(0, period - 1))
        entries.append(Entry(place, start, data.draw(st.integers(start + 1, size)), place, data.draw(COSTS)))
        pool.add(entries[-1], range(0, size - entries[-1].stop + 1, period))
        for _ in range(data.draw(st.integers(0, 3))):
            pool.cheapest()
            first = pool.first(*data.draw(st.sampled_from([(entry.start, entry.stop) for entry in entries])))
            assert first is not None
            pool.take(first)
            first.us = data.draw(COSTS)
            pool.add(first)
        fresh: Pool[int] = Pool(size)
        for entry in entries:
            fresh.add(entry, range(0, size - entry.stop + 1, period))
        assert pool.cheapest() == fresh.cheapest()


def test_hopeless_candidates_are_not_priced() -> None:
    intervals = [Interval(0, 1, 1.0, 0), Interval(1, 2, 1.0, 1), Interval(0, 2, 9.0, 2), Interval(0, 1, 3.0, 3)]
    assert lazily(2, intervals, [0.5, 0.5, 0.5, 0.5], 9.0, 2)[1] == {0, 1}


def test_impossible_candidates_are_removed() -> None:
    pool: Pool[str] = Pool(1)
    assert pool.cheapest() == ()
    pool.add(Entry(0, 0, 1, "impossible", math.inf))
    assert pool.cheapest() == ()
    pool.add(Entry(1, 0, 1, "dear", 5.0, priced=True))
    assert [taken.entry.payload for taken in pool.cheapest()] == ["dear"]


@given(st.data())
@settings(max_examples=100)
def test_near_candidates_are_in_covers_that_cost_little_more(data: st.DataObject) -> None:
    """The cheapest cost with each candidate is found by enumerating every cover, after every change of a cost."""
    size = data.draw(st.integers(1, 6))
    period = data.draw(st.integers(1, size))
    spans = {(index, index + 1) for index in range(period)}
    spans |= {(start, start + length) for start in range(period) for length in (2, 3) if start + length <= size}
    entries = [
        Entry(place, start, stop, (place,), data.draw(COSTS), data.draw(st.booleans()))
        for place, (start, stop) in enumerate(sorted(spans))
    ]
    pool: Pool[tuple[int]] = Pool(size)
    for entry in entries:
        pool.add(entry, range(0, size - entry.stop + 1, period))
        dearer = Entry(entry.place + len(spans), entry.start, entry.stop, (entry.place + len(spans),), 9.0)
        pool.add(dearer, range(0, size - entry.stop + 1, period))
    near = data.draw(st.sampled_from([0.0, 0.2, 0.6]))
    listed: list[Near[tuple[int]]] = []
    for _ in range(data.draw(st.integers(1, 4))):
        pool.cheapest()
        is_new, found = pool.nearly_cheapest(near)
        listed = found if is_new else [*listed, *found]
        least = costs_with_each(size, period, entries)
        expected = {place: us for place, us in enumerate(least) if us <= min(least) * (1 + near)}
        assert cheapest_listed(pool, listed) == expected
        assert pool.nearly_cheapest(near) == (False, [])
        changed = data.draw(st.sampled_from(entries))
        pool.take(changed)
        entries[changed.place] = replace(changed, us=data.draw(COSTS))
        pool.add(entries[changed.place])
    pool.cheapest()
    assert pool.nearly_cheapest(near)[0] == (min(costs_with_each(size, period, entries)) != min(least))
    pool.near_again()
    is_new, found = pool.nearly_cheapest(near)
    assert is_new
    least = costs_with_each(size, period, entries)
    assert cheapest_listed(pool, found) == {p: us for p, us in enumerate(least) if us <= min(least) * (1 + near)}


def costs_with_each(size: int, period: int, entries: list[Entry[tuple[int]]]) -> list[float]:
    """The cost of the cheapest cover that contains a candidate, for each candidate, by enumerating every cover."""
    intervals = [Interval(entry.start, entry.stop, entry.us, entry.place) for entry in entries]
    everything = everywhere(size, intervals, period)

    def covers(start: int) -> Iterator[list[Interval[int]]]:
        if start == size:
            yield []
        for one in everything:
            if one.start == start:
                yield from ([one, *behind] for behind in covers(one.stop))

    costs = [(sum(one.cost for one in cover), {one.payload for one in cover}) for cover in covers(0)]
    return [min(cost for cost, places in costs if place in places) for place in range(len(entries))]


def cheapest_listed(pool: Pool[tuple[int]], listed: list[Near[tuple[int]]]) -> dict[int, float]:
    """By place of a candidate, the least cost of the covers through it that are valid."""
    found: dict[int, float] = {}
    for near in sorted(filter(pool.valid, listed), reverse=True):
        found[near.entry.place] = near.us
    return found
