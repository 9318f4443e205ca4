"""Adds the rows of a product by type directly to their destinations instead of writing them for every edge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from pimflow.ir import Graph, Node, Refusal, Reshape, Spmm, TypedLinear, TypedSpmm
from pimflow.passes.base import Pass, PassResult
from pimflow.passes.relations import RowWriter, keeps_rows, rewritten, unmarked
from pimflow.records import dataclass


@dataclass(frozen=True)
class ScatterProducts(Pass):
    """Fuses a `TypedLinear` into the sum over edges that reads it: a `TypedSpmm` (Hector's scatter of results).

    The products are not written anywhere; the sum starts from zeros, and each product is added by atomics. Weights of
    edges and scales of rows are included. Nodes in the sum's epilogue become a kernel again, as no tile knows when a
    sum is complete. It pays off if the cache holds the sums, or if there are many products.

    Args:
        leave: sums that stay as they are.
    """

    name: ClassVar[str] = "scatter-products"

    leave: tuple[str, ...] = ()

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph; the notes say why sums over products by type stay."""
        return rewritten(graph, self.leave, _scattered)


def _scattered(graph: Graph, node: Node) -> Graph | Refusal | None:
    """Spmm(TypedLinear(x)) as a TypedSpmm, if nothing else reads the products."""
    path = tuple(_back(graph, node)) if isinstance(node.op, Spmm) else ()
    if not path or not isinstance(path[-1].op, TypedLinear):
        return None
    if node.op != Spmm():
        return Refusal("it is not a plain sum")
    if any(len(graph.users(step.output)) > 1 or step.output in graph.outputs for step in path):
        return Refusal("other nodes also read its products")
    if len(path[-1].inputs) > 4:
        return Refusal("its products have a bias")
    if any(name and name not in graph.constants for name in (*path[-1].inputs[2:], *node.inputs[1:3])):
        return Refusal("its edges are only known at run time")
    return _fused(graph, node, path[-1])


def _back(graph: Graph, node: Node) -> Iterator[Node]:
    """The producer of the rows that a sum reads, through views that keep rows."""
    producer = graph.producer(node.inputs[0])
    while producer is not None:
        yield producer
        view = isinstance(producer.op, Reshape) and keeps_rows(graph, producer)
        producer = graph.producer(producer.inputs[0]) if view else None


def _fused(graph: Graph, node: Node, product: Node) -> Graph:
    made, summed = graph.shape(product.output)[1:], graph.shape(node.output)[1:]
    index = product.inputs[3] if len(product.inputs) > 3 else ""
    op = TypedSpmm(() if made == summed else summed)
    write = RowWriter(graph)
    inputs = (*product.inputs[:3], index, *node.inputs[1:])
    write.editor.replace_node(node.name, (replace(unmarked(node), op=op, inputs=inputs),))
    for follower in graph.nodes:
        if follower.placement.fused_into == node.name:  # it has to wait until all products are added
            write.editor.replace_node(follower.name, (follower.placed(fused_into=None),))
    return write.finish()
