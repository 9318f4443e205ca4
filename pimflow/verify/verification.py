"""The result of a comparison: what was compared and the errors, also as text and as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from pimflow.errors import counted, one_line
from pimflow.records import dataclass
from pimflow.verify.outputs import OutputCheck
from pimflow.verify.values import PartsCheck


@dataclass(frozen=True)
class How:
    """The inputs of a comparison, and how the compiled model ran.

    Args:
        seed: of the random inputs; None if inputs were given.
        programs: whether units' programs were executed by value.
        operand: the element type of their operands, if one was requested.
        arena: whether values were in the planned arena.
    """

    seed: int | None
    programs: bool = False
    operand: str | None = None
    arena: bool = False

    @property
    def text(self) -> str:
        """The settings as a clause."""
        by_value = f"what units execute by value{f', in {self.operand}' if self.operand else ''}"
        means = [*([by_value] if self.programs else []), *(["inside the arena"] if self.arena else [])]
        inputs = "on given inputs" if self.seed is None else f"on random inputs (seed {self.seed})"
        return ", ".join([*means, inputs])


@dataclass(frozen=True, repr=False)
class Verification:
    """The result of a comparison. `nodes_checked` nodes of the compiled model ran and feed the compared outputs.

    `rtol` is the widest bound of all outputs. The other results are present if they apply: `values` if the model rounds
    (its values one by one, in single precision), `programs` if units' programs were executed (each against its own
    node, on the same operands), `in_flight` if several inferences were in flight (each against the original, on its own
    inputs).
    """

    passed: bool
    outputs: tuple[OutputCheck, ...]
    nodes_checked: int
    rtol: float
    how: How
    notes: tuple[str, ...] = ()
    values: PartsCheck | None = None
    programs: PartsCheck | None = None
    in_flight: PartsCheck | None = None

    @property
    def max_abs_err(self) -> float:
        """The largest absolute error of all outputs."""
        return max((check.max_abs_err for check in self.outputs), default=0.0)

    @property
    def max_rel_err(self) -> float:
        """The largest error of all outputs, relative to the largest magnitude of the output."""
        return max((check.max_rel_err for check in self.outputs), default=0.0)

    @property
    def output_std(self) -> float:
        """The smallest standard deviation of an original output; near 0, the comparison shows little."""
        return min((check.std for check in self.outputs), default=0.0)

    def __repr__(self) -> str:
        return one_line("Verification", f"{'passed' if self.passed else 'FAILED'}: {self.clause}")

    def as_json(self) -> dict[str, Any]:
        """The document that `pimflow verify --json` prints. Values that are not finite become null."""
        return {
            "passed": self.passed,
            "max_abs_err": _finite(self.max_abs_err),
            "max_rel_err": _finite(self.max_rel_err),
            "output_std": _finite(self.output_std),
            "nodes_checked": self.nodes_checked,
            "rtol": self.rtol,
            "how": vars(self.how),
            "outputs": [
                {
                    "name": check.name,
                    "max_abs_err": _finite(check.max_abs_err),
                    "max_rel_err": _finite(check.max_rel_err),
                    "std": _finite(check.std),
                    "rtol": check.rtol,
                    "passed": check.passed,
                    "problem": check.problem,
                }
                for check in self.outputs
            ],
            "values": _parts_json(self.values),
            "programs": _parts_json(self.programs),
            "in_flight": _parts_json(self.in_flight),
            "notes": list(self.notes),
        }

    @property
    def clause(self) -> str:
        """The error of the outputs, how the model ran, and on which inputs."""
        wrong = [check for check in self.outputs if not check.passed]
        off = f"{len(wrong)} of {self._count} off, the largest" if wrong else f"{self._count}, largest"
        return f"{off} relative error {self.max_rel_err:.1e} of {self.rtol:.1e} allowed; {self.how.text}"

    def records(self) -> list[dict[str, Any]]:
        """One row of plain values per output: `pandas.DataFrame(verification.records())` makes a table of them."""
        rows: list[dict[str, Any]] = self.as_json()["outputs"]
        return rows

    def text(self) -> str:
        """The result as lines of text, as `pimflow verify` prints them."""
        lines = [
            f"{'ok  ' if check.passed else 'FAIL'}  {check.name}: largest error {check.max_abs_err:.3g} "
            f"({check.max_rel_err:.3g} of the largest magnitude), standard deviation {check.std:.3g}"
            + (f": {check.problem}" if check.problem else "")
            for check in self.outputs
        ]
        lines += _parts_text(self.values, "value", "values were compared one by one, in single precision")
        lines += _parts_text(self.programs, "program of", "programs were compared with their nodes, on equal operands")
        lines += _parts_text(self.in_flight, "output", "inferences ran in flight, each on its own inputs")
        lines += [f"note  {note}" for note in self.notes]
        verdict = "passed" if self.passed else "FAILED"
        checked = counted(self.nodes_checked, "node")
        return "\n".join([*lines, f"{verdict}: {self._count} of {checked} at rtol {self.rtol:.3g}"])

    @property
    def _count(self) -> str:
        return counted(len(self.outputs), "output")


def _parts_json(parts: PartsCheck | None) -> dict[str, Any] | None:
    if parts is None:
        return None
    wrong = {name: _finite(error) for name, error in parts.wrong.items()}
    return {"checked": parts.checked, "largest_error": _finite(parts.largest_error), "wrong": wrong}


def _parts_text(parts: PartsCheck | None, noun: str, how: str) -> list[str]:
    if parts is None:
        return []
    wrong = [f"FAIL  {noun} {name}: off by {error:.3g} of its largest magnitude" for name, error in parts.wrong.items()]
    return [*wrong, f"note  {parts.checked} {how}: largest error {parts.largest_error:.2g}"]


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
