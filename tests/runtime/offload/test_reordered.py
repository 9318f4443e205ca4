"""Plans in another order, against every order of running, keeping and dropping, and by value."""

from __future__ import annotations

from hypothesis import given, settings

from pimflow.runtime.offload.reordered import reordered_plan
from pimflow.runtime.offload.run import SimulatedPlan
from pimflow.runtime.offload.trace import Buffer, Kernel, Trace
from support.pebbles import least_peak, trace_of, traces


def sizes_of(trace: Trace) -> list[int]:
    return [buffer.bytes for buffer in trace.buffers]


def held(trace: Trace, order: tuple[int, ...]) -> tuple[int, int]:
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


def check(trace: Trace, found: SimulatedPlan, limit: int) -> None:
    order, run = found.plan.order, found.run
    assert {*order} >= {p for p, k in enumerate(trace.kernels) if not k.writes}
    peak, time_us = held(trace, order)
    assert (peak, time_us) == (run.peak_bytes, run.time_us)
    assert peak <= limit
    assert len(run.reruns) == len(order) - len({*order})
    assert sum(moment.bytes for moment in run.log) == 0


@given(traces())
@settings(max_examples=100)
def test_a_plan_is_found_if_there_is_one(trace: Trace) -> None:
    least = least_peak(trace)
    assert reordered_plan(trace, sizes_of(trace), least - 1) is None
    for limit in (least, 2 * least):
        found = reordered_plan(trace, sizes_of(trace), limit)
        assert found is not None
        check(trace, found, limit)


@given(traces(drawing=True))
@settings(max_examples=100)
def test_random_numbers_are_drawn_once(trace: Trace) -> None:
    least = least_peak(trace)
    assert reordered_plan(trace, sizes_of(trace), least - 1) is None
    found = reordered_plan(trace, sizes_of(trace), least)
    assert found is not None
    check(trace, found, least)
    assert not any(trace.kernels[rerun.place].draws for rerun in found.run.reruns)


def test_nothing_is_recomputed_if_everything_fits() -> None:
    trace = trace_of([1, 8, 1, 8, 1, 1], [{0}, {1}, {0}, {3}, {2, 4}], 1)
    found = reordered_plan(trace, sizes_of(trace), 99)
    assert found is not None
    assert not found.run.reruns
    assert found.run.time_us == sum(kernel.time_us for kernel in trace.kernels)


def test_in_place_results_are_recomputed_from_the_start() -> None:
    """Buffer 1 is made, updated in place, read through a view, and needed again at the end, when it does not fit next
    to 3."""
    kernels = (
        Kernel("inputs", 0.0, (), (0,)),
        Kernel("make", 1.0, (0,), (1,)),
        Kernel("add", 1.0, (1,), (1,)),
        Kernel("view", 0.0, (1,), ()),
        Kernel("small", 1.0, (1,), (2,)),
        Kernel("large", 1.0, (0, 2), (3,)),
        Kernel("shrink", 1.0, (3,), (4,)),
        Kernel("last", 1.0, (1, 4), (5,)),
        Kernel("results", 0.0, (5,), ()),
    )
    trace = Trace(
        kernels, 4, tuple(Buffer(str(n), size, size) for n, size in enumerate([1, 4, 1, 6, 1, 1])), input_kernels=1
    )
    found = reordered_plan(trace, sizes_of(trace), 9)
    assert found is not None
    check(trace, found, 9)
    assert [kernels[rerun.place].name for rerun in found.run.reruns] == ["make", "add"]
    assert reordered_plan(trace, sizes_of(trace), 7) is None
