"""The time of nodes that all others wait for: against every way to cut them into runs, and every two-way split."""

from __future__ import annotations

import math
from functools import cache
from itertools import combinations, pairwise, product
from typing import NamedTuple

import networkx as nx
import numpy as np
import pytest

from pimflow.ir import Builder, Conv2d, Graph, Node
from pimflow.ir.analysis.regions import node_rows
from pimflow.passes import CLEANUP, PassManager
from pimflow.runtime.costs import CostModel
from pimflow.search.least_times import LeastTimes, NodeTimes
from pimflow.search.makespan_bound import makespan_bound
from pimflow.search.meeting_bound import Array, meeting_bound
from pimflow.search.node_costs import NodeCosts
from pimflow.search.parts import FEW_ROWS, extract_row_parts
from pimflow.targets import load_target, override
from support.graphs import fire_modules, heavy_chain, inverted_residuals, random_net

ROUNDING = 1 + 1e-9
COSTS = CostModel(load_target("pimflow"))
FAST = CostModel(override("pimflow", {"gpu.launch_cycles": 300, "gpu.step_cycles": 40.0, "gpu.fill_cycles": 40.0}))


def alternating(strided: bool = False) -> Graph:
    """Alternating pointwise and depthwise convolutions, as in MobileNetV2; the second pointwise one may skip rows."""
    build = Builder()
    x = build.input(1, 32, 28, 28)
    for place in range(2):
        x = build.relu(build.conv(x, 96, 1, 2 if strided and place else 1))
        x = build.relu(build.depthwise(x, 3, 1))
    return PassManager(CLEANUP).run(build.graph(build.conv(x, 32, 1, 1))).graph


def gated() -> Graph:
    """Convolutions whose results are multiplied with inputs in kernels of their own."""
    build = Builder()
    x = build.input(1, 32, 28, 28)
    for place in range(2):
        x = build.conv(x, 96, 1)
        x = build.mul(x, build.input(*build.shape(x), name=f"factors{place}"))
    return PassManager(CLEANUP).run(build.graph(build.conv(build.depthwise(x, 3, 1), 32, 1))).graph


@cache
def times_of(graph: Graph, costs: CostModel) -> dict[str, NodeTimes]:
    least = LeastTimes(graph, costs)
    return {node.name: least.of(node) for node in graph.nodes}


def bound_of(graph: Graph, costs: CostModel) -> tuple[float, dict[str, float]]:
    """The bound without the host's work for epilogues."""
    times = times_of(graph, costs)
    return meeting_bound(graph, NodeCosts(times, times, {}))


class Exact(NamedTuple):
    """The exact prices of a node's rows on a device, by their number, in one part and in two or more."""

    single_us: list[float]
    divided_us: list[float]

    @property
    def parts_us(self) -> list[float]:
        return [min(us) for us in zip(self.single_us, self.divided_us, strict=True)]


@cache
def exact(graph: Graph, name: str, device: str, costs: CostModel) -> Exact:
    """By the cheapest of all ways to divide the rows into parts at the top and at the bottom."""
    node = graph.node(name)
    rows = node_rows(graph, node)
    ways = ((count, (0, rows - count)) for count in range(1, rows + 1))
    single = [0.0, *(min(part_us(graph, node, device, at, count, costs) for at in starts) for count, starts in ways)]
    divided = [math.inf, math.inf]
    parts = single[:2]
    for count in range(2, rows + 1):
        divided.append(min(parts[first] + parts[count - first] for first in range(1, count)))
        parts.append(min(single[count], divided[count]))
    return Exact(single, divided)


def part_us(graph: Graph, node: Node, device: str, start: int, count: int, costs: CostModel = COSTS) -> float:
    """The time of some rows of a node."""
    (part,) = extract_row_parts(graph, node, [start], count)
    placed = part.nodes[0].placed(device=device, choice="auto" if device == "pim" else None, fused_into=None)
    return costs.node_cost(part, placed).time_us


class Chain:
    """The cheapest way to cut a chain of convolutions into runs, with exact prices of all parts and a separate price of
    device time for each run. Elementwise nodes may be in the decision of the convolution before them, however that is
    divided."""

    prices = np.linspace(0, 1, 201)

    def __init__(self, graph: Graph, costs: CostModel) -> None:
        times = {name: time for name, time in times_of(graph, costs).items() if time.whole_us}
        self.names = list(times)
        self.on = {
            name: [exact(graph, name, least.device, costs) for least in time.on_devices] for name, time in times.items()
        }
        self.is_elementwise = {name: graph.node(name).op.is_elementwise for name in times}

    def cheapest_us(self) -> float:
        size = len(self.names)
        cuts = (cut for count in range(size) for cut in combinations(range(1, size), count))
        return min(sum(self.takes(self.names[a:b]) for a, b in pairwise((0, *cut, size))) for cut in cuts)

    def takes(self, run: list[str]) -> float:
        if len(run) == 1:
            return self.alone(run[0])
        if all(self.is_elementwise[name] for name in run[1:]):
            balanced = sum(np.min(list(self.costs(name, in_parts=False).values()), axis=0) for name in run)
            return min(self.in_parts(run), max(self.alone(run[0]), float(np.max(balanced))))
        return self.in_parts(run)

    def alone(self, name: str) -> float:
        times = [on.parts_us for on in self.on[name]]
        both: list[float] = list(map(max, *self.shares(name)))
        return min([own[-1] for own in times] + both)

    def shares(self, name: str) -> list[list[float]]:
        """The times of the shares of the host and of a unit, for every way to divide the rows; empty without units."""
        host, *units = [on.parts_us for on in self.on[name]]
        return [host[1:-1], units[0][-2:0:-1]] if units else [[], []]

    def costs(self, name: str, *, in_parts: bool) -> dict[str, Array]:
        """By who computes the node: the host, a unit, or both."""
        host, *units = [(on.divided_us if in_parts else on.parts_us)[-1] for on in self.on[name]]
        found = {"host": self.prices * host}
        if units:
            found["unit"] = (1 - self.prices) * units[0]
            shares = zip(*self.shares(name), strict=True)
            found["both"] = np.min(
                [self.prices * on_host + (1 - self.prices) * other for on_host, other in shares], axis=0
            )
        return found

    def in_parts(self, run: list[str]) -> float:
        options = [self.costs(name, in_parts=True) for name in run]
        return float(np.min([self.cost(run, way, options) for way in product(*options)], axis=0).max())

    def cost(self, run: list[str], way: tuple[str, ...], options: list[dict[str, Array]]) -> Array:
        """The cost of a run if it is known who computes each node: what a device waits for counts as well."""
        total = np.zeros(len(self.prices)) + sum(option[where] for option, where in zip(options, way, strict=True))
        for device, price, other in (("unit", 1 - self.prices, 0), ("host", self.prices, -1)):
            work = [at for at, where in enumerate(way) if where in (device, "both")] or [len(run)]
            waits = [name for at, name in enumerate(run) if not work[0] <= at <= work[-1]]
            total = total + price * sum(self.on[name][other].single_us[1] for name in waits)
        return total


@pytest.mark.parametrize("costs", [COSTS, FAST], ids=["shipped", "fast GPU"])
@pytest.mark.parametrize("graph", [alternating(), gated()], ids=["alternating", "gated"])
def test_the_minimum_over_all_cuts(graph: Graph, costs: CostModel) -> None:
    bound_us, weights = bound_of(graph, costs)
    cheapest_us = Chain(graph, costs).cheapest_us()
    assert 0.9 * cheapest_us <= bound_us <= cheapest_us * ROUNDING
    assert sum(weights.values()) == pytest.approx(bound_us)


def test_elementwise_nodes_take_their_time() -> None:
    graph = gated()
    products = [node.name for node in graph.nodes if node.op.is_elementwise]
    weights = bound_of(graph, FAST)[1]
    times = times_of(graph, FAST)
    assert len(products) == 2
    assert all(0.5 * times[name].whole_us < weights[name] <= times[name].alone_us * ROUNDING for name in products)


def test_it_exceeds_the_load_bound_if_every_part_is_a_launch() -> None:
    graph = alternating()
    bound = makespan_bound(graph, COSTS, 1e9)
    assert bound.binding == "meeting"
    assert bound.meeting_us > 1.05 * max(bound.load_us, bound.path_us)


def test_a_split_node_takes_one_kernel_per_part() -> None:
    graph = alternating()
    for name, time in times_of(graph, COSTS).items():
        if time.whole_us:
            assert time.rows is not None
            exact_us, least_us = exact(graph, name, "gpu", COSTS).divided_us[-1], time.rows.host.divided_us[-1]
            assert max(time.on_devices[0].whole_us, 0.85 * exact_us) < least_us <= exact_us * ROUNDING


@pytest.mark.parametrize(
    "graph", [inverted_residuals(2), fire_modules(14), *(random_net(seed) for seed in range(6))], ids=range(8)
)
def test_only_nodes_that_all_others_wait_for_count(graph: Graph) -> None:
    graph = PassManager(CLEANUP).run(graph).graph
    order = nx.DiGraph()
    order.add_nodes_from(node.name for node in graph.nodes)
    producers = ((graph.producer(name), node) for node in graph.nodes for name in node.inputs)
    order.add_edges_from((producer.name, node.name) for producer, node in producers if producer is not None)
    beside = {
        name
        for name in order
        if len(nx.ancestors(order, name)) + len(nx.descendants(order, name)) + 1 < len(graph.nodes)
    }
    _, weights = bound_of(graph, COSTS)
    times = times_of(graph, COSTS)
    alone = {name for name, us in weights.items() if us == times[name].alone_us > 0}
    assert not alone & beside


def test_nodes_that_skip_rows_are_not_waited_for() -> None:
    """Rows that a convolution does not read may be computed while it, or a later node, runs. So those behind the second
    one are balanced together."""
    graph = alternating(strided=True)
    times = times_of(graph, COSTS)
    first, second, *others = [name for name, time in times.items() if time.whole_us]
    prices = np.linspace(0, 1, 1001)
    balance = np.zeros(len(prices))
    for name in others:
        host, *units = times[name].on_devices
        balance += np.min([prices * host.whole_us, *((1 - prices) * unit.whole_us for unit in units)], axis=0)
    _, weights = bound_of(graph, COSTS)
    assert all(weights[name] == times[name].alone_us for name in (first, second))
    balanced_us = sum(weights[name] for name in others)
    assert balanced_us >= 0.99 * balance.max()
    assert balanced_us < 0.8 * sum(times[name].whole_us for name in others)


@pytest.mark.parametrize("gated", [False, True])
def test_nodes_between_waists_run_between_them(gated: bool) -> None:
    """Two branches take at least as long as their work takes if it is balanced."""
    build = Builder()
    x = build.gemm(build.input(1, 256), 512)
    left, right = build.gemm(x, 1024), build.gemm(x, 1024)
    left = build.mul(left, build.input(1, 1024, name="factors")) if gated else left
    graph = PassManager(CLEANUP).run(build.graph(build.gemm(build.add(left, right), 64))).graph
    times = times_of(graph, COSTS)
    first, *between, last = [name for name, time in times.items() if time.whole_us]
    bound_us, weights = bound_of(graph, COSTS)
    apart_us = times[first].alone_us + times[last].alone_us
    placed = product(*(("gpu", "pim")[: len(times[name].on_devices)] for name in between))
    cheapest_us = min(busiest_us(graph, dict(zip(between, devices, strict=True))) for devices in placed)
    assert len(between) == 2 + gated
    assert apart_us + 0.6 * cheapest_us < bound_us <= apart_us + cheapest_us * ROUNDING
    assert sum(weights.values()) == pytest.approx(bound_us)


def busiest_us(graph: Graph, devices: dict[str, str]) -> float:
    """The busiest device's time for nodes that run in parallel."""
    busy = dict.fromkeys(devices.values(), 0.0)
    for name, device in devices.items():
        placed = graph.node(name).placed(device=device, choice="auto" if device == "pim" else None, fused_into=None)
        busy[device] += COSTS.node_cost(graph, placed).time_us
    return max(busy.values())


def test_devices_that_share_a_node_have_a_part_each() -> None:
    """A kernel of few rows may take as long as one of all rows; then a unit's help gains nothing.

    Of nodes with 16 rows or more, only the rows are divided.
    """
    graph = PassManager(CLEANUP).run(heavy_chain(20)).graph
    times = times_of(graph, COSTS)
    gains = []
    for node in graph.nodes:
        rows, on_devices = node_rows(graph, node), times[node.name].on_devices
        if not isinstance(node.op, Conv2d) or rows < FEW_ROWS:
            continue
        alone = [part_us(graph, node, device, 0, rows) for device in ("gpu", "pim")]
        shared = [
            max(part_us(graph, node, "gpu", 0, cut), part_us(graph, node, "pim", cut, rows - cut))
            for cut in range(1, rows)
        ]
        together_us = 1 / sum(1 / one.whole_us for one in on_devices)
        cheapest_us = min(*alone, *shared)
        assert max(together_us, 0.9 * cheapest_us) <= times[node.name].whole_us <= cheapest_us * ROUNDING
        gains.append(times[node.name].whole_us / together_us)
    assert max(gains) > 1.2
