"""Sparse ops in ONNX form: the pattern of gathers and scatters that PyTorch's exporters write for them.

The pattern is the test oracle for recovery and for the kernels, on small graphs: it contains an index as large as the
edge values. It is refused if that would not fit; the text form and `runtime.execute` have no such limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pimflow.errors import ModelError
from pimflow.ir import (
    Array,
    EdgeSoftmax,
    GatherPairs,
    GatherRows,
    Graph,
    Node,
    Sddmm,
    SegmentReduce,
    Spmm,
    TypedLinear,
    TypedSpmm,
)
from pimflow.ir.analysis.tensor_layout import element_bytes
from pimflow.ir.ops.contraction import PRODUCT
from pimflow.onnxio.export import EXPORT, OnnxWriter
from pimflow.onnxio.tensors import dtype_code, numpy_dtype

EXPANDED_LIMIT_BYTES = 1 << 30
"""The maximum size of an int64 index that is expanded to the shape of edge values."""

SCATTER_OPSET = 16
"""The first opset in which ScatterElements can add; before, it keeps one of several duplicates."""


def pattern_bytes(graph: Graph, node: Node) -> int:
    """The size of the edge values in a sparse node's pattern, including an int64 index expanded to their shape."""
    rows = [graph.shape(name) for name in node.inputs if name]
    edges = max(shape[0] for shape in rows)
    return edges * math.prod(rows[0][1:]) * (8 + 2 * (element_bytes(graph.value(node.output).dtype) or 8))


class _Pattern:
    """Writes the operators of one node's pattern; the last one produces its output."""

    def __init__(self, writer: OnnxWriter, node: Node, expanded: tuple[int, ...]) -> None:
        self.writer = writer
        self.node = node
        needed_bytes = 8 * math.prod(expanded)
        if needed_bytes > EXPANDED_LIMIT_BYTES:
            size = f"{' x '.join(map(str, expanded))} edge values would take {needed_bytes / 2**30:,.1f} GiB"
            raise ModelError(
                f"{node.name!r} ({node.kind}) has no ONNX form of this size: an index of {size}",
                "write the graph in text form (*.pimir), or use a smaller graph",
            )
        if writer.opset < SCATTER_OPSET:
            raise ModelError(
                f"{node.name!r} ({node.kind}) has no form in opset {writer.opset}: its scatters cannot add duplicates",
                f"export the model with opset {SCATTER_OPSET} or later",
            )

    def has(self, position: int) -> bool:
        """Whether an input is given."""
        return position < len(self.node.inputs) and bool(self.node.inputs[position])

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The output's shape."""
        return self.writer.graph.shape(self.node.output)

    def structure(self, position: int) -> Any:
        """A constant operand that describes the graph: row pointers or sources.

        Raises:
            ModelError: it is computed when the model runs.
        """
        array = self.writer.graph.constants.get(self.node.inputs[position])
        if array is None:
            raise ModelError(f"{self.node.name!r} ({self.node.kind}) has no ONNX form: its graph is computed")
        return array

    def longs(self, position: int) -> Array:
        """A constant operand of indices, as the int64 that ONNX uses."""
        indices: Array = self.structure(position).astype(np.int64)
        return indices

    def destinations(self, position: int) -> Array:
        """The destination of every edge (or the type of every row), from row pointers, [E]."""
        counts = np.diff(self.structure(position))
        return np.repeat(np.arange(len(counts), dtype=np.int64), counts)

    def constant(self, what: str, array: Array) -> str:
        """A new constant."""
        return self.writer.constant(f"{self.node.name}_{what}", array)

    def integers(self, what: str, values: Sequence[int]) -> str:
        """A new constant of int64."""
        return self.constant(what, np.array(values, np.int64))

    def filled(self, what: str, value: float, shape: Sequence[int]) -> str:
        """A new constant filled with one value, in the type of the node's output."""
        dtype = numpy_dtype(self.writer.graph.value(self.node.output).dtype)
        return self.constant(what, np.full(tuple(shape), value, dtype))

    def step(self, op_type: str, inputs: Sequence[str], **attributes: int | str | tuple[int, ...]) -> str:
        """Writes an operator of the pattern; returns the name of its result."""
        return self.writer.step(self.node, op_type, inputs, attributes)

    def last(self, op_type: str, inputs: Sequence[str], **attributes: int | str) -> None:
        """Writes the operator that produces the node's output."""
        self.writer.add(self.node, op_type, attributes, inputs)

    def expanded(self, index: Array, shape: Sequence[int]) -> str:
        """An index [E] in the exporters' form: a column, expanded to the shape of the scattered values."""
        column = self.constant("index", index.reshape(-1, *(1,) * (len(shape) - 1)))
        return self.step("Expand", [column, self.integers("index_shape", shape)])

    def base(self, pointers: Array, op: Spmm | SegmentReduce) -> str:
        """The tensor that a reduction starts from, which may have another value in rows without edges."""
        if op.start == op.empty:
            return self.filled("start", op.start, self.out_shape)
        dtype = numpy_dtype(self.writer.graph.value(self.node.output).dtype)
        rows = np.where(np.diff(pointers) > 0, op.start, op.empty).astype(dtype)
        rows = rows.reshape(-1, *(1,) * (len(self.out_shape) - 1))
        return self.constant("start", np.broadcast_to(rows, self.out_shape))

    def paired(self, pairing: str, first: str, second: str) -> None:
        """Writes the node's output: rows of the first two operands, gathered by index and paired."""
        x, y = (self.step("Gather", [self.node.inputs[at], index], axis=0) for at, index in ((0, first), (1, second)))
        if pairing != "dot":
            self.last("Add" if pairing == "add" else "Mul", [x, y])
            return
        product = self.step("Mul", [x, y])
        self.last("ReduceSum", [product, self.integers("axes", [-1])], keepdims=0)

    def column(self, name: str, rank: int) -> str:
        """A value [E, ...] with ones appended to its shape, up to a rank."""
        shape = self.writer.graph.shape(name)
        return self.step("Reshape", [name, self.integers("column", (*shape, *(1,) * (rank - len(shape))))])


_REDUCTION = {"sum": "add", "max": "max", "min": "min"}


@EXPORT.register(Spmm)
def _spmm(writer: OnnxWriter, node: Node, op: Spmm) -> None:
    features = writer.graph.shape(node.inputs[0])[1:]
    pattern = _Pattern(writer, node, (writer.graph.shape(node.inputs[2])[0], *features))
    _sum_of_rows(pattern, op, node.inputs[0], 1)


def _sum_of_rows(pattern: _Pattern, op: Spmm, rows: str, first: int) -> None:
    """Writes rows gathered over edges and reduced; pointers, sources, weights and scales are inputs from `first` on."""
    pointers, sources, weight, scale = range(first, first + 4)
    shape = (len(pattern.structure(sources)), *pattern.out_shape[1:])
    messages = pattern.step("Gather", [rows, pattern.constant("sources", pattern.longs(sources))], axis=0)
    if pattern.has(weight):
        messages = pattern.step("Mul", [pattern.column(pattern.node.inputs[weight], len(shape)), messages])
    base = pattern.base(pattern.structure(pointers), op)
    scatter = [base, pattern.expanded(pattern.destinations(pointers), shape), messages]
    if not pattern.has(scale):
        pattern.last("ScatterElements", scatter, axis=0, reduction=_REDUCTION[op.reduce])
        return
    reduced = pattern.step("ScatterElements", scatter, axis=0, reduction=_REDUCTION[op.reduce])
    pattern.last("Mul", [reduced, pattern.column(pattern.node.inputs[scale], len(shape))])


@EXPORT.register(SegmentReduce)
def _segment_reduce(writer: OnnxWriter, node: Node, op: SegmentReduce) -> None:
    shape = writer.graph.shape(node.inputs[0])
    pattern = _Pattern(writer, node, shape)
    base = pattern.base(pattern.structure(1), op)
    scatter = [base, pattern.expanded(pattern.destinations(1), shape), node.inputs[0]]
    pattern.last("ScatterElements", scatter, axis=0, reduction=_REDUCTION[op.reduce])


@EXPORT.register(Sddmm)
def _sddmm(writer: OnnxWriter, node: Node, op: Sddmm) -> None:
    pattern = _Pattern(writer, node, (writer.graph.shape(node.inputs[3])[0],))
    sources = pattern.constant("sources", pattern.longs(3))
    pattern.paired(op.pairing, sources, pattern.constant("destinations", pattern.destinations(2)))


@EXPORT.register(GatherPairs)
def _gather_pairs(writer: OnnxWriter, node: Node, op: GatherPairs) -> None:
    pattern = _Pattern(writer, node, (writer.graph.shape(node.inputs[2])[0],))
    first, second = (pattern.longs(position) for position in (2, 3))
    pattern.paired(op.pairing, pattern.constant("first", first), pattern.constant("second", second))


@EXPORT.register(EdgeSoftmax)
def _edge_softmax(writer: OnnxWriter, node: Node, op: EdgeSoftmax) -> None:
    shape = writer.graph.shape(node.inputs[0])
    pattern = _Pattern(writer, node, shape)
    destinations, rows = pattern.destinations(1), len(pattern.structure(1)) - 1
    index = pattern.constant("destinations", destinations)
    least = float(np.finfo(numpy_dtype(writer.graph.value(node.output).dtype)).min)
    floor = pattern.filled("floor", max(op.floor, least), (rows, *shape[1:]))
    expanded = pattern.expanded(destinations, shape)
    maxima = pattern.step("ScatterElements", [floor, expanded, node.inputs[0]], axis=0, reduction="max")
    shifted = pattern.step("Sub", [node.inputs[0], pattern.step("Gather", [maxima, index], axis=0)])
    powers = pattern.step("Exp", [shifted])
    zeros = pattern.filled("zeros", 0.0, (rows, *shape[1:]))
    sums = pattern.step("ScatterElements", [zeros, expanded, powers], axis=0, reduction="add")
    if op.eps:
        sums = pattern.step("Add", [sums, pattern.filled("eps", op.eps, ())])
    pattern.last("Div", [powers, pattern.step("Gather", [sums, index], axis=0)])


@EXPORT.register(GatherRows)
def _gather_rows(writer: OnnxWriter, node: Node, op: GatherRows) -> None:
    indices = node.inputs[1]
    if writer.graph.value(indices).dtype not in ("int32", "int64"):
        indices = writer.step(node, "Cast", [indices], {"to": dtype_code("int64")})
    writer.add(node, "Gather", {"axis": 0}, [node.inputs[0], indices])


@EXPORT.register(TypedLinear)
def _typed_linear(writer: OnnxWriter, node: Node, op: TypedLinear) -> None:
    pattern = _Pattern(writer, node, ())
    parts = _products_by_type(pattern, pattern.out_shape)
    if not pattern.has(4):
        pattern.last("Concat", parts, axis=0)
        return
    bias = pattern.step("Gather", [node.inputs[4], pattern.constant("types", pattern.destinations(2))], axis=0)
    pattern.last("Add", [pattern.step("Concat", parts, axis=0), bias])


@EXPORT.register(TypedSpmm)
def _typed_spmm(writer: OnnxWriter, node: Node, op: TypedSpmm) -> None:
    pattern = _Pattern(writer, node, (writer.graph.shape(node.inputs[5])[0], *writer.graph.shape(node.output)[1:]))
    x, weights = (writer.graph.shape(name) for name in node.inputs[:2])
    made = (int(pattern.structure(2)[-1]), *x[1:-1], weights[-1])
    rows = pattern.step("Concat", _products_by_type(pattern, made), axis=0)
    if op.row_shape:
        rows = pattern.step("Reshape", [rows, pattern.integers("row_shape", op.viewed(made))])
    _sum_of_rows(pattern, Spmm(), rows, 4)


def _products_by_type(pattern: _Pattern, made: tuple[int, ...]) -> list[str]:
    """The products of the rows of each type, in order; zeros of the shape `made` if there are no types."""
    pointers, axis = pattern.structure(2), pattern.integers("axis", [0])
    (given, weights), parts = pattern.node.inputs[:2], list[str]()
    heads = len(made) == 3
    if pattern.has(3):
        given = pattern.step("Gather", [given, pattern.constant("rows", pattern.longs(3))], axis=0)
    for kind, (first, last) in enumerate(zip(pointers[:-1].tolist(), pointers[1:].tolist(), strict=True)):
        if heads and first == last:
            continue  # ONNX Runtime divides by the number of rows of a product of heads
        bounds = [pattern.integers("start", [first]), pattern.integers("stop", [last]), axis]
        rows = pattern.step("Slice", [given, *bounds])
        matrix = pattern.step("Gather", [weights, pattern.constant("type", np.array(kind, np.int64))], axis=0)
        parts.append(_product_of_heads(pattern, rows, matrix) if heads else pattern.step("Gemm", [rows, matrix]))
    return parts or [pattern.filled("none", 0.0, made)]


def _product_of_heads(pattern: _Pattern, rows: str, weights: str) -> str:
    """Rows [m, H, K] times [H, K, N], head by head."""
    by_head = pattern.step("Transpose", [rows], perm=(1, 0, 2))
    return pattern.step("Transpose", [pattern.step(PRODUCT.onnx_name, [by_head, weights])], perm=(1, 0, 2))
