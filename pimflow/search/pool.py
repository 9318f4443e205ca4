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
        self._ending: list[dict[int, list[Entry[Payload]]]] = [{} for _ in range(size + 1)]
        self._best = [0.0] + [math.inf] * size
        self._last: list[Entry[Payload] | None] = [None] * (size + 1)
        self._solved = 0
        """Up to here the cheapest covers are known: no candidate that ends there has changed."""

    def add(self, entry: Entry[Payload]) -> None:
        """Adds a candidate; one that cannot be has no place in it."""
        if math.isfinite(entry.us):
            heapq.heappush(self._ending[entry.stop].setdefault(entry.start, []), entry)
            self._solved = min(self._solved, entry.stop - 1)

    def cheapest(self) -> tuple[Entry[Payload], ...]:
        """The cheapest cover, as far as is known, in order; () if there is none."""
        for stop in range(self._solved + 1, len(self._ending)):
            self._best[stop], self._last[stop] = self._cheapest_to(stop)
        self._solved = len(self._ending) - 1
        return tuple(reversed(list(_back(self._last))))

    def _cheapest_to(self, stop: int) -> tuple[float, Entry[Payload] | None]:
        """What the cheapest cover of the positions before `stop` costs, and its last candidate."""
        best, place, last = math.inf, math.inf, None
        for start, entries in self._ending[stop].items():
            if not entries:
                continue
            total = self._best[start] + entries[0].us
            if total < best or (total == best < math.inf and entries[0].place < place):
                best, place, last = total, entries[0].place, entries[0]
        return best, last

    def take(self, entry: Entry[Payload]) -> None:
        """Takes out a candidate that `cheapest` named; with another `us` it may be added again."""
        taken = heapq.heappop(self._ending[entry.stop][entry.start])
        self._solved = min(self._solved, entry.stop - 1)
        assert taken is entry, "only the cheapest are named"

    def priced(self) -> list[Interval[Payload]]:
        """All candidates that are priced, in the order of the list."""
        entries = [entry for rivals in self._ending for same in rivals.values() for entry in same if entry.priced]
        entries.sort(key=lambda entry: entry.place)
        return [Interval(entry.start, entry.stop, entry.us, entry.payload) for entry in entries]


def _back(last: list[Entry[Payload] | None]) -> Iterator[Entry[Payload]]:
    entry = last[-1]
    while entry is not None:
        yield entry
        entry = last[entry.start] if entry.start else None
