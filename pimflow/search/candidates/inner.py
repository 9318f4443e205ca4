"""Split-K: the dimension that one product sums over, divided between the host and another device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from pimflow.ir import Decision, Node, SplitK
from pimflow.ir.analysis.regions import node_k
from pimflow.search.candidates.base import Candidate, Destination, Scene
from pimflow.search.candidates.columns import ALIGNMENT, GRID
from pimflow.search.chain import Interval
from pimflow.search.order import Unit
from pimflow.search.parts import divides_by_k
from pimflow.search.policy import Space


def k_splits(scene: Scene, space: Space, destination: Destination) -> Iterator[Candidate]:
    """Every split on a grid of the dimension that products sum over; nodes fused into them follow the sum of both
    parts.

    The grid is every multiple of `ALIGNMENT` in a small graph, otherwise tenths; `variations` finds the others.
    """
    for unit in _units(scene, space, destination):
        inner = node_k(scene.graph, unit.anchor)
        counts = {ALIGNMENT * round(multiple * GRID * inner / ALIGNMENT) for multiple in range(1, int(1 / GRID))}
        if scene.exhaustive:
            counts.update(range(ALIGNMENT, inner, ALIGNMENT))
        behind = scene.on_host(unit.nodes[1:])
        for count in sorted(count for count in counts if 0 < count < inner):
            split = SplitK(unit.anchor.name, count, destination.choice, destination.device)
            yield Candidate(unit.start, unit.stop, (split, *behind))


def _units(scene: Scene, space: Space, destination: Destination) -> Iterator[Unit]:
    units = scene.runnable_units(destination) if space.inner else ()
    return (unit for unit in units if divides_by_k(scene.graph, unit.anchor))


def variations(scene: Scene, chosen: Interval[tuple[Decision, ...]]) -> Iterator[Candidate]:
    """A chosen split with a little more or less on the host."""
    split = chosen.payload[0]
    if not isinstance(split, SplitK):
        return
    for count in nearby_counts(scene, scene.graph.node(split.node), split.gpu_k):
        yield Candidate(chosen.start, chosen.stop, (replace(split, gpu_k=count), *chosen.payload[1:]))


def nearby_counts(scene: Scene, node: Node, gpu_k: int) -> list[int]:
    """Counts that have a twentieth, a fortieth or an eightieth of a node's K more or less on the host."""
    inner = node_k(scene.graph, node)
    steps = {ALIGNMENT * max(1, round(inner * Fraction(GRID, part) / ALIGNMENT)) for part in (2, 4, 8)}
    counts = (gpu_k + sign * step for step in sorted(steps) for sign in (-1, 1))
    return [count for count in counts if 0 < count < inner]
