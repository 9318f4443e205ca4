"""Split-K: the dimension that a product sums over is divided between two devices, and the host adds up both parts.

    y = x @ w   becomes   y_gpu = x[:, :k] @ w[:k]    on the host
                          y_pim = x[:, k:] @ w[k:]    on the other device, at the same time
                          y     = y_gpu + y_pim       on the host

K is the inner dimension of a matrix product, or the input channels of a convolution. The split is for kernels that take
as long for some of their rows or columns as for all: those with few results, each a long sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pimflow.ir import Conv2d, Elementwise, Gemm, Graph, Node, Placement, Slice
from pimflow.ir.analysis.padding import uneven_padding
from pimflow.ir.analysis.regions import k_axes, node_k
from pimflow.ir.ops.contraction import Contraction
from pimflow.ir.refusal import Refusal
from pimflow.passes.decision import DecisionPass, Site, device_refusal
from pimflow.records import dataclass


@dataclass(frozen=True)
class KSplit(DecisionPass):
    """Splits a product by K: the first part on the host, with the bias, the rest on another device; the host adds both.

    Nodes fused into the product are fused into the node that adds up both parts.

    Args:
        node: a convolution of one group or a matrix product, with constant weights.
        gpu_k: inner elements, or input channels, that the host sums over; neither none nor all.
        choice: the choice to request from the other device's backend (a mapping policy, a strategy); "" is its default.
        device: sums over the rest.
        host: sums over the first part, and adds up both.
    """

    name: ClassVar[str] = "k-split"

    node: str
    gpu_k: int
    choice: str = ""
    device: str = "pim"
    host: str = "gpu"

    @property
    def covers(self) -> tuple[str, ...]:
        """The node."""
        return (self.node,)

    def refusal(self, graph: Graph) -> Refusal | None:
        """Why the node cannot be split this way, or None."""
        node = graph.node(self.node)
        refused = device_refusal(node, self.device, self.host) or k_refusal(graph, node)
        if refused is not None:
            return refused
        inner = node_k(graph, node)
        if not 0 < self.gpu_k < inner:
            return Refusal(f"{node.name}: {self.gpu_k} of K = {inner} on the host leave a part empty")
        return None

    def rewrite(self, site: Site) -> list[Node] | Refusal:
        """Both parts, the Slices of what they read, and their sum."""
        refused = self.refusal(site.graph)
        return list(self._nodes(site)) if refused is None else refused

    def _nodes(self, site: Site) -> Iterator[Node]:
        node, editor = site.graph.node(self.node), site.editor
        value = site.graph.value(node.output)
        made = []
        for device, start, stop in ((self.host, 0, self.gpu_k), (self.device, self.gpu_k, node_k(site.graph, node))):
            cut = self._cut(site, node, device, start, stop)
            yield cut
            weights = self._weights(site, node, device, start, stop)
            bias = node.inputs[2:] if device == self.host else ()
            output = editor.new_value(f"{node.output}_{device}", value.shape, value.dtype)
            choice = (self.choice or None) if device == self.device else None
            placement = Placement(device, site.region, choice=choice, origin=node.name)
            name = editor.new_node_name(f"{node.name}_{device}")
            yield Node(node.op, (cut.output, weights, *bias), (output,), name, placement, node.tags)
            made.append(output)
        name = editor.new_node_name(f"{node.name}_added")
        site.first_parts[node.name] = name
        placement = Placement(self.host, site.region, origin=node.name)
        yield Node(Elementwise("Add"), tuple(made), (node.output,), name, placement)

    def _cut(self, site: Site, node: Node, device: str, start: int, stop: int) -> Node:
        source, axis = node.inputs[0], k_axes(site.graph, node)[0]
        shape = list(site.graph.shape(source))
        shape[axis] = stop - start
        cut = site.editor.new_value(f"{source}_{device}", shape, site.graph.value(source).dtype)
        placement = Placement(self.host, site.region, origin=node.name)
        name = site.editor.new_node_name(f"slice_{cut}")
        return Node(Slice(axis, start, stop), (source,), (cut,), name, placement)

    def _weights(self, site: Site, node: Node, device: str, start: int, stop: int) -> str:
        """The weights of a part, as a view: nothing is copied or moved."""
        name, axis = node.inputs[1], k_axes(site.graph, node)[1]
        part = site.graph.constants[name][(slice(None),) * axis + (slice(start, stop),)]
        whole = site.graph.packed_form(name)
        packed = None if whole is None else whole.cut(part, axis, start, stop)
        return site.editor.new_constant(f"{name}_{device}", part, packed)


def k_refusal(graph: Graph, node: Node) -> Refusal | None:
    """Why a node cannot be divided along the dimension that it sums over, or None."""
    op = node.op
    if not isinstance(op, Contraction):
        return Refusal(f"{node.name}: {node.kind} is not a convolution or matrix product")
    if isinstance(op, Conv2d) and op.groups > 1:
        return Refusal(f"{node.name}: its {op.groups} groups sum over different channels")
    if isinstance(op, Gemm) and op.trans_a:
        return Refusal(f"{node.name}: the left-hand side is transposed")
    if any(uneven_padding(op)):
        return Refusal(f"{node.name}: one side is padded more than the other")
    if node.placement.narrow is not None:
        return Refusal(f"{node.name}: its operands are quantised, and units add them up exactly")
    if node.inputs[1] not in graph.constants or node.inputs[0] in graph.constants:
        return Refusal(f"{node.name}: {node.inputs[1]!r} must be a constant, and {node.inputs[0]!r} must not")
    shapes = [graph.value(name).shape for name in (*node.inputs[:2], node.output)]
    if any(shape is None or len(shape) < 2 for shape in shapes):
        return Refusal(f"{node.name}: its operands or its output are not matrices")
    return None
