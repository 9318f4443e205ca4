"""Takes elementwise nodes out of the epilogues of devices that cannot compute them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pimflow.ir import Graph, Node
from pimflow.ir.readout import Readout
from pimflow.passes.base import Pass, PassResult
from pimflow.records import dataclass


@dataclass(frozen=True)
class UnfuseEpilogues(Pass):
    """Once nodes are placed, makes `fused_into` say what really runs in whose kernel.

    A kernel of the host computes all that `FuseEpilogues` put into its epilogue. A result of any other device, on its
    way out, passes through functions of itself at most (those that the device applies), but never meets a second
    tensor: what adds one is a kernel of the host, and what follows in the chain is fused into that.

    Args:
        readouts: devices that apply functions as their results are read out.
        host: the device that computes any epilogue.
    """

    name: ClassVar[str] = "unfuse-epilogues"
    required: ClassVar[bool] = True

    readouts: tuple[Readout, ...] = ()
    host: str = "gpu"

    def run(self, graph: Graph) -> PassResult:
        kernels: dict[str, str] = {}  # by name of a node that is in no epilogue of its root's: whose kernel it is in
        for node in graph.nodes:
            root = graph.node_by_name.get(node.placement.fused_into or "")
            if root is not None and root.device not in (None, self.host):
                kernel = self._kernel_of(graph, node, root, kernels)
                if kernel != root.name:
                    kernels[node.name] = kernel
        if not kernels:
            return PassResult(graph, False)
        nodes = (_moved(node, kernels[node.name]) if node.name in kernels else node for node in graph.nodes)
        return PassResult(graph.replace(nodes=nodes), True)

    def _kernel_of(self, graph: Graph, node: Node, root: Node, kernels: Mapping[str, str]) -> str:
        """The node whose kernel computes `node`, which is fused into a node on another device: possibly its own."""
        makers = [graph.producer(name) for name in graph.activations(node)]
        chain = [maker for maker in makers if maker and root.name in (maker.name, maker.placement.fused_into)]
        if len(chain) < len(makers):
            return node.name
        others = [kernels[maker.name] for maker in chain if maker.name in kernels]
        if others:
            return others[-1]
        applied = any(readout.device == root.device and readout.applies(node) for readout in self.readouts)
        return root.name if applied else node.name


def _moved(node: Node, kernel: str) -> Node:
    return node.placed(fused_into=None if kernel == node.name else kernel)
