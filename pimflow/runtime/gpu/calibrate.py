"""Fits a target's GPU parameters to measured kernel times, and says how far off the fit is per class of operation.

The loss is the mean squared logarithm of modelled over measured time: a kernel of 5 us counts as much as one of 500 us.
It is minimised by coordinate search over the logarithms of the parameters, with steps that shrink: the model's tile
choices and rooflines make the loss continuous but kinked, so gradients would mislead. Deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pimflow.errors import InputDataError, OptionError
from pimflow.ir import Conv2d
from pimflow.runtime.gpu.kernels import kernel_cycles
from pimflow.runtime.gpu.measured import MeasuredRow, read_table
from pimflow.runtime.gpu.work import DepthwiseWork, GpuWork, MatrixWork, gpu_work
from pimflow.targets import GpuSpec, Target

_UNBOUNDED = (1e-3, 1e9)
PARAMETERS: Mapping[str, tuple[float, float]] = {
    "launch_cycles": (0.0, 1e9),
    "step_cycles": (1.0, 1e9),
    "fill_cycles": (1.0, 1e9),
    "matrix_efficiency": (1e-3, 1.0),
    "depthwise_macs_per_sm_cycle": _UNBOUNDED,
    "memory_efficiency": (1e-3, 1.0),
    "l2_bytes_per_channel_cycle": _UNBOUNDED,
}
"""The fitted parameters with their bounds. Peaks (clocks, SMs, arithmetic, bandwidth) are the machine's, not fitted."""

_FIRST_STEP = math.log(2.0)
_LAST_STEP = math.log(1.01)


@dataclass(frozen=True)
class ClassError:
    """Typical relative error on one class of operation, as a factor minus one: exp(mean |log(model / measured)|) - 1.

    `before` is the target as it came, `fitted` the one fitted to all rows, `held_out` predicts each row by a fit that
    did not see it.
    """

    name: str
    rows: int
    before: float
    fitted: float
    held_out: float


@dataclass(frozen=True)
class Calibration:
    """A fitted target, its parameters as (name, before, after), and errors per class with "all" last."""

    target: Target
    parameters: tuple[tuple[str, float, float], ...]
    errors: tuple[ClassError, ...]
    folds: int

    def as_json(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "target": self.target.name,
            "folds": self.folds,
            "parameters": {name: {"before": before, "after": after} for name, before, after in self.parameters},
            "errors": {
                error.name: {
                    "rows": error.rows,
                    "before": error.before,
                    "fitted": error.fitted,
                    "held_out": error.held_out,
                }
                for error in self.errors
            },
        }

    def text(self) -> str:
        """Two human-readable tables."""
        lines = [f"{'parameter':<30}{'before':>12}{'fitted':>12}"]
        lines += [f"{name:<30}{before:>12.5g}{after:>12.5g}" for name, before, after in self.parameters]
        lines += ["", f"{'typical error':<22}{'rows':>6}{'before':>10}{'fitted':>10}{'held out':>10}"]
        for error in self.errors:
            figures = "".join(f"{100 * value:>8.1f} %" for value in (error.before, error.fitted, error.held_out))
            lines.append(f"{error.name:<22}{error.rows:>6}{figures}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Sample:
    """One measured kernel as the model sees it."""

    work: GpuWork
    time_us: float
    name: str


def calibrate(target: Target, table: str | Path | Sequence[MeasuredRow], *, folds: int = 5) -> Calibration:
    """Fits `PARAMETERS` of a target to measured rows, with all memory channels serving the GPU.

    Rows that the model gives no kernel (views) are left out. Row i is held out in fold i mod `folds`; several rows of
    one kernel share a fold, so that none is predicted from its own twin.

    Args:
        target: where the fit starts; its peaks are taken as given.
        table: a CSV file, or its rows.
        folds: parts of the cross-validation, 2 or more.

    Raises:
        InputDataError: the table cannot be read or has fewer distinct kernels than folds.
        OptionError: fewer than two folds.
    """
    if folds < 2:
        raise OptionError(f"{folds} folds leave nothing to validate on", "give 2 or more")
    rows = read_table(table) if isinstance(table, (str, Path)) else table
    keyed = [(row.key, sample) for row in rows if (sample := _sample(row, target.gpu)) is not None]
    order = {key: index for index, key in enumerate(dict.fromkeys(key for key, _ in keyed))}
    if len(order) < folds:
        raise InputDataError(
            f"{len(order)} distinct kernels cannot be cut into {folds} folds",
            "measure more kernels or take fewer folds",
        )
    samples = [sample for _, sample in keyed]
    fold_of = [order[key] % folds for key, _ in keyed]
    fitted = fit(target.gpu, samples)
    held_out = [0.0] * len(samples)
    for fold in range(folds):
        gpu = fit(target.gpu, [sample for sample, mine in zip(samples, fold_of, strict=True) if mine != fold])
        for index, sample in enumerate(samples):
            if fold_of[index] == fold:
                held_out[index] = log_error(sample, gpu)
    return Calibration(
        target=target.with_units(gpu=fitted),
        parameters=tuple((name, getattr(target.gpu, name), getattr(fitted, name)) for name in PARAMETERS),
        errors=_errors(samples, target.gpu, fitted, held_out),
        folds=folds,
    )


def fit(gpu: GpuSpec, samples: Sequence[Sample]) -> GpuSpec:
    """The parameters with the least mean squared log error; those that no sample depends on stay as they are."""
    return coordinate_search(gpu, lambda spec: sum(log_error(sample, spec) ** 2 for sample in samples))


def coordinate_search(gpu: GpuSpec, loss: Callable[[GpuSpec], float]) -> GpuSpec:
    """Moves one parameter at a time by a factor, as long as that lowers the loss; then halves the steps."""
    best = loss(gpu)
    step = _FIRST_STEP
    while step > _LAST_STEP:
        improved = False
        for name in PARAMETERS:
            for factor in (math.exp(step), math.exp(-step)):
                moved = _moved(gpu, name, factor)
                value = loss(moved)
                if value < best - 1e-12:
                    gpu, best, improved = moved, value, True
                    break
        if not improved:
            step /= 2
    return gpu


def _moved(gpu: GpuSpec, name: str, factor: float) -> GpuSpec:
    low, high = PARAMETERS[name]
    value = min(high, max(low, getattr(gpu, name) * factor))
    return replace(gpu, **{name: round(value) if name == "launch_cycles" else value})


def _sample(row: MeasuredRow, gpu: GpuSpec) -> Sample | None:
    inputs, outputs = row.values()
    work = gpu_work(row.op, inputs, outputs, gpu.element_bytes)
    return None if work is None else Sample(work, row.time_us, class_name(row, work))


def class_name(row: MeasuredRow, work: GpuWork) -> str:
    """The class that a row's error is reported under: convolutions apart by kind, all others by op."""
    if isinstance(work, DepthwiseWork):
        return "Conv depthwise"
    if isinstance(row.op, Conv2d) and isinstance(work, MatrixWork):
        if work.groups > 1:
            return "Conv grouped"
        return "Conv 1x1" if row.op.kernel == (1, 1) else "Conv kxk"
    return row.op.onnx_name


def log_error(sample: Sample, gpu: GpuSpec) -> float:
    """log(modelled time / measured time)."""
    cycles = kernel_cycles(sample.work, gpu, gpu.memory_channels)
    return math.log(max(cycles.total, 1e-9) / gpu.clock_mhz / sample.time_us)


def _errors(
    samples: Sequence[Sample], before: GpuSpec, fitted: GpuSpec, held_out: Sequence[float]
) -> tuple[ClassError, ...]:
    logs = [(log_error(s, before), log_error(s, fitted), out) for s, out in zip(samples, held_out, strict=True)]

    def error(name: str, members: Sequence[int]) -> ClassError:
        typical = [math.exp(sum(abs(logs[i][which]) for i in members) / len(members)) - 1 for which in range(3)]
        return ClassError(name, len(members), *typical)

    names = sorted({sample.name for sample in samples})
    classes = [error(name, [i for i, sample in enumerate(samples) if sample.name == name]) for name in names]
    return (*classes, error("all", range(len(samples))))
