"""Lower bounds on the peak of any plan, against every order of running, keeping and dropping."""

from __future__ import annotations

from hypothesis import given, settings

from pimflow.runtime.offload.memory_bound import memory_lower_bound
from pimflow.runtime.offload.trace import Trace
from support.pebbles import NEVER, least_peak, trace_of, traces


@given(traces())
@settings(max_examples=150)
def test_without_drives_it_is_the_minimum_over_all_schedules(trace: Trace) -> None:
    sizes = [buffer.bytes for buffer in trace.buffers]
    assert memory_lower_bound(trace, sizes, drives=False, enough=NEVER).bytes == least_peak(trace)


@given(traces())
@settings(max_examples=30)
def test_an_aborted_search_gives_a_bound_too(trace: Trace) -> None:
    sizes, least = [buffer.bytes for buffer in trace.buffers], least_peak(trace)
    for enough in (least - 1, least, least // 2):
        assert memory_lower_bound(trace, sizes, drives=False, enough=enough).bytes <= least
    assert memory_lower_bound(trace, sizes, drives=False, enough=least - 1).bytes == least


@given(traces())
@settings(max_examples=60)
def test_existing_proofs_are_found(trace: Trace) -> None:
    sizes, least = [buffer.bytes for buffer in trace.buffers], least_peak(trace)
    for enough in (least - 1, least // 2):
        assert enough < memory_lower_bound(trace, sizes, drives=False, enough=enough, proof=True).bytes <= least
    assert memory_lower_bound(trace, sizes, drives=False, enough=least, proof=True).bytes <= least


@given(traces())
@settings(max_examples=30)
def test_with_drives_it_is_the_largest_kernels_operands(trace: Trace) -> None:
    sizes = [buffer.bytes for buffer in trace.buffers]
    found = memory_lower_bound(trace, sizes, drives=True, enough=NEVER)
    touched = {k.name: sum(sizes[b] for b in {*k.reads, *k.writes}) for k in trace.kernels}
    assert (found.bytes, touched[found.step]) == (max(touched.values()),) * 2


def test_operands_of_one_kernel_are_made_one_after_the_other() -> None:
    """Two branches through 8 bytes that end in 1 each: the second runs while the result of the first is in memory."""
    trace = trace_of([1, 8, 1, 8, 1, 1], [{0}, {1}, {0}, {3}, {2, 4}], 1)
    sizes = [buffer.bytes for buffer in trace.buffers]
    assert memory_lower_bound(trace, sizes, drives=True, enough=NEVER).bytes == 9
    assert memory_lower_bound(trace, sizes, drives=False, enough=NEVER).bytes == 10
