"""Fuses products of several tables with weights of one shape, for example one per kind of vertex, into one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from pimflow.ir import Concat, Graph, Node, Slice, TypedLinear
from pimflow.passes.base import Pass, PassResult
from pimflow.passes.relations import RowWriter
from pimflow.passes.relations.joined import Product, product_of
from pimflow.records import NamedTuple, dataclass


@dataclass(frozen=True)
class GroupProducts(Pass):
    """Turns independent products x_i W_i + b_i into one `TypedLinear` (a segment GEMM, as for types).

    The tables are concatenated, which is a copy unless they are made in place; the result of each product is a slice of
    the whole result.

    Args:
        leave: products that stay by themselves.
    """

    name: ClassVar[str] = "group-products"

    leave: tuple[str, ...] = ()

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph, group by group."""
        left = {graph.node(name).name for name in self.leave}
        groups = [group for group in _groups(graph, left) if len(group) > 1]
        if not groups:
            return PassResult(graph, False)
        write = RowWriter(graph)
        for group in groups:
            _write(write, group)
        sites = tuple(member.node.name for group in groups for member in group)
        return PassResult(write.finish(), True, sites=sites)


class _Member(NamedTuple):
    """A product and its node."""

    node: Node
    product: Product


def _groups(graph: Graph, left: set[str]) -> list[list[_Member]]:
    """Products of the same shape and the same depth in products, so that none reads another's result."""
    depths: dict[str, int] = {}
    groups: dict[object, list[_Member]] = {}
    weights: set[str] = set()
    for node in graph.nodes:
        depth = max((depths.get(name, 0) for name in node.inputs), default=0) + node.op.is_matrix_product
        depths.update(dict.fromkeys(node.outputs, depth))
        product = product_of(graph, node.output) if node.op.is_matrix_product else None
        if product is None or node.name in left or node.inputs[1] in weights:  # weights that are read twice stay shared
            continue
        weights.add(node.inputs[1])
        form = (depth, product.weights.shape, product.weights.dtype, bool(product.bias.any()))
        groups.setdefault(form, []).append(_Member(node, product))
    return list(groups.values())


def _write(write: RowWriter, group: Sequence[_Member]) -> None:
    first, made = group[0].node, list[Node]()
    tables = list(dict.fromkeys(member.product.x for member in group))
    begins = dict(zip(tables, np.cumsum([0, *(write.shape(name)[0] for name in tables)]).tolist(), strict=False))
    counts = [write.shape(member.product.x)[0] for member in group]
    pointers = np.cumsum([0, *counts]).astype(np.int64)
    rows = np.concatenate(
        [begins[member.product.x] + np.arange(count) for member, count in zip(group, counts, strict=True)]
    )
    x = tables[0]
    if len(tables) > 1:
        made.append(write.node(Concat(0), tables, f"{first.name}_tables"))
        x = made[-1].output
    inputs = [x, write.constant("weights", np.stack([member.product.weights for member in group]))]
    inputs.append(write.constant("types", pointers))
    inputs.append("" if np.array_equal(rows, np.arange(len(rows))) else write.index("rows", rows))
    if any(member.product.bias.any() for member in group):
        inputs.append(write.constant("biases", np.stack([member.product.bias for member in group])))
    while not inputs[-1]:
        inputs.pop()
    made.append(write.node(TypedLinear(), inputs, f"{first.name}_group"))
    products = made[-1].output
    for member, start, stop in zip(group, pointers[:-1].tolist(), pointers[1:].tolist(), strict=True):
        part = write.node(Slice(0, start, stop), (products,), member.node.name, member.node.output)
        write.editor.replace_node(member.node.name, (*made, part))
        made = []
