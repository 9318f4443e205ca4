"""Plans for the least room: whatever the next kernels do not touch leaves memory, as far as the room asks for it.

Between two kernels that touch it a buffer may leave, each time. Those stay that are wanted back soonest, as long as
there is room (as Belady's rule evicts what is wanted last: IBM Systems Journal 5(2), 1966); all others are offloaded,
and asked back as early as is of use and as there is room for them.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

import numpy as np

from pimflow.runtime.offload.channel import Channel
from pimflow.runtime.offload.run import ActivationPlan, Found, Most, follow_within
from pimflow.runtime.offload.trace import Trace

_Bytes = np.ndarray[tuple[int], np.dtype[np.int64]]
Gap = tuple[int, int, int]
"""A buffer, a kernel that touches it, and the next one that does, which is not the next of all."""


def paged(trace: Trace, channel: Channel, limit_bytes: int, most: Most | None = None) -> Found | None:
    """A plan in which no more is alive than a limit; None where a kernel touches more, or where it exceeds what it may
    come to.

    Args:
        trace: the steps.
        channel: to the SSDs.
        limit_bytes: what there is.
        most: what it may come to.
    """
    if trace.touched_bytes > limit_bytes:
        return None
    taken = [sum(trace.buffers[buffer].bytes for buffer in touched) for touched in trace.touched]
    room = np.array([limit_bytes - size for size in taken], np.int64)
    leaving = _leaving(trace, room)
    plan = ActivationPlan(_asked_back(trace, channel, leaving, room), limit_bytes=limit_bytes)
    run = follow_within(trace, plan, channel, most or Most())
    return None if run is None else Found(plan, run)


def _leaving(trace: Trace, room: _Bytes) -> list[Gap]:
    """The gaps that do not stay; `room` loses those that do."""
    through = (0.0, *trace.through_us)
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


def _asked_back(trace: Trace, channel: Channel, leaving: list[Gap], room: _Bytes) -> tuple[tuple[int, int], ...]:
    """Before which kernels they are asked back, in order: as early as it takes to load all that follow, if there is
    room."""
    starts = (0.0, *trace.through_us)
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
