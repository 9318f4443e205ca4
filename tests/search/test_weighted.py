"""Plans by energy: the energies of candidates add up to the run's, and no plan of the policy needs less."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pimflow.ir import Decision, Graph, Parallel, Plan
from pimflow.options import Options
from pimflow.passes import CLEANUP, PassManager
from pimflow.runtime.costs import CostModel
from pimflow.search import solver
from pimflow.search.candidates import Candidates
from pimflow.search.chain import Interval
from pimflow.search.policy import ENERGY, LATENCY, Objective, Policy, find_policy, policies
from pimflow.search.price_cache import PriceCache
from pimflow.search.solver import solve, solve_for
from pimflow.search.weighted import WeightedPricer
from pimflow.targets import load_target, override
from support.costs import FakeCosts
from support.covers import covers, whole_run
from support.graphs import ConvNet, fire_modules, heavy_chain, inverted_residuals, random_net

GRAPHS = {"inverted": inverted_residuals(1), "fire": fire_modules(14), "random": random_net(2)}
HALVES = replace(
    find_policy("pimflow"), spaces=tuple(replace(s, split=Fraction(1, 2)) for s in find_policy("pimflow").spaces)
)


def mixed_chain() -> Graph:
    """A chain that contains a pipeline pattern."""
    net = ConvNet("mixed")
    x = net.layer(net.layer(net.input(1, 32, 14, 14), 32, 3), 192)
    return net.graph(net.layer(net.wise(x), 32))


class CarryingOut(WeightedPricer):
    """A pricer that carries out every decision that it prices."""

    def _from_parts(self, decisions: tuple[Decision, ...]) -> None:
        """Nothing follows from parts."""


@cache
def spent_by_covers(small: str) -> tuple[tuple[float, float], ...]:
    """Time and energy of every plan in halves of a small graph, measured as a whole."""
    graph = {"mixed": mixed_chain(), "heavy": heavy_chain(14)}[small]
    runs = [whole_run(graph, decisions, FakeCosts()) for decisions in covers(graph, HALVES, FakeCosts())]
    return tuple((run.makespan_us, run.total_energy_mj) for run in runs)


@pytest.mark.parametrize("small", ["mixed", "heavy"])
def test_no_plan_spends_less(small: str) -> None:
    graph = {"mixed": mixed_chain(), "heavy": heavy_chain(14)}[small]
    found = spent_by_covers(small)
    assert len(found) > 30
    costs = FakeCosts()
    for objective, place in (("latency", 0), ("energy", 1)):
        options = Options.of(target=costs.target, policy="pimflow", objective=objective, grid=50, use_cache=False)
        plan = solve(graph, options, costs=costs)
        run = whole_run(graph, plan.decisions, costs)
        assert (run.makespan_us, run.total_energy_mj)[place] == pytest.approx(min(s[place] for s in found), rel=1e-9)
        assert plan.predicted_us == pytest.approx(run.makespan_us, rel=1e-9)
        assert plan.objective == objective


@pytest.mark.parametrize("policy", [name for name in policies() if name not in ("gpu", "newton+")])
@pytest.mark.parametrize("name", GRAPHS)
def test_energies_of_candidates_add_up_to_the_run(name: str, policy: str) -> None:
    costs, graph = CostModel(load_target("pimflow")), PassManager(CLEANUP).run(GRAPHS[name]).graph
    options = Options(target=costs.target, policy=policy, objective="energy", use_cache=False)
    plan = solve(graph, options, costs=costs)
    run = whole_run(graph, plan.decisions, costs)
    assert plan.predicted_us == pytest.approx(run.makespan_us, rel=1e-9)
    quick = solve(graph, replace(options, objective="latency"), costs=costs)
    assert run.total_energy_mj <= whole_run(graph, quick.decisions, costs).total_energy_mj * (1 + 1e-9)


def test_no_plan_for_energy_spends_more_than_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The local search for energy may end elsewhere; here it finds only the host."""
    costs, graph = CostModel(load_target("pimflow")), PassManager(CLEANUP).run(heavy_chain(14)).graph
    options = Options(target=costs.target, policy="newton++", use_cache=False)
    fastest, search_for = solve(graph, options, costs=costs), solver.solve_for

    def poor(graph: Graph, policy: Policy, *given: Any, **others: Any) -> Plan:
        chosen = find_policy("gpu") if policy.objective == ENERGY else policy
        return replace(search_for(graph, chosen, *given, **others), objective=policy.objective.name)

    monkeypatch.setattr(solver, "solve_for", poor)
    plan = solve(graph, replace(options, objective="energy"), costs=costs)
    assert plan.decisions == fastest.decisions
    assert (plan.objective, plan.complete, plan.limit) == ("energy", True, None)
    late = solve(graph, replace(options, objective="energy", time_budget_s=1e-9), costs=costs)
    assert late.decisions != fastest.decisions
    assert not late.complete


def test_energy_and_latency_ask_for_different_plans() -> None:
    """Under the fake costs, the host has only static power."""
    (fast, _), (_, frugal) = (min(spent_by_covers("mixed"), key=lambda pair: pair[place]) for place in (0, 1))
    assert min(mj for us, mj in spent_by_covers("mixed") if us == fast) > frugal


@pytest.mark.parametrize("policy", ["pimflow", "auto"])
@pytest.mark.parametrize("name", GRAPHS)
def test_no_bound_is_above_the_energy(name: str, policy: str) -> None:
    costs, graph = FakeCosts(symmetric_padding=("gpu",)), PassManager(CLEANUP).run(GRAPHS[name]).graph
    pricer = WeightedPricer(graph, costs, PriceCache(None, ""), ENERGY)
    slow_pricer = CarryingOut(graph, costs, PriceCache(None, ""), ENERGY)
    tight = 0
    for candidate in Candidates(graph, find_policy(policy), pricer):
        energy_mj = slow_pricer.cost(candidate.decisions)
        if energy_mj is None:
            continue
        least, priced = pricer.least(candidate.decisions), False
        while not priced:
            assert least <= energy_mj * (1 + 1e-9), candidate
            tight += least > 0.5 * energy_mj
            refined, priced = pricer.refine(candidate.decisions, least)
            assert refined is not None
            assert priced or refined > least, "it is refined until it is priced"
            least = refined
        assert least == pytest.approx(energy_mj, rel=1e-12)
    assert tight, "the bound is too weak"


MACHINES = {
    "exposed": override(load_target("pimflow"), {"gpu.launches": "exposed"}),
    "queued": override(load_target("pimflow"), {"gpu.launches": "queued"}),
    "linked": load_target("pimflow-cpu"),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ["inverted", "fire"])
def test_what_follows_from_parts_matches_the_timeline(name: str, machine: str) -> None:
    costs = CostModel(MACHINES[machine])
    graph = PassManager(CLEANUP).run(GRAPHS[name]).graph
    pricer = WeightedPricer(graph, costs, PriceCache(None, ""), ENERGY)
    slow_pricer = CarryingOut(graph, costs, PriceCache(None, ""), ENERGY)
    candidates = Candidates(graph, find_policy("auto"), pricer)
    listed = list(candidates)
    shortest = {one.start: one for one in sorted(listed, key=lambda one: one.stop, reverse=True)}
    cover: list[Interval[tuple[Decision, ...]]] = []
    while (place := cover[-1].stop if cover else 0) < len(candidates.order):
        cover.append(Interval(place, shortest[place].stop, 1.0, shortest[place].decisions))
    drawn = [*listed[::20], *[one for one, _ in candidates.joins(cover)][:20]]
    for candidate in drawn:
        cost = pricer.cost(candidate.decisions)
        assert cost is not None
        assert cost == pytest.approx(slow_pricer.cost(candidate.decisions), rel=1e-12), candidate
        assert pricer.least(candidate.decisions) <= cost * (1 + 1e-9), candidate
    assert pricer.built < len(drawn) / 2 < slow_pricer.built
    assert any(isinstance(one.decisions[0], Parallel) for one in drawn) or name == "inverted"


def test_a_cached_plan_is_not_used_for_other_energies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIMFLOW_CACHE_DIR", str(tmp_path))
    graph = mixed_chain()
    shipped = load_target("pimflow")
    hungry = override(shipped, {"pim.energy.strict.mac_pj": 1e6})
    found = []
    for target in (shipped, hungry, shipped):
        options = Options(target=target, policy="newton++", objective="energy")
        found.append(solve(graph, options, costs=CostModel(target)).decisions)
    assert found[0] == found[2] != found[1]


def test_an_objective_is_part_of_a_policy() -> None:
    policy: Policy = find_policy("auto")
    assert policy.objective == LATENCY


@pytest.mark.parametrize("name", GRAPHS)
def test_pricers_that_share_what_they_know_find_equally_cheap_plans(name: str) -> None:
    """A front continues with one pricer; searches by several objectives, one after the other, end where new ones do."""
    costs, graph = FakeCosts(), PassManager(CLEANUP).run(GRAPHS[name]).graph
    options = Options.of(target=costs.target, use_cache=False)
    shared = WeightedPricer(graph, costs, PriceCache(None, "shared"), ENERGY)
    for objective in (ENERGY, Objective("both", 1.0, 3.0), Objective("rather time", 10.0, 1.0)):
        policy = replace(find_policy("pimflow"), objective=objective)
        known, fresh = (
            solve_for(graph, policy, options, costs=costs, pricer=pricer)
            for pricer in (shared.weighing(objective), None)
        )
        runs = [whole_run(graph, plan.decisions, costs) for plan in (known, fresh)]
        assert len({objective.cost(run.makespan_us, run.total_energy_mj) for run in runs}) == 1
