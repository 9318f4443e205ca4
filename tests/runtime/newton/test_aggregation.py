"""Sums over edges on the channels of a whole machine: refused by statistics, chosen where they pay, and verified."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import pimflow
from pimflow.data import Table
from pimflow.ir import Builder, Graph, OnDevice, Plan, Refusal, SplitEdges, Spmm
from pimflow.options import Options
from pimflow.passes import PassManager, edge_split
from pimflow.report.plan_report import PlanReport, report_plan
from pimflow.runtime.costs import CostModel
from pimflow.runtime.newton import aggregation
from pimflow.runtime.newton.aggregation import _division_us
from pimflow.runtime.newton.spmm_cost import SpmmCost
from pimflow.runtime.timeline import build_timeline
from pimflow.search.candidates import Candidates
from pimflow.search.policy import find_policy
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import Pricer, rewrites
from pimflow.search.solver import solve
from pimflow.sparse.generate import like, road_grid
from pimflow.sparse.groups import GroupCounts
from pimflow.targets import Target, load_target
from support.newton.aggregation import Edges, dense_blocks, random_edges
from support.values import relative_error

PIMFLOW = load_target("pimflow")


def clocked(clock_mhz: float) -> Target:
    """The machine with another PIM clock."""
    return replace(PIMFLOW, units=Table({**PIMFLOW.units, "pim": replace(PIMFLOW.pim, clock_mhz=clock_mhz)}))


def cached(l2_kib: float) -> Target:
    """The machine with another L2 cache of the GPU."""
    return replace(PIMFLOW, units=Table({**PIMFLOW.units, "gpu": replace(PIMFLOW.gpu, l2_kib=l2_kib)}))


FAST = clocked(1e6)


def sum_model(vertices: int, width: int) -> bytes:
    """A sum over edges as exporters write it, followed by a bias and an activation."""
    make, shape = helper.make_node, (vertices, width)
    nodes = [
        make("Gather", ["edge_index", "zero"], ["src"], axis=0),
        make("Gather", ["edge_index", "one"], ["dst"], axis=0),
        make("Gather", ["x", "src"], ["messages"], axis=0),
        make("Unsqueeze", ["dst", "axes"], ["column"]),
        make("Shape", ["messages"], ["size"]),
        make("Expand", ["column", "size"], ["index"]),
        make("ScatterElements", ["zeros", "index", "messages"], ["sums"], axis=0, reduction="add"),
        make("Add", ["sums", "bias"], ["biased"]),
        make("Relu", ["biased"], ["y"]),
    ]
    constants = {
        "zero": np.array(0),
        "one": np.array(1),
        "axes": np.array([1]),
        "zeros": np.zeros(shape, np.float32),
        "bias": np.linspace(-1, 1, width, dtype=np.float32),
    }
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("edge_index", TensorProto.INT64, [2, "edges"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "sum", inputs, outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString())


def program(edges: Edges, *, weighted: bool = True, scaled: bool = False, reduce: str = "sum") -> Graph:
    build = Builder()
    operands = [build.input(*edges.features.shape, name="x"), build.constant(edges.rowptr, "rowptr")]
    operands.append(build.constant(edges.col.astype(np.int32), "col"))
    operands.append(build.constant(edges.weight, "weight") if weighted else "")
    rows = len(edges.rowptr) - 1
    if scaled:
        operands.append(build.constant(np.linspace(1, 2, rows).astype(np.float32), "scale"))
    return build.graph(build.op(Spmm(reduce), *operands, name="sum"))


def verdict(graph: Graph, target: Target = PIMFLOW) -> str:
    work = CostModel(target).work(graph, graph.node("sum"), "pim")
    return work.reason if isinstance(work, Refusal) else ""


def on_pim(graph: Graph) -> Graph:
    node = graph.node("sum")
    return replace(graph, nodes=(node.placed(device="pim", choice="auto"),))


SPARSE = random_edges(20_000, 3_000, 30_000, 64, 1)
SMALL = random_edges(1_200, 60, 500, 24, 2)


def test_statistics_refuse_a_sparse_graph_before_any_stream_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(aggregation, "pack")
    monkeypatch.delattr(aggregation, "fastest_program")
    reason = verdict(program(SPARSE))
    assert reason.startswith("1.00 edges a group of 16 sources, ")
    assert "needed to be faster than the host" in reason


def test_the_required_density_follows_from_the_target() -> None:
    def needed(target: Target) -> float:
        return float(verdict(program(SPARSE), target).split(", ")[1].split()[0])

    assert needed(clocked(437.5)) == pytest.approx(2 * needed(PIMFLOW), rel=0.02)
    assert verdict(program(SPARSE), FAST) == "", "fast enough, and it may pay"


def test_placed_sums_are_not_checked_again() -> None:
    costs, graph = CostModel(PIMFLOW), on_pim(program(SMALL))
    assert not isinstance(costs.work(graph, graph.node("sum"), "pim"), Refusal)


@pytest.mark.parametrize("groups", [[0, 40, 0, 9, 2], [0, 1000], [0, 0, 0, 0, 5]])
@pytest.mark.parametrize("beside", [1.0, 30.0, 400.0])
def test_no_division_beats_the_bound(groups: list[int], beside: float) -> None:
    """The densest groups on one side, for every number of them."""
    counts = GroupCounts(np.array(groups), 0, 0)
    sizes = [edges for edges in range(len(groups) - 1, 0, -1) for _ in range(groups[edges])]
    times = [max(0.7 * taken, beside * (1 - sum(sizes[:taken]) / sum(sizes))) for taken in range(len(sizes) + 1)]
    assert min(times) - 0.7 <= _division_us(counts, 0.7, beside) <= min(times) + 1e-9


@pytest.mark.parametrize(("changes", "reason"), [({"reduce": "max"}, "reduction: max")])
def test_unsupported_reductions_are_refused(changes: dict[str, str], reason: str) -> None:
    assert reason in verdict(program(SMALL, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_program_computes_the_node_and_survives_archiving(weighted: bool, scaled: bool) -> None:
    graph = program(SMALL, weighted=weighted, scaled=scaled)
    unit, node = CostModel(PIMFLOW).units["pim"], graph.node("sum")
    work = unit.work(graph, node)
    made = unit.program(work, "auto")
    inputs = [SMALL.features, *(graph.constants[name] if name else None for name in node.inputs[1:])]
    result = unit.execute(made, graph, node, inputs, "fp32")
    expected = SMALL.by_scipy(SMALL.weight if weighted else np.ones_like(SMALL.weight))
    scale = np.linspace(1, 2, len(expected))[:, None] if scaled else 1.0
    assert relative_error(result, (expected * scale).astype(np.float32)) < 1e-5
    restored = unit.decode(unit.encode(made))
    assert unit.encode(restored) == unit.encode(made)
    assert (unit.execute(restored, graph, node, inputs, "fp32") == result).all()


@pytest.mark.parametrize("operand", ["fp16", "bf16"])
def test_duplicate_edges_are_rounded_as_one(operand: str) -> None:
    edges = random_edges(300, 40, 500, 24, 8, repeated=100)
    graph = program(edges)
    unit, node = CostModel(PIMFLOW).units["pim"], graph.node("sum")
    inputs = [edges.features, *(graph.constants[name] for name in node.inputs[1:])]
    result = unit.execute(unit.program(unit.work(graph, node), "auto"), graph, node, inputs, operand)
    features, _, _, weight = unit.rounded(inputs, operand)
    assert features is not None
    assert weight is not None
    expected = replace(edges, features=features.astype(np.float32)).by_scipy(weight)
    assert relative_error(result, expected) < 1e-5


def test_the_host_adds_partial_results_and_is_charged_for_it() -> None:
    """1200 sources are three blocks, each with a row of partial sums for every destination, in single precision."""
    costs, graph = CostModel(PIMFLOW), on_pim(program(SMALL))
    node = graph.node("sum")
    cost = costs.node_cost(graph, node).detail
    assert isinstance(cost, SpmmCost)
    moved = costs.transfer(graph, node)
    assert moved is not None
    (merge,) = moved.after
    assert merge.time_us == costs.host.copy_cost(4 * 24 * (cost.units + 60), "int32").time_us
    events = build_timeline(graph, PIMFLOW, costs).events
    assert [event.resource for event in events] == ["pim", "gpu"]
    assert [event.end_us - event.start_us for event in events] == pytest.approx([cost.time_us, merge.time_us])
    apart = replace(random_edges(512, 60, 120, 24, 2), rowptr=np.arange(61) * 2, col=np.arange(120) * 4)
    one_block = on_pim(program(apart))
    assert costs.transfer(one_block, one_block.node("sum")) is None


def test_partial_results_cross_a_link_and_are_added_on_the_host() -> None:
    linked = replace(PIMFLOW, units=Table({**PIMFLOW.units, "pim": replace(PIMFLOW.pim, transfer_gb_per_s=16.0)}))
    costs, graph = CostModel(linked), on_pim(program(SMALL))
    cost = costs.node_cost(graph, graph.node("sum")).detail
    assert isinstance(cost, SpmmCost)
    timeline = build_timeline(graph, linked, costs)
    load, run, store, merge = timeline.events
    assert [event.resource for event in timeline.events] == ["transfer", "pim", "transfer", "gpu"]
    assert load.end_us - load.start_us == pytest.approx(2 * 1_200 * 24 / 16e3)
    assert store.end_us - store.start_us == pytest.approx(4 * cost.units * 24 / 16e3), (
        "in single precision, all of them"
    )
    assert merge.start_us >= store.end_us >= run.end_us
    adding = costs.host.copy_cost(4 * 24 * (cost.units + 60), "int32")
    assert timeline.energy_mj["gpu"] == pytest.approx(adding.energy_mj)


def test_no_sum_takes_less_than_its_comps() -> None:
    costs = CostModel(PIMFLOW)
    for edges in (SMALL, random_edges(2_000, 40, 3_000, 64, 3), dense_blocks(2, 64, 0.9, 200, 256)):
        graph = program(edges)
        unit = costs.units["pim"]
        work = unit.work(graph, graph.node("sum"))
        found = unit.cost(work, "auto")
        assert isinstance(found, SpmmCost)
        assert 0.05 * found.time_us < unit.lower_bound_us(work, "auto") < found.time_us


def test_streams_that_would_be_too_long_are_refused_before_they_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(aggregation, "pack")
    costs, graph = CostModel(FAST), program(random_edges(20_000, 3_000, 60_000, 256, 1))
    work = costs.work(graph, graph.node("sum"), "pim")
    assert not isinstance(work, Refusal)
    refusal = costs.unit_cost("pim", work, "auto")
    assert isinstance(refusal, Refusal)
    assert "no two of them alike" in refusal.reason


def test_rows_of_a_sum_are_not_divided() -> None:
    """Every part would be a separate graph to measure and pack."""
    graph = program(SMALL)
    pricer = Pricer(graph, CostModel(FAST), PriceCache(None, ""))
    offered = [candidate.decisions for candidate in Candidates(graph, find_policy("auto"), pricer)]
    assert {type(decision) for decisions in offered for decision in decisions} == {OnDevice, SplitEdges}
    assert {decision.device for decisions in offered for decision in decisions} == {"gpu", "pim"}  # type: ignore[union-attr]


def test_a_dense_graph_is_placed_verified_saved_and_loaded(tmp_path: Path) -> None:
    """With full groups and fast enough channels, the plan puts the sum on PIM alone."""
    rng = np.random.default_rng(0)
    pairs = np.stack([rng.integers(0, 300, 4_000), rng.integers(0, 40, 4_000)])
    model = Path(__file__).parents[2] / "data" / "gnn" / "gin-ts.onnx"
    graph = pimflow.sparse.Graph.from_edge_index(pairs, 300)
    made = pimflow.compile(model, graph=graph, target=FAST, use_cache=False)
    assert "pim" in {node.device for node in made.graph.nodes if isinstance(node.op, Spmm)}
    loaded = pimflow.load(made.save(tmp_path / "out"))
    assert loaded.verify(rtol=1e-4).passed
    assert loaded.verify(pim="values", operand="fp32").passed


def planned(graph: Graph, target: Target = PIMFLOW) -> tuple[Graph, Plan, PlanReport]:
    costs = CostModel(target)
    plan = solve(graph, Options(target=target), costs=costs)
    made = PassManager(rewrites(plan, costs)).run(graph).graph
    return made, plan, report_plan(graph, plan, made, costs)


def test_dense_blocks_are_divided_between_pim_and_the_host() -> None:
    """Blocks of 512 KiB of features pass through a cache of 384 KiB row by row: groups of 15 or 16 edges run on PIM,
    1.6x faster."""
    graph, target = program(dense_blocks(1, 256, 0.95, 200, 1024)), cached(384)
    made, plan, report = planned(graph, target)
    (split,) = plan.decisions
    assert isinstance(split, SplitEdges)
    assert (split.group, split.at_least) == (16, 15)
    assert report.speedup == pytest.approx(1.61, abs=0.02)
    (row,) = report.nodes
    assert row.mode == "md-dp"
    assert row.fractions["pim"] == pytest.approx(0.83, abs=0.01)
    assert row.why == "83 % of its edges, at least 15 per group of 16 sources, on PIM while the GPU sums the others"
    costs = CostModel(target)
    events = {(event.node, event.resource): event for event in build_timeline(made, target, costs).events}
    host, pim = events["sum_gpu", "gpu"], events["sum_pim", "pim"]
    assert host.start_us == pim.start_us == 0.0
    assert events["sum_added", "gpu"].start_us >= max(host.end_us, pim.end_us)
    whole = build_timeline(on_pim(graph), target, costs).makespan_us
    assert report.result.time_us < whole, "the host helps"
    assert report.result.time_us == plan.predicted_us


def test_without_dense_groups_nothing_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph with Reddit's density, and a road network: statistics alone rule it out, in one line."""
    monkeypatch.delattr(aggregation, "pack")
    monkeypatch.delattr(edge_split, "split_dense")
    for adjacency, features in ((like("reddit", 1 / 32, keep="density"), 256), (road_grid(80, 80, in_order=True), 64)):
        build = Builder()
        operands = [build.input(adjacency.num_src, features, name="x"), build.constant(adjacency.rowptr, "rowptr")]
        graph = build.graph(build.op(Spmm(), *operands, build.constant(adjacency.col, "col"), name="sum"))
        _, plan, report = planned(graph)
        assert plan.decisions == (OnDevice("sum", "gpu"),)
        assert re.fullmatch(
            r"1\.\d\d edges a group of 16 sources, [\d.]+ needed to be faster than the host(, [\d.]+ to help it)?",
            report.nodes[0].why,
        )


def test_divisions_follow_the_statistics_best_first() -> None:
    costs, edges = CostModel(cached(384)), dense_blocks(1, 256, 0.95, 200, 1024)
    graph = program(edges)
    offered = costs.edge_divisions(graph, graph.node("sum"), "pim")
    rows = np.repeat(np.arange(256), np.diff(edges.rowptr))
    _, sizes = np.unique(rows * 16 + edges.col // 16, return_counts=True)
    assert sorted(way[:2] for way in offered) == [(16, int(level)) for level in np.unique(sizes)[1:]]
    assert 15 in [way.at_least for way in offered[:3]], "the final choice is among the first ones tried"
    assert costs.edge_divisions(program(SPARSE), program(SPARSE).node("sum"), "pim") == ()


def test_a_divided_sum_is_verified_saved_and_loaded(tmp_path: Path) -> None:
    """On a GPU with a small cache, small blocks suffice; bias and activation follow the sum of both parts."""
    edges = dense_blocks(2, 128, 0.95, 800, 256)
    pairs = np.stack([edges.col, np.repeat(np.arange(256), np.diff(edges.rowptr))])
    graph = pimflow.sparse.Graph.from_edge_index(pairs, 256)
    made = pimflow.compile(sum_model(256, 256), graph=graph, target=cached(16), use_cache=False)
    (split, *_) = made.plan.decisions
    assert isinstance(split, SplitEdges)
    loaded = pimflow.load(made.save(tmp_path / "out"))
    assert loaded.plan == made.plan
    assert loaded.verify(pim="values", operand="fp32").passed
    assert loaded.report.as_json() == made.report.as_json()
    (chosen,) = (item for item in pimflow.explain(loaded, split.node).alternatives if item.is_chosen)
    assert chosen.what == f"groups of 16 sources with {split.at_least} edges or more on PIM"
    assert chosen.measure.time_us == loaded.report.result.time_us
