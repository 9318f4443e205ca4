"""Plans that drop buffers and make them again, against replays."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from pimflow.runtime.offload.rerunning import rerunning_plan
from pimflow.runtime.offload.step_orders import peak_in_order, step_orders
from pimflow.runtime.offload.trace import Buffer, Kernel, Trace
from support import offload, pebbles
from support.pebbles import check_replay, least_peak, sizes_of


@given(pebbles.traces(drawing=True))
@settings(max_examples=50)
def test_plans_of_small_traces(trace: Trace) -> None:
    """Within the peak of an order, nothing runs again; below the lowest peak of all, there is no plan."""
    sizes, least = sizes_of(trace), least_peak(trace)
    orders = step_orders(trace, sizes)
    enough = min(peak_in_order(trace, sizes, order) for order in orders)
    assert rerunning_plan(trace, sizes, orders, least - 1) is None
    for limit in range(least, enough + 1):
        found = rerunning_plan(trace, sizes, orders, limit)
        assert found is not None or limit < enough
        if found is not None:
            check_replay(trace, found, limit)
            assert not any(trace.kernels[rerun.place].draws for rerun in found.run.reruns)
            assert bool(found.run.reruns) == (limit < enough)
            assert rerunning_plan(trace, sizes, orders, limit, found.run.time_us) is None


@given(offload.traces())
@settings(max_examples=50)
def test_what_is_overwritten_is_made_again_in_order(trace: Trace) -> None:
    trace = replace(trace, kernels=tuple(replace(kernel, time_us=1.0) for kernel in trace.kernels))
    sizes = sizes_of(trace)
    orders = step_orders(trace, sizes)
    enough = min(peak_in_order(trace, sizes, order) for order in orders)
    for limit in (enough, enough * 7 // 8, enough * 3 // 4):
        found = rerunning_plan(trace, sizes, orders, limit)
        assert found is not None or limit < enough
        if found is not None:
            check_replay(trace, found, limit)


def test_a_deep_chain_in_the_memory_of_its_square_root() -> None:
    """Of 100 equal layers, 20 results fit: every layer runs about once more, as with checkpoints (Chen et al., Training
    Deep Nets with Sublinear Memory Cost, 2016)."""
    layers = 100
    kernels = (
        Kernel("inputs", 0.0, (), (0,)),
        *(Kernel(f"forward{n}", 1.0, (n,), (n + 1,)) for n in range(layers)),
        *(Kernel(f"backward{n}", 1.0, (n, 2 * layers - 1 - n), (2 * layers - n,)) for n in reversed(range(layers))),
        Kernel("results", 0.0, (2 * layers,), ()),
    )
    buffers = tuple(Buffer(str(n), 1, 1) for n in range(2 * layers + 1))
    trace = Trace(kernels, layers + 1, buffers, input_kernels=1)
    orders = step_orders(trace, sizes_of(trace))
    assert peak_in_order(trace, sizes_of(trace), orders[0]) == layers + 2
    found = rerunning_plan(trace, sizes_of(trace), orders, 20)
    assert found is not None
    check_replay(trace, found, 20)
    assert found.run.recompute_us < 1.2 * layers
