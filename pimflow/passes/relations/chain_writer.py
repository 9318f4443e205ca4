"""Writes equivalent chains of nodes once: chains that several relations share, each over its own edges and with its own
weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pimflow.ir import (
    Concat,
    EdgeSoftmax,
    Elementwise,
    GatherPairs,
    GatherRows,
    Gemm,
    Graph,
    Node,
    OnnxOp,
    Op,
    Reshape,
    Sddmm,
    SegmentReduce,
    Spmm,
    Transpose,
    TypedLinear,
)
from pimflow.passes.relations.all_edges import Edges, Rows, concatenated_rows
from pimflow.passes.relations.joined import product_of
from pimflow.passes.relations.rows import Ints, RowWriter, index_of, keeps_rows, reduces_within_rows, types_of_rows

_PAIRINGS: dict[Op, str] = {Elementwise("Add"): "add", Elementwise("Mul"): "mul"}

Names = tuple[str, ...]
"""The values at the same place in the chain of every relation, relation by relation."""


class ChainWriter:
    """Writes equivalent chains as nodes over the rows and edges of all relations.

    Functions of rows are applied row by row, gathers and pairs use indices into tables of all relations. Products of
    one table become one product with all weights side by side; products of tables that are already joined become a
    `TypedLinear`. Values that are not equivalent are concatenated as they are.

    Args:
        graph: the graph that the chains are part of.
        inner: names of the nodes that only the chains read; only these are rewritten.
        fold: whether equal constants become one. Trained constants stay separate.
    """

    def __init__(self, graph: Graph, inner: frozenset[str], *, fold: bool) -> None:
        self.writer = RowWriter(graph)
        self.made: list[Node] = []
        self._graph, self._inner, self._fold = graph, inner, fold
        self._known: dict[tuple[Names, Edges | None], Rows] = {}
        self._copied: set[Names] = set()

    def emit(self, op: Op, inputs: Sequence[str], like: str) -> str:
        """Write a node; return the name of its output."""
        self.made.append(self.writer.node(op, inputs, f"{like}_alike"))
        return self.made[-1].output

    def rows(self, names: Names, edges: Edges | None = None) -> Rows:
        """Values of all relations as one.

        Args:
            names: the values, all of the same shape except for the first dimension.
            edges: the order of rows, if these are the edges of each relation; None for tables.
        """
        key = (names, edges)
        if key not in self._known:
            self._known[key] = self._rows(names, edges)
        return self._known[key]

    def merged(self, names: Names) -> Rows | None:
        """Values of all relations as one, as tables; None if only a copy can join them."""
        rows = self.rows(names)
        return None if names in self._copied else rows

    def _rows(self, names: Names, edges: Edges | None) -> Rows:
        if edges is None and len(set(names)) == 1:
            return Rows(names[0], (0,) * len(names), is_shared=True)
        arrays = [self._graph.constants.get(name) for name in names]
        known = [array for array in arrays if array is not None]
        if len(known) == len(names):
            counts = [len(array) for array in known]
            return self._in_order(lambda joined: self.writer.constant("alike", joined(known)), counts, edges)
        nodes = self._equivalent_makers(names)
        made = None if nodes is None else self._made(names, nodes, edges)
        return self._concatenated(names, edges) if made is None else made

    def _in_order(
        self, make: Callable[[Callable[[Sequence[Ints]], Ints]], str], counts: Sequence[int], edges: Edges | None
    ) -> Rows:
        """Rows from `make`, which receives the function that joins the indices of all relations."""
        return concatenated_rows(make(np.concatenate if edges is None else edges.joined), counts)

    def _concatenated(self, names: Names, edges: Edges | None) -> Rows:
        self._copied.add(names)
        tables = tuple(dict.fromkeys(names)) if edges is None else names
        counts = [self._count(name) for name in tables]
        name = self.emit(Concat(0), tables, self._like(names))
        if edges is not None and not np.array_equal(edges.order, np.arange(len(edges.order))):
            name = self.emit(GatherRows(), (name, self.writer.index("order", edges.order)), self._like(names))
        rows = concatenated_rows(name, counts)
        return rows._replace(begins=tuple(rows.begins[tables.index(own)] for own in names))

    def _count(self, name: str) -> int:
        return self._graph.shape(name)[0]

    def _like(self, names: Names) -> str:
        node = self._graph.producer(names[0])
        return names[0] if node is None else node.name

    # ---- equivalence

    def _equivalent_makers(self, names: Names) -> tuple[Node, ...] | None:
        """The producers of the values, if they have the same op for every relation and only the chains read them."""
        nodes = [node for node in map(self._graph.producer, names) if node is not None and node.name in self._inner]
        if len(nodes) < len(names):
            return None
        first = nodes[0]
        place = first.outputs.index(names[0])
        equivalent = all(
            _same_op(node.op, first.op)
            and self._shapes(node) == self._shapes(first)
            and node.outputs.index(name) == place
            for node, name in zip(nodes, names, strict=True)
        )
        return tuple(nodes) if equivalent else None

    def _shapes(self, node: Node) -> list[tuple[int, ...] | None]:
        """The shapes of a node's inputs, without the number of rows and the number of columns of a product."""
        return [self._graph.shape(name)[1 + node.op.is_matrix_product :] if name else None for name in node.inputs]

    def _made(self, names: Names, nodes: tuple[Node, ...], edges: Edges | None) -> Rows | None:
        op = nodes[0].op
        if isinstance(op, GatherRows):
            return self._picked(nodes, edges)
        if isinstance(op, Sddmm | GatherPairs):
            return self._pairs(op, nodes, edges)
        if isinstance(op, EdgeSoftmax):
            return self._softmax(op, nodes, edges)
        if isinstance(op, Spmm | SegmentReduce) and edges is None:
            return self.reduced(nodes, summed=False)
        if op.is_matrix_product and edges is None:
            return self._products(names)
        return self._rowwise(names, nodes, edges) if all(is_rowwise(self._graph, node) for node in nodes) else None

    # ---- over edges

    def _picked(self, nodes: tuple[Node, ...], edges: Edges | None) -> Rows | None:
        picks = [index for index in (index_of(self._graph, node) for node in nodes) if index is not None]
        if len(picks) < len(nodes):
            return None
        table = self.rows(_inputs(nodes, 0))
        like = nodes[0].name
        return self._in_order(
            lambda joined: self.emit(GatherRows(), (table.name, self._index(table, picks, joined)), like),
            [len(own) for own in picks],
            edges,
        )

    def _index(self, table: Rows, picks: Sequence[Ints], joined: Callable[[Sequence[Ints]], Ints]) -> str:
        return self.writer.index("alike", joined([table.of(kind, own) for kind, own in enumerate(picks)]))

    def _pairs(self, op: Sddmm | GatherPairs, nodes: tuple[Node, ...], edges: Edges | None) -> Rows | None:
        """Both ends of every edge, by indices."""
        second, third = (self._constants(nodes, position) for position in (2, 3))
        if second is None or third is None:
            return None
        ends = (third, [types_of_rows(own) for own in second]) if isinstance(op, Sddmm) else (second, third)
        tables = [self.rows(_inputs(nodes, position)) for position in (0, 1)]

        def make(joined: Callable[[Sequence[Ints]], Ints]) -> str:
            picks = [self._index(table, own, joined) for table, own in zip(tables, ends, strict=True)]
            return self.emit(GatherPairs(op.pairing), (*(table.name for table in tables), *picks), nodes[0].name)

        return self._in_order(make, [len(own) for own in ends[0]], edges)

    def _softmax(self, op: EdgeSoftmax, nodes: tuple[Node, ...], edges: Edges | None) -> Rows | None:
        pointers = self._constants(nodes, 1)
        if pointers is None or not (edges is None or edges.are_of(pointers)):
            return None
        own = Edges(pointers, by_destination=False) if edges is None else edges
        logits = self.rows(_inputs(nodes, 0), own)
        bounds = self.writer.constant("alike", own.by_relation)
        return logits._replace(name=self.emit(op, (logits.name, bounds), nodes[0].name))

    def _constants(self, nodes: Sequence[Node], position: int) -> list[Ints] | None:
        arrays = [self._graph.constants.get(node.inputs[position]) for node in nodes]
        known = [array for array in arrays if array is not None]
        return known if len(known) == len(nodes) else None

    # ---- reductions

    def reduced(self, nodes: Sequence[Node], *, summed: bool, scales: Sequence[Ints] = ()) -> Rows | None:
        """Reductions over the edges of each relation as one over all edges.

        Args:
            nodes: equivalent `Spmm` or `SegmentReduce` nodes.
            summed: whether the results of all relations for a destination are added up; otherwise each has rows of
                its own.
            scales: if they are added up, the factors of each relation's sums, one number per destination.
        """
        pointers = self._constants(nodes, 1)
        given = self._constants(nodes, 2) if isinstance(nodes[0].op, Spmm) else []
        if pointers is None or given is None:
            return None
        edges = Edges(pointers, by_destination=summed)
        if not len(edges.order):
            return None
        if isinstance(nodes[0].op, Spmm):
            table = self.rows(_inputs(nodes, 0))
            inputs = [table.name, "", self._index(table, given, edges.joined)]
        else:
            values = self.rows(_inputs(nodes, 0), edges)
            inputs = [values.name, "", self.writer.index("alike", np.arange(len(edges.order)))]
        factors = self._factors(nodes, pointers, scales) if summed else None
        weight = self._weight(nodes, edges, factors)
        if weight is None:
            return None
        inputs[1:] = [
            self.writer.constant("alike", edges.pointers),
            inputs[2],
            weight,
            "" if summed else self._row_scale(nodes, pointers),
        ]
        op = nodes[0].op
        if isinstance(op, SegmentReduce):
            op, inputs = (Spmm(), inputs) if weight else (op, inputs[:2])
        while not inputs[-1]:
            inputs.pop()
        return concatenated_rows(self.emit(op, inputs, nodes[0].name), [len(own) - 1 for own in pointers])

    def _scale_of(self, node: Node, pointers: Ints) -> Ints:
        """The factor of a sum, one number per destination."""
        own = self._graph.constants.get(node.inputs[4]) if len(node.inputs) > 4 else None
        return np.ones(len(pointers) - 1) if own is None else own

    def _row_scale(self, nodes: Sequence[Node], pointers: Sequence[Ints]) -> str:
        """The factors of the sums of all relations; "" if there are none."""
        if not any(_inputs(nodes, 4)):
            return ""
        scales = [self._scale_of(node, own) for node, own in zip(nodes, pointers, strict=True)]
        return self.writer.constant(
            "row_scale", np.concatenate(scales).astype(self._graph.value(nodes[0].output).dtype)
        )

    def _factors(self, nodes: Sequence[Node], pointers: Sequence[Ints], scales: Sequence[Ints]) -> list[Ints] | None:
        """A factor for every edge, from the factors of its destination; None if all are 1."""
        own = [self._scale_of(node, array) for node, array in zip(nodes, pointers, strict=True)]
        totals = [scale * array for scale, array in zip(scales, own, strict=True)]
        if all((total == 1).all() for total in totals):
            return None
        return [np.repeat(total, np.diff(array)) for total, array in zip(totals, pointers, strict=True)]

    def _weight(self, nodes: Sequence[Node], edges: Edges, factors: list[Ints] | None) -> str | None:
        """The weights of all edges; "" if there are none, None if they are not equivalent."""
        names = _inputs(nodes, 3) if isinstance(nodes[0].op, Spmm) else ("",) * len(nodes)
        joined = None if factors is None else edges.joined(factors).astype(self._graph.value(nodes[0].output).dtype)
        if not any(names):
            return "" if joined is None else self.writer.constant("alike", joined)
        if not all(names) or len({self._graph.shape(name)[1:] for name in names}) > 1:
            return None
        weight = self.rows(names, edges).name
        if joined is None:
            return weight
        factor = joined.reshape(len(joined), *(1,) * (len(self.writer.shape(weight)) - 1))
        known = self.writer.array(weight)
        if known is not None:
            return self.writer.constant("alike", known * factor)
        if not factor.all():
            return None
        divisor = self.writer.constant("alike", 1 / factor)  # a factor would count as a trained constant
        return self.emit(Elementwise("Div"), (weight, divisor), nodes[0].name)

    # ---- products

    def _products(self, names: Names) -> Rows | None:
        """Products of one table: all weights side by side. Products of joined tables: rows by relation."""
        products = [product for product in (product_of(self._graph, name) for name in names) if product is not None]
        if len(products) < len(names) or len({product.weights.shape for product in products}) > 1:
            return None
        like, kinds = self._like(names), len(names)
        weights, biases = [own.weights for own in products], [own.bias for own in products]
        width = weights[0].shape[1]
        tables = tuple(product.x for product in products)
        if len(set(tables)) == 1:
            operands = [tables[0], self.writer.constant("weights", np.concatenate(weights, axis=1))]
            if any(bias.any() for bias in biases):
                operands.append(self.writer.constant("bias", np.concatenate(biases)))
            wide = self.emit(Gemm(), operands, like)
            view = self.emit(Reshape((self._count(tables[0]) * kinds, width)), (wide,), like)
            return Rows(view, tuple(range(kinds)), kinds)
        rows, counts = self.merged(tables), [self._count(name) for name in tables]
        if rows is None or rows != concatenated_rows(rows.name, counts):
            return None
        pointers = self.writer.constant("types", np.cumsum([0, *counts]).astype(np.int64))
        inputs = (rows.name, self.writer.constant("weights", np.stack(weights)), pointers)
        made = self.emit(TypedLinear(), inputs, like)
        if any(bias.any() for bias in biases):
            types = self.writer.index("types", types_of_rows(np.cumsum([0, *counts])))
            bias = self.emit(GatherRows(), (self.writer.constant("bias", np.stack(biases)), types), like)
            made = self.emit(Elementwise("Add"), (made, bias), like)
        return rows._replace(name=made)

    # ---- row by row

    def _rowwise(self, names: Names, nodes: tuple[Node, ...], edges: Edges | None) -> Rows | None:
        first, counts = nodes[0], [self._count(name) for name in names]
        operands: list[str] = []
        stacked: list[Rows] = []
        constants: list[int] = []
        for position in range(len(first.inputs)):
            given = _inputs(nodes, position)
            if any(given) and self._have_rows(given, nodes):
                stacked.append(self.rows(given, edges))
                operands.append(stacked[-1].name)
            elif not any(given) or self._are_equal(given):
                operands.append(given[0])
            elif isinstance(first.op, Elementwise) and self._may_be_rows(nodes, position):
                constants.append(position)
                operands.append("")
            else:
                return None
        if len({own[1:] for own in stacked}) > 1:
            return self._from_two_tables(first, stacked, counts) if edges is None else None
        if not stacked:
            return None
        like = stacked[0]
        if constants and like.is_shared:
            return self._of_shared(nodes, stacked, operands, constants)
        picked = self._constants_by_row(nodes, constants, like, edges)
        if picked is None:
            return None
        operands = [picked.get(position, name) for position, name in enumerate(operands)]
        outputs = self._emit_rows(first, operands, self.writer.shape(like.name)[0])
        made = [like._replace(name=output) for output in outputs]
        for place, rows in enumerate(made):
            self._known[tuple(node.outputs[place] for node in nodes), edges] = rows
        return made[first.outputs.index(names[0])]

    def _from_two_tables(self, first: Node, stacked: Sequence[Rows], counts: Sequence[int]) -> Rows | None:
        """Sums or products of rows that are in two tables in different orders: pairs of rows, relation by relation."""
        pairing = _PAIRINGS.get(first.op)
        shapes = {self.writer.shape(own.name)[1:] for own in stacked}
        if pairing is None or len(stacked) != len(first.inputs) or len(shapes) > 1:
            return None
        rows = [np.arange(count) for count in counts]
        indices = [self._index(own, rows, np.concatenate) for own in stacked]
        name = self.emit(GatherPairs(pairing), (*(own.name for own in stacked), *indices), first.name)
        return concatenated_rows(name, counts)

    def _have_rows(self, given: Names, nodes: Sequence[Node]) -> bool:
        """Whether an operand has a row for every row of the output."""
        made = [self._graph.shape(node.output) for node in nodes]
        own = [self._graph.shape(name) for name in given]
        is_first = not isinstance(nodes[0].op, Elementwise) and given == _inputs(nodes, 0)
        return is_first or all(len(a) == len(b) and a[0] == b[0] for a, b in zip(own, made, strict=True))

    def _may_be_rows(self, nodes: Sequence[Node], position: int) -> bool:
        """Whether an operand is a constant of each relation that may become a row of one: not if it is one number and
        weights are trained, because numbers are not, and rows of them would be."""
        arrays = self._constants(nodes, position)
        return arrays is not None and (self._fold or all(array.size > 1 for array in arrays))

    def _are_equal(self, given: Names) -> bool:
        if len(set(given)) == 1:
            return True
        arrays = [self._graph.constants.get(name) for name in given]
        first = arrays[0]
        if first is None or not (self._fold or first.dtype.kind != "f" or first.size == 1):
            return False
        return all(_equal(first, array) for array in arrays[1:])

    def _by_relation(self, nodes: Sequence[Node], position: int) -> str:
        """Constants that each relation applies to all of its rows, as one row per relation."""
        shape = self._graph.shape(nodes[0].output)[1:]
        arrays = [self._graph.constants[node.inputs[position]] for node in nodes]
        rows = [np.broadcast_to(array.reshape(array.shape[-len(shape) :]), shape) for array in arrays]
        return self.writer.constant("alike", np.stack(rows))

    def _constants_by_row(
        self, nodes: Sequence[Node], positions: Sequence[int], rows: Rows, edges: Edges | None
    ) -> dict[int, str] | None:
        """The constants of each relation, picked for every row; None if relations share rows but not constants."""
        if not positions:
            return {}
        types = edges.types if edges is not None else self._types(rows, [self._count(node.output) for node in nodes])
        if types is None:
            return None
        return {
            position: self.emit(
                GatherRows(), (self._by_relation(nodes, position), self.writer.index("types", types)), nodes[0].name
            )
            for position in positions
        }

    def _types(self, rows: Rows, counts: Sequence[int]) -> Ints | None:
        """The relation of every row of a table; None if several relations have the same rows."""
        kinds = np.arange(len(counts))
        if rows.stride > 1:
            return np.tile(kinds, counts[0])
        return np.repeat(kinds, counts) if rows == concatenated_rows(rows.name, counts) else None

    def _of_shared(
        self, nodes: tuple[Node, ...], stacked: list[Rows], operands: list[str], constants: list[int]
    ) -> Rows:
        """One table for all relations, with constants of each: the results for each row are consecutive."""
        first, kinds = nodes[0], len(nodes)
        count, *shape = self._graph.shape(first.output)
        tables = {rows.name for rows in stacked}
        for position, name in enumerate(operands):
            if position in constants:
                operands[position] = self._by_relation(nodes, position)
            elif name in tables:
                view = Reshape((count, 1, *self.writer.shape(name)[1:]))
                operands[position] = self.emit(view, (name,), first.name)
        made = self.emit(first.op, operands, first.name)
        return Rows(self.emit(Reshape((count * kinds, *shape)), (made,), first.name), tuple(range(kinds)), kinds)

    def _emit_rows(self, like: Node, operands: Sequence[str], count: int) -> tuple[str, ...]:
        """Write a node over `count` rows."""
        op, editor = like.op, self.writer.editor
        if isinstance(op, Reshape):
            op = replace(op, shape=(count, *op.shape[1:]))
        values = [self._graph.value(name) for name in like.outputs]
        shapes = [(count, *(value.shape or ())[1:]) for value in values]
        outputs = tuple(
            editor.new_value(f"{value.name}_alike", shape, value.dtype)
            for value, shape in zip(values, shapes, strict=True)
        )
        self.made.append(Node(op, tuple(operands), outputs, editor.new_node_name(f"{like.name}_alike")))
        return outputs


def _inputs(nodes: Sequence[Node], position: int) -> Names:
    return tuple(node.inputs[position] if position < len(node.inputs) else "" for node in nodes)


def _same_op(op: Op, other: Op) -> bool:
    """Whether two ops are equal except for the number of rows."""
    if isinstance(op, Reshape) and isinstance(other, Reshape):
        return op.shape[1:] == other.shape[1:]
    return op == other


def _equal(array: Any, other: Any) -> bool:
    return other is not None and np.array_equal(array, other)


def is_rowwise(graph: Graph, node: Node) -> bool:
    """Whether a node computes each row from the same row of its inputs, and from operands shared by all rows."""
    op = node.op
    if isinstance(op, Elementwise):
        return True
    if isinstance(op, Reshape):
        return keeps_rows(graph, node)
    if isinstance(op, Transpose):
        return op.perm[0] == 0
    if isinstance(op, OnnxOp) and op.op_type == "Split" and not op.domain:
        axis = dict(op.attributes).get("axis", 0)
        return isinstance(axis, int) and axis % len(graph.shape(node.inputs[0])) > 0
    return reduces_within_rows(graph, node)
