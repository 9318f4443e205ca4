"""Joined decisions with neighbours in them decided as they would be by themselves, and joined decisions cut in two.

Variations change one unit at a time; pipelines enter and leave joined decisions as a whole: those that the search has
found for the same stretch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from operator import itemgetter

from pimflow.ir import Decision, Parallel, Pipeline
from pimflow.ir.plan import Single, leaves_host, singles
from pimflow.search.candidates.base import Candidate, Scene
from pimflow.search.candidates.branches import items_at, parallel_of, unit_spans, with_decisions
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
            items = _between(scene, parallel, start, stop, cheapest)
            part = parallel_of(scene, start, stop, items)
            if len(items) > 1 and leaves_host(part, scene.host):
                yield Candidate(start, stop, (part,))


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


def _between(scene: Scene, parallel: Parallel, start: int, stop: int, cheapest: Cheapest) -> list[Single]:
    """The decisions about positions start .. stop-1; a decision that reaches beyond is replaced by those of the
    cheapest candidate for just the part within. Empty if there is no such candidate."""
    found: list[Single] = []
    for item in parallel.decisions:
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
