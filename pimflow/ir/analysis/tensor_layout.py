"""The memory layout of tensors: axis order, strides, and when two shapes are the same bytes.

Tensors of four axes are images, stored NHWC; all others are row-major. Shapes stay ONNX's (NCHW) everywhere: only the
order in which the axes are laid out differs. All strides here are in elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

Index = tuple[int, ...]

_WIDTHS = {
    "float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16,
    "float32": 4, "int32": 4, "uint32": 4,
    "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2,
    "bool": 1, "int8": 1, "uint8": 1, "int4": 1, "uint4": 1,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip


def element_bytes(dtype: str) -> int | None:
    """Bytes of one element in the arena; None for types without a fixed size (strings, sequences, unknown).

    Four-bit types take one byte per element, as in numpy.
    """
    return _WIDTHS.get(dtype)


def is_float(dtype: str) -> bool:
    """Whether an element type is one of floats, as values that have gradients are."""
    return dtype.startswith("float") or dtype == "bfloat16"


def axis_order(rank: int) -> Index:
    """The axes from outermost to innermost in memory."""
    return (0, 2, 3, 1) if rank == 4 else tuple(range(rank))


def dense_strides(extents: Sequence[int]) -> Index:
    """Strides of a tensor that fills its space."""
    strides = [0] * len(extents)
    step = 1
    for axis in reversed(axis_order(len(extents))):
        strides[axis] = step
        step *= extents[axis]
    return tuple(strides)


def is_contiguous(shape: Sequence[int], extents: Sequence[int]) -> bool:
    """Whether a box of `shape` inside a space of `extents` is one run of elements."""
    partial = False
    for axis in reversed(axis_order(len(shape))):
        if partial and shape[axis] != 1:
            return False
        partial = partial or shape[axis] != extents[axis]
    return True


def transpose_keeps_bytes(before: Sequence[int], perm: Sequence[int]) -> bool:
    """Whether a dense tensor with its axes permuted has the layout of a dense tensor of the new shape."""
    if 0 in before:
        return True
    after = permuted(before, perm)
    return same_strides(after, permuted(dense_strides(before), perm), dense_strides(after))


def permuted(values: Sequence[int], perm: Sequence[int]) -> Index:
    """Shape or strides with the axes permuted as ONNX's Transpose does."""
    return tuple(values[axis] for axis in perm)


def inverse(perm: Sequence[int]) -> Index:
    """The permutation that undoes a Transpose."""
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def same_strides(shape: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two sets of strides address the same elements (axes of extent 1 do not matter)."""
    return all(dim == 1 or a == b for dim, a, b in zip(shape, one, other, strict=True))


def reshaped_strides(before: Sequence[int], strides: Sequence[int], after: Sequence[int]) -> Index | None:
    """Strides that view a strided tensor under another shape, or None if that needs a copy."""
    if 0 in before:
        return dense_strides(after)
    source = [(dim, stride) for dim, stride in zip(before, strides, strict=True) if dim != 1]
    result = [1] * len(after)
    consumed = 0
    position = 0
    while position < len(after):
        if after[position] == 1:
            position += 1
            continue
        first, dims = consumed, [after[position]]
        axes = [position]
        position += 1
        product = source[consumed][0]
        consumed += 1
        while product != math.prod(dims):
            if product < math.prod(dims):
                product *= source[consumed][0]
                consumed += 1
                continue
            dims.append(after[position])
            axes.append(position)
            position += 1
        run = source[first:consumed]
        if any(outer[1] != inner[0] * inner[1] for outer, inner in pairwise(run)):
            return None
        step = run[-1][1]
        for axis in reversed(axes):
            result[axis] = step
            step *= after[axis]
    return tuple(result)
