"""The exact dynamic program: the cheapest partition of a line of positions into priced intervals, with traceback.

The problem: positions 0 .. n-1 (nodes of a graph, in execution order) and intervals [start, stop) with a cost. Choose
intervals that cover every position exactly once at minimum total cost. This is a shortest path through the cut points
0 .. n:

    best(0) = 0,   best(stop) = min over intervals (start, stop, cost) of best(start) + cost

which takes time linear in the intervals and is exact for intervals of any length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Generic, TypeVar

from pimflow.records import dataclass

Payload = TypeVar("Payload")


@dataclass(frozen=True)
class Interval(Generic[Payload]):
    """One way to handle the positions start .. stop-1, and its cost (any unit, finite, not negative)."""

    start: int
    stop: int
    cost: float
    payload: Payload

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise ValueError(f"interval [{self.start}, {self.stop}) is empty or starts before 0")
        if not math.isfinite(self.cost) or self.cost < 0:
            raise ValueError(f"interval [{self.start}, {self.stop}) costs {self.cost}")


def solve_chain(n: int, intervals: Iterable[Interval[Payload]]) -> tuple[float, tuple[Interval[Payload], ...]]:
    """The cost of the cheapest cover of n positions, and its intervals in order.

    Of equally cheap covers the one whose intervals were listed first wins, so the result is deterministic.

    Raises:
        ValueError: no set of intervals covers every position once, or an interval ends beyond n.
    """
    ending: list[list[Interval[Payload]]] = [[] for _ in range(n + 1)]
    for interval in intervals:
        if interval.stop > n:
            raise ValueError(f"interval [{interval.start}, {interval.stop}) ends beyond {n}")
        ending[interval.stop].append(interval)
    best = [0.0] + [math.inf] * n
    last: list[Interval[Payload] | None] = [None] * (n + 1)
    for stop in range(1, n + 1):
        for interval in ending[stop]:
            cost = best[interval.start] + interval.cost
            if cost < best[stop]:
                best[stop], last[stop] = cost, interval
    if math.isinf(best[n]):
        stuck = next(stop for stop in range(n, 0, -1) if math.isinf(best[stop]))
        raise ValueError(f"no intervals cover positions 0 .. {stuck - 1} exactly")
    return best[n], _trace_back(last)


def _trace_back(last: list[Interval[Payload] | None]) -> tuple[Interval[Payload], ...]:
    chosen: list[Interval[Payload]] = []
    stop = len(last) - 1
    while stop > 0:
        interval = last[stop]
        assert interval is not None, "a reachable position has an interval that ends there"
        chosen.append(interval)
        stop = interval.start
    return tuple(reversed(chosen))
