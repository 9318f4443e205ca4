"""MD-DP: the rows of one node divided between the host and another device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

from pimflow.ir import SplitRows
from pimflow.ir.analysis.regions import node_rows
from pimflow.passes.apply_plan import why_not
from pimflow.search.candidates.base import Candidate, Destination, Scene
from pimflow.search.order import Unit
from pimflow.search.policy import Space

MAX_FOLLOWERS = 8
MAX_COUNTS = 1023


def splits(scene: Scene, space: Space, destination: Destination) -> Iterator[Candidate]:
    """Every split of every unit on the space's grid of rows."""
    if space.split is None:
        return
    for unit in scene.runnable_units(destination):
        if unit.anchor.op.is_sparse:
            continue  # every part would be a graph of its own, and its statistics take as long as those of all edges
        rows = node_rows(scene.graph, unit.anchor)
        for stop, followers in _follower_runs(scene, unit, destination):
            for gpu_rows in row_counts(rows, space.split):
                split = SplitRows(unit.anchor.name, gpu_rows, destination.choice, followers, destination.device)
                yield Candidate(unit.start, stop, (split,))


def _follower_runs(scene: Scene, unit: Unit, destination: Destination) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Which elementwise neighbours follow the halves: (stop, their names), each stop at the end of a unit.

    Fused nodes always follow: after the Concat they would be kernels of their own.
    """
    followers: tuple[str, ...] = ()
    stop = unit.start
    for other in scene.units_from(unit):
        longer = (*followers, *(node.name for node in other.nodes if node is not unit.anchor))
        if other.stop - unit.start > MAX_FOLLOWERS + len(unit.nodes):
            return
        if other is not unit and not other.anchor.op.is_elementwise:
            return
        split = SplitRows(unit.anchor.name, 1, destination.choice, longer, destination.device)
        if why_not(scene.graph, split, scene.host) is not None:
            return
        followers, stop = longer, other.stop
        yield stop, followers


@lru_cache(maxsize=4096)
def row_counts(rows: int, step: Fraction) -> tuple[int, ...]:
    """The possible numbers of rows on the host: ceil(multiple of step * rows), excluding none and all.

    Step 0: every count, or `MAX_COUNTS` evenly spaced counts if there are very many rows.
    """
    if step == 0 and rows <= MAX_COUNTS + 1:
        return tuple(range(1, rows))
    step = step or Fraction(1, MAX_COUNTS + 1)
    counts = {math.ceil(multiple * step * rows) for multiple in range(1, math.ceil(1 / step))}
    return tuple(sorted(count for count in counts if 0 < count < rows))
