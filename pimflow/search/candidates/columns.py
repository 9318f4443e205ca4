"""MD-DP along the columns: the output columns of one node divided between the host and another device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from pimflow.ir import Decision, Node, SplitColumns
from pimflow.ir.analysis.regions import node_columns, node_rows
from pimflow.passes.apply_plan import why_not
from pimflow.search.candidates.base import Candidate, Destination, Scene
from pimflow.search.chain import Interval
from pimflow.search.order import Unit
from pimflow.search.parts import FEW_ROWS
from pimflow.search.policy import Space

GRID = Fraction(1, 10)
ALIGNMENT = 16
"""Shares are multiples of this many columns: the banks that one COMP feeds, and a fraction of a tile on every GPU."""


def column_splits(scene: Scene, space: Space, destination: Destination) -> Iterator[Candidate]:
    """Every split on a grid of columns; nodes fused into the node follow it.

    The grid is every multiple of `ALIGNMENT` in a small graph, otherwise tenths; `variations` finds the others.
    """
    for unit in _units(scene, space, destination):
        columns = node_columns(scene.graph, unit.anchor)
        counts = {_aligned(multiple * GRID * columns) for multiple in range(1, int(1 / GRID))}
        if scene.exhaustive:
            counts.update(range(ALIGNMENT, columns, ALIGNMENT))
        yield from _candidates(scene, unit, destination, sorted(count for count in counts if 0 < count < columns))


def versions(scene: Scene, space: Space, destination: Destination, most: int) -> int:
    """The number of splits of columns; counting stops above `most`."""
    count = 0
    for unit in _units(scene, space, destination):
        count += node_columns(scene.graph, unit.anchor) // ALIGNMENT
        if count > most:
            break
    return count


def _units(scene: Scene, space: Space, destination: Destination) -> Iterator[Unit]:
    """The products, and the convolutions with few rows, that a space divides by columns."""
    units = scene.runnable_units(destination) if space.columns else ()
    return (unit for unit in units if divides(scene, unit.anchor))


def divides(scene: Scene, node: Node) -> bool:
    """Whether a node is a product, or a convolution with few rows."""
    return node.op.is_contraction and (node.op.is_matrix_product or node_rows(scene.graph, node) < FEW_ROWS)


def _candidates(scene: Scene, unit: Unit, destination: Destination, counts: list[int]) -> Iterator[Candidate]:
    followers = tuple(node.name for node in unit.nodes if node is not unit.anchor)
    for place, count in enumerate(counts):
        split = SplitColumns(unit.anchor.name, count, destination.choice, followers, destination.device)
        if place == 0 and why_not(scene.graph, split, scene.host) is not None:
            return
        yield Candidate(unit.start, unit.stop, (split,))


def _aligned(columns: Fraction) -> int:
    return ALIGNMENT * round(columns / ALIGNMENT)


def variations(scene: Scene, chosen: Interval[tuple[Decision, ...]]) -> Iterator[Candidate]:
    """A chosen split with a few columns more or fewer on the host."""
    split = chosen.payload[0]
    if not isinstance(split, SplitColumns):
        return
    columns = node_columns(scene.graph, scene.graph.node(split.node))
    steps = {_aligned(columns * GRID / part) or ALIGNMENT for part in (2, 4, 8)}
    for step in sorted(steps):
        for count in (split.gpu_columns - step, split.gpu_columns + step):
            if 0 < count < columns:
                yield Candidate(chosen.start, chosen.stop, (replace(split, gpu_columns=count),))
