"""Shows that a compiled model computes what the original computes: ONNX Runtime runs both on the same inputs."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pimflow.errors import InputDataError
from pimflow.ir import Array, Graph, Value

DEFAULT_RTOL = 1e-4


@dataclass(frozen=True)
class OutputCheck:
    """How far one output of the compiled model is from the original's.

    `max_rel_err` is `max_abs_err` over the largest magnitude of the original's output.
    """

    name: str
    max_abs_err: float
    max_rel_err: float
    std: float
    passed: bool
    problem: str = ""


@dataclass(frozen=True)
class Verification:
    """The result of a comparison. `nodes_checked` nodes of the compiled model ran and feed the outputs compared."""

    passed: bool
    outputs: tuple[OutputCheck, ...]
    nodes_checked: int
    rtol: float
    notes: tuple[str, ...] = ()

    @property
    def max_abs_err(self) -> float:
        """Over all outputs."""
        return max((check.max_abs_err for check in self.outputs), default=0.0)

    @property
    def max_rel_err(self) -> float:
        """Over all outputs."""
        return max((check.max_rel_err for check in self.outputs), default=0.0)

    @property
    def output_std(self) -> float:
        """The smallest standard deviation of an original output: near 0 means that the comparison shows little."""
        return min((check.std for check in self.outputs), default=0.0)

    def as_json(self) -> dict[str, Any]:
        """The document that `pimflow verify --json` prints. What is not finite becomes null."""
        return {
            "passed": self.passed,
            "max_abs_err": _finite(self.max_abs_err),
            "max_rel_err": _finite(self.max_rel_err),
            "output_std": _finite(self.output_std),
            "nodes_checked": self.nodes_checked,
            "rtol": self.rtol,
            "outputs": [
                {
                    "name": check.name,
                    "max_abs_err": _finite(check.max_abs_err),
                    "max_rel_err": _finite(check.max_rel_err),
                    "std": _finite(check.std),
                    "passed": check.passed,
                    "problem": check.problem,
                }
                for check in self.outputs
            ],
            "notes": list(self.notes),
        }


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def compare_outputs(expected: Mapping[str, Array], actual: Mapping[str, Array], rtol: float) -> tuple[OutputCheck, ...]:
    """Checks every expected output against the actual one.

    NaN and infinities must stand in the same places. Outputs that are no floating-point numbers must be equal.
    """
    return tuple(_compare(name, expected[name], actual.get(name), rtol) for name in expected)


def _compare(name: str, expected: Array, actual: Array | None, rtol: float) -> OutputCheck:
    infinite = float("inf")
    if not isinstance(expected, np.ndarray):
        same = repr(expected) == repr(actual)
        return OutputCheck(name, 0.0, 0.0, 0.0, same, "" if same else "values differ")
    if actual is None:
        return OutputCheck(name, infinite, infinite, 0.0, False, "the compiled model has no such output")
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        problem = f"is {actual.dtype}{list(actual.shape)}, not {expected.dtype}{list(expected.shape)}"
        return OutputCheck(name, infinite, infinite, 0.0, False, problem)
    if expected.dtype.kind in "OSUb":
        same = bool(np.array_equal(expected, actual))
        return OutputCheck(name, 0.0 if same else 1.0, 0.0 if same else 1.0, 0.0, same, "" if same else "values differ")
    return _compare_numbers(name, expected, actual, rtol)


def _compare_numbers(name: str, expected: Array, actual: Array, rtol: float) -> OutputCheck:
    wide = expected.astype(np.complex128 if expected.dtype.kind == "c" else np.float64)
    other = actual.astype(wide.dtype)
    finite = np.isfinite(wide)
    if not (
        np.array_equal(finite, np.isfinite(other)) and np.array_equal(wide[~finite], other[~finite], equal_nan=True)
    ):
        return OutputCheck(name, float("inf"), float("inf"), 0.0, False, "NaN or infinity stand in other places")
    if not finite.any():
        return OutputCheck(name, 0.0, 0.0, 0.0, True)
    error = float(np.abs(wide[finite] - other[finite]).max())
    scale = float(np.abs(wide[finite]).max())
    relative = error / scale if scale else (0.0 if error == 0 else float("inf"))
    limit = rtol if expected.dtype.kind in "fcV" else 0.0
    passed = relative <= limit
    return OutputCheck(name, error, relative, float(np.std(wide[finite])), passed, "" if passed else "values differ")


def read_inputs(path: str | Path, graph: Graph) -> dict[str, Array]:
    """Inputs from an npz file keyed by the model's input names.

    Raises:
        InputDataError: not an npz file, or its arrays do not fit the model's inputs.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            if not hasattr(file, "files"):
                raise InputDataError(f"{path} holds one bare array", "save the inputs by name with numpy.savez")
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputDataError(f"{path} cannot be read as an npz file: {error}", "make it with numpy.savez") from None
    return check_inputs(arrays, graph)


def check_inputs(arrays: Mapping[str, Array], graph: Graph) -> dict[str, Array]:
    """The arrays, if they are what the graph's inputs ask for.

    Raises:
        InputDataError: names what is missing, unknown, or of another shape or element type.
    """
    wanted = ", ".join(_describe(graph.value(name)) for name in graph.inputs)
    for name in arrays:
        if name not in graph.inputs:
            raise InputDataError(f"the model has no input {name!r}", f"its inputs are {wanted}")
    for name in graph.inputs:
        if name not in arrays:
            raise InputDataError(f"input {name!r} is missing", f"the model's inputs are {wanted}")
        value, array = graph.value(name), np.asarray(arrays[name])
        if value.shape is not None and array.shape != value.shape:
            raise InputDataError(f"input {name!r} has shape {list(array.shape)}", f"the model wants {_describe(value)}")
        if value.dtype and array.dtype.name != value.dtype:
            raise InputDataError(f"input {name!r} is {array.dtype.name}", f"the model wants {_describe(value)}")
    return {name: np.asarray(arrays[name]) for name in graph.inputs}


def _describe(value: Value) -> str:
    return f"{value.name}: {value.dtype}{list(value.shape) if value.shape is not None else ''}"
