"""The values that graphs compute, by ONNX Runtime: the oracle of every rewrite."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pimflow.ir import Array, Graph
from pimflow.runtime.execute.ort import OrtRunner, random_inputs


def run_in_ort(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Run the graph as written: ONNX Runtime's own rewrites are not always exact, and fail on some valid graphs."""
    return OrtRunner(graph, threads=1, optimise=False).run(inputs)


def relative_error(actual: Array, expected: Array) -> float:
    """The largest difference over the largest expected magnitude; inf if there is a NaN."""
    assert actual.shape == expected.shape
    difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max(initial=0.0)
    error = float(difference) / max(float(np.abs(expected).max(initial=0.0)), 1e-6)
    return math.inf if math.isnan(error) else error


def assert_varies(array: Array, name: str = "the output") -> None:
    """Assert that a result varies: one that hardly does would equal many wrong ones."""
    assert array.std() > 1e-3 * np.abs(array).max() > 0, f"{name} hardly varies"


def assert_close(actual: Array, expected: Array, rtol: float = 1e-5, name: str = "the output") -> None:
    """Assert that `actual` is within `rtol` of the largest magnitude of `expected`, which varies unless it is small."""
    if expected.size >= 8:
        assert_varies(expected, name)
    error = relative_error(actual, expected)
    assert error <= rtol, f"{name}: relative error {error:.2e}"


def assert_same_values(before: Graph, after: Graph, rtol: float = 1e-5, seed: int = 0) -> None:
    """Assert that both graphs compute the same outputs from random inputs."""
    inputs = random_inputs(before, seed)
    expected, actual = run_in_ort(before, inputs), run_in_ort(after, inputs)
    assert expected.keys() == actual.keys()
    for name, array in expected.items():
        assert_close(actual[name], array, rtol, name)
