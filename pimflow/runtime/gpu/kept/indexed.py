"""Operators that read or write by an index that is known: what misses the cache is counted on the index itself."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pimflow.ir import Array, OnnxOp
from pimflow.runtime.gpu.work import Operands, element_width, value_bytes
from pimflow.runtime.sparse_traffic import RowAccess, SparseWork

MOST_ACCESSES = 1 << 24
"""More than that are not listed one by one: their price is that of as many bytes, without any reuse."""

_GATHERS = frozenset({"Gather", "GatherElements", "GatherND"})
_SCATTERS = frozenset({"ScatterElements", "ScatterND"})
Longs = npt.NDArray[np.int64]


def indexed(op: OnnxOp, operands: Operands) -> SparseWork | None:
    """The work of a gather or scatter by a constant index; None for other operators, or where the index is not known.

    A scatter copies what it starts from, and fetches and writes back what it reduces into.
    """
    index = operands.constants.get(1)
    if op.domain or op.op_type not in _GATHERS | _SCATTERS or index is None or index.size < 2:
        return None
    data, width = operands.inputs[0], operands.element_bytes
    shape, attributes = data.shape or (), dict(op.attributes)
    found = _rows(op.op_type, shape, operands.inputs[1].shape or (), index, attributes)
    if found is None:
        return None
    ids, elements = found
    reduces = op.op_type in _SCATTERS and attributes.get("reduction", "none") != "none"
    rows = math.prod(shape) // max(elements, 1)
    access = RowAccess(elements * element_width(data.dtype, width), rows, len(ids), ids, reduces)
    streamed = operands.bytes - value_bytes(data, width) if op.op_type in _GATHERS else operands.bytes
    return SparseWork(operands.inputs[2].elements if reduces else 0, 0, streamed, (access,))


def _rows(
    kind: str, shape: tuple[int, ...], index_shape: tuple[int, ...], index: Array, attributes: Mapping[str, object]
) -> tuple[Longs, int] | None:
    """The rows of the data that are touched, one after the other, and how many elements each has."""
    given = attributes.get("axis", 0)
    axis = given % len(shape) if isinstance(given, int) and shape else 0
    by_element = kind.endswith("Elements")
    if by_element and axis == 0 and math.prod(index.shape[1:]) == 1 and index_shape[1:] == shape[1:]:
        return _along(shape, 0, index)  # the same rows of all columns
    if attributes.get("batch_dims", 0) or not shape or index.shape != index_shape or index.size > MOST_ACCESSES:
        return None
    if not by_element:
        return _along(shape, axis, index) if kind == "Gather" else _tuples(shape, index)
    grid = np.ogrid[tuple(slice(0, size) for size in index.shape)]
    places = [_wrapped(index, shape[axis]) if other == axis else grid[other] for other in range(len(shape))]
    ids = np.ravel_multi_index(tuple(np.broadcast_arrays(*places)), shape)
    return ids.reshape(-1).astype(np.int64), 1


def _tuples(shape: tuple[int, ...], index: Array) -> tuple[Longs, int] | None:
    depth = index.shape[-1]
    places = [_wrapped(index[..., axis].reshape(-1), shape[axis]) for axis in range(depth)]
    if not depth:
        return None
    return np.ravel_multi_index(tuple(places), shape[:depth]).astype(np.int64), math.prod(shape[depth:])


def _along(shape: tuple[int, ...], axis: int, index: Array) -> tuple[Longs, int] | None:
    before, size = math.prod(shape[:axis]), shape[axis]
    if before * index.size > MOST_ACCESSES:
        return None
    picked = _wrapped(index.reshape(-1), size)
    ids = (np.arange(before, dtype=np.int64)[:, None] * size + picked).reshape(-1)
    return ids, math.prod(shape[axis + 1 :])


def _wrapped(index: Array, size: int) -> Longs:
    """Negative indices count from the end."""
    whole: Longs = index.astype(np.int64)
    return np.where(whole < 0, whole + size, whole)
