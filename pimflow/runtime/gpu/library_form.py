"""The cost model that is fitted to measured kernels of libraries (`library.py`), as a `Form`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, get_args

import numpy as np

from pimflow.records import dataclass
from pimflow.runtime.gpu.coordinate_search import Bounds, coordinate_search
from pimflow.runtime.gpu.form import Form, Sample
from pimflow.runtime.gpu.kernel_time import KernelTime
from pimflow.runtime.gpu.library import Batch, Family, Floats, call_times, family, kernel_time
from pimflow.runtime.gpu.work import GpuWork
from pimflow.targets import MeasuredGpuSpec
from pimflow.targets.schema.measured_gpu import Call, Convolutions, Depthwise, Products, ShortRows, Streams, Tiling

_TIME = (1e-4, 1e4)
_SHARE = (1e-2, 1.0)
_MAIN_LOOP: Mapping[str, Bounds] = {"efficiency": _SHARE, "step_us": _TIME, "fill_us": _TIME}
_CACHE = (10.0, 1e5)
_ROWS: Mapping[str, Bounds] = {
    "memory_efficiency": _SHARE,
    "cache_gb_per_s": _CACHE,
    "row_us": _TIME,
    "column_us": (1e-6, 1.0),
}
FITTED: Mapping[tuple[type[Any], type[Any]], Mapping[str, Bounds]] = {
    (Products, Tiling): {
        **_MAIN_LOOP,
        "split_us": _TIME,
        "operand_gb_per_s": (10.0, 1e4),
        "result_gb_per_s": _CACHE,
        "memory_efficiency": _SHARE,
        "throttling": (1e-3, 10.0),
        "throttled_after_us": (1.0, 1e6),
    },
    (Convolutions, Tiling): {**_MAIN_LOOP, "result_gb_per_s": _CACHE},
    (Depthwise, Depthwise): {
        "macs_per_sm_cycle": (1e-2, 1e4),
        "memory_efficiency": _SHARE,
        "cache_gb_per_s": _CACHE,
        "tap_us": _TIME,
    },
    (Streams, Streams): _ROWS,
    (Streams, ShortRows): _ROWS,
    (Call, Call): {"lead_us": _TIME, "call_us": _TIME},
}
"""The fitted parameters with their bounds, by family of kernels and table within it. Parameters that are 0 stay 0."""
_OPERANDS = {"float16": "fp16", "float32": "fp32"}

T = TypeVar("T")


@dataclass(frozen=True)
class _Group:
    """Measured kernels of one family in one element type: their positions among the samples, their work and times."""

    operand: str
    family: Family
    places: tuple[int, ...]
    batch: Batch
    times_us: Floats


class LibraryForm(Form[MeasuredGpuSpec]):
    """Each family of kernels has its own parameters for each element type, and is fitted separately.

    The loss of a fit is the mean over its kernels of (|log(model / measured)| + min(|model / measured - 1|, 1.5)) / 2.
    It is robust, as measured times scatter with everything except shapes that a library's choice of kernel depends on.
    The second term penalises kernels that the model prices far too slow more than those that it prices too fast.
    """

    def kernel_time(self, work: GpuWork, gpu: MeasuredGpuSpec, channels: int) -> KernelTime:
        """The time of the fastest kernel of the library."""
        return kernel_time(work, gpu, channels)

    def operand_of(self, gpu: MeasuredGpuSpec, dtype: str) -> str | None:
        """The measured type, if the GPU has kernels for it."""
        operand = _OPERANDS.get(dtype)
        return operand if operand in gpu.operands else None

    def times_us(self, gpu: MeasuredGpuSpec, samples: Sequence[Sample]) -> list[float]:
        """The times of the samples, computed by family."""
        times = [0.0] * len(samples)
        for group in _groups(samples):
            for place, time in zip(group.places, _times(group, gpu), strict=True):
                times[place] = float(time)
        return times

    def parameters(self, gpu: MeasuredGpuSpec) -> Mapping[str, float]:
        """The parameters in `FITTED` of all families, by their paths in the target's table."""
        return {
            name: value
            for operand in gpu.operands
            for kind in get_args(Family)
            for name, value, _ in _family_parameters(getattr(getattr(gpu, operand), kind), f"{operand}.{kind}")
        }

    def with_parameters(self, gpu: MeasuredGpuSpec, values: Mapping[str, float]) -> MeasuredGpuSpec:
        """The GPU with the values at their paths."""
        return _with(gpu, values)

    def fit(self, gpu: MeasuredGpuSpec, samples: Sequence[Sample]) -> MeasuredGpuSpec:
        """The GPU with each family fitted separately."""
        for group in _groups(samples):
            gpu = _fit(gpu, group)
        return gpu


def _groups(samples: Sequence[Sample]) -> list[_Group]:
    places: dict[tuple[str, Family], list[int]] = defaultdict(list)
    for place, sample in enumerate(samples):
        places[sample.gpu_operand, family(sample.work)].append(place)
    return [
        _Group(
            operand,
            kind,
            tuple(members),
            Batch.of([samples[place].work for place in members]),
            np.array([samples[place].time_us for place in members]),
        )
        for (operand, kind), members in places.items()
    ]


def _times(group: _Group, gpu: MeasuredGpuSpec) -> Floats:
    return call_times(group.family, group.batch, replace(gpu, operand=group.operand), gpu.memory_channels)  # type: ignore[arg-type]


def _fit(gpu: MeasuredGpuSpec, group: _Group) -> MeasuredGpuSpec:
    path = f"{group.operand}.{group.family}"
    found = list(_family_parameters(getattr(getattr(gpu, group.operand), group.family), path))
    movable = {name: limits for name, value, limits in found if value > 0}

    def loss(values: Mapping[str, float]) -> float:
        ratio = _times(group, _with(gpu, values)) / group.times_us
        return float(np.mean(np.abs(np.log(ratio)) + np.minimum(np.abs(ratio - 1), 1.5)) / 2)

    return _with(gpu, coordinate_search({name: value for name, value, _ in found if name in movable}, movable, loss))


def _family_parameters(kernels: Call, path: str) -> Iterator[tuple[str, float, Bounds]]:
    """Parameters that a fit may change in a family's table and the tables within it: path, value, bounds."""
    for where, table in _tables(kernels, path):
        for (kind, form), bounds in FITTED.items():
            if isinstance(kernels, kind) and isinstance(table, form):
                values = ((name, getattr(table, name), limits) for name, limits in bounds.items())
                yield from ((f"{where}.{name}", value, limits) for name, value, limits in values if value is not None)


def _tables(table: Any, path: str) -> Iterator[tuple[str, Any]]:
    """A table and those within it, by path."""
    yield path, table
    for inner in fields(table):
        value = getattr(table, inner.name)
        if is_dataclass(value):
            yield from _tables(value, f"{path}.{inner.name}")


def _with(table: T, values: Mapping[str, float]) -> T:
    """A table with values at paths within it."""
    inner: dict[str, dict[str, float]] = defaultdict(dict)
    own: dict[str, Any] = {}
    for path, value in values.items():
        name, _, rest = path.partition(".")
        if rest:
            inner[name][rest] = value
        else:
            own[name] = value
    own |= {name: _with(getattr(table, name), entries) for name, entries in inner.items()}
    changed: T = replace(table, **own)  # type: ignore[type-var]
    return changed
