"""Queued and merged launches: the schedule is recomputed from the parts of the prices, and adds up."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import pytest

from pimflow.ir import Graph, OnDevice, Pipeline
from pimflow.options import Options
from pimflow.passes import CLEANUP, PassManager
from pimflow.report.plan_report import report_plan
from pimflow.runtime.costs import CostModel
from pimflow.runtime.spending import total
from pimflow.runtime.timeline import Event, build_timeline
from pimflow.search.bounds import Bounds
from pimflow.search.candidates import Candidates
from pimflow.search.makespan_bound import makespan_bound
from pimflow.search.policy import find_policy
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import Pricer
from pimflow.search.solver import solve
from pimflow.targets.overrides import override
from support.covers import carried_out
from support.graphs import inverted_residuals
from support.passes import rewritten

NET = PassManager(CLEANUP).run(inverted_residuals(2, 28)).graph
MODES: dict[str, dict[str, Any]] = {
    "exposed": {"gpu.launches": "exposed"},
    "queued": {"gpu.launches": "queued"},
    "persistent": {"gpu.launches": "exposed", "gpu.persistent_stages": True},
    "both": {"gpu.launches": "queued", "gpu.persistent_stages": True},
}


def costs_of(mode: str) -> CostModel:
    return CostModel(override("pimflow", MODES[mode]))


def planned(costs: CostModel, policy: str = "pimflow") -> tuple[Graph, float, float]:
    """The graph as a policy's plan runs it, the search's prediction for it, and the time of the GPU alone."""
    plan = solve(NET, Options.of(target=costs.target, policy=policy, use_cache=False), costs=costs)
    return rewritten(NET, plan, costs), plan.predicted_us, plan.baseline_us


def worked_out(graph: Graph, events: list[Event], costs: CostModel, *, queued: bool, saved: bool) -> dict[str, float]:
    """When every node of a region ends, from the order of each device's events alone.

    A kernel runs when its operands are ready and its launch has ended; the launch starts when the device is idle.
    """
    ends: dict[str, float] = {}
    free: dict[str, float] = {}
    first = min(event.start_us for event in events)
    for event in events:
        node = graph.node(event.node)
        parts = dict(costs.host.cost(graph, node).time_parts_us) if event.resource == "gpu" else {}
        launch = parts.pop("launch", 0.0)
        if saved and node.placement.stage:
            launch = 0.0
        runs = sum(parts.values()) if parts else costs.node_cost(graph, node).time_us
        producers = (graph.producer(name) for name in node.inputs)
        ready = max(
            (ends[producer.name] for producer in producers if producer is not None and producer.name in ends),
            default=first,
        )
        idle = free.get(event.resource, first)
        begins = max(ready, idle + launch) if queued else max(ready, idle) + launch
        ends[event.node] = begins + runs if event.resource != "none" else ready
        if event.resource != "none":
            free[event.resource] = ends[event.node]
    return ends


@pytest.mark.parametrize("mode", MODES)
def test_the_schedule_follows_from_launches_and_operands(mode: str) -> None:
    costs = costs_of(mode)
    graph, predicted_us, _ = planned(costs)
    timeline = build_timeline(graph, costs.target, costs)
    assert timeline.makespan_us == pytest.approx(predicted_us)
    position = graph.position
    for _, region in groupby(sorted(timeline.events, key=lambda event: event.region), lambda event: event.region):
        events = sorted(region, key=lambda event: (event.end_us, event.start_us, position[event.node]))
        ends = worked_out(graph, events, costs, queued=mode in ("queued", "both"), saved=mode in ("persistent", "both"))
        assert {event.node: event.end_us for event in events} == pytest.approx(ends)


def test_every_saving_saves_time_and_the_host_alone_is_unchanged() -> None:
    times = {mode: planned(costs_of(mode)) for mode in MODES}
    plans = {mode: predicted_us for mode, (_, predicted_us, _) in times.items()}
    assert plans["both"] <= min(plans["queued"], plans["persistent"])
    assert max(plans["queued"], plans["persistent"]) < plans["exposed"]
    assert len({baseline_us for *_, baseline_us in times.values()}) == 1


@pytest.mark.parametrize("mode", MODES)
def test_parts_add_up_to_the_total(mode: str) -> None:
    costs = costs_of(mode)
    plan = solve(NET, Options.of(target=costs.target, policy="pimflow", use_cache=False), costs=costs)
    report = report_plan(NET, plan, rewritten(NET, plan, costs), costs)
    spent = report.result.spent
    assert total(spent.share_parts_us) == pytest.approx(report.result.time_us)
    assert spent.busy_parts_us["gpu"]["launch"] > 0
    assert report.bound.time_us <= report.result.time_us * (1 + 1e-9)


@pytest.mark.parametrize("mode", [pytest.param("queued", marks=pytest.mark.long), "both"])
def test_no_bound_is_above_the_price(mode: str) -> None:
    costs = costs_of(mode)
    pricer, bounds = Pricer(NET, costs, PriceCache(None, "")), Bounds(NET, costs)
    told = 0
    for candidate in Candidates(NET, find_policy("pimflow"), pricer):
        cost = pricer.cost(candidate.decisions)
        if cost is None:
            continue
        lower_bound_us = bounds.lower_bound_us(candidate.decisions)
        told += lower_bound_us > 0.5 * cost
        assert lower_bound_us <= cost * (1 + 1e-9), candidate
    assert told
    plan = solve(
        NET, Options.of(target=costs.target, policy="auto", grid=20, stages=(2,), use_cache=False), costs=costs
    )
    assert makespan_bound(NET, costs, plan.baseline_us).time_us <= plan.predicted_us * (1 + 1e-9)


def test_queued_launches_keep_the_host_busy_but_no_one_waits_for_them() -> None:
    bounds = {mode: makespan_bound(NET, costs_of(mode), math.inf) for mode in MODES}
    assert bounds["queued"].load_us == bounds["exposed"].load_us
    assert bounds["queued"].path_us < bounds["exposed"].path_us
    assert max(bounds["persistent"].load_us, bounds["both"].load_us) < bounds["exposed"].load_us


@pytest.mark.parametrize(("host_rows", "launched"), [((0, 8, 8), [True, False]), ((8, 8, 0), [True, False])])
def test_a_persistent_kernel_is_launched_where_the_host_has_rows_first(
    host_rows: tuple[int, ...], launched: list[bool]
) -> None:
    """For nodes split within stages, that may be a later one."""
    costs = costs_of("persistent")
    run = ("conv2", "relu3", "conv4", "relu5")
    pipeline = Pipeline(run, ("pim", "gpu", "gpu", "gpu"), (8, 10, 10), "", host_rows=(host_rows, (), (), ()))
    others = [[OnDevice(node.name, "gpu") for node in some] for some in (NET.nodes[:2], NET.nodes[6:])]
    graph = carried_out(NET, (*others[0], pipeline, *others[1]), costs)
    kernels = [node for node in graph.nodes if node.placement.origin == "conv2" and node.op.is_contraction]
    on_host = [node for node in kernels if node.device == "gpu"]
    assert [costs.time_parts_us(graph, node)["launch"] > 0 for node in on_host] == launched
    exposed = costs_of("exposed")
    saved = [exposed.node_cost(graph, node).time_us - costs.node_cost(graph, node).time_us for node in on_host]
    assert [us == 0 for us in saved] == launched
