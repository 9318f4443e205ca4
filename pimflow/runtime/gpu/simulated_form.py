"""The cost model that is fitted to a simulator's results (`kernels.py`), as a `Form`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pimflow.runtime.gpu.coordinate_search import Bounds, coordinate_search
from pimflow.runtime.gpu.form import Form, Sample
from pimflow.runtime.gpu.kernel_time import KernelTime
from pimflow.runtime.gpu.kernels import kernel_cycles
from pimflow.runtime.gpu.work import GpuWork
from pimflow.targets import GpuSpec

_UNBOUNDED = (1e-3, 1e9)
PARAMETERS: Mapping[str, Bounds] = {
    "launch_cycles": (0.0, 1e9),
    "step_cycles": (1.0, 1e9),
    "fill_cycles": (1.0, 1e9),
    "matrix_efficiency": (1e-3, 1.0),
    "depthwise_macs_per_sm_cycle": _UNBOUNDED,
    "memory_efficiency": (1e-3, 1.0),
    "l2_bytes_per_channel_cycle": _UNBOUNDED,
}
"""The fitted parameters with their bounds. Peaks (clocks, SMs, arithmetic, bandwidth) are given, not fitted."""


class SimulatedForm(Form[GpuSpec]):
    """One set of parameters for all products; the loss of a fit is the mean squared logarithm of model over measured.

    So a kernel of 5 us counts as much as one of 500 us.
    """

    def kernel_time(self, work: GpuWork, gpu: GpuSpec, channels: int) -> KernelTime:
        """The time of `kernel_cycles` at the GPU's clock."""
        cycles = kernel_cycles(work, gpu, channels)
        return KernelTime(
            launch_us=cycles.launch / gpu.clock_mhz,
            compute_us=cycles.compute / gpu.clock_mhz,
            memory_us=cycles.memory / gpu.clock_mhz,
            busy_us=(cycles.total - cycles.launch) / gpu.clock_mhz,
            l2_bytes=cycles.l2_bytes,
        )

    def times_us(self, gpu: GpuSpec, samples: Sequence[Sample]) -> list[float]:
        """The times of the kernels, priced one by one."""
        return [self.kernel_time(sample.work, gpu, gpu.memory_channels).time_us for sample in samples]

    def parameters(self, gpu: GpuSpec) -> Mapping[str, float]:
        """The values of `PARAMETERS`."""
        return {name: getattr(gpu, name) for name in PARAMETERS}

    def with_parameters(self, gpu: GpuSpec, values: Mapping[str, float]) -> GpuSpec:
        """The GPU with the values as fields of its table."""
        return replace(gpu, **values)  # type: ignore[arg-type]

    def fit(self, gpu: GpuSpec, samples: Sequence[Sample]) -> GpuSpec:
        """The GPU with the least mean squared log error."""

        def loss(values: Mapping[str, float]) -> float:
            times = self.times_us(_with(gpu, values), samples)
            return sum(
                math.log(max(time, 1e-12) / sample.time_us) ** 2 for time, sample in zip(times, samples, strict=True)
            )

        return _with(gpu, coordinate_search(self.parameters(gpu), PARAMETERS, loss))


def _with(gpu: GpuSpec, values: Mapping[str, float]) -> GpuSpec:
    fitted = {name: round(value) if name == "launch_cycles" else value for name, value in values.items()}
    return replace(gpu, **fitted)  # type: ignore[arg-type]
