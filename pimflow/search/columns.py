"""The columns of the program for throughput: candidates with their loads, and those that it may take shares of.

A linear program that minimises loads never gains from a column whose loads are no lower than those of a mixture of
others for the same stretch: it takes the mixture. So of columns that load the same two resources it needs those on the
lower left convex hull of their loads: a few dozen of the hundreds of ways to split a convolution over a large image.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

from pimflow.ir import Decision
from pimflow.records import NamedTuple

Loads = Mapping[str, float]
"""How long each resource is busy, in us."""

_Group = tuple[int, int, tuple[str, ...]]
"""A stretch, and the resources that are loaded."""


@dataclass(slots=True, eq=False)
class Column:
    """A candidate with its loads: lower bounds until it is `priced`."""

    start: int
    stop: int
    decisions: tuple[Decision, ...]
    loads: Loads
    priced: bool = False


class _Point(NamedTuple):
    """The loads of a column on two resources; what follows orders columns with the same loads, each differently."""

    x: float
    y: float
    place: int
    column: Column


class Columns:
    """Columns in the order in which they were added."""

    def __init__(self) -> None:
        self._places: dict[Column, int] = {}
        self._added = 0
        self._groups: dict[_Group, list[_Point]] = {}
        """By group, its columns by their loads."""
        self._hulls: dict[_Group, list[_Point]] = {}

    def __iter__(self) -> Iterator[Column]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def add(self, columns: Iterable[Column]) -> None:
        """Adds columns behind all others."""
        for column in columns:
            self._places[column] = self._added
            self._added += 1
            self._insert(column)

    def price(self, column: Column, loads: Loads | None) -> None:
        """Replaces the bounds of a column by its loads; None if it cannot be carried out, and is dropped."""
        group, point = self._point(column)
        points = self._groups[group]
        del points[bisect_left(points, point)]
        self._hulls.pop(group, None)
        if loads is None:
            del self._places[column]
            return
        column.loads, column.priced = loads, True
        self._insert(column)

    def on_hulls(self) -> list[Column]:
        """The columns that a linear program over all of them may take shares of, without a limit on anything else."""
        for group in self._groups.keys() - self._hulls.keys():
            points = self._groups[group]
            self._hulls[group] = points if len(group[2]) > 2 else lower_left_hull(points)
        found = [point for hull in self._hulls.values() for point in hull]
        return [point.column for point in sorted(found, key=attrgetter("place"))]

    def _insert(self, column: Column) -> None:
        group, point = self._point(column)
        insort(self._groups.setdefault(group, []), point)
        self._hulls.pop(group, None)

    def _point(self, column: Column) -> tuple[_Group, _Point]:
        resources = tuple(sorted(column.loads))
        x, y, *_ = (*(column.loads[name] for name in resources), 0.0, 0.0)
        return (column.start, column.stop, resources), _Point(x, y, self._places[column], column)


P = TypeVar("P", bound="tuple[float, float] | _Point")


def lower_left_hull(points: Sequence[P]) -> list[P]:
    """The corners of the convex hull of some points between the lowest of the leftmost ones and the leftmost of the
    lowest ones: no other point has coordinates below every mixture of these.

    Andrew's monotone chain (Information Processing Letters 9, 1979); of equal points, the first.

    Args:
        points: from left to right, and from low to high; x and y come first.

    Returns:
        From left to right.
    """
    hull: list[P] = []
    for point in points:
        x, y = point[0], point[1]
        if hull and y >= hull[-1][1]:
            continue
        while len(hull) > 1:
            x0, y0 = hull[-2][0], hull[-2][1]
            if (hull[-1][0] - x0) * (y - y0) - (hull[-1][1] - y0) * (x - x0) > 0:
                break
            hull.pop()
        hull.append(point)
    return hull
