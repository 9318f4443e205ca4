"""Plans: their cost is the timeline's, policies nest, the oracle agrees, time budgets and caches change no result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import pimflow
from pimflow.errors import OptionError
from pimflow.ir import Builder, Decision, Graph, MatMul, OnDevice, Parallel, Pipeline, Plan, SplitRows
from pimflow.ir.plan import leaves_host, singles
from pimflow.onnxio import to_onnx
from pimflow.options import Options
from pimflow.passes import CLEANUP, MovementElimination, PassManager
from pimflow.runtime.costs import CostModel
from pimflow.runtime.timeline import build_timeline
from pimflow.search import candidates, policies, priced_space, pricing, solver
from pimflow.search.candidates import Candidate, Candidates
from pimflow.search.chain import Interval, solve_chain
from pimflow.search.policy import find_policy
from pimflow.search.pool import Pool
from pimflow.search.price_cache import PriceCache
from pimflow.search.priced_space import price_space
from pimflow.search.pricing import Pricer
from pimflow.search.progress import SearchProgress
from pimflow.search.solver import cache_scope, prove, solve
from pimflow.targets import load_target
from support.costs import FakeCosts
from support.graphs import fire_modules, heavy_chain, inverted_residuals, random_net, two_resolutions
from support.passes import rewritten
from support.values import assert_same_values

GRAPHS = {
    "inverted": inverted_residuals(),
    "tall": inverted_residuals(1, 40),
    "fire": fire_modules(),
    "heavy": heavy_chain(),
    **{f"random{seed}": random_net(seed) for seed in range(4)},
}


def plan_for(graph: Graph, policy: str, folder: Path | None = None, **options: Any) -> Plan:
    """The plan under fake costs, with prices cached in a folder or in memory only."""
    costs = FakeCosts()
    parsed = Options.of(target=costs.target, policy=policy, **options)
    return solve(graph, parsed, costs=costs, prices=PriceCache(folder, cache_scope(costs)))


@lru_cache
def default_plan(name: str, policy: str) -> Plan:
    """Plans that several tests check."""
    return plan_for(GRAPHS[name], policy)


def recomputed_us(graph: Graph, plan: Plan, costs: FakeCosts | None = None) -> float:
    """The whole graph rewritten and scheduled at once, without cutting and caching."""
    costs = costs or FakeCosts()
    if not any(leaves_host(decision, "gpu") for decision in plan.decisions):
        costs = costs.host_only()
    return build_timeline(rewritten(graph, plan, costs), costs.target, costs).makespan_us


def without(monkeypatch: pytest.MonkeyPatch, *offers: str) -> None:
    """Leave out some of the methods that offer candidates once the plan is settled."""
    for offer in offers:
        monkeypatch.setattr(Candidates, offer, lambda *_, **__: iter(()))


def test_neighbours_of_the_cheapest_plan_are_considered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps from the plan's own candidates stop earlier: a pipeline outside the plan is cheaper once it is varied."""
    graph, costs = inverted_residuals(2, 22), CostModel(load_target("pimflow"))
    without(monkeypatch, "in_fewest_stages")

    def best_us() -> float:
        space = price_space(graph, find_policy("auto"), costs, PriceCache(None, ""))
        return space.search.pool.cheapest_priced()[0]

    with_probes_us = best_us()
    monkeypatch.setattr(Candidates, "probes", lambda *_: iter(()))
    assert with_probes_us < 0.999 * best_us()


def test_neighbouring_decisions_become_one_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows divided in one decision after the other: each pipeline of them is as cheap or dearer, until it is varied."""
    us = default_plan("heavy", "auto").predicted_us
    without(monkeypatch, "merges", "rearranged", "in_fewest_stages")
    assert us < 0.98 * plan_for(GRAPHS["heavy"], "auto").predicted_us


@pytest.mark.parametrize("restricted", [{"stages": (2,)}, {"grid": 25}], ids=str)
def test_no_restricted_search_finds_a_cheaper_plan(restricted: dict[str, Any]) -> None:
    plan = plan_for(GRAPHS["heavy"], "auto", **restricted)
    assert default_plan("heavy", "auto").predicted_us <= plan.predicted_us * (1 + 1e-9)


def cheapest_us(graph: Graph) -> float:
    """The cost of the cheapest plan on target `pimflow`."""
    space = price_space(graph, find_policy("auto"), CostModel(load_target("pimflow")), PriceCache(None, ""))
    return space.search.pool.cheapest_priced()[0]


def test_pipelines_inside_joined_decisions_are_dissolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline in a branch keeps others off the unit: only without it, another unit can be moved there as well."""
    graph = two_resolutions()
    us = cheapest_us(graph)
    monkeypatch.setattr(candidates, "rejoined", lambda *_: iter(()))
    assert us < 0.99 * cheapest_us(graph)


def test_pipelines_that_may_be_near_the_cheapest_plan_are_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their bounds are so good that few would be priced otherwise, and only priced ones are varied."""
    graph, costs = PassManager(CLEANUP).run(random_net(6)).graph, CostModel(load_target("pimflow"))

    def priced() -> int:
        return len(price_space(graph, find_policy("auto"), costs, PriceCache(None, "")).intervals)

    with_those = priced()
    monkeypatch.setattr(priced_space, "_TRIES", 0)
    assert priced() < with_those


def test_graphs_that_are_small_in_few_stages_are_searched_exhaustively_in_these(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = random_net(6)
    us = cheapest_us(graph)
    without(monkeypatch, "in_fewest_stages")
    assert us < 0.93 * cheapest_us(graph)


def test_probing_stops_after_many_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, costs = inverted_residuals(2, 22), CostModel(load_target("pimflow"))
    without(monkeypatch, "in_fewest_stages")

    def refined_and_best_us() -> tuple[int, float]:
        refined: list[int] = []
        monkeypatch.setattr(SearchProgress, "refined", lambda _, number: refined.append(number))
        space = price_space(graph, find_policy("auto"), costs, PriceCache(None, ""))
        return len(refined), space.search.pool.cheapest_priced()[0]

    patient, best_us = refined_and_best_us()
    monkeypatch.setattr(priced_space, "_IN_VAIN", 5)
    shorter, found_us = refined_and_best_us()
    assert shorter < patient
    assert best_us < found_us < 1.02 * best_us, "the cheapest candidates are still priced"


@pytest.mark.parametrize("policy", policies())
@pytest.mark.parametrize("name", GRAPHS)
def test_predicted_cost_is_the_makespan_of_the_whole_graph(name: str, policy: str) -> None:
    graph = GRAPHS[name]
    plan = default_plan(name, policy)
    assert plan.predicted_us == pytest.approx(recomputed_us(graph, plan), rel=1e-9)
    covered = [node for decision in plan.decisions for node in decision.nodes]
    assert sorted(covered) == sorted(node.name for node in graph.nodes)
    gpu_only = Plan("gpu", tuple(OnDevice(node.name, "gpu") for node in graph.nodes), 0.0, 0.0)
    assert plan.baseline_us == pytest.approx(recomputed_us(graph, gpu_only), rel=1e-9)


@pytest.mark.parametrize("name", GRAPHS)
def test_predicted_cost_is_the_makespan_where_padding_is_explicit(name: str) -> None:
    costs = FakeCosts(symmetric_padding=("gpu",))
    graph = PassManager((MovementElimination(),)).run(GRAPHS[name]).graph
    plan = solve(graph, Options.of(target=costs.target, policy="auto", use_cache=False), costs=costs)
    assert plan.predicted_us == pytest.approx(recomputed_us(graph, plan, costs), rel=1e-9)
    assert plan.predicted_us >= default_plan(name, "auto").predicted_us * (1 - 1e-12), "Pads are included"


@pytest.mark.parametrize("policy", ["gpu", "auto"])
def test_the_host_alone_pays_for_the_pads_that_its_library_needs(policy: str) -> None:
    costs = FakeCosts(symmetric_padding=("gpu",))
    builder = Builder()
    x = builder.input(1, 3, 32, 32)
    graph = builder.graph(builder.conv(x, 8, kernel=(4, 4), pad=(1, 1, 2, 2)))  # as TensorFlow's "same" padding
    plan = solve(graph, Options.of(target=costs.target, policy=policy, use_cache=False), costs=costs)
    gpu_only = Plan("gpu", (OnDevice(graph.nodes[0].name, "gpu"),), 0.0, 0.0)
    assert plan.baseline_us == pytest.approx(recomputed_us(graph, gpu_only, costs), rel=1e-9)
    assert plan.baseline_us > recomputed_us(graph, gpu_only), "a kernel pads"
    assert plan.predicted_us <= plan.baseline_us


@pytest.mark.parametrize("name", GRAPHS)
def test_a_policy_is_never_worse_than_one_it_includes(name: str) -> None:
    cost = {policy: default_plan(name, policy).predicted_us for policy in policies()}
    tolerance = 1 + 1e-12
    assert cost["newton++"] <= cost["newton+"] * tolerance, "the fake's newton++ is the faster mapping"
    assert cost["md-dp"] <= cost["newton++"] * tolerance
    assert cost["pipeline"] <= cost["newton++"] * tolerance
    assert cost["pimflow"] <= min(cost["md-dp"], cost["pipeline"]) * tolerance
    assert cost["auto"] <= cost["pimflow"] * tolerance
    assert all(cost[policy] <= cost["gpu"] * tolerance for policy in cost if policy != "pim")


def test_policies_differ_where_they_should() -> None:
    costs = {policy: [default_plan(name, policy).predicted_us for name in GRAPHS] for policy in policies()}
    assert len({tuple(values) for values in costs.values()}) == len(costs)


def test_every_kind_of_decision_is_chosen_somewhere() -> None:
    chosen = {
        type(decision)
        for name in GRAPHS
        for policy in ("auto", "md-dp")
        for decision in default_plan(name, policy).decisions
    }
    assert chosen == {OnDevice, SplitRows, Pipeline, Parallel}


def test_split_branches_synchronise_only_at_their_end() -> None:
    """Two products of one input: the GPU works on a part of one for as long as PIM needs for the rest."""
    build = Builder(seed=3)
    x = build.input(1, 24, 160)
    graph = build.graph(build.concat(2, *(build.matmul(x, columns) for columns in (2000, 2000))))
    plan = plan_for(graph, "auto")
    parallel = next(decision for decision in plan.decisions if isinstance(decision, Parallel))
    divided = [item for item in parallel.decisions if not isinstance(item, OnDevice)]
    assert divided
    assert plan.predicted_us == pytest.approx(recomputed_us(graph, plan), rel=1e-9)
    apart = Plan("apart", (*parallel.decisions, *plan.decisions[1:]), 0.0, 0.0)
    assert plan.predicted_us < recomputed_us(graph, apart), "devices need not wait for each other after every product"
    assert_same_values(graph, rewritten(graph, plan, FakeCosts()))


@pytest.mark.parametrize("at_once", [True, False])
def test_decisions_joined_only_by_rounding_stay_separate(monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    """The decisions of a chain wait for each other. Pricing says that joining them is cheaper by a rounding error: in
    the bound, or in the price."""
    bounded, refined = [], []
    least, refine = Pricer.least, Pricer.refine

    def joined(_: Candidates, chosen: Sequence[Interval[tuple[Decision, ...]]]) -> Iterator[tuple[Candidate, float]]:
        items = tuple(item for some in chosen for decision in some.payload for item in singles(decision))
        yield Candidate(0, chosen[-1].stop, (Parallel((items,)),)), sum(some.cost for some in chosen)

    def counted_least(pricer: Pricer, decisions: tuple[Decision, ...]) -> float:
        if not isinstance(decisions[0], Parallel):
            return least(pricer, decisions)
        bounded.append(decisions)
        return (1 - 2**-50 if at_once else 0.5) * apart_us(pricer, decisions[0])

    def apart_us(pricer: Pricer, parallel: Parallel) -> float:
        return sum(pricer.time_us((item,)) for item in singles(parallel))

    def counted_refine(pricer: Pricer, decisions: tuple[Decision, ...], known: float) -> tuple[float | None, bool]:
        refined.append(decisions)
        if isinstance(decisions[0], Parallel):
            return (1 - 2**-50) * apart_us(pricer, decisions[0]), True
        return refine(pricer, decisions, known)

    monkeypatch.setattr(Candidates, "merges", lambda *_: iter(()))
    apart = plan_for(GRAPHS["heavy"], "auto")
    monkeypatch.setattr(Candidates, "joins", joined)
    monkeypatch.setattr(Pricer, "least", counted_least)
    monkeypatch.setattr(Pricer, "refine", counted_refine)
    plan = plan_for(GRAPHS["heavy"], "auto")
    assert bounded
    assert refined
    assert set(bounded).isdisjoint(refined) == at_once
    assert plan.decisions == apart.decisions


def test_pim_sends_everything_it_can_to_pim() -> None:
    plan = plan_for(GRAPHS["fire"], "pim")
    placed = [decision for decision in plan.decisions if isinstance(decision, OnDevice)]
    on_pim = {decision.node for decision in placed if decision.device == "pim"}
    assert on_pim == {node.name for node in GRAPHS["fire"].nodes if node.kind == "Conv"}


def test_only_pim_accepts_a_slow_down() -> None:
    costs = FakeCosts(slow_down=20.0)
    choices = [Options(target=costs.target, policy=name, use_cache=False) for name in policies()]
    slow = {options.policy: solve(GRAPHS["fire"], options, costs=costs) for options in choices}
    assert slow["pim"].predicted_us > 2 * slow["pim"].baseline_us
    assert all(plan.predicted_us == plan.baseline_us for name, plan in slow.items() if name != "pim")


def test_stages_need_not_be_equal() -> None:
    shares = [
        decision.stage_rows
        for name in GRAPHS
        for decision in default_plan(name, "auto").decisions
        if isinstance(decision, Pipeline)
    ]
    assert any(max(rows) - min(rows) > 1 for rows in shares)


def test_the_gpu_alone_wins_where_pim_does_not_pay() -> None:
    plan = plan_for(GRAPHS["fire"], "newton+")
    assert plan.predicted_us == plan.baseline_us
    assert {type(decision) for decision in plan.decisions} == {OnDevice}


@pytest.mark.parametrize("policy", ["newton++", "pimflow", "auto"])
@pytest.mark.parametrize("name", ["inverted", "fire", "random1", "random3"])
def test_integer_program_finds_the_same_optimum(name: str, policy: str) -> None:
    costs = FakeCosts()
    by_chain, by_program = prove(GRAPHS[name], Options(target=costs.target, policy=policy), costs=costs)
    assert by_program == pytest.approx(by_chain, rel=1e-7)


def test_md_dp_takes_rows_off_its_grid_only() -> None:
    splits = []
    for graph in GRAPHS.values():
        plan = plan_for(graph, "md-dp")
        for decision in plan.decisions:
            if isinstance(decision, SplitRows):
                rows = graph.shape(graph.node(decision.node).output)[-2]
                splits.append((decision.gpu_rows, rows))
    assert splits
    assert all(gpu_rows in {-(-rows * tenth // 10) for tenth in range(1, 10)} for gpu_rows, rows in splits)


def test_finer_grid_is_never_worse() -> None:
    coarse = [plan_for(graph, "md-dp", grid=50).predicted_us for graph in GRAPHS.values()]
    every = [plan_for(graph, "md-dp", grid=1).predicted_us for graph in GRAPHS.values()]
    assert all(fine <= rough * (1 + 1e-12) for fine, rough in zip(every, coarse, strict=True))
    assert sum(every) < sum(coarse)


def test_stage_counts_are_obeyed() -> None:
    counts = set()
    for graph in GRAPHS.values():
        for decision in plan_for(graph, "auto", stages=(3,)).decisions:
            if isinstance(decision, Pipeline):
                counts.add(len(decision.stage_rows))
    assert 3 in counts
    assert counts <= {1, 2, 3}, "two stages come from PIMFlow's own space only, one from rows divided without stages"


@pytest.mark.parametrize("budget", [0.0, 0.01])
def test_time_budget_still_gives_a_whole_plan(budget: float) -> None:
    graph = GRAPHS["inverted"]
    full = plan_for(graph, "auto")
    plan = plan_for(graph, "auto", time_budget_s=budget)
    assert plan.candidates < full.candidates
    assert full.predicted_us <= plan.predicted_us <= plan.baseline_us * (1 + 1e-12)
    assert plan.predicted_us == pytest.approx(recomputed_us(graph, plan), rel=1e-9)
    forced = plan_for(graph, "pim", time_budget_s=budget)
    assert forced.decisions == plan_for(graph, "pim").decisions


@pytest.mark.parametrize("name", GRAPHS)
def test_without_time_a_plan_is_no_worse_than_pimflows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "_MIN_S", math.inf)  # however busy the machine is
    plan, small = plan_for(GRAPHS[name], "auto", time_budget_s=0.0), default_plan(name, "pimflow")
    assert not plan.complete
    assert plan.predicted_us <= small.predicted_us * (1 + 1e-12)
    assert plan.predicted_us == pytest.approx(recomputed_us(GRAPHS[name], plan), rel=1e-9)


def test_same_input_same_plan_with_or_without_table(tmp_path: Path) -> None:
    graph = GRAPHS["inverted"]
    cold = plan_for(graph, "auto", folder=tmp_path)
    warm = plan_for(graph, "auto", folder=tmp_path)
    without = plan_for(graph, "auto")
    (plans,) = (path for path in tmp_path.iterdir() if b" =" in path.read_bytes())
    plans.unlink()
    by_prices = plan_for(graph, "auto", folder=tmp_path)
    assert cold.decisions == warm.decisions == without.decisions == by_prices.decisions
    assert cold.predicted_us == warm.predicted_us == without.predicted_us == by_prices.predicted_us
    assert len(list(tmp_path.iterdir())) == 2, "prices and plans"


def test_equal_layers_are_built_once_whatever_their_names_and_a_warm_table_builds_nothing(tmp_path: Path) -> None:
    table = PriceCache(tmp_path, "scope")
    two, three = inverted_residuals(2), inverted_residuals(3)
    built, priced = count_built(two, table)
    assert 0 < built < 0.8 * priced, "the second block repeats the first"
    assert count_built(three, table)[0] == 0, "and so does a third"
    assert count_built(two, PriceCache(tmp_path, "scope"))[0] == 0


def count_built(graph: Graph, table: PriceCache) -> tuple[int, int]:
    """How many candidates of `pimflow` are rewritten in order to price all of them, and how many there are."""
    pricer = Pricer(graph, FakeCosts(), table)
    candidates = list(Candidates(graph, find_policy("pimflow"), pricer))
    for candidate in candidates:
        pricer.cost(candidate.decisions)
    table.flush()
    return pricer.built, len(candidates)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name == "tall" else ()) for name in GRAPHS]
)
def test_pruning_loses_nothing(name: str) -> None:
    costs = FakeCosts()
    pruned, whole = (
        price_space(GRAPHS[name], find_policy("auto"), costs, PriceCache(None, ""), prune=prune)
        for prune in (True, False)
    )
    assert len(pruned.intervals) < len(whole.intervals)
    best, all_of_them = (solve_chain(problem.positions, problem.intervals) for problem in (pruned, whole))
    assert best[0] == all_of_them[0]
    assert [one.payload for one in best[1]] == [one.payload for one in all_of_them[1]]


def test_candidates_with_similar_bounds_are_refined_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same plan takes at most half as many solutions of the dynamic program."""

    def searched(*share: float) -> tuple[int, Any]:
        solutions = count()
        with monkeypatch.context() as patch:
            for other in share:
                patch.setattr(priced_space, "_AS_LOW", other)
            patch.setattr(Pool, "unsure", lambda pool: (next(solutions), unsure(pool))[1])
            space = price_space(GRAPHS["random0"], find_policy("auto"), FakeCosts(), PriceCache(None, ""))
        return next(solutions), solve_chain(space.positions, space.intervals)

    unsure = Pool.unsure
    (at_once, plan), (one_by_one, same) = searched(), searched(-1.0)
    assert 2 * at_once <= one_by_one
    assert plan == same


@pytest.mark.parametrize("policy", [name for name in policies() if name != "gpu"])
def test_candidates_are_counted_before_they_are_priced(policy: str) -> None:
    """The reported total is the number that is priced, except for variations, which cannot be counted in advance.

    Split sums, and rows split within runs, are separate rounds, reported when they begin.
    """
    lines: list[str] = []
    costs = FakeCosts()
    pricer = Pricer(GRAPHS["inverted"], costs, PriceCache(None, ""))
    totals = [len(list(listed)) for listed in Candidates(GRAPHS["inverted"], find_policy(policy), pricer).rounds()]
    options = Options(target=costs.target, policy=policy, use_cache=False)
    plan = solve(GRAPHS["inverted"], options, costs=costs, progress=lines.append)
    lines = [line for line in lines if not line.endswith("listed")]  # a slow machine reports this in between
    assert lines[0] == f"search: {policy}: 0 of {totals[0]:,} candidates priced (0 %)"
    assert all(f"search: {policy}: {total:,} of {total:,} candidates priced (100 %)" in lines for total in totals)
    assert len(totals) == (3 if policy == "auto" else 1)
    assert plan.candidates == sum(totals) if policy != "auto" else plan.candidates > sum(totals)


def test_a_long_list_of_candidates_is_reported_as_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = count()
    monkeypatch.setattr(priced_space, "SearchProgress", partial(SearchProgress, clock=lambda: float(next(seconds))))
    lines: list[str] = []
    costs = FakeCosts()
    options = Options(target=costs.target, policy="md-dp", use_cache=False)
    solve(GRAPHS["fire"], options, costs=costs, progress=lines.append)
    first = lines.index(next(line for line in lines if "priced" in line))
    assert lines[:first] == [f"search: md-dp: {size:,} candidates listed" for size in range(1, first + 1)]
    assert lines[first].startswith(f"search: md-dp: 0 of {first:,} candidates priced")


def test_pipelines_of_long_graphs_are_bounded_later_for_the_same_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []
    for longest in (1_500, 0):
        monkeypatch.setattr(pricing, "LONG", longest)
        plans.append(plan_for(GRAPHS["inverted"], "pimflow"))
    assert plans[0].decisions == plans[1].decisions
    assert plans[0].predicted_us == plans[1].predicted_us


def test_an_unknown_policy_is_reported() -> None:
    graph = GRAPHS["fire"]
    with pytest.raises(OptionError, match=r"unknown policy 'newtonn\+\+'.*did you mean 'newton\+\+'"):
        plan_for(graph, "newtonn++")
    assert plan_for(graph, "MDDP").policy == plan_for(graph, "Md-Dp").policy == "md-dp"


def test_empty_graph_has_an_empty_plan() -> None:
    graph = GRAPHS["fire"]
    empty = graph.replace(nodes=(), outputs=("x",))
    assert plan_for(empty, "auto").decisions == ()


def test_a_product_of_two_vectors_has_no_columns_to_split() -> None:
    """On a machine whose CPU could run a part of it."""
    build = Builder("dot")
    graph = build.graph(build.op(MatMul(), build.input(64), build.weights(64), name="dot"))
    target = load_target("rtx3090")
    plan = solve(graph, Options.of(target=target, use_cache=False), costs=CostModel(target))
    assert [decision.nodes for decision in plan.decisions] == [("dot",)]


@pytest.mark.parametrize("policy", ["gpu", "auto"])
def test_movements_left_as_they_are_cost_the_host_alone_as_much(policy: str) -> None:
    """Concats that no pass has decided are copies in every plan, the host alone included."""
    build = Builder()
    x = build.input(1, 64, 14, 14)
    sides = (build.conv(x, 64, 1), build.conv(x, 64, 3, pad=1))
    model = to_onnx(build.graph(build.relu(build.conv(build.concat(1, *sides), 64, 1))))
    options: dict[str, Any] = {"disabled_passes": ("movement-elimination",), "use_cache": False, "check": False}
    report = pimflow.compile(model, target="h200", policy=policy, **options).report
    assert any(row.op == "Concat" and row.time_us > 0 for row in report.nodes)
    assert report.result.time_us <= report.baseline.time_us * (1 + 1e-9)
    assert report.bound_ratio >= 1 - 1e-9
