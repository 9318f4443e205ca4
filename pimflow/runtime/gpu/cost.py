"""Time and energy of one node on the GPU: `gpu_work` gives its work, and the GPU's `Form` the time of that work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from pimflow.records import dataclass
from pimflow.runtime.gpu.forms import form_of
from pimflow.runtime.gpu.work import CachedWork, GpuWork, KernelSequence, SegmentedWork, StreamWork, gpu_work
from pimflow.runtime.sparse_traffic import Cache, SparseWork

if TYPE_CHECKING:
    from pimflow.ir import Array, Op, Value
    from pimflow.targets import Gpu


@dataclass(frozen=True, slots=True)
class GpuCost:
    """The cost of one node on the GPU: of one kernel, or of several one after the other.

    Computing and moving overlap after the launch, so `compute_us` and `memory_us` are the times that each would take
    alone. `computing_us` is the time of compute-bound kernels (including ties), `moving_us` that of the others.
    The energies are in addition to the board's static power: busy power while the kernels run, arithmetic, and bytes
    through second-level cache and DRAM. `flops` counts a multiply-accumulate as two; `bytes` pass DRAM.
    `unknown` says what the cost does not include, and why ("": nothing).
    """

    launch_us: float = 0.0
    compute_us: float = 0.0
    memory_us: float = 0.0
    computing_us: float = 0.0
    moving_us: float = 0.0
    busy_mj: float = 0.0
    arithmetic_mj: float = 0.0
    l2_mj: float = 0.0
    dram_mj: float = 0.0
    flops: int = 0
    bytes: int = 0
    unknown: str = ""

    @property
    def time_us(self) -> float:
        """Launches, and for each kernel the longer of computing and moving."""
        return self.launch_us + self.computing_us + self.moving_us

    @property
    def energy_mj(self) -> float:
        """The energy without static power: the sum of `energy_parts_mj`."""
        return self.busy_mj + self.arithmetic_mj + self.l2_mj + self.dram_mj

    @property
    def time_parts_us(self) -> dict[str, float]:
        """Launches, compute-bound kernels and memory-bound kernels; overlapped activity does not count."""
        return {"launch": self.launch_us, "compute": self.computing_us, "memory": self.moving_us}

    @property
    def energy_parts_mj(self) -> dict[str, float]:
        """Energy by event of the energy model."""
        return {"busy": self.busy_mj, "arithmetic": self.arithmetic_mj, "L2": self.l2_mj, "DRAM": self.dram_mj}


FREE = GpuCost()


def gpu_cost(
    op: Op,
    inputs: Sequence[Value | None],
    outputs: Sequence[Value],
    gpu: Gpu,
    channels: int,
    *,
    constants: Mapping[int, Array] | None = None,
    opset: Mapping[str, int] | None = None,
) -> GpuCost:
    """Time and energy of one node on the GPU, with `channels` memory channels left to it.

    Args:
        op: the operation.
        inputs: its operands; None where an optional one is absent.
        outputs: its results.
        gpu: the GPU.
        channels: memory channels that serve the GPU, at least one.
        constants: arrays of `op.content_positions` by position, if known.
        opset: operator set versions by domain, for ops with bodies.

    Raises:
        ValueError: `channels` is not positive.
    """
    if channels < 1:
        raise ValueError(f"a GPU needs at least one memory channel, got {channels}")
    work = gpu_work(op, inputs, outputs, gpu.element_bytes, constants, opset)
    if isinstance(work, KernelSequence):
        return sequence_cost(work, gpu, channels)
    return FREE if work is None else work_cost(work, gpu, channels)


def sequence_cost(sequence: KernelSequence, gpu: Gpu, channels: int) -> GpuCost:
    """The cost of kernels that run one after the other: the sum of all parts."""
    costs = [(work_cost(work, gpu, channels), times) for work, times in sequence.kernels]
    parts = [part.name for part in fields(GpuCost) if part.name != "unknown"]
    sums = {part: sum(getattr(cost, part) * times for cost, times in costs) for part in parts}
    return GpuCost(**sums, unknown=sequence.unknown)


def work_cost(work: GpuWork, gpu: Gpu, channels: int) -> GpuCost:
    """Time and energy of a piece of GPU work.

    Energy is busy power x time, plus energy per operation, per L2 byte and per DRAM byte: the event model of
    AccelWattch (Kandiah et al., MICRO 2021) reduced to four events. The launch counts as idle, as the kernel does not
    run yet.
    """
    work = cached(work, gpu, channels)
    time = form_of(gpu).kernel_time(work, gpu, channels)
    flops = work.operations + work.macs if isinstance(work, StreamWork) else 2 * work.macs
    computes = time.compute_us >= time.memory_us
    moved = work.bytes - time.resident_bytes
    return GpuCost(
        launch_us=time.launch_us,
        compute_us=time.compute_us,
        memory_us=time.memory_us,
        computing_us=time.compute_us if computes else 0.0,
        moving_us=0.0 if computes else time.memory_us,
        busy_mj=gpu.energy.busy_w * time.busy_us * 1e-3,
        arithmetic_mj=_arithmetic_pj(work, gpu) * 1e-9,
        l2_mj=time.l2_bytes * gpu.energy.l2_pj_per_byte * 1e-9,
        dram_mj=moved * gpu.energy.dram_pj_per_byte * 1e-9,
        flops=flops,
        bytes=moved,
    )


def cached(work: GpuWork, gpu: Gpu, channels: int) -> GpuWork:
    """Work with the bytes that miss the second-level cache, which consists of the slices of the GPU's channels."""
    if not isinstance(work, SparseWork | SegmentedWork):
        return work
    cache = Cache(gpu.l2_kib * 1024 * channels / gpu.memory_channels, gpu.sector_bytes)
    if isinstance(work, SegmentedWork):
        return work.with_cache(cache)
    moved, passed = work.memory_bytes(cache), work.cache_bytes(cache)
    return CachedWork(work.operations, moved, work.kind, cache_bytes=max(passed - moved, 0), multiplied=work.macs)


def movement_cost(moved_bytes: int, gpu: Gpu, channels: int) -> GpuCost:
    """The cost of a copy that the memory planner could not remove: one kernel that moves `moved_bytes` in total."""
    return work_cost(StreamWork(0, moved_bytes), gpu, channels)


def scaled(cost: GpuCost, time_us: float) -> GpuCost:
    """The cost of the same work in `time_us`: the parts of time and energy are scaled, the work is unchanged."""
    factor = time_us / cost.time_us
    return replace(
        cost,
        launch_us=cost.launch_us * factor,
        compute_us=cost.compute_us * factor,
        memory_us=cost.memory_us * factor,
        computing_us=cost.computing_us * factor,
        moving_us=cost.moving_us * factor,
        busy_mj=cost.busy_mj * factor,
        arithmetic_mj=cost.arithmetic_mj * factor,
        l2_mj=cost.l2_mj * factor,
        dram_mj=cost.dram_mj * factor,
    )


def static_energy_mj(time_us: float, gpu: Gpu) -> float:
    """The static energy of the board over a run of `time_us`: power x time."""
    return gpu.energy.static_w * time_us * 1e-3


def _arithmetic_pj(work: GpuWork, gpu: Gpu) -> float:
    if isinstance(work, StreamWork):
        return work.operations * gpu.energy.operation_pj
    return work.macs * gpu.mac_pj
