"""Time and energy of a report: its totals are the timeline's, and the sums of the parts that it shows."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

import pimflow
from pimflow.compiled import CompiledModel
from pimflow.ir import Graph
from pimflow.runtime.costs import CostModel
from pimflow.runtime.timeline import build_timeline
from pimflow.search import policies
from pimflow.targets import Target, load_target, override

FIGURES = load_target("pimflow")
LINKED = FIGURES.with_units(pim=replace(FIGURES.pim, transfer_gb_per_s=16.0))
MACHINES = {
    "artifact": override(FIGURES, timing="artifact"),
    "strict": override(FIGURES, timing="strict"),
    "launch": FIGURES.with_units(pim=replace(FIGURES.pim, launch_us=1.5)),
    "link": LINKED,
    "hbm-pim": load_target("hbm-pim"),
    "turing-pim": load_target("turing-pim"),
}
GPU_TIME, GPU_ENERGY = ["launch", "compute", "memory"], ["busy", "arithmetic", "L2", "DRAM"]
PIM_TIME = ["launch", "placement", "COMP", "fill", "activation", "readout", "refresh"]


@pytest.fixture(scope="module", params=MACHINES)
def compiled(request: pytest.FixtureRequest) -> dict[str, CompiledModel]:
    target: Target = MACHINES[request.param]
    return {policy: pimflow.compile("zoo:toy", target=target, policy=policy, use_cache=False) for policy in policies()}


def spent_mj(graph: Graph, costs: CostModel, time_us: float) -> float:
    """The energy of a run, computed here: nodes, copies of operands, and static power over its time."""
    nodes = sum(costs.node_cost(graph, node).energy_mj for node in graph.nodes)
    moves = [costs.transfer(graph, node) for node in graph.nodes]
    static_w: float = costs.host.spec.energy.static_w
    return nodes + sum(move.energy_mj for move in moves if move) + static_w * time_us * 1e-3


def summed(parts: Any) -> float:
    return math.fsum(amount for amounts in parts.values() for amount in amounts.values())


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-12, abs=1e-15)


def test_report_timeline_and_parts_agree(compiled: dict[str, CompiledModel]) -> None:
    alone = compiled["gpu"]
    for policy, model in compiled.items():
        report, costs = model.report, model.machine.costs
        used = costs.serving(model.graph)
        assert report.result.energy_mj == model.timeline.total_energy_mj, policy
        assert report.result.energy_mj == near(spent_mj(model.graph, used, report.result.time_us)), policy
        assert report.baseline == alone.report.result == alone.report.baseline
        timeline = build_timeline(alone.graph, costs.target, costs.host_only())
        assert report.baseline.energy_mj == timeline.total_energy_mj


def test_parts_of_the_document_add_up(compiled: dict[str, CompiledModel]) -> None:
    """Added up as a reader of the JSON would: in total, by device, by node, and over the nodes part by part."""
    for policy, model in compiled.items():
        document = json.loads(json.dumps(model.document()))
        for run in (document["baseline"], document["result"]):
            assert summed(run["time_parts_us"]) == near(run["time_us"]), policy
            assert summed(run["energy_parts_mj"]) == near(run["energy_mj"]), policy
        result, nodes = document["result"], document["nodes"]
        for place, busy_us in model.timeline.busy_us.items():
            assert sum(result["busy_parts_us"].get(place, {}).values()) == near(busy_us)
        for place, energy_mj in model.timeline.energy_mj.items():
            assert sum(result["energy_parts_mj"].get(place, {}).values()) == near(energy_mj)
        for node in nodes:
            assert summed(node["share_parts_us"]) == near(node["share_us"])
            assert node["share_us"] <= node["time_us"] * (1 + 1e-12)
            assert summed(node["energy_parts_mj"]) == near(node["energy_mj"])
            assert sum(node["busy_parts_us"].get("gpu", {}).values()) == near(node["gpu_us"])
        for whole, part in (("time_parts_us", "share_parts_us"), ("busy_parts_us",) * 2, ("energy_parts_mj",) * 2):
            for place, parts in result[whole].items():
                for name, amount in parts.items():
                    assert math.fsum(node[part].get(place, {}).get(name, 0.0) for node in nodes) == near(amount)


def test_parts_have_the_names_and_order_of_their_backend(compiled: dict[str, CompiledModel]) -> None:
    result = compiled["pim"].report.result.spent
    assert list(result.energy_parts_mj)[:3] == ["static", "gpu", "pim"]
    assert list(result.energy_parts_mj["gpu"]) == GPU_ENERGY
    assert list(result.busy_parts_us["gpu"]) == GPU_TIME
    assert list(result.busy_parts_us["pim"]) == PIM_TIME
    for row in compiled["pim"].report.nodes:
        for place, parts in row.spent.energy_parts_mj.items():
            assert list(parts) == list(result.energy_parts_mj[place])


def test_a_launch_of_pim_is_a_part_of_its_time() -> None:
    target = MACHINES["launch"]
    model = pimflow.compile("zoo:toy", target=target, policy="pim", use_cache=False)
    kernels = sum(node.device == "pim" for node in model.graph.nodes)
    assert model.report.result.spent.busy_parts_us["pim"]["launch"] == 1.5 * kernels > 0


def test_time_parts_show_only_the_binding_limit(compiled: dict[str, CompiledModel]) -> None:
    """The part hidden behind the other half of a roofline takes no time."""
    model = compiled["gpu"]
    costs = model.machine.costs.host_only()
    for node in model.graph.nodes:
        parts, price = costs.time_parts_us(model.graph, node), costs.node_cost(model.graph, node)
        assert sum(parts.values()) == near(price.time_us)
        assert not parts or min(parts["compute"], parts["memory"]) == 0
