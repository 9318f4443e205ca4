"""The cheapest covers while costs change, against a dynamic program from scratch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.search.covers import Covers, from_quanta, in_quanta

Span = tuple[int, int, Sequence[int]]


def from_scratch(
    size: int, spans: list[Span], costs: list[float], ranks: list[int]
) -> tuple[list[float], list[tuple[int, int]]]:
    """By position, the cost in quanta of the cheapest cover up to there, and the stretches of the cheapest cover."""
    best: list[float] = [0, *[math.inf] * size]
    last: dict[int, tuple[int, int, int]] = {}
    for position in range(1, size + 1):
        ways = [
            (best[start + shift] + in_quanta(cost), rank, (start + shift, number, shift))
            for number, ((start, stop, shifts), cost, rank) in enumerate(zip(spans, costs, ranks, strict=True))
            for shift in shifts
            if stop + shift == position
        ]
        best[position], _, last[position] = min(ways)
    chosen = []
    position = size if math.isfinite(best[size]) else 0
    while position:
        position, number, shift = last[position]
        chosen.append((number, shift))
    return best, chosen[::-1]


def line(size: int, period: int, longest: int) -> list[Span]:
    """Stretches of every length up to `longest` from every position of the first period, each with its repetitions."""
    return [
        (start, start + length, range(0, size - start - length + 1, period))
        for start in range(period)
        for length in range(1, longest + 1)
        if start + length <= size
    ]


@given(st.data())
@settings(max_examples=150)
def test_after_any_changes_covers_are_those_from_scratch(data: st.DataObject) -> None:
    """Lines much longer than their stretches, with few costs, so that covers tie and differences even out."""
    size = data.draw(st.integers(4, 60))
    spans = line(size, data.draw(st.sampled_from([1, 3, size])), 3)
    price = st.sampled_from([1.0, 2.0, 3.0, 4.5])
    costs = [data.draw(price) for _ in spans]
    ranks = list(range(len(spans)))
    covers = Covers(size, ranks.__getitem__)
    for number, (span, cost) in enumerate(zip(spans, costs, strict=True)):
        covers.add(*span)
        covers.change(number, cost)
    known = [in_quanta(0.0), *[math.inf] * size]
    for _ in range(data.draw(st.integers(1, 12))):
        for _ in range(data.draw(st.integers(0, 3))):
            number = data.draw(st.integers(0, len(spans) - 1))
            costs[number] = data.draw(st.one_of(price, st.just(math.inf)))
            covers.change(number, costs[number])
        best, chosen = from_scratch(size, spans, costs, ranks)
        assert covers.cheapest() == chosen
        if data.draw(st.booleans()):
            assert covers.costs() == best
            assert {at for at in range(size + 1) if best[at] != known[at]} <= covers.moved
            covers.moved.clear()
            known = best
    assert covers.costs() == from_scratch(size, spans, costs, ranks)[0]


@given(st.data())
@settings(max_examples=60)
def test_covers_at_other_costs_change_on_their_own(data: st.DataObject) -> None:
    """Few or many stretches at once: few changes are followed, for many all covers are found again."""
    size = data.draw(st.integers(4, 60))
    spans = line(size, data.draw(st.sampled_from([3, size])), 2)
    price = st.sampled_from([1.0, 2.0, 3.0, 4.5])
    own, costs = [data.draw(price) for _ in spans], [data.draw(st.one_of(price, st.just(math.inf))) for _ in spans]
    ranks = data.draw(st.permutations(range(len(spans))))
    covers = Covers(size, ranks.__getitem__)
    for number, (span, cost) in enumerate(zip(spans, own, strict=True)):
        covers.add(*span)
        covers.change(number, cost)
    before = covers.cheapest()
    others = covers.at(costs)
    known, _ = from_scratch(size, spans, costs, ranks)
    for _ in range(data.draw(st.integers(0, 6))):
        count = data.draw(st.sampled_from([1, len(spans) // 2]))
        for number in data.draw(st.lists(st.integers(0, len(spans) - 1), min_size=count, max_size=count)):
            costs[number] = data.draw(st.one_of(price, st.just(math.inf)))
            others.change(number, costs[number])
        best, chosen = from_scratch(size, spans, costs, [*range(len(spans))])
        assert others.cheapest() == chosen
        if data.draw(st.booleans()):
            assert others.costs() == best
            assert {at for at in range(size + 1) if best[at] != known[at]} <= others.moved
            others.moved.clear()
            known = best
    assert covers.cheapest() == before == from_scratch(size, spans, own, ranks)[1]


def test_a_change_is_followed_as_far_as_covers_differ() -> None:
    size = 2000
    spans: list[Span] = [(at, at + length, (0,)) for at in range(size) for length in (1, 2) if at + length <= size]
    covers = Covers(size, int)
    for number, (start, stop, shifts) in enumerate(spans):
        covers.add(start, stop, shifts)
        covers.change(number, 2.0 + start % 7 / 8 if stop - start == 1 else 3.5 + start % 5 / 8)
    before = list(covers.costs())
    covers.moved.clear()
    for number, (start, stop, _) in enumerate(spans):
        if start in (100, 1000) and stop - start == 1:
            covers.change(number, 0.25)
    covers.cheapest()
    assert 2 <= len(covers.moved) < 60, "positions that are solved again"
    after = covers.costs()
    saved = [from_quanta(old - new) for old, new in zip(before, after, strict=True)]
    assert saved[100] == 0 < saved[900] == saved[500] < saved[1500] == saved[size]
    assert len(covers.moved) > size / 2, "what was noted once is added where it is asked for"


def test_what_is_due_is_forgotten_once_all_covers_are_found_again() -> None:
    """A change near the front leaves an amount to be added to the costs of all positions behind."""
    size = 200
    spans: list[Span] = [(at, at + length, (0,)) for at in range(size) for length in (1, 2) if at + length <= size]
    costs = [2.0 + start % 7 / 8 if stop - start == 1 else 3.5 + start % 5 / 8 for start, stop, _ in spans]
    covers = Covers(size, int)
    for number, (span, cost) in enumerate(zip(spans, costs, strict=True)):
        covers.add(*span)
        covers.change(number, cost)
    covers.cheapest()
    costs[0], costs[1] = 0.25, 0.5
    for number in (0, 1):
        covers.change(number, costs[number])
    assert covers.cheapest() == from_scratch(size, spans, costs, [*range(len(spans))])[1]
    covers.moved.clear()
    others = covers.at(costs)
    assert others.costs() == from_scratch(size, spans, costs, [*range(len(spans))])[0]
    costs[100:300] = [cost + 1 for cost in costs[100:300]]
    for number in range(100, 300):
        covers.change(number, costs[number])
        others.change(number, costs[number])
    best, chosen = from_scratch(size, spans, costs, [*range(len(spans))])
    assert others.cheapest() == chosen
    assert others.costs() == best
    assert not covers.moved
    assert covers.cheapest() == chosen
    assert covers.costs() == best
