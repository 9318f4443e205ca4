"""`solve`: the cheapest plan of a policy for a graph and a machine.

What is exact: of all plans that are made of the policy's candidates and keep to the execution order
(`order.execution_order`), the result is a cheapest one (`chain.solve_chain`; `prove` asks an integer program). Costs
are as exact as the cost models: every candidate's is the makespan of the timeline of its rewritten region, and regions
meet at their ends, so the plan's cost is the makespan of the whole rewritten graph.

What is bounded: the candidates themselves, by the policy's spaces (`policy.Space`) and the limits in `candidates`.
`auto` adds to its enumerated candidates what a local search around the best plan finds (`Candidates.variations`).

With PIM in use its channels are lost to the GPU for the whole run, unless the target lets them change hands
(`switching`). So the best plan in PIM mode is compared with the
GPU alone with all channels, and the cheaper of the two is the plan: a policy never slows a model down, except `pim`.

The weights of all that runs on a unit have to fit into its memory together (`capacity`). Where the best plan's do not,
the plan is the best one found that fits, and says what no plan that fits can be below.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pimflow.ir import Decision, Graph, OnDevice, Parallel, Plan
from pimflow.ir.plan import MemoryLimit, switches
from pimflow.options import Options
from pimflow.passes import PassManager
from pimflow.runtime.memory import plan_memory
from pimflow.runtime.memory.in_flight import least_rest_us
from pimflow.runtime.timeline import build_timeline
from pimflow.search import least_times, makespan_bound
from pimflow.search.between import Gaps
from pimflow.search.bounds import Unit
from pimflow.search.candidates import Candidate, Candidates
from pimflow.search.capacity import cover_that_fits, stored_of
from pimflow.search.chain import Interval, solve_chain
from pimflow.search.feature_places import has_room
from pimflow.search.kept_plans import KeptPlans
from pimflow.search.kept_runs import KeptRuns
from pimflow.search.kept_streams import KeptStreams
from pimflow.search.makespan_bound import MakespanBound
from pimflow.search.order import execution_order
from pimflow.search.policy import ENERGY, LATENCY, THROUGHPUT, Objective, Policy, find_policy, policy_of
from pimflow.search.pool import Entry, Pool
from pimflow.search.price_cache import PriceCache, code_fingerprint, open_user_cache, user_folder
from pimflow.search.pricing import Costs, Pricer, host_alone, rewrites
from pimflow.search.progress import SearchProgress, Tell, silent
from pimflow.search.switching import Line
from pimflow.search.throughput import LoadPricer, balance
from pimflow.search.weighed import WeighedPricer, pricer_of

if TYPE_CHECKING:
    from pimflow.search.ilp import SolverName

Decisions = tuple[Decision, ...]


@dataclass(frozen=True)
class PricedSpace:
    """A policy's candidates over one graph, priced: what both solvers solve.

    `positions` nodes in order, or points of the line on which memory channels change hands; `intervals` cover them;
    `baseline_us` is the GPU alone, and `baseline_cost` that by the policy's objective, by which the intervals cost what
    they do; `priced` counts candidates; `complete` is False if the time budget ended before all candidates were priced.
    """

    positions: int
    intervals: tuple[Interval[Decisions], ...]
    baseline_us: float
    baseline_cost: float
    baseline: Decisions
    priced: int
    complete: bool
    host: str
    objective: Objective
    pricer: Pricer


def solve(
    graph: Graph,
    options: Options,
    *,
    costs: Costs,
    prices: PriceCache | None = None,
    progress: Tell = silent,
) -> Plan:
    """The cheapest plan of the policy that options ask for, by their objective.

    A plan is always found, also when the time budget ends before the candidates do. Where the host alone fits
    into the GPU's memory, a plan that needs more than there is gives way to it.

    Args:
        graph: cleaned up (batch norms folded, fused nodes marked).
        options: the policy, and what bounds the search.
        costs: the cost model in PIM mode, of the target to plan for.
        prices: the price cache, in place of the one that the options ask for.
        progress: receives how far the search is, as lines of text.

    Raises:
        OptionError: the policy is unknown.
    """
    plan = solve_for(graph, policy_of(options), options, costs=costs, prices=prices, progress=progress)
    if plan.interval_us is not None or has_room(plan, graph, costs):
        return plan
    alone = solve_for(graph, find_policy("gpu"), options, costs=costs, prices=prices, progress=progress)
    return replace(alone, policy=plan.policy) if has_room(alone, graph, costs) else plan


def solve_for(
    graph: Graph,
    chosen: Policy,
    options: Options,
    *,
    costs: Costs,
    prices: PriceCache | None = None,
    progress: Tell = silent,
) -> Plan:
    """The same of a policy in place of the one that the options name."""
    started = time.perf_counter()
    scope = cache_scope(costs)
    folder = _folder(options, prices)
    records = unit_records(costs, folder)
    plans = KeptPlans(folder, scope if chosen.objective == LATENCY else f"{scope} {costs.target.values}")
    plan = plans.plan_of(graph, chosen, costs.target.host)
    if plan is None:
        prices = PriceCache(folder, scope) if prices is None else prices
        search = _balance if chosen.objective == THROUGHPUT else _search
        plan = search(graph, chosen, costs, prices, options.time_budget_s, progress)
        _keep_learnt(records)
        if plan.complete:
            plans.keep(graph, chosen, plan)
    return replace(plan, search_seconds=round(time.perf_counter() - started, 6))


def gaps_between(
    graph: Graph, policy: Policy, corners: Sequence[Plan], options: Options, *, costs: Costs, prices: PriceCache
) -> Gaps:
    """What looks for plans between those that are best at some price of energy, for as long as the options allow."""
    return Gaps(graph, policy, WeighedPricer(graph, costs, prices, ENERGY), corners, options.time_budget_s)


class BoundCosts(least_times.Costs, Protocol):
    """What is asked of a cost model to keep what no plan takes less than."""

    @property
    def identity(self) -> str:
        """All that prices depend on beside the code, as text."""


def bound_of(
    graph: Graph, options: Options, *, costs: BoundCosts, host_us: float, prices: PriceCache | None = None
) -> MakespanBound:
    """What no plan for a graph takes less than, whatever the policy; looked up where it was found before.

    Args:
        graph: cleaned up, as for `solve`.
        options: whether there is a cache.
        costs: the cost model in PIM mode.
        host_us: what the host takes alone, with all memory channels.
        prices: the price cache, in place of the one that the options ask for: bounds are kept beside it.
    """
    kept = KeptPlans(_folder(options, prices), cache_scope(costs))
    host = costs.target.host
    bound = kept.bound_of(graph, host)
    if bound is None:
        bound = makespan_bound.makespan_bound(graph, costs, host_us)
        kept.keep_bound(graph, host, bound)
    return bound


def _folder(options: Options, prices: PriceCache | None) -> Path | None:
    """Where what is found is kept; None if nowhere."""
    return prices.folder if prices is not None else user_folder() if options.use_cache else None


def kept_runs(options: Options) -> KeptRuns:
    """What earlier runs found to run, where the options allow to read it."""
    return KeptRuns(_folder(options, None))


def kept_streams(options: Options, made_of: str) -> KeptStreams:
    """What an earlier run wrote of the same programs; nothing where `made_of` does not say what they are."""
    return KeptStreams(_folder(options, None) if made_of else None, made_of)


def keep_learnt(options: Options, *, costs: Costs) -> None:
    """Keeps what units have learnt of work since a plan was found: a report asks what else nodes would take."""
    if options.use_cache:
        _keep_learnt(unit_records(costs, user_folder()))


def _keep_learnt(records: Iterable[tuple[Unit, PriceCache]]) -> None:
    for unit, table in records:
        for key, text in unit.learnt().items():
            table.put_text(key, text)
        table.flush()


def unit_records(costs: Costs, folder: Path | None) -> list[tuple[Unit, PriceCache]]:
    """Where units keep what they learn of work, by what that depends on; they are told what is there."""
    found = []
    for unit in costs.units.values():
        if unit.learnt_of:
            table = PriceCache(folder, f"units\n{code_fingerprint()} {unit.learnt_of}")
            unit.recall(table.texts)
            found.append((unit, table))
    return found


def _search(
    graph: Graph, chosen: Policy, costs: Costs, prices: PriceCache, budget_s: float | None, progress: Tell
) -> Plan:
    """The cheapest plan, or the best that the time budget, if any, left time to find."""
    started = time.perf_counter()
    space = price_space(graph, chosen, costs, prices, budget_s, progress)
    complete = space.complete
    best = _best_in_pim_mode(space)
    if not _fits(best, costs):
        left_s = None if budget_s is None else budget_s - (time.perf_counter() - started)
        complete = complete and (left_s is None or left_s > 0)
        if left_s is None or left_s > 0:
            looked_at = space.intervals
            space = price_space(graph, chosen, costs, prices, left_s, progress, prune=False)
            complete = complete and space.complete
            if not space.complete:  # it has the short candidates; the long ones that may pay were looked at before
                space = replace(space, intervals=(*space.intervals, *looked_at))
        best = _best_that_fits(space, best.cost, costs, whole=complete)
    if not chosen.pim_mode and space.baseline_cost <= best.cost:
        best = _baseline(space, best.limit)
    prices.flush()
    return Plan(
        chosen.name,
        best.decisions,
        best.time_us,
        space.baseline_us,
        space.priced,
        0.0,
        space.host,
        stored_of(best.kept, costs),
        best.limit if chosen.objective == LATENCY else None,
        chosen.objective.name,
        complete,
    )


def _balance(
    graph: Graph, chosen: Policy, costs: Costs, prices: PriceCache, budget_s: float | None, progress: Tell
) -> Plan:
    """The plan whose busiest resource works least on an inference."""
    progress(f"search: {chosen.name}: loads of resources")
    host = costs.target.host
    pricer = LoadPricer(graph, costs, prices)
    found = balance(graph, chosen, pricer, budget_s)
    prices.flush()
    alone_us = build_timeline(host_alone(graph, costs), costs.target, costs.host_only()).makespan_us
    leaves = found is not None and any(leaves_host(decision, host) for some in found.chosen for decision in some)
    plan = Plan(
        chosen.name,
        tuple(OnDevice(node.name, host) for node in execution_order(graph)),
        alone_us,
        alone_us,
        0 if found is None else found.entered,
        0.0,
        host,
        objective=chosen.objective.name,
        complete=found is None or found.complete,
        interval_us=alone_us,
    )
    if found is None or not leaves:
        return plan
    kept: Counter[str] = Counter()
    for some in found.chosen:
        kept.update(pricer.kept(some))
    balanced = replace(
        plan,
        decisions=tuple(decision for some in found.chosen for decision in some),
        predicted_us=sum(map(pricer.time_us, found.chosen)),
        stored=stored_of(kept, costs),
    )
    rest_us = _rest_us(graph, balanced, costs)
    interval_us = found.interval_us + rest_us
    if not chosen.pim_mode and alone_us <= interval_us:
        return plan
    return replace(balanced, interval_us=interval_us, rest_us=rest_us)


def _rest_us(graph: Graph, plan: Plan, costs: Costs) -> float:
    """How long the busiest resource rests in an interval, so that the GPU's memory holds what is in flight.

    0 where nothing says how much it holds, or where it does not even hold one inference: no plan fits then.
    """
    tiers = costs.target.memory
    if tiers is None:
        return 0.0
    placed = PassManager(rewrites(plan, costs)).run(graph).graph
    memory = plan_memory(placed, costs.workspaces(placed))
    room = tiers.gpu.usable_bytes - memory.weight_bytes
    return least_rest_us(placed, costs.target, costs, memory, room) or 0.0


def prove(graph: Graph, options: Options, *, costs: Costs, solver: SolverName | None = None) -> tuple[float, float]:
    """(cost by the dynamic program, cost by the integer program) of one space with nothing pruned; they are equal."""
    from pimflow.search.ilp import solve_intervals  # PuLP takes a while to import, and no compilation needs it

    space = price_space(graph, policy_of(options), costs, PriceCache(None, cache_scope(costs)), prune=False)
    if not space.intervals:
        return space.baseline_cost, space.baseline_cost
    return solve_chain(space.positions, space.intervals)[0], solve_intervals(space.positions, space.intervals, solver)[
        0
    ]


def price_space(
    graph: Graph,
    policy: Policy,
    costs: Costs,
    prices: PriceCache,
    time_budget_s: float | None = None,
    progress: Tell = silent,
    prune: bool = True,
) -> PricedSpace:
    """Prices a policy's candidates, then variations of the best plan's pipelines, until none or no time is left.

    `prune` prices only what the cheapest plan may be made of, as far as `bounds` say (`pool`). That loses nothing.
    """
    pricer = pricer_of(policy.objective, graph, costs, prices)
    candidates = Candidates(graph, policy, pricer, exhaustive=prune)
    what = policy.name if prune else f"{policy.name}, nothing pruned"
    telling = SearchProgress(what, progress, time_budget_s)
    line = Line(candidates, costs.channel_switch_us)
    search = _Search(pricer, line, telling, prune)
    if policy.spaces:
        search.vary(line.with_all_channels())
        search.pass_over(line.steps(), switch_cost(policy.objective, costs))
    for listed in candidates.rounds() if policy.spaces else ():
        search.enter(listed)
        search.improve(candidates)
    prices.flush()
    host = costs.target.host
    baseline: Decisions = tuple(OnDevice(node.name, host) for node in candidates.order)
    alone = build_timeline(host_alone(graph, costs), costs.target, costs.host_only())
    return PricedSpace(
        line.size,
        tuple(search.pool.priced()),
        alone.makespan_us,
        policy.objective.cost(alone.makespan_us, alone.total_energy_mj),
        baseline,
        search.entered,
        not search.out_of_time,
        host,
        policy.objective,
        pricer,
    )


def _intervals(entries: Iterable[Entry[Decisions]]) -> list[Interval[Decisions]]:
    return [Interval(entry.start, entry.stop, entry.us, entry.payload) for entry in entries]


def switch_cost(objective: Objective, costs: Costs) -> float:
    """What memory channels that change hands once cost."""
    switch_us = costs.channel_switch_us or 0.0
    return objective.cost(switch_us, costs.static_energy_mj(switch_us))


class _Search:
    """The candidates so far, with an eye on the clock.

    `entered` counts them; `out_of_time` is whether some were left out, or left as they were, for lack of time.
    """

    def __init__(self, pricer: Pricer, line: Line, progress: SearchProgress, prune: bool) -> None:
        self.pool: Pool[Decisions] = Pool(line.size)
        self.entered = 0
        self.out_of_time = False
        self._pricer = pricer
        self._line = line
        self._progress = progress
        self._prune = prune
        self._looked_at = 0
        self._tried: set[Decision] = set()

    def enter(self, candidates: Iterable[Candidate]) -> None:
        """Counts candidates and tells what each takes at least; what a plan must have, which comes first, is priced.

        Of a time budget half is left for looking at the promising ones.
        """
        waiting = []
        for candidate in candidates:
            if self._progress.is_half_spent and not candidate.certain:
                self.out_of_time = True
                break
            waiting.append(candidate)
            self._progress.listed(len(waiting))
        total = len(waiting)
        self._progress.begins(total)
        for done, candidate in enumerate(waiting, start=1):
            if self._progress.is_half_spent and not candidate.certain:
                self.out_of_time = True
                return
            self._enter(candidate)
            self._progress.priced(done, total)

    def pass_over(self, steps: Iterable[tuple[int, int, int]], switch_cost: float) -> None:
        """Adds what leads from point to point of the line while nothing runs."""
        for start, stop, switched in steps:
            self.pool.add(Entry(0, start, stop, (), switch_cost * switched, True))

    def improve(self, candidates: Candidates) -> None:
        """Goes on from what the cheapest cover is made of, until it has nothing new in it, or no time is left.

        What runs at once is looked at again in every round: more may be divided in it.
        """
        self._tried = {decision for decision in self._tried if not isinstance(decision, Parallel)}
        while True:
            chosen = self.cheapest()
            fresh = [entry for entry in chosen if not self._tried.issuperset(entry.payload)]
            if not fresh or self.out_of_time:
                return
            self.vary(candidates.joins(self._line.on_order(_intervals(chosen))))
            for entry in fresh:
                self._tried.update(entry.payload)
            for interval in self._line.on_order(_intervals(fresh)):
                self.vary(candidates.variations(interval))

    def vary(self, candidates: Iterable[Candidate]) -> None:
        """The same for variations of what has been found, of which nobody knows how many will follow."""
        for candidate in candidates:
            if self._progress.out_of_time:
                self.out_of_time = True
                return
            self._enter(candidate)

    def cheapest(self) -> tuple[Entry[Decisions], ...]:
        """The cheapest cover, all of it priced, unless there is no time for that."""
        while not self._progress.out_of_time:
            chosen = self.pool.cheapest()
            unsure = [entry for entry in chosen if not entry.priced]
            if not unsure:
                return chosen
            for entry in unsure:
                self._look_at(entry)
        self.out_of_time = True
        return ()

    def _enter(self, candidate: Candidate) -> None:
        self.entered += 1
        decisions = candidate.decisions
        exactly = candidate.certain or not self._prune
        us = self._pricer.cost(decisions) if exactly else self._pricer.least(decisions)
        if us is not None:
            self.pool.add(Entry(self.entered, *self._line.place(candidate), decisions, us, exactly))

    def _look_at(self, entry: Entry[Decisions]) -> None:
        self.pool.take(entry)
        us, entry.priced = self._pricer.closer(entry.payload, entry.us)
        if us is not None:
            entry.us = us
            self.pool.add(entry)
        self._looked_at += 1
        self._progress.looked_at(self._looked_at)


def open_cache(options: Options, costs: Costs) -> PriceCache:
    """The price cache of a cost model: in the user's cache folder, or in memory only, as the options say."""
    return open_user_cache(cache_scope(costs)) if options.use_cache else PriceCache(None, cache_scope(costs))


def cache_scope(costs: Costs | BoundCosts) -> str:
    """What all prices of a cost model depend on, code included, as text."""
    return f"{code_fingerprint()} {costs.identity}"


@dataclass(frozen=True)
class _Choice:
    """A plan's decisions, what they cost and take, and what they keep in the memories of units, by device."""

    cost: float
    time_us: float
    decisions: Decisions
    kept: Mapping[str, int] = field(default_factory=dict)
    limit: MemoryLimit | None = None


def _best_in_pim_mode(space: PricedSpace) -> _Choice:
    """The cheapest plan that uses PIM's channels for PIM; the baseline where there are no candidates to make one of."""
    if not space.intervals:
        return _baseline(space)
    return _choice(space, *solve_chain(space.positions, space.intervals))


def _baseline(space: PricedSpace, limit: MemoryLimit | None = None) -> _Choice:
    """The host alone, with all memory channels."""
    return _Choice(space.baseline_cost, space.baseline_us, space.baseline, limit=limit)


def _choice(
    space: PricedSpace, cost: float, chosen: Iterable[Interval[Decisions]], limit: MemoryLimit | None = None
) -> _Choice:
    """The plan of a cover; the baseline if it never leaves the host."""
    payloads = [interval.payload for interval in chosen]
    decisions = tuple(decision for payload in payloads for decision in payload)
    if not any(leaves_host(decision, space.host) for decision in decisions):
        return _baseline(space, limit)
    kept: Counter[str] = Counter()
    for payload in payloads:
        if any(leaves_host(decision, space.host) for decision in payload):
            kept.update(space.pricer.kept(payload))
    time_us = cost
    if space.objective != LATENCY:
        switched_us = switches(decisions) * (space.pricer.costs.channel_switch_us or 0.0)
        time_us = sum(map(space.pricer.time_us, filter(None, payloads))) + switched_us
    return _Choice(cost, time_us, decisions, kept, limit)


def _fits(choice: _Choice, costs: Costs) -> bool:
    return all(choice.kept.get(device, 0) <= capacity.amount for device, capacity in costs.capacities.items())


def _best_that_fits(space: PricedSpace, unlimited_us: float, costs: Costs, *, whole: bool) -> _Choice:
    """The cheapest plan found that the memories of the units hold.

    `whole` is whether the space has all candidates; if not, its bound says nothing of those that it lacks.
    """
    bounds = {device: capacity.amount for device, capacity in costs.capacities.items()}

    def kept(payload: Decisions) -> Mapping[str, int]:
        away = any(leaves_host(decision, space.host) for decision in payload)
        return space.pricer.kept(payload) if away else {}

    found = cover_that_fits(space.positions, space.intervals, kept, bounds)
    if found is None:  # a policy that must use a unit has no other candidates
        return _baseline(space, MemoryLimit(unlimited_us, space.baseline_us))
    bound = found.bound if whole else min(found.bound, unlimited_us)
    return _choice(space, found.cost, found.chosen, MemoryLimit(unlimited_us, bound))


def leaves_host(decision: Decision, host: str) -> bool:
    """Whether any part of a decision runs elsewhere than on the host device."""
    if isinstance(decision, OnDevice):
        return decision.device != host
    if isinstance(decision, Parallel):
        return any(leaves_host(item, host) for item in decision.decisions)
    return True
