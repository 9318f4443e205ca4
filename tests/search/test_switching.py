"""Plans in which memory channels are reassigned: none is better, and their cost is that of the whole timeline."""

from __future__ import annotations

from functools import cache

import pytest

from pimflow.errors import GraphError
from pimflow.ir import Graph, OnDevice, Parallel
from pimflow.ir.plan import switches
from pimflow.options import Options
from pimflow.report.front import front_points
from pimflow.runtime.costs import CostModel
from pimflow.runtime.timeline import Timeline
from pimflow.search.makespan_bound import makespan_bound
from pimflow.search.policy import policy_of
from pimflow.search.solver import prove, solve
from pimflow.targets import load_target, override
from support.costs import FakeCosts
from support.covers import carried_out, covers, whole_run
from support.graphs import ConvNet, fire_modules

FREE, DEAR = 0.0, 1e6


@cache
def slow_between() -> Graph:
    """Layers that are faster on PIM, and depthwise ones between and after them that only the GPU can run."""
    net = ConvNet("between")
    x = net.layer(net.input(1, 64, 14, 14), 96, 3)
    x = net.layer(net.wise(net.wise(x)), 96, 3)
    return net.graph(net.wise(x))


def options(costs: FakeCosts, **overrides: object) -> Options:
    return Options(target=costs.target, use_cache=False, **{"policy": "newton++", **overrides})  # type: ignore[arg-type]


@cache
def every_run(switch_us: float, policy: str) -> tuple[Timeline, ...]:
    """The schedules of all plans."""
    costs, graph = FakeCosts(channel_switch_us=switch_us), slow_between()
    found = covers(graph, policy_of(options(costs, policy=policy)), costs)
    return tuple(whole_run(graph, decisions, costs) for decisions in found)


@pytest.mark.parametrize(("objective", "policy"), [("latency", "newton++"), ("energy", "pim")])
@pytest.mark.parametrize(("switch_us", "expected"), [(FREE, 4), (0.05, 4), (0.1, 2), (DEAR, 0)])
def test_the_plan_is_the_best_of_all(switch_us: float, expected: int, objective: str, policy: str) -> None:
    costs, graph = FakeCosts(channel_switch_us=switch_us), slow_between()
    plan = solve(graph, options(costs, objective=objective, policy=policy), costs=costs)
    run = whole_run(graph, plan.decisions, costs)
    assert plan.predicted_us == pytest.approx(run.makespan_us, rel=1e-9)
    runs = every_run(switch_us, policy)
    if objective == "latency":
        assert run.makespan_us == pytest.approx(min(other.makespan_us for other in runs), rel=1e-9)
    else:
        assert run.total_energy_mj == pytest.approx(min(other.total_energy_mj for other in runs), rel=1e-9)
    assert switches(plan.decisions) == expected


def test_a_run_takes_the_time_of_its_regions_and_switches() -> None:
    graph, costs = slow_between(), FakeCosts(channel_switch_us=0.05)
    plan = solve(graph, options(costs), costs=costs)
    placed = carried_out(graph, plan.decisions, costs)
    alone_us = sum(costs.node_cost(placed, node).time_us for node in placed.nodes)
    run = whole_run(graph, plan.decisions, costs)
    assert run.makespan_us == pytest.approx(alone_us + 4 * 0.05)
    assert sum(run.region_us) == pytest.approx(run.makespan_us)


def test_no_plan_is_worse_than_without_and_the_integer_program_agrees() -> None:
    graph = fire_modules(7)
    before = solve(graph, options(FakeCosts(), policy="auto"), costs=FakeCosts()).predicted_us
    for switch_us in (0.02, FREE):
        costs = FakeCosts(channel_switch_us=switch_us)
        plan = solve(graph, options(costs, policy="auto"), costs=costs)
        assert plan.predicted_us == pytest.approx(whole_run(graph, plan.decisions, costs).makespan_us, rel=1e-9)
        assert plan.predicted_us <= before
        assert makespan_bound(graph, costs, plan.baseline_us).time_us <= plan.predicted_us
        by_chain, by_program = prove(graph, options(costs, policy="md-dp", grid=25), costs=costs)
        assert by_chain == pytest.approx(by_program, rel=1e-9)
        before = plan.predicted_us
    assert switches(plan.decisions) > 0


def test_the_front_pays_for_its_switches() -> None:
    graph, costs = slow_between(), FakeCosts(channel_switch_us=0.05)
    found = front_points(graph, options(costs), costs=costs, within_percent=0)
    runs = every_run(0.05, "newton++")
    pairs = {(round(run.makespan_us, 9), round(run.total_energy_mj, 9)) for run in runs}
    best = [pair for pair in sorted(pairs) if not any(o[0] <= pair[0] and o[1] <= pair[1] and o != pair for o in pairs)]
    assert [(point.time_us, point.energy_mj) for point in found] == [pytest.approx(pair, rel=1e-9) for pair in best]
    assert any(switches(point.plan.decisions) for point in found)


def test_channels_stay_if_the_target_has_no_switch_time() -> None:
    graph, costs = slow_between(), CostModel(load_target("pimflow"))
    node = graph.nodes[1].placed(device="gpu", choice="all-channels")
    with pytest.raises(GraphError, match="this machine's units keep theirs"):
        costs.node_cost(graph, node)
    machine = CostModel(override("pimflow", {"pim.channel_switch_us": 3}))
    assert machine.channel_switch_us == 3
    assert machine.host_only().channel_switch_us is None
    assert machine.node_cost(graph, node) == machine.host_only().node_cost(graph, node)


def test_the_host_has_all_channels_only_where_it_is_alone() -> None:
    graph, costs = slow_between(), FakeCosts(channel_switch_us=0.05)
    first, second, *others = (OnDevice(node.name, "gpu") for node in graph.nodes)
    both = Parallel(((OnDevice(first.node, "pim", "newton++"),), (OnDevice(second.node, "gpu", "all-channels"),)))
    with pytest.raises(GraphError, match="another device runs in its region"):
        whole_run(graph, (both, *others), costs)
