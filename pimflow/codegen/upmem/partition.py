"""Divides rows and edges among the cores of a cluster, and among the tasklets of every core.

Cuts are placed where PyGim's published code (`partition.c`) places them. That code goes row by row; here, binary search
in the row pointers finds the cuts of all cores at once. There is one difference: if the published code runs out of
parts before the rows end, it loses the remaining rows in a few cases; here the last part gets them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pimflow.codegen.upmem.strategy import CoreBalance, Strategy, TaskletBalance
from pimflow.records import dataclass
from pimflow.targets.schema.upmem import ELEMENT_BYTES

Longs = npt.NDArray[np.int64]

_ALIGNMENT = 8  # bytes: rows that different tasklets write must not share a word of this size


@dataclass(frozen=True, eq=False)
class Cores:
    """The work of every core of a cluster: rows [first_row, end_row) and non-zeros [first, end), int64 [cores] each.

    If rows straddle cores, the last row of one core is the first row of the next.
    """

    first_row: Longs
    end_row: Longs
    first: Longs
    end: Longs

    @property
    def rows(self) -> Longs:
        """Rows of every core."""
        return self.end_row - self.first_row

    @property
    def nonzeros(self) -> Longs:
        """Non-zeros of every core."""
        return self.end - self.first

    def only(self, cores: Longs) -> Cores:
        """The work of the given cores."""
        return Cores(self.first_row[cores], self.end_row[cores], self.first[cores], self.end[cores])


@dataclass(frozen=True, eq=False)
class Tasklets:
    """The work of every tasklet of every core, int64 [cores, tasklets] each.

    Args:
        first, end: its non-zeros.
        rows: the number of rows that it writes: in CSR all its rows, in COO those with non-zeros.
        head: the number of its non-zeros in its first non-empty row, which it may share with other tasklets.
    """

    first: Longs
    end: Longs
    rows: Longs
    head: Longs

    @property
    def nonzeros(self) -> Longs:
        """Non-zeros of every tasklet."""
        return self.end - self.first


def cores_of(rowptr: Longs, cores: int, balance: CoreBalance) -> Cores:
    """The work of every core of a cluster.

    Args:
        rowptr: int64 [rows + 1], row pointers of the cluster's edge part.
        cores: the number of cores.
        balance: the quantity that is divided equally.
    """
    if balance == "nnz-exact":
        return _exact(rowptr, cores)
    rows = len(rowptr) - 1
    cuts = even_cuts(rows, cores) if balance == "row" else _greedy_cuts(rowptr, cores)
    return Cores(cuts[:-1], cuts[1:], rowptr[cuts[:-1]], rowptr[cuts[1:]])


def even_cuts(total: int, parts: int) -> Longs:
    """Cuts [parts + 1] into parts of equal size; the first parts have one more if needed."""
    each, more = divmod(total, parts)
    place = np.arange(parts + 1, dtype=np.int64)
    return place * each + np.minimum(place, more)


def _greedy_cuts(rowptr: Longs, parts: int) -> Longs:
    """Cuts after the row that completes a part's share of the non-zeros, counted from the previous cut.

    The last part gets the rest.
    """
    rows = len(rowptr) - 1
    share = int(rowptr[-1] - rowptr[0]) // parts
    cuts = np.full(parts + 1, rows, dtype=np.int64)
    cut = cuts[0] = 0
    for part in range(1, parts):
        cut = max(int(np.searchsorted(rowptr, rowptr[cut] + share)), cut + 1)
        if cut >= rows:
            break
        cuts[part] = cut
    return cuts


def _exact(rowptr: Longs, parts: int) -> Cores:
    """Equal numbers of non-zeros per core, regardless of row boundaries."""
    cuts = even_cuts(int(rowptr[-1]), parts)
    first, end = cuts[:-1], cuts[1:]
    end_row = np.maximum.accumulate(np.searchsorted(rowptr, end))
    inside = rowptr[end_row] > end
    first_row = np.concatenate([[0], (end_row - inside)[:-1]])
    end_row[-1] = len(rowptr) - 1
    return Cores(first_row, np.maximum(end_row, first_row), first, end)


def tasklets_of(
    rowptr: Longs, filled: Longs, cores: Cores, tasklets: int, strategy: Strategy, element: str
) -> Tasklets:
    """The work of every tasklet of every core.

    Args:
        rowptr: int64 [rows + 1] of the edge part.
        filled: int64 [rows + 1], the number of rows before each one that have non-zeros (`filled_before`).
        cores: the work of the cores.
        tasklets: how many a core runs.
        strategy: how the work is divided, and in which format.
        element: the element type of the result rows; its size determines between which rows cuts are possible.
    """
    if strategy.format == "csr":
        together = max(1, _ALIGNMENT // ELEMENT_BYTES[element])
        cuts = _row_cuts(rowptr, cores, tasklets, strategy.tasklets, together)
        places = rowptr[cuts]
        return _tasklets(rowptr, places, np.diff(cuts, axis=1))
    if strategy.tasklets == "nnz-exact":
        places = cores.first[:, None] + even_shares(cores.nonzeros, tasklets)
    else:
        places = _whole_rows(rowptr, cores, tasklets)
    first, end = places[:, :-1], places[:, 1:]
    first_row, last_row = _row_at(rowptr, first), _row_at(rowptr, end - 1)
    rows = np.where(end > first, filled[last_row + 1] - filled[first_row], 0)
    return _tasklets(rowptr, places, rows)


def filled_before(rowptr: Longs) -> Longs:
    """The number of rows before each one that have non-zeros, int64 [rows + 1]."""
    filled = np.zeros(len(rowptr), dtype=np.int64)
    np.cumsum(np.diff(rowptr) > 0, out=filled[1:])
    return filled


def _tasklets(rowptr: Longs, places: Longs, rows: Longs) -> Tasklets:
    first, end = places[:, :-1], places[:, 1:]
    row_end = rowptr[np.minimum(_row_at(rowptr, first) + 1, len(rowptr) - 1)]
    head = np.where(end > first, np.minimum(row_end, end) - first, 0)
    return Tasklets(first, end, rows, head)


def _row_at(rowptr: Longs, places: Longs) -> Longs:
    """The row that contains the non-zero at each place; any row for places without one."""
    rows = np.searchsorted(rowptr, places, side="right") - 1
    return np.clip(rows, 0, max(len(rowptr) - 2, 0))


def _row_cuts(rowptr: Longs, cores: Cores, parts: int, balance: TaskletBalance, together: int) -> Longs:
    """Rows at which the tasklets' parts begin, and the end of the last one: int64 [cores, parts + 1]."""
    if balance == "row":
        return cores.first_row[:, None] + _row_shares(cores.rows, parts, together)
    share = cores.nonzeros // parts
    cuts = np.repeat(cores.end_row[:, None], parts + 1, axis=1)
    cut = cuts[:, 0] = cores.first_row
    for part in range(1, parts):
        reached = np.maximum(np.searchsorted(rowptr, rowptr[cut] + share), cut + 1)
        cut = cores.first_row + -(-(reached - cores.first_row) // together) * together
        cut = np.minimum(cut, cores.end_row)
        cuts[:, part] = cut
    return cuts


def _row_shares(rows: Longs, parts: int, together: int) -> Longs:
    """Cuts of `rows` rows into groups that stay together, relative to the first: int64 [cores, parts + 1].

    The first parts get one more group each. The number of leftover rows, not groups, decides, as in the published code.
    """
    groups, left = np.divmod(rows, together * parts)
    part = np.arange(parts + 1)
    cuts = together * (groups[:, None] * part + np.minimum(part, left[:, None]))
    return np.minimum(cuts, rows[:, None])


def even_shares(totals: Longs, parts: int) -> Longs:
    """Cuts of every total into equal parts, the first ones larger by one if needed: int64 [cores, parts + 1]."""
    each, more = np.divmod(totals, parts)
    part = np.arange(parts + 1)
    return each[:, None] * part + np.minimum(part, more[:, None])


def _whole_rows(rowptr: Longs, cores: Cores, parts: int) -> Longs:
    """Places among the non-zeros that divide them greedily at row boundaries: int64 [cores, parts + 1].

    If a row straddles two cores, each core treats its share as a whole row.
    """
    share = cores.nonzeros // parts
    places = np.repeat(cores.end[:, None], parts + 1, axis=1)
    place = places[:, 0] = cores.first
    row = cores.first_row
    last = np.maximum(cores.end_row - 1, cores.first_row)
    for part in range(1, parts):
        reached = np.maximum(np.searchsorted(rowptr, place + share), row + 1)
        over = reached > last  # the last row is never cut off
        row = np.where(over, last, reached)
        place = np.where(over, cores.end, rowptr[np.minimum(row, len(rowptr) - 1)])
        places[:, part] = place
    return places
