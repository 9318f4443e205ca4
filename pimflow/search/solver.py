"""`solve`: the cheapest plan of a policy for a graph and a machine.

What is exact: of all plans that are made of the policy's candidates and keep to the execution order
(`order.execution_order`), the result is a cheapest one (`chain.solve_chain`; `prove` asks an integer program). Costs
are as exact as the cost models: every candidate's is the makespan of the timeline of its rewritten region, and regions
meet at their ends, so the plan's cost is the makespan of the whole rewritten graph.

What is bounded: the candidates themselves, by the policy's spaces (`policy.Space`) and the limits in `candidates`.
`auto` adds to its enumerated candidates what a local search around the best plan finds (`Candidates.variations`).

With PIM in use its channels are lost to the GPU for the whole run. So the best plan in PIM mode is compared with the
GPU alone with all channels, and the cheaper of the two is the plan: a policy never slows a model down, except `pim`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pimflow.ir import Decision, Graph, OnDevice, Parallel, Plan
from pimflow.options import Options
from pimflow.runtime.costs import CostModel
from pimflow.runtime.timeline import build_timeline
from pimflow.search.candidates import Candidate, Candidates
from pimflow.search.chain import BestCovers, Interval, solve_chain
from pimflow.search.policy import Policy, find_policy, with_options
from pimflow.search.price_cache import PriceCache, code_fingerprint, open_user_cache
from pimflow.search.pricing import Pricer
from pimflow.targets import Target

if TYPE_CHECKING:
    from pimflow.search.ilp import SolverName

Progress = Callable[[str, int], None]
"""Called now and then with what is being done and how many candidates have been priced."""

Decisions = tuple[Decision, ...]


@dataclass(frozen=True)
class PricedSpace:
    """A policy's candidates over one graph, priced: what both solvers solve.

    `positions` nodes in order; `intervals` cover them; `baseline_us` is the GPU alone; `priced` counts candidates;
    `complete` is False if the time budget ended before all candidates were priced.
    """

    positions: int
    intervals: tuple[Interval[Decisions], ...]
    baseline_us: float
    baseline: Decisions
    priced: int
    complete: bool
    host: str


def solve(
    graph: Graph,
    options: Options,
    *,
    costs: CostModel,
    prices: PriceCache | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The cheapest plan of a policy. A plan is always found, also when the time budget ends before the candidates do.

    Args:
        graph: cleaned up (batch norms folded, fused nodes marked).
        options: target, policy, and what bounds the search.
        costs: the cost model in PIM mode, of the options' target.
        prices: the price cache, in place of the one that the options ask for.
        progress: receives how far the search is.

    Raises:
        OptionError: the policy is unknown.
    """
    started = time.perf_counter()
    target = options.target
    chosen = with_options(find_policy(options.policy), options.grid, options.stages)
    prices = open_cache(options.use_cache, costs) if prices is None else prices
    space = price_space(graph, target, chosen, costs, prices, options.time_budget_s, progress)
    cost, decisions = _best_in_pim_mode(space)
    if not chosen.pim_mode and space.baseline_us <= cost:
        cost, decisions = space.baseline_us, space.baseline
    seconds = round(time.perf_counter() - started, 6)
    return Plan(chosen.name, decisions, cost, space.baseline_us, space.priced, seconds, target.host)


def prove(graph: Graph, options: Options, *, costs: CostModel, solver: SolverName | None = None) -> tuple[float, float]:
    """(cost by the dynamic program, cost by the integer program) of one space with nothing pruned; they are equal."""
    from pimflow.search.ilp import solve_intervals  # PuLP takes a while to import, and no compilation needs it

    chosen = with_options(find_policy(options.policy), options.grid, options.stages)
    space = price_space(graph, options.target, chosen, costs, open_cache(None, costs), prune=False)
    if not space.intervals:
        return space.baseline_us, space.baseline_us
    return solve_chain(space.positions, space.intervals)[0], solve_intervals(space.positions, space.intervals, solver)[
        0
    ]


def price_space(
    graph: Graph,
    target: Target,
    policy: Policy,
    costs: CostModel,
    prices: PriceCache,
    time_budget_s: float | None = None,
    progress: Progress | None = None,
    prune: bool = True,
) -> PricedSpace:
    """Prices a policy's candidates, then variations of the best plan's pipelines, until none or no time is left.

    `prune` leaves out candidates whose GPU share alone costs more than what is known for the same nodes. That loses
    nothing: what costs more than another cover of its nodes is in no optimum.
    """
    pricer = Pricer(graph, costs, prices)
    candidates = Candidates(graph, policy, pricer)
    intervals = _Intervals(policy.name, pricer, time_budget_s, progress, prune)
    intervals.extend(candidates if policy.spaces else ())
    size = len(candidates.order)
    tried: set[Decision] = set()
    while not intervals.out_of_time:
        _, chosen = solve_chain(size, intervals.found) if policy.spaces else (0.0, ())
        fresh = [interval for interval in chosen if not tried.issuperset(interval.payload)]
        if not fresh:
            break
        for interval in fresh:
            tried.update(interval.payload)
            intervals.extend(candidates.variations(interval))
    prices.flush()
    baseline: Decisions = tuple(OnDevice(node.name, target.host) for node in candidates.order)
    baseline_us = build_timeline(graph, target, costs.host_only()).makespan_us
    return PricedSpace(
        size, tuple(intervals.found), baseline_us, baseline, pricer.priced, not intervals.out_of_time, target.host
    )


class _Intervals:
    """The priced candidates so far, with an eye on the clock."""

    def __init__(
        self, what: str, pricer: Pricer, time_budget_s: float | None, progress: Progress | None, prune: bool
    ) -> None:
        self.found: list[Interval[Decisions]] = []
        self.out_of_time = False
        self._what = what
        self._pricer = pricer
        self._deadline = None if time_budget_s is None else time.perf_counter() + time_budget_s
        self._progress = progress
        self._prune = prune
        self._covers = BestCovers()

    def extend(self, candidates: Iterable[Candidate]) -> None:
        """Prices candidates and keeps those that can be built; once out of time only those that a plan must have."""
        for candidate in candidates:
            self.out_of_time = self._deadline is not None and time.perf_counter() > self._deadline
            if self.out_of_time and not candidate.certain:
                return
            bound = self._covers.cost(candidate.start, candidate.stop) if self._prune else math.inf
            cost = self._pricer.cost(candidate.decisions, bound)
            if cost is not None:
                self._covers.add(candidate.start, candidate.stop, cost)
                self.found.append(Interval(candidate.start, candidate.stop, cost, candidate.decisions))
            if self._progress is not None and self._pricer.priced % 64 == 0:
                self._progress(f"{self._what}: pricing candidates", self._pricer.priced)


def open_cache(cache: Path | bool | None, costs: CostModel) -> PriceCache:
    """The price cache of a cost model: in a folder, in the user's cache folder (True), or in memory only."""
    scope = f"{code_fingerprint()} {costs.target!r} {costs.host.identity}"
    if isinstance(cache, Path):
        return PriceCache(cache, scope)
    return open_user_cache(scope) if cache else PriceCache(None, scope)


def _best_in_pim_mode(space: PricedSpace) -> tuple[float, Decisions]:
    """The cheapest plan that uses PIM's channels for PIM; the baseline where there are no candidates to make one of."""
    if not space.intervals:
        return space.baseline_us, space.baseline
    cost, chosen = solve_chain(space.positions, space.intervals)
    decisions = tuple(decision for interval in chosen for decision in interval.payload)
    if any(leaves_host(decision, space.host) for decision in decisions):
        return cost, decisions
    return space.baseline_us, space.baseline


def leaves_host(decision: Decision, host: str) -> bool:
    """Whether any part of a decision runs elsewhere than on the host device."""
    if isinstance(decision, OnDevice):
        return decision.device != host
    if isinstance(decision, Parallel):
        return any(placed.device != host for branch in decision.branches for placed in branch)
    return True
