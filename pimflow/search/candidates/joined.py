"""Chosen decisions put together: devices meet at the end of all of them alone.

What is put together waits for what it reads and for its device, no longer for all that was decided before it. That
gains something where a node of one decision does not wait for a node of an earlier one, and either can leave the host:
the neighbours from the one decision to the other are put together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from pimflow.ir import Decision, OnDevice, Parallel
from pimflow.ir.plan import Single, singles
from pimflow.search.candidates.base import MAX_REGION_NODES, Candidate, Scene
from pimflow.search.candidates.branches import variations
from pimflow.search.chain import Interval
from pimflow.search.order import branches_of

Chosen = Sequence[Interval[tuple[Decision, ...]]]


def joins(scene: Scene, chosen: Chosen) -> Iterator[Candidate]:
    """Chosen decisions that follow each other, put together as they are, and with one unit decided otherwise."""
    starts = [one.start for one in chosen]
    ends = {(bisect_right(starts, before) - 1, bisect_right(starts, behind) - 1) for before, behind in scene.unordered}
    for first, last in sorted(ends):
        start, stop = chosen[first].start, chosen[last].stop
        if first < last and stop - start <= MAX_REGION_NODES and not scene.brings_rows(start, stop):
            yield from _joined(scene, chosen[first : last + 1])


def _joined(scene: Scene, window: Chosen) -> Iterator[Candidate]:
    start, stop = window[0].start, window[-1].stop
    items = [item for interval in window for decision in interval.payload for item in singles(decision)]
    split = branches_of(scene.graph, scene.order[start:stop])
    branch_of = {node.name: branch for branch, nodes in enumerate(split) for node in nodes}
    joined = Parallel(
        tuple(tuple(item for item in items if branch_of[item.nodes[0]] == branch) for branch in range(len(split)))
    )
    if not all(_stays(item, scene.host) for item in items):
        yield Candidate(start, stop, (joined,))
    yield from variations(scene, Interval(start, stop, 0.0, (joined,)))


def _stays(item: Single, host: str) -> bool:
    return isinstance(item, OnDevice) and item.device == host
