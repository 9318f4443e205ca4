"""Marks elementwise nodes that a GPU library runs in the kernel of the node before them."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import ClassVar

from pimflow.ir import BatchNorm, Elementwise, Graph, Node, TypedSpmm
from pimflow.ir.analysis.regions import outside_dependence
from pimflow.passes.base import Pass, PassResult
from pimflow.records import dataclass

_LONGEST_EPILOGUE = 64
"""The maximum number of elementwise nodes in one epilogue: a value with more readers leaves its kernel whatever is
fused."""


@dataclass(frozen=True)
class FuseEpilogues(Pass):
    """Sets `fused_into` of elementwise nodes: the name of the node whose kernel computes them in its epilogue.

    This models the fused kernels of cuDNN and cuBLAS and graph compilers: after a convolution, matrix product, batch
    norm or sparse op, and after an elementwise kernel, all elementwise nodes of the same shape are fused that read only
    that result, constants, and (after an elementwise kernel) the kernel's own inputs: bias, ReLU, clip, sigmoid, x *
    sigmoid(x), hard-swish in parts. They are fused only if a single value leaves the kernel. A GPU kernel can also add
    a second tensor in its epilogue. `UnfuseEpilogues` undoes what other devices cannot do once nodes are placed.

    Args:
        residual: whether Adds of a second, independent tensor are fused into convolutions and matrix products.
    """

    name: ClassVar[str] = "fuse-epilogues"

    residual: bool = False

    def run(self, graph: Graph) -> PassResult:
        fused: dict[str, str] = {}
        matrix = [node for node in graph.nodes if _computes_rows(node)]
        others = [node for node in graph.nodes if node.op.is_elementwise]
        for node in (*matrix, *others):
            if node.name in fused:
                continue
            for follower in _Kernel(graph, node, self.residual).epilogue(fused):
                fused[follower.name] = node.name
        tagged = [_with_fusion(node, fused.get(node.name)) for node in graph.nodes]
        changed = any(new is not old for new, old in zip(tagged, graph.nodes, strict=True))
        return PassResult(graph.replace(nodes=tagged) if changed else graph, changed)


class _Kernel:
    """One kernel: a node and the elementwise nodes in its epilogue, found one by one in topological order."""

    def __init__(self, graph: Graph, root: Node, residual: bool) -> None:
        self._graph = graph
        self._shape = graph.value(root.output).shape
        self._residual = residual and root.op.is_contraction
        self._read = frozenset(graph.activations(root)) if root.op.is_elementwise else frozenset[str]()
        self._members: dict[str, Node] = {}
        self._unread: dict[str, int] = {}  # by value of a member that others read, the number of its readers
        self._waiting: list[int] = []  # positions of nodes that read a member, as a heap
        self._closed = False  # whether a value leaves the kernel however long the epilogue gets
        self._add(root)

    def epilogue(self, taken: Mapping[str, str]) -> tuple[Node, ...]:
        """The longest list of nodes that are in no other kernel such that only one value leaves this kernel."""
        longest = 1
        tried: set[str] = set()
        while self._waiting and not self._closed and len(self._members) <= _LONGEST_EPILOGUE:
            node = self._graph.nodes[heapq.heappop(self._waiting)]
            if node.name in tried:
                continue
            tried.add(node.name)
            if node.name in taken or not self._absorbs(node):
                continue
            self._add(node)
            if len(self._unread) <= 1:
                longest = len(self._members)
        return tuple(self._members.values())[1:longest]

    def _absorbs(self, node: Node) -> bool:
        """Whether the kernel can compute a node from its own values and inputs, or with a second tensor added."""
        graph = self._graph
        if not node.op.is_elementwise or graph.value(node.output).shape != self._shape:
            return False
        producers = [graph.producer(name) for name in graph.activations(node) if name not in self._read]
        if all(producer is not None and producer.name in self._members for producer in producers):
            return True
        added = isinstance(node.op, Elementwise) and node.op.kind in ("Add", "Sum")
        return self._residual and added and outside_dependence(graph, node, self._members) is None

    def _add(self, node: Node) -> None:
        graph, value = self._graph, node.output
        self._members[node.name] = node
        for name in set(node.inputs) & self._unread.keys():
            self._unread[name] -= 1
            if not self._unread[name]:
                del self._unread[name]
        readers = len(graph.users(value)) + (value in graph.outputs)  # the caller reads a graph output
        if readers:
            self._unread[value] = readers
        self._closed |= readers > _LONGEST_EPILOGUE
        if self._closed:
            return
        for user in graph.users(value):
            heapq.heappush(self._waiting, graph.position[user.name])


def _computes_rows(node: Node) -> bool:
    """Whether a node has a kernel of its own that holds each complete result.

    A kernel that adds to results in memory does not know when one is complete.
    """
    sums = node.op.is_sparse and not isinstance(node.op, TypedSpmm)
    return node.op.is_contraction or sums or isinstance(node.op, BatchNorm)


def _with_fusion(node: Node, into: str | None) -> Node:
    if node.placement.fused_into == into:
        return node
    return node.placed(fused_into=into)
