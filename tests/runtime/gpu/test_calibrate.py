"""Calibration recovers known parameters from synthetic tables, and reports its accuracy honestly."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from pimflow.errors import InputDataError, OptionError
from pimflow.ir import Conv2d, Elementwise, Gemm, Op, Reshape, window_out
from pimflow.runtime.gpu.calibrate import Calibration, ClassError, calibrate_target
from pimflow.runtime.gpu.cost import gpu_cost
from pimflow.runtime.gpu.measured import MeasuredRow, table_text
from pimflow.runtime.gpu.simulated_form import PARAMETERS
from pimflow.targets import Target, load_target, parse_target, to_toml

START = load_target("pimflow")
TRUE = START.with_units(
    gpu=replace(
        START.gpu,
        launch_cycles=2600,
        step_cycles=900.0,
        fill_cycles=2500.0,
        matrix_efficiency=0.62,
        depthwise_macs_per_sm_cycle=9.0,
        memory_efficiency=0.55,
    ),
)


Kernel = tuple[Op, tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]


def conv(channels: int, out: int, size: int, kernel: int = 1, groups: int = 1) -> Kernel:
    pad = kernel // 2
    side = window_out(size, kernel, 1, pad, pad, 1)
    op = Conv2d((kernel, kernel), (1, 1), (pad,) * 4, groups=groups)
    return op, ((1, channels, size, size), (out, channels // groups, kernel, kernel)), ((1, out, side, side),)


def kernels() -> list[Kernel]:
    found = [conv(c, o, s) for c, o, s in ((16, 96, 112), (24, 144, 56), (96, 24, 56), (192, 32, 28), (960, 160, 7))]
    found += [conv(c, c, s, 3) for c, s in ((64, 56), (128, 28), (256, 14), (512, 14), (64, 224))]
    found += [conv(c, c, s, 3, groups=c) for c, s in ((32, 112), (144, 56), (384, 14), (960, 7))]
    found += [conv(64, 64, 28, 3, groups=4)]
    found += [(Elementwise("Relu"), ((1, 64, s, s),), ((1, 64, s, s),)) for s in (7, 28, 112, 448)]
    found += [(Gemm(trans_b=True), ((1, k), (n, k)), ((1, n),)) for k, n in ((1280, 1000), (25088, 4096))]
    return found


def synthetic(target: Target, noise: float, seed: int = 0) -> list[MeasuredRow]:
    rng = random.Random(seed)
    rows = []
    for op, inputs, outputs in kernels():
        row = MeasuredRow(op, inputs, outputs, "float16", 1.0)
        time = gpu_cost(op, *row.values(), target.gpu, target.gpu.memory_channels).time_us
        rows.append(replace(row, time_us=time * math.exp(rng.gauss(0, noise))))
    return rows


def fitted(name: str, calibration: Calibration) -> float:
    return {key: after for key, _, after in calibration.parameters}[name]


def typical(error: ClassError) -> tuple[float, float]:
    """The typical errors of the fit, and on held-out rows."""
    assert error.fitted is not None
    assert error.held_out is not None
    return error.fitted.typical, error.held_out.typical


def test_recovers_the_parameters_of_a_table_made_with_noise() -> None:
    result = calibrate_target(START, synthetic(TRUE, noise=0.02), folds=3)
    for name in ("launch_cycles", "matrix_efficiency", "depthwise_macs_per_sm_cycle", "memory_efficiency"):
        assert fitted(name, result) == pytest.approx(getattr(TRUE.gpu, name), rel=0.12), name
    whole = result.errors[-1]
    assert whole.name == "all"
    assert whole.rows == len(kernels())
    assert whole.before.typical > 0.25
    seen, unseen = typical(whole)
    assert seen < 0.03
    assert seen <= unseen < 0.12


def test_a_perfect_start_stays_perfect() -> None:
    result = calibrate_target(TRUE, synthetic(TRUE, noise=0.0), folds=2)
    basis = f"calibrated on {len(kernels())} measured kernels"
    assert result.target.units == TRUE.with_units(gpu=replace(TRUE.gpu, basis=basis)).units
    assert (result.target.name, result.target.description) == ("pimflow-calibrated", f"pimflow, its GPU {basis}")
    assert typical(result.errors[-1])[1] == pytest.approx(0.0, abs=1e-9)


def test_held_out_rows_are_not_seen_by_their_own_fit() -> None:
    """There is only one depthwise kernel: the fold without it cannot fit its rate."""
    rows = [row for row in synthetic(TRUE, noise=0.0) if not (isinstance(row.op, Conv2d) and row.op.groups > 4)]
    lone = synthetic(TRUE, noise=0.0)[10]
    assert isinstance(lone.op, Conv2d)
    assert lone.op.groups > 4
    result = calibrate_target(
        TRUE.with_units(gpu=replace(TRUE.gpu, depthwise_macs_per_sm_cycle=1.0)), [*rows, lone], folds=2
    )
    depthwise = next(error for error in result.errors if error.name == "Conv depthwise")
    seen, unseen = typical(depthwise)
    assert seen < 0.02
    assert unseen > 0.5


def test_parameters_without_rows_stay_unchanged() -> None:
    rows = [row for row in synthetic(TRUE, noise=0.0) if isinstance(row.op, Elementwise)]
    result = calibrate_target(START, rows, folds=2)
    for name in ("step_cycles", "matrix_efficiency", "depthwise_macs_per_sm_cycle"):
        assert fitted(name, result) == getattr(START.gpu, name)
    assert fitted("memory_efficiency", result) != START.gpu.memory_efficiency


def test_errors_come_per_class_and_views_are_left_out() -> None:
    view = MeasuredRow(Reshape((4,)), ((2, 2),), ((4,),), "float16", 5.0)
    result = calibrate_target(START, [*synthetic(TRUE, noise=0.0), view], folds=2)
    names = [error.name for error in result.errors]
    assert names == ["Conv 1x1", "Conv depthwise", "Conv grouped", "Conv kxk", "Gemm", "Relu", "all"]
    assert sum(error.rows for error in result.errors[:-1]) == result.errors[-1].rows == len(kernels())


def test_from_a_file_to_a_target_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(table_text(synthetic(TRUE, noise=0.01)))
    result = calibrate_target(START, tmp_path / "t.csv", folds=2)
    assert parse_target(to_toml(result.target), "fitted.toml") == result.target
    assert set(json.loads(json.dumps(result.as_json()))["parameters"]) == set(PARAMETERS)
    assert "Conv depthwise" in result.text()
    assert all(name in result.text() for name in PARAMETERS)


def test_too_few_rows_or_folds() -> None:
    rows = synthetic(TRUE, noise=0.0)
    with pytest.raises(InputDataError, match="1 distinct kernels cannot be cut into 2 folds"):
        calibrate_target(START, rows[:1] * 5, folds=2)
    with pytest.raises(OptionError, match="nothing to validate on"):
        calibrate_target(START, rows, folds=1)
