"""The cost of work on a CPU: a call, then the longer of arithmetic and memory (roofline of Williams et al., 2009).

The work of a kernel follows from the same rules as on a GPU (`runtime/gpu/work.py`), with four bytes per element. Rows
that are read by index and miss the last-level cache are also bound by latency: by Little's law, a core gets at most
`outstanding_lines` lines per latency.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from pimflow.codegen.answers import SumOfParts
from pimflow.codegen.work import Work
from pimflow.ir import Graph, Node
from pimflow.records import dataclass
from pimflow.runtime.gpu.work import DepthwiseWork, GpuWork, KernelSequence, MatrixWork, SegmentedWork, node_work
from pimflow.runtime.sparse_traffic import Cache, SparseWork
from pimflow.targets import CpuSpec

ELEMENT_BYTES = 4
"""Bytes of a floating-point element: CPUs compute in single precision."""


@dataclass(frozen=True)
class CpuKernel:
    """One kernel, run `times` times: multiply-accumulates of products, other operations, bytes that pass memory.

    `scattered_bytes` is the part of `bytes` for rows that are read by index.
    """

    macs: int
    operations: int
    bytes: int
    scattered_bytes: int = 0
    times: int = 1


@dataclass(frozen=True)
class CpuWork(Work):
    """The kernels of one node. `op` is for display; `unknown` says what is not included, and why."""

    op: str
    kernels: tuple[CpuKernel, ...]
    unknown: str = ""


@dataclass(frozen=True)
class CpuCost(SumOfParts):
    """The cost of work on a CPU. The time of a kernel is the longer of computing and moving."""

    call_us: float
    compute_us: float
    memory_us: float
    busy_mj: float
    arithmetic_mj: float
    dram_mj: float
    cycles: int
    bytes: int
    unknown: str = ""
    counters: Mapping[str, int] = field(default_factory=dict)

    @property
    def time_parts_us(self) -> dict[str, float]:
        """Calls, compute-bound kernels and memory-bound kernels."""
        return {"call": self.call_us, "compute": self.compute_us, "memory": self.memory_us}

    @property
    def energy_parts_mj(self) -> dict[str, float]:
        """Energy by event."""
        return {"busy": self.busy_mj, "arithmetic": self.arithmetic_mj, "DRAM": self.dram_mj}


def cpu_work(graph: Graph, node: Node, cpu: CpuSpec) -> CpuWork | None:
    """The kernels of a node; None if nothing runs (views and shape arithmetic)."""
    work = node_work(graph, node, ELEMENT_BYTES)
    if work is None:
        return None
    if isinstance(work, KernelSequence):
        kernels = tuple(_kernel(part, cpu, times) for part, times in work.kernels)
        return CpuWork(node.kind, kernels, work.unknown)
    return CpuWork(node.kind, (_kernel(work, cpu, 1),))


def _kernel(work: GpuWork, cpu: CpuSpec, times: int) -> CpuKernel:
    cache = Cache(cpu.cache_kib * 1024, cpu.line_bytes)
    if isinstance(work, SegmentedWork):
        whole = work.with_cache(cache)
        return CpuKernel(work.macs, 0, whole.bytes, whole.bytes - work.bytes, times)
    if isinstance(work, MatrixWork | DepthwiseWork):
        return CpuKernel(work.macs, 0, work.bytes, 0, times)
    if isinstance(work, SparseWork):
        moved = work.memory_bytes(cache)
        return CpuKernel(0, work.operations, moved, moved - work.streamed_bytes, times)
    return CpuKernel(0, work.operations, work.bytes, 0, times)


def cpu_cost(work: CpuWork, cpu: CpuSpec) -> CpuCost:
    """Time and energy of a node's kernels, one after the other."""
    computing = [(_compute_us(kernel, cpu), _memory_us(kernel, cpu), kernel) for kernel in work.kernels]
    compute_us = sum(compute * kernel.times for compute, memory, kernel in computing if compute >= memory)
    memory_us = sum(memory * kernel.times for compute, memory, kernel in computing if compute < memory)
    operations = sum((kernel.macs + kernel.operations) * kernel.times for kernel in work.kernels)
    moved = sum(kernel.bytes * kernel.times for kernel in work.kernels)
    calls = sum(kernel.times for kernel in work.kernels)
    return CpuCost(
        call_us=calls * cpu.call_us,
        compute_us=compute_us,
        memory_us=memory_us,
        busy_mj=(compute_us + memory_us) * cpu.energy.busy_w * 1e-3,
        arithmetic_mj=operations * cpu.energy.operation_pj * 1e-9,
        dram_mj=moved * cpu.energy.dram_pj_per_byte * 1e-9,
        cycles=round((compute_us + memory_us + calls * cpu.call_us) * cpu.clock_mhz),
        bytes=moved,
        unknown=work.unknown,
        counters=dict(_counted(work)),
    )


def _counted(work: CpuWork) -> Iterator[tuple[str, int]]:
    yield "CALL", sum(kernel.times for kernel in work.kernels)


def _compute_us(kernel: CpuKernel, cpu: CpuSpec) -> float:
    cycles = cpu.cores * cpu.clock_mhz
    products = kernel.macs / (cycles * cpu.macs_per_core_cycle * cpu.matrix_efficiency)
    return products + kernel.operations / (cycles * cpu.operations_per_core_cycle)


def _memory_us(kernel: CpuKernel, cpu: CpuSpec) -> float:
    streaming = kernel.bytes / (cpu.memory_gb_per_s * 1e3 * cpu.memory_efficiency)
    lines_per_us = cpu.cores * cpu.outstanding_lines / (cpu.memory_latency_ns * 1e-3)
    return max(streaming, kernel.scattered_bytes / (cpu.line_bytes * lines_per_us))
