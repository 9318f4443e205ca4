"""Energy of a report: its total is the timeline's, and that is the sum of what is spent."""

from __future__ import annotations

from dataclasses import replace

import pytest

import pimflow
from pimflow.compiled import CompiledModel
from pimflow.ir import Graph
from pimflow.runtime.costs import CostModel
from pimflow.runtime.timeline import build_timeline
from pimflow.search import policies
from pimflow.targets import Target, load_target

FIGURES = load_target("pimflow")
LINKED = FIGURES.with_units(pim=replace(FIGURES.pim, transfer_gb_per_s=16.0))


def spent_mj(graph: Graph, costs: CostModel, time_us: float) -> float:
    """Energy of a run from its parts: what nodes and copies of operands take, and static power over its time."""
    nodes = sum(costs.node_cost(graph, node).energy_mj for node in graph.nodes)
    moves = [costs.transfer(graph, node) for node in graph.nodes]
    return nodes + sum(move.energy_mj for move in moves if move) + costs.target.gpu.energy.static_w * time_us * 1e-3


@pytest.mark.parametrize("target", [FIGURES, LINKED], ids=["channels", "link"])
@pytest.mark.parametrize("policy", policies())
def test_report_timeline_and_parts_agree(policy: str, target: Target) -> None:
    compiled: CompiledModel = pimflow.compile("zoo:toy", target=target, policy=policy, use_cache=False)
    report, costs = compiled.report, compiled.machine.costs
    used = costs.serving(compiled.graph)
    assert report.result.energy_mj == compiled.timeline.total_energy_mj
    assert report.result.energy_mj == pytest.approx(spent_mj(compiled.graph, used, report.result.time_us), rel=1e-12)
    gpu_alone = pimflow.compile("zoo:toy", target=target, policy="gpu", use_cache=False)
    assert report.baseline.energy_mj == gpu_alone.report.result.energy_mj == gpu_alone.timeline.total_energy_mj
    timeline = build_timeline(gpu_alone.graph, target, costs.host_only())
    assert report.baseline.energy_mj == timeline.total_energy_mj
