"""Chosen decisions joined into one: devices synchronise only at the end of all of them.

A node of a joined decision waits for its inputs and its device, but not for everything that was decided before it. That
pays off if a node of one decision does not depend on a node of an earlier one, and at least one of the two can leave
the host: the decisions from the one to the other are joined.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pimflow.ir import Decision, OnDevice, Parallel, SplitColumns, SplitRows
from pimflow.ir.analysis.regions import node_columns, node_rows
from pimflow.ir.plan import Single, singles
from pimflow.search.candidates.base import MAX_REGION_NODES, Candidate, Scene
from pimflow.search.candidates.branches import parallel_of, variations
from pimflow.search.candidates.columns import ALIGNMENT
from pimflow.search.chain import Interval

Chosen = Sequence[Interval[tuple[Decision, ...]]]


def joins(scene: Scene, chosen: Chosen, seen: set[tuple[Decision, ...]]) -> Iterator[tuple[Candidate, float]]:
    """Consecutive chosen decisions, joined: as they are, with a single divided node that leaves the host, and with one
    unit decided differently; each with the cost of the chosen decisions. They are about the first of equivalent
    stretches; decisions that were `seen` before, about any of these, are left out."""
    starts = [one.start for one in chosen]
    ends = {(bisect_right(starts, before) - 1, bisect_right(starts, behind) - 1) for before, behind in scene.unordered}
    for first, last in sorted(ends):
        start, stop = chosen[first].start, chosen[last].stop
        if first == last or stop - start > MAX_REGION_NODES or scene.fetches_rows(start, stop):
            continue
        decisions = tuple([decision for one in chosen[first : last + 1] for decision in one.payload])
        if decisions in seen:
            continue
        seen.add(decisions)
        shift = scene.equivalents.shift(start, stop)
        if shift:
            decisions = scene.moved(decisions, -shift)
            if decisions in seen:
                continue
            seen.add(decisions)
        parts_cost = sum([one.cost for one in chosen[first : last + 1]])
        yield from ((joined, parts_cost) for joined in _joined(scene, start - shift, stop - shift, decisions))


def _joined(scene: Scene, start: int, stop: int, decisions: tuple[Decision, ...]) -> Iterator[Candidate]:
    items = [item for decision in decisions for item in singles(decision)]
    joined = parallel_of(scene, start, stop, items)
    if not all(_stays(item, scene.host) for item in items):
        yield Candidate(start, stop, (joined,))
    yield from (Candidate(start, stop, (parallel,)) for parallel in _one_leaves(scene, joined))
    yield from variations(scene, Interval(start, stop, 0.0, (joined,)))


def _one_leaves(scene: Scene, joined: Parallel) -> Iterator[Parallel]:
    """For each divided node in turn: that node whole on its unit, and as much of all the others on the host as
    possible.

    If one node keeps the unit busy, the others are better off on the host; either step alone takes longer.
    """
    divided = [item for item in joined.decisions if isinstance(item, SplitRows | SplitColumns)]
    for one in divided if len(divided) > 1 else ():
        whole = (OnDevice(one.node, one.device, one.choice), *(OnDevice(name, scene.host) for name in one.followers))
        yield Parallel(
            tuple(
                tuple(new for item in branch for new in (whole if item is one else (_mostly_on_host(scene, item),)))
                for branch in joined.branches
            )
        )


def _mostly_on_host(scene: Scene, item: Single) -> Single:
    """The same decision with the smallest possible part of a divided node on the unit."""
    if isinstance(item, SplitRows):
        return replace(item, gpu_rows=node_rows(scene.graph, scene.graph.node(item.node)) - 1)
    if isinstance(item, SplitColumns):
        most = node_columns(scene.graph, scene.graph.node(item.node)) - 1
        return replace(item, gpu_columns=most - most % ALIGNMENT)
    return item


def _stays(item: Single, host: str) -> bool:
    return isinstance(item, OnDevice) and item.device == host
