"""Sums over edges on the channels of a whole machine: refused by statistics, taken where they pay, values proven."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pimflow
from pimflow.data import Table
from pimflow.ir import Builder, Graph, OnDevice, Refusal, Spmm
from pimflow.runtime.costs import CostModel
from pimflow.runtime.newton import aggregation
from pimflow.runtime.newton.aggregation import _division_us
from pimflow.runtime.newton.spmm_cost import SpmmCost
from pimflow.runtime.timeline import build_timeline
from pimflow.search.candidates import Candidates
from pimflow.search.policy import find_policy
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import Pricer
from pimflow.sparse.groups import GroupCounts
from pimflow.targets import Target, load_target
from support.newton.aggregation import Edges, random_edges
from support.values import relative_error

PIMFLOW = load_target("pimflow")


def clocked(clock_mhz: float) -> Target:
    """The machine with PIM of another clock."""
    return replace(PIMFLOW, units=Table({**PIMFLOW.units, "pim": replace(PIMFLOW.pim, clock_mhz=clock_mhz)}))


FAST = clocked(1e6)


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
    monkeypatch.delattr(aggregation, "priced")
    reason = verdict(program(SPARSE))
    assert reason.startswith("1.00 edges a group of 16 sources, ")
    assert "needed to be faster than the host" in reason


def test_what_is_needed_follows_from_the_target() -> None:
    def needed(target: Target) -> float:
        return float(verdict(program(SPARSE), target).split(", ")[1].split()[0])

    assert needed(clocked(437.5)) == pytest.approx(2 * needed(PIMFLOW), rel=0.02)
    assert verdict(program(SPARSE), FAST) == "", "fast enough, and it may pay"


def test_what_is_placed_is_not_asked_again() -> None:
    costs, graph = CostModel(PIMFLOW), on_pim(program(SMALL))
    assert not isinstance(costs.work(graph, graph.node("sum"), "pim"), Refusal)


@pytest.mark.parametrize("groups", [[0, 40, 0, 9, 2], [0, 1000], [0, 0, 0, 0, 5]])
@pytest.mark.parametrize("beside", [1.0, 30.0, 400.0])
def test_no_division_beats_the_bound(groups: list[int], beside: float) -> None:
    """The densest so many groups on one side, for every number of them."""
    counts = GroupCounts(np.array(groups))
    sizes = [edges for edges in range(len(groups) - 1, 0, -1) for _ in range(groups[edges])]
    times = [max(0.7 * taken, beside * (1 - sum(sizes[:taken]) / sum(sizes))) for taken in range(len(sizes) + 1)]
    assert min(times) - 0.7 <= _division_us(counts, 0.7, beside) <= min(times) + 1e-9


@pytest.mark.parametrize(("changes", "reason"), [({"reduce": "max"}, "do not take the max")])
def test_what_no_latch_computes_is_refused(changes: dict[str, str], reason: str) -> None:
    assert reason in verdict(program(SMALL, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_program_computes_the_node_and_comes_back_from_its_archive(weighted: bool, scaled: bool) -> None:
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
def test_edges_with_the_same_ends_are_rounded_as_one(operand: str) -> None:
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


def test_the_host_adds_up_partial_results_and_is_busy_with_it() -> None:
    """1200 sources are three blocks: a row of partial sums for each that a destination reads, in single precision."""
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


def test_streams_that_would_be_too_long_are_refused_before_they_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(aggregation, "pack")
    costs, graph = CostModel(FAST), program(random_edges(20_000, 3_000, 60_000, 256, 1))
    work = costs.work(graph, graph.node("sum"), "pim")
    assert not isinstance(work, Refusal)
    refusal = costs.unit_cost("pim", work, "auto")
    assert isinstance(refusal, Refusal)
    assert "no two are alike" in refusal.reason


def test_rows_of_a_sum_are_not_divided() -> None:
    """Every part would be a graph of its own, to be measured and packed."""
    graph = program(SMALL)
    pricer = Pricer(graph, CostModel(FAST), PriceCache(None, ""))
    offered = [candidate.decisions for candidate in Candidates(graph, find_policy("auto"), pricer)]
    assert {type(decision) for decisions in offered for decision in decisions} == {OnDevice}
    assert {decision.device for decisions in offered for decision in decisions} == {"gpu", "pim"}  # type: ignore[union-attr]


def test_a_dense_graph_is_taken_verified_saved_and_loaded(tmp_path: Path) -> None:
    """Where groups are full and the channels fast enough, the plan has the sum on PIM, by itself."""
    rng = np.random.default_rng(0)
    pairs = np.stack([rng.integers(0, 700, 9_000), rng.integers(0, 60, 9_000)])
    model = Path(__file__).parents[2] / "data" / "gnn" / "gin-ts.onnx"
    graph = pimflow.sparse.Graph.from_edge_index(pairs, 700)
    made = pimflow.compile(model, graph=graph, target=FAST, use_cache=False)
    assert "pim" in {node.device for node in made.graph.nodes if isinstance(node.op, Spmm)}
    loaded = pimflow.load(made.save(tmp_path / "out"))
    assert loaded.verify(rtol=1e-4).passed
    assert loaded.verify(pim="values", operand="fp32").passed
