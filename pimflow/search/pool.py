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
from typing import Generic, TypeVar

from pimflow.records import dataclass
from pimflow.search.covers import Covers, from_quanta

Payload = TypeVar("Payload")


@dataclass(slots=True)
class Entry(Generic[Payload]):
    """A candidate for the positions start .. stop-1.

    Args:
        place: its place in the list of candidates: of equally cheap ones the first wins.
        given: its `payload`, or what makes it when it is first asked for.
        us: its cost; a lower bound until it is `priced`.
    """

    place: int
    start: int
    stop: int
    given: Payload | Callable[[], Payload]
    us: float
    priced: bool = False

    @property
    def payload(self) -> Payload:
        """What the candidate decides, made now if it is not yet."""
        if callable(self.given):
            self.given = self.given()
        return self.given

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
    end there through which some cover costs at most `most`, each with that cost, all in quanta. `changed` are the
    stretches whose first candidate has changed since these were found, and `stale` the positions at which `through` may
    have.
    """

    def __init__(self, size: int) -> None:
        self.most = math.nan
        self.rest: list[float] = [*[math.inf] * size, 0]
        self.through: list[dict[int, float]] = [{} for _ in range(size + 1)]
        self.changed: set[int] = set()
        self.stale: set[int] = set()


class Pool(Generic[Payload]):
    """Candidates over positions 0 .. size-1. Of those for the same positions only the cheapest is ever refined."""

    def __init__(self, size: int) -> None:
        self.stretches: list[Stretch[Payload]] = []
        self._at: dict[tuple[int, int], int] = {}
        self._covers = Covers(size, self._first)
        self._near = _NearCovers(size)

    def add(self, entry: Entry[Payload], shifts: Sequence[int] = (0,)) -> None:
        """Add a candidate, and the equivalent ones at the given shifts; one with infinite cost is left out."""
        if not math.isfinite(entry.us):
            return
        number = self._at.setdefault((entry.start, entry.stop), len(self.stretches))
        if number == len(self.stretches):
            self.stretches.append(Stretch([], entry.start, entry.stop, shifts))
            self._covers.add(entry.start, entry.stop, shifts)
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
        self._near.changed.add(number)
        self._covers.change(number, some.entries[0].us if some.entries else math.inf)

    def cheapest(self) -> tuple[Taken[Payload], ...]:
        """The cheapest cover by the costs known so far, in order; () if there is none."""
        return tuple([Taken(self.stretches[number].entries[0], shift) for number, shift in self._covers.cheapest()])

    def unsure(self) -> list[Entry[Payload]]:
        """The candidates in the cheapest cover that are not priced, each once, in order."""
        numbers = dict.fromkeys([number for number, _ in self._covers.cheapest()])
        return [first for number in numbers if not (first := self.stretches[number].entries[0]).priced]

    def cheapest_priced(self) -> tuple[float, tuple[Taken[Payload], ...]]:
        """The cheapest cover by priced candidates, with its cost; infinite if there is none."""
        priced = [[entry for entry in some.entries if entry.priced] for some in self.stretches]
        best = {number: min(entries) for number, entries in enumerate(priced) if entries}
        least = [best[number].us if entries else math.inf for number, entries in enumerate(priced)]
        total, chosen = self._covers.cover(least, lambda number: best[number].place)
        return total, tuple([Taken(best[number], shift) for number, shift in chosen])

    def nearly_cheapest(self, near: float) -> tuple[bool, list[Near[Payload]]]:
        """The covers through the cheapest candidate of each stretch, by the costs known so far, that cost at most the
        share `near` more than the cheapest cover: those that the last call did not return, in no order.

        With them, whether everything is returned anew, because the cheapest cover costs something else. If not, earlier
        ones count as long as they are `valid`.
        """
        near_covers, changed, best = self._near, self._near.changed, self._covers.costs()
        near_covers.stale |= self._covers.moved
        self._covers.moved.clear()
        self._solve_rest()
        most = best[-1] * (1 + near)
        is_new, near_covers.most = most != near_covers.most, most
        found = []
        for stop in range(len(best)) if is_new else near_covers.stale:
            before, now = near_covers.through[stop], self._through(stop, best, most)
            near_covers.through[stop] = now
            for number, us in now.items():
                if is_new or number in changed or before.get(number) != us:
                    entries = self.stretches[number].entries
                    found += [Near(from_quanta(us), entry, stop) for entry in entries[:1] if entry.payload]
        near_covers.stale.clear()
        changed.clear()
        return is_new, found

    def valid(self, near: Near[Payload]) -> bool:
        """Whether a cover is as `nearly_cheapest` would return it: through the cheapest candidate, at the same cost."""
        number = self._at[near.entry.start, near.entry.stop]
        entries = self.stretches[number].entries
        us = from_quanta(self._near.through[near.stop].get(number, math.inf))
        return bool(entries) and entries[0] is near.entry and us == near.us

    def near_again(self) -> None:
        """Let `nearly_cheapest` return everything anew."""
        self._near.most = math.nan

    def _through(self, stop: int, best: Sequence[float], most: float) -> dict[int, float]:
        """The cost of the cheapest cover through each stretch that ends at a position, where that is at most `most`."""
        ending, rest = self._covers.ending[stop], self._near.rest[stop]
        if best[stop] + rest > most:
            return {}
        totals = zip(ending.numbers, ending.totals(best, self._covers.least), strict=False)
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
                us = min(self._covers.starting[start].totals(rest, self._covers.least), default=math.inf)
                if us != rest[start]:
                    rest[start] = us
                    self._near.stale.add(start)
                    stale.update(self._covers.ending[start].others)

    def covers_at(self, costs: Sequence[float]) -> Covers:
        """The covers at given costs of the stretches."""
        return self._covers.at(costs)

    def before(self, least: Sequence[float]) -> list[float]:
        """By position, the cost of the cheapest cover of the positions before it, for given costs of the stretches."""
        return self._covers.before(least)

    def behind(self, least: Sequence[float]) -> list[float]:
        """By position, the cost of the cheapest cover of it and the positions behind it."""
        return self._covers.behind(least)

    def _first(self, number: int) -> int:
        """The place of a stretch's cheapest candidate in the list of candidates."""
        return self.stretches[number].entries[0].place

    def priced(self) -> Iterator[tuple[Entry[Payload], Sequence[int]]]:
        """All priced candidates, in the order of the list, each with its shifts."""
        found = [(entry, some.shifts) for some in self.stretches for entry in some.entries if entry.priced]
        yield from sorted(found, key=lambda one: one[0].place)
