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
        if node.device not in (None, self.host.device) or not self.host.algorithm(self.graph, node):
            return super().run(node, inputs)
        return [self.host.execute(self.graph, node, inputs)]
