"""A policy's candidates over one graph: listed, bounded, priced where it matters, and extended around the cheapest
plan."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice

from pimflow.ir import Decision, Graph, OnDevice, Parallel, Pipeline
from pimflow.ir.plan import devices_away, leaves_host
from pimflow.records import dataclass
from pimflow.runtime.timeline import build_timeline
from pimflow.search.candidates import Candidate, Candidates
from pimflow.search.candidates.base import Varied
from pimflow.search.chain import Interval
from pimflow.search.policy import Objective, Policy
from pimflow.search.pool import Entry, Near, Pool, Taken
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import Costs, Pricer, host_alone
from pimflow.search.progress import SearchProgress, Tell, silent
from pimflow.search.switching import Line
from pimflow.search.weighted import pricer_of

Decisions = tuple[Decision, ...]

_ROUNDING = 1e-9
"""Costs that differ by less than this share are equal: sums in another order round differently."""
_NEAR, _NEAR_DIVIDED = 0.005, 0.001
"""A plan is near the cheapest if it costs more by at most this share; the second value is for runs whose rows are
divided within stages, because they have more variants."""
_AS_LOW = 0.01
"""A bound is nearly the same as another one if it is higher by at most this share."""
_VARIED = Parallel, Pipeline
"""The kinds of decisions that are varied for being near the cheapest plan."""
_AT_ONCE = 4
"""How many decisions near the cheapest plan to vary before finding the cheapest plan again."""
_TRIES = 64
"""How many pipelines that may be near the cheapest plan to price without finding a cheaper one. With all of them, a
search for DenseNet-121 would take a fifth longer for the same plan."""
_IN_VAIN = 3000
"""After refining this many candidates without finding a cheaper plan, the search stops exploring around the cheapest
plan. DenseNet-121 needs 972; where bounds are weak, as with many small kernels dominated by launches,
there would be tens of thousands to refine."""


@dataclass(frozen=True)
class PricedSpace:
    """A policy's candidates over one graph, priced: the problem that both solvers solve.

    `positions` counts nodes in order, or points of the line on which memory channels change hands; `search` has the
    candidates that cover them; `baseline_us` is the time of the GPU alone, and `baseline_cost` its cost by the policy's
    objective, like the costs of candidates; `priced` counts the candidates.
    """

    positions: int
    search: Search
    baseline_us: float
    baseline_cost: float
    baseline: Decisions
    priced: int
    host: str
    objective: Objective
    pricer: Pricer

    @cached_property
    def intervals(self) -> tuple[Interval[Decisions], ...]:
        """All priced candidates, each at every position where it may be."""
        return tuple(
            [self.search.placed(Taken(entry, shift)) for entry, shifts in self.search.pool.priced() for shift in shifts]
        )


def price_space(
    graph: Graph,
    policy: Policy,
    costs: Costs,
    prices: PriceCache,
    budget_s: float | None = None,
    progress: Tell = silent,
    prune: bool = True,
    pricer: Pricer | None = None,
) -> PricedSpace:
    """Price a policy's candidates, then variations of the best plan's pipelines, until none are left or time is up.

    With `prune`, only candidates that may be in the cheapest plan are priced, according to `bounds` (`pool`). The
    result is the same. `pricer` is one to use instead of a new one.
    """
    pricer = pricer or pricer_of(policy.objective, graph, costs, prices)
    candidates = Candidates(graph, policy, pricer, exhaustive=prune, once=prune)
    what = policy.name if prune else f"{policy.name}, nothing pruned"
    search_progress = SearchProgress(what, progress, budget_s)
    line = Line(candidates, costs.channel_switch_us)
    search = Search(candidates, pricer, line, search_progress, prune)
    if policy.spaces:
        search.vary(line.with_all_channels())
        search.enter_switches(line.steps(), switch_cost(policy.objective, costs))
    for listed in candidates.rounds() if policy.spaces else ():
        search.enter(listed)
        search.improve()
    search.merge()
    search.complete()
    prices.flush()
    host = costs.target.host
    baseline: Decisions = tuple(OnDevice(node.name, host) for node in candidates.order)
    alone = build_timeline(host_alone(graph, costs), costs.target, costs.host_only())
    return PricedSpace(
        line.size,
        search,
        alone.makespan_us,
        policy.objective.cost(alone.makespan_us, alone.total_energy_mj),
        baseline,
        search.entered,
        host,
        policy.objective,
        pricer,
    )


def switch_cost(objective: Objective, costs: Costs) -> float:
    """The cost of switching memory channels once."""
    switch_us = costs.channel_switch_us or 0.0
    return objective.cost(switch_us, costs.static_energy_mj(switch_us))


class Search:
    """The candidates so far, within the time limit.

    `entered` counts them; `out_of_time` is whether some were left out, or left unrefined, for lack of time.
    """

    def __init__(
        self, candidates: Candidates, pricer: Pricer, line: Line, progress: SearchProgress, prune: bool
    ) -> None:
        self.pool: Pool[Decisions] = Pool(line.size)
        self.entered = 0
        self.out_of_time = False
        self._candidates = candidates
        self._pricer = pricer
        self._line = line
        self._progress = progress
        self._prune = prune
        self._refined = 0
        self._tried: set[Decision] = set()
        self._tried_places: set[tuple[int, int]] = set()
        """The place and shift of candidates of which all decisions are `_tried`, as far as they were asked for."""
        self._probed: set[Decision] = set()
        self._known: list[Near[Decisions]] = []
        """A heap of covers near the cheapest through candidates that are priced, or known to be no cheaper than their
        parts; some are not `valid` any more."""
        self._unsure: list[Near[Decisions]] = []
        """Such covers through other joined decisions."""
        self._low: list[tuple[float, int, int, Near[Decisions]]] = []
        """A heap of such covers through pipelines in two stages that are not priced, with their order."""
        self._tries = 0
        """How many of these have been refined since the cheapest cover was found."""
        self._varied: dict[int, int] = {}
        """By place of a candidate that has been varied, the number of its variations."""
        self._shallow: dict[int, Candidate] = {}
        """By place, the pipelines that have not been refined."""
        self._found = (math.inf, 0)
        """The cost of the cheapest cover, and how many candidates had been refined when it was found."""
        self._joined: set[Hashable] = set()
        """The keys of joined and rearranged candidates that have been entered."""
        self._cuts: set[int] = set()
        """The places of candidates that are parts of others."""
        self._parts_cost: dict[int, float] = {}
        """By place of a candidate, the known cost of its parts."""

    def enter(self, candidates: Iterable[Candidate]) -> None:
        """Add candidates with their lower bounds; those that a plan needs (`certain`) come first and are priced.

        Half of the time budget is reserved for refining the promising ones.
        """
        waiting: deque[Candidate] = deque()
        total = 0
        for candidate in candidates:
            if self._progress.is_half_spent and not candidate.certain:
                self.out_of_time = True
                break
            waiting.append(candidate)
            total += len(self._line.shifts(candidate))
            self._progress.listed(total)
        self._progress.begins(total)
        before = self.entered
        while waiting:
            candidate = waiting.popleft()
            if self._progress.is_half_spent and not candidate.certain:
                self.out_of_time = True
                return
            self._enter(candidate, each=True)
            self._progress.priced(min(self.entered - before, total), total)  # some enter deeper ones at once

    def enter_switches(self, steps: Iterable[tuple[int, int, int]], switch_cost: float) -> None:
        """Add the steps between points of the line during which nothing runs."""
        for start, stop, switched in steps:
            self.pool.add(Entry(0, start, stop, (), switch_cost * switched, True))

    def improve(self) -> None:
        """Extend the search around the cheapest cover until it contains nothing new or time is up.

        Concurrent decisions and pipelines are varied again in every round, because more nodes may be divided in them.
        """
        self._tried = {decision for decision in self._tried if not isinstance(decision, Parallel | Pipeline)}
        self._tried_places.clear()
        self._probed.clear()
        self.pool.near_again()
        self._varied.clear()
        self._found, self._tries = (math.inf, self._refined), 0
        self._climb()

    def _climb(self) -> None:
        """Vary what is new in the cheapest cover, or near it, until nothing is."""
        while not self.out_of_time:
            cover = self.cheapest()
            cost = sum([taken.entry.us for taken in cover])
            if cost < self._found[0] * (1 - _ROUNDING):
                self._found, self._tries = (cost, self._refined), 0
            tried = self._tried_places
            fresh = [
                taken for taken in cover if (taken.entry.place, taken.shift) not in tried and not self._was_tried(taken)
            ]
            in_vain = self._refined - self._found[1] > _IN_VAIN
            if not fresh and (in_vain or not self._probe()):
                return
            if not fresh or self.out_of_time:
                continue
            self._join([self.placed(taken) for taken in cover])
            for some, taken in [(self.placed(taken), taken) for taken in fresh]:
                self._tried.update(some.payload)
                self._vary(taken.entry)
                self._cut(some)

    def _was_tried(self, taken: Taken[Decisions]) -> bool:
        """Whether all decisions of a candidate in a cover have been varied."""
        tried = self._tried.issuperset(self.placed(taken).payload)
        if tried:
            self._tried_places.add((taken.entry.place, taken.shift))
        return tried

    def merge(self) -> None:
        """Decide all layers that are alike as the best of them, make one pipeline of neighbouring decisions where that
        pays off, and then rearrange decisions in more ways.

        All of this comes last and starts from a settled plan: it never leads away from one that is found without it.
        """
        self.settle()
        rearranged = partial(self._candidates.rearranged, cheapest=self._cheapest_for)
        for offered in (self._candidates.repeated, self._candidates.merges, rearranged):
            while self._rearrange(offered):
                self._climb()
                self.settle()

    def complete(self) -> None:
        """Consider every version with few stages as well, if the graph is small enough for these.

        This comes last, like `merge`.
        """
        before = self.entered
        self.enter(self._candidates.in_fewest_stages())
        if self.entered > before:
            self._climb()
            self.merge()

    def _probe(self) -> bool:
        """Enter variants of a few candidates near the cheapest cover; False if that has been done for all of those.

        The entries of the cover have already been varied. Others may be missing from it only because they have not
        been.
        """
        near = _NEAR_DIVIDED if self._candidates.scene.divided_runs else _NEAR
        found = list(islice(self._near(near), _AT_ONCE))
        for entry in found:
            self._probed.update(entry.payload)
            if isinstance(entry.payload[0], Parallel):
                self._vary(entry)
                continue
            for interval in self._line.on_order([self.placed(Taken(entry, 0))]):
                self.vary(self._candidates.probes(interval))
        return bool(found)

    def _rearrange(self, offered: Callable[[Sequence[Interval[Decisions]]], Iterator[Candidate]]) -> bool:
        """Enter candidates made of several decisions of the cheapest cover; False if there are no new ones."""
        parts = self._line.on_order([self.placed(taken) for taken in self.cheapest()])
        starts, costs = [some.start for some in parts], [some.cost for some in parts]
        begins, ends = set(starts), {some.stop for some in parts}
        before = self.entered
        if self.out_of_time:
            return False
        for candidate in offered(parts):
            first = self._candidates.first_equivalent(candidate)
            key = self._candidates.scene.key(first)
            if key in self._joined:
                continue
            if not self.has_time():
                return False
            self._joined.add(key)
            among = slice(bisect_left(starts, candidate.start), bisect_left(starts, candidate.stop))
            is_aligned = candidate.start in begins and candidate.stop in ends
            self._enter(first, parts_cost=sum(costs[among]) if is_aligned else 0.0)
        return self.entered > before

    def settle(self) -> None:
        """Give up joined decisions that are cheaper than their parts by rounding alone, and parts that are no cheaper
        than the whole.

        The search may have continued from either.
        """
        cuts: list[tuple[Entry[Decisions], float]] = []
        while True:
            chosen = {taken.entry.place: taken.entry for taken in self.cheapest()}
            joined = [entry for place, entry in chosen.items() if place in self._parts_cost]
            equal = [entry for entry in joined if _is_as_cheap(entry.us, self._parts_cost[entry.place])]
            cut = [entry for place, entry in chosen.items() if place in self._cuts]
            if not equal and not cut:
                break
            cuts += [(entry, entry.us) for entry in cut]
            for entry in equal:
                self._reprice(entry, _above(self._parts_cost.pop(entry.place)))
            for entry in cut:
                self._cuts.remove(entry.place)
                self._reprice(entry, _above(entry.us))
        for entry, us in cuts:
            if entry.place in chosen:
                self._reprice(entry, us)

    def _reprice(self, entry: Entry[Decisions], us: float) -> None:
        self.pool.take(entry)
        entry.us = us
        self.pool.add(entry)

    def _near(self, near: float) -> Iterator[Entry[Decisions]]:
        """The pipelines and joined decisions near the cheapest cover that are priced and not probed, nearest first.
        Joined decisions are refined until they are priced or known to be no cheaper than their parts, pipelines in two
        stages, whose bounds are nearly prices, in the order of these (`_TRIES` of them)."""
        while True:
            self._list_near(near)
            unsure = {found.entry.place: found.entry for found in sorted(filter(self.pool.valid, self._unsure))}
            while self._low and self._tries < _TRIES:
                *_, found = heapq.heappop(self._low)
                if self.pool.valid(found) and found.entry.place not in unsure:
                    unsure[found.entry.place] = found.entry
                    self._tries += 1
            if not unsure or not self.has_time():
                break
            self._unsure.clear()
            for entry in unsure.values():
                self._refine_in_pool(entry)
        listed: set[int] = set()
        while self._known:
            found = heapq.heappop(self._known)
            entry = found.entry
            if entry.place in listed or not self._probed.isdisjoint(entry.payload) or not self.pool.valid(found):
                continue
            listed.add(entry.place)
            yield entry

    def _list_near(self, near: float) -> None:
        """List the candidates that have come near the cheapest cover, or that a cover of another cost leads through."""
        is_new, listed = self.pool.nearly_cheapest(near)
        if is_new:
            self._known.clear()
            self._unsure.clear()
            self._low.clear()
        for found in listed:
            entry, decision = found.entry, found.entry.payload[0]
            if not isinstance(decision, _VARIED) or entry.place in self._cuts:
                continue
            if entry.priced or self._is_no_cheaper(entry):
                heapq.heappush(self._known, found)
            elif isinstance(decision, Parallel):
                self._unsure.append(found)
            elif len(decision.stage_rows) == 2:
                heapq.heappush(self._low, (found.us, entry.place, found.stop, found))

    def _is_no_cheaper(self, entry: Entry[Decisions]) -> bool:
        """Whether joined decisions are known to be no cheaper than their parts."""
        return entry.us == _above(self._parts_cost.get(entry.place, 0.0))

    def _join(self, chosen: Sequence[Interval[Decisions]]) -> None:
        """Enter joined versions of chosen decisions; a joined decision that is as cheap as its parts stays apart."""
        for candidate, parts_cost in self._candidates.joins(self._line.on_order(chosen)):
            key = self._candidates.scene.key(candidate)
            if key in self._joined:
                self.entered += 1
                continue
            self._joined.add(key)
            if self.has_time():
                self._enter(candidate, parts_cost=parts_cost)

    def _vary(self, entry: Entry[Decisions]) -> None:
        """Enter variations of an entry's decisions, and count them; those of equivalent ones are only counted."""
        if entry.place in self._varied:
            self.entered += self._varied[entry.place]
            return
        before, parts_cost = self.entered, self._parts_cost.get(entry.place)
        for interval in self._line.on_order([self.placed(Taken(entry, 0))]):
            self.vary(self._candidates.variations(interval))
            self.vary(self._candidates.pieces(interval, self._cheapest_for))
        self._varied[entry.place] = self.entered - before
        if parts_cost:
            self._parts_cost.update(dict.fromkeys(range(before + 1, self.entered + 1), parts_cost))

    def _cut(self, chosen: Interval[Decisions]) -> None:
        """Enter both parts of joined decisions, for every way to cut them in two.

        The whole has been varied already, so a part is varied only once it is in the cheapest cover, not for being near
        it.
        """
        for interval in self._line.on_order([chosen]):
            for candidate in self._candidates.cuts(interval, self._cheapest_for):
                first = self._candidates.first_equivalent(candidate)
                key = self._candidates.scene.key(first)
                if key in self._joined:
                    self.entered += 1
                    continue
                self._joined.add(key)
                if self.has_time():
                    self._enter(first)
                    self._cuts.add(self.entered)

    def _cheapest_for(self, start: int, stop: int) -> Decisions:
        """The decisions of the cheapest candidate for some positions of the order; () if there is none, or no time."""
        shift = self._candidates.scene.equivalents.shift(start, stop)
        place = self._line.place(Candidate(start - shift, stop - shift, ()))
        while (entry := self.pool.first(*place)) is not None and not entry.priced:
            if not self.has_time():
                return ()
            self._refine_in_pool(entry)
        return () if entry is None else self._candidates.scene.moved(entry.payload, shift)

    def vary(self, candidates: Iterable[Candidate]) -> None:
        """Add candidates found by variation, whose number is not known in advance."""
        for candidate in candidates:
            if not self.has_time():
                return
            self._enter(candidate)

    def has_time(self) -> bool:
        """Whether there is time to refine more candidates."""
        is_late = self._progress.out_of_time
        self.out_of_time |= is_late
        return not is_late

    def placed(self, taken: Taken[Decisions]) -> Interval[Decisions]:
        """A candidate at its position in a cover."""
        entry, shift = taken.entry, taken.shift
        return Interval(entry.start + shift, entry.stop + shift, entry.us, self._line.moved(entry.payload, shift))

    def cheapest(self) -> tuple[Taken[Decisions], ...]:
        """The cheapest cover, with everything in it priced; () if there is no time for that.

        Of candidates for the same positions, those with nearly the same bound are refined at once: otherwise they would
        be in the cheapest cover one after the other, each time found anew. Kinds that are varied are not, as what is
        varied would depend on it.
        """
        while self.has_time():
            unsure = self.pool.unsure()
            if not unsure:
                return self.pool.cheapest()
            for entry in unsure:
                most = entry.us * (1 + _AS_LOW)
                self._refine_in_pool(entry)
                while (first := self.pool.first(entry.start, entry.stop)) and first.us <= most:
                    if first.priced or isinstance(first.payload[0], _VARIED) or not self.has_time():
                        break
                    self._refine_in_pool(first)
        return ()

    def _enter(self, candidate: Candidate, *, each: bool = False, parts_cost: float = 0.0) -> None:
        """Add a candidate, and count it once, or `each` of those that it stands for. `parts_cost` is the known cost of
        its parts: a candidate that costs the same is entered at slightly more, so that it is not refined because of
        rounding alone."""
        shifts = self._line.shifts(candidate)
        self.entered += len(shifts) if each else 1
        exactly = candidate.certain or not self._prune
        us = self._pricer.cost(candidate.decisions) if exactly else self._least(candidate)
        if us is not None:
            if parts_cost:
                self._parts_cost[self.entered] = parts_cost
            us = _above(parts_cost) if _is_as_cheap(us, parts_cost) else us
            given = candidate.put_together if isinstance(candidate, Varied) else candidate.decisions
            self.pool.add(Entry(self.entered, *self._line.place(candidate), given, us, exactly), shifts)
        if not isinstance(candidate, Varied) and isinstance(candidate.decisions[0], Pipeline):
            self._shallow[self.entered] = candidate
            if exactly or us is None or math.isinf(us):  # it will never be refined
                self._deepen(self.entered)

    def _least(self, candidate: Candidate) -> float:
        """A lower bound on the cost of a candidate."""
        if isinstance(candidate, Varied):
            return self._pricer.least_varied(candidate)
        return self._pricer.least(candidate.decisions)

    def _refine_in_pool(self, entry: Entry[Decisions]) -> None:
        """Refine the first candidate of a stretch; the first time, enter its deeper versions as well."""
        self.pool.take(entry)
        self.refine(entry)
        self.pool.add(entry)
        self._deepen(entry.place)

    def _deepen(self, place: int) -> None:
        """Enter the deeper versions of a pipeline, once."""
        candidate = self._shallow.pop(place, None)
        if candidate is not None:
            self.vary(self._candidates.deeper(candidate))

    def min_kept(self, payload: Decisions) -> Mapping[str, int]:
        """A lower bound on what decisions store in the memories of units, by device: nodes share nothing there."""
        costs = self._pricer.costs
        count = Counter(device for decision in payload for device in devices_away(decision, costs.target.host))
        return {device: times * costs.units[device].min_kept for device, times in count.items()}

    def kept(self, payload: Decisions) -> Mapping[str, int]:
        """What decisions that can be carried out store in the memories of units, by device."""
        away = any(leaves_host(decision, self._pricer.costs.target.host) for decision in payload)
        return self._pricer.kept(payload) if away else {}

    def refine(self, entry: Entry[Decisions]) -> None:
        """Refine a candidate; one that cannot be built has infinite cost."""
        us, entry.priced = self._pricer.refine(entry.payload, entry.us)
        entry.us = math.inf if us is None else us
        self._refined += 1
        self._progress.refined(self._refined)


def _is_as_cheap(us: float, parts_cost: float) -> bool:
    """Whether a joined decision costs the same as its parts, except for rounding."""
    return abs(us - parts_cost) < _ROUNDING * parts_cost


def _above(cost: float) -> float:
    return cost * (1 + _ROUNDING)
