"""What no plan goes below, against every way of running, keeping and dropping."""

from __future__ import annotations

import heapq
from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.runtime.offload.least import least_room
from pimflow.runtime.offload.trace import Buffer, Kernel, Trace

NEVER = 1 << 60


def trace_of(sizes: list[int], reads: list[set[int]], inputs: int) -> Trace:
    """Inputs, then a kernel for every other buffer; what nobody reads is a result."""
    kernels = [Kernel("inputs", 0.0, (), tuple(range(inputs)))]
    kernels += [Kernel(f"k{inputs + n}", 1.0, tuple(sorted(read)), (inputs + n,)) for n, read in enumerate(reads)]
    results = {*range(inputs, inputs + len(reads))} - set(chain.from_iterable(reads))
    kernels.append(Kernel("results", 0.0, tuple(sorted(results)), ()))
    return Trace(tuple(kernels), 1, tuple(Buffer(str(n), size, size) for n, size in enumerate(sizes)), given=1)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    inputs, made = draw(st.integers(1, 2)), draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(1, 9), min_size=inputs + made, max_size=inputs + made))
    reads = [draw(st.sets(st.integers(0, inputs + n - 1), min_size=1, max_size=3)) for n in range(made)]
    return trace_of(sizes, reads, inputs)


def least_peak(trace: Trace) -> int:
    """Of all sequences of runs and drops that end with all results there: every set that can be there is a state."""
    size = [buffer.bytes for buffer in trace.buffers]
    start, end = frozenset(trace.kernels[0].writes), set(trace.kernels[-1].reads)
    waiting = [(sum(size[b] for b in start), sorted(start))]
    seen = dict.fromkeys([start], waiting[0][0])
    while waiting:
        peak, listed = heapq.heappop(waiting)
        there = frozenset(listed)
        if end <= there:
            return peak
        following = [(there - {one}, 0) for one in there]
        for kernel in trace.kernels[1:-1]:
            if there.issuperset(kernel.reads):
                after = there.union(kernel.writes)
                following.append((after, sum(size[b] for b in after)))
        for state, taken in following:
            if max(peak, taken) < seen.get(state, NEVER):
                seen[state] = max(peak, taken)
                heapq.heappush(waiting, (seen[state], sorted(state)))
    raise AssertionError


@given(traces())
@settings(max_examples=150)
def test_without_drives_it_is_the_least_of_all_schedules(trace: Trace) -> None:
    sizes = [buffer.bytes for buffer in trace.buffers]
    assert least_room(trace, sizes, drives=False, enough=NEVER).bytes == least_peak(trace)


@given(traces())
@settings(max_examples=30)
def test_a_search_that_is_given_up_is_a_bound_too(trace: Trace) -> None:
    sizes, least = [buffer.bytes for buffer in trace.buffers], least_peak(trace)
    for enough in (least - 1, least, least // 2):
        assert least_room(trace, sizes, drives=False, enough=enough).bytes <= least
    assert least_room(trace, sizes, drives=False, enough=least - 1).bytes == least


@given(traces())
@settings(max_examples=30)
def test_with_drives_it_is_what_one_kernel_touches(trace: Trace) -> None:
    sizes = [buffer.bytes for buffer in trace.buffers]
    found = least_room(trace, sizes, drives=True, enough=NEVER)
    touched = {k.name: sum(sizes[b] for b in {*k.reads, *k.writes}) for k in trace.kernels}
    assert (found.bytes, touched[found.step]) == (max(touched.values()),) * 2


def test_what_is_read_together_has_to_be_made_one_after_the_other() -> None:
    """Two branches through 8 bytes that end in 1 each: the second runs beside what the first one left."""
    trace = trace_of([1, 8, 1, 8, 1, 1], [{0}, {1}, {0}, {3}, {2, 4}], 1)
    sizes = [buffer.bytes for buffer in trace.buffers]
    assert least_room(trace, sizes, drives=True, enough=NEVER).bytes == 9
    assert least_room(trace, sizes, drives=False, enough=NEVER).bytes == 10
