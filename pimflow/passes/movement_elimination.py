"""Movement elimination: Slice, Pad, Concat and views become places in memory instead of copies."""

from __future__ import annotations

from typing import ClassVar

from pimflow.ir import Graph
from pimflow.ir.analysis.movement import movement
from pimflow.ir.analysis.padding import padding_verdicts
from pimflow.passes.base import Pass, PassResult
from pimflow.records import dataclass


@dataclass(frozen=True)
class MovementElimination(Pass):
    """Marks nodes that only move elements with whether they need a copy, and why.

    A Slice becomes an offset, a Concat several writers of one buffer, a Pad space reserved around its input, a view the
    same bytes (`ir/analysis/movement.py` has the algebra). The nodes stay in the graph, so it can be exported to ONNX
    at any time; a free movement costs nothing and moves nothing. The pass runs before a graph is cut into regions, so
    that the verdict on a Concat of values from different regions is fixed once. Movements inserted later get their
    verdict within their region, except for a Pad, which needs space around a value that another region may make: every
    convolution that may need one later (`ExplicitPadding`) records in advance whether it would be free.
    """

    name: ClassVar[str] = "movement-elimination"

    def run(self, graph: Graph) -> PassResult:
        """Mark the movements; the notes say which ones still need a copy, and why."""
        movements = movement(_undecided(graph))
        kept = tuple(f"{name}: {found.reason}" for name, found in movements.items() if not found.free)
        placed = graph.replace(
            nodes=(
                node.placed(movement=movements[node.name].verdict) if node.name in movements else node
                for node in graph.nodes
            )
        )
        paddings = padding_verdicts(placed)
        nodes = tuple(node.placed(padding=paddings.get(node.name)) for node in placed.nodes)
        if nodes == graph.nodes:
            return PassResult(graph, False, kept)
        return PassResult(graph.replace(nodes=nodes), True, kept)


def _undecided(graph: Graph) -> Graph:
    """The graph without the verdicts of an earlier run, which other passes may have invalidated.

    In a graph that is cut into regions they stay valid.
    """
    marked = any(node.placement.movement is not None for node in graph.nodes)
    if not marked or any(node.placement.region is not None for node in graph.nodes):
        return graph
    return graph.replace(nodes=(node.placed(movement=None) for node in graph.nodes))
