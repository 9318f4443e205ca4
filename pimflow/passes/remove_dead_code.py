"""Removes nodes, values and constants that no graph output depends on."""

from __future__ import annotations

from typing import ClassVar

from pimflow.ir import Graph
from pimflow.passes.base import Pass, PassResult
from pimflow.records import dataclass


@dataclass(frozen=True)
class RemoveDeadCode(Pass):
    """Removes everything that no output depends on. Graph inputs stay, read or not: they are the model's interface."""

    name: ClassVar[str] = "remove-dead-code"

    def run(self, graph: Graph) -> PassResult:
        live = set(graph.outputs)
        kept = []
        for node in reversed(graph.nodes):
            if live.intersection(node.outputs):
                kept.append(node)
                live.update(name for name in node.inputs if name)
        named = live.union(graph.inputs, *(node.outputs for node in kept))
        values = {name: value for name, value in graph.values.items() if name in named}
        constants = {name: array for name, array in graph.constants.items() if name in named}
        if len(kept) == len(graph.nodes) and len(constants) == len(graph.constants):
            return PassResult(graph, False)
        return PassResult(graph.replace(nodes=reversed(kept), values=values, constants=constants), True)
