"""Movement elimination: Slice, Pad, Concat and views become places in memory instead of copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pimflow.ir import Graph, Node
from pimflow.ir.analysis.movement import Movement, movement
from pimflow.passes.base import Pass, PassResult


@dataclass(frozen=True)
class MovementElimination(Pass):
    """Decides which nodes that only move elements need a copy, and writes the verdict and its reason to each.

    A Slice becomes an offset, a Concat several writers of one buffer, a Pad space reserved around its input, a view
    the same bytes (`ir/analysis/movement.py` has the algebra). The nodes stay in the graph, which can so be written as
    ONNX at any time; what is free costs nothing and moves nothing. To be run before a graph is cut into regions: a
    Concat of values that other regions make is then decided once. What rewrites insert later is decided within its
    region.
    """

    name: ClassVar[str] = "movement-elimination"

    def run(self, graph: Graph) -> PassResult:
        """Places the movements; the notes say what is copied after all, and why."""
        movements = movement(graph)
        nodes = [_placed(node, movements[node.name]) if node.name in movements else node for node in graph.nodes]
        kept = tuple(f"{name}: {found.reason}" for name, found in movements.items() if not found.free)
        if tuple(nodes) == graph.nodes:
            return PassResult(graph, False, kept)
        return PassResult(graph.replace(nodes=nodes), True, kept)


def _placed(node: Node, found: Movement) -> Node:
    return node.placed(movement=found.verdict)
