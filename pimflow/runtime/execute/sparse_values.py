"""Computes sparse ops of any size with numpy and scipy on blocks of edges; sums are in single precision or better.

No temporary is larger than the result and a block of edge values. Blocks are computed in parallel: the loops in numpy
and scipy release the GIL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.frontend.structure import as_matrix
from pimflow.ir import (
    Array,
    EdgeSoftmax,
    GatherPairs,
    GatherRows,
    OpRules,
    Sddmm,
    SegmentReduce,
    Spmm,
    TypedLinear,
    TypedSpmm,
)
from pimflow.sparse import by_id

Floats = npt.NDArray[Any]
Operands = Sequence["Array | None"]

BLOCK_ELEMENTS = 1 << 23
"""Edge values in memory at a time, in each thread."""

SUM_WIDTH = 8
"""Values per edge assumed for sums, which store no messages: this gives blocks of about a million edges."""

THREADS = 2
"""The same number as for an ONNX Runtime operator."""

SPARSE_VALUES: OpRules[Callable[[Any, Operands], Array]] = OpRules(
    "values of sparse ops", asks=lambda kind: kind.is_sparse
)
"""Functions that compute a sparse op from its operands (None: absent)."""


def _required(operands: Operands, position: int) -> Any:
    """An operand that is present."""
    array = operands[position]
    assert array is not None
    return array


def _optional(operands: Operands, position: int) -> Any:
    return operands[position] if position < len(operands) else None


def _wide(array: Any) -> Floats:
    """Floating-point values in the type in which they are summed."""
    wide: Floats = array if array.dtype.itemsize >= 4 else array.astype(np.float32)
    return wide


def _row_blocks(rowptr: Any, width: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows whose edges, with `width` values each, fit into a block; a longer row is its own block."""
    rows, edges = len(rowptr) - 1, max(BLOCK_ELEMENTS // max(width, 1), 1)
    first = 0
    while first < rows:
        last = int(np.searchsorted(rowptr, rowptr[first] + edges, "right")) - 1
        last = min(max(last, first + 1), rows)
        yield first, last
        first = last


def _in_parallel(block: Callable[[int, int], None], blocks: Iterator[tuple[int, int]]) -> None:
    ranges = list(blocks)
    if len(ranges) < 2:  # starting threads takes longer than computing a small block
        for first, last in ranges:
            block(first, last)
        return
    from concurrent.futures import ThreadPoolExecutor  # imported here because few models have sparse ops

    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(block, first, last) for first, last in ranges]:
            future.result()


@SPARSE_VALUES.register(Spmm)
def _spmm(op: Spmm, operands: Operands) -> Array:
    x, rowptr, col = (_required(operands, position) for position in range(3))
    weight, scale = _optional(operands, 3), _optional(operands, 4)
    wide = _wide(x)
    if op.reduce == "sum" and (weight is None or weight.ndim == 1):
        out = _weighted_sums(as_matrix(wide), rowptr, col, weight)
    elif op.reduce == "sum":
        heads = [_weighted_sums(wide[:, head], rowptr, col, weight[:, head]) for head in range(x.shape[1])]
        out = np.stack(heads, axis=1)
    else:
        out = _reduced_messages(op, wide, rowptr, col, weight)
    out = out.reshape(len(rowptr) - 1, *x.shape[1:])
    if op.reduce == "sum":
        _start_sums(op, out, rowptr)
    if scale is not None:
        out *= scale.reshape(-1, *(1,) * (x.ndim - 1))
    return out.astype(x.dtype, copy=False)


def _weighted_sums(x: Floats, rowptr: Any, col: Any, weight: Any) -> Floats:
    """A @ x for x [Ns, F], by scipy's product for each block of rows, whose arrays are views."""
    from scipy.sparse import csr_array

    x = np.ascontiguousarray(x)
    out = np.empty((len(rowptr) - 1, x.shape[1]), x.dtype)
    ones = np.ones(0, x.dtype)
    if weight is None and len(col):
        most = max(int(rowptr[last] - rowptr[first]) for first, last in _row_blocks(rowptr, SUM_WIDTH))
        ones = np.ones(most, x.dtype)

    def block(first: int, last: int) -> None:
        begin, end = int(rowptr[first]), int(rowptr[last])
        data = ones[: end - begin] if weight is None else _wide(weight[begin:end]).astype(x.dtype, copy=False)
        pointers = (rowptr[first : last + 1] - begin).astype(np.int32)
        rows = csr_array((last - first, len(x)), dtype=x.dtype)
        rows.data, rows.indices, rows.indptr = data, col[begin:end], pointers  # the constructor would copy
        out[first:last] = rows @ x

    _in_parallel(block, _row_blocks(rowptr, SUM_WIDTH))
    return out


def _start_sums(op: Spmm | SegmentReduce, out: Floats, rowptr: Any) -> None:
    """Adds the initial values of rows, in place."""
    if op.start or op.empty:
        rows = np.where(np.diff(rowptr) > 0, op.start, op.empty).astype(out.dtype)
        out += rows.reshape(-1, *(1,) * (out.ndim - 1))


def _reduced_messages(op: Spmm, x: Floats, rowptr: Any, col: Any, weight: Any) -> Floats:
    """The largest or smallest messages, gathered block by block."""
    out = np.empty((len(rowptr) - 1, *x.shape[1:]), x.dtype)

    def block(first: int, last: int) -> None:
        edges = slice(int(rowptr[first]), int(rowptr[last]))
        messages = x[col[edges]]
        if weight is not None:
            messages *= _wide(weight[edges]).reshape(len(messages), *weight.shape[1:], *(1,) * (x.ndim - weight.ndim))
        out[first:last] = _reduced(op, messages, rowptr[first : last + 1] - rowptr[first])

    _in_parallel(block, _row_blocks(rowptr, x[:1].size))
    return out


_UFUNCS: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def _reduced(op: Spmm | SegmentReduce, updates: Floats, rowptr: Any) -> Floats:
    """Reduces rows of updates, starting from the rows' initial values."""
    out = np.full((len(rowptr) - 1, *updates.shape[1:]), op.empty, updates.dtype)
    occupied = np.flatnonzero(np.diff(rowptr) > 0)
    if len(occupied):
        function = _UFUNCS[op.reduce]
        start = np.array(op.start, updates.dtype)
        out[occupied] = function(function.reduceat(updates, rowptr[occupied], axis=0), start)
    return out


@SPARSE_VALUES.register(SegmentReduce)
def _segment_reduce(op: SegmentReduce, operands: Operands) -> Array:
    updates, rowptr = _required(operands, 0), _required(operands, 1)
    if op.reduce == "sum" and updates.ndim > 1:
        flat = as_matrix(_wide(updates))
        out = _weighted_sums(flat, rowptr, np.arange(len(flat), dtype=np.int32), None)
        _start_sums(op, out, rowptr)
        return out.reshape(-1, *updates.shape[1:]).astype(updates.dtype, copy=False)
    out = np.empty((len(rowptr) - 1, *updates.shape[1:]), updates.dtype)

    def block(first: int, last: int) -> None:
        edges = slice(int(rowptr[first]), int(rowptr[last]))
        out[first:last] = _reduced(op, _wide(updates[edges]), rowptr[first : last + 1] - rowptr[first])

    _in_parallel(block, _row_blocks(rowptr, updates[:1].size))
    return out


@SPARSE_VALUES.register(Sddmm)
def _sddmm(op: Sddmm, operands: Operands) -> Array:
    x, y, rowptr, col = (_required(operands, position) for position in range(4))
    shape = x.shape[1:-1] if op.pairing == "dot" else x.shape[1:]
    out = np.empty((len(col), *shape), x.dtype)

    def block(first: int, last: int) -> None:
        edges = slice(int(rowptr[first]), int(rowptr[last]))
        destinations = np.repeat(y[first:last], np.diff(rowptr[first : last + 1]), axis=0)
        out[edges] = _paired(op.pairing, x[col[edges]], destinations)

    _in_parallel(block, _row_blocks(rowptr, x[:1].size))
    return out


def _paired(pairing: str, first: Floats, second: Floats) -> Floats:
    """Combines two rows for each edge into one."""
    if pairing == "dot":
        dots: Floats = np.einsum("...c,...c->...", _wide(first), _wide(second))
        return dots
    return first + second if pairing == "add" else first * second


@SPARSE_VALUES.register(GatherPairs)
def _gather_pairs(op: GatherPairs, operands: Operands) -> Array:
    x, y, first, second = (_required(operands, position) for position in range(4))
    out = np.empty((len(first), *(x.shape[1:-1] if op.pairing == "dot" else x.shape[1:])), x.dtype)

    def block(begin: int, end: int) -> None:
        out[begin:end] = _paired(op.pairing, x[first[begin:end]], y[second[begin:end]])

    _in_parallel(block, _row_blocks(np.arange(len(first) + 1), x[:1].size))
    return out


@SPARSE_VALUES.register(EdgeSoftmax)
def _edge_softmax(op: EdgeSoftmax, operands: Operands) -> Array:
    logits, rowptr = _required(operands, 0), _required(operands, 1)
    out: Array = np.empty_like(logits)

    def block(first: int, last: int) -> None:
        edges = slice(int(rowptr[first]), int(rowptr[last]))
        part, pointers = _wide(logits[edges]), rowptr[first : last + 1] - rowptr[first]
        counts = np.diff(pointers)
        maxima = _reduced(SegmentReduce("max", op.floor, 0.0), part, pointers)
        powers = np.exp(part - np.repeat(maxima, counts, axis=0))
        sums = _reduced(SegmentReduce("sum"), powers, pointers) + np.array(op.eps, powers.dtype)
        out[edges] = powers / np.repeat(sums, counts, axis=0)

    _in_parallel(block, _row_blocks(rowptr, logits[:1].size))
    return out


@SPARSE_VALUES.register(GatherRows)
def _gather_rows(op: GatherRows, operands: Operands) -> Array:
    rows: Array = _required(operands, 0)[_required(operands, 1)]
    return rows


@SPARSE_VALUES.register(TypedLinear)
def _typed_linear(op: TypedLinear, operands: Operands) -> Array:
    x, weights, pointers = (_required(operands, position) for position in range(3))
    index, bias = _optional(operands, 3), _optional(operands, 4)
    out = np.empty((len(x) if index is None else len(index), *x.shape[1:-1], weights.shape[-1]), x.dtype)
    for kind, (first, last) in enumerate(pairwise(pointers.tolist())):
        products = _products(x, weights[kind], index, first, last)
        out[first:last] = products if bias is None else products + _wide(bias[kind])
    return out


def _products(x: Any, matrix: Any, index: Any, first: int, last: int) -> Floats:
    """Rows of x, or the rows that an index selects, times the matrix of their type."""
    rows, wide = _wide(x[first:last] if index is None else x[index[first:last]]), _wide(matrix)
    products: Floats = rows @ wide if x.ndim == 2 else np.einsum("mhk,hkn->mhn", rows, wide)
    return products


@SPARSE_VALUES.register(TypedSpmm)
def _typed_spmm(op: TypedSpmm, operands: Operands) -> Array:
    """Products in blocks of one type, each block summed at the destinations of its edges."""
    x, weights, pointers = (_required(operands, position) for position in range(3))
    rowptr, col = (_required(operands, position) for position in (4, 5))
    index, weight, scale = (_optional(operands, position) for position in (3, 6, 7))
    begins, order = by_id(col, int(pointers[-1]))
    targets = np.repeat(np.arange(len(rowptr) - 1, dtype=np.int32), np.diff(rowptr))[order]
    row_shape = op.viewed((0, *x.shape[1:-1], weights.shape[-1]))[1:]
    out = np.zeros((len(rowptr) - 1, *row_shape), _wide(x[:0]).dtype)
    for kind, (start, stop) in enumerate(pairwise(pointers.tolist())):
        for first, last in _row_blocks(begins[start : stop + 1], out[:1].size):
            block = begins[start + first : start + last + 1]
            edges = slice(int(block[0]), int(block[-1]))
            reached, places = np.unique(targets[edges], return_inverse=True)
            bounds, turned = by_id(places, len(reached))
            rows = np.repeat(np.arange(last - first, dtype=np.int32), np.diff(block))[turned]
            factors = None if weight is None else weight[order[edges]][turned]
            products = _products(x, weights[kind], index, start + first, start + last)
            out[reached] += _spmm(Spmm(), (products.reshape(-1, *row_shape), bounds, rows, factors))
    if scale is not None:
        out *= scale.reshape(-1, *(1,) * len(row_shape))
    return out.astype(x.dtype, copy=False)
