"""Buffers that do not fit are offloaded as often as necessary: checked by another simulation, and by value."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pimflow.runtime.offload.channel import Channel
from pimflow.runtime.offload.paging import paging_plan
from pimflow.runtime.offload.trace import Buffer, Kernel, Trace
from support.drives import Drives
from support.offload import traces


def _leaves_late() -> Trace:
    """Buffer 1 could come back early, but buffers 5 and 6, which made room for it, are not stored by then."""
    accessed = [
        ((), (0,)),
        ((0,), (0, 1)),
        ((0,), (0, 2)),
        ((0,), (0, 3)),
        ((0,), (0, 4)),
        ((3,), (3, 5)),
        ((4,), (4, 6)),
    ]
    accessed += [((0,), (0, 7)), ((0, 1, 2), (8,)), ((5, 6, 7, 8), ())]
    kernels = tuple(Kernel(str(n), float(0 < n < 9), *each) for n, each in enumerate(accessed))
    buffers = tuple(Buffer(str(n), 100 + (n in (1, 7, 8)), 1) for n in range(9))
    return Trace(kernels, 5, buffers, input_kernels=1)


@example(_leaves_late(), 10.0, 99)
@given(traces(), st.floats(10.0, 500.0), st.integers(0, 2000))
@settings(max_examples=150)
def test_a_plan_exists_for_any_limit_that_holds_every_kernel(trace: Trace, rate: float, spare: int) -> None:
    """Time and peak are those of another simulation, which checks that every kernel finds its operands."""
    touched = max(sum(trace.buffers[b].bytes for b in {*k.reads, *k.writes}) for k in trace.kernels)
    channel = Channel(rate, 1.37 * rate, 0.11)
    assert paging_plan(trace, channel, touched - 1) is None
    found = paging_plan(trace, channel, touched + spare)
    assert found is not None
    assert found.run.peak_bytes <= touched + spare
    time_us, peak = Drives(trace, found.plan, channel, touched + spare).run()
    assert found.run.time_us == pytest.approx(time_us, rel=1e-9)
    assert found.run.peak_bytes == peak


def test_nothing_is_offloaded_if_everything_fits() -> None:
    kernels = [Kernel("inputs", 0.0, (), (0,)), Kernel("a", 1.0, (0,), (1,)), Kernel("b", 1.0, (1,), (2,))]
    trace = Trace(
        (*kernels, Kernel("c", 1.0, (0, 2), (3,))), 2, tuple(Buffer(str(n), 10, 10) for n in range(4)), input_kernels=1
    )
    channel = Channel(1.0, 1.0)
    whole, tight = paging_plan(trace, channel, 30), paging_plan(trace, channel, 30 - 1)
    assert whole is not None
    assert tight is None
    assert whole.plan.loads == ()
    assert math.isclose(whole.run.time_us, 3.0)
