"""Shows that a compiled model computes what the original computes: ONNX Runtime runs both on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from pimflow.codegen.backend import Backend
from pimflow.ir import Array, Graph
from pimflow.onnxio.npz import read_npz
from pimflow.runtime.execute.arena import run_in_arena
from pimflow.runtime.execute.original import run_original
from pimflow.runtime.execute.ort import check_inputs, random_inputs, run_graph
from pimflow.runtime.execute.unit_nodes import UnitExecutor
from pimflow.runtime.memory import MemoryPlan, plan_memory

DEFAULT_RTOL = 1e-4
"""Bound on the largest error over the largest magnitude of an output, where ONNX Runtime runs both models."""


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

    def text(self) -> str:
        """The same as lines of text, as `pimflow verify` prints them."""
        lines = [
            f"{'ok  ' if check.passed else 'FAIL'}  {check.name}: largest error {check.max_abs_err:.3g} "
            f"({check.max_rel_err:.3g} of the largest magnitude), standard deviation {check.std:.3g}"
            + (f": {check.problem}" if check.problem else "")
            for check in self.outputs
        ]
        lines += [f"note  {note}" for note in self.notes]
        verdict = "passed" if self.passed else "FAILED"
        return "\n".join(
            [*lines, f"{verdict}: {len(self.outputs)} outputs of {self.nodes_checked} nodes at rtol {self.rtol:g}"]
        )


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def compare_outputs(expected: Mapping[str, Any], actual: Mapping[str, Any], rtol: float) -> tuple[OutputCheck, ...]:
    """Checks every expected output against the actual one.

    NaN and infinities must be in the same places. Outputs that are not floating-point numbers must be equal.
    """
    return tuple(_compare(name, expected[name], actual.get(name), rtol) for name in expected)


def _compare(name: str, expected: Any, actual: Any, rtol: float) -> OutputCheck:
    infinite = float("inf")
    if isinstance(expected, list) and isinstance(actual, list) and len(actual) == len(expected):
        return _compare_sequence(name, expected, actual, rtol)
    if not isinstance(expected, np.ndarray):
        same = type(actual) is type(expected) and not isinstance(expected, list) and bool(actual == expected)
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


def _compare_sequence(name: str, expected: list[Any], actual: list[Any], rtol: float) -> OutputCheck:
    checks = [_compare(f"{name}[{i}]", *pair, rtol) for i, pair in enumerate(zip(expected, actual, strict=True))]
    return OutputCheck(
        name,
        max((check.max_abs_err for check in checks), default=0.0),
        max((check.max_rel_err for check in checks), default=0.0),
        max((check.std for check in checks), default=0.0),
        all(check.passed for check in checks),
        next((f"{check.name}: {check.problem}" for check in checks if not check.passed), ""),
    )


def _compare_numbers(name: str, expected: Array, actual: Array, rtol: float) -> OutputCheck:
    wide = expected.astype(np.complex128 if expected.dtype.kind == "c" else np.float64)
    other = actual.astype(wide.dtype)
    finite = np.isfinite(wide)
    if not (
        np.array_equal(finite, np.isfinite(other)) and np.array_equal(wide[~finite], other[~finite], equal_nan=True)
    ):
        return OutputCheck(name, float("inf"), float("inf"), 0.0, False, "NaN or infinity in other places")
    if not finite.any():
        return OutputCheck(name, 0.0, 0.0, 0.0, True)
    error = float(np.abs(wide[finite] - other[finite]).max())
    scale = float(np.abs(wide[finite]).max())
    relative = error / scale if scale else (0.0 if error == 0 else float("inf"))
    limit = rtol if expected.dtype.kind in "fcV" else 0.0
    passed = relative <= limit
    return OutputCheck(name, error, relative, float(np.std(wide[finite])), passed, "" if passed else "values differ")


def verify_compiled(
    original: str | bytes | onnx.ModelProto,
    graph: Graph,
    *,
    inputs: str | Path | Mapping[str, Array] | None,
    seed: int,
    rtol: float | None,
    programs: Mapping[str, Any] | None,
    units: Mapping[str, Backend[Any, Any]],
    operand: str | None,
    memory: MemoryPlan | None,
    progress: Callable[[str], None],
) -> Verification:
    """Runs the original model and the rewritten graph on the same inputs and compares all outputs.

    Args:
        original: the model that was compiled, as ONNX Runtime reads it.
        graph: the rewritten graph.
        inputs: arrays by input name, or an npz file of them; None for random ones from `seed`.
        seed: of random inputs.
        rtol: largest error over the largest magnitude of an output; None for the operands' own.
        programs: what the units execute, by node, to be executed by value; None lets ONNX Runtime run their nodes.
        units: backends by device.
        operand: the element type that `programs` multiply; None for the units' own.
        memory: run inside this arena; None lets ONNX Runtime place the values.
        progress: receives a line of text now and then.

    Raises:
        InputDataError: the inputs do not fit the model.
        ModelError: ONNX Runtime refuses a model.
    """
    feeds = _feeds(graph, inputs, seed)
    limit = _own_rtol(graph, programs, units, operand) if rtol is None else rtol
    progress("running the original model")
    expected = run_original(original, feeds)
    progress("running the compiled model")
    actual = _run_compiled(graph, feeds, programs, units, operand, memory, progress)
    checks = compare_outputs(expected, actual, limit)
    return Verification(
        passed=all(check.passed for check in checks),
        outputs=checks,
        nodes_checked=len(graph.nodes),
        rtol=limit,
        notes=_notes(original, graph, expected, inputs, seed),
    )


def _own_rtol(
    graph: Graph, programs: Mapping[str, Any] | None, units: Mapping[str, Backend[Any, Any]], operand: str | None
) -> float:
    """What the arithmetic justifies: ONNX Runtime's, or that of the units whose programs are executed."""
    if programs is None:
        return DEFAULT_RTOL
    used = {node.device for node in graph.nodes}
    return max(
        (unit.tolerance(operand or unit.operand) for device, unit in units.items() if device in used),
        default=DEFAULT_RTOL,
    )


def _feeds(graph: Graph, inputs: str | Path | Mapping[str, Array] | None, seed: int) -> dict[str, Array]:
    if inputs is None:
        return random_inputs(graph, seed)
    arrays = read_npz(inputs) if isinstance(inputs, (str, Path)) else inputs
    check_inputs(graph, arrays)
    return {name: np.asarray(arrays[name]) for name in graph.inputs}


def _run_compiled(
    graph: Graph,
    feeds: Mapping[str, Array],
    programs: Mapping[str, Any] | None,
    units: Mapping[str, Backend[Any, Any]],
    operand: str | None,
    memory: MemoryPlan | None,
    progress: Callable[[str], None],
) -> dict[str, Array]:
    if programs is None and memory is None:
        return run_graph(graph, feeds)
    executor = None if programs is None else UnitExecutor(graph, programs, units, operand, progress)
    return run_in_arena(graph, memory or plan_memory(graph), feeds, unit_execute=executor).outputs


def _notes(
    original: str | bytes | onnx.ModelProto, graph: Graph, expected: Mapping[str, Any], inputs: object, seed: int
) -> tuple[str, ...]:
    """What makes a pass say little: outputs that do not depend on the input."""
    if inputs is not None or not graph.inputs:
        return ()
    other = run_original(original, random_inputs(graph, seed + 1))
    still = [check.name for check in compare_outputs(expected, other, 0.0) if check.passed]
    if not still:
        return ()
    return (f"output {', '.join(still)} is the same for two different inputs: equality there shows little",)
