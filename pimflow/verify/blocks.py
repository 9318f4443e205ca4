"""Comparisons in double precision, one block at a time, so that a large map is never converted as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.ir import Array

Numbers = npt.NDArray[Any]

BLOCK = 1 << 16
"""Elements that are converted at a time; numpy adds up to 128 of them in its own way."""


def finite_pair(expected: Array, actual: Array) -> tuple[Numbers, Numbers] | None:
    """The finite elements of two arrays of the same shape, flattened, in their own type.

    Returns:
        None if NaN and infinities are not in the same places.
    """
    flat, other = np.ravel(expected), np.ravel(actual)
    finite = np.ones(flat.size, np.bool_)
    for part, block, second in _blocks(flat, other):
        here = finite[part] = np.isfinite(block)
        alike = np.array_equal(here, np.isfinite(second))
        if not alike or not np.array_equal(block[~here], second[~here], equal_nan=True):
            return None
    return (flat, other) if finite.all() else (flat[finite], other[finite])


def largest_error(expected: Numbers, actual: Numbers) -> tuple[float, float]:
    """The largest difference of finite 1-D arrays, absolute and relative to the largest magnitude expected."""
    error = scale = 0.0
    for _, block, other in _blocks(expected, actual):
        error = max(error, float(np.abs(block - other).max()))
        scale = max(scale, float(np.abs(block).max()))
    return error, error / scale if scale else (0.0 if error == 0 else float("inf"))


def largest_magnitude(array: Array) -> float:
    """The largest magnitude of the finite elements; 0 if there are none."""
    flat, largest = np.ravel(array), 0.0
    for part in parts(array.size):
        sizes = np.abs(flat[part].astype(np.float64))
        largest = max(largest, float(sizes.max(initial=0.0, where=np.isfinite(sizes))))
    return largest


def steps_off(expected: Array, actual: Array) -> tuple[int, int]:
    """The largest difference of two integer arrays of the same shape, and the sum of all differences."""
    flat, other = np.ravel(expected), np.ravel(actual)
    largest = total = 0
    for part in parts(flat.size):
        off = np.abs(flat[part].astype(np.int64) - other[part].astype(np.int64))
        largest, total = max(largest, int(off.max())), total + int(off.sum())
    return largest, total


def deviation(array: Numbers) -> float:
    """The standard deviation of a non-empty 1-D array."""
    if array.dtype.kind == "c":
        return math.hypot(deviation(array.real), deviation(array.imag))
    mean = _sum(array.size, lambda part: array[part].astype(np.float64)) / array.size
    return math.sqrt(_sum(array.size, lambda part: np.square(array[part].astype(np.float64) - mean)) / array.size)


def _sum(size: int, terms: Callable[[slice], Numbers], start: int = 0) -> float:
    """numpy's sum of contiguous elements: it halves them at multiples of 8 (pairwise summation)."""
    if size <= BLOCK:
        return float(np.add.reduce(terms(slice(start, start + size))))
    first = size // 2 // 8 * 8
    return _sum(first, terms, start) + _sum(size - first, terms, start + first)


def _blocks(expected: Numbers, actual: Numbers) -> Iterator[tuple[slice, Numbers, Numbers]]:
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    for part in parts(expected.size):
        yield part, expected[part].astype(wide), actual[part].astype(wide)


def parts(size: int) -> Iterator[slice]:
    """The blocks of a 1-D array."""
    return (slice(start, start + BLOCK) for start in range(0, size, BLOCK))
