"""A CPU with its memory: the host of a machine, or a unit next to another host."""

from __future__ import annotations

from typing import ClassVar

from pimflow.errors import counted
from pimflow.records import dataclass
from pimflow.targets.schema.measured_gpu import Share
from pimflow.targets.schema.unit import Amount, Count, CountOrZero, Positive, Unit, register_kind


@dataclass(frozen=True)
class CpuEnergy:
    """Energy of a CPU and its memory: constant power, and energy per event."""

    static_w: Amount  # drawn as long as the model runs; counted if the CPU is the host
    busy_w: Amount  # in addition while a kernel runs, whatever it does
    operation_pj: Amount  # one arithmetic operation; a multiply-add is one
    dram_pj_per_byte: Amount  # between DRAM and the last-level cache
    link_pj_per_byte: Amount  # over the link to the machine's host


@register_kind
@dataclass(frozen=True)
class CpuSpec(Unit):
    """A CPU whose kernels are bound by arithmetic or memory; the formulas are in `runtime/cpu/cost.py`."""

    kind: ClassVar[str] = "cpu"
    can_host: ClassVar[bool] = True

    clock_mhz: Positive  # that all cores sustain with vector instructions
    cores: Count
    macs_per_core_cycle: Count  # fp32 multiply-adds of the vector units of one core
    matrix_efficiency: Share  # share of that peak that products and convolutions reach
    operations_per_core_cycle: Count  # fp32 operations of one core in all other kernels
    memory_gb_per_s: Positive  # peak bandwidth of all memory channels
    memory_efficiency: Share  # share of that bandwidth that a kernel reaches
    memory_latency_ns: Positive  # of a load that misses all caches
    outstanding_lines: Count  # misses that one core can have in flight: limits rows that are read by index
    cache_kib: CountOrZero  # last-level cache, for rows that are read by index
    line_bytes: Count  # of a cache line
    call_us: Amount  # from calling a kernel to its threads' first instruction
    energy: CpuEnergy
    # Bandwidth and latency of the link over which operands and results are copied from and to the machine's host. None:
    # the CPU is the host, or shares its memory.
    link_gb_per_s: Positive | None = None
    link_us: Amount = 0.0

    @property
    def summary(self) -> str:
        """The number of cores, and their memory's bandwidth."""
        return f"{counted(self.cores, 'core')} at {self.clock_mhz:g} MHz, {self.memory_gb_per_s:g} GB/s"
