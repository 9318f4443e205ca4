"""The cheapest covers of positions by stretches whose costs change: a dynamic program that solves again only what it
has to.

Costs are whole numbers of a small quantum, so that sums do not depend on their order. A stretch that becomes dearer
changes the cost of every cover behind it, but from some position on all by the same amount. That is noted once, and
added to the costs of single positions when these are needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cached_property
from operator import add, itemgetter

_QUANTA = 2.0**40
"""The number of quanta in a microsecond (or millijoule): costs that differ by less are equal."""

_FEW = 8
"""If stretches that end at more than one in so many positions have changed, all covers are found again: following what
changed then takes up to twice as long."""


def in_quanta(us: float) -> float:
    """A cost as a whole number of quanta; an infinite one stays as it is."""
    return int(us * _QUANTA) if math.isfinite(us) else us


def from_quanta(cost: float) -> float:
    """A cost that is given in quanta."""
    return cost / _QUANTA


class _Ends:
    """The stretches that end at a position, or those that start there: the other end of each, and its number."""

    def __init__(self) -> None:
        self.others: list[int] = []
        self.numbers: list[int] = []

    def add(self, other: int, number: int) -> None:
        """Add a stretch."""
        self.others.append(other)
        self.numbers.append(number)
        self.__dict__.pop("picks", None)

    def totals(self, best: Sequence[float], least: Sequence[float]) -> Iterator[float]:
        """The costs of covers to this position with each stretch as the last step; a single stretch is listed twice.

        `best` is, by position, the cost of the cheapest cover up to there.
        """
        if not self.others:
            return iter(())
        others, numbers = self.picks
        return map(add, others(best), numbers(least))

    @cached_property
    def picks(self) -> tuple[Callable[[Sequence[float]], Sequence[float]], ...]:
        """Getters that pick the values of the other ends, and of the numbers, from lists; for at least one stretch."""
        return itemgetter(*self.others, self.others[-1]), itemgetter(*self.numbers, self.numbers[-1])


_Step = tuple[int, tuple[int, int]]
"""A stretch in a cover: its start, and its number and shift."""


class Covers:
    """Covers of positions 0 .. size-1 by stretches, which are numbered in the order in which they are added.

    Args:
        rank: what breaks ties between stretches, by number: the lowest comes first; without it, the lowest number.
    """

    def __init__(self, size: int, rank: Callable[[int], int] | None = None) -> None:
        self.least: list[float] = []
        """By stretch, its cost in quanta."""
        self.ending = [_Ends() for _ in range(size + 1)]
        self.starting = [_Ends() for _ in range(size + 1)]
        self.moved: set[int] = set()
        """The positions at which the cost of a cover may have changed since this was last cleared."""
        self._rank = rank
        self._spans: list[tuple[int, int, Sequence[int]]] = []
        self._reach = 1
        """The length of the longest stretch."""
        self._best: list[float] = [0, *[math.inf] * size]
        """By position, the cost of the cheapest cover up to there, except where it is `_stale`, and without what is
        `_due`."""
        self._due: dict[int, int] = {}
        """What is to be added to the costs of all positions from a position on."""
        self._stale: set[int] = set()
        """The positions at which stretches end whose cost has changed."""
        self._last: dict[int, _Step] = {}
        """By position, the last step of the cheapest cover up to there, where it has been asked for since it may have
        changed."""

    def add(self, start: int, stop: int, shifts: Sequence[int]) -> None:
        """Add a stretch that covers positions start .. stop-1, or these at any of the shifts; its cost is infinite."""
        number = len(self._spans)
        self._spans.append((start, stop, shifts))
        self.least.append(math.inf)
        self._reach = max(self._reach, stop - start)
        for shift in shifts:
            self.ending[stop + shift].add(start + shift, number)
            self.starting[start + shift].add(stop + shift, number)

    def change(self, number: int, us: float) -> None:
        """Give a stretch a cost, or, at the same cost, another rank."""
        _, stop, shifts = self._spans[number]
        stops = [stop + shift for shift in shifts]
        cost = in_quanta(us)
        if cost != self.least[number]:
            self.least[number] = cost
            self._stale.update(stops)
            return
        for stop in stops:
            self._last.pop(stop, None)

    def at(self, costs: Sequence[float]) -> Covers:
        """The same stretches at other costs, which may change without changing those here; ties are broken by number.

        No more stretches may be added there, nor here as long as those are in use.
        """
        other = copy(self)
        other.least = [in_quanta(us) for us in costs]
        other.moved, other._rank = set(), None
        other._best, other._due = self.before(other.least), {}
        other._stale, other._last = set(), {}
        return other

    def cheapest(self) -> list[tuple[int, int]]:
        """The stretches of the cheapest cover, each with its shift, in order; none if there is no cover."""
        self._solve()
        return self._back(self.least, self._rank, self._best, self._last, self._settle if self._due else None)

    def costs(self) -> Sequence[float]:
        """By position, the cost in quanta of the cheapest cover up to there."""
        self._solve()
        self._settle(1, len(self._best) - 1)
        return self._best

    def cover(self, least: Sequence[float], rank: Callable[[int], int]) -> tuple[float, list[tuple[int, int]]]:
        """The cost of the cheapest cover for given costs of the stretches, and its stretches, each with its shift.

        `rank` breaks ties: the lowest comes first.
        """
        best = self.before(least)
        return best[-1], self._back(least, rank, best, {})

    def before(self, least: Sequence[float]) -> list[float]:
        """By position, the cost of the cheapest cover of the positions before it, for given costs of the stretches."""
        best: list[float] = [0]
        for ending in self.ending[1:]:
            if ending.others:
                others, numbers = ending.picks
                best.append(min(map(add, others(best), numbers(least))))
            else:
                best.append(math.inf)
        return best

    def behind(self, least: Sequence[float]) -> list[float]:
        """By position, the cost of the cheapest cover of it and the positions behind it."""
        best = [math.inf] * (len(self.ending) - 1) + [0.0]
        for start in range(len(best) - 2, -1, -1):
            best[start] = min(self.starting[start].totals(best, least), default=math.inf)
        return best

    def _solve(self) -> None:
        """Find the costs of the cheapest covers again, as far as they may have changed."""
        if len(self._stale) * _FEW > len(self._best):
            self._solve_all()
        solved = 0
        for position in sorted(self._stale):
            if position >= solved:
                solved = self._solve_from(position)
        self._stale.clear()

    def _solve_all(self) -> None:
        """Find the costs of all covers again."""
        self._best = self.before(self.least)
        self.moved.update(range(1, len(self._best)))
        self._due.clear()
        self._last.clear()
        self._stale.clear()

    def _solve_from(self, first: int) -> int:
        """Solve again from a position on, and return the first position that is left out: once as many positions as the
        longest stretch has cost more by the same amount, so do all behind them, unless a stretch that ends there has
        changed."""
        best, due, stale = self._best, self._due, self._stale
        self._settle(first - self._reach + 1, first - 1)
        affected: set[int] = set()
        added = 0
        alike, same = self._reach, 0.0
        for stop in range(first, len(best)):
            added += due.pop(stop, 0)
            before = now = best[stop] + added
            if stop in stale or stop in affected:
                now = min(self.ending[stop].totals(best, self.least), default=math.inf)
                self._last.pop(stop, None)
                self.moved.add(stop)
            elif added:
                self.moved.add(stop)
            best[stop] = now
            if now != before:
                more = now - before
                affected.update(self.starting[stop].others)
            else:
                more = same if now == math.inf else 0  # where there is no cover, any amount will do
            alike = alike + 1 if more == same else 1
            same = more
            if alike >= self._reach and math.isfinite(same):
                self._add_due(stop + 1, added + int(same))
                return stop + 1
        return len(best)

    def _settle(self, first: int, last: int) -> None:
        """Add what is due at some positions to the costs there; it stays due behind them."""
        if not self._due:
            return
        added = 0
        for position in range(max(first, 1), last + 1):
            added += self._due.pop(position, 0)
            if added:
                self._best[position] += added
                self.moved.add(position)
        self._add_due(last + 1, added)

    def _add_due(self, position: int, added: int) -> None:
        """Note that the costs of all positions from one on are higher."""
        if added and position < len(self._best):
            self._due[position] = self._due.get(position, 0) + added

    def _back(
        self,
        least: Sequence[float],
        rank: Callable[[int], int] | None,
        best: Sequence[float],
        last: dict[int, _Step],
        settle: Callable[[int, int], None] | None = None,
    ) -> list[tuple[int, int]]:
        """The stretches of the cheapest cover, each with its shift, in order; none if there is no cover.

        `last` has the last steps that are known; others are added, for which costs are settled first.
        """
        found = []
        stop = len(best) - 1 if math.isfinite(best[-1]) else 0
        while stop:
            if stop not in last:
                if settle is not None:
                    settle(stop - self._reach + 1, stop)
                last[stop] = self._last_step(stop, least, rank, best)
            stop, step = last[stop]
            found.append(step)
        return found[::-1]

    def _last_step(
        self, stop: int, least: Sequence[float], rank: Callable[[int], int] | None, best: Sequence[float]
    ) -> _Step:
        """The last step of the cheapest cover up to a position."""
        ending, totals = self.ending[stop], list(self.ending[stop].totals(best, least))
        at = totals.index(best[stop])  # the lowest number, in the order of which they were added
        if rank is not None and totals.count(best[stop]) > 1:
            ties = [index for index, total in enumerate(totals[:-1]) if total == best[stop]]
            at = min(ties, key=lambda index: rank(ending.numbers[index]))
        start, number = ending.others[at], ending.numbers[at]
        return start, (number, start - self._spans[number][0])
