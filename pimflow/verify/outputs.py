"""How far the outputs of two runs are apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pimflow.ir import Array
from pimflow.records import dataclass
from pimflow.verify.blocks import deviation, finite_pair, largest_error

DEFAULT_RTOL = 1e-4
"""Bound on the largest error relative to the largest magnitude of an output, if both are in single precision."""


@dataclass(frozen=True)
class OutputCheck:
    """How far one output of the compiled model is from the original's.

    `max_rel_err` is `max_abs_err` relative to the largest magnitude of the original's output, and `rtol` its bound.
    """

    name: str
    max_abs_err: float
    max_rel_err: float
    std: float
    passed: bool
    problem: str = ""
    rtol: float = 0.0


def compare_outputs(
    expected: Mapping[str, Any], actual: Mapping[str, Any], rtol: float, measured: Mapping[str, float] | None = None
) -> tuple[OutputCheck, ...]:
    """Checks every expected output against the actual one.

    NaN and infinities must be in the same places. Outputs that are not floating-point numbers must be equal.

    Args:
        expected, actual: outputs by name.
        rtol: bound on the largest error relative to the largest magnitude.
        measured: bounds for some outputs, of any type, instead of `rtol`.
    """
    bounds = measured or {}
    return tuple(_compare(name, expected[name], actual.get(name), rtol, bounds.get(name)) for name in expected)


def _compare(name: str, expected: Any, actual: Any, rtol: float, measured: float | None) -> OutputCheck:
    check = _check(name, expected, actual, rtol if measured is None else measured, measured is not None)
    return replace(check, rtol=rtol if measured is None else measured)


def _check(name: str, expected: Any, actual: Any, rtol: float, measured: bool) -> OutputCheck:
    infinite = float("inf")
    if isinstance(expected, list) and isinstance(actual, list) and len(actual) == len(expected):
        return _compare_sequence(name, expected, actual, rtol, measured)
    if isinstance(expected, dict) and isinstance(actual, dict) and expected.keys() == actual.keys():
        wanted, found = (np.array([entries[key] for key in expected]) for entries in (expected, actual))
        return _check(name, wanted, found, rtol, measured)
    if not isinstance(expected, np.ndarray):
        same = type(actual) is type(expected) and not isinstance(expected, list) and bool(actual == expected)
        return OutputCheck(name, 0.0, 0.0, 0.0, same, "" if same else "values differ")
    if actual is None:
        return OutputCheck(name, infinite, infinite, 0.0, False, "the compiled model has no such output")
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        problem = f"is {actual.dtype}{list(actual.shape)}, not {expected.dtype}{list(expected.shape)}"
        return OutputCheck(name, infinite, infinite, 0.0, False, problem)
    if expected.dtype.kind in "OSUb":
        share = float(np.mean(expected != actual)) if expected.size else 0.0
        passed = share <= (rtol if measured else 0.0)
        return OutputCheck(name, float(share > 0), share, 0.0, passed, "" if passed else "values differ")
    exact = expected.dtype.kind not in "fcV" and not measured
    return _compare_numbers(name, expected, actual, 0.0 if exact else rtol)


def _compare_sequence(name: str, expected: list[Any], actual: list[Any], rtol: float, measured: bool) -> OutputCheck:
    pairs = enumerate(zip(expected, actual, strict=True))
    checks = [_check(f"{name}[{i}]", *pair, rtol, measured) for i, pair in pairs]
    return OutputCheck(
        name,
        max((check.max_abs_err for check in checks), default=0.0),
        max((check.max_rel_err for check in checks), default=0.0),
        max((check.std for check in checks), default=0.0),
        all(check.passed for check in checks),
        next((f"{check.name}: {check.problem}" for check in checks if not check.passed), ""),
    )


def _compare_numbers(name: str, expected: Array, actual: Array, rtol: float) -> OutputCheck:
    finite = finite_pair(expected, actual)
    if finite is None:
        return OutputCheck(name, float("inf"), float("inf"), 0.0, False, "NaN or infinity in other places")
    if not finite[0].size:
        return OutputCheck(name, 0.0, 0.0, 0.0, True)
    error, relative = largest_error(*finite)
    passed = relative <= rtol
    return OutputCheck(name, error, relative, deviation(finite[0]), passed, "" if passed else "values differ")
