"""Orders of steps, against all orders of small traces."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings

from pimflow.runtime.offload.reordered import simulate_in_order
from pimflow.runtime.offload.run import ActivationPlan
from pimflow.runtime.offload.step_orders import peak_in_order, step_orders
from pimflow.runtime.offload.trace import Buffer, Kernel, Trace
from support import offload, pebbles


def all_orders(trace: Trace, begun: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All orders with the given beginning in which every kernel reads what it reads in the trace."""
    if len(begun) == len(trace.kernels):
        yield begun
    for place, kernel in enumerate(trace.kernels):
        touched = {*kernel.reads, *kernel.writes}
        before = {
            other
            for other, earlier in enumerate(trace.kernels[:place])
            if touched & {*earlier.writes} or {*kernel.writes} & {*earlier.reads} or place == len(trace.kernels) - 1
        }
        if place not in begun and before <= {*begun}:
            yield from all_orders(trace, (*begun, place))


def peak(trace: Trace, order: tuple[int, ...]) -> int:
    return simulate_in_order(trace, ActivationPlan(order=order)).peak_bytes


@given(pebbles.traces())
@settings(max_examples=50)
def test_the_best_order_of_a_small_trace_is_found(trace: Trace) -> None:
    sizes = pebbles.sizes_of(trace)
    orders = step_orders(trace, sizes)
    assert orders[0] == tuple(range(len(trace.kernels)))
    peaks = [peak_in_order(trace, sizes, order) for order in orders]
    assert min(peaks) == min(peak(trace, order) for order in all_orders(trace, (0,)))
    assert peaks == [peak(trace, order) for order in orders]


@given(offload.traces())
@settings(max_examples=50)
def test_what_is_read_is_not_overwritten_before(trace: Trace) -> None:
    for order in step_orders(trace, pebbles.sizes_of(trace)):
        assert sorted(order) == [*range(len(trace.kernels))]
        for index, place in enumerate(order):
            kernel, later = (
                trace.kernels[place],
                [trace.kernels[other] for other in order[index + 1 :] if other < place],
            )
            assert not any({*kernel.writes} & {*other.reads, *other.writes} for other in later)
            assert not any({*kernel.reads} & {*other.writes} for other in later)


def test_gradients_of_weights_run_as_soon_as_their_operands_are_there() -> None:
    """Three layers: in the trace's order the gradients of all weights come last."""
    saved, passed, weights = (1, 2, 3), (4, 5, 6), (7, 8, 9)
    kernels = (
        Kernel("inputs", 0.0, (), (0,)),
        *(Kernel(f"forward{layer}", 1.0, (layer - 1,), (layer,)) for layer in saved),
        Kernel("backward3", 1.0, (3,), (4,)),
        *(Kernel(f"backward{3 - n}", 1.0, (3 + n,), (4 + n,)) for n in (1, 2)),
        *(Kernel(f"weight{3 - n}", 1.0, (passed[n], 2 - n), (weights[n],)) for n in range(3)),
        Kernel("results", 0.0, weights, ()),
    )
    sizes = [*[10] * 7, *[1] * 3]
    trace = Trace(kernels, 4, tuple(Buffer(str(n), size, size) for n, size in enumerate(sizes)), input_kernels=1)
    own, eager, *_ = step_orders(trace, sizes)
    assert peak_in_order(trace, sizes, own) == 61
    assert peak_in_order(trace, sizes, eager) == 50
    names = [kernels[place].name for place in eager]
    assert names.index("weight3") == names.index("backward3") + 1
    assert names.index("weight2") == names.index("backward2") + 1
