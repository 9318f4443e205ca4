"""Joined decisions of which variations are listed: hundreds of thousands of them, and most are never put together.

What is listed of a variation is what it replaces, and by which decisions. Decisions have numbers, so that variations
are compared without putting them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pimflow.ir import Decision, Parallel
from pimflow.ir.plan import Single
from pimflow.records import NamedTuple

_END = -1
"""The number that stands for the end of a branch."""


class Numbers(dict[Single, int]):
    """A number for every decision, given when it is first asked for."""

    def __missing__(self, decision: Single) -> int:
        number = self[decision] = len(self)
        return number


class Way:
    """Decisions about one unit, with their numbers. The same object stands for them wherever they are a variation."""

    __slots__ = ("items", "numbers")

    def __init__(self, items: tuple[Single, ...], numbers: Numbers) -> None:
        self.items = items
        self.numbers = tuple([numbers[item] for item in items])


class UnitWays(NamedTuple):
    """The ways to decide one unit differently.

    Args:
        others: all that are one step away.
        away: whole on another device, if it is not.
        home: whole on the host, if it is not and can leave.
        moves: whole on any device that it is not on, for each that it can leave the host for.
    """

    others: Sequence[Way]
    away: Way | None
    home: Way | None
    moves: Sequence[Way]


Changes = Sequence[tuple[int, int, Way]]
"""Ways that replace the items first .. last-1 of joined decisions, in their order: first, last, way."""


class Joined:
    """Joined decisions of which variations are listed.

    Attributes:
        parallel: the decisions.
        items: those of all branches, with a None behind each branch.
        numbers: their numbers.
        starts: where the branches start among the items.
    """

    def __init__(self, parallel: Parallel, numbers: Numbers) -> None:
        self.parallel = parallel
        self.items: list[Single | None] = []
        self.starts: list[int] = []
        for branch in parallel.branches:
            self.starts.append(len(self.items))
            self.items += [*branch, None]
        self.numbers = tuple([_END if item is None else numbers[item] for item in self.items])

    def numbers_with(self, changes: Changes) -> tuple[int, ...]:
        """The numbers of a variation: only the same decisions have the same ones."""
        found = self.numbers
        for first, last, way in reversed(changes):  # later items would shift otherwise
            found = found[:first] + way.numbers + found[last:]
        return found

    def with_ways(self, changes: Changes) -> Parallel:
        """The variation put together."""
        items = self.items.copy()
        for first, last, way in reversed(changes):
            items[first:last] = way.items
        branches: list[list[Single]] = [[]]
        for item in items:
            if item is None:
                branches.append([])
            else:
                branches[-1].append(item)
        return Parallel(tuple(map(tuple, branches[:-1])))


class Variation(Protocol):
    """A variation of joined decisions, which is put together when its `decisions` are first asked for."""

    @property
    def joined(self) -> Joined:
        """What it varies."""

    @property
    def changes(self) -> Changes:
        """What it replaces."""

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The variation put together."""
