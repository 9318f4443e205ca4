"""Removes elementwise nodes from the epilogues of devices that cannot compute them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pimflow.ir import Graph, Node
from pimflow.ir.readout import Readout
from pimflow.passes.base import Pass, PassResult
from pimflow.records import dataclass


@dataclass(frozen=True)
class UnfuseEpilogues(Pass):
    """After placement, corrects `fused_into` so that it names the kernel that really computes each node.

    A kernel of the host computes everything that `FuseEpilogues` put into its epilogue. Any other device can at most
    apply functions to a single result as it is read out (those that the device supports), but never combines it with a
    second tensor: a node that adds one becomes a kernel of the host, and the rest of the chain is fused into that.

    Args:
        readouts: devices that apply functions as their results are read out.
        host: the device that computes any epilogue.
    """

    name: ClassVar[str] = "unfuse-epilogues"
    required: ClassVar[bool] = True

    readouts: tuple[Readout, ...] = ()
    host: str = "gpu"

    def run(self, graph: Graph) -> PassResult:
        kernels: dict[str, str] = {}  # by name of a node that leaves its root's epilogue: the kernel that it is in
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
        """The node whose kernel computes `node`, which is fused into a node on another device: possibly itself."""
        producers = [graph.producer(name) for name in graph.activations(node)]
        chain = [
            producer
            for producer in producers
            if producer and root.name in (producer.name, producer.placement.fused_into)
        ]
        if len(chain) < len(producers):
            return node.name
        others = [kernels[producer.name] for producer in chain if producer.name in kernels]
        if others:  # the last of them, so that no kernel waits for one that waits for it
            return max(others, key=lambda kernel: graph.position[kernel])
        applied = any(readout.device == root.device and readout.applies(node) for readout in self.readouts)
        return root.name if applied else node.name


def _moved(node: Node, kernel: str) -> Node:
    return node.placed(fused_into=None if kernel == node.name else kernel)
