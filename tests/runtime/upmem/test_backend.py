"""Graph networks compiled for UPMEM modules: placed, on the timeline, verified by value, saved and read back."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pimflow
from pimflow.compiled import CompiledModel
from pimflow.runtime.costs import CostModel
from pimflow.runtime.upmem import backend, values
from pimflow.runtime.upmem.tuner import Ranking, Tuner
from pimflow.sparse import Graph, generate
from pimflow.targets import Target, load_target

FOLDER = Path(__file__).parents[2] / "data" / "gnn"


def machine(**changes: Any) -> Target:
    """The shipped machine, its modules changed."""
    target = load_target("upmem")
    return target.with_units(dpu=replace(target.units["dpu"], **changes))


def compiled(model: str, graph: Graph, policy: str = "pim", **changes: Any) -> CompiledModel:
    return pimflow.compile(
        FOLDER / f"{model}.onnx", graph=graph, target=machine(**changes), policy=policy, use_cache=False
    )


GRAPH = generate.power_law(600, 9000, 120)
WEIGHTED = Graph.from_csr(
    GRAPH.rowptr, GRAPH.col, 600, np.random.default_rng(4).normal(size=GRAPH.num_edges).astype(np.float32)
)

TYPED = Graph.from_edge_index(
    np.stack([GRAPH.col, np.repeat(np.arange(600), np.diff(GRAPH.rowptr))]),
    600,
    edge_type=np.random.default_rng(5).integers(0, 3, GRAPH.num_edges),
)


@pytest.mark.parametrize("model", ["gcn-ts", "gin-dynamo", "sage-mean-dynamo", "graphconv-weighted-dynamo"])
@pytest.mark.parametrize("operand", ["int32", "fp32"])
def test_aggregations_run_on_the_cores_and_are_right(model: str, operand: str) -> None:
    found = compiled(model, WEIGHTED if "weighted" in model else GRAPH, operand=operand)
    placed = {node.kind: node.device for node in found.graph.nodes}
    assert placed["Spmm"] == "dpu"
    assert {device for kind, device in placed.items() if kind != "Spmm"} == {"cpu"}
    verification = found.verify(pim="values")
    assert verification.passed
    assert verification.programs is not None
    assert verification.programs.checked == 2


def test_transfers_to_the_modules_and_back_are_on_the_timeline() -> None:
    found = compiled("gin-dynamo", GRAPH)
    first = next(node for node in found.graph.nodes if node.device == "dpu")
    events = [event for event in found.timeline.events if event.node == first.name]
    assert [event.resource for event in events] == ["transfer"] * 2 + ["dpu"] + ["transfer"] * 3
    for before, after in pairwise(events):
        assert after.start_us == pytest.approx(before.end_us)
    spent = found.timeline.busy_us
    assert spent["transfer"] + spent["dpu"] + spent["cpu"] == pytest.approx(found.timeline.makespan_us)


@pytest.mark.parametrize("policy", ["pim", "auto"])
def test_modules_draw_power_while_the_host_works(policy: str) -> None:
    """5 W each, and 25 W of the CPU and its board, whatever runs; under `auto` the host does everything."""
    found = compiled("gin-dynamo", GRAPH, policy)
    assert found.timeline.energy_mj["static"] == pytest.approx((16 * 5.0 + 25.0) * found.timeline.makespan_us * 1e-3)
    copied = found.timeline.energy_mj.get("transfer", 0.0)
    assert copied >= 60.0 * found.timeline.busy_us.get("transfer", 0.0) * 1e-3
    assert (copied > 0) == (policy == "pim")


def test_starting_the_cores_is_charged_and_shown() -> None:
    """Once for every aggregation."""
    slow, fast = (compiled("gin-dynamo", GRAPH, launch_us=launch_us) for launch_us in (100.0, 0.0))
    nodes = [node for node in slow.graph.nodes if node.device == "dpu"]
    assert slow.timeline.busy_us["dpu"] - fast.timeline.busy_us["dpu"] == pytest.approx(100.0 * len(nodes))
    costs = CostModel(machine())
    parts, work = costs.time_parts_us(slow.graph, nodes[0]), costs.work(slow.graph, nodes[0], "dpu")
    assert parts["launch"] == 100.0
    assert parts["launch"] <= costs.units["dpu"].lower_bound_us(work, "auto") <= sum(parts.values())


def test_every_cluster_of_ranks_has_a_lane_in_the_trace() -> None:
    found = compiled("gcn-ts", GRAPH)
    trace = found.chrome_trace()["traceEvents"]
    kernels = {event["name"]: event for event in trace if event["ph"] == "X" and event["cat"] == "dpu"}
    lanes = [event for event in trace if event["ph"] == "X" and event["cat"] == "cluster"]
    programs = found.programs
    assert {name: sum(lane["name"] == name for lane in lanes) for name in kernels} == {
        name: program.strategy.clusters for name, program in programs.items()
    }
    for lane in lanes:
        kernel = kernels[lane["name"]]
        assert kernel["ts"] < lane["ts"]
        assert lane["ts"] + lane["dur"] == pytest.approx(kernel["ts"] + kernel["dur"], abs=2e-3)
    assert "cluster 0" in {event["args"]["name"] for event in trace if event["ph"] == "M"}


def test_a_wrong_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compiled("gin-dynamo", GRAPH)
    right = values.aggregated

    def one_row_short(*given: Any) -> Any:
        sums = right(*given)
        sums[np.argmax(np.abs(sums).max(axis=1))] *= np.float32(0.999)
        return sums

    monkeypatch.setattr(backend, "aggregated", one_row_short)
    assert not found.verify(pim="values").passed


def test_it_is_saved_and_read_back(tmp_path: Path) -> None:
    found = compiled("gcn-ts", GRAPH)
    again = pimflow.load(found.save(tmp_path / "out"))
    assert again.programs == found.programs
    assert again.verify(pim="values").passed


def test_the_host_keeps_the_nodes_that_it_runs_faster() -> None:
    assert {node.device for node in compiled("gcn-ts", GRAPH, policy="auto").graph.nodes} == {"cpu"}


def test_sums_that_end_before_the_cores_have_started_are_rarely_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a tuner's search, so the bounds of pipelines must not ask for their copies."""
    tuned: list[Tuner] = []
    rank = Tuner.rank

    def counted(self: Tuner, *told: Any) -> Ranking:
        tuned.append(self)
        return rank(self, *told)

    monkeypatch.setattr(Tuner, "rank", counted)
    found = compiled("gcn-ts", generate.power_law(40, 150, 12), policy="auto", launch_us=5000.0)
    assert found.report.result.time_us < 5000.0
    assert len(tuned) <= 3


def test_sums_that_may_overflow_stay_on_the_host_or_are_widened() -> None:
    hub = Graph.from_edge_index(np.stack([np.arange(5000) % 50, np.zeros(5000, np.int64)]), 50)
    reasons = {
        row.op: row.reasons for row in pimflow.inspect(FOLDER / "gin-dynamo.onnx", graph=hub, target=machine()).nodes
    }
    assert "can reach" in reasons["Spmm"]["dpu"]
    widened = compiled("gin-dynamo", hub, accumulator="int64")
    assert "dpu" in {node.device for node in widened.graph.nodes}
    assert widened.verify(pim="values").passed


def test_ops_without_a_core_kernel_are_reported() -> None:
    rows = pimflow.inspect(FOLDER / "gat-ts.onnx", graph=GRAPH, target=machine()).nodes
    reasons = {row.op: row.reasons["dpu"] for row in rows if "dpu" in row.reasons}
    assert reasons["Spmm"] == ""
    assert "no kernel for EdgeSoftmax" in reasons["EdgeSoftmax"]
    assert "no kernel for Sddmm" in reasons["Sddmm"]


@pytest.mark.parametrize("model", ["gat-ts", "gatv2-dynamo", "transformer-ts"])
@pytest.mark.parametrize("operand", ["int32", "fp32"])
def test_attention_sums_on_the_cores_with_weights_of_every_head(model: str, operand: str) -> None:
    found = compiled(model, GRAPH, operand=operand)
    placed = {(node.kind, node.device) for node in found.graph.nodes if node.op.is_sparse}
    grouped = {("TypedLinear", "cpu")}  # queries, keys and values of one table may be one product on the host
    assert placed - grouped == {("Spmm", "dpu"), ("EdgeSoftmax", "cpu"), ("Sddmm", "cpu")}
    verification = found.verify(pim="values")
    assert verification.passed
    assert verification.programs is not None
    assert verification.programs.checked == 2


def test_weights_of_one_call_are_on_the_timeline_and_in_the_trace() -> None:
    found = compiled("gat-ts", GRAPH)
    first = next(node for node in found.graph.nodes if node.device == "dpu")
    copies = CostModel(machine()).transfer(found.graph, first)
    assert copies is not None
    assert [copy.part for copy in copies.before] == ["quantize", "load weights", "load"]
    assert any("LOAD weights of" in line for line in found.trace(first.name, 0))


def test_heads_that_may_overflow_stay_on_the_host() -> None:
    """Whatever the softmax yields: with 8 bits per weight, sums have room for 2**17 edges per vertex."""
    hub = Graph.from_edge_index(np.stack([np.arange(200_000) % 50, np.zeros(200_000, np.int64)]), 50)
    rows = pimflow.inspect(FOLDER / "gat-ts.onnx", graph=hub, target=machine()).nodes
    assert "can reach" in {row.op: row.reasons["dpu"] for row in rows if "dpu" in row.reasons}["Spmm"]


@pytest.mark.parametrize(("model", "target"), [("gin-dynamo", "upmem"), ("rgcn-ts", "upmem-gpu")])
def test_several_inferences_overlap_on_host_link_and_cores(model: str, target: str) -> None:
    graph = TYPED if model.startswith("rgcn") else GRAPH
    found = pimflow.compile(
        FOLDER / f"{model}.onnx", graph=graph, target=target, policy="pim", objective="throughput", use_cache=False
    )
    steady = found.steady_report
    assert steady is not None
    assert set(steady.busy_us) == {found.plan.host, "transfer", "dpu"}
    assert steady.interval_us == max(steady.busy_us.values()) == pytest.approx(found.plan.interval_us, abs=1e-3)
    assert steady.interval_us >= steady.bound_us * (1 - 1e-9)
    assert steady.in_flight > 1
    assert steady.interval_us < found.timeline.makespan_us
    verification = found.verify()
    assert verification.passed
    assert verification.in_flight is not None
    assert verification.in_flight.checked > steady.in_flight


def test_a_gpu_reaches_the_modules_over_pcie() -> None:
    target = load_target("upmem-gpu")
    found = pimflow.compile(FOLDER / "gin-dynamo.onnx", graph=GRAPH, target=target, policy="pim", use_cache=False)
    first = next(node for node in found.graph.nodes if node.device == "dpu")
    assert len([event for event in found.timeline.events if event.node == first.name]) == 2 + 3 + 3
    assert found.verify(pim="values").passed
