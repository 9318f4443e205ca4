"""The time of nodes that all others wait for: against every way to cut them into runs, and every two-way split."""

from __future__ import annotations

from functools import cache
from itertools import combinations, pairwise, product

import networkx as nx
import numpy as np
import pytest

from pimflow.ir import Builder, Conv2d, Graph, Node
from pimflow.ir.analysis.regions import node_rows
from pimflow.passes import CLEANUP, PassManager
from pimflow.runtime.costs import CostModel
from pimflow.search.least_times import LeastTimes, NodeTimes
from pimflow.search.makespan_bound import makespan_bound
from pimflow.search.meeting_bound import meeting_bound
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
def times_of(graph: Graph, costs: CostModel) -> tuple[LeastTimes, dict[str, NodeTimes]]:
    least = LeastTimes(graph, costs)
    return least, {node.name: least.of(node) for node in graph.nodes}


def bound_of(graph: Graph, costs: CostModel) -> tuple[float, dict[str, float]]:
    """The bound without the host's work for epilogues."""
    least, times = times_of(graph, costs)
    return meeting_bound(graph, times, {}, least)


def cheapest_cut(graph: Graph, costs: CostModel) -> float:
    """The cheapest way to cut a chain of convolutions, with a separate price for each run. Elementwise nodes may be in
    the decision of the convolution before them, however that is divided."""
    least, times = times_of(graph, costs)
    names = [name for name, time in times.items() if time.whole_us]
    prices = np.linspace(0, 1, 501)

    def takes(run: list[str]) -> float:
        if len(run) == 1:
            return times[run[0]].whole_us
        if all(graph.node(name).op.is_elementwise for name in run[1:]):
            return min(takes_in_parts(run), max(times[run[0]].whole_us, takes_balanced(run)))
        return takes_in_parts(run)

    def takes_balanced(run: list[str]) -> float:
        total = np.zeros(len(prices))
        for name in run:
            host, *units = times[name].on_devices
            total += np.min([prices * host.whole_us, *((1 - prices) * unit.whole_us for unit in units)], axis=0)
        return float(total.max())

    def takes_in_parts(run: list[str]) -> float:
        total = np.zeros(len(prices))
        for name in run:
            host, *units = times[name].on_devices
            divided_us = least.divided_us(graph.node(name)) or np.inf
            options = [prices * (max(host.whole_us, 2 * host.row_us) if units else divided_us)]
            for unit in units:
                options.append((1 - prices) * unit.whole_us)
                for share in np.linspace(0, 1, 301):
                    on_host = prices * max(host.row_us, share * host.whole_us)
                    options.append(on_host + (1 - prices) * max(unit.row_us, (1 - share) * unit.whole_us))
            total += np.min(options, axis=0)
        return float(total.max())

    cuts = (cut for count in range(len(names)) for cut in combinations(range(1, len(names)), count))
    return min(sum(takes(names[a:b]) for a, b in pairwise((0, *cut, len(names)))) for cut in cuts)


@pytest.mark.parametrize("costs", [COSTS, FAST], ids=["shipped", "fast GPU"])
@pytest.mark.parametrize("graph", [alternating(), gated()], ids=["alternating", "gated"])
def test_the_minimum_over_all_cuts(graph: Graph, costs: CostModel) -> None:
    bound_us, weights = bound_of(graph, costs)
    exact = cheapest_cut(graph, costs)
    assert 0.95 * exact <= bound_us <= exact * ROUNDING
    assert sum(weights.values()) == pytest.approx(bound_us)


def test_elementwise_nodes_take_their_time() -> None:
    graph = gated()
    products = [node.name for node in graph.nodes if node.op.is_elementwise]
    weights = bound_of(graph, COSTS)[1]
    _, times = times_of(graph, COSTS)
    assert len(products) == 2
    assert all(0.5 * times[name].whole_us < weights[name] <= times[name].whole_us * ROUNDING for name in products)


def test_it_exceeds_the_load_bound_if_every_part_is_a_launch() -> None:
    graph = alternating()
    bound = makespan_bound(graph, COSTS, 1e9)
    assert bound.binding == "meeting"
    assert bound.meeting_us > 1.05 * max(bound.load_us, bound.path_us)


def in_two_parts_or_more(graph: Graph, name: str) -> float:
    """The minimum host time of a node in parts, over all ways to split its rows."""
    node = graph.node(name)
    rows = node_rows(graph, node)
    best = {(0, 0): 0.0}
    for stop in range(1, rows + 1):
        for start in range(stop):
            if (start, stop) == (0, rows):
                continue
            for part in extract_row_parts(graph, node, [start], stop - start):
                us = COSTS.node_cost(part, part.nodes[0].placed(device="gpu", fused_into=None)).time_us
                for parts in (0, 1, 2):
                    if (start, parts) in best:
                        more = stop, min(parts + 1, 2)
                        best[more] = min(best.get(more, np.inf), best[start, parts] + us)
    return best[rows, 2]


def test_a_split_node_takes_one_kernel_per_part() -> None:
    graph = alternating()
    least, times = times_of(graph, COSTS)
    for name, time in times.items():
        if time.whole_us:
            divided_us = least.divided_us(graph.node(name))
            exact = in_two_parts_or_more(graph, name)
            assert divided_us is not None
            assert max(time.on_devices[0].whole_us, 0.85 * exact) <= divided_us <= exact * ROUNDING
            assert divided_us > time.on_devices[0].whole_us


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
    _, times = times_of(graph, COSTS)
    alone = {name for name, us in weights.items() if us == times[name].whole_us > 0}
    assert not alone & beside


def test_nodes_that_skip_rows_are_not_waited_for() -> None:
    """Rows that a convolution does not read may be computed while it, or a later node, runs. So those behind the second
    one are balanced together."""
    graph = alternating(strided=True)
    _, times = times_of(graph, COSTS)
    first, second, *others = [name for name, time in times.items() if time.whole_us]
    prices = np.linspace(0, 1, 1001)
    balance = np.zeros(len(prices))
    for name in others:
        host, *units = times[name].on_devices
        balance += np.min([prices * host.whole_us, *((1 - prices) * unit.whole_us for unit in units)], axis=0)
    _, weights = bound_of(graph, COSTS)
    assert all(weights[name] == times[name].whole_us for name in (first, second))
    balanced_us = sum(weights[name] for name in others)
    assert 0.99 * balance.max() <= balanced_us <= balance.max() * ROUNDING
    assert balanced_us < 0.8 * sum(times[name].whole_us for name in others)


@pytest.mark.parametrize("gated", [False, True])
def test_nodes_between_waists_run_between_them(gated: bool) -> None:
    """Two branches take at least as long as their work takes if it is balanced."""
    build = Builder()
    x = build.gemm(build.input(1, 256), 512)
    left, right = build.gemm(x, 1024), build.gemm(x, 1024)
    left = build.mul(left, build.input(1, 1024, name="factors")) if gated else left
    graph = PassManager(CLEANUP).run(build.graph(build.gemm(build.add(left, right), 64))).graph
    _, times = times_of(graph, COSTS)
    first, *between, last = [name for name, time in times.items() if time.whole_us]
    bound_us, weights = bound_of(graph, COSTS)
    apart_us = times[first].whole_us + times[last].whole_us
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
    _, times = times_of(graph, COSTS)
    gains = []
    for node in graph.nodes:
        rows, on_devices = node_rows(graph, node), times[node.name].on_devices
        if not isinstance(node.op, Conv2d) or rows < FEW_ROWS:
            continue
        alone = [part_us(graph, node, device, 0, rows) for device in ("gpu", "pim")]
        shared = [
            max(part_us(graph, node, "gpu", 0, cut), part_us(graph, node, "pim", cut, rows)) for cut in range(1, rows)
        ]
        together_us = 1 / sum(1 / one.whole_us for one in on_devices)
        cheapest_us = min(*alone, *shared)
        assert max(together_us, 0.9 * cheapest_us) <= times[node.name].whole_us <= cheapest_us * ROUNDING
        gains.append(times[node.name].whole_us / together_us)
    assert max(gains) > 1.2


def part_us(graph: Graph, node: Node, device: str, start: int, stop: int) -> float:
    """The time of some rows of a node."""
    (part,) = extract_row_parts(graph, node, [start], stop - start)
    placed = part.nodes[0].placed(device=device, choice="auto" if device == "pim" else None, fused_into=None)
    return COSTS.node_cost(part, placed).time_us
