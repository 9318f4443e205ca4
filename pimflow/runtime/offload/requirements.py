"""The requirements for a plan, and the comparison of plans by them."""

from __future__ import annotations

import math

from pimflow.records import dataclass
from pimflow.runtime.offload.run import RunLimits, SimulatedPlan
from pimflow.runtime.offload.trace import Trace

_SLACK = 1e-9


@dataclass(frozen=True)
class Requirements:
    """The requirements for a plan.

    Args:
        offload: whether anything may be offloaded.
        recompute: whether anything may be recomputed.
        slower_percent: how much longer the step may take than without either, unless `limit_bytes` requires more time.
            The slowdown of kernels by the memory traffic of transfers is not included, as offloading implies it, except
            with `limit_bytes`.
        limit_bytes: the memory limit for activations, to be met in the least time, everything included, where all times
            that are allowed are equal; None to use as little memory as possible.
    """

    offload: bool = True
    recompute: bool = True
    slower_percent: float = 0.0
    limit_bytes: int | None = None

    def allowed_us(self, trace: Trace) -> float:
        """The time that a step may take."""
        return trace.time_us * (1 + self.slower_percent / 100 + _SLACK)

    def key(self, trace: Trace, found: SimulatedPlan) -> tuple[float, ...]:
        """Smaller is better: excess over the limit, then the objective, then bytes stored and recomputation time."""
        run, allowed_us = found.run, self.allowed_us(trace)
        spent = (run.bytes_of("store", trace), run.recompute_us)
        if self.limit_bytes is None:
            return (max(0.0, run.time_us - run.slowed_us - allowed_us), run.peak_bytes, *spent)
        return (max(0, run.peak_bytes - self.limit_bytes), max(0.0, run.time_us - allowed_us), *spent)

    def limits(self, trace: Trace, found: SimulatedPlan) -> RunLimits:
        """Limits that a plan with a smaller key does not exceed; times have a margin for the order of summation."""
        excess, objective, stored, again_us = self.key(trace, found)
        spare_us = self.allowed_us(trace) - trace.time_us * (1 - _SLACK)
        if self.limit_bytes is not None:
            peak = max(self.limit_bytes, found.run.peak_bytes)
            return RunLimits(peak, lost_us=math.inf if excess else spare_us + objective, slowed=True)
        if excess:
            return RunLimits(lost_us=spare_us + excess)
        return RunLimits(found.run.peak_bytes, stored, spare_us, again_us=again_us * (1 + _SLACK))
