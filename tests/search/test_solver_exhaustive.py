"""`auto` against brute force over the space that docs/plans.md describes: every plan of small graphs, applied.

Nothing here takes candidates from the search: order, units, forks, runs and their possible decisions are derived again
from that page, and prices are the timeline's for the whole graph.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, groupby, pairwise, product

import networkx as nx
import pytest

from pimflow.errors import PlanError
from pimflow.ir import (
    Concat,
    Conv2d,
    Decision,
    Graph,
    Node,
    OnDevice,
    Parallel,
    Pipeline,
    Plan,
    Slice,
    SplitColumns,
    SplitK,
    SplitRows,
)
from pimflow.ir.analysis.regions import pipeline_refusal
from pimflow.ir.plan import switches
from pimflow.options import Options
from pimflow.passes import CLEANUP, PassManager, Pipelining
from pimflow.runtime.costs import CostModel
from pimflow.runtime.timeline import build_timeline
from pimflow.search.pricing import rewrites
from pimflow.search.solver import solve
from pimflow.targets import Target
from pimflow.targets.overrides import override
from support.covers import carried_out
from support.graphs import ConvNet

Unit = tuple[Node, ...]
"""A node and the nodes fused into it."""
Found = Iterator[tuple[int, int, tuple[Decision, ...]]]
"""The units first .. last-1, and possible decisions for them."""
MAX_FOLLOWERS = 8
MAX_RUN = 12
MAX_WAITING = 3
FEW_ROWS = 16
MIN_K = 32
LONGEST_DIVIDED = 5


class Everything:
    """All possible decisions on a graph, as described in docs/plans.md."""

    def __init__(self, graph: Graph, costs: CostModel, stages: Sequence[int]) -> None:
        self.graph = graph
        self.costs = costs
        self.stages = stages
        self.order = self._order()
        self.units = self._units()

    def cheapest_us(self) -> float:
        """The time of the cheapest plan: devices synchronise after every decision, so stretches of the order add up."""
        best = [0.0] + [math.inf] * len(self.units)
        found = sorted(self.candidates(), key=lambda found: found[1])
        for last, ending in groupby(found, key=lambda found: found[1]):
            for first, _, decisions in ending:
                us = self._us(first, last, decisions) if math.isfinite(best[first]) else math.inf
                best[last] = min(best[last], best[first] + us)
            for first in range(last) if self.costs.channel_switch_us is not None else ():
                best[last] = min(best[last], best[first] + self._with_all_channels_us(first, last))
        alone = build_timeline(self.graph, self.costs.target, self.costs.host_only()).makespan_us
        return min(best[-1], alone)

    def _us(self, first: int, last: int, decisions: tuple[Decision, ...]) -> float:
        """The time of decisions in the whole graph, with all other nodes on the host; infinite if impossible."""
        before = tuple(OnDevice(node.name, "gpu") for unit in self.units[:first] for node in unit)
        behind = tuple(OnDevice(node.name, "gpu") for unit in self.units[last:] for node in unit)
        plan = Plan("one", (*before, *decisions, *behind), 0.0, 0.0)
        graph = self.graph
        try:
            for step in rewrites(plan, self.costs):
                graph = step.run(graph).graph
        except PlanError:
            return math.inf
        units = [node for node in graph.nodes if node.device == "pim"]
        if any(self.costs.refusal(graph, node, "pim", node.placement.choice or "") is not None for node in units):
            return math.inf
        regions = build_timeline(graph, self.costs.target, self.costs).region_us
        return sum(regions[len(before) : len(before) + len(decisions)])

    def _with_all_channels_us(self, first: int, last: int) -> float:
        """The time of units on the host with all memory channels, including handing these over and back."""
        inside = {node.name for unit in self.units[first:last] for node in unit}
        marked, plain = (
            [OnDevice(node.name, "gpu", choice if node.name in inside else "") for node in self.order]
            for choice in ("all-channels", "")
        )
        whole, others = (
            build_timeline(carried_out(self.graph, tuple(decisions), self.costs), self.costs.target, self.costs)
            for decisions in (marked, plain)
        )
        return whole.makespan_us - sum(
            us for us, node in zip(others.region_us, self.order, strict=True) if node.name not in inside
        )

    def _order(self) -> list[Node]:
        """Depth first: all operands of a node come before it, in order, with the node that it is fused into last."""
        order: dict[str, Node] = {}

        def visit(node: Node) -> None:
            into = node.placement.fused_into
            producers = [
                producer for name in node.inputs if name and (producer := self.graph.producer(name)) is not None
            ]
            root = [
                producer
                for producer in producers
                if into is not None and into in (producer.name, producer.placement.fused_into)
            ]
            for producer in (*(producer for producer in producers if producer not in root), *root):
                if producer.name not in order:
                    visit(producer)
            order[node.name] = node

        for node in self.graph.nodes:
            if not any(self.graph.users(name) for name in node.outputs):
                visit(node)
        return list(order.values())

    def _units(self) -> list[Unit]:
        units: list[Unit] = []
        for node in self.order:
            into = node.placement.fused_into
            if units and into is not None and into in [other.name for other in units[-1]]:
                units[-1] = (*units[-1], node)
            else:
                units.append((node,))
        return units

    def _able(self, node: Node) -> bool:
        return self.costs.refusal(self.graph, node, "pim", "auto") is None

    def _rows(self, node: Node) -> int:
        return self.graph.shape(node.output)[-2]

    def candidates(self) -> Found:
        """Every decision, with the units that it is about."""
        for index, unit in enumerate(self.units):
            behind = tuple(OnDevice(node.name, "gpu") for node in unit[1:])
            yield index, index + 1, (OnDevice(unit[0].name, "gpu"), *behind)
            if self._able(unit[0]):
                for choice in ("auto", ""):
                    yield index, index + 1, (OnDevice(unit[0].name, "pim", choice), *behind)
                    yield from self._row_splits(index, choice)
                yield from self._column_splits(index)
                yield from self._k_splits(index)
        yield from self._pipelines()
        yield from self._divided()
        yield from self._patterns()
        yield from self._branches()

    def _row_splits(self, index: int, choice: str) -> Found:
        anchor, rows = self.units[index][0], self._rows(self.units[index][0])
        tenths = {math.ceil(rows * tenth / 10) for tenth in range(1, 10)}
        for last in range(index + 1, len(self.units) + 1):
            followers = [node for unit in self.units[index:last] for node in unit][1:]
            if len(followers) > MAX_FOLLOWERS + len(self.units[index]) - 1 or not self._follow(anchor, followers):
                return
            for count in range(1, rows) if choice == "auto" else sorted(tenths - {rows}):
                names = tuple(node.name for node in followers)
                yield index, last, (SplitRows(anchor.name, count, choice, names),)

    def _follow(self, anchor: Node, followers: Sequence[Node]) -> bool:
        made = {anchor.output}
        for node in followers:
            if not node.op.is_elementwise or made.isdisjoint(node.inputs) or self._rows(node) != self._rows(anchor):
                return False
            made.add(node.output)
        return True

    def _column_splits(self, index: int) -> Found:
        anchor, *followers = self.units[index]
        by_channel = isinstance(anchor.op, Conv2d)
        if by_channel and self._rows(anchor) >= FEW_ROWS:
            return
        columns = self.graph.shape(anchor.output)[1 if by_channel else -1]
        for count in range(16, columns, 16):
            yield index, index + 1, (SplitColumns(anchor.name, count, "auto", tuple(n.name for n in followers)),)

    def _k_splits(self, index: int) -> Found:
        anchor, *fused = self.units[index]
        over = self.graph.shape(anchor.inputs[0])[1 if isinstance(anchor.op, Conv2d) else -1]
        behind = tuple(OnDevice(node.name, "gpu") for node in fused)
        divided = over >= MIN_K and max(self.costs.target.gpu.splits) > 1
        for count in range(16, over, 16) if divided else ():
            yield index, index + 1, (SplitK(anchor.name, count, "auto"), *behind)

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Units first .. last-1; all but the last are read by a later one, and at most 3 wait for that at a time."""
        for first in range(len(self.units)):
            for last in range(first + 1, len(self.units) + 1):
                run = range(first, last)
                waiting = [unit for unit in run if not any(self._reads(reader, unit) for reader in run)]
                heavy = sum(not self.units[unit][0].op.is_elementwise for unit in run)
                if heavy > MAX_RUN or len(run) > 2 * MAX_RUN or len(waiting) > MAX_WAITING:
                    break
                if len(run) > 1 and waiting == [last - 1]:
                    yield first, last

    def _reads(self, reader: int, producer: int) -> bool:
        made = {name for node in self.units[producer] for name in node.outputs}
        return reader != producer and any(not made.isdisjoint(node.inputs) for node in self.units[reader])

    def _pipelines(self) -> Found:
        for first, last in self._runs():
            run = self.units[first:last]
            names = tuple(node.name for unit in run for node in unit)
            if pipeline_refusal(self.graph, names) is not None:
                continue
            rows = self._rows(run[-1][-1])
            for leaving in product(*([False, True] if self._able(unit[0]) else [False] for unit in run)):
                if any(leaving) and (not all(leaving) or any(map(self._leaves_work, run))):
                    devices = _devices(run, leaving)
                    for cuts in (cuts for count in self.stages for cuts in combinations(range(1, rows), count - 1)):
                        stages = tuple(stop - start for start, stop in pairwise((0, *cuts, rows)))
                        yield first, last, (Pipeline(names, devices, stages, "auto"),)

    def _divided(self) -> Found:
        """Two units that can run on PIM in one stage, with any number of rows of each on the host; or a few units in
        the minimum number of stages, one of them on the host in the first or the last stage."""
        for first, last in self._runs():
            run = self.units[first:last]
            names = tuple(node.name for unit in run for node in unit)
            if last - first > LONGEST_DIVIDED or pipeline_refusal(self.graph, names) is not None:
                continue
            able = [self._able(unit[0]) for unit in run]
            devices, rows = _devices(run, able), self._rows(run[-1][-1])
            if last - first == 2 and all(able):
                for counts in product(*(range(1, self._rows(unit[0])) for unit in run)):
                    on_host = {unit[0].name: (count,) for unit, count in zip(run, counts, strict=True)}
                    yield first, last, (_with_rows_on_host(Pipeline(names, devices, (rows,), "auto"), on_host),)
            for cuts in combinations(range(1, rows), min(self.stages) - 1):
                stages = tuple(stop - start for start, stop in pairwise((0, *cuts, rows)))
                whole = Pipeline(names, devices, stages, "auto")
                for unit in (unit for unit, is_able in zip(run, able, strict=True) if is_able):
                    made = self._made(whole, unit[0])
                    for counts in ((*made[:1], *(0 for _ in made[1:])), (*(0 for _ in made[1:]), *made[-1:])):
                        yield first, last, (_with_rows_on_host(whole, {unit[0].name: counts}),)

    def _made(self, pipeline: Pipeline, node: Node) -> tuple[int, ...]:
        """The number of rows of a node that each stage of an applied pipeline makes."""
        cut = Pipelining(pipeline.run, pipeline.devices, pipeline.stage_rows).run(self.graph).graph
        made = dict.fromkeys(range(len(pipeline.stage_rows)), 0)
        for part in cut.nodes:
            if part.placement.origin == node.name and not isinstance(part.op, Slice | Concat):
                made[part.placement.stage or 0] += cut.shape(part.output)[-2]
        return tuple(made.values())

    def _leaves_work(self, unit: Unit) -> bool:
        """Whether a fused node reads a value made elsewhere: PIM can only apply functions of its own results."""
        made = {name for node in unit for name in node.outputs}
        return any(not made.issuperset(self.graph.activations(node)) for node in unit[1:])

    def _patterns(self) -> Found:
        """PIMFlow's patterns, in stages that are as equal as possible, bottom rows first."""
        for first, last in combinations(range(len(self.units) + 1), 2):
            run = self.units[first:last]
            kinds = "".join(self._kind(unit[0]) for unit in run)
            chain = all(unit[0].inputs[0] in [node.output for node in before] for before, unit in pairwise(run))
            if kinds not in ("pd", "dp", "pdp") or not chain:
                continue
            names, rows = tuple(node.name for unit in run for node in unit), self._rows(run[-1][-1])
            devices = _devices(run, [kind == "p" for kind in kinds])
            for count in self.stages:
                small, more = divmod(rows, count)
                stages = (small + 1,) * more + (small,) * (count - more)
                for some in {stages, stages[::-1]} if small else ():
                    yield first, last, (Pipeline(names, devices, some, "", True),)

    def _kind(self, node: Node) -> str:
        if not isinstance(node.op, Conv2d):
            return "-"
        if node.op.groups == 1:
            return "p" if node.op.kernel == (1, 1) and self._able(node) else "-"
        return "d" if node.op.groups == self.graph.shape(node.inputs[0])[1] else "-"

    def _branches(self) -> Found:
        for first, last in self._stretches():
            nodes = [node for unit in self.units[first:last] for node in unit]
            split = self._independent(nodes)
            if not 2 <= len(split) <= 4:
                continue
            able = [node.name for node in nodes if self._able(node)]
            for leaving in product((False, True), repeat=len(able)):
                away = {name for name, leaves in zip(able, leaving, strict=True) if leaves}
                if 0 < len(away) < len(nodes):
                    yield first, last, (Parallel(tuple(tuple(_placed(node, away) for node in b) for b in split)),)

    def _independent(self, nodes: Sequence[Node]) -> list[list[Node]]:
        """Groups of nodes that exchange no value with each other."""
        flow = nx.Graph()
        flow.add_nodes_from(node.name for node in nodes)
        producers = {name: node.name for node in nodes for name in node.outputs}
        flow.add_edges_from((producers[name], node.name) for node in nodes for name in node.inputs if name in producers)
        groups = [[node for node in nodes if node.name in group] for group in nx.connected_components(flow)]
        return sorted(groups, key=lambda group: nodes.index(group[0]))

    def _stretches(self) -> set[tuple[int, int]]:
        """All stretches between a fork and the join after it that are entered and left through these two alone."""
        flow = nx.DiGraph()
        for node in self.order:
            producers = [self.graph.producer(name) for name in self.graph.activations(node)]
            flow.add_edges_from(("start" if producer is None else producer.name, node.name) for producer in producers)
            if any(name in self.graph.outputs for name in node.outputs):
                flow.add_edge(node.name, "end")
        before, behind = nx.immediate_dominators(flow, "start"), nx.immediate_dominators(flow.reverse(), "end")
        starts = {unit[0].name: index for index, unit in enumerate(self.units)}
        found = set()
        for fork in (name for name in flow if name != "end" and flow.out_degree(name) > 1):
            join = behind[fork]
            if before.get(join) != fork:
                continue
            inside = nx.descendants(flow, fork) & nx.ancestors(flow, join)
            units = sorted(index for name, index in starts.items() if name in inside)
            if 2 <= len(inside) <= 24:
                found |= {(a, b + 1) for a in units for b in units if a <= b}
        return found


def _with_rows_on_host(pipeline: Pipeline, on_host: Mapping[str, tuple[int, ...]]) -> Pipeline:
    return replace(pipeline, host_rows=tuple(on_host.get(name, ()) for name in pipeline.run))


def _devices(run: Sequence[Unit], leaving: Sequence[bool]) -> tuple[str, ...]:
    return tuple(
        "pim" if leaves and node is unit[0] else "gpu"
        for unit, leaves in zip(run, leaving, strict=True)
        for node in unit
    )


def _placed(node: Node, away: set[str]) -> OnDevice:
    return OnDevice(node.name, "pim", "auto") if node.name in away else OnDevice(node.name, "gpu")


def small_net(seed: int, blocks: int, rows: int, *, joined: bool = False) -> Graph:
    """A chain of blocks: plain layers, residuals, forks of two branches, squeeze-and-excitation gates.

    With `joined`, one of them consists of two or three branches that a Concat joins. Nothing is fused into a Concat, so
    these exchange nothing; a residual add is part of one of its branches.
    """
    rng = random.Random(seed)
    net = ConvNet(f"small{seed}")
    x = net.input(1, rng.choice((32, 64, 128)), rows, rng.choice((7, 14, 28)))
    place = rng.randrange(blocks) if joined else blocks
    for block in range(blocks):
        kind = rng.choice(("layer", "layer", "layer", "residual", "fork", "gate"))
        channels = rng.choice((32, 64, 128, 256))
        if block == place:
            x = net.concat(1, *(_layer(net, rng, x, rng.choice((32, 64, 128))) for _ in range(rng.choice((2, 2, 3)))))
        elif kind == "layer":
            x = _layer(net, rng, x, channels)
        elif kind == "residual":
            x = net.add(x, _layer(net, rng, x, net.shape(x)[1]))
        elif kind == "fork":
            x = net.add(net.layer(x, channels), net.layer(x, channels, 3))
        else:
            gate = net.conv(net.global_average(x), net.shape(x)[1], 1)
            x = net.mul(x, net.sigmoid(gate))
    return PassManager(CLEANUP).run(net.graph(net.relu(_layer(net, rng, x, channels)))).graph


def _layer(net: ConvNet, rng: random.Random, x: str, channels: int) -> str:
    kind = rng.choice(("pointwise", "pointwise", "window", "depthwise"))
    if kind == "depthwise" and net.shape(x)[1] == channels:
        x = net.wise(x)
    else:
        x = net.layer(x, channels, 1 if kind == "pointwise" else 3)
    return net.relu(x) if rng.random() < 0.5 else x


MACHINES = {"quick launches": 1000, "as shipped": None}


def machine(launch_cycles: int | None) -> Target:
    """The shipped machine, or one whose GPU also uses split-K, so that plans may."""
    quick = {"gpu.launch_cycles": launch_cycles, "gpu.splits": [1, 4]}
    return override("pimflow", {} if launch_cycles is None else quick)


def gap(graph: Graph, target: Target, stages: tuple[int, ...] | None) -> float:
    """How much longer auto's plan takes than the cheapest of all, relative to that.

    Below 0 if it continues from one of PIMFlow's patterns to a plan that the page does not promise.
    """
    options = Options.of(target=target, use_cache=False, stages=stages)
    found = solve(graph, options, costs=CostModel(target)).predicted_us
    return found / Everything(graph, CostModel(target), stages or (2, 3, 4, 5)).cheapest_us() - 1


@pytest.mark.parametrize("seed", range(4))
def test_auto_finds_the_cheapest_plan_of_all(seed: int) -> None:
    assert gap(small_net(seed, 2, 6), machine(1000), None) < 1e-9


@pytest.mark.parametrize("seed", [2, 8])
def test_auto_finds_the_cheapest_plan_of_concurrent_branches(seed: int) -> None:
    graph, target = small_net(seed, 2, 6, joined=True), machine(1000)
    everything = Everything(graph, CostModel(target), (2, 3))
    assert any(isinstance(decision, Parallel) for _, _, decisions in everything.candidates() for decision in decisions)
    assert gap(graph, target, (2, 3)) < 1e-9


@pytest.mark.parametrize("seed", [5, 9])
def test_auto_finds_the_cheapest_plan_with_reassigned_channels(seed: int) -> None:
    target = override(machine(1000), {"pim.channel_switch_us": 0.003})
    graph, costs = small_net(seed, 2, 4), CostModel(target)
    plan = solve(graph, Options.of(target=target, use_cache=False, stages=(2,)), costs=costs)
    assert plan.predicted_us == pytest.approx(Everything(graph, costs, (2,)).cheapest_us(), rel=1e-9)
    assert switches(plan.decisions) > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(200))
def test_auto_finds_the_cheapest_plan_of_all_of_200_graphs(seed: int) -> None:
    rng = random.Random(seed)
    blocks, stages = rng.choice(((2, None), (3, (2, 3)), (4, (2,))))
    graph = small_net(1000 + seed, blocks, rng.randint(5, 8))
    assert gap(graph, machine(rng.choice((300, 1000, None))), stages) < 1e-9


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100))
def test_auto_finds_the_cheapest_plan_of_all_of_100_graphs_with_branches(seed: int) -> None:
    rng = random.Random(seed)
    blocks, stages = rng.choice(((2, None), (2, (2, 3)), (3, (2,))))
    graph = small_net(1000 + seed, blocks, rng.randint(5, 7), joined=True)
    assert gap(graph, machine(rng.choice((300, 1000, None))), stages) < 1e-9
