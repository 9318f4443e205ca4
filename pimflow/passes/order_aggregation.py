"""Moves a product with weights before or after an aggregation: A(XW) = (AX)W."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pimflow.ir import Elementwise, Gemm, Graph, GraphEditor, Node, Refusal, Spmm
from pimflow.passes.base import Pass, PassResult
from pimflow.records import dataclass


@dataclass(frozen=True)
class OrderAggregation(Pass):
    """Swaps a sum over edges and an adjacent product with constant weights.

    A(XW) becomes (AX)W, and (AX)W becomes A(XW): weights and scales of edges and rows stay as they are. The bias of a
    product after the sum is added after both; the bias of a product before it cannot move past the sum.

    Args:
        product: the product's node.
    """

    name: ClassVar[str] = "order-aggregation"

    product: str

    def run(self, graph: Graph) -> PassResult:
        node = graph.node(self.product)
        pair = neighbours(graph, node)
        if isinstance(pair, Refusal):
            return PassResult(graph, False, (f"{node.name}: {pair.reason}",))
        first, second = pair
        editor = GraphEditor(graph)
        product, total = (first, second) if first is node else (second, first)
        width = graph.shape(product.output)[-1] if first is total else graph.shape(product.inputs[0])[-1]
        dtype = graph.value(second.output).dtype
        rows = graph.shape(second.output if second is total else first.inputs[0])[0]
        between = editor.new_value(f"{second.output}_turned", (rows, width), dtype)
        bias = product.inputs[2] if len(product.inputs) > 2 else ""
        op = replace(product.op, beta=1.0) if isinstance(product.op, Gemm) else product.op
        ahead = replace(second, inputs=(first.inputs[0], *second.inputs[1:]), outputs=(between,))
        behind = replace(first, inputs=(between, *first.inputs[1:]), outputs=second.outputs)
        if product is second and bias:
            ahead = replace(ahead, op=op, inputs=ahead.inputs[:2])
            summed = editor.new_value(f"{second.output}_summed", graph.shape(second.output), dtype)
            added = Node(
                Elementwise("Add"), (summed, bias), second.outputs, editor.new_node_name(f"{product.name}_bias")
            )
            editor.replace_node(second.name, (replace(behind, outputs=(summed,)), added))
        else:
            editor.replace_node(second.name, (behind,))
        editor.replace_node(first.name, (ahead,))
        return PassResult(editor.finish(), True)


def neighbours(graph: Graph, product: Node) -> tuple[Node, Node] | Refusal:
    """A product and the sum over edges before or after it, in their current order; a refusal if there is none."""
    if not product.op.is_matrix_product or not graph.is_constant(product.inputs[1]):
        return Refusal("it is not a product with constant weights")
    if isinstance(product.op, Gemm) and (product.op.trans_a or product.op.alpha != 1.0):
        return Refusal("its first operand is transposed, or scaled")
    has_bias = len(product.inputs) > 2 and bool(product.inputs[2])
    if has_bias and (not isinstance(product.op, Gemm) or product.op.beta != 1.0):
        return Refusal("its bias is scaled")
    before = graph.producer(product.inputs[0])
    if before is not None and _is_sum(graph, before) and _only_reader(graph, before.output) is product:
        return before, product
    behind = _only_reader(graph, product.output)
    if behind is None or not _is_sum(graph, behind) or behind.inputs[0] != product.output:
        return Refusal("no sum over edges is next to it, or other nodes read the value between them")
    return Refusal("its bias is added before the sum") if has_bias else (product, behind)


def _is_sum(graph: Graph, node: Node) -> bool:
    op = node.op
    weight = node.inputs[3] if len(node.inputs) > 3 else ""
    plain = isinstance(op, Spmm) and op.reduce == "sum" and not op.start and not op.empty
    return plain and len(graph.shape(node.inputs[0])) == 2 and (not weight or len(graph.shape(weight)) == 1)


def _only_reader(graph: Graph, value: str) -> Node | None:
    readers = graph.users(value)
    return readers[0] if len(readers) == 1 and value not in graph.outputs else None
