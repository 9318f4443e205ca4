"""SSDTrain's rule, and where it promises too much."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.runtime.offload.channel import Channel
from pimflow.runtime.offload.rule import MIN_ELEMENTS, adaptive_rule
from pimflow.runtime.offload.run import simulate
from pimflow.runtime.offload.trace import Buffer, Kernel, Trace
from support.offload import Events, chain

LAYERS, LAYER_US, LAYER_BYTES = 24, 1000.0, 1_000_000
RELOADED = LAYER_BYTES / (2 * LAYER_US)
"""Rate in bytes per microsecond at which a layer is loaded during the next one's backward pass."""


def picked(rate: float) -> tuple[int, float]:
    """How many layers the rule offloads at a fraction of that rate, and what percentage of the step is waiting."""
    trace, channel = chain(LAYERS, LAYER_US, LAYER_BYTES), Channel(rate * RELOADED, rate * RELOADED)
    plan = adaptive_rule(trace, channel, min_elements=0)
    return len(plan.offloaded), 100 * simulate(trace, plan, channel).stall_us / trace.time_us


@pytest.mark.parametrize("rate", [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 2.0])
def test_the_layers_are_those_of_the_formula(rate: float) -> None:
    """Layer i is offloaded while (i + 2) V <= B (3 L - 2 i) T; solved for i by hand."""
    expected = 0
    while expected < LAYERS and (expected + 2) <= rate * (3 * LAYERS - 2 * expected) / 2:
        expected += 1
    assert picked(rate)[0] == expected


@pytest.mark.parametrize(("rate", "least", "most"), [(0.4, 34, 38), (0.8, 10, 18), (1.2, 0, 6), (4.0, 0, 6)])
def test_waiting_time_of_the_rule(rate: float, least: float, most: float) -> None:
    """As in another event model of such a step, with one channel and one layer of look-ahead."""
    assert least <= picked(rate)[1] <= most


def test_small_tensors_stay() -> None:
    trace = chain(4)
    buffers = tuple(
        Buffer(buffer.name, buffer.bytes, MIN_ELEMENTS - (place == 1)) for place, buffer in enumerate(trace.buffers)
    )
    plan = adaptive_rule(Trace(trace.kernels, trace.turn, buffers), Channel(1e9, 1e9))
    assert plan.offloaded == {0, 2, 3}


def test_modules_are_loaded_as_a_whole() -> None:
    """Two modules of two layers: the first module's load starts with the second one's backward pass."""
    plan = adaptive_rule(chain(4), Channel(1e9, 1e9), modules=(0, 2), min_elements=0)
    assert plan.loads == ((3, 4), (2, 4), (1, 4), (0, 4))


def test_a_buffer_needed_at_once_is_stored_needlessly() -> None:
    """For the last layer: the channel is free, so its store begins, and the first layer's load waits for its end."""
    trace, channel = chain(2), Channel(1000.0, 250.0)
    plan = adaptive_rule(trace, channel, min_elements=0)
    assert plan.loads == ((1, 2), (0, 2))
    run = simulate(trace, plan, channel)
    spans = [(transfer.kind, transfer.buffer, transfer.begin_us, transfer.end_us) for transfer in run.transfers]
    assert spans == [("store", 0, 1000.0, 2000.0), ("store", 1, 2000.0, 3000.0), ("load", 0, 3000.0, 7000.0)]
    assert (run.time_us, run.stall_us) == (9000.0, 3000.0)


@settings(max_examples=60)
@given(st.data())
def test_an_independent_event_simulation_agrees(data: st.DataObject) -> None:
    """Layers that save one or two buffers, some of no length, over a fast or a slow channel; to the last digit."""
    layers = data.draw(st.integers(2, 8))
    saved = data.draw(st.lists(st.integers(1, 2), min_size=layers, max_size=layers))
    owner = [layer for layer, count in enumerate(saved) for _ in range(count)]
    sizes = data.draw(st.lists(st.integers(1, 90), min_size=len(owner), max_size=len(owner)))
    times = data.draw(st.lists(st.integers(0, 6), min_size=2 * layers, max_size=2 * layers))
    skips = data.draw(st.lists(st.booleans(), min_size=layers, max_size=layers))
    made = [tuple(buffer for buffer, layer in enumerate(owner) if layer == own) for own in range(layers)]
    ahead = [
        Kernel(f"forward{own}", 10.0 * times[own], made[own - 1][:1] + made[own - 2][-1:] * skips[own], made[own])
        if own > 1
        else Kernel(f"forward{own}", 10.0 * times[own], made[0] * own, made[own])
        for own in range(layers)
    ]
    back = [
        Kernel(
            f"backward{own}",
            10.0 * times[layers + own],
            tuple(dict.fromkeys((*made[own], *made[own - skips[own]]))),
            (),
        )
        for own in reversed(range(layers))
    ]
    trace = Trace(
        (*ahead, *back), layers, tuple(Buffer(f"saved{number}", size, size) for number, size in enumerate(sizes))
    )
    rate = data.draw(st.sampled_from([0.25, 1.0, 4.0, 16.0]))  # all times are exact, also of simultaneous events
    back_again, memory = data.draw(st.sampled_from([(0.5, math.inf), (1.0, 2.0), (2.0, math.inf)]))
    channel = Channel(rate, back_again * rate, memory_bytes_per_us=memory * rate)
    modules = tuple(sorted(data.draw(st.sets(st.integers(0, layers - 1)))))
    plan = adaptive_rule(trace, channel, modules, min_elements=0)
    run = simulate(trace, plan, channel)
    time_us, peak = Events(trace, plan, channel).run()
    assert run.time_us == pytest.approx(time_us, rel=1e-9)
    assert run.peak_bytes == peak
