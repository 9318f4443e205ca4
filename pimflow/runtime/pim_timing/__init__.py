"""Exact timing of PIM command streams, under the profiles `artifact` and `strict`."""

from pimflow.runtime.pim_timing.result import StreamTiming
from pimflow.runtime.pim_timing.streams import GWRITE_LATENCIES, PROFILES, forget_timings, time_stream
from pimflow.runtime.pim_timing.trace_timing import TraceResult, simulate_file

__all__ = [
    "GWRITE_LATENCIES",
    "PROFILES",
    "StreamTiming",
    "TraceResult",
    "forget_timings",
    "simulate_file",
    "time_stream",
]
