"""The cheapest cover by candidates of which only bounds are known: as few as possible are priced.

The dynamic program of `chain` is solved with what each candidate takes at least. What its cheapest cover is made of is
looked at more closely, which raises bounds or makes prices of them, and it is solved again, until all of the cheapest
cover is priced. Then no other cover is cheaper: none costs less than its bounds say. Of equally cheap ones the same
wins as if all had been priced.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from operator import add
from typing import Generic, TypeVar

from pimflow.search.chain import Interval

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


class Pool(Generic[Payload]):
    """Candidates over positions 0 .. size-1. Of those for the same positions only the cheapest is ever looked at."""

    def __init__(self, size: int) -> None:
        self._ending: list[_Ending[Payload]] = [_Ending() for _ in range(size + 1)]
        self._best = [0.0] + [math.inf] * size
        self._last: list[Entry[Payload] | None] = [None] * (size + 1)
        self._solved = 0
        """Up to here the cheapest covers are known: no candidate that ends there has changed."""

    def add(self, entry: Entry[Payload]) -> None:
        """Adds a candidate; one that cannot be has no place in it."""
        if math.isfinite(entry.us):
            self._ending[entry.stop].add(entry)
            self._solved = min(self._solved, entry.stop - 1)

    def cheapest(self) -> tuple[Entry[Payload], ...]:
        """The cheapest cover, as far as is known, in order; () if there is none."""
        for stop in range(self._solved + 1, len(self._ending)):
            self._best[stop], self._last[stop] = self._ending[stop].cheapest(self._best)
        self._solved = len(self._ending) - 1
        return tuple(reversed(list(_back(self._last))))

    def take(self, entry: Entry[Payload]) -> None:
        """Takes out a candidate that `cheapest` named; with another `us` it may be added again."""
        taken = self._ending[entry.stop].take(entry.start)
        self._solved = min(self._solved, entry.stop - 1)
        assert taken is entry, "only the cheapest are named"

    def priced(self) -> list[Interval[Payload]]:
        """All candidates that are priced, in the order of the list."""
        entries = [entry for ending in self._ending for entry in ending.entries() if entry.priced]
        entries.sort(key=lambda entry: entry.place)
        return [Interval(entry.start, entry.stop, entry.us, entry.payload) for entry in entries]


class _Ending(Generic[Payload]):
    """The candidates that end at one position, a heap for every position that some start at."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._heaps: list[list[Entry[Payload]]] = []
        self._least: list[float] = []
        """By heap, what its cheapest takes: beside each other they are added up quickly."""
        self._at: dict[int, int] = {}

    def add(self, entry: Entry[Payload]) -> None:
        """Adds a candidate."""
        at = self._at.setdefault(entry.start, len(self._starts))
        if at == len(self._starts):
            self._starts.append(entry.start)
            self._heaps.append([])
            self._least.append(math.inf)
        heapq.heappush(self._heaps[at], entry)
        self._least[at] = self._heaps[at][0].us

    def take(self, start: int) -> Entry[Payload]:
        """Takes out the cheapest that starts at a position."""
        at = self._at[start]
        heap = self._heaps[at]
        taken = heapq.heappop(heap)
        self._least[at] = heap[0].us if heap else math.inf
        return taken

    def cheapest(self, best: list[float]) -> tuple[float, Entry[Payload] | None]:
        """What the cheapest cover up to here costs, and its last candidate; `best` are those up to other positions."""
        totals = list(map(add, map(best.__getitem__, self._starts), self._least))
        least = min(totals, default=math.inf)
        if math.isinf(least):
            return least, None
        if totals.count(least) == 1:
            return least, self._heaps[totals.index(least)][0]
        tied = (heap[0] for heap, total in zip(self._heaps, totals, strict=True) if total == least)
        return least, min(tied, key=lambda entry: entry.place)

    def entries(self) -> Iterator[Entry[Payload]]:
        """All of them."""
        return (entry for heap in self._heaps for entry in heap)


def _back(last: list[Entry[Payload] | None]) -> Iterator[Entry[Payload]]:
    entry = last[-1]
    while entry is not None:
        yield entry
        entry = last[entry.start] if entry.start else None
