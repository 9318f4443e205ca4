"""`solve`: the cheapest plan of a policy for a graph and a machine.

What is exact: the result is a cheapest plan among all that consist of the policy's candidates and keep to the execution
order (`order.execution_order`); see `chain.solve_chain`, which `prove` checks with an integer program. Costs are as
exact as the cost models: the cost of a candidate is the makespan of the timeline of its rewritten region, and all
devices synchronise at the end of each region, so the plan's cost is the makespan of the whole rewritten graph.

What is bounded: the candidates themselves, by the policy's spaces (`policy.Space`) and the limits in `candidates`.
`auto` extends its enumerated candidates by a local search around the best plan (`Candidates.variations`).

While PIM is in use, the GPU cannot use PIM's channels for the whole run, unless the target lets channels change hands
(`switching`). So the best plan in PIM mode is compared with the GPU alone with all channels, and the cheaper of the two
is the result: no policy except `pim` ever slows a model down.

The weights of everything that runs on a unit have to fit into its memory at the same time (`capacity`). If those of the
best plan do not, the result is the best plan found that fits, with a lower bound on the cost of any plan that fits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pimflow.garbage import rare_collections
from pimflow.ir import Graph, OnDevice, Plan
from pimflow.ir.plan import MemoryLimit, leaves_host, switches
from pimflow.options import Options
from pimflow.passes import PassManager
from pimflow.records import dataclass
from pimflow.runtime.memory import plan_memory
from pimflow.runtime.timeline import build_timeline
from pimflow.search import least_times, makespan_bound
from pimflow.search.capacity import stored_of
from pimflow.search.chain import solve_chain
from pimflow.search.feature_places import has_room
from pimflow.search.makespan_bound import MakespanBound
from pimflow.search.order import execution_order
from pimflow.search.part_prices import Unit
from pimflow.search.plan_cache import PlanCache
from pimflow.search.policy import ENERGY, LATENCY, THROUGHPUT, Policy, find_policy, policy_of
from pimflow.search.pool import Taken
from pimflow.search.price_cache import PriceCache, code_fingerprint, open_user_cache, user_folder
from pimflow.search.priced_space import Decisions, PricedSpace, price_space
from pimflow.search.pricing import Costs, Pricer, host_alone, rewrites
from pimflow.search.progress import Tell, silent
from pimflow.search.run_cache import RunCache
from pimflow.search.stream_cache import StreamCache
from pimflow.search.weighted import WeightedPricer

if TYPE_CHECKING:
    from pimflow.search.between import Gaps
    from pimflow.search.ilp import SolverName

_MIN_S = 5.0
"""The minimum time in seconds for searching a policy's small spaces once the time budget is spent; most take a tenth of
it."""


def solve(
    graph: Graph,
    options: Options,
    *,
    costs: Costs,
    prices: PriceCache | None = None,
    progress: Tell = silent,
) -> Plan:
    """The cheapest plan of the policy that the options ask for, by their objective.

    A plan is always found, even if the time budget runs out before the candidates do. A plan that needs more memory
    than the GPU has is replaced by the host alone if that fits.

    Args:
        graph: cleaned up (batch norms folded, fused nodes marked).
        options: the policy, and the limits of the search.
        costs: the cost model in PIM mode, for the target to plan for.
        prices: the price cache to use instead of the one that the options ask for.
        progress: receives progress messages as lines of text.

    Raises:
        OptionError: the policy is unknown.
    """
    policy = policy_of(options)
    if policy.objective == ENERGY and prices is None:
        prices = PriceCache(_folder(options, None), cache_scope(costs))
    plan = solve_for(graph, policy, options, costs=costs, prices=prices, progress=progress)
    if policy.objective == ENERGY and plan.complete:
        plan = _or_fastest(plan, graph, policy, options, costs, prices, progress)
    if plan.interval_us is not None or has_room(plan, graph, costs):
        return plan
    alone = solve_for(graph, find_policy("gpu"), options, costs=costs, prices=prices, progress=progress)
    return replace(alone, policy=plan.policy) if has_room(alone, graph, costs) else plan


@rare_collections()
def solve_for(
    graph: Graph,
    chosen: Policy,
    options: Options,
    *,
    costs: Costs,
    prices: PriceCache | None = None,
    progress: Tell = silent,
    pricer: Pricer | None = None,
) -> Plan:
    """Like `solve`, for the given policy instead of the one in the options, and without the fallback to the host.

    `pricer` is one to use instead of a new one, except for throughput.
    """
    started = time.perf_counter()
    scope = cache_scope(costs)
    folder = _folder(options, prices)
    records = unit_records(costs, folder)
    plans = PlanCache(folder, scope if chosen.objective == LATENCY else f"{scope} {costs.target.values}")
    plan = plans.plan_of(graph, chosen, costs.target.host)
    if plan is None:
        prices = PriceCache(folder, scope) if prices is None else prices
        search = _balance if chosen.objective == THROUGHPUT else partial(_search, pricer=pricer)
        plan = search(graph, chosen, costs, prices, options.time_budget_s, progress)
        _keep_learnt(records)
        if plan.complete:
            plans.put(graph, chosen, plan)
    return replace(plan, search_seconds=round(time.perf_counter() - started, 6))


def _or_fastest(
    plan: Plan,
    graph: Graph,
    policy: Policy,
    options: Options,
    costs: Costs,
    prices: PriceCache | None,
    progress: Tell,
) -> Plan:
    """The plan that spends least energy, or the fastest one if that spends less: its search takes other steps.

    The search for the fastest has what is left of the time budget.
    """
    budget_s = options.time_budget_s
    left_s = None if budget_s is None else budget_s - plan.search_seconds
    if left_s is not None and left_s <= 0:
        return replace(plan, complete=False)
    options = replace(options, time_budget_s=left_s)
    fastest = solve_for(
        graph, replace(policy, objective=LATENCY), options, costs=costs, prices=prices, progress=progress
    )
    complete, seconds = fastest.complete, plan.search_seconds + fastest.search_seconds
    if fastest.decisions != plan.decisions and _energy_mj(fastest, graph, costs) < _energy_mj(plan, graph, costs):
        plan = replace(fastest, objective=plan.objective, candidates=plan.candidates, limit=None)
    return replace(plan, complete=complete, search_seconds=round(seconds, 6))


def _energy_mj(plan: Plan, graph: Graph, costs: Costs) -> float:
    """The energy of a run of a plan."""
    placed = PassManager(rewrites(plan, costs)).run(graph).graph
    leaves = any(leaves_host(decision, plan.host) for decision in plan.decisions)
    return build_timeline(placed, costs.target, costs if leaves else costs.host_only()).total_energy_mj


def gaps_between(
    graph: Graph, policy: Policy, corners: Sequence[Plan], options: Options, pricer: WeightedPricer
) -> Gaps:
    """A search for plans between those that are optimal at some energy price, with the time budget of the options."""
    from pimflow.search.between import Gaps

    return Gaps(graph, policy, pricer, corners, options.time_budget_s)


class BoundCosts(least_times.Costs, Protocol):
    """The interface that the cached lower bound on the makespan needs from a cost model."""

    @property
    def identity(self) -> str:
        """Everything that prices depend on besides the code, as text."""


def bound_of(
    graph: Graph, options: Options, *, costs: BoundCosts, host_us: float, prices: PriceCache | None = None
) -> MakespanBound:
    """A lower bound on the makespan of every plan for a graph, whatever the policy; cached.

    Args:
        graph: cleaned up, as for `solve`.
        options: whether there is a cache.
        costs: the cost model in PIM mode.
        host_us: the time of the host alone, with all memory channels.
        prices: the price cache to use instead of the one that the options ask for; bounds are stored next to it.
    """
    cache = PlanCache(_folder(options, prices), cache_scope(costs))
    host = costs.target.host
    bound = cache.bound_of(graph, host)
    if bound is None:
        bound = makespan_bound.makespan_bound(graph, costs, host_us)
        cache.put_bound(graph, host, bound)
    return bound


def _folder(options: Options, prices: PriceCache | None) -> Path | None:
    """The folder of the caches; None without caches on disk."""
    return prices.folder if prices is not None else user_folder() if options.use_cache else None


def cache_of(options: Options) -> Path | None:
    """The folder of all caches, if the options allow any."""
    return _folder(options, None)


def run_cache(options: Options, runtime: str) -> RunCache:
    """The cache of models that ran in earlier runs with a version of ONNX Runtime, if the options allow it."""
    return RunCache(_folder(options, None), runtime)


def stream_cache(options: Options, content_key: str) -> StreamCache:
    """The instruction streams that an earlier run wrote for the same programs; none if `content_key`, which
    identifies the programs, is empty."""
    return StreamCache(_folder(options, None) if content_key else None, content_key)


@contextmanager
def learning(options: Options, *, costs: Costs) -> Iterator[None]:
    """Meanwhile units know what they have learnt about work in earlier runs; then what they have learnt since is
    saved."""
    records = unit_records(costs, _folder(options, None))
    yield
    _keep_learnt(records)


def save_unit_records(options: Options, *, costs: Costs) -> None:
    """Save what units have learnt about work since a plan was found: a report asks for the times of further nodes."""
    if options.use_cache:
        _keep_learnt(unit_records(costs, user_folder()))


def _keep_learnt(records: Iterable[tuple[Unit, PriceCache]]) -> None:
    for unit, table in records:
        for key, text in unit.new_records().items():
            table.put_text(key, text)
        table.flush()


def unit_records(costs: Costs, folder: Path | None) -> list[tuple[Unit, PriceCache]]:
    """The units that learn about work, each with the cache of its records, which the unit has loaded."""
    found = []
    for unit in costs.units.values():
        if unit.records_key:
            table = PriceCache(folder, f"units\n{code_fingerprint()} {unit.records_key}")
            unit.load_records(table.texts)
            found.append((unit, table))
    return found


def _search(
    graph: Graph,
    chosen: Policy,
    costs: Costs,
    prices: PriceCache,
    budget_s: float | None,
    progress: Tell,
    pricer: Pricer | None = None,
) -> Plan:
    """The cheapest plan, or the best one found within the time budget, if there is one."""
    space = price_space(graph, chosen, costs, prices, budget_s, progress, pricer=pricer)
    complete = not space.search.out_of_time
    if not complete:
        space = _retry_without_runs(space, graph, chosen, costs, prices, budget_s or 0.0, progress)
    best = _best_in_pim_mode(space)
    if not _fits(best, costs):
        best = _best_that_fits(space, best.cost, costs)
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


def _retry_without_runs(
    space: PricedSpace,
    graph: Graph,
    chosen: Policy,
    costs: Costs,
    prices: PriceCache,
    budget_s: float,
    progress: Tell,
) -> PricedSpace:
    """The space as searched before time ran out, or the policy's spaces without `runs="any"` if those have a cheaper
    plan.

    Those spaces are small and form a policy of their own; with little time for everything, only part of them may have
    been listed. They get the time budget once more, or `_MIN_S` if that is longer.
    """
    small = replace(chosen, spaces=tuple(some for some in chosen.spaces if some.runs != "any"))
    if not small.spaces or small == chosen:
        return space
    other = price_space(graph, small, costs, prices, max(budget_s, _MIN_S), progress)
    return min(space, other, key=lambda some: _best_in_pim_mode(some).cost)


def _balance(
    graph: Graph, chosen: Policy, costs: Costs, prices: PriceCache, budget_s: float | None, progress: Tell
) -> Plan:
    """The plan that minimises the load of the busiest resource per inference."""
    from pimflow.search.throughput import LoadPricer, balance

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
    """How long the busiest resource has to idle per interval so that the GPU's memory holds all inferences in flight.

    0 if the target does not say how much memory there is, or if it does not hold even one inference: then no plan fits.
    """
    tiers = costs.target.memory
    if tiers is None:
        return 0.0
    from pimflow.runtime.memory.in_flight import least_rest_us

    placed = PassManager(rewrites(plan, costs)).run(graph).graph
    memory = plan_memory(placed, costs.workspaces(placed))
    room = tiers.gpu.usable_bytes - memory.weight_bytes
    return least_rest_us(placed, costs.target, costs, memory, room) or 0.0


def prove(graph: Graph, options: Options, *, costs: Costs, solver: SolverName | None = None) -> tuple[float, float]:
    """(cost by the dynamic program, cost by the integer program) of one space without pruning; they are equal."""
    from pimflow.search.ilp import solve_intervals  # importing PuLP is slow, and no compilation needs it

    space = price_space(graph, policy_of(options), costs, PriceCache(None, cache_scope(costs)), prune=False)
    if not space.intervals:
        return space.baseline_cost, space.baseline_cost
    return solve_chain(space.positions, space.intervals)[0], solve_intervals(space.positions, space.intervals, solver)[
        0
    ]


def open_cache(options: Options, costs: Costs) -> PriceCache:
    """The price cache of a cost model: in the user's cache folder, or in memory only, depending on the options."""
    return open_user_cache(cache_scope(costs)) if options.use_cache else PriceCache(None, cache_scope(costs))


def cache_scope(costs: Costs | BoundCosts) -> str:
    """Everything that the prices of a cost model depend on, including the code, as text."""
    return f"{code_fingerprint()} {costs.identity}"


@dataclass(frozen=True)
class _Choice:
    """A plan's decisions, their cost and time, and how much they store in the memories of units, by device."""

    cost: float
    time_us: float
    decisions: Decisions
    kept: Mapping[str, int] = field(default_factory=dict)
    limit: MemoryLimit | None = None


def _best_in_pim_mode(space: PricedSpace) -> _Choice:
    """The cheapest plan that uses PIM's channels for PIM; the baseline if no candidates cover the graph."""
    cost, chosen = space.search.pool.cheapest_priced()
    return _choice(space, cost, chosen) if chosen else _baseline(space)


def _baseline(space: PricedSpace, limit: MemoryLimit | None = None) -> _Choice:
    """The host alone, with all memory channels."""
    return _Choice(space.baseline_cost, space.baseline_us, space.baseline, limit=limit)


def _choice(
    space: PricedSpace, cost: float, chosen: Sequence[Taken[Decisions]], limit: MemoryLimit | None = None
) -> _Choice:
    """The plan of a cover; the baseline if the cover never leaves the host."""
    payloads = [space.search.placed(taken).payload for taken in chosen]
    decisions = tuple(decision for payload in payloads for decision in payload)
    if not any(leaves_host(decision, space.host) for decision in decisions):
        return _baseline(space, limit)
    kept: Counter[str] = Counter()
    for taken in chosen:
        kept.update(space.search.kept(taken.entry.payload))
    time_us = cost
    if space.objective != LATENCY:
        switched_us = switches(decisions) * (space.pricer.costs.channel_switch_us or 0.0)
        time_us = sum(map(space.pricer.time_us, filter(None, payloads))) + switched_us
    return _Choice(cost, time_us, decisions, kept, limit)


def _fits(choice: _Choice, costs: Costs) -> bool:
    return all(choice.kept.get(device, 0) <= capacity.amount for device, capacity in costs.capacities.items())


def _best_that_fits(space: PricedSpace, unlimited_us: float, costs: Costs) -> _Choice:
    """The cheapest plan found that fits into the memories of the units.

    If the search ran out of time, the space lacks candidates, and its bound says nothing about those.
    """
    from pimflow.search.fitting import cover_that_fits

    bounds = {device: capacity.amount for device, capacity in costs.capacities.items()}
    found = cover_that_fits(space.search.pool, space.search, bounds)
    if found is None:  # a policy that must use a unit has no other candidates
        return _baseline(space, MemoryLimit(unlimited_us, space.baseline_us))
    bound = min(found.bound, unlimited_us) if space.search.out_of_time else found.bound
    return _choice(space, found.cost, found.chosen, MemoryLimit(unlimited_us, bound))
