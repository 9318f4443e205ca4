"""Exact timing of PIM command streams, under the profiles `artifact` and `strict`."""

from pimflow.runtime.newton.timing.result import StreamTiming
from pimflow.runtime.newton.timing.streams import GWRITE_LATENCIES, PROFILES, forget_timings, time_stream

__all__ = [
    "GWRITE_LATENCIES",
    "PROFILES",
    "StreamTiming",
    "forget_timings",
    "time_stream",
]
