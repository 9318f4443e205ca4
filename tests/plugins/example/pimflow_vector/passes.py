"""A custom pass, for `pimflow opt -p`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pimflow.ir import Graph
from pimflow.passes import Pass, PassResult


@dataclass(frozen=True)
class ForgetTags(Pass):
    """Removes the tags of nodes."""

    name: ClassVar[str] = "forget-tags"

    def run(self, graph: Graph) -> PassResult:
        """Remove the tags, and change nothing else."""
        nodes = tuple(replace(node, tags=()) for node in graph.nodes)
        return PassResult(replace(graph, nodes=nodes), changed=nodes != graph.nodes)
