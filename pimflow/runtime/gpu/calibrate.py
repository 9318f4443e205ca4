"""Fits a target's GPU parameters to measured kernel times, and reports the errors of the fit by class of operation.

The GPU's form of cost model (`form.py`) defines the fitted parameters and the loss. Errors are reported for the
original target, for the fit, and for held-out rows.
"""

from __future__ import annotations

import math
import os
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any, Literal

from pimflow.errors import InputDataError, OptionError
from pimflow.ir import Conv2d
from pimflow.records import dataclass
from pimflow.runtime.gpu.determination import Determination, determination
from pimflow.runtime.gpu.form import Form, Sample
from pimflow.runtime.gpu.forms import form_of
from pimflow.runtime.gpu.measured import MeasuredRow
from pimflow.runtime.gpu.published import read_rows
from pimflow.runtime.gpu.work import DepthwiseWork, GpuWork, KernelSequence, MatrixWork, StreamWork, gpu_work
from pimflow.targets import Gpu, Target, TargetRecord, annotated

FoldsBy = Literal["turn", "size"]
Tables = str | Path | Sequence[str | Path] | Sequence[MeasuredRow]


class CalibrationWarning(UserWarning):
    """A fit has more parameters than its rows determine."""


@dataclass(frozen=True)
class Errors:
    """Errors of modelled against measured times, over a set of kernels.

    Args:
        typical: the typical factor minus one: exp(mean |log(model / measured)|) - 1.
        median, p90: median and 90th percentile of |model / measured - 1|.
    """

    typical: float
    median: float
    p90: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Errors:
        """The errors of one or more ratios of modelled to measured times."""
        relative = sorted(abs(ratio - 1) for ratio in ratios)
        rank = 0.9 * (len(relative) - 1)
        low = relative[math.floor(rank)]
        p90 = low + (relative[math.ceil(rank)] - low) * (rank - math.floor(rank))
        typical = math.exp(statistics.fmean(abs(math.log(ratio)) for ratio in ratios)) - 1
        return cls(typical, statistics.median(relative), p90)


@dataclass(frozen=True)
class ClassError:
    """Errors on one class of operation.

    `before` is for the original target, `fitted` for the one fitted to all rows, and `held_out` for predictions of each
    row by a fit without it. The latter two are None if nothing was fitted.
    """

    name: str
    rows: int
    before: Errors
    fitted: Errors | None = None
    held_out: Errors | None = None

    def as_json(self) -> dict[str, object]:
        """Typical errors under the names of the fields, the others under `NAME_median` and `NAME_p90`."""
        found: dict[str, object] = {"rows": self.rows}
        for name in ("before", "fitted", "held_out"):
            errors: Errors | None = getattr(self, name)
            if errors is not None:
                found |= {name: errors.typical, f"{name}_median": errors.median, f"{name}_p90": errors.p90}
        return found


@dataclass(frozen=True)
class Calibration:
    """A fitted target, its parameters as (name, before, after), and errors per class with "all" last.

    If nothing was fitted, `folds` is 0 and `determined` None. `notes` are comments on the fitted keys, by key.
    """

    target: Target
    parameters: tuple[tuple[str, float, float], ...]
    errors: tuple[ClassError, ...]
    folds: int
    determined: Determination | None = None
    notes: Mapping[str, str] = field(default_factory=dict)

    def toml(self) -> str:
        """The complete fitted target as a file, with the comments and sources of the original."""
        return annotated(self.target, self.notes)

    def as_json(self) -> dict[str, object]:
        """Plain values, for `--json`."""
        return {
            "target": self.target.name,
            "machine": TargetRecord.of(self.target).as_json(),
            "determined": self.determined.as_json() if self.determined else None,
            "folds": self.folds,
            "parameters": {name: {"before": before, "after": after} for name, before, after in self.parameters},
            "errors": {error.name: error.as_json() for error in self.errors},
        }

    def text(self) -> str:
        """Two human-readable tables, or one if nothing was fitted."""
        kinds = ("before", "fitted", "held_out") if self.folds else ("before",)
        lines = []
        if self.parameters:
            width = max(30, *(len(name) + 2 for name, _, _ in self.parameters))
            lines = [f"{'parameter':<{width}}{'before':>12}{'fitted':>12}"]
            lines += [f"{name:<{width}}{before:>12.5g}{after:>12.5g}" for name, before, after in self.parameters]
            lines += [""]
        lines += [f"{'error in %':<22}{'rows':>6}" + "".join(f"{kind.replace('_', ' '):>24}" for kind in kinds)]
        lines += [" " * 28 + "".join(f"{name:>8}" for name in ("typical", "median", "p90")) * len(kinds)]
        for error in self.errors:
            found = [getattr(error, kind) for kind in kinds]
            figures = "".join(f"{100 * value:>8.1f}" for errors in found for value in asdict(errors).values())
            lines.append(f"{error.name:<22}{error.rows:>6}{figures}")
        if self.determined is not None:
            count = f"{self.determined.rank} of {self.determined.parameters}"
            lines += ["", f"{count} parameters are determined by the {self.determined.rows} rows"]
        return "\n".join(lines)


def check_target(target: Target, tables: Tables) -> Calibration:
    """The errors of a target's GPU on measured rows, without fitting.

    Raises:
        InputDataError: a table cannot be read, or the model can price none of the rows.
    """
    gpu = target.any_gpu
    samples = [sample for row in _rows(tables) if (sample := _sample(row, gpu)) is not None]
    if not samples:
        raise InputDataError("no row has a kernel that the model prices", "give rows in the GPU's element types")
    ratios = _ratios(samples, gpu)
    return Calibration(target, (), _per_class(samples, ratios), 0)


def calibrate_target(
    target: Target, tables: Tables, *, folds: int = 5, by: FoldsBy = "turn", name: str | None = None
) -> Calibration:
    """Fits the parameters of a target's GPU to measured rows, with all memory channels serving the GPU.

    Rows are left out if the model has no kernel (views) or several kernels for them, or no kernels for their element
    type. Several rows of one kernel share a fold, so that none is predicted from its own twin.

    Args:
        target: the starting point of the fit; its peaks are not fitted.
        tables: CSV files, or rows.
        folds: parts of the cross-validation, 2 or more.
        by: "turn" holds out row i in fold i mod `folds`; "size" holds out kernels of neighbouring size, per class, so
            that the fit has to extrapolate.
        name: name of the fitted target; by default that of `target` followed by "-calibrated".

    Warns:
        CalibrationWarning: the rows do not determine all parameters that are fitted.

    Raises:
        InputDataError: a table cannot be read or has fewer distinct kernels than folds.
        OptionError: fewer than two folds.
    """
    if folds < 2:
        raise OptionError(f"{folds} folds leave nothing to validate on", "give 2 or more")
    gpu = target.any_gpu
    form = form_of(gpu)
    samples, fold_of = _samples_and_folds(tables, gpu, folds, by)
    fitted = _rounded(form, form.fit(gpu, samples))
    held_out = _held_out_ratios(gpu, samples, fold_of, folds)
    before, after = form.parameters(gpu), form.parameters(fitted)
    moved = {name for name in before if before[name] != after[name]}
    determined = determination(form, fitted, samples, moved)
    if determined.warning:
        warnings.warn(determined.warning, CalibrationWarning, stacklevel=2)
    device = next(device for device, unit in target.units.items() if unit is gpu)
    basis = _basis(tables, len(samples))
    machine = replace(
        target.with_units(**{device: replace(fitted, basis=basis)}),
        name=name or f"{target.name}-calibrated",
        description=f"{target.name}, its {device.upper()} {basis}",
    )
    return Calibration(
        target=machine,
        parameters=tuple((name, before[name], after[name]) for name in before),
        errors=_per_class(samples, _ratios(samples, gpu), _ratios(samples, fitted), held_out),
        folds=folds,
        determined=determined,
        notes={f"{device}.{name}": "fitted by `pimflow calibrate`" for name in ("basis", *moved)},
    )


def _samples_and_folds(tables: Tables, gpu: Gpu, folds: int, by: FoldsBy) -> tuple[list[Sample], list[int]]:
    """The samples that can be priced, and the fold of each."""
    keyed = [((row.key, row.dtype), sample) for row in _rows(tables) if (sample := _sample(row, gpu)) is not None]
    distinct = dict.fromkeys(key for key, _ in keyed)
    if len(distinct) < folds:
        raise InputDataError(
            f"{len(distinct)} distinct kernels cannot be cut into {folds} folds",
            "measure more kernels or take fewer folds",
        )
    samples = [sample for _, sample in keyed]
    if by == "size":
        return samples, _folds_by_size(samples, folds)
    order = {key: index % folds for index, key in enumerate(distinct)}
    return samples, [order[key] for key, _ in keyed]


def _held_out_ratios(gpu: Gpu, samples: Sequence[Sample], fold_of: Sequence[int], folds: int) -> list[float]:
    """The ratio of predicted to measured time of each sample, by a fit that has not seen its fold."""
    ratios = [0.0] * len(samples)
    for fold in range(folds):
        others = form_of(gpu).fit(gpu, [sample for sample, mine in zip(samples, fold_of, strict=True) if mine != fold])
        for index, ratio in enumerate(_ratios(samples, others)):
            if fold_of[index] == fold:
                ratios[index] = ratio
    return ratios


def _basis(tables: Tables, count: int) -> str:
    machines = {row.machine for row in _rows(tables)} - {""}
    if len(machines) == 1:
        return f"calibrated on {count} kernels measured on {machines.pop()}"
    return f"calibrated on {count} measured kernels"


def _rounded(form: Form[Any], gpu: Gpu) -> Gpu:
    """The GPU with its fitted parameters rounded to six significant digits."""
    found = form.parameters(gpu)
    values = {name: float(f"{value:.6g}") for name, value in found.items() if type(value) is float}
    rounded: Gpu = form.with_parameters(gpu, values)
    return rounded


def _rows(tables: Tables) -> list[MeasuredRow]:
    if isinstance(tables, (str, os.PathLike)):
        return read_rows(tables)
    return [row for table in tables for row in ([table] if isinstance(table, MeasuredRow) else read_rows(table))]


def _sample(row: MeasuredRow, gpu: Gpu) -> Sample | None:
    operand = form_of(gpu).operand_of(gpu, row.dtype)
    if operand is None:
        return None
    inputs, outputs = row.values()
    work = gpu_work(row.op, inputs, outputs, replace(gpu, operand=operand).element_bytes)  # type: ignore[arg-type]
    if work is None or isinstance(work, KernelSequence):
        return None
    name = class_name(row, work)
    return Sample(work, row.time_us, name if len(gpu.operands) == 1 else f"{operand} {name}", operand)


def class_name(row: MeasuredRow, work: GpuWork) -> str:
    """The class under which a row's error is reported: convolutions by kind, all others by op."""
    if isinstance(work, DepthwiseWork):
        return "Conv depthwise"
    if isinstance(row.op, Conv2d) and isinstance(work, MatrixWork):
        if work.groups > 1:
            return "Conv grouped"
        return "Conv 1x1" if row.op.kernel == (1, 1) else "Conv kxk"
    return row.op.onnx_name


def _folds_by_size(samples: Sequence[Sample], folds: int) -> list[int]:
    """Folds of kernels of neighbouring size within each class; equal kernels share a fold."""
    fold_of = [0] * len(samples)
    for name in {sample.name for sample in samples}:
        members = [index for index, sample in enumerate(samples) if sample.name == name]
        sizes = sorted({_size(samples[index].work) for index in members})
        rank = {size: place * folds // len(sizes) for place, size in enumerate(sizes)}
        for index in members:
            fold_of[index] = rank[_size(samples[index].work)]
    return fold_of


def _size(work: GpuWork) -> int:
    return work.bytes if isinstance(work, StreamWork) else work.macs


def _ratios(samples: Sequence[Sample], gpu: Gpu) -> list[float]:
    """The ratios of modelled to measured times."""
    times = form_of(gpu).times_us(gpu, samples)
    return [max(time, 1e-12) / sample.time_us for time, sample in zip(times, samples, strict=True)]


def _per_class(samples: Sequence[Sample], *ratios: Sequence[float]) -> tuple[ClassError, ...]:
    """The errors for each list of ratios, by class and overall."""
    names = sorted({sample.name for sample in samples})
    members = {name: [i for i, sample in enumerate(samples) if sample.name == name] for name in names}
    members["all"] = list(range(len(samples)))
    return tuple(
        ClassError(name, len(places), *(Errors.of([values[i] for i in places]) for values in ratios))
        for name, places in members.items()
    )
