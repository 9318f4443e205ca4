"""Plans between the corners of a front: not the cheapest at any energy price, but not dominated by any other plan.

The corners of the convex hull of all plans are each the cheapest at some energy price. A plan between two of them lies
in the triangle below the point that is as slow as the slower one and spends as much energy as the faster one (the
two-phase method: Ulungu and Teghem, Foundations of Computing and Decision Sciences 20, 1995). At the price at which
both corners cost the same, it costs more than the corners and less than that point: that rules out most candidates by
lower bounds on their time and energy, and the rest are priced. Then a dynamic program over the execution order keeps
the nondominated plans of all nodes so far (labels: Martins, EJOR 16, 1984).

Of plans with almost the same time and energy it keeps one: for every plan that is dropped, one is kept that is no
slower and spends at most a given share more (Warburton, Operations Research 35, 1987).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pimflow.ir import Decision, Graph, Plan
from pimflow.records import dataclass
from pimflow.search.candidates import Candidate, Candidates
from pimflow.search.capacity import stored_of
from pimflow.search.chain import Interval
from pimflow.search.policy import Policy
from pimflow.search.pricing import Costs
from pimflow.search.switching import Line, with_unit_channels
from pimflow.search.weighted import Spent, WeightedPricer

Array = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

_ROUNDING = 1e-9
_MAX_AT_ONCE = 64
"""How many candidates to price before checking again which ones are still promising."""


@dataclass(slots=True)
class _Entry:
    """A candidate with its time and energy: lower bounds until it is `priced`."""

    start: int
    stop: int
    decisions: tuple[Decision, ...]
    spent: Spent
    priced: bool = False


class Gaps:
    """The entries that plans between the corners of a front consist of, priced as far as necessary.

    These are a policy's candidates, the decisions of the corners, and variations of those.

    Args:
        graph: cleaned up, as for `solve`.
        policy: determines the candidates.
        pricer: prices them.
        corners: the known plans.
        budget_s: the time limit for pricing in seconds; no plan contains a candidate that is not priced by then.
    """

    def __init__(
        self,
        graph: Graph,
        policy: Policy,
        pricer: WeightedPricer,
        corners: Sequence[Plan],
        budget_s: float | None = None,
    ) -> None:
        self._is_late = False
        self._deadline = math.inf if budget_s is None else time.perf_counter() + budget_s
        candidates = Candidates(graph, policy, pricer, exhaustive=True)
        line = Line(candidates, pricer.costs.channel_switch_us)
        self._size = line.size
        self._pricer = pricer
        self._entries: list[_Entry] = [
            _Entry(start, stop, (), _switches_spent(pricer.costs, count), priced=True)
            for start, stop, count in line.steps()
        ]
        known: set[tuple[Decision, ...]] = set()
        for candidate in _candidates(candidates, line, corners):
            if self._out_of_time():
                return
            least = None if candidate.decisions in known else pricer.least_spent(candidate.decisions)
            known.add(candidate.decisions)
            if least is not None:
                self._entries.append(_Entry(*line.place(candidate), candidate.decisions, least))

    def _out_of_time(self) -> bool:
        self._is_late |= time.perf_counter() > self._deadline
        return self._is_late

    def between(self, corner: Plan, left: Spent, right: Spent, within: float) -> Iterator[Plan]:
        """The plans between two corners, the fastest first.

        Args:
            corner: the plan of the faster corner.
            left: its time and energy.
            right: the time and energy of the other corner, which is slower and spends less energy.
            within: the tolerance: for every plan between the corners, one of the returned plans or of the corners is no
                slower and spends more by at most this share of the right corner's energy; 0 returns all nondominated
                plans.
        """
        triangle = _Triangle(left, right)
        entries = self._priced_within(triangle)
        if not entries:
            return
        error_mj = within * right.energy_mj / 2
        for time_us, chosen in _Labels(entries, self._size, triangle, error_mj).thinned(error_mj):
            kept: Counter[str] = Counter()
            for some in chosen:
                kept.update(self._pricer.kept(some))
            stored = stored_of(kept, self._pricer.costs)
            if all(storage.used <= storage.bound for storage in stored):
                decisions = tuple(decision for some in chosen for decision in some)
                complete = corner.complete and not self._is_late
                yield replace(
                    corner, decisions=decisions, predicted_us=time_us, stored=stored, limit=None, complete=complete
                )

    def _priced_within(self, triangle: _Triangle) -> list[_Entry]:
        """The entries of plans in the triangle, all of them priced."""
        while True:
            entries = _near(self._entries, self._size, triangle)
            unsure = [entry for entry in entries if not entry.priced]
            if not unsure:
                return entries
            if self._out_of_time():
                self._entries = [entry for entry in self._entries if entry.priced]
                continue
            for entry in unsure[:_MAX_AT_ONCE]:
                self._refine(entry)

    def _refine(self, entry: _Entry) -> None:
        spent, entry.priced = self._pricer.refine_spent(entry.decisions, entry.spent)
        entry.spent = spent if spent is not None else Spent(math.inf, math.inf)


def _switches_spent(costs: Costs, count: int) -> Spent:
    """The time and energy of a number of switches of memory channels."""
    time_us = count * (costs.channel_switch_us or 0.0)
    return Spent(time_us, costs.static_energy_mj(time_us))


def _candidates(candidates: Candidates, line: Line, corners: Sequence[Plan]) -> Iterator[Candidate]:
    """A policy's candidates, the decisions of the corners, and variations of those."""
    if candidates.policy.spaces:
        yield from line.with_all_channels()
        yield from candidates
    for corner in corners:
        chosen = [with_unit_channels(stretch) for stretch in _stretches(candidates, corner)]
        yield from (Candidate(stretch.start, stretch.stop, stretch.payload) for stretch in chosen)
        yield from (joined for joined, _ in candidates.joins(chosen))
        for stretch in chosen:
            yield from candidates.variations(stretch)


def _stretches(candidates: Candidates, plan: Plan) -> list[Interval[tuple[Decision, ...]]]:
    """The decisions of a plan, grouped by the units of the order that they cover."""
    ends = {unit.stop for unit in candidates.scene.units}
    found: list[Interval[tuple[Decision, ...]]] = []
    start, stop = 0, 0
    decisions: list[Decision] = []
    for decision in plan.decisions:
        decisions.append(decision)
        stop += len(decision.nodes)
        if stop in ends:
            found.append(Interval(start, stop, 0.0, tuple(decisions)))
            start, decisions = stop, []
    return found


@dataclass(frozen=True)
class _Triangle:
    """The region between two corners: faster than the right one, less energy than the left one, and cheaper than the
    point with the right one's time and the left one's energy."""

    left: Spent
    right: Spent

    def costs(self, time_us: Array, energy_mj: Array) -> Array:
        """The costs at the energy price at which both corners cost the same."""
        saved, lost = self.left.energy_mj - self.right.energy_mj, self.right.time_us - self.left.time_us
        found: Array = saved * time_us + lost * energy_mj
        return found

    def has(self, time_us: Array, energy_mj: Array, costs: Array) -> npt.NDArray[np.bool_]:
        """Which plans may be in the triangle, given lower bounds on their time, energy and cost."""
        corner = self.costs(np.array(self.right.time_us), np.array(self.left.energy_mj))
        inside: npt.NDArray[np.bool_] = (
            (time_us < self.right.time_us * (1 - _ROUNDING))
            & (energy_mj < self.left.energy_mj * (1 - _ROUNDING))
            & (costs < corner)
        )
        return inside


def _near(entries: Sequence[_Entry], size: int, triangle: _Triangle) -> list[_Entry]:
    """The candidates that a plan in the triangle may contain, by lower bounds on the time and energy of all candidates.

    They are ordered by the cost of the cheapest plan through each.
    """
    time_us, energy_mj, costs = (_through(entries, size, each) for each in _amounts(entries, triangle))
    inside = triangle.has(time_us, energy_mj, costs)
    return [entries[place] for place in np.argsort(costs, kind="stable") if inside[place]]


def _amounts(entries: Sequence[_Entry], triangle: _Triangle) -> tuple[Array, Array, Array]:
    """The times, energies and costs of candidates."""
    time_us = np.array([entry.spent.time_us for entry in entries])
    energy_mj = np.array([entry.spent.energy_mj for entry in entries])
    return time_us, energy_mj, triangle.costs(time_us, energy_mj)


def _through(entries: Sequence[_Entry], size: int, amounts: Array) -> Array:
    """By candidate, the least sum of amounts over all covers that contain it."""
    before, behind = _least_before(entries, size, amounts), _least_behind(entries, size, amounts)
    found: Array = np.array([before[entry.start] + behind[entry.stop] for entry in entries]) + amounts
    return found


def _least_before(entries: Sequence[_Entry], size: int, amounts: Array) -> list[float]:
    """By position, the least sum over covers of the positions before it."""
    least = [0.0] + [math.inf] * size
    for place in sorted(range(len(entries)), key=lambda place: entries[place].start):
        entry = entries[place]
        least[entry.stop] = min(least[entry.stop], least[entry.start] + float(amounts[place]))
    return least


def _least_behind(entries: Sequence[_Entry], size: int, amounts: Array) -> list[float]:
    """By position, the least sum over covers of it and the positions behind it."""
    least = [math.inf] * size + [0.0]
    for place in sorted(range(len(entries)), key=lambda place: -entries[place].stop):
        entry = entries[place]
        least[entry.start] = min(least[entry.start], least[entry.stop] + float(amounts[place]))
    return least


@dataclass(frozen=True)
class _Front:
    """Plans for the positions before one: time, energy, each plan's last candidate, and the index of the plan before
    that."""

    time_us: Array
    energy_mj: Array
    entries: Places
    before: Places

    def at(self, kept: Places | npt.NDArray[np.bool_]) -> _Front:
        """The plans at some indices."""
        return _Front(self.time_us[kept], self.energy_mj[kept], self.entries[kept], self.before[kept])

    def undominated(self, step_mj: float) -> _Front:
        """The plans in order of time, each with less energy than all before it; only the fastest per step of energy."""
        order = np.lexsort((self.energy_mj, self.time_us))
        least = np.minimum.accumulate(np.append(math.inf, self.energy_mj[order]))
        front = self.at(order[self.energy_mj[order] < least[:-1] * (1 - _ROUNDING)])
        if not step_mj:
            return front
        _, first = np.unique(-np.floor(front.energy_mj / step_mj), return_index=True)
        return front.at(np.sort(first))


class _Labels:
    """The dynamic program.

    The plan kept for a step of energy is faster than those dropped from it and spends less than a step more. Every
    candidate of a plan adds one such error, so the step is the allowed error divided by the number of positions at
    which candidates end.
    """

    def __init__(self, entries: Sequence[_Entry], size: int, triangle: _Triangle, error_mj: float) -> None:
        self._entries = entries
        self._triangle = triangle
        self._fronts: list[_Front | None] = [None] * (size + 1)
        self._fronts[0] = _Front(np.zeros(1), np.zeros(1), np.array([-1]), np.array([-1]))
        behind = [_least_behind(entries, size, amounts) for amounts in _amounts(entries, triangle)]
        ending: dict[int, list[int]] = {}
        for place, entry in enumerate(entries):
            ending.setdefault(entry.stop, []).append(place)
        for stop in sorted(ending):
            longer = [self._longer(place, [least[stop] for least in behind]) for place in ending[stop]]
            found = _joined([front for front in longer if front is not None])
            self._fronts[stop] = None if found is None else found.undominated(error_mj / len(ending))

    def _longer(self, place: int, behind: Sequence[float]) -> _Front | None:
        """The plans before a candidate, extended by it, as far as they may lead into the triangle; None if there are
        none.

        `behind` has lower bounds on the time, energy and cost of the rest.
        """
        entry = self._entries[place]
        before = self._fronts[entry.start]
        if before is None:
            return None
        time_us, energy_mj = before.time_us + entry.spent.time_us, before.energy_mj + entry.spent.energy_mj
        costs = self._triangle.costs(time_us, energy_mj)
        near = self._triangle.has(time_us + behind[0], energy_mj + behind[1], costs + behind[2])
        numbers = np.arange(len(time_us))
        return _Front(time_us, energy_mj, np.full(len(time_us), place), numbers).at(near)

    def thinned(self, error_mj: float) -> Iterator[tuple[float, list[tuple[Decision, ...]]]]:
        """The times and decisions of plans for all positions, the fastest first; of plans with almost the same energy
        only the fastest."""
        last = self._fronts[-1]
        if last is None:
            return
        spent_mj = self._triangle.left.energy_mj
        for label, (time_us, energy_mj) in enumerate(zip(last.time_us.tolist(), last.energy_mj.tolist(), strict=True)):
            if energy_mj < spent_mj - error_mj:
                yield time_us, self._chosen(label)
                spent_mj = energy_mj

    def _chosen(self, label: int) -> list[tuple[Decision, ...]]:
        """The decisions of a plan for all positions, candidate by candidate, in order."""
        found: list[tuple[Decision, ...]] = []
        position = len(self._fronts) - 1
        while position:
            front = self._fronts[position]
            assert front is not None
            entry = self._entries[front.entries[label]]
            label, position = int(front.before[label]), entry.start
            found.append(entry.decisions)
        return found[::-1]


def _joined(fronts: Sequence[_Front]) -> _Front | None:
    """All fronts as one; None if there are no plans."""
    if not any(len(front.time_us) for front in fronts):
        return None
    columns = zip(*((front.time_us, front.energy_mj, front.entries, front.before) for front in fronts), strict=True)
    return _Front(*map(np.concatenate, columns))
