"""The cheapest cover by candidates, pricing as few of them as possible.

The dynamic program of `chain` is solved with a lower bound on the cost of each candidate. The candidates of its
cheapest cover are refined, which raises their bounds or turns them into prices, and it is solved again, until the whole
cheapest cover is priced. Then no other cover is cheaper: none costs less than its bounds say. Ties are broken as if all
candidates had been priced.

A candidate may stand for others that are like it at later positions (`equivalents`): it is entered and refined once.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from operator import add, itemgetter
from typing import Generic, TypeVar

from pimflow.records import dataclass

Payload = TypeVar("Payload")


@dataclass(slots=True)
class Entry(Generic[Payload]):
    """A candidate for the positions start .. stop-1.

    Args:
        place: its place in the list of candidates: of equally cheap ones the first wins.
        us: its cost; a lower bound until it is `priced`.
    """

    place: int
    start: int
    stop: int
    payload: Payload
    us: float
    priced: bool = False

    def __lt__(self, other: Entry[Payload]) -> bool:
        return (self.us, self.place) < (other.us, other.place)


@dataclass(slots=True)  # not frozen, because covers create thousands of them
class Taken(Generic[Payload]):
    """A candidate in a cover, shifted by some positions from the one that stands for it."""

    entry: Entry[Payload]
    shift: int


@dataclass(frozen=True, slots=True)
class Stretch(Generic[Payload]):
    """The candidates for the same positions, a heap by cost, and the shifts of equivalent stretches."""

    entries: list[Entry[Payload]]
    start: int
    stop: int
    shifts: Sequence[int]


@dataclass(slots=True)  # not frozen, because there are thousands of them as well
class Near(Generic[Payload]):
    """A cover that costs little more than the cheapest, through a candidate that ends at a position.

    The order is that of their costs, then of the candidates' places.
    """

    us: float
    entry: Entry[Payload]
    stop: int

    def __lt__(self, other: Near[Payload]) -> bool:
        return (self.us, self.entry.place, self.stop) < (other.us, other.entry.place, other.stop)


class _NearCovers:
    """What is known of covers that cost little more than the cheapest.

    `rest` is, by position, the cost of the cheapest cover from there on; `through` has, by position, the stretches that
    end there through which some cover costs at most `most`, each with that cost. `changed` are the stretches whose
    first candidate has changed since these were found, and `stale` the positions at which `through` may have.
    """

    def __init__(self, size: int) -> None:
        self.most = math.nan
        self.rest = [math.inf] * size + [0.0]
        self.through: list[dict[int, float]] = [{} for _ in range(size + 1)]
        self.changed: set[int] = set()
        self.stale: set[int] = set()


class _Ends:
    """The stretches that end at a position, or those that start there: the other end of each, and its number."""

    def __init__(self) -> None:
        self.others: list[int] = []
        self.numbers: list[int] = []

    def add(self, other: int, number: int) -> None:
        """Add a stretch."""
        self.others.append(other)
        self.numbers.append(number)
        self.__dict__.pop("_picks", None)

    def totals(self, best: Sequence[float], least: Sequence[float]) -> Iterator[float]:
        """The costs of covers to this position with each stretch as the last step; a single stretch is listed twice.

        `best` is, by position, the cost of the cheapest cover up to there.
        """
        if not self.others:
            return iter(())
        others, numbers = self._picks
        return map(add, others(best), numbers(least))

    @cached_property
    def _picks(self) -> tuple[Callable[[Sequence[float]], Sequence[float]], ...]:
        """Getters that pick the values of the other ends, and of the numbers, from lists."""
        return itemgetter(*self.others, self.others[-1]), itemgetter(*self.numbers, self.numbers[-1])


class Pool(Generic[Payload]):
    """Candidates over positions 0 .. size-1. Of those for the same positions only the cheapest is ever refined."""

    def __init__(self, size: int) -> None:
        self.stretches: list[Stretch[Payload]] = []
        self._at: dict[tuple[int, int], int] = {}
        self._least: list[float] = []
        """By stretch, the cost of its cheapest candidate."""
        self._ending = [_Ends() for _ in range(size + 1)]
        self._starting = [_Ends() for _ in range(size + 1)]
        self._best = [0.0] + [math.inf] * size
        """By position, the cost of the cheapest cover up to there, except where it is `_stale`."""
        self._stale: set[int] = set()
        """The positions at which stretches end whose cheapest candidate has changed."""
        self._last: dict[int, tuple[int, int]] = {}
        """By position, the other end and the number of the last stretch of the cheapest cover up to there, where it has
        been asked for since it may have changed."""
        self._near = _NearCovers(size)

    def add(self, entry: Entry[Payload], shifts: Sequence[int] = (0,)) -> None:
        """Add a candidate, and the equivalent ones at the given shifts; one with infinite cost is left out."""
        if not math.isfinite(entry.us):
            return
        number = self._at.setdefault((entry.start, entry.stop), len(self.stretches))
        if number == len(self.stretches):
            self.stretches.append(Stretch([], entry.start, entry.stop, shifts))
            self._least.append(math.inf)
            for shift in shifts:
                self._ending[entry.stop + shift].add(entry.start + shift, number)
                self._starting[entry.start + shift].add(entry.stop + shift, number)
        entries = self.stretches[number].entries
        heapq.heappush(entries, entry)
        if entries[0] is entry:
            self._update(number)

    def first(self, start: int, stop: int) -> Entry[Payload] | None:
        """The candidate for some positions with the least cost known so far; None if there is none."""
        number = self._at.get((start, stop))
        entries = [] if number is None else self.stretches[number].entries
        return entries[0] if entries else None

    def take(self, entry: Entry[Payload]) -> None:
        """Remove a candidate that `cheapest` returned; it may be added again with another `us`."""
        number = self._at[entry.start, entry.stop]
        taken = heapq.heappop(self.stretches[number].entries)
        assert taken is entry, "`cheapest` returns only the first of each heap"
        self._update(number)

    def _update(self, number: int) -> None:
        """Note that a stretch has another cheapest candidate."""
        some = self.stretches[number]
        us = some.entries[0].us if some.entries else math.inf
        self._near.changed.add(number)
        stops = [some.stop + shift for shift in some.shifts]
        if us != self._least[number]:
            self._least[number] = us
            self._stale.update(stops)
        else:  # equally cheap, but first comes another candidate
            for stop in stops:
                self._last.pop(stop, None)

    def cheapest(self) -> tuple[Taken[Payload], ...]:
        """The cheapest cover by the costs known so far, in order; () if there is none."""
        self._solve_stale()
        chosen = self._back(self._least, self._first, self._best, self._last)
        return tuple([Taken(self.stretches[number].entries[0], shift) for number, shift in chosen])

    def cheapest_priced(self) -> tuple[float, tuple[Taken[Payload], ...]]:
        """The cheapest cover by priced candidates, with its cost; infinite if there is none."""
        priced = [[entry for entry in some.entries if entry.priced] for some in self.stretches]
        best = {number: min(entries) for number, entries in enumerate(priced) if entries}
        least = [best[number].us if entries else math.inf for number, entries in enumerate(priced)]
        total, chosen = self.cover(least, lambda number: best[number].place)
        return total, tuple([Taken(best[number], shift) for number, shift in chosen])

    def nearly_cheapest(self, near: float) -> tuple[bool, list[Near[Payload]]]:
        """The covers through the cheapest candidate of each stretch, by the costs known so far, that cost at most the
        share `near` more than the cheapest cover: those that the last call did not return, in no order.

        With them, whether everything is returned anew, because the cheapest cover costs something else. If not, earlier
        ones count as long as they are `valid`. `cheapest` must have been called since the last change.
        """
        near_covers, changed = self._near, self._near.changed
        self._solve_rest()
        most = self._best[-1] * (1 + near)
        is_new, near_covers.most = most != near_covers.most, most
        found = []
        for stop in range(len(self._best)) if is_new else near_covers.stale:
            before, now = near_covers.through[stop], self._through(stop, most)
            near_covers.through[stop] = now
            for number, us in now.items():
                if is_new or number in changed or before.get(number) != us:
                    entries = self.stretches[number].entries
                    found += [Near(us, entry, stop) for entry in entries[:1] if entry.payload]
        near_covers.stale.clear()
        changed.clear()
        return is_new, found

    def valid(self, near: Near[Payload]) -> bool:
        """Whether a cover is as `nearly_cheapest` would return it: through the cheapest candidate, at the same cost."""
        number = self._at[near.entry.start, near.entry.stop]
        entries = self.stretches[number].entries
        return bool(entries) and entries[0] is near.entry and self._near.through[near.stop].get(number) == near.us

    def near_again(self) -> None:
        """Let `nearly_cheapest` return everything anew."""
        self._near.most = math.nan

    def _through(self, stop: int, most: float) -> dict[int, float]:
        """The cost of the cheapest cover through each stretch that ends at a position, where that is at most `most`."""
        ending, rest = self._ending[stop], self._near.rest[stop]
        if self._best[stop] + rest > most:
            return {}
        totals = zip(ending.numbers, ending.totals(self._best, self._least), strict=False)
        return {number: us for number, total in totals if (us := total + rest) <= most}

    def _solve_rest(self) -> None:
        """Find the costs of the cheapest covers from each position on again, as far as they may have changed."""
        rest, stale = self._near.rest, set[int]()
        for number in self._near.changed:
            some = self.stretches[number]
            stale.update([some.start + shift for shift in some.shifts])
            self._near.stale.update([some.stop + shift for shift in some.shifts])
        for start in range(max(stale, default=-1), -1, -1):
            if start in stale:
                us = min(self._starting[start].totals(rest, self._least), default=math.inf)
                if us != rest[start]:
                    rest[start] = us
                    self._near.stale.add(start)
                    stale.update(self._ending[start].others)

    def cover(self, least: Sequence[float], rank: Callable[[int], int] = int) -> tuple[float, list[tuple[int, int]]]:
        """The cost of the cheapest cover for given costs of the stretches, and its stretches, each with its shift.

        `rank` breaks ties: the lowest comes first.
        """
        best = self.before(least)
        return best[-1], self._back(least, rank, best, {})

    def before(self, least: Sequence[float]) -> list[float]:
        """By position, the cost of the cheapest cover of the positions before it, for given costs of the stretches."""
        best = [0.0]
        for ending in self._ending[1:]:
            best.append(min(ending.totals(best, least), default=math.inf))
        return best

    def behind(self, least: Sequence[float]) -> list[float]:
        """By position, the cost of the cheapest cover of it and the positions behind it."""
        best = [math.inf] * (len(self._ending) - 1) + [0.0]
        for start in range(len(best) - 2, -1, -1):
            best[start] = min(self._starting[start].totals(best, least), default=math.inf)
        return best

    def _solve_stale(self) -> None:
        """Find the costs of the cheapest covers up to each position again, as far as they may have changed."""
        best, stale = self._best, self._stale
        for stop in range(min(stale, default=len(best)), len(best)):
            if stop in stale:
                self._last.pop(stop, None)
                us = min(self._ending[stop].totals(best, self._least), default=math.inf)
                if us != best[stop]:
                    best[stop] = us
                    stale.update(self._starting[stop].others)
        self._near.stale |= stale
        stale.clear()

    def _first(self, number: int) -> int:
        """The place of a stretch's cheapest candidate in the list of candidates."""
        return self.stretches[number].entries[0].place

    def _back(
        self,
        least: Sequence[float],
        rank: Callable[[int], int],
        best: Sequence[float],
        last: dict[int, tuple[int, int]],
    ) -> list[tuple[int, int]]:
        """The stretches of the cheapest cover, each with its shift, in order; none if there is no cover.

        `rank` breaks ties: the lowest comes first. `last` has the last steps that are known; others are added.
        """
        found = []
        stop = len(best) - 1 if math.isfinite(best[-1]) else 0
        while stop:
            if stop not in last:
                last[stop] = self._last_step(stop, least, rank, best)
            start, number = last[stop]
            found.append((number, start - self.stretches[number].start))
            stop = start
        return found[::-1]

    def _last_step(
        self, stop: int, least: Sequence[float], rank: Callable[[int], int], best: Sequence[float]
    ) -> tuple[int, int]:
        """The start and the number of the last stretch of the cheapest cover up to a position."""
        ending, totals = self._ending[stop], list(self._ending[stop].totals(best, least))
        at = totals.index(best[stop])
        if totals.count(best[stop]) > 1:
            ties = [index for index, total in enumerate(totals[:-1]) if total == best[stop]]
            at = min(ties, key=lambda index: rank(ending.numbers[index]))
        return ending.others[at], ending.numbers[at]

    def priced(self) -> Iterator[tuple[Entry[Payload], Sequence[int]]]:
        """All priced candidates, in the order of the list, each with its shifts."""
        found = [(entry, some.shifts) for some in self.stretches for entry in some.entries if entry.priced]
        yield from sorted(found, key=lambda one: one[0].place)
