"""Small traces that write each buffer once, their lowest peak over all orders of running and dropping, and replays of
plans in another order."""

from __future__ import annotations

import heapq
from dataclasses import replace
from itertools import chain

from hypothesis import strategies as st

from pimflow.runtime.offload.run import SimulatedPlan
from pimflow.runtime.offload.trace import Buffer, Kernel, Trace

NEVER = 1 << 60


def trace_of(sizes: list[int], reads: list[set[int]], inputs: int) -> Trace:
    """Inputs, then one kernel for every other buffer; buffers that nobody reads are results."""
    kernels = [Kernel("inputs", 0.0, (), tuple(range(inputs)))]
    kernels += [Kernel(f"k{inputs + n}", 1.0, tuple(sorted(read)), (inputs + n,)) for n, read in enumerate(reads)]
    results = {*range(inputs, inputs + len(reads))} - set(chain.from_iterable(reads))
    kernels.append(Kernel("results", 0.0, tuple(sorted(results)), ()))
    return Trace(tuple(kernels), 1, tuple(Buffer(str(n), size, size) for n, size in enumerate(sizes)), input_kernels=1)


@st.composite
def traces(draw: st.DrawFn, drawing: bool = False) -> Trace:
    """Traces with up to five kernels; some of them may draw random numbers."""
    inputs, made = draw(st.integers(1, 2)), draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(1, 9), min_size=inputs + made, max_size=inputs + made))
    reads = [draw(st.sets(st.integers(0, inputs + n - 1), min_size=1, max_size=3)) for n in range(made)]
    trace = trace_of(sizes, reads, inputs)
    once = draw(st.sets(st.sampled_from(trace.kernels[1:-1]))) if drawing else set()
    return replace(trace, kernels=tuple(replace(kernel, draws=kernel in once) for kernel in trace.kernels))


def least_peak(trace: Trace) -> int:
    """The minimum over all sequences of runs and drops that end with all results in memory. A state is a set of buffers
    in memory, together with the random numbers drawn."""
    size = [buffer.bytes for buffer in trace.buffers]
    start, end = frozenset(trace.kernels[0].writes), set(trace.kernels[-1].reads)
    waiting = [(sum(size[b] for b in start), sorted(start), list[str]())]
    seen = {(start, frozenset[str]()): waiting[0][0]}
    while waiting:
        peak, listed, listed_drawn = heapq.heappop(waiting)
        there, drawn = frozenset(listed), frozenset(listed_drawn)
        if end <= there:
            return peak
        following = [(there - {one}, drawn, 0) for one in there]
        for kernel in trace.kernels[1:-1]:
            if there.issuperset(kernel.reads) and kernel.name not in drawn:
                after = there.union(kernel.writes)
                also = drawn | {kernel.name} if kernel.draws else drawn
                following.append((after, also, sum(size[b] for b in after)))
        for state, also, taken in following:
            if max(peak, taken) < seen.get((state, also), NEVER):
                seen[state, also] = max(peak, taken)
                heapq.heappush(waiting, (max(peak, taken), sorted(state), sorted(also)))
    raise AssertionError


def sizes_of(trace: Trace) -> list[int]:
    return [buffer.bytes for buffer in trace.buffers]


def replayed(trace: Trace, order: tuple[int, ...]) -> tuple[int, int]:
    """Run all steps symbolically, with results that record their operands, and check each operand; return the peak of
    bytes alive (read again before they are made again) and the time."""
    expected: list[list[object]] = []
    memory: dict[int, object] = {}
    for place, kernel in enumerate(trace.kernels):
        expected.append([memory[buffer] for buffer in kernel.reads])
        memory |= {b: (place, tuple(expected[-1]), memory.get(b), b) for b in kernel.writes}
    memory, peak = {}, 0
    whole = {b: {p for p, k in enumerate(trace.kernels) if b in k.writes} for b in range(len(trace.buffers))}
    for step, place in enumerate(order):
        kernel = trace.kernels[place]
        assert [memory.get(buffer) for buffer in kernel.reads] == expected[place]
        fresh = {b for b in kernel.writes if place == min(whole[b])}
        memory |= {b: (place, tuple(expected[place]), None if b in fresh else memory[b], b) for b in kernel.writes}
        peak = max(peak, sum(trace.buffers[b].bytes for b in {*memory, *kernel.reads}))
        for buffer in list(memory):
            later = [trace.kernels[other] for other in order[step + 1 :]]
            touching = [k for k in later if buffer in (*k.reads, *k.writes)]
            anew = touching and buffer not in touching[0].reads and touching[0] is trace.kernels[min(whole[buffer])]
            if not touching or anew:
                del memory[buffer]
    return peak, sum(round(trace.kernels[place].time_us) for place in order)


def check_replay(trace: Trace, found: SimulatedPlan, limit: int) -> None:
    """Check that a plan computes what the trace does, within a limit, with the time and the peak that it says."""
    order, run = found.plan.order, found.run
    assert {*order} >= {p for p, k in enumerate(trace.kernels) if not k.writes}
    peak, time_us = replayed(trace, order)
    assert (peak, time_us) == (run.peak_bytes, run.time_us)
    assert peak <= limit
    assert len(run.reruns) == len(order) - len({*order})
    assert sum(moment.bytes for moment in run.log) == 0
