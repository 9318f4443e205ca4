"""Gradients of ops over the edges of a graph: sums over the same edges; for sources, over the reversed graph.

The structure has to be constant. The reversed graph has edges sorted by source; `order` maps them to the original ones.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pimflow.ir.gradients.tape import GRADIENTS, Gradients, Tape
from pimflow.ir.graph import Node
from pimflow.ir.ops.contraction import PRODUCT, Gemm
from pimflow.ir.ops.movement import Concat
from pimflow.ir.ops.sparse import (
    EdgeSoftmax,
    GatherPairs,
    GatherRows,
    Reduction,
    Sddmm,
    SegmentReduce,
    Spmm,
    TypedLinear,
    TypedSpmm,
)
from pimflow.ir.refusal import Refusal
from pimflow.records import dataclass


@dataclass(frozen=True)
class _Edges:
    """The edges of a node, and the same edges sorted by source, as constants of the tape.

    Args:
        destination: the destination of every edge, [E].
        pointers, destinations: the reversed graph: [Ns + 1] into `destinations` [E], by source.
        order: the index of each of these edges in the original graph, [E].
    """

    destination: str
    pointers: str
    destinations: str
    order: str


def _edges(tape: Tape, pointers: str, sources: str, count: int) -> _Edges | Refusal:
    rows, ids = tape.array(pointers), tape.array(sources)
    if rows is None or ids is None:
        return Refusal("its graph is computed as the model runs")
    destination = _destinations(rows)
    order = np.argsort(ids, kind="stable").astype(np.int64)
    starts = np.concatenate(([0], np.cumsum(np.bincount(ids.astype(np.int64), minlength=count)))).astype(np.int64)
    arrays = {"destination": destination, "pointers": starts, "sources": destination[order], "order": order}
    return _Edges(*(tape.constant(array, what) for what, array in arrays.items()))


def _destinations(rows: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    pointers = rows.astype(np.int64)
    counts = pointers[1:] - pointers[:-1]
    return np.repeat(np.arange(len(counts), dtype=np.int64), counts)


def _by_source(tape: Tape, edges: _Edges, values: str) -> str:
    """Values of edges in the order of their sources."""
    return tape.op(GatherRows(), values, edges.order)


def _to_sources(tape: Tape, edges: _Edges, values: str) -> str:
    """Values of edges, summed by source."""
    return tape.op(SegmentReduce(), _by_source(tape, edges, values), edges.pointers)


def _per_row(tape: Tape, vector: str, like: str) -> str:
    """A value per row (or per row and head), reshaped to broadcast against [rows, ...]."""
    shape, rank = tape.shape(vector), len(tape.shape(like))
    return tape.reshape(vector, (*shape, *(1,) * (rank - len(shape))))


@GRADIENTS.register(Spmm)
def _spmm(tape: Tape, node: Node, op: Spmm, gradients: tuple[str, ...]) -> Gradients:
    x, pointers, sources = node.inputs[:3]
    weight, scale = tape.operand(node, 3), tape.operand(node, 4)
    edges = _edges(tape, pointers, sources, tape.shape(x)[0])
    if isinstance(edges, Refusal):
        return Refusal(f"{op.onnx_name}: {edges.reason}")
    dy, of_scale = gradients[0], ""
    if scale and tape.wants(scale):
        summed = tape.op(op, x, pointers, sources, *([weight] if weight else []))
        of_scale = tape.sum(tape.mul(dy, summed), tuple(range(1, len(tape.shape(dy)))), keepdims=False)
    if scale:
        dy = tape.mul(dy, _per_row(tape, scale, dy))
    if op.reduce == "sum":
        of_x, of_weight = _of_sum(tape, node, edges, dy)
    else:
        of_x, of_weight = _of_extreme(tape, node, op, edges, dy)
    return (of_x, "", "", of_weight, of_scale)[: len(node.inputs)]


def _of_sum(tape: Tape, node: Node, edges: _Edges, dy: str) -> tuple[str, str]:
    """dx[s] = sum over edges from s of weight dy[d]; dweight[e] = <x[s], dy[d]>."""
    x, pointers, sources = node.inputs[:3]
    weight, of_x, of_weight = tape.operand(node, 3), "", ""
    if tape.wants(x):
        of_x = _of_sources(tape, edges, weight, dy)
    if weight and tape.wants(weight):
        of_weight = tape.op(Sddmm("dot"), *_dot_operands(tape, weight, x, dy), pointers, sources)
    return of_x, of_weight


def _of_sources(tape: Tape, edges: _Edges, weight: str, dy: str) -> str:
    """The weighted sum of dy over the edges from each source."""
    weights = [_by_source(tape, edges, weight)] if weight else []
    return tape.op(Spmm(), dy, edges.pointers, edges.destinations, *weights)


def _dot_operands(tape: Tape, weight: str, x: str, dy: str) -> tuple[str, str]:
    """Both operands, as [rows, features] if an edge has one weight for all features."""
    if len(tape.shape(weight)) > 1:
        return x, dy
    return _flat(tape, x), _flat(tape, dy)


def _flat(tape: Tape, name: str) -> str:
    """[rows, ...] as [rows, features]."""
    rows, *features = tape.shape(name)
    return tape.reshape(name, (rows, math.prod(features)))


def _of_extreme(tape: Tape, node: Node, op: Spmm, edges: _Edges, dy: str) -> tuple[str, str]:
    """Through the messages: those equal to the extreme of their row share its gradient."""
    x, pointers, sources = node.inputs[:3]
    weight = tape.operand(node, 3)
    rows = tape.op(GatherRows(), x, sources)
    factor = _per_row(tape, weight, rows) if weight else ""
    messages = tape.mul(rows, factor) if weight else rows
    d_messages = _extreme_shares(tape, op, messages, pointers, edges.destination, dy)
    of_x, of_weight = "", ""
    if tape.wants(x):
        of_x = _to_sources(tape, edges, tape.mul(d_messages, factor) if weight else d_messages)
    if weight and tape.wants(weight):
        of_weight = tape.sum_to(tape.mul(d_messages, rows), tape.shape(factor))
        of_weight = tape.reshape(of_weight, tape.shape(weight))
    return of_x, of_weight


def _extreme_shares(tape: Tape, op: Reduction, values: str, pointers: str, destination: str, dy: str) -> str:
    """The gradients of edge values reduced by max (or min): equal shares for all that attain it."""
    best = tape.op(SegmentReduce(op.reduce, op.start, op.empty), values, pointers)
    hit = tape.elementwise("Equal", values, tape.op(GatherRows(), best, destination))
    one, zero = tape.number(1.0, dy), tape.number(0.0, dy)
    marks = tape.where(hit, one, zero)
    counts = tape.elementwise("Max", tape.op(SegmentReduce(), marks, pointers), one)
    return tape.where(hit, tape.op(GatherRows(), tape.div(dy, counts), destination), zero)


@GRADIENTS.register(SegmentReduce)
def _segment_reduce(tape: Tape, node: Node, op: SegmentReduce, gradients: tuple[str, ...]) -> Gradients:
    values, pointers = node.inputs
    rows = tape.array(pointers)
    if rows is None:
        return Refusal(f"{op.onnx_name}: its graph is computed as the model runs")
    destination = tape.constant(_destinations(rows), "destination")
    if op.reduce == "sum":
        return (tape.op(GatherRows(), gradients[0], destination), "")
    return (_extreme_shares(tape, op, values, pointers, destination, gradients[0]), "")


@GRADIENTS.register(Sddmm)
def _sddmm(tape: Tape, node: Node, op: Sddmm, gradients: tuple[str, ...]) -> Gradients:
    x, y, pointers, sources = node.inputs
    edges = _edges(tape, pointers, sources, tape.shape(x)[0])
    if isinstance(edges, Refusal):
        return Refusal(f"{op.onnx_name}: {edges.reason}")
    if op.pairing == "dot":
        return (*_of_dot(tape, node, edges, gradients[0]), "", "")
    at_sources = at_destinations = gradients[0]
    if op.pairing == "mul":
        at_sources = tape.mul(gradients[0], tape.op(GatherRows(), y, edges.destination))
        at_destinations = tape.mul(gradients[0], tape.op(GatherRows(), x, sources))
    return (
        _to_sources(tape, edges, at_sources) if tape.wants(x) else "",
        tape.op(SegmentReduce(), at_destinations, pointers) if tape.wants(y) else "",
        "",
        "",
    )


def _of_dot(tape: Tape, node: Node, edges: _Edges, de: str) -> tuple[str, str]:
    """For each end, the sum over edges of the other end's rows, weighted by the gradient of the edge."""
    x, y, pointers, sources = node.inputs
    shape_x, shape_y, heads = tape.shape(x), tape.shape(y), tape.shape(de)[1:]
    if len(heads) > 1:  # edge weights have at most one dim of heads
        merged = int(np.prod(heads))
        de = tape.reshape(de, (tape.shape(de)[0], merged))
        x = tape.reshape(x, (shape_x[0], merged, shape_x[-1]))
        y = tape.reshape(y, (shape_y[0], merged, shape_y[-1]))
    of_x = of_y = ""
    if tape.wants(node.inputs[0]):
        of_x = tape.op(Spmm(), y, edges.pointers, edges.destinations, _by_source(tape, edges, de))
        of_x = tape.reshape(of_x, shape_x)
    if tape.wants(node.inputs[1]):
        of_y = tape.reshape(tape.op(Spmm(), x, pointers, sources, de), shape_y)
    return of_x, of_y


@GRADIENTS.register(EdgeSoftmax)
def _edge_softmax(tape: Tape, node: Node, op: EdgeSoftmax, gradients: tuple[str, ...]) -> Gradients:
    """de = p (dp - sum over the row of dp p)."""
    rows = tape.array(node.inputs[1])
    if rows is None:
        return Refusal(f"{op.onnx_name}: its graph is computed as the model runs")
    (dp,), p = gradients, node.output
    totals = tape.op(SegmentReduce(), tape.mul(dp, p), node.inputs[1])
    destination = tape.constant(_destinations(rows), "destination")
    return (tape.mul(p, tape.sub(dp, tape.op(GatherRows(), totals, destination))), "")


@GRADIENTS.register(GatherRows)
def _gather_rows(tape: Tape, node: Node, op: GatherRows, gradients: tuple[str, ...]) -> Gradients:
    """Rows with the same index are grouped and summed."""
    (x, index), dy = node.inputs, gradients[0]
    ids = tape.array(index)
    if ids is None:
        total = tape.scatter_add(index, dy, tape.shape(x))
        return total if isinstance(total, Refusal) else (total, "")
    return (_sum_by_row(tape, x, ids, dy), "")


def _sum_by_row(tape: Tape, table: str, ids: npt.NDArray[np.generic], values: str) -> str:
    """Values, summed by the row of a table that they belong to."""
    order, pointers = _sorted_by_row(tape, table, ids)
    if not np.array_equal(order, np.arange(len(order))):
        values = tape.op(GatherRows(), values, tape.constant(order, "order"))
    return tape.op(SegmentReduce(), values, tape.constant(pointers, "pointers"))


def _sorted_by_row(
    tape: Tape, table: str, ids: npt.NDArray[np.generic]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The order that sorts an index by the rows of a table, and where each row's entries begin."""
    order = np.argsort(ids, kind="stable").astype(np.int64)
    counts = np.bincount(ids.astype(np.int64), minlength=tape.shape(table)[0])
    return order, np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


@GRADIENTS.register(GatherPairs)
def _gather_pairs(tape: Tape, node: Node, op: GatherPairs, gradients: tuple[str, ...]) -> Gradients:
    """Both tables are treated like the sources of `Sddmm`."""
    x, y, *picks = node.inputs
    first, second = (tape.array(name) for name in picks)
    if first is None or second is None:
        return Refusal(f"{op.onnx_name}: its graph is computed as the model runs")
    dy = gradients[0]
    return (
        _of_table(tape, op, dy, (x, first), (y, second)) if tape.wants(x) else "",
        _of_table(tape, op, dy, (y, second), (x, first)) if tape.wants(y) else "",
        "",
        "",
    )


def _of_table(
    tape: Tape,
    op: GatherPairs,
    dy: str,
    own: tuple[str, npt.NDArray[np.generic]],
    other: tuple[str, npt.NDArray[np.generic]],
) -> str:
    """The gradient of one table of the pairs; each table is given as its name and the rows that the pairs read."""
    (table, ids), (rows, picks) = own, other
    if op.pairing == "add":
        return _sum_by_row(tape, table, ids, dy)
    if op.pairing == "mul":
        read = tape.op(GatherRows(), rows, tape.constant(np.asarray(picks, np.int64), "picks"))
        return _sum_by_row(tape, table, ids, tape.mul(dy, read))
    order, pointers = _sorted_by_row(tape, table, ids)
    heads, width = tape.shape(dy)[1:], tape.shape(rows)[-1]
    merged = (math.prod(heads),) if heads else ()  # edge weights have at most one dim of heads
    weights = tape.op(GatherRows(), tape.reshape(dy, (len(order), *merged)), tape.constant(order, "order"))
    viewed = tape.reshape(rows, (tape.shape(rows)[0], *merged, width))
    sources = tape.constant(np.asarray(picks, np.int64)[order], "picks")
    total = tape.op(Spmm(), viewed, tape.constant(pointers, "pointers"), sources, weights)
    return tape.reshape(total, tape.shape(table))


@GRADIENTS.register(TypedLinear)
def _typed_linear(tape: Tape, node: Node, op: TypedLinear, gradients: tuple[str, ...]) -> Gradients:
    """dx by the transposed weights; dW[r] = x_r^T dy_r, one product per type with rows; db[r] is the sum of dy_r."""
    (x, weights, pointers), dy = node.inputs[:3], gradients[0]
    index, bias = tape.operand(node, 3), tape.operand(node, 4)
    ids = tape.array(index) if index else None
    if index and ids is None:
        return Refusal(f"{op.onnx_name}: its graph is computed as the model runs")
    rank = len(tape.shape(weights))
    of_bias = tape.op(SegmentReduce(), dy, pointers) if bias and tape.wants(bias) else ""
    none = ("", of_bias)[: len(node.inputs) - 3]
    transposed = (*range(rank - 2), rank - 1, rank - 2)
    of_x = tape.op(op, dy, tape.transpose(weights, transposed), pointers) if tape.wants(x) else ""
    if of_x and ids is not None:
        of_x = _sum_by_row(tape, x, ids, of_x)
    if not tape.wants(weights):
        return (of_x, "", "", *none)
    read = tape.op(GatherRows(), x, index) if index else x
    bounds = tape.array(pointers)
    if bounds is None:
        return Refusal(f"{op.onnx_name}: its graph is computed as the model runs")
    shape, parts = tape.shape(weights), []
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if first == last:
            parts.append(tape.zeros((1, *shape[1:]), dy))
            continue
        rows, grads = tape.slice(read, 0, first, last), tape.slice(dy, 0, first, last)
        if rank == 3:
            product = tape.op(Gemm(trans_a=True), rows, grads)
        else:  # head by head
            product = tape.op(PRODUCT, tape.transpose(rows, (1, 2, 0)), tape.transpose(grads, (1, 0, 2)))
        parts.append(tape.reshape(product, (1, *shape[1:])))
    return (of_x, parts[0] if len(parts) == 1 else tape.op(Concat(0), *parts), "", *none)


@GRADIENTS.register(TypedSpmm)
def _typed_spmm(tape: Tape, node: Node, op: TypedSpmm, gradients: tuple[str, ...]) -> Gradients:
    """The gradients of the sum and the products; these are recomputed if edge weights or row scales are trained."""
    pointers, sources, weight, scale = (tape.operand(node, position) for position in range(4, 8))
    operands, bounds = tuple(filter(None, node.inputs[:4])), tape.array(node.inputs[2])
    edges = None if bounds is None else _edges(tape, pointers, sources, int(bounds[-1]))
    if bounds is None or edges is None or isinstance(edges, Refusal):
        return Refusal(f"{op.onnx_name}: its graph is computed as the model runs")
    dy = gradients[0]
    of_sum: tuple[str, ...] = ("",) * 5
    of_products: tuple[str, ...] = ("",) * 2
    if any(name and tape.wants(name) for name in (weight, scale)):
        products = tape.op(TypedLinear(), *operands)
        rows = tape.reshape(products, op.viewed(tape.shape(products)))
        summed = replace(node, op=Spmm(), inputs=(rows, *node.inputs[4:]))
        of_sum = _unrefused(_spmm(tape, summed, Spmm(), gradients))
    if any(map(tape.wants, operands[:2])):
        of_rows = _of_sources(tape, edges, weight, tape.mul(dy, _per_row(tape, scale, dy)) if scale else dy)
        (x, weights), count = map(tape.shape, operands[:2]), int(bounds[-1])
        of_rows = tape.reshape(of_rows, (count, *x[1:-1], weights[-1]))
        typed = replace(node, op=TypedLinear(), inputs=operands)
        of_products = _unrefused(_typed_linear(tape, typed, TypedLinear(), (of_rows,)))
    return (*of_products[:2], "", "", "", "", *of_sum[3:])[: len(node.inputs)]


def _unrefused(gradients: Gradients) -> tuple[str, ...]:
    """The gradients, which are not refused because the structure is known."""
    assert not isinstance(gradients, Refusal)
    return tuple(gradients)
