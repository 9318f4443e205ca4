"""Joined decisions with neighbours in them decided as they would be by themselves, and joined decisions cut in two.

Variations change one unit at a time; pipelines enter and leave joined decisions as a whole: those that the search has
found for the same stretch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from operator import itemgetter

from pimflow.ir import Decision, Parallel, Pipeline
from pimflow.ir.plan import Single, leaves_host, singles
from pimflow.search.candidates.base import MAX_REGION_NODES, Candidate, Scene
from pimflow.search.candidates.branches import items_at, moves, parallel_of, unit_spans, with_decisions
from pimflow.search.chain import Interval

Cheapest = Callable[[int, int], tuple[Decision, ...]]
"""The decisions of the cheapest candidate for exactly the positions start .. stop-1; () if there is none."""


def pieces(scene: Scene, chosen: Interval[tuple[Decision, ...]], cheapest: Cheapest) -> Iterator[Candidate]:
    """Joined decisions with one stretch of a branch decided as in the cheapest candidate for it, or with a pipeline cut
    in two anywhere and both parts decided that way."""
    parallel = chosen.payload[0]
    if not isinstance(parallel, Parallel):
        return
    for at, branch in enumerate(parallel.branches):
        spans = list(unit_spans(scene, branch))
        for one, other in combinations(range(len(spans) + 1), 2):
            place = (at, spans[one][0], spans[other - 1][1])
            items = items_at(parallel, place)
            start, stop = _stretch(scene, items)
            if stop - start != sum(len(item.nodes) for item in items) or stop - start == chosen.stop - chosen.start:
                continue
            for way in _ways(scene, items, start, stop, cheapest):
                yield Candidate(chosen.start, chosen.stop, (with_decisions(parallel, {place: way}),))


def cuts(scene: Scene, chosen: Interval[tuple[Decision, ...]], cheapest: Cheapest) -> Iterator[Candidate]:
    """Joined decisions cut in two at every unit, each part a candidate of its own: the rest may then be joined with its
    other neighbour. Also a pipeline cut in two, with its parts joined."""
    parallel = chosen.payload[0]
    if isinstance(parallel, Pipeline):
        yield from _cut_pipeline(scene, chosen, cheapest)
    if not isinstance(parallel, Parallel):
        return
    for unit in scene.units_within(chosen.start, chosen.stop)[1:]:
        for start, stop in ((chosen.start, unit.start), (unit.start, chosen.stop)):
            items = _between(scene, parallel.decisions, start, stop, cheapest)
            part = parallel_of(scene, start, stop, items)
            if len(items) > 1 and leaves_host(part, scene.host):
                yield Candidate(start, stop, (part,))


def shifted(scene: Scene, chosen: Sequence[Interval[tuple[Decision, ...]]], cheapest: Cheapest) -> Iterator[Candidate]:
    """Chosen decisions of which some are joined, joined from or up to any unit of the first or the last of them: also
    with one unit whole on another device.

    `cuts` has what is left of that decision. A combination of as many nodes as it may have can take in a neighbour only
    in this way.
    """
    for start, stop, window in _shifts(scene, chosen):
        items = [item for one in window for decision in one.payload for item in singles(decision)]
        found = _between(scene, items, start, stop, cheapest)
        part = parallel_of(scene, start, stop, found)
        if len(found) > 1 and leaves_host(part, scene.host):
            yield Candidate(start, stop, (part,))
            yield from moves(scene, start, stop, part)


def _shifts(
    scene: Scene, chosen: Sequence[Interval[tuple[Decision, ...]]]
) -> Iterator[tuple[int, int, Sequence[Interval[tuple[Decision, ...]]]]]:
    """Where decisions may be joined if the first or the last of them is cut, and those decisions.

    Of two units that do not depend on each other, one is in the first decision, one in the last.
    """
    starts = [one.start for one in chosen]
    found: set[tuple[int, int, int, int]] = set()
    for before, behind in scene.unordered:
        first, last = bisect_right(starts, before) - 1, bisect_right(starts, behind) - 1
        window = chosen[first : last + 1]
        start, stop = window[0].start, window[-1].stop
        if first == last or not any(isinstance(one.payload[0], Parallel) for one in window):
            continue
        inside = [unit.start for unit in scene.units_within(start, stop)[1:]]
        begins, ends = [place for place in inside if place <= before], [place for place in inside if place > behind]
        places = [(begin, stop) for begin in begins] + [(start, end) for end in ends]
        found.update((begin, end, first, last) for begin, end in places if end - begin <= MAX_REGION_NODES)
    for start, stop, first, last in sorted(found):
        if not scene.fetches_rows(start, stop):
            yield start, stop, chosen[first : last + 1]


def _cut_pipeline(scene: Scene, chosen: Interval[tuple[Decision, ...]], cheapest: Cheapest) -> Iterator[Candidate]:
    """A pipeline cut in two where a later unit does not depend on an earlier one, both parts decided as by themselves
    and joined: the pipeline may be the only obstacle to that."""
    ends = [bisect_left(scene.unordered, place, key=itemgetter(1)) for place in (chosen.start, chosen.stop)]
    inside = [pair for pair in scene.unordered[slice(*ends)] if pair[0] >= chosen.start]
    for unit in scene.units_within(chosen.start, chosen.stop)[1:] if inside else ():
        if not any(before < unit.start <= behind for before, behind in inside):
            continue
        parts = [_flat(cheapest(*part)) for part in ((chosen.start, unit.start), (unit.start, chosen.stop))]
        if all(parts):
            parallel = parallel_of(scene, chosen.start, chosen.stop, [item for part in parts for item in part])
            if leaves_host(parallel, scene.host):
                yield Candidate(chosen.start, chosen.stop, (parallel,))


def _between(scene: Scene, items: Sequence[Single], start: int, stop: int, cheapest: Cheapest) -> list[Single]:
    """The decisions about positions start .. stop-1; a decision that reaches beyond is replaced by those of the
    cheapest candidate for just the part within. Empty if there is no such candidate."""
    found: list[Single] = []
    for item in items:
        first, last = _stretch(scene, (item,))
        inner = max(first, start), min(last, stop)
        if inner[0] >= inner[1]:
            continue
        is_stretch = last - first == len(item.nodes)
        some = (item,) if inner == (first, last) else _flat(cheapest(*inner)) if is_stretch else ()
        if not some:
            return []
        found += some
    return sorted(found, key=lambda item: _stretch(scene, (item,)))


def _stretch(scene: Scene, items: Sequence[Single]) -> tuple[int, int]:
    """The positions that decisions cover, from the first to one past the last."""
    places = [scene.place[name] for item in items for name in item.nodes]
    return min(places), max(places) + 1


def _ways(
    scene: Scene, items: tuple[Single, ...], start: int, stop: int, cheapest: Cheapest
) -> Iterator[tuple[Single, ...]]:
    """Other decisions about a stretch, from candidates that are known to be cheap by themselves."""
    whole = _flat(cheapest(start, stop))
    if whole and whole != items:
        yield whole
    if len(items) > 1 or not isinstance(items[0], Pipeline):
        return
    for unit in scene.units_within(start, stop)[1:]:
        first, second = _flat(cheapest(start, unit.start)), _flat(cheapest(unit.start, stop))
        if first and second:
            yield *first, *second


def _flat(decisions: Sequence[Decision]) -> tuple[Single, ...]:
    return tuple(item for decision in decisions for item in singles(decision))
