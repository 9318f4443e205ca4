"""The lower bound on the makespan: below every plan, and equal to what other programs compute for the same machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, combinations, islice, pairwise, product

import networkx as nx
import numpy as np
import onnx
import pulp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from pimflow.frontend import load_model
from pimflow.ir import (
    Array,
    Builder,
    Conv2d,
    Decision,
    Graph,
    OnDevice,
    Parallel,
    Pipeline,
    SplitColumns,
    SplitK,
    SplitRows,
)
from pimflow.ir.analysis.regions import node_rows
from pimflow.ir.plan import Single
from pimflow.options import Options
from pimflow.passes import CLEANUP, PassManager
from pimflow.runtime.costs import CostModel
from pimflow.runtime.gpu.measured import MeasuredRow, MeasuredTable
from pimflow.runtime.timeline import build_timeline
from pimflow.search.candidates import Candidates
from pimflow.search.least_times import SLACK, Costs
from pimflow.search.makespan_bound import MakespanBound, makespan_bound
from pimflow.search.policy import find_policy, offered_policies
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import Pricer
from pimflow.search.solver import solve
from pimflow.targets import Target, load_target
from pimflow.targets.overrides import override
from support.costs import GPU_RATE, PIM_RATE, FakeCosts
from support.graphs import fire_modules, heavy_chain, inverted_residuals, random_net
from support.onnx_models import model_of
from support.passes import plan_of, rewritten

ROUNDING = 1 + 1e-9


def fast_gpu() -> Target:
    """A machine on which launches and waves are cheap, so that splits of all kinds pay."""
    changes = {"gpu.launch_cycles": 300, "gpu.step_cycles": 40.0, "gpu.fill_cycles": 40.0, "gpu.splits": [1, 4]}
    return override("pimflow", changes)


def bound_of(graph: Graph, costs: Costs) -> MakespanBound:
    host_us = build_timeline(graph, costs.target, costs.host_only()).makespan_us  # type: ignore[attr-defined]
    return makespan_bound(graph, costs, host_us)


@dataclass(frozen=True)
class Shown:
    """A graph whose repr, in a failing test, shows how it was made instead of all its weights."""

    graph: Graph

    def __repr__(self) -> str:
        return str([(node.op, self.graph.shape(node.output)) for node in self.graph.nodes])


@st.composite
def chains(draw: st.DrawFn) -> Graph:
    """Three convolutions with few rows, one after the other, with elementwise ops between them: in their kernels, or in
    kernels of their own, as they read a second input."""
    build = Builder(seed=draw(st.integers(0, 9)))
    x = build.input(1, draw(st.sampled_from([16, 64])), draw(st.integers(4, 6)), draw(st.sampled_from([7, 30])))
    for _ in range(3):
        kind = draw(st.sampled_from(["pointwise", "window", "depthwise", "strided"]))
        if kind == "depthwise":
            x = build.depthwise(x, 3, 1)
        else:
            kernel, stride = {"pointwise": (1, 1), "window": (3, 1), "strided": (1, 2)}[kind]
            stride = stride if min(build.shape(x)[2:]) > 3 else 1
            x = build.conv(x, draw(st.sampled_from([32, 96])), kernel, stride, pad=kernel // 2)
        x = build.relu(x) if draw(st.booleans()) else x
        x = build.mul(x, build.input(*build.shape(x), name="factors")) if draw(st.booleans()) else x
    return PassManager(CLEANUP).run(build.graph(x)).graph


def every_decision(graph: Graph, pricer: Pricer) -> Iterator[tuple[int, int, tuple[Decision, ...]]]:
    """All decisions on consecutive units of a chain: start, stop, and the decisions; nothing is left out."""
    scene = Candidates(graph, find_policy("auto"), pricer).scene
    for unit in scene.units:
        anchor, followers = unit.anchor, tuple(node.name for node in unit.nodes[1:])
        behind = tuple(OnDevice(name, "gpu") for name in followers)
        for device in ("gpu", "pim"):
            yield unit.start, unit.stop, (OnDevice(anchor.name, device, "auto" if device == "pim" else ""), *behind)
        for rows in range(1, node_rows(graph, anchor)):
            yield unit.start, unit.stop, (SplitRows(anchor.name, rows, "auto", followers),)
        for columns in range(16, graph.shape(anchor.output)[1], 16):
            yield unit.start, unit.stop, (SplitColumns(anchor.name, columns, "auto", followers),)
        for inner in range(16, graph.shape(anchor.inputs[0])[1], 16):
            yield unit.start, unit.stop, (SplitK(anchor.name, inner, "auto"), *behind)
    for first, last in combinations(range(len(scene.units)), 2):
        run = scene.units[first : last + 1]
        nodes = [node for unit in run for node in unit.nodes]
        names, rows = tuple(node.name for node in nodes), node_rows(graph, nodes[-1])
        for leaving in product((False, True), repeat=len(run)):
            away = {unit.anchor.name for unit, leaves in zip(run, leaving, strict=True) if leaves}
            devices = tuple("pim" if name in away else "gpu" for name in names)
            for cuts in (cuts for count in (1, 2, 4) for cuts in combinations(range(1, rows), count)):
                stages = tuple(stop - start for start, stop in pairwise((0, *cuts, rows)))
                for bottom in (False, True):
                    yield run[0].start, run[-1].stop, (Pipeline(names, devices, stages, "auto", bottom),)


def neighbours_divided(graph: Graph, pricer: Pricer) -> Iterator[tuple[int, int, tuple[Decision, ...]]]:
    """Two units, each split into two parts that wait for the rows that they read, in one stage."""
    scene = Candidates(graph, find_policy("auto"), pricer).scene
    for first, second in pairwise(scene.units):
        names = tuple(node.name for node in (*first.nodes, *second.nodes))
        devices = tuple("pim" if name in (first.anchor.name, second.anchor.name) else "gpu" for name in names)
        rows = node_rows(graph, first.anchor), node_rows(graph, second.anchor)
        for counts in product(range(1, rows[0]), range(1, rows[1])):
            on_host = {first.anchor.name: counts[:1], second.anchor.name: counts[1:]}
            host_rows = tuple(on_host.get(name, ()) for name in names)
            yield first.start, second.stop, (Pipeline(names, devices, rows[1:], "auto", host_rows=host_rows),)


def joined_pairs(graph: Graph, pricer: Pricer) -> Iterator[tuple[int, int, tuple[Decision, ...]]]:
    """Decisions on consecutive units without a synchronisation between them: a sample of all pairs."""
    found = [one for one in every_decision(graph, pricer) if not isinstance(one[2][0], Pipeline) or one[0] == 0]
    pairs = (pair for pair in product(found, found) if pair[0][1] == pair[1][0])
    for (start, _, first), (_, stop, second) in islice(pairs, 0, None, 37):
        yield start, stop, (Parallel((tuple(map(_single, (*first, *second))),)),)


def _single(decision: Decision) -> Single:
    assert not isinstance(decision, Parallel)
    return decision


def cheapest_of_all(graph: Graph, costs: Costs) -> float:
    """The time of the cheapest plan: the times of regions add up, so the cheapest cover is found node by node."""
    pricer = Pricer(graph, costs, PriceCache(None, ""))  # type: ignore[arg-type]
    size = len(graph.nodes)
    ending: dict[int, list[tuple[int, float]]] = {stop: [] for stop in range(size + 1)}
    ways = every_decision(graph, pricer), neighbours_divided(graph, pricer), joined_pairs(graph, pricer)
    for start, stop, decisions in chain(*ways):
        try:
            us = pricer.cost(decisions)
        except (KeyError, AssertionError):
            us = None
        if us is not None:
            ending[stop].append((start, us))
    best = [0.0] + [math.inf] * size
    for stop in range(1, size + 1):
        best[stop] = min((best[start] + us for start, us in ending[stop]), default=math.inf)
    return best[size]


MACHINES: dict[str, Callable[[], Costs]] = {
    "fake": FakeCosts,
    "fast GPU": lambda: CostModel(fast_gpu()),
}


@pytest.mark.parametrize("machine", MACHINES)
@settings(max_examples=2, print_blob=True)
@given(data=st.data())
def test_no_plan_is_below_it(machine: str, data: st.DataObject) -> None:
    graph, costs = data.draw(chains().map(Shown)).graph, MACHINES[machine]()
    bound = bound_of(graph, costs)
    cheapest = min(bound.host_us, cheapest_of_all(graph, costs))
    assert 0 < bound.time_us <= cheapest * ROUNDING


GRAPHS = {
    "inverted": inverted_residuals(1),
    "fire": fire_modules(14),
    "random": random_net(2),
}
CASES = [(name, "pimflow") for name in GRAPHS]
CASES += [("random", machine) for machine in ("aim-gddr6", "hbm-pim", "turing-pim", "pimflow-cpu")]


@pytest.mark.parametrize(("name", "machine"), CASES)
def test_no_policy_finds_a_plan_below_it(name: str, machine: str) -> None:
    graph = PassManager(CLEANUP).run(GRAPHS[name]).graph
    costs = CostModel(load_target(machine))
    prices = PriceCache(None, "")
    for policy in offered_policies(costs.units):
        options = Options.of(target=costs.target, policy=policy, use_cache=False, grid=20, stages=(2, 3))
        plan = solve(graph, options, costs=costs, prices=prices)
        bound = makespan_bound(graph, costs, plan.baseline_us)
        assert bound.time_us <= plan.predicted_us * ROUNDING, policy
        assert bound.time_us > 0.2 * plan.predicted_us or policy != "auto", "the bound is too weak"


def test_measured_times_bound_parts_too() -> None:
    """A kernel with a fast measured time may be a part of a node, so all nodes with its op may be as fast."""
    graph = PassManager(CLEANUP).run(heavy_chain(14)).graph
    target = load_target("pimflow")
    conv = next(node for node in graph.nodes if isinstance(node.op, Conv2d))
    halves = [(1, 128, 8, 14), graph.shape(conv.inputs[1])]
    row = MeasuredRow(conv.op, tuple(halves), ((1, 256, 7, 14),), "float16", 0.5, "here", "")
    plain, measured = CostModel(target), CostModel(target, measured=MeasuredTable([row]))
    assert bound_of(graph, measured).load_us < 0.6 * bound_of(graph, plain).load_us


@pytest.mark.parametrize("fused", [False, True])
def test_load_matches_a_linear_program(fused: bool) -> None:
    """If a fused node reads a second tensor, a unit leaves it to the host."""
    graph, costs = inverted_residuals(2), FakeCosts()
    left = {}
    if fused:
        graph = PassManager(CLEANUP).run(graph).graph
        adds = [node for node in graph.nodes if node.op.onnx_name == "Add"]
        left = {node.placement.fused_into: 1.0 + math.prod(graph.shape(node.output)) / 0.8e6 for node in adds}
        assert len(left) == 2
    names = [node.name for node in graph.nodes]
    times = [closed_form(graph, name) for name in names]
    program = pulp.LpProblem("balance", pulp.LpMinimize)
    new_variable = getattr(program, "add_variable", pulp.LpVariable)  # PuLP before 3.3 has only the class
    makespan = new_variable("makespan", 0)
    program += makespan
    shares = [new_variable(f"share{index}", 0, 1 if pim is not None else 0) for index, (_, pim) in enumerate(times)]
    behind = pulp.lpSum(left.get(name, 0.0) * x for name, x in zip(names, shares, strict=True))
    program += pulp.lpSum(gpu * (1 - x) for (gpu, _), x in zip(times, shares, strict=True)) + behind <= makespan
    program += pulp.lpSum((pim or 0.0) * x for (_, pim), x in zip(times, shares, strict=True)) <= makespan
    program.solve(pulp.HiGHS(msg=False))
    balance = pulp.value(makespan)
    assert balance * (1 - SLACK) <= bound_of(graph, costs).load_us <= balance * ROUNDING


def closed_form(graph: Graph, name: str) -> tuple[float, float | None]:
    """The time of a node under `FakeCosts` on the GPU, and on PIM with the best choice, from its docstring; None:
    cannot run."""
    node = graph.node(name)
    shape = graph.shape(node.output)
    if node.placement.fused_into is not None or node.op.is_movement:
        return 0.0, None
    outputs = math.prod(shape)
    if node.op.is_contraction:
        weights = graph.shape(node.inputs[1])
        depthwise = isinstance(node.op, Conv2d) and node.op.groups > 1
        depth = math.prod(weights[1:]) if isinstance(node.op, Conv2d) else graph.shape(node.inputs[0])[-1]
        if depthwise:
            return 1.0 + 36 * outputs / (0.8 * GPU_RATE), None
        return 1.0 + outputs * depth / (0.8 * GPU_RATE), 0.5 + outputs * depth / max(PIM_RATE.values())
    return 1.0 + outputs / 0.8e6, None


def test_path_is_the_longest_of_a_network_that_nothing_can_overlap() -> None:
    """Global reductions read all of what precedes them, so that no parts of two layers run at once."""
    build = Builder()
    x = build.input(1, 64, 12, 12)
    for _ in range(3):
        gate = build.global_average(build.depthwise(x, 3, 1))
        x = build.mul(build.depthwise(x, 3, 1), gate)
    graph = PassManager(CLEANUP).run(build.graph(x)).graph
    costs = FakeCosts()
    flow = nx.DiGraph()
    for node in graph.nodes:
        for name in node.inputs:
            producer = graph.producer(name)
            if producer is not None:
                flow.add_edge(producer.name, node.name)
    times = {node.name: closed_form(graph, node.name)[0] for node in graph.nodes}
    longest = max(
        sum(times[name] for name in path)
        for source in flow
        if flow.in_degree(source) == 0
        for sink in flow
        if flow.out_degree(sink) == 0
        for path in nx.all_simple_paths(flow, source, sink)
    )
    bound = bound_of(graph, costs)
    assert 0.97 * longest < bound.path_us <= longest * ROUNDING


def test_bottlenecks_make_half_of_it() -> None:
    bound = bound_of(inverted_residuals(3), CostModel(load_target("pimflow")))
    times = [bottleneck.time_us for bottleneck in bound.bottlenecks]
    assert times == sorted(times, reverse=True)
    assert sum(times) >= bound.time_us / 2 > sum(times[:-1])


def test_a_machine_whose_units_do_not_pay_is_bound_by_its_host() -> None:
    graph = PassManager(CLEANUP).run(inverted_residuals(1)).graph
    costs = FakeCosts(slow_down=1e4)
    bound = bound_of(graph, costs)
    assert bound.binding == "host"
    assert bound.time_us == bound.host_us


def test_movements_alone_are_bound_by_the_host() -> None:
    """Nothing else computes them, though a plan could spare each of them elsewhere."""
    build = Builder()
    x = build.input(1, 8, 8, 8)
    bound = bound_of(build.graph(build.transpose(x, 0, 2, 3, 1)), CostModel(load_target("pimflow")))
    assert bound.binding == "host"
    assert bound.ratio(bound.host_us) == 1
    assert bound.time_us == bound.host_us > 0


def two_recurrent(op_type: str) -> Graph:
    """Two independent layers on one input; each has a product of all steps, and its steps."""
    steps, features, hidden = 12, 256, 64
    rng = np.random.default_rng(0)
    gates = {"LSTM": 4, "GRU": 3}[op_type] * hidden
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, Array] = {}
    for name in ("first", "second"):
        shapes = {f"{name}_w": (1, gates, features), f"{name}_r": (1, gates, hidden)}
        constants |= {weight: rng.standard_normal(shape).astype(np.float32) for weight, shape in shapes.items()}
        nodes.append(helper.make_node(op_type, ["x", *shapes], [f"{name}_y"], name, hidden_size=hidden))
    nodes.append(helper.make_node("Concat", ["first_y", "second_y"], ["y"], axis=3))
    graph = load_model(model_of(nodes, {"x": (steps, 8, features)}, constants=constants))
    return PassManager(CLEANUP).run(graph).graph


@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
def test_steps_of_recurrent_layers_stay_with_the_host(op_type: str) -> None:
    """Wherever their products are computed: no placement of both takes less than the bound, or much more."""
    graph, target = two_recurrent(op_type), load_target("pimflow")
    costs = CostModel(target)
    names = [node.name for node in graph.nodes if not node.op.is_movement]
    makespans, busy = [], []
    for devices in product(("gpu", "pim"), repeat=len(names)):
        both = Parallel(tuple((OnDevice(*placed),) for placed in zip(names, devices, strict=True)))
        others = [OnDevice(node.name, "gpu") for node in graph.nodes if node.op.is_movement]
        timeline = build_timeline(rewritten(graph, plan_of(both, *others), costs), target, costs)
        makespans.append(timeline.makespan_us)
        busy.append(sum(event.end_us - event.start_us for event in timeline.events if event.resource == "gpu"))
    bound = bound_of(graph, costs)
    assert 0.9 * min(busy) < bound.load_us <= min(makespans) * ROUNDING
    alone = min(solve(graph, Options.of(target=target, use_cache=False), costs=costs).predicted_us, *makespans)
    assert 0.7 * alone < bound.time_us <= alone * ROUNDING
