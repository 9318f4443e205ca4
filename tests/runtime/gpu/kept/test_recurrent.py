"""LSTM, GRU and RNN: an input product, and a product and a pointwise kernel per step."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import pimflow
from pimflow.runtime.gpu.work import MatrixWork, StreamWork
from support.opaque_models import kernels_of, normal, opaque_model, work_of

STEPS, BATCH, INPUT, HIDDEN = 50, 2, 32, 64


def model(op_type: str, gates: int, directions: int = 1, **attributes: Any) -> onnx.ModelProto:
    constants = {"w": normal(directions, gates * HIDDEN, INPUT), "r": normal(directions, gates * HIDDEN, HIDDEN)}
    direction = "bidirectional" if directions == 2 else "forward"
    return opaque_model(
        op_type, {"x": (STEPS, BATCH, INPUT)}, constants, hidden_size=HIDDEN, direction=direction, **attributes
    )


@pytest.mark.parametrize(("op_type", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("directions", [1, 2])
def test_multiply_accumulates_are_those_of_all_gates_in_all_steps(op_type: str, gates: int, directions: int) -> None:
    macs = work_of(model(op_type, gates, directions)).macs
    assert macs == directions * STEPS * BATCH * gates * HIDDEN * (INPUT + HIDDEN)


def test_every_step_of_every_direction_has_kernels_of_its_own() -> None:
    entering, *steps = kernels_of(model("LSTM", 4))
    assert entering == MatrixWork(
        STEPS * BATCH,
        4 * HIDDEN,
        INPUT,
        1,
        2 * (STEPS * BATCH * INPUT + 4 * HIDDEN * INPUT + STEPS * BATCH * 4 * HIDDEN),
    )
    assert [type(kernel) for kernel in steps] == [MatrixWork] * STEPS + [StreamWork] * STEPS
    assert len(kernels_of(model("LSTM", 4, directions=2))) == 2 * len([entering, *steps])


def test_a_gru_that_resets_its_state_first_needs_two_products_a_step() -> None:
    before, after = (kernels_of(model("GRU", 3, linear_before_reset=reset)) for reset in (0, 1))
    assert (len(before), len(after)) == (1 + 4 * STEPS, 1 + 2 * STEPS)
    assert sum(kernel.macs for kernel in before) == sum(kernel.macs for kernel in after)


def test_the_launches_of_all_steps_are_paid() -> None:
    report = pimflow.compile(model("LSTM", 4, directions=2), use_cache=False).report
    launch_us = 5000 / 1365
    assert report.baseline.spent.busy_parts_us["gpu"]["launch"] == pytest.approx((2 + 4 * STEPS) * launch_us)


def test_data_dependent_lengths_are_reported() -> None:
    constants = {
        "w": normal(1, 4 * HIDDEN, INPUT),
        "r": normal(1, 4 * HIDDEN, HIDDEN),
        "lengths": np.full(BATCH, STEPS, np.int32),
    }
    order = ["x", "w", "r", "", "lengths"]
    timed = opaque_model("LSTM", {"x": (STEPS, BATCH, INPUT)}, constants, order, hidden_size=HIDDEN)
    assert work_of(timed).unknown == "its sequence lengths depend on data: all steps are counted"
    assert work_of(model("LSTM", 4)).unknown == ""


@pytest.mark.parametrize(("op_type", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_values_match_the_model(op_type: str, gates: int) -> None:
    assert pimflow.compile(model(op_type, gates, 2), use_cache=False).verify().passed
