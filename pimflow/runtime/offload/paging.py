"""Plans for the least memory: buffers that the next kernels do not access leave memory, as far as space requires.

A buffer may leave in every gap between two kernels that access it. The buffers needed again soonest stay, as long as
there is room (like Belady's rule, which evicts the buffer needed last: IBM Systems Journal 5(2), 1966). All others are
offloaded, and loaded back as early as is useful and as room permits.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

import numpy as np

from pimflow.runtime.offload.channel import Channel
from pimflow.runtime.offload.run import ActivationPlan, RunLimits, SimulatedPlan, simulate_within
from pimflow.runtime.offload.trace import Trace

_Bytes = np.ndarray[tuple[int], np.dtype[np.int64]]
Gap = tuple[int, int, int]
"""A buffer, a kernel that accesses it, and the next kernel that does, with other kernels in between."""


def paging_plan(
    trace: Trace, channel: Channel, limit_bytes: int, limits: RunLimits | None = None
) -> SimulatedPlan | None:
    """A plan whose live bytes stay within a limit; None if a kernel accesses more, or if the plan exceeds `limits` or
    what the SSDs hold.

    Args:
        trace: the steps.
        channel: the channel to the SSDs.
        limit_bytes: the memory available.
        limits: limits on the run.
    """
    if trace.working_set_bytes > limit_bytes:
        return None
    taken = [sum(trace.buffers[buffer].bytes for buffer in touched) for touched in trace.accessed]
    room = np.array([limit_bytes - size for size in taken], np.int64)
    leaving = _leaving(trace, room)
    if not channel.has_space(trace, {buffer for buffer, _, _ in leaving}):
        return None
    for loads in (_schedule_loads(trace, channel, leaving, room), _latest_loads(leaving)):
        plan = ActivationPlan(loads, limit_bytes=limit_bytes)
        run = simulate_within(trace, plan, channel, limits or RunLimits())
        if run is not None and run.peak_bytes <= limit_bytes:
            return SimulatedPlan(plan, run)
    return None


def _leaving(trace: Trace, room: _Bytes) -> list[Gap]:
    """The gaps in which buffers leave memory; subtracts the buffers that stay from `room`."""
    through = (0.0, *trace.ends_us)
    gaps = [
        (buffer, use, following)
        for buffer, uses in enumerate(trace.uses)
        for use, following in pairwise(uses)
        if following > use + 1 and not trace.buffers[buffer].fixed
    ]
    gaps.sort(key=lambda gap: (through[gap[2]] - through[gap[1] + 1], gap))
    leaving = []
    for buffer, use, following in gaps:
        size, span = trace.buffers[buffer].bytes, slice(use + 1, following)
        if size > room[span].min():
            leaving.append((buffer, use, following))
        else:
            room[span] -= size
    return leaving


def _latest_loads(leaving: list[Gap]) -> tuple[tuple[int, int], ...]:
    """Loads requested only when a buffer is needed. An earlier load may begin while buffers that have left wait behind
    it to be stored, and are still in memory; none waits behind these."""
    return tuple((buffer, following) for buffer, _, following in sorted(leaving, key=lambda gap: (gap[2], gap[0])))


def _schedule_loads(trace: Trace, channel: Channel, leaving: list[Gap], room: _Bytes) -> tuple[tuple[int, int], ...]:
    """The kernels before which to request the buffers, in order: early enough to load all that follow in time, if there
    is room."""
    starts = (0.0, *trace.ends_us)
    loads = []
    free_us = float("inf")
    for buffer, use, following in sorted(leaving, key=lambda gap: (gap[2], gap[0]), reverse=True):
        size, before = trace.buffers[buffer].bytes, following
        free_us = min(free_us, starts[following]) - channel.load_us(size)
        earliest = max(use + 2, bisect_right(starts, free_us) - 1)
        while before > earliest and room[before - 1] >= size:
            before -= 1
            room[before] -= size
        loads.append((before, following, buffer))
    return tuple((buffer, before) for before, _, buffer in sorted(loads))
