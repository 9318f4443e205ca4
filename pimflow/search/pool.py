"""The cheapest cover by candidates of which only bounds are known: as few as possible are priced.

The dynamic program of `chain` is solved with what each candidate takes at least. What its cheapest cover is made of is
looked at more closely, which raises bounds or makes prices of them, and it is solved again, until all of the cheapest
cover is priced. Then no other cover is cheaper: none costs less than its bounds say. Of equally cheap ones the same
wins as if all had been priced.

A candidate may stand for others that are like it, further behind (`alike`): it is entered, and looked at, once.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import add
from typing import Generic, TypeVar

Payload = TypeVar("Payload")


@dataclass(slots=True)
class Entry(Generic[Payload]):
    """A candidate for the positions start .. stop-1.

    Args:
        place: in the list of candidates: of equally cheap ones the first wins.
        us: what it takes, or at least takes as long as it is not `priced`.
    """

    place: int
    start: int
    stop: int
    payload: Payload
    us: float
    priced: bool = False

    def __lt__(self, other: Entry[Payload]) -> bool:
        return (self.us, self.place) < (other.us, other.place)


@dataclass(frozen=True, slots=True)
class Taken(Generic[Payload]):
    """A candidate in a cover, so many positions behind the one that stands for it."""

    entry: Entry[Payload]
    shift: int


@dataclass(frozen=True, slots=True)
class Stretch(Generic[Payload]):
    """The candidates for the same positions, a heap by what they take at least, and where others alike lie."""

    entries: list[Entry[Payload]]
    start: int
    stop: int
    shifts: Sequence[int]


class Pool(Generic[Payload]):
    """Candidates over positions 0 .. size-1. Of those for the same positions only the cheapest is ever looked at."""

    def __init__(self, size: int) -> None:
        self.stretches: list[Stretch[Payload]] = []
        self._at: dict[tuple[int, int], int] = {}
        self._least: list[float] = []
        """By stretch, what its cheapest takes."""
        self._ending: list[tuple[list[int], list[int]]] = [([], []) for _ in range(size + 1)]
        """By position, where stretches start that end there, and which these are: so costs are added up quickly."""
        self._best = [0.0] + [math.inf] * size
        self._last: list[tuple[int, int]] = [(-1, -1)] * (size + 1)
        self._solved = 0
        """Up to here the cheapest covers are known: no candidate that ends there has changed."""

    def add(self, entry: Entry[Payload], shifts: Sequence[int] = (0,)) -> None:
        """Adds a candidate, and those alike so far behind it; one that cannot be has no place in it."""
        if not math.isfinite(entry.us):
            return
        number = self._at.setdefault((entry.start, entry.stop), len(self.stretches))
        if number == len(self.stretches):
            self.stretches.append(Stretch([], entry.start, entry.stop, shifts))
            self._least.append(math.inf)
            for shift in shifts:
                starts, numbers = self._ending[entry.stop + shift]
                starts.append(entry.start + shift)
                numbers.append(number)
        heapq.heappush(self.stretches[number].entries, entry)
        self._changed(number)

    def take(self, entry: Entry[Payload]) -> None:
        """Takes out a candidate that `cheapest` named; with another `us` it may be added again."""
        number = self._at[entry.start, entry.stop]
        taken = heapq.heappop(self.stretches[number].entries)
        assert taken is entry, "only the cheapest are named"
        self._changed(number)

    def _changed(self, number: int) -> None:
        entries = self.stretches[number].entries
        self._least[number] = entries[0].us if entries else math.inf
        self._solved = min(self._solved, self.stretches[number].stop - 1)

    def cheapest(self) -> tuple[Taken[Payload], ...]:
        """The cheapest cover, as far as is known, in order; () if there is none."""
        first, self._solved = self._solved + 1, len(self._ending) - 1
        self._solve(self._least, self._first, self._best, self._last, first)
        return tuple([Taken(self.stretches[number].entries[0], shift) for number, shift in self._back(self._last)])

    def cheapest_priced(self) -> tuple[float, tuple[Taken[Payload], ...]]:
        """What the cheapest cover by what is priced costs, and that cover; infinite if there is none."""
        priced = [[entry for entry in some.entries if entry.priced] for some in self.stretches]
        best = {number: min(entries) for number, entries in enumerate(priced) if entries}
        least = [best[number].us if entries else math.inf for number, entries in enumerate(priced)]
        total, chosen = self.cover(least, lambda number: best[number].place)
        return total, tuple([Taken(best[number], shift) for number, shift in chosen])

    def cover(self, least: Sequence[float], rank: Callable[[int], int] = int) -> tuple[float, list[tuple[int, int]]]:
        """What the cheapest cover costs if every stretch costs what is given, and its stretches, each with its shift.

        `rank` says which of equally cheap ones comes first.
        """
        size = len(self._ending) - 1
        best, last = [0.0] + [math.inf] * size, [(-1, -1)] * (size + 1)
        self._solve(least, rank, best, last, 1)
        return best[-1], self._back(last)

    def before(self, least: Sequence[float]) -> list[float]:
        """By position, what the cheapest cover of those before it costs if every stretch costs what is given."""
        best = [0.0] + [math.inf] * (len(self._ending) - 1)
        self._solve(least, int, best, [(-1, -1)] * len(best), 1)
        return best

    def behind(self, least: Sequence[float]) -> list[float]:
        """The same of the position and those behind it."""
        best = [math.inf] * (len(self._ending) - 1) + [0.0]
        for stop in range(len(best) - 1, 0, -1):
            for start, number in zip(*self._ending[stop], strict=True):
                best[start] = min(best[start], best[stop] + least[number])
        return best

    def _solve(
        self,
        least: Sequence[float],
        rank: Callable[[int], int],
        best: list[float],
        last: list[tuple[int, int]],
        first: int,
    ) -> None:
        """The cheapest covers up to the positions from the first on: what they cost, and where and what their last
        stretch is."""
        for stop in range(first, len(self._ending)):
            starts, numbers = self._ending[stop]
            totals = list(map(add, map(best.__getitem__, starts), map(least.__getitem__, numbers)))
            total = best[stop] = min(totals, default=math.inf)
            if math.isinf(total):
                last[stop] = (-1, -1)
                continue
            at = totals.index(total)
            if totals.count(total) > 1:
                at = min((rank(numbers[at]), at) for at, cost in enumerate(totals) if cost == total)[1]
            last[stop] = starts[at], numbers[at]

    def _first(self, number: int) -> int:
        """Where the cheapest of a stretch is in the list of candidates."""
        return self.stretches[number].entries[0].place

    def _back(self, last: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The stretches of a cover, each with its shift, in order."""
        found = []
        start, number = last[-1]
        while start >= 0:
            found.append((number, start - self.stretches[number].start))
            start, number = last[start]
        return found[::-1]

    def priced(self) -> Iterator[tuple[Entry[Payload], Sequence[int]]]:
        """All candidates that are priced, in the order of the list, and where those are that each stands for."""
        found = [(entry, some.shifts) for some in self.stretches for entry in some.entries if entry.priced]
        yield from sorted(found, key=lambda one: one[0].place)
