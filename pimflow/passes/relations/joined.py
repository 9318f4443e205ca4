"""Turns sums of products over different tables into one product of their rows side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.ir import Concat, Elementwise, Gemm, Graph, Node, SegmentReduce, Spmm
from pimflow.ir.ops.contraction import PRODUCT
from pimflow.passes.relations.rows import RowWriter
from pimflow.records import NamedTuple

Weights = npt.NDArray[Any]


class Product(NamedTuple):
    """x W + b: x [M, K], W [K, N], b [N]."""

    x: str
    weights: Weights
    bias: Weights


def joined_products(graph: Graph, node: Node, terms: Sequence[str], *, fold: bool = True) -> Graph | None:
    """A sum over relations of (A_r X_r) W_r + b_r, X_r from different tables, as [A_1 X_1, A_2 X_2, ...] times all W_r.

    Heterogeneous networks are exported that way. If products have the same rows, for example those of the vertex itself
    for every relation, their weights are added up. A term whose weights make rows of a sum shorter stays, as it may be
    multiplied before the sum (`order-aggregation`). None if there are fewer than two sums over edges, or fewer than two
    terms to join.

    Args:
        graph: the graph that it is part of.
        node: the last Add.
        terms: the terms of this and the previous Adds.
        fold: whether weights of the same rows, and biases, are added up at compile time. If they are trained, nodes
            have to.
    """
    shape = graph.shape(node.output)
    alone = {term: graph.shape(term) == shape and len(graph.users(term)) == 1 for term in terms}
    found = {term: product_of(graph, term) if alone[term] and term not in graph.outputs else None for term in terms}
    summed = {term for term, product in found.items() if product is not None and _is_sum(graph.producer(product.x))}
    products = {
        term: product
        for term, product in found.items()
        if product is not None and not (term in summed and len(product.weights) > product.weights.shape[1])
    }
    if len(summed) < 2 or len(products) < 2:
        return None
    tables = list(dict.fromkeys(product.x for product in products.values()))
    write, made = RowWriter(graph), list[Node]()
    if len(tables) > 1:
        made.append(write.node(Concat(1), tables, f"{node.name}_rows"))
    rows = made[-1].output if made else tables[0]
    total = _Total(write, made, node.name, fold)
    weights = [total.of([one.weights for one in products.values() if one.x == table], "weights") for table in tables]
    operands = [rows, total.stacked(weights)]
    biases = [product.bias for product in products.values() if product.bias.any()]
    if biases:
        operands.append(total.of(biases, "bias"))
    made.append(write.node(Gemm(), operands, f"{node.name}_joined"))
    for term in (term for term in terms if term not in products):
        made.append(write.node(Elementwise("Add"), (made[-1].output, term), node.name))
    made[-1] = replace(made[-1], outputs=node.outputs)
    write.editor.replace_node(node.name, made)
    return write.finish()


class _Total(NamedTuple):
    """Writes sums of weights, as constants or, unless they may be folded, by nodes."""

    write: RowWriter
    made: list[Node]
    name: str
    fold: bool

    def of(self, arrays: Sequence[Weights], what: str) -> str:
        """The name of the sum of arrays."""
        if self.fold:
            return self.write.constant(what, np.sum(arrays, axis=0))
        total, *rest = (self.write.constant(what, array) for array in arrays)
        for item in rest:
            self.made.append(self.write.node(Elementwise("Add"), (total, item), f"{self.name}_{what}"))
            total = self.made[-1].output
        return total

    def stacked(self, names: Sequence[str]) -> str:
        """Several weights stacked row-wise."""
        if len(names) == 1:
            return names[0]
        known = [array for array in map(self.write.array, names) if array is not None]
        if len(known) == len(names):
            return self.write.constant("weights", np.concatenate(known))
        self.made.append(self.write.node(Concat(0), names, f"{self.name}_weights"))
        return self.made[-1].output


def product_of(graph: Graph, name: str) -> Product | None:
    """A value as a product of computed rows with constant weights; None for any other."""
    node = graph.producer(name)
    if node is None or node.op not in (PRODUCT, Gemm(), Gemm(trans_b=True)):
        return None
    x, weights, *bias = (graph.constants.get(item) for item in node.inputs if item)
    if x is not None or weights is None or weights.ndim != 2 or len(graph.shape(node.inputs[0])) != 2:
        return None
    if isinstance(node.op, Gemm) and node.op.trans_b:
        weights = weights.T
    columns = weights.shape[1]
    added = bias[0] if bias else np.zeros(columns, weights.dtype)
    if added is None or added.size != columns:
        return None
    return Product(node.inputs[0], weights, added.reshape(columns))


def _is_sum(node: Node | None) -> bool:
    return node is not None and isinstance(node.op, Spmm | SegmentReduce)
