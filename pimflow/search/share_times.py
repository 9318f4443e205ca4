"""Lower bounds on the times of shares of a node's rows, in one part or in several.

A kernel for a few rows often takes as long as one for many, so every part of a divided node counts. The largest part of
a share takes at least what any share of that size takes; the others take at least one row, and no less than the best
rate of parts that are no larger. Wherever the host's share ends, the unit's is the rest.

Counts are grouped into cells, each with the bound of the lowest count in it, so that large nodes cost no more to bound
than small ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property, lru_cache, reduce
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from pimflow.records import NamedTuple

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.intp]

_CELLS = 64
"""The maximum number of cells that are not empty."""


class ShareTimes(NamedTuple):
    """Minimum times of shares of a node's rows, or of its columns, on a device.

    Args:
        least_us: pairs of a count and a time: no share of that many or more takes less. The counts ascend from 1 to the
            whole node.
        each_us: no share takes less than this per row or column.
    """

    least_us: tuple[tuple[int, float], ...]
    each_us: float

    @property
    def size(self) -> int:
        """The count of the whole node, at least 1."""
        return self.least_us[-1][0]

    @property
    def counts(self) -> list[int]:
        """The counts, ascending."""
        return [count for count, _ in self.least_us]

    @property
    def falling_us(self) -> list[float]:
        """By count, the time of that many or more, should a kernel for more be faster."""
        return list(accumulate([us for _, us in reversed(self.least_us)], min))[::-1]

    def at_most(self, us: float) -> ShareTimes:
        """The same where shares of any size may take only `us`."""
        least_us = tuple([(count, min(own, us)) for count, own in self.least_us])
        return ShareTimes(least_us, min(self.each_us, us / self.size))


UNKNOWN = ShareTimes(((1, 0.0),), 0.0)
"""The times of shares of which nothing is known."""


class OnePart:
    """Minimum times of shares in one part, by their exact count."""

    def __init__(self, times: ShareTimes) -> None:
        self._counts, self._falling_us = times.counts, times.falling_us
        self._each_us = times.each_us

    def least_us(self, count: int) -> float:
        """The time of a share that is not empty."""
        return max(self._falling_us[bisect_right(self._counts, count) - 1], count * self._each_us)


class Cells(NamedTuple):
    """The counts from 0 to the size of a node: a cell for 0, then cells of a few successive counts.

    Args:
        first, last: the lowest and the highest count of each cell.
        others: by cell that a share of the node may be in, but not nothing and not all of it: the cell of what that
            leaves to others, at least.
        rest, rest_cells: by cell of a share, and by cell of its largest part, the count of its other parts, at least,
            and the cell of the highest count that each of them may have.
        excluded: whether there is no such share with other parts.
    """

    first: Counts
    last: Counts
    others: Counts
    rest: Counts
    rest_cells: Counts
    excluded: npt.NDArray[np.bool_]


@lru_cache(maxsize=256)
def cells_of(size: int) -> Cells:
    """The cells for a size."""
    last = np.minimum(np.arange(_CELLS + 1) * -(-size // _CELLS), size)
    last = last[: int(last.searchsorted(size)) + 1]
    first = np.concatenate(([0], last[:-1] + 1))
    shares = slice(1, int(first.searchsorted(size)))
    others = np.searchsorted(last, np.maximum(size - last[shares], 1))
    rest = np.maximum(first[:, None] - last, 1)
    rest_cells = np.searchsorted(last, np.maximum(last[:, None] - first, 1))
    excluded = (first == 0) | (first >= last[:, None])
    return Cells(first, last, others, rest, np.minimum(rest_cells, np.arange(len(last))), excluded)


class PartTimes:
    """Minimum times of shares in parts that a device, or one of several, computes one after the other.

    Attributes:
        cells: the cells of their counts.
        single_us: by cell, the time in one part.
        whole_us: the time of the whole node in one part.
    """

    def __init__(self, cells: Cells, single_us: Array, whole_us: float, each_us: float) -> None:
        self.cells = cells
        self.single_us = single_us
        self.whole_us = whole_us
        self._each_us = each_us

    @classmethod
    def of(cls, times: ShareTimes) -> PartTimes:
        """The times of one device."""
        cells = cells_of(times.size)
        steps_us = np.array([0.0, *times.falling_us])[np.searchsorted(times.counts, cells.first, side="right")]
        whole_us = times.least_us[-1][1]
        return cls(cells, np.maximum(steps_us, cells.first * times.each_us), whole_us, times.each_us)

    @classmethod
    def of_any(cls, some: Sequence[PartTimes]) -> PartTimes:
        """The times if each part is on the fastest of some devices."""
        if len(some) == 1:
            return some[0]
        whole_us, each_us = min(own.whole_us for own in some), min(own._each_us for own in some)
        return cls(some[0].cells, reduce(np.minimum, [own.single_us for own in some]), whole_us, each_us)

    @cached_property
    def divided_us(self) -> Array:
        """By cell, the total time in two parts or more; infinite where there are fewer than two rows.

        For each cell of the largest part, that takes its time, and the others theirs at the best rate of their sizes.
        """
        cells, us = self.cells, self.single_us
        rates = np.maximum(np.minimum.accumulate(us[1:] / cells.last[1:]), self._each_us)
        others = np.maximum(us[1], np.concatenate((rates[:1], rates))[cells.rest_cells] * cells.rest)
        found: Array = np.where(cells.excluded, np.inf, us + others).min(axis=1)
        return found

    @cached_property
    def parts_us(self) -> Array:
        """By cell, the total time in one part or more."""
        return np.minimum(self.single_us, self.divided_us)

    @property
    def least_us(self) -> float:
        """The time of the smallest part, one row."""
        return float(self.single_us[1])

    @property
    def all_us(self) -> float:
        """The total time of the whole node in one part or more."""
        return min(self.whole_us, float(self.divided_us[-1]))


class DividedTimes(NamedTuple):
    """Minimum times of a node that is divided by rows, on the host and on units."""

    host: PartTimes
    units: tuple[PartTimes, ...]

    @property
    def alone_us(self) -> float:
        """The time of the node alone: on the host, on one of the units, or on both at once."""
        both = [float(np.maximum(*self.shared_us(unit)).min(initial=np.inf)) for unit in self.units]
        return min([self.host.all_us, *(unit.all_us for unit in self.units), *both])

    def shared_us(self, unit: PartTimes) -> tuple[Array, Array]:
        """By cell of the host's share, the times of that and of the rest on a unit; empty if there is nothing to
        share."""
        others = self.host.cells.others
        return self.host.parts_us[1 : len(others) + 1], unit.parts_us[others]
