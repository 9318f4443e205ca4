"""The columns of the program for throughput: candidates with their loads, and those that it may take shares of.

A linear program that minimises loads never gains from a column whose loads are no lower than those of a mixture of
others for the same stretch: it takes the mixture. So of columns that load the same two resources it needs those on the
lower left convex hull of their loads: a few dozen of the hundreds of ways to split a convolution over a large image.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pimflow.ir import Decision

Loads = Mapping[str, float]
"""How long each resource is busy, in us."""

_Group = tuple[int, int, tuple[str, ...]]


@dataclass(slots=True, eq=False)
class Column:
    """A candidate with its loads: lower bounds until it is `priced`."""

    start: int
    stop: int
    decisions: tuple[Decision, ...]
    loads: Loads
    priced: bool = False


class Columns:
    """Columns in the order in which they were added."""

    def __init__(self) -> None:
        self._order: dict[Column, int] = {}
        self._added = 0
        self._groups: dict[_Group, list[Column]] = {}
        self._hulls: dict[_Group, list[Column]] = {}

    def __iter__(self) -> Iterator[Column]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def add(self, columns: Iterable[Column]) -> None:
        """Adds columns behind all others."""
        for column in columns:
            self._order[column] = self._added
            self._added += 1
            self._insert(column)

    def price(self, column: Column, loads: Loads | None) -> None:
        """Replaces the bounds of a column by its loads; None if it cannot be carried out, and is dropped."""
        group = _group(column)
        self._groups[group].remove(column)
        self._hulls.pop(group, None)
        if loads is None:
            del self._order[column]
            return
        column.loads, column.priced = loads, True
        self._insert(column)

    def on_hulls(self) -> list[Column]:
        """The columns that a linear program over all of them may take shares of, without a limit on anything else."""
        for group in self._groups.keys() - self._hulls.keys():
            self._hulls[group] = _on_hull(self._groups[group], group[2])
        found = [column for hull in self._hulls.values() for column in hull]
        return sorted(found, key=self._order.__getitem__)

    def _insert(self, column: Column) -> None:
        group = _group(column)
        self._groups.setdefault(group, []).append(column)
        self._hulls.pop(group, None)


def _group(column: Column) -> _Group:
    return column.start, column.stop, tuple(sorted(column.loads))


def _on_hull(columns: Sequence[Column], resources: tuple[str, ...]) -> list[Column]:
    """The columns on the hull of their loads on two resources; all, if there are more resources."""
    if len(resources) > 2:
        return list(columns)
    one, other = (*resources, "", "")[:2]
    points = [(column.loads.get(one, 0.0), column.loads.get(other, 0.0)) for column in columns]
    return [columns[at] for at in lower_left_hull(points)]


def lower_left_hull(points: Sequence[tuple[float, float]]) -> list[int]:
    """The indices of the corners of the convex hull of some points between the lowest of the leftmost ones and the
    leftmost of the lowest ones, from left to right: no other point has coordinates below every mixture of these.

    Andrew's monotone chain (Information Processing Letters 9, 1979); of equal points, the first.
    """
    hull: list[int] = []
    for at in sorted(range(len(points)), key=lambda at: (*points[at], at)):
        x, y = points[at]
        if hull and y >= points[hull[-1]][1]:
            continue
        while len(hull) > 1:
            (x0, y0), (x1, y1) = points[hull[-2]], points[hull[-1]]
            if (x1 - x0) * (y - y0) - (y1 - y0) * (x - x0) > 0:
                break
            hull.pop()
        hull.append(at)
    return hull
