"""What a form of cost model says of one kernel."""

from __future__ import annotations

from pimflow.records import dataclass


@dataclass(frozen=True)
class KernelTime:
    """Parts of a kernel's time, in microseconds, and the bytes that pass the second-level cache.

    `busy_us` is the longer of `compute_us` and `memory_us`, which overlap. During the launch nothing of it runs.
    """

    launch_us: float
    compute_us: float
    memory_us: float
    busy_us: float
    l2_bytes: int

    @property
    def time_us(self) -> float:
        """Launch, then the longer of computing and moving."""
        return self.launch_us + max(self.compute_us, self.memory_us)
