"""Operators that read or write by a constant index: cache misses are counted on the index itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.ir import Array, OnnxOp
from pimflow.records import NamedTuple
from pimflow.runtime.gpu.work import Operands, element_width, value_bytes
from pimflow.runtime.sparse_traffic import RowAccess, SparseWork

PIECE_ACCESSES = 1 << 22
"""The number of accesses of a longer list to compute at a time."""

_GATHERS = frozenset({"Gather", "GatherElements", "GatherND"})
_SCATTERS = frozenset({"ScatterElements", "ScatterND"})
Ints = npt.NDArray[Any]


class _Touched(NamedTuple):
    """Rows of a table that an index accesses.

    Args:
        ids: the rows in the order of access.
        elements: elements of a row.
        copies: how often the sequence is repeated, each time on the rows after the previous ones.
    """

    ids: Ints
    elements: int
    copies: int = 1


def indexed(op: OnnxOp, operands: Operands) -> SparseWork | None:
    """The work of a gather or scatter by a constant index; None for other operators, or if the index is unknown.

    A scatter copies its initial data; one with a reduction fetches the rows that it updates and writes them back.
    """
    index = operands.constants.get(1)
    if op.domain or op.op_type not in _GATHERS | _SCATTERS or index is None or index.size < 2:
        return None
    data, width = operands.inputs[0], operands.element_bytes
    shape, attributes = data.shape or (), dict(op.attributes)
    found = _rows(op.op_type, shape, operands.inputs[1].shape or (), index, attributes)
    if found is None:
        return None
    row_bytes, rows = found.elements * element_width(data.dtype, width), math.prod(shape) // max(found.elements, 1)
    reduces = op.op_type in _SCATTERS and attributes.get("reduction", "none") != "none"
    count = len(found.ids) * found.copies
    access = RowAccess(row_bytes, rows // found.copies, count, found.ids, reduces, found.copies)
    streamed = operands.bytes - value_bytes(data, width) if op.op_type in _GATHERS else operands.bytes
    return SparseWork(operands.inputs[2].elements if reduces else 0, 0, streamed, (access,))


def _rows(
    kind: str, shape: tuple[int, ...], index_shape: tuple[int, ...], index: Array, attributes: Mapping[str, object]
) -> _Touched | None:
    """The rows of the data that are accessed."""
    given = attributes.get("axis", 0)
    axis = given % len(shape) if isinstance(given, int) and shape else 0
    by_element = kind.endswith("Elements")
    if not shape:
        return None
    if by_element and axis == 0 and math.prod(index.shape[1:]) == 1 and index_shape[1:] == shape[1:]:
        return _Touched(_wrapped(index.reshape(-1), shape[0]), math.prod(shape[1:]))  # the same rows in all columns
    whole = np.broadcast_to(index, index_shape)
    if by_element:
        return _elements(shape, axis, whole)
    if kind == "Gather":
        picked = _wrapped(whole.reshape(-1), shape[axis])
        return _Touched(picked, math.prod(shape[axis + 1 :]), math.prod(shape[:axis]))
    batch = attributes.get("batch_dims", 0)
    return _tuples(shape, whole, batch if isinstance(batch, int) else 0)


def _tuples(shape: tuple[int, ...], index: Array, batch: int) -> _Touched | None:
    """Rows named by tuples of indices, for each batch; batches are the first dimensions of data and index."""
    stop = batch + index.shape[-1]
    if stop == 0:
        return None
    batches = np.ogrid[tuple(slice(0, size) for size in index.shape[:-1])][:batch]
    places = [*batches, *(_wrapped(index[..., axis], shape[batch + axis]) for axis in range(index.shape[-1]))]
    ids = np.ravel_multi_index(tuple(np.broadcast_arrays(*places)), shape[:stop])
    return _Touched(ids.reshape(-1).astype(np.int64), math.prod(shape[stop:]))


def _elements(shape: tuple[int, ...], axis: int, index: Array) -> _Touched:
    """Single elements, each with its own index, in the smallest integer type that fits."""
    ids = np.empty(index.shape, np.int32 if math.prod(shape) < 2**31 else np.int64)
    others = [slice(0, size) for size in index.shape[1:]]
    step = max(PIECE_ACCESSES // max(math.prod(index.shape[1:]), 1), 1)
    for row in range(0, len(index), step):
        piece = index[row : row + step]
        cuts = (slice(row, row + len(piece)), *others)
        grid = np.ogrid[cuts]
        places = [_wrapped(piece, shape[axis]) if other == axis else grid[other] for other in range(len(shape))]
        ids[row : row + step] = np.ravel_multi_index(tuple(np.broadcast_arrays(*places)), shape)
    return _Touched(ids.reshape(-1), 1)


def _wrapped(index: Array, size: int) -> Ints:
    """Indices with negative ones counted from the end; those out of range, which fail at run time, are clipped."""
    whole: Ints = index.astype(np.int64, copy=False)
    if not whole.size or (whole.min() >= 0 and whole.max() < size):
        return whole
    return np.clip(np.where(whole < 0, whole + size, whole), 0, max(size - 1, 0))
