"""Plans cached on disk: found for the same search, and for no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pimflow.ir import Graph, Plan
from pimflow.options import Options
from pimflow.runtime.costs import CostModel
from pimflow.runtime.newton.autotune import choose
from pimflow.search import makespan_bound
from pimflow.search.makespan_bound import MakespanBound
from pimflow.search.plan_cache import PlanCache
from pimflow.search.policy import find_policy
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import Pricer
from pimflow.search.solver import bound_of, cache_scope, solve
from pimflow.targets import Target, load_target
from pimflow.targets.overrides import with_values
from support.calls import count_calls
from support.costs import FakeCosts
from support.graphs import inverted_residuals

GRAPH = inverted_residuals()
LARGE = inverted_residuals(3, 28)
AUTO = find_policy("auto")


def search(folder: Path, graph: Graph = GRAPH, policy: str = "auto") -> Plan:
    costs = FakeCosts()
    return solve(
        graph, Options(policy=policy, target=costs.target), costs=costs, prices=PriceCache(folder, cache_scope(costs))
    )


def test_a_second_search_prices_nothing_and_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = search(tmp_path)

    def nothing(*_: object) -> float:
        raise AssertionError("priced again")

    monkeypatch.setattr(Pricer, "cost", nothing)
    monkeypatch.setattr(Pricer, "least", nothing)
    assert search(tmp_path) == first
    assert first.candidates > 100
    with pytest.raises(AssertionError, match="priced again"):
        search(tmp_path, policy="pimflow")
    with pytest.raises(AssertionError, match="priced again"):
        search(tmp_path, inverted_residuals(1, 40))


def test_an_interrupted_plan_is_not_cached(tmp_path: Path) -> None:
    costs = FakeCosts()
    hasty = Options(policy="auto", target=costs.target, time_budget_s=1e-9)
    prices = PriceCache(tmp_path, cache_scope(costs))
    assert solve(GRAPH, hasty, costs=costs, prices=prices).predicted_us > search(tmp_path).predicted_us


def test_a_plan_for_other_nodes_or_of_another_format_is_ignored(tmp_path: Path) -> None:
    plans = PlanCache(tmp_path, "scope")
    plan = search(tmp_path)
    plans.put(GRAPH, AUTO, plan)
    assert PlanCache(tmp_path, "scope").plan_of(GRAPH, AUTO, "gpu") == plan
    assert PlanCache(tmp_path, "another machine").plan_of(GRAPH, AUTO, "gpu") is None
    for number, wrong in enumerate((replace(plan, decisions=plan.decisions[1:]), replace(plan, predicted_us="soon"))):  # type: ignore[arg-type]
        other = PlanCache(tmp_path, f"wrong {number}")
        other.put(GRAPH, AUTO, wrong)
        assert other.plan_of(GRAPH, AUTO, "gpu") is None


def test_nodes_with_other_names_have_their_own_plan(tmp_path: Path) -> None:
    plan = search(tmp_path)
    nodes = [replace(node, name=f"{node.name}_2") for node in GRAPH.nodes]
    fused = [node.placed(fused_into=into and f"{into}_2") for node in nodes for into in (node.placement.fused_into,)]
    renamed = search(tmp_path, GRAPH.replace(nodes=fused))
    assert renamed.predicted_us == plan.predicted_us
    covered = {name for decision in renamed.decisions for name in decision.nodes}
    assert covered == {node.name for node in nodes}


def searches(target: Target, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, int]:
    """The plan on a machine, and the number of mapping searches."""
    found = count_calls(monkeypatch, choose, "candidates")
    costs = CostModel(target)
    plan = solve(
        LARGE, Options(policy="auto", target=target), costs=costs, prices=PriceCache(folder, cache_scope(costs))
    )
    return plan, len(found)


def test_irrelevant_values_leave_the_mappings_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = load_target("pimflow")
    plan, first = searches(target, tmp_path, monkeypatch)
    assert first > 20
    renamed = replace(with_values(target, {"gpu.basis": "another"}), description="another text")
    assert searches(renamed, tmp_path, monkeypatch) == (plan, 0)
    energies = {"gpu.energy.static_w": 31.0, "pim.energy.strict.activate_pj": 7.0}
    assert searches(with_values(target, energies), tmp_path, monkeypatch) == (plan, 0), (
        "plans do not depend on energies"
    )
    slower, count = searches(with_values(target, {"gpu.launch_cycles": 9000}), tmp_path, monkeypatch)
    assert slower.baseline_us > plan.baseline_us
    assert count < first // 3, "mappings that the first search did not need"
    fewer = with_values(target, {"pim.channels": 12})
    anew = searches(fewer, tmp_path / "another", monkeypatch)
    assert anew[1] > 0
    assert searches(fewer, tmp_path, monkeypatch) == anew, "no mapping of another machine is used"


def test_a_bound_is_found_once_for_every_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = FakeCosts()
    options = Options(target=costs.target)

    def bound(graph: Graph = GRAPH) -> MakespanBound:
        prices = PriceCache(tmp_path, cache_scope(costs))
        return bound_of(graph, options, costs=costs, host_us=1e6, prices=prices)

    def again(*_: object) -> MakespanBound:
        raise AssertionError("found again")

    first = bound()
    assert first.bottlenecks
    monkeypatch.setattr(makespan_bound, "makespan_bound", again)
    assert bound() == first
    with pytest.raises(AssertionError, match="found again"):
        bound(inverted_residuals(1, 40))
