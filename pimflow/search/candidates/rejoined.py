"""Pipelines inside joined decisions: in other stages, cut, merged with neighbours in the branch, dissolved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

from pimflow.ir import Decision, Parallel, Pipeline
from pimflow.ir.plan import Single, singles
from pimflow.search.candidates.base import Candidate, Scene
from pimflow.search.candidates.branches import Place, moves, unit_spans, with_decisions
from pimflow.search.candidates.merged import MAX_MERGED, Chosen, Merger
from pimflow.search.chain import Interval


def rejoined(scene: Scene, merger: Merger, chosen: Interval[tuple[Decision, ...]]) -> Iterator[Candidate]:
    """Joined decisions with other pipelines in one of their branches, or with the units of one of them apart.

    The other branches are decided around a pipeline, so once its units are apart, one more unit may be better off on
    another device.
    """
    parallel = chosen.payload[0]
    if isinstance(parallel, Parallel):
        for place, window in _windows(scene, parallel):
            for changed in _changed(merger, parallel, place, window):
                yield Candidate(chosen.start, chosen.stop, (changed,))
            apart = merger.apart(window[0]) if len(window) == 1 else ()
            if apart:
                dissolved = with_decisions(parallel, {place: apart})
                yield Candidate(chosen.start, chosen.stop, (dissolved,))
                but = frozenset(item.nodes[0] for item in apart)
                yield from moves(scene, chosen.start, chosen.stop, dissolved, but)


def _changed(merger: Merger, parallel: Parallel, place: Place, window: Chosen) -> Iterator[Parallel]:
    """The branches with another pipeline at a place."""
    for pipeline in merger.pipelines(window):
        for together in (True, False):
            items = _around(merger, window, pipeline, together=together)
            if items:
                yield with_decisions(parallel, {place: items})


def _windows(scene: Scene, parallel: Parallel) -> Iterator[tuple[Place, Chosen]]:
    """One to three consecutive decisions of a branch of which at least one is a pipeline, and their places."""
    for branch, items in enumerate(parallel.branches):
        if not any(isinstance(item, Pipeline) for item in items):
            continue
        spans = list(unit_spans(scene, items))
        parts = [_part(scene, items[first:last]) for first, last in spans]
        for size in range(1, MAX_MERGED + 1):
            for at in range(len(parts) - size + 1):
                window = parts[at : at + size]
                if _is_stretch(window) and any(isinstance(part.payload[0], Pipeline) for part in window):
                    yield (branch, spans[at][0], spans[at + size - 1][1]), window


def _part(scene: Scene, items: tuple[Single, ...]) -> Interval[tuple[Decision, ...]]:
    places = [scene.place[name] for item in items for name in item.nodes]
    return Interval(min(places), max(places) + 1, 0.0, items)


def _is_stretch(window: Chosen) -> bool:
    """Whether there are no other nodes between those of some decisions."""
    covered = sum(len(decision.nodes) for part in window for decision in part.payload)
    return window[-1].stop - window[0].start == covered


def _around(merger: Merger, window: Chosen, pipeline: Candidate, *, together: bool) -> tuple[Single, ...]:
    """The decisions of a window with a new pipeline among them. Units that it leaves of an old one stay together if
    possible, or are apart; () if it leaves none that could be apart."""
    found: list[tuple[int, tuple[Single, ...]]] = [(pipeline.start, _flat(pipeline.decisions))]
    is_whole = True
    for part in window:
        before, behind = (part.start, min(part.stop, pipeline.start)), (max(part.start, pipeline.stop), part.stop)
        for start, stop in (before, behind):
            if start >= stop:
                continue
            if stop - start == part.stop - part.start:
                found.append((start, _flat(part.payload)))
                continue
            is_whole = False
            found.append((start, _flat(merger.rest(part, start, stop, together=together))))
    if is_whole and not together:
        return ()
    return tuple([item for _, items in sorted(found, key=itemgetter(0)) for item in items])


def _flat(decisions: Sequence[Decision]) -> tuple[Single, ...]:
    return tuple([item for decision in decisions for item in singles(decision)])
