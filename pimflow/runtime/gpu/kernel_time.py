"""`KernelTime`: the result of a GPU cost model for one kernel."""

from __future__ import annotations

from pimflow.records import dataclass


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The parts of a kernel's time in microseconds, and the bytes that pass the second-level cache.

    `busy_us` is the longer of `compute_us` and `memory_us`, which overlap. The kernel does not run during the launch.
    `resident_bytes` of its operands and results are in the cache before and after it and never pass DRAM.
    """

    launch_us: float
    compute_us: float
    memory_us: float
    busy_us: float
    l2_bytes: int
    resident_bytes: int = 0

    @property
    def time_us(self) -> float:
        """Launch, then the longer of computing and moving."""
        return self.launch_us + max(self.compute_us, self.memory_us)
