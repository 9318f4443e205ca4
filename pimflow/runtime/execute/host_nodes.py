"""Executes nodes of the host by value: with the host's own algorithm if it has one for a node, else by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

from pimflow.codegen.host import HostBackend
from pimflow.ir import Array, Graph, Node
from pimflow.runtime.execute.ort import NodeKernels


class HostKernels(NodeKernels):
    """The kernels of a graph on a host.

    Args:
        graph: the graph whose nodes are run.
        host: the host.
    """

    def __init__(self, graph: Graph, host: HostBackend) -> None:
        super().__init__(graph)
        self.host = host

    def run(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        """The node's results (one for each output that has a name)."""
        if not has_algorithm(self.host, self.graph, node):
            return super().run(node, inputs)
        return [self.host.execute(self.graph, node, inputs)]


def has_algorithm(host: HostBackend, graph: Graph, node: Node) -> bool:
    """Whether a host computes a node by an algorithm of its own."""
    return node.device in (None, host.device) and host.algorithm(graph, node) != ""
