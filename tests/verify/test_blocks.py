"""Computations block by block: numpy's results over whole arrays are the oracle."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from pimflow.ir import Array
from pimflow.verify import blocks
from pimflow.verify.blocks import BLOCK, deviation, finite_pair, largest_error, largest_magnitude, steps_off
from pimflow.verify.outputs import compare_outputs

DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int64", "complex64", ml_dtypes.bfloat16)


def numbers(size: int, dtype: str, seed: int = 0) -> Array:
    random = np.random.default_rng(seed)
    real = 20 * random.standard_normal(size)
    return (real + 1j * random.standard_normal(size) if dtype == "complex64" else real.clip(0)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 300, 3 * 300 + 7])
def test_blocks_match_whole_arrays(dtype: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 300)
    expected, actual = numbers(size, dtype), numbers(size, dtype, 1)
    wide = "complex128" if dtype == "complex64" else "float64"
    whole, other = expected.astype(wide), actual.astype(wide)
    error, magnitude = np.abs(whole - other).max(), np.abs(whole).max()
    assert largest_error(expected, actual) == (error, error / magnitude if magnitude else np.inf)
    assert deviation(expected) == pytest.approx(np.std(whole), rel=1e-13)
    if dtype != "complex64":
        assert largest_magnitude(expected) == magnitude
    if expected.dtype.kind in "iu":
        assert steps_off(expected, actual) == (error, np.abs(whole - other).sum())


def test_infinities_and_nan_have_their_places() -> None:
    expected = np.zeros(2 * BLOCK + 5, np.float32)
    expected[[3, BLOCK + 1]] = np.nan, -np.inf
    actual = expected.copy()
    actual[7] = 1
    pair = finite_pair(expected, actual)
    assert pair is not None
    assert [part.size for part in pair] == 2 * [expected.size - 2]
    assert largest_error(*pair) == (1.0, np.inf)
    for place, other in ((3, 0), (BLOCK + 1, np.inf), (2 * BLOCK, np.nan)):
        wrong = expected.copy()
        wrong[place] = other
        assert finite_pair(expected, wrong) is None, place


def test_a_large_output_is_not_widened_whole() -> None:
    expected = numbers(1 << 20, "float32")
    actual = expected + np.float32(1e-3)
    tracemalloc.start()
    (check,) = compare_outputs({"y": expected}, {"y": actual}, 1e-3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert check.passed
    assert peak < expected.nbytes
