"""Reports and comparisons: every figure is taken from the timeline of the rewritten graph."""

from __future__ import annotations

import json

import pytest

from pimflow.ir import Conv2d, Decision, Graph, OnDevice, Parallel, Pipeline, Plan, SplitRows
from pimflow.options import Options
from pimflow.report.fitted_cost import FittedCost
from pimflow.report.measures import busy_us
from pimflow.report.node_rows import NodeRow
from pimflow.report.plan_report import PlanReport, report_plan
from pimflow.report.policies import compare_graph, policy_result
from pimflow.runtime.spending import Spending
from pimflow.runtime.timeline import Event
from pimflow.search import policies
from pimflow.search.solver import solve
from support.costs import FakeCosts
from support.graphs import fire_modules, heavy_chain, inverted_residuals, random_net
from support.passes import rewritten


def report_of(graph: Graph, plan: Plan) -> PlanReport:
    return report_plan(graph, plan, rewritten(graph, plan, FakeCosts()), FakeCosts())


def plan_of(graph: Graph, *decisions: Decision) -> Plan:
    """A plan with these decisions; all other nodes run on the GPU, in graph order."""
    covered = {name: decision for decision in decisions for name in decision.nodes}
    order = dict.fromkeys(covered.get(node.name, OnDevice(node.name, "gpu")) for node in graph.nodes)
    return Plan("auto", tuple(order), 0.0, 0.0)


def rows_by_name(report: PlanReport) -> dict[str, NodeRow]:
    return {row.name: row for row in report.nodes}


def event(start: float, end: float) -> Event:
    return Event("n", "gpu", start, end, 0)


def test_busy_time_counts_concurrent_work_once() -> None:
    assert busy_us([event(5, 7), event(0, 4), event(1, 2), event(3, 5), event(9, 9)]) == 7
    assert busy_us([]) == 0


@pytest.mark.parametrize("policy", policies())
@pytest.mark.parametrize("graph", [inverted_residuals(), heavy_chain(), fire_modules(), random_net(3)], ids="abcd")
def test_totals_agree_with_the_plan_and_rows_cover_the_graph(graph: Graph, policy: str) -> None:
    costs = FakeCosts()
    plan = solve(graph, Options(target=costs.target, policy=policy, use_cache=False), costs=costs)
    report = report_of(graph, plan)
    assert report.result.time_us == pytest.approx(plan.predicted_us, rel=1e-9)
    assert report.baseline.time_us == pytest.approx(plan.baseline_us, rel=1e-9)
    assert report.speedup == pytest.approx(plan.baseline_us / plan.predicted_us, rel=1e-9)
    assert sorted(row.name for row in report.nodes) == sorted(node.name for node in graph.nodes)
    assert 0 < report.result.conv_us < report.result.time_us * (1 + 1e-12)
    in_rows = sum(row.time_us for row in report.nodes)
    assert in_rows >= report.result.time_us * (1 - 1e-9)
    if all(row.mode in ("gpu", "pim") and "beside" not in row.why for row in report.nodes):
        assert in_rows == pytest.approx(report.result.time_us, rel=1e-9)
    for row in report.nodes:
        gpu_us, pim_us, made = row.busy_us["gpu"], row.busy_us["pim"], row.fractions["pim"] > 0
        assert max(gpu_us, pim_us) <= row.time_us + 1e-9 <= gpu_us + pim_us + 2e-9
        assert made == (pim_us > 0) == (row.mode != "gpu" and made)
        assert row.why


def test_split_row_by_row() -> None:
    graph = heavy_chain()
    split = SplitRows("conv0", 21, "newton++", ("relu1",))
    row = rows_by_name(report_of(graph, plan_of(graph, split)))["conv0"]
    macs_per_row = 28 * 128 * 256 * 9
    moved = 2 * 0.02 + 0.02  # two Slices before, one Concat after
    gpu_us, pim_us = 1.0 + 21 * macs_per_row / 0.8e6, 0.5 + 7 * macs_per_row / 1.2e6
    assert (row.mode, row.fractions["pim"], row.op) == ("md-dp", 0.25, "Conv")
    assert row.busy_us["pim"] == pytest.approx(pim_us)
    assert gpu_us <= row.busy_us["gpu"] <= gpu_us + moved + 1e-9
    assert row.why == "21 of 28 rows on the GPU while PIM computes 7"


def test_rows_of_split_branches_show_each_nodes_decision() -> None:
    graph = fire_modules()
    branches = Parallel(
        (
            (SplitRows("conv2", 7, "auto", ("relu3",)),),
            (OnDevice("conv4", "pim", "auto"), OnDevice("relu5", "gpu")),
        )
    )
    rows = rows_by_name(report_of(graph, plan_of(graph, branches)))
    assert {name: rows[name].mode for name in branches.nodes} == {
        "conv2": "md-dp", "relu3": "md-dp", "conv4": "pim", "relu5": "gpu",
    }  # fmt: skip
    assert rows["conv2"].fractions["pim"] == 0.75
    assert rows["conv2"].why.startswith("in parallel with another branch; 7 of 28 rows on the GPU")
    assert len({rows[name].region for name in branches.nodes}) == 1


def test_whole_nodes_show_the_other_devices_time() -> None:
    graph = heavy_chain()
    rows = rows_by_name(report_of(graph, plan_of(graph, OnDevice("conv0", "pim", "auto"))))
    macs = 28 * 28 * 128 * 256 * 9
    gpu_us, pim_us = 1.0 + macs / 0.8e6, 0.5 + macs / 1.5e6
    assert (rows["conv0"].mode, rows["conv0"].fractions["pim"]) == ("pim", 1.0)
    assert rows["conv0"].time_us == rows["conv0"].busy_us["pim"] == pytest.approx(pim_us)
    assert rows["conv0"].why == f"{gpu_us:.2f} us on the GPU, {pim_us:.2f} us on PIM"
    assert rows["conv2"].mode == "gpu"
    assert rows["relu1"].why == "fused into conv0"
    assert "not a matrix product" in rows["add5"].why


def test_convolution_time_leaves_out_everything_else() -> None:
    graph = heavy_chain()
    report = report_of(graph, plan_of(graph))
    convs = [node for node in graph.nodes if isinstance(node.op, Conv2d)]
    costs = FakeCosts(32)
    assert report.baseline == report.result
    assert report.result.conv_us == pytest.approx(sum(costs.node_cost(graph, node).time_us for node in convs))
    assert report.result.time_us > report.result.conv_us + 1.0, "the residual add is a kernel of its own"
    assert report.conv_speedup == 1.0


def test_pipeline_counts_overlapped_convolution_once() -> None:
    graph = inverted_residuals(1, 28)
    run = ("conv2", "relu3", "conv4", "relu5")
    pipeline = Pipeline(run, ("pim", "gpu", "gpu", "gpu"), (14, 14), "newton++")
    report = report_of(graph, plan_of(graph, pipeline))
    rows = rows_by_name(report)
    assert [rows[name].mode for name in run] == ["pipeline"] * 4
    assert (rows["conv2"].fractions["pim"], rows["conv4"].fractions["pim"]) == (1.0, 0.0)
    others = sum(row.time_us for row in report.nodes if row.mode != "pipeline")
    region = report.result.time_us - others
    in_pipeline = rows["conv2"].time_us + rows["conv4"].time_us
    assert region < in_pipeline - 0.5, "stages overlap"
    convs = sum(rows[node.name].time_us for node in graph.nodes if isinstance(node.op, Conv2d))
    assert report.result.conv_us == pytest.approx(convs - (in_pipeline - region), abs=0.2)


@pytest.mark.parametrize(
    ("stages", "counts", "share", "why"),
    [
        ((28,), (12,), 16 / 28, "12 of 28 rows on the GPU, the others on PIM, in one stage, of 28 rows of relu5"),
        ((14, 14), (15, 3), 10 / 28, "15 + 3 of 28 rows on the GPU, the others on PIM, in 2 stages, of 14 + 14 rows"),
    ],
)
def test_a_node_that_is_divided_within_stages_is_on_both_devices(
    stages: tuple[int, ...], counts: tuple[int, ...], share: float, why: str
) -> None:
    graph = inverted_residuals(1, 28)
    run = ("conv2", "relu3", "conv4", "relu5")
    devices = ("pim", "gpu", "gpu", "gpu")
    pipeline = Pipeline(run, devices, stages, "newton++", host_rows=(counts, (), (), ()))
    row = rows_by_name(report_of(graph, plan_of(graph, pipeline)))["conv2"]
    assert row.fractions["pim"] == pytest.approx(share)
    assert min(row.busy_us.values()) > 0
    assert row.why.startswith(why)


def test_report_survives_json() -> None:
    graph = inverted_residuals()
    costs = FakeCosts()
    plan = solve(graph, Options(target=costs.target, use_cache=False), costs=costs)
    report = report_of(graph, plan)
    text = json.dumps(report.as_json())
    assert PlanReport.from_json(json.loads(text), ("gpu", "pim")) == report
    document = json.loads(text)
    assert set(document) == {"baseline", "result", "bound", "violations", "nodes"}
    assert document["bound"]["ratio"] == report.result.time_us / report.bound.time_us
    assert {"time_us", "energy_mj", "speedup", "conv_speedup"} <= set(document["result"])
    assert set(document["nodes"][0]["commands"]) == {"COMP"}


def test_node_row_keeps_its_devices_through_json() -> None:
    devices = ("gpu", "pim", "dpu")
    fractions, busy = {"pim": 1.0, "dpu": 0.0}, {"gpu": 0.0, "pim": 2.0, "dpu": 0.5}
    times = {"pim": {"run": 2.0}, "dpu": {"run": 0.5}}
    spent = Spending(times, times, {"static": {"board": 1.0}, "pim": {"COMP": 2.0}})
    row = NodeRow("n", "Conv", "pim", fractions, busy, {"pim": 7, "dpu": 0}, 2.0, spent, {"COMP": 3}, "because", 0)
    assert NodeRow.from_json(json.loads(json.dumps(row.as_json())), devices) == row
    assert row.as_json()["dpu_us"] == 0.5
    assert row.as_json()["pim_cycles"] == 7
    assert (row.as_json()["share_us"], row.as_json()["energy_mj"]) == (2.5, 3.0)


def test_comparison_has_a_line_per_policy() -> None:
    graph = random_net(3)
    costs = FakeCosts()
    options = Options(target=costs.target, use_cache=False)
    results = compare_graph(graph, options, costs=costs)
    assert [result.policy for result in results] == list(policies())
    by_name = {result.policy: result for result in results}
    assert by_name["gpu"].speedup == by_name["gpu"].conv_speedup == 1.0
    assert by_name["gpu"].energy_change == 0.0
    assert by_name["auto"].speedup > by_name["md-dp"].speedup > 1
    for result in results:
        assert sum(result.mode_share.values()) == pytest.approx(1.0)
        json.dumps(result.as_json())
    split = by_name["md-dp"]
    assert sum(split.ratio_histogram.values()) == sum(isinstance(one, SplitRows) for one in split.plan.decisions)
    assert set(split.ratio_histogram) <= set(range(0, 101, 10))
    assert [result.policy for result in compare_graph(graph, options, ["GPU", "mddp"], costs=costs)] == ["gpu", "md-dp"]


def test_histogram_is_of_the_share_of_rows_on_pim() -> None:
    graph = heavy_chain()
    plan = plan_of(graph, SplitRows("conv0", 8, "auto", ("relu1",)), SplitRows("conv6", 13, "auto"))
    cost = report_of(graph, plan)
    kept = FittedCost(cost.result.time_us, cost.result.energy_mj, fits=True)
    result = policy_result(graph, plan, cost, kept, FakeCosts().target)
    assert result.ratio_histogram == {10: 1, 70: 1}
    assert result.mode_share == {"gpu": 0.5, "pim": 0.0, "md-dp": 0.5, "pipeline": 0.0}
