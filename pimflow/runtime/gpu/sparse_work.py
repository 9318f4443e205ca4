"""The work of sparse ops on a GPU: bytes, and rows that are accessed in the order of the graph's edges.

Data that a kernel reads or writes once is streamed. Rows of features read by index may hit the second-level cache; how
often is derived from the graph. If the graph is only known at run time, no hits are assumed, and the cost says so.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from pimflow.ir import (
    Array,
    EdgeSoftmax,
    GatherPairs,
    GatherRows,
    Sddmm,
    SegmentReduce,
    Spmm,
    TypedLinear,
    TypedSpmm,
    Value,
)
from pimflow.runtime.gpu.work import (
    GPU_WORK,
    GpuWork,
    KernelSequence,
    Operands,
    SegmentedWork,
    StreamWork,
    element_width,
    value_bytes,
)
from pimflow.runtime.sparse_traffic import UNKNOWN_ORDER, RowAccess, SparseWork
from pimflow.sparse import Graph, by_id

_ON_CHIP_BYTES = 48 << 10
"""Shared memory of a thread block (CUDA): a row of logits that fits is read once, a longer row three times."""
_SOFTMAX_OPERATIONS = 8
_TILE_ROWS = 64  # rows of a product's tile; with larger tiles, fewer sums would be split
_POSITION_BYTES = 4  # bytes of an edge's position, as the compiler stores indices
_INDEX_BYTES = 8  # ONNX's indices are int64


@GPU_WORK.register(Spmm)
def _spmm(op: Spmm, operands: Operands) -> SparseWork | KernelSequence:
    features, edges = operands.given[0], operands.given[2]
    assert features is not None
    assert edges is not None
    steps = edges.elements * _width(features)
    gathered = _rows(features, edges.elements, operands.constants.get(2), operands.element_bytes)
    return _known(SparseWork(steps, steps, _streamed(operands, features), (gathered,)))


@GPU_WORK.register(SegmentReduce)
def _segment_reduce(op: SegmentReduce, operands: Operands) -> StreamWork:
    """Edge values are streamed row by row, so the order of sources does not matter."""
    return StreamWork(operands.inputs[0].elements, operands.bytes)


@GPU_WORK.register(Sddmm)
def _sddmm(op: Sddmm, operands: Operands) -> SparseWork | KernelSequence:
    """Rows of sources are read by index; the row of a destination is reused for its edges, which are consecutive."""
    features, edges = operands.given[0], operands.given[3]
    assert features is not None
    assert edges is not None
    steps = edges.elements * _width(features)
    gathered = _rows(features, edges.elements, operands.constants.get(3), operands.element_bytes)
    macs = steps if op.pairing == "dot" else 0
    return _known(SparseWork(steps, macs, _streamed(operands, features), (gathered,)))


@GPU_WORK.register(GatherPairs)
def _gather_pairs(op: GatherPairs, operands: Operands) -> SparseWork | KernelSequence:
    """Both rows of a pair are read by index."""
    first, second, pairs = operands.given[0], operands.given[1], operands.given[2]
    assert first is not None
    assert second is not None
    assert pairs is not None
    steps = pairs.elements * _width(first)
    rows = tuple(
        _rows(table, pairs.elements, operands.constants.get(position), operands.element_bytes)
        for table, position in ((first, 2), (second, 3))
    )
    streamed = _streamed(operands, first) - value_bytes(second, operands.element_bytes)
    return _known(SparseWork(steps, steps if op.pairing == "dot" else 0, streamed, rows))


@GPU_WORK.register(EdgeSoftmax)
def _edge_softmax(op: EdgeSoftmax, operands: Operands) -> SparseWork:
    """Rows that fit on chip are read once; longer ones are read again from the L2 for the sum and for the quotient."""
    logits = operands.inputs[0]
    again = 0
    if 1 in operands.constants and logits.shape:
        edge_bytes = _width(logits) * element_width(logits.dtype, operands.element_bytes)
        degrees = np.diff(operands.constants[1])
        again = 2 * edge_bytes * int(degrees[degrees * edge_bytes > _ON_CHIP_BYTES].sum())
    operations = _SOFTMAX_OPERATIONS * logits.elements
    return SparseWork(operations, 0, operands.bytes, again_bytes=again, kind="softmax")


@GPU_WORK.register(GatherRows)
def _gather_rows(op: GatherRows, operands: Operands) -> SparseWork | KernelSequence:
    features, index = operands.given[0], operands.given[1]
    assert features is not None
    assert index is not None
    gathered = _rows(features, index.elements, operands.constants.get(1), operands.element_bytes)
    return _known(SparseWork(0, 0, _streamed(operands, features), (gathered,)))


@GPU_WORK.register(TypedLinear)
def _typed_linear(op: TypedLinear, operands: Operands) -> SegmentedWork | KernelSequence:
    """A product per type that has rows, all in one kernel; types that are computed are assumed to be equally frequent.

    Rows that it reads by index pass the cache like those of a gather, and are not written (Hector's access schemes;
    CUTLASS's example 36, "gather_scatter_fusion").
    """
    work = _products(operands, (operands.output.shape or (0,))[0])
    return KernelSequence(((work, 1),), UNKNOWN_ORDER) if _reads_unknown_rows(work) else work


def _products(operands: Operands, count: int) -> SegmentedWork:
    """`count` rows times the matrices of their types; all other data is streamed."""
    features, weights = operands.inputs[0], operands.inputs[1]
    types, *heads, inner, outer = weights.shape or (1, 1, 1)
    segments = [count // max(types, 1) + (kind < count % max(types, 1)) for kind in range(types)]
    if 2 in operands.constants:
        segments = np.diff(operands.constants[2]).tolist()
    used = tuple(segment for segment in segments if segment)
    unread = value_bytes(weights, operands.element_bytes) * (types - len(used)) // max(types, 1)
    groups = max(len(used), 1)
    rows, used, groups = -(-count // groups), used * math.prod(heads), groups * math.prod(heads)
    if len(operands.given) < 4 or operands.given[3] is None:
        return SegmentedWork(rows, outer, inner, groups, operands.bytes - unread, segments=used)
    gathered = _rows(features, count, operands.constants.get(3), operands.element_bytes)
    streamed = _streamed(operands, features) - unread
    return SegmentedWork(rows, outer, inner, groups, streamed, segments=used, gathered=gathered)


def _reads_unknown_rows(work: SegmentedWork) -> bool:
    return work.gathered is not None and work.gathered.ids is None


@GPU_WORK.register(TypedSpmm)
def _typed_spmm(op: TypedSpmm, operands: Operands) -> KernelSequence:
    """Zeros, and one kernel that atomically adds each row of a product to the rows that its edges lead to.

    Rows are ordered by type, so those of one destination are in several tiles: sums in the order of destinations would
    need the products in memory. Consecutive additions to the same destination are first summed within a tile, as
    pytorch_scatter's `segment_coo` does in a warp. An addition is performed in the second-level cache and passes it
    twice; misses are fetched and written back. The kernel reads where the edges of each product begin, and for each
    edge its destination and, if edges have weights, its position; weights and scales of destinations are read by index.
    """
    features, index, rows, edges = (operands.given[position] for position in (0, 3, 4, 5))
    assert features is not None
    assert rows is not None
    assert edges is not None
    bounds = operands.constants.get(2)
    count = (features.shape or (0,))[0] if index is None else index.elements
    order = targets = added = None
    if bounds is not None and {4, 5} <= operands.constants.keys():
        _, order = by_id(np.asarray(operands.constants[5], np.int32), int(bounds[-1]))
        pointers = operands.constants[4]
        targets = np.repeat(np.arange(len(pointers) - 1, dtype=np.int32), np.diff(pointers))[order]
        added = _first_of_runs(targets, np.asarray(operands.constants[5])[order] // _TILE_ROWS)
    results, width = operands.output, operands.element_bytes
    additions = _rows(results, edges.elements if added is None else len(added), added, width)
    weight, scale = (*operands.given[6:], None, None)[:2]
    read = [(value, ids) for value, ids in ((weight, order), (scale, targets)) if value is not None]
    accesses = (replace(additions, updates=True), *(_rows(value, edges.elements, ids, width) for value, ids in read))
    work = _products(operands, count)
    apart = sum(value_bytes(value, width) for value in (results, rows, *(value for value, _ in read)))
    positions = count + 1 + (0 if weight is None else edges.elements)
    work = replace(work, bytes=work.bytes - apart + positions * _POSITION_BYTES, scattered=accesses)
    known = added is not None and not _reads_unknown_rows(work)
    zeros = StreamWork(0, value_bytes(results, width))
    return KernelSequence(((zeros, 1), (work, 1)), "" if known else UNKNOWN_ORDER)


def _first_of_runs(targets: Array, tiles: Array) -> Array:
    """The targets of additions, with consecutive equal targets in one tile merged."""
    changes = (targets[1:] != targets[:-1]) | (tiles[1:] != tiles[:-1])
    return targets[np.flatnonzero(np.concatenate([[True], changes]))] if len(targets) else targets


def exporter_pattern(graph: Graph, width: int, element_bytes: int, weighted: bool) -> KernelSequence:
    """The work of an aggregation as exporters write it, operator by operator.

    Gather of the sources' rows, a product with the weights, Expand of the destinations to a matrix of int64, zeros, and
    ScatterElements, which copies the zeros and adds row by row.

    Args:
        graph: the graph whose edges are aggregated over, in their original order.
        width: features of a vertex.
        element_bytes: bytes of a feature.
        weighted: whether edges have weights.
    """
    edges, row_bytes = graph.num_edges, width * element_bytes
    messages, index = edges * row_bytes, edges * width * _INDEX_BYTES
    results = graph.num_dst * row_bytes
    sources, destinations = graph.as_given(graph.col), graph.as_given(graph.destinations())
    read = RowAccess(row_bytes, graph.num_src, edges, sources)
    added = RowAccess(row_bytes, graph.num_dst, edges, destinations, updates=True)
    kernels: list[GpuWork] = [
        SparseWork(0, 0, edges * _INDEX_BYTES + messages, (read,)),
        StreamWork(0, edges * _INDEX_BYTES + index),
        StreamWork(0, results),
        SparseWork(edges * width, 0, 2 * results + index + messages, (added,)),
    ]
    if weighted:
        kernels.insert(1, StreamWork(edges * width, edges * element_bytes + 2 * messages))
    return KernelSequence(tuple((kernel, 1) for kernel in kernels))


def _width(value: Value) -> int:
    """Elements of one row."""
    return math.prod((value.shape or (0,))[1:])


def _streamed(operands: Operands, gathered: Value) -> int:
    """Bytes of all operands and results, except the one that is read by index."""
    return operands.bytes - value_bytes(gathered, operands.element_bytes)


def _rows(features: Value, count: int, ids: Array | None, element_bytes: int) -> RowAccess:
    rows = (features.shape or (0,))[0]
    row_bytes = _width(features) * element_width(features.dtype, element_bytes)
    return RowAccess(row_bytes, rows, count, ids)


def _known(work: SparseWork) -> SparseWork | KernelSequence:
    return work if work.is_known else KernelSequence(((work, 1),), UNKNOWN_ORDER)
