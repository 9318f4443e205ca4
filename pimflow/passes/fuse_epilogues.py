"""Marks elementwise nodes that a GPU library runs inside the kernel before them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pimflow.ir import BatchNorm, Elementwise, Graph, Node
from pimflow.ir.analysis.regions import elementwise_chain, outside_dependence
from pimflow.passes.base import Pass, PassResult

Accept = Callable[[Node, Mapping[str, Node]], bool]


@dataclass(frozen=True)
class FuseEpilogues(Pass):
    """Sets `fused_into` of elementwise nodes: the name of the node whose kernel computes them in its epilogue.

    What cuDNN's and cuBLAS's fused kernels and graph compilers do: behind a convolution, matrix product or batch norm,
    and behind an elementwise kernel, all elementwise nodes of the same shape that read nothing but that result and
    constants: bias, ReLU, clip, sigmoid, x * sigmoid(x), hard-swish in parts. They are fused only if a single value
    leaves the kernel. A GPU kernel can add a second tensor in its epilogue too; a PIM result on its way out cannot, so
    what a fused residual Add costs behind PIM is for the cost model to say.

    Args:
        residual: whether Adds of a second, independent tensor are fused into convolutions and matrix products.
    """

    name: ClassVar[str] = "fuse-epilogues"

    residual: bool = False

    def run(self, graph: Graph) -> PassResult:
        fused: dict[str, str] = {}
        matrix = [node for node in graph.nodes if node.op.is_contraction or isinstance(node.op, BatchNorm)]
        others = [node for node in graph.nodes if node.op.is_elementwise]
        for node in (*matrix, *others):
            if node.name in fused:
                continue
            for follower in elementwise_chain(graph, node, self._accepts(graph, node, fused)):
                fused[follower.name] = node.name
        tagged = [_with_fusion(node, fused.get(node.name)) for node in graph.nodes]
        changed = any(new is not old for new, old in zip(tagged, graph.nodes, strict=True))
        return PassResult(graph.replace(nodes=tagged) if changed else graph, changed)

    def _accepts(self, graph: Graph, root: Node, fused: Mapping[str, str]) -> Accept:
        shape = graph.value(root.output).shape
        residual = self.residual and root.op.is_contraction

        def accept(node: Node, members: Mapping[str, Node]) -> bool:
            if node.name in fused or graph.value(node.output).shape != shape:
                return False
            producers = [graph.producer(name) for name in graph.activations(node)]
            if all(producer is not None and producer.name in members for producer in producers):
                return True
            added = isinstance(node.op, Elementwise) and node.op.kind in ("Add", "Sum")
            return residual and added and outside_dependence(graph, node, members) is None

        return accept


def _with_fusion(node: Node, into: str | None) -> Node:
    if node.placement.fused_into == into:
        return node
    return node.placed(fused_into=into)
