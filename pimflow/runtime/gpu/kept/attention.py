"""Attention in the variants of ONNX and ONNX Runtime: projections, scores, softmax, and the weighted sum of values.

Each is a separate kernel, as in the graphs that these operators are fused from.
"""

from __future__ import annotations

from pimflow.ir import OnnxOp, Shape
from pimflow.records import dataclass
from pimflow.runtime.gpu.kept.rules import CONTRIB, asks, bytes_at, integer, integers, invalid_operands, shape_of
from pimflow.runtime.gpu.work import OPERATIONS, GpuWork, KernelSequence, MatrixWork, NodeWork, Operands, StreamWork
from pimflow.runtime.gpu.work import value_bytes as bytes_of

_LENGTHS = "the number of keys depends on data: all are counted"


@dataclass(frozen=True)
class _Heads:
    """Attention of `batch` sequences with `heads` heads, or fewer (`shared`) for keys and values; sizes of one head."""

    batch: int
    heads: int
    shared: int
    rows: int
    keys: int
    depth: int
    value_depth: int

    def kernels(self, width: int, mask_bytes: int, added_bytes: int) -> list[tuple[GpuWork, int]]:
        """The kernels: scores, softmax, weighted sum of values.

        Args:
            width: bytes of an element.
            mask_bytes: bytes read with the scores.
            added_bytes: bytes written to append keys and values to those of the past.
        """
        products = self.batch * self.heads
        scores = products * self.rows * self.keys
        queries, results = products * self.rows * self.depth, products * self.rows * self.value_depth
        keys = self.batch * self.shared * self.keys * self.depth
        values = self.batch * self.shared * self.keys * self.value_depth
        kernels: list[tuple[GpuWork, int]] = [
            (MatrixWork(self.rows, self.keys, self.depth, products, width * (queries + keys + scores)), 1),
            (self._softmax(2 * width * scores + mask_bytes), 1),
            (MatrixWork(self.rows, self.value_depth, self.keys, products, width * (scores + values + results)), 1),
        ]
        return [*([(StreamWork(0, 2 * added_bytes), 1)] if added_bytes else []), *kernels]

    def _softmax(self, moved: int) -> StreamWork:
        """The softmax of all scores, with the bytes that it moves."""
        rows = self.batch * self.heads * self.rows
        return StreamWork(rows * self.keys * OPERATIONS["Softmax"], moved, "softmax", rows, self.keys)


@asks("Attention")
def _standard(op: OnnxOp, operands: Operands) -> NodeWork:
    """ONNX's own operator, with four axes (separate heads) or three."""
    query, key, value, past = (shape_of(operands, position) for position in (0, 1, 2, 4))
    if any(shape is None or len(shape) not in (3, 4) for shape in (query, key, value)):
        return invalid_operands(operands)
    assert query is not None
    assert key is not None
    assert value is not None
    heads, shared = integer(op, "q_num_heads"), integer(op, "kv_num_heads")
    if len(query) == 4:
        heads, shared = query[1], key[1]
    apart = len(query) == 4 or not heads or not shared
    sizes = (query[-1], value[-1]) if apart else (query[-1] // heads, value[-1] // shared)
    keys = key[-2] + (past[2] if past else 0)
    work = _Heads(query[0], max(heads, 1), max(shared, 1), query[-2], keys, *sizes)
    lengths = shape_of(operands, 6) is not None
    return _sequence([], work, operands, bytes_at(operands, 3), lengths=lengths)


@asks("Attention", domain=CONTRIB)
def _with_projection(op: OnnxOp, operands: Operands) -> NodeWork:
    return _projected(op, operands, past_at=4, lengths=shape_of(operands, 6) is not None)


@asks("QAttention", domain=CONTRIB)
def _quantised(op: OnnxOp, operands: Operands) -> NodeWork:
    return _projected(op, operands, past_at=8, lengths=False)


def _projected(op: OnnxOp, operands: Operands, past_at: int, *, lengths: bool) -> NodeWork:
    """One product computes queries, keys and values from one input. A past is [2, batch, heads, keys, depth]."""
    source, weights, past = (shape_of(operands, position) for position in (0, 1, past_at))
    heads = integer(op, "num_heads")
    if source is None or weights is None or len(source) != 3 or len(weights) != 2 or not heads:
        return invalid_operands(operands)
    batch, rows, depth = source
    query, _, value = integers(op, "qkv_hidden_sizes") or (weights[1] // 3,) * 3
    result_bytes = batch * rows * weights[1] * operands.element_bytes
    projection = MatrixWork(batch * rows, weights[1], depth, 1, bytes_at(operands, 0, 1) + result_bytes)
    keys = rows + (past[3] if past else 0)
    work = _Heads(batch, heads, heads, rows, keys, query // heads, value // heads)
    return _sequence(
        [(projection, 1)], work, operands, bytes_at(operands, 3, 5) if past_at == 4 else 0, lengths=lengths
    )


@asks("MultiHeadAttention", domain=CONTRIB)
def _multi_head(op: OnnxOp, operands: Operands) -> NodeWork:
    """Keys and values may be packed with the queries, [batch, rows, heads, 3, depth], or together."""
    query, key, value, past = (shape_of(operands, position) for position in (0, 1, 2, 6))
    heads = integer(op, "num_heads")
    if query is None or len(query) not in (3, 5) or not heads:
        return invalid_operands(operands)
    depth = query[-1] if len(query) == 5 else query[-1] // heads
    keys, value_depth = query[1], depth
    if key is not None:
        keys = key[2] if len(key) == 4 else key[1]
    if value is not None:
        value_depth = value[-1] if len(value) == 4 else value[-1] // heads
    keys += past[2] if past else 0
    work = _Heads(query[0], heads, heads, query[1], keys, depth, value_depth)
    return _sequence([], work, operands, bytes_at(operands, 4, 5), lengths=shape_of(operands, 8) is not None)


@asks("GroupQueryAttention", domain=CONTRIB)
def _grouped(op: OnnxOp, operands: Operands) -> NodeWork:
    """Keys have fewer heads than queries. An input gives the length of the past."""
    query, key, past = (shape_of(operands, position) for position in (0, 1, 3))
    heads, shared = integer(op, "num_heads"), integer(op, "kv_num_heads")
    if query is None or len(query) != 3 or not heads or not shared:
        return invalid_operands(operands)
    depth = query[2] // (heads if key is not None else heads + 2 * shared)
    keys = _present(operands) or query[1] + (past[2] if past else 0)
    work = _Heads(query[0], heads, shared, query[1], keys, depth, depth)
    return _sequence([], work, operands, 0, lengths=True)


def _present(operands: Operands) -> int:
    """The number of keys in the second result; 0 if there is none."""
    shape: Shape | None = operands.outputs[1].shape if len(operands.outputs) > 1 else None
    return shape[2] if shape else 0


def _sequence(
    before: list[tuple[GpuWork, int]], heads: _Heads, operands: Operands, mask_bytes: int, *, lengths: bool
) -> KernelSequence:
    """The kernels of a node; its further results are the keys and values for the next call."""
    added = sum(bytes_of(value, operands.element_bytes) for value in operands.outputs[1:])
    kernels = [*before, *heads.kernels(operands.element_bytes, mask_bytes, added)]
    return KernelSequence(tuple(kernels), _LENGTHS if lengths else "")
