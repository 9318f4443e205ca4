"""A policy's candidates over one graph: listed, bounded, priced where that matters, grown from the cheapest plan."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from pimflow.ir import Decision, Graph, OnDevice, Parallel, Pipeline
from pimflow.ir.plan import devices_away, leaves_host
from pimflow.records import dataclass
from pimflow.runtime.timeline import build_timeline
from pimflow.search.candidates import Candidate, Candidates
from pimflow.search.chain import Interval
from pimflow.search.policy import Objective, Policy
from pimflow.search.pool import Entry, Pool, Taken
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import Costs, Pricer, host_alone
from pimflow.search.progress import SearchProgress, Tell, silent
from pimflow.search.switching import Line
from pimflow.search.weighed import pricer_of

Decisions = tuple[Decision, ...]

_ROUNDING = 1e-9
"""Costs that differ by less than this part of them are the same, added up in another order."""
_NEAR, _NEAR_DIVIDED = 0.005, 0.001
"""Plans that cost more than the cheapest by no more than this part of it are near it; the latter where rows are divided
within stages, of which there are more ways."""
_AT_ONCE = 4
"""Decisions near the cheapest plan that are looked at before it is found again."""
_IN_VAIN = 3000
"""The search leaves what is near the cheapest plan alone once it has looked closely at so many candidates without a
cheaper one. The zoo's models need 950 at most; where bounds tell little, as of many small kernels that are all launch,
there would be tens of thousands to look at.
"""


@dataclass(frozen=True)
class PricedSpace:
    """A policy's candidates over one graph, priced: what both solvers solve.

    `positions` nodes in order, or points of the line on which memory channels change hands; `search` has what covers
    them; `baseline_us` is the GPU alone, and `baseline_cost` that by the policy's objective, by which candidates cost
    what they do; `priced` counts them.
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
        """All candidates that are priced, each wherever it may be."""
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
) -> PricedSpace:
    """Prices a policy's candidates, then variations of the best plan's pipelines, until none or no time is left.

    `prune` prices only what the cheapest plan may be made of, as far as `bounds` say (`pool`). That loses nothing.
    """
    pricer = pricer_of(policy.objective, graph, costs, prices)
    candidates = Candidates(graph, policy, pricer, exhaustive=prune, once=prune)
    what = policy.name if prune else f"{policy.name}, nothing pruned"
    telling = SearchProgress(what, progress, budget_s)
    line = Line(candidates, costs.channel_switch_us)
    search = Search(candidates, pricer, line, telling, prune)
    if policy.spaces:
        search.vary(line.with_all_channels())
        search.pass_over(line.steps(), switch_cost(policy.objective, costs))
    for listed in candidates.rounds() if policy.spaces else ():
        search.enter(listed)
        search.improve()
    search.settle()
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
    """What memory channels that change hands once cost."""
    switch_us = costs.channel_switch_us or 0.0
    return objective.cost(switch_us, costs.static_energy_mj(switch_us))


class Search:
    """The candidates so far, with an eye on the clock.

    `entered` counts them; `out_of_time` is whether some were left out, or left as they were, for lack of time.
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
        self._looked_at = 0
        self._tried: set[Decision] = set()
        self._joined: set[Candidate] = set()
        self._cuts: set[int] = set()
        """Places of candidates that are parts of others."""
        self._apart: dict[int, float] = {}
        """By place of a candidate, what its parts cost where that is known."""

    def enter(self, candidates: Iterable[Candidate]) -> None:
        """Counts candidates and tells what each takes at least; what a plan must have, which comes first, is priced.

        Of a time budget half is left for looking at the promising ones.
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
        done = 0
        while waiting:
            candidate = waiting.popleft()
            if self._progress.is_half_spent and not candidate.certain:
                self.out_of_time = True
                return
            self._enter(candidate, len(self._line.shifts(candidate)))
            done += len(self._line.shifts(candidate))
            self._progress.priced(done, total)

    def pass_over(self, steps: Iterable[tuple[int, int, int]], switch_cost: float) -> None:
        """Adds what leads from point to point of the line while nothing runs."""
        for start, stop, switched in steps:
            self.pool.add(Entry(0, start, stop, (), switch_cost * switched, True))

    def improve(self) -> None:
        """Goes on from what the cheapest cover is made of, until it has nothing new in it, or no time is left.

        What runs at once, and pipelines, are looked at again in every round: more may be divided in them.
        """
        self._tried = {decision for decision in self._tried if not isinstance(decision, Parallel | Pipeline)}
        varied: dict[int, int] = {}
        probed: set[Decision] = set()
        cheapest, looked_at = math.inf, 0
        while not self.out_of_time:
            chosen = [(taken.entry, self.placed(taken)) for taken in self.cheapest()]
            cost = sum(entry.us for entry, _ in chosen)
            if cost < cheapest * (1 - _ROUNDING):
                cheapest, looked_at = cost, self._looked_at
            fresh = [(entry, some) for entry, some in chosen if not self._tried.issuperset(some.payload)]
            in_vain = self._looked_at - looked_at > _IN_VAIN
            if not fresh and (in_vain or not self._probe(probed, varied)):
                return
            if not fresh or self.out_of_time:
                continue
            self._join([some for _, some in chosen])
            for entry, some in fresh:
                self._tried.update(some.payload)
                self._vary(entry, varied)
                self._cut(some)

    def _probe(self, probed: set[Decision], varied: dict[int, int]) -> bool:
        """Enters a few versions of what is nearest to the cheapest cover; False if all near it are `probed`.

        What is in the cover has been varied, and what is not has not: it may be in no cheaper cover for that alone.
        """
        near = _NEAR_DIVIDED if self._candidates.scene.divided_runs else _NEAR
        entries = [entry for entry in self._near(near) if probed.isdisjoint(entry.payload)]
        found = [entry for entry in entries if isinstance(entry.payload[0], Parallel | Pipeline)][:_AT_ONCE]
        for entry in found:
            probed.update(entry.payload)
            if isinstance(entry.payload[0], Parallel):
                self._vary(entry, varied)
                continue
            for interval in self._line.on_order([self.placed(Taken(entry, 0))]):
                self.vary(self._candidates.probes(interval))
        return bool(found)

    def settle(self) -> None:
        """Takes apart what is cheaper than its parts by rounding alone, and leaves whole what is no cheaper cut.

        The search may have gone on from either.
        """
        cuts: list[tuple[Entry[Decisions], float]] = []
        while True:
            chosen = {taken.entry.place: taken.entry for taken in self.cheapest()}
            together = [entry for place, entry in chosen.items() if place in self._apart]
            alike = [entry for entry in together if _is_as_cheap(entry.us, self._apart[entry.place])]
            cut = [entry for place, entry in chosen.items() if place in self._cuts]
            if not alike and not cut:
                break
            cuts += [(entry, entry.us) for entry in cut]
            for entry in alike:
                self._reprice(entry, _above(self._apart.pop(entry.place)))
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

    def _near(self, near: float) -> list[Entry[Decisions]]:
        """What is near the cheapest cover, as far as it is priced; of what is put together all is, unless it takes no
        less than its parts."""
        while True:
            entries = [entry for entry in self.pool.nearly_cheapest(near) if entry.place not in self._cuts]
            known = [
                entry for entry in entries if entry.priced or entry.us == _above(self._apart.get(entry.place, 0.0))
            ]
            places = {entry.place for entry in known}
            unsure = [
                entry for entry in entries if isinstance(entry.payload[0], Parallel) and entry.place not in places
            ]
            if not unsure or not self.has_time():
                return known
            for entry in unsure:
                self._look_at(entry)

    def _join(self, chosen: Sequence[Interval[Decisions]]) -> None:
        """Enters chosen decisions put together; what is as cheap as they are apart stays apart."""
        apart = self._line.on_order(chosen)
        starts, costs = [some.start for some in apart], [some.cost for some in apart]
        for candidate in self._candidates.joins(apart):
            first = self._candidates.first_alike(candidate)
            if first in self._joined:
                self.entered += 1
                continue
            self._joined.add(first)
            among = slice(bisect_left(starts, candidate.start), bisect_left(starts, candidate.stop))
            if self.has_time():
                self._enter(first, apart=sum(costs[among]))

    def _vary(self, entry: Entry[Decisions], varied: dict[int, int]) -> None:
        """Enters variations of what an entry decides, and counts them; of those like it they are `varied` already."""
        if entry.place in varied:
            self.entered += varied[entry.place]
            return
        before, apart = self.entered, self._apart.get(entry.place)
        for interval in self._line.on_order([self.placed(Taken(entry, 0))]):
            self.vary(self._candidates.variations(interval))
            self.vary(self._candidates.pieces(interval, self._cheapest_for))
        varied[entry.place] = self.entered - before
        if apart:
            self._apart.update(dict.fromkeys(range(before + 1, self.entered + 1), apart))

    def _cut(self, chosen: Interval[Decisions]) -> None:
        """Enters both parts of what is put together, wherever it is cut in two.

        What they are cut from has been varied: they are not varied for being near the cheapest cover, but once in it.
        """
        for interval in self._line.on_order([chosen]):
            for candidate in self._candidates.cuts(interval, self._cheapest_for):
                first = self._candidates.first_alike(candidate)
                if first in self._joined:
                    self.entered += 1
                    continue
                self._joined.add(first)
                if self.has_time():
                    self._enter(first)
                    self._cuts.add(self.entered)

    def _cheapest_for(self, start: int, stop: int) -> Decisions:
        """What the cheapest candidate for some positions of the order decides; () if there is none, or no time."""
        shift = self._candidates.scene.alike.shift(start, stop)
        place = self._line.place(Candidate(start - shift, stop - shift, ()))
        while (entry := self.pool.first(*place)) is not None and not entry.priced:
            if not self.has_time():
                return ()
            self._look_at(entry)
        return () if entry is None else self._candidates.moved(entry.payload, shift)

    def vary(self, candidates: Iterable[Candidate]) -> None:
        """The same for variations of what has been found, of which nobody knows how many will follow."""
        for candidate in candidates:
            if not self.has_time():
                return
            self._enter(candidate)

    def has_time(self) -> bool:
        """Whether more may be looked at."""
        is_late = self._progress.out_of_time
        self.out_of_time |= is_late
        return not is_late

    def placed(self, taken: Taken[Decisions]) -> Interval[Decisions]:
        """A candidate where it is in a cover."""
        entry, shift = taken.entry, taken.shift
        return Interval(entry.start + shift, entry.stop + shift, entry.us, self._line.moved(entry.payload, shift))

    def cheapest(self) -> tuple[Taken[Decisions], ...]:
        """The cheapest cover, all of it priced, unless there is no time for that."""
        while self.has_time():
            chosen = self.pool.cheapest()
            unsure = {taken.entry.place: taken.entry for taken in chosen if not taken.entry.priced}
            if not unsure:
                return chosen
            for entry in unsure.values():
                self._look_at(entry)
        return ()

    def _enter(self, candidate: Candidate, times: int = 1, apart: float = 0.0) -> None:
        """Adds a candidate; it counts as so many. `apart` is what its parts cost that are known: if as much, a little
        more than that, so that rounding does not have it looked at."""
        self.entered += times
        decisions = candidate.decisions
        exactly = candidate.certain or not self._prune
        us = self._pricer.cost(decisions) if exactly else self._pricer.least(decisions)
        if us is not None:
            if apart:
                self._apart[self.entered] = apart
            us = _above(apart) if _is_as_cheap(us, apart) else us
            entry = Entry(self.entered, *self._line.place(candidate), decisions, us, exactly)
            self.pool.add(entry, self._line.shifts(candidate))

    def _look_at(self, entry: Entry[Decisions]) -> None:
        self.pool.take(entry)
        self.closer(entry)
        self.pool.add(entry)

    def least_kept(self, payload: Decisions) -> Mapping[str, int]:
        """What decisions keep in the memories of units at least, by device: nodes share nothing there."""
        costs = self._pricer.costs
        count = Counter(device for decision in payload for device in devices_away(decision, costs.target.host))
        return {device: times * costs.units[device].least_kept for device, times in count.items()}

    def kept(self, payload: Decisions) -> Mapping[str, int]:
        """What decisions that can be carried out keep in the memories of units, by device."""
        away = any(leaves_host(decision, self._pricer.costs.target.host) for decision in payload)
        return self._pricer.kept(payload) if away else {}

    def closer(self, entry: Entry[Decisions]) -> None:
        """Looks at a candidate more closely; what cannot be made costs more than anything."""
        us, entry.priced = self._pricer.closer(entry.payload, entry.us)
        entry.us = math.inf if us is None else us
        self._looked_at += 1
        self._progress.looked_at(self._looked_at)


def _is_as_cheap(us: float, apart: float) -> bool:
    """Whether what is put together costs what its parts do, but for rounding."""
    return abs(us - apart) < _ROUNDING * apart


def _above(apart: float) -> float:
    return apart * (1 + _ROUNDING)
