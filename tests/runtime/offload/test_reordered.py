"""Plans in another order, against every order of running, keeping and dropping, and by value."""

from __future__ import annotations

from hypothesis import given, settings

from pimflow.runtime.offload.reordered import reordered_plan
from pimflow.runtime.offload.trace import Buffer, Kernel, Trace
from support.pebbles import check_replay, least_peak, sizes_of, trace_of, traces


@given(traces())
@settings(max_examples=100)
def test_a_plan_is_found_if_there_is_one(trace: Trace) -> None:
    least = least_peak(trace)
    assert reordered_plan(trace, sizes_of(trace), least - 1) is None
    for limit in (least, 2 * least):
        found = reordered_plan(trace, sizes_of(trace), limit)
        assert found is not None
        check_replay(trace, found, limit)


@given(traces(drawing=True))
@settings(max_examples=100)
def test_random_numbers_are_drawn_once(trace: Trace) -> None:
    least = least_peak(trace)
    assert reordered_plan(trace, sizes_of(trace), least - 1) is None
    found = reordered_plan(trace, sizes_of(trace), least)
    assert found is not None
    check_replay(trace, found, least)
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
    check_replay(trace, found, 9)
    assert [kernels[rerun.place].name for rerun in found.run.reruns] == ["make", "add"]
    assert reordered_plan(trace, sizes_of(trace), 7) is None
