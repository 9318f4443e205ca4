"""Bounds follow what was measured: of several runs the one furthest off, and never most of what other inputs change."""

from __future__ import annotations

import numpy as np
import pytest

from pimflow.ir import Array, Builder
from pimflow.verify.evidence import Evidence

EXACT = np.linspace(-1, 1, 5, dtype=np.float32)


def off(share: float) -> dict[str, Array]:
    return {"y": EXACT + np.float32(share)}


def evidence(*runs: float) -> Evidence:
    build = Builder()
    build.input(5, name="x")
    found = Evidence(b"", build.graph("x"), {}, {}, {"y": EXACT})
    found.ways["fp16 operands"] = tuple(off(run) for run in runs)
    found.of_machine.add("fp16 operands")
    return found


@pytest.mark.parametrize(
    ("runs", "error", "passes"),
    [
        ((4e-5,), 1.2e-4, False),
        ((4e-5, 1.5e-4), 1.2e-4, True),
        ((1.5e-4, 4e-5), 1.2e-4, True),
        ((4e-5, 1.5e-4), 3.1e-4, False),
    ],
)
def test_of_several_runs_the_furthest_off_counts(runs: tuple[float, ...], error: float, passes: bool) -> None:
    (check,) = evidence(*runs).checks(off(error), {"y": 0.1})
    assert check.passed == passes


def test_a_bound_is_no_more_than_half_of_what_other_inputs_change() -> None:
    (check,) = evidence(0.03).checks(off(0.02), {"y": 0.1})
    assert check.passed
    (check,) = evidence(0.03).checks(off(0.02), {"y": 0.03})
    assert not check.passed
