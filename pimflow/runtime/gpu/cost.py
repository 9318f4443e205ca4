"""Time and energy of one node on the GPU: `gpu_work` says what it asks for, `gpu_kernels` how long that takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pimflow.runtime.gpu.kernels import KernelCycles, kernel_cycles
from pimflow.runtime.gpu.work import GpuWork, StreamWork, gpu_work

if TYPE_CHECKING:
    from pimflow.ir import Array, Op, Value
    from pimflow.targets import GpuSpec


@dataclass(frozen=True)
class GpuCost:
    """What one node costs on the GPU.

    `time_us` = `launch_us` + max(`compute_us`, `memory_us`). `energy_mj` is what running the kernel adds to the board's
    static power. `flops` counts a multiply-accumulate as two; `bytes` are those that pass DRAM.
    """

    time_us: float = 0.0
    launch_us: float = 0.0
    compute_us: float = 0.0
    memory_us: float = 0.0
    energy_mj: float = 0.0
    flops: int = 0
    bytes: int = 0


FREE = GpuCost()


def gpu_cost(
    op: Op,
    inputs: Sequence[Value | None],
    outputs: Sequence[Value],
    gpu: GpuSpec,
    channels: int,
    *,
    constants: Mapping[int, Array] | None = None,
) -> GpuCost:
    """Time and energy of one node on the GPU, with `channels` memory channels left to it.

    Args:
        op: the operation.
        inputs: its operands; None where an optional one is absent.
        outputs: its results.
        gpu: the GPU.
        channels: memory channels that serve the GPU, at least one.
        constants: arrays of `op.content_operands` by position, where they are known.

    Raises:
        ValueError: `channels` is not positive.
    """
    if channels < 1:
        raise ValueError(f"a GPU needs at least one memory channel, got {channels}")
    work = gpu_work(op, inputs, outputs, gpu.element_bytes, constants)
    return FREE if work is None else work_cost(work, gpu, channels)


def work_cost(work: GpuWork, gpu: GpuSpec, channels: int) -> GpuCost:
    """Time and energy of a piece of GPU work."""
    cycles = kernel_cycles(work, gpu, channels)
    flops = work.operations if isinstance(work, StreamWork) else 2 * work.macs
    return GpuCost(
        time_us=cycles.total / gpu.clock_mhz,
        launch_us=cycles.launch / gpu.clock_mhz,
        compute_us=cycles.compute / gpu.clock_mhz,
        memory_us=cycles.memory / gpu.clock_mhz,
        energy_mj=_energy_mj(work, cycles, gpu),
        flops=flops,
        bytes=work.bytes,
    )


def movement_cost(moved_bytes: int, gpu: GpuSpec, channels: int) -> GpuCost:
    """A copy that the memory planner could not remove: one kernel that reads and writes `moved_bytes` in all."""
    return work_cost(StreamWork(0, moved_bytes), gpu, channels)


def scaled(cost: GpuCost, time_us: float) -> GpuCost:
    """The same work taking `time_us`: parts of the time and the energy in proportion, work unchanged."""
    factor = time_us / cost.time_us
    return replace(
        cost,
        time_us=time_us,
        launch_us=cost.launch_us * factor,
        compute_us=cost.compute_us * factor,
        memory_us=cost.memory_us * factor,
        energy_mj=cost.energy_mj * factor,
    )


def static_energy_mj(time_us: float, gpu: GpuSpec) -> float:
    """What the board draws over a run of `time_us`, whatever it does: power x time."""
    return gpu.energy.static_w * time_us * 1e-3


def _arithmetic_pj(work: GpuWork, gpu: GpuSpec) -> float:
    if isinstance(work, StreamWork):
        return work.operations * gpu.energy.operation_pj
    return work.macs * gpu.energy.mac_pj


def _energy_mj(work: GpuWork, cycles: KernelCycles, gpu: GpuSpec) -> float:
    """Busy power x time, plus energy per operation, per L2 byte and per DRAM byte.

    That is the event model of AccelWattch (Kandiah et al., MICRO 2021) reduced to four events. The launch counts as
    idle: nothing of the kernel runs yet.
    """
    energy = gpu.energy
    moved_pj = cycles.l2_bytes * energy.l2_pj_per_byte + work.bytes * energy.dram_pj_per_byte
    busy_us = (cycles.total - cycles.launch) / gpu.clock_mhz
    return (_arithmetic_pj(work, gpu) + moved_pj) * 1e-9 + energy.busy_w * busy_us * 1e-3
