"""SSDTrain's rule, and where it promises too much."""

from __future__ import annotations

import pytest

from pimflow.runtime.offload.rule import LEAST_ELEMENTS, adaptive_rule
from pimflow.runtime.offload.run import Channel, follow
from pimflow.runtime.offload.trace import Buffer, Trace
from support.offload import chain

LAYERS, LAYER_US, LAYER_BYTES = 24, 1000.0, 1_000_000
RELOADED = LAYER_BYTES / (2 * LAYER_US)
"""Bytes a microsecond at which a layer comes back while the next one's backward pass runs."""


def picked(rate: float) -> tuple[int, float]:
    """How many layers the rule offloads at a share of that rate, and how much of the step it waits, in percent."""
    trace, channel = chain(LAYERS, LAYER_US, LAYER_BYTES), Channel(rate * RELOADED, rate * RELOADED)
    plan = adaptive_rule(trace, channel, least_elements=0)
    return len(plan.offloaded), 100 * follow(trace, plan, channel).stall_us / trace.time_us


@pytest.mark.parametrize("rate", [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 2.0])
def test_the_layers_are_those_of_the_formula(rate: float) -> None:
    """Layer i is offloaded while (i + 2) V <= B (3 L - 2 i) T: solved for i by hand."""
    expected = 0
    while expected < LAYERS and (expected + 2) <= rate * (3 * LAYERS - 2 * expected) / 2:
        expected += 1
    assert picked(rate)[0] == expected


@pytest.mark.parametrize(("rate", "least", "most"), [(0.4, 34, 38), (0.8, 10, 18), (1.2, 0, 6), (4.0, 0, 6)])
def test_how_long_it_waits(rate: float, least: float, most: float) -> None:
    """As in another event model of such a step, with one channel and one layer of look-ahead."""
    assert least <= picked(rate)[1] <= most


def test_small_tensors_stay() -> None:
    trace = chain(4)
    buffers = tuple(
        Buffer(buffer.name, buffer.bytes, LEAST_ELEMENTS - (place == 1)) for place, buffer in enumerate(trace.buffers)
    )
    plan = adaptive_rule(Trace(trace.kernels, trace.turn, buffers), Channel(1e9, 1e9))
    assert plan.offloaded == {0, 2, 3}


def test_modules_are_asked_back_as_a_whole() -> None:
    """Two modules of two layers: the first one's as the second one's backward pass begins."""
    plan = adaptive_rule(chain(4), Channel(1e9, 1e9), modules=(0, 2), least_elements=0)
    assert plan.loads == ((3, 4), (2, 4), (1, 4), (0, 4))
