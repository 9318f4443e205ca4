"""Modulo schedules, replayed: no resource is used twice at once, operands come first, and the interval holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, permutations

import pytest

from pimflow.ir import Graph
from pimflow.passes import CLEANUP, PassManager
from pimflow.runtime.costs import CostModel
from pimflow.runtime.steady_state import TICKS_PER_US, SteadyState, steady_state
from pimflow.runtime.timeline import NO_RESOURCE, build_timeline
from pimflow.targets import load_target
from support.costs import FixedCosts
from support.graphs import ConvNet
from support.in_flight import NETS, TARGETS, planned


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NETS)
def test_replayed(name: str, target: str) -> None:
    graph, costs, steady = planned(name, target)
    count = steady.in_flight + 3
    ends = replay(graph, costs, steady, count)
    assert all(after - before == steady.interval for before, after in pairwise(ends))
    assert ends[0] == steady.latency
    alone = build_timeline(graph, costs.target, costs)
    for resource, busy_us in alone.busy_us.items():
        assert steady.busy_us.get(resource, 0.0) == pytest.approx(busy_us, abs=1e-3)
    assert steady.interval_us == max(steady.busy_us.values())
    assert (steady.in_flight - 1) * steady.interval < steady.latency <= steady.in_flight * steady.interval


def replay(graph: Graph, costs: CostModel, steady: SteadyState, count: int) -> list[int]:
    """When each of `count` inferences ends; nothing in the replay may conflict."""
    unrolled = steady.unrolled(count)
    using: dict[str, list[tuple[int, int]]] = {}
    for _, slot in unrolled:
        if slot.resource != NO_RESOURCE:
            using.setdefault(slot.resource, []).append((slot.start, slot.end))
    for spans in using.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(spans)), "a resource is used twice at once"
    begins: dict[tuple[int, str], int] = {}
    ends: dict[tuple[int, str], int] = {}
    for number, slot in unrolled:
        key = (number, slot.node)
        begins[key] = min(begins.get(key, slot.start), slot.start)
        ends[key] = max(ends.get(key, slot.end), slot.end)
    for number in range(count):
        for node in graph.nodes:
            ahead = round(costs.launch_ahead_us(graph, node) * TICKS_PER_US)
            for name in node.inputs:
                producer = graph.producer(name) if name else None
                if producer is not None:
                    assert begins[number, node.name] + ahead >= ends[number, producer.name], node.name
    return [max(ends[number, node.name] for node in graph.nodes) for number in range(count)]


@pytest.mark.parametrize("name", NETS)
def test_the_busiest_resource_never_rests(name: str) -> None:
    _, _, steady = planned(name, "pimflow")
    busiest = max(steady.busy_us, key=lambda resource: steady.busy_us[resource])
    full = (steady.in_flight - 1) * steady.interval
    window = (full, full + steady.interval)
    busy = sum(
        max(0, min(slot.end, window[1]) - max(slot.start, window[0]))
        for _, slot in steady.unrolled(steady.in_flight + 2)
        if slot.resource == busiest
    )
    assert busy == steady.interval


def alternating(count: int) -> Graph:
    """A chain whose nodes alternate between the host and PIM."""
    net = ConvNet("chain")
    x = net.input(1, 8, 4, 4)
    for _ in range(count):
        x = net.layer(x, 8)
    graph = net.graph(x)
    devices = ("gpu", "pim")
    return graph.replace(nodes=[node.placed(device=devices[i % 2]) for i, node in enumerate(graph.nodes)])


@pytest.mark.parametrize(
    "lengths", [(5, 5, 5, 5), (3, 4, 2, 1), (4, 1, 1, 6, 3, 1), (2, 7, 3, 1, 4, 1), (1, 2, 3, 4, 5, 3)]
)
def test_no_order_lets_inferences_end_sooner(lengths: tuple[float, ...]) -> None:
    """Against all orders of the busiest resource's jobs, with the other's as early as possible, by hand."""
    graph = alternating(len(lengths))
    steady = steady_state(
        graph,
        load_target("pimflow"),
        FixedCosts({node.name: us for node, us in zip(graph.nodes, lengths, strict=True)}),
    )
    interval = max(sum(lengths[0::2]), sum(lengths[1::2]))
    assert steady.interval_us == interval
    assert steady.latency_us <= least_latency(lengths, interval) + 1e-9


def test_times_between_two_ticks_do_not_shorten_the_interval() -> None:
    """A lower bound on the interval counts them in full."""
    graph = alternating(8)
    steady = steady_state(graph, load_target("pimflow"), FixedCosts({node.name: 1 / 3 for node in graph.nodes}))
    assert 4 / 3 < steady.interval_us < 4 / 3 + 1e-5


def least_latency(lengths: Sequence[float], interval: float) -> float:
    """The minimum over all orders in which jobs follow each other without a gap."""
    best = float("inf")
    sides = [list(range(side, len(lengths), 2)) for side in (0, 1)]
    for one in permutations(sides[0][1:]):
        for other in permutations(sides[1]):
            offsets: dict[int, float] = {}
            for order in ([sides[0][0], *one], other):
                now = 0.0
                for job in order:
                    offsets[job] = now
                    now += lengths[job]
            start = now = offsets[0]
            for job, length in enumerate(lengths):
                now += (offsets[job] - now) % interval + length
            best = min(best, now - start)
    return best


def test_the_same_schedule_every_time() -> None:
    graph, costs, steady = planned("inverted", "pimflow")
    assert steady_state(graph, costs.target, costs) == steady


def test_a_graph_without_work_has_no_interval() -> None:
    net = ConvNet("none")
    graph = net.graph(net.reshape(net.input(1, 4), 4))
    costs = CostModel(load_target("pimflow")).host_only()
    steady = steady_state(PassManager(CLEANUP).run(graph).graph, costs.target, costs)
    assert (steady.interval, steady.latency, steady.in_flight) == (0, 0, 1)
