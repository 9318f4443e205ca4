"""How many edges the pairs of a destination and a group of consecutive sources have: one pass over the edges, kept."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from weakref import ref

import numpy as np

from pimflow.sparse.checks import Ids, Longs
from pimflow.sparse.statistics import PIECE_EDGES

MOST_KEPT = 64
"""Counts that are remembered: a program has few graphs."""


@dataclass(frozen=True, eq=False)
class GroupCounts:
    """Pairs of a destination and a group of sources with an edge between them.

    Args:
        pairs: how many have i edges, by i.
    """

    pairs: Longs

    @property
    def edges(self) -> int:
        """Of all pairs."""
        return int(self.pairs @ np.arange(len(self.pairs)))

    @property
    def edges_per_group(self) -> float:
        """On average over pairs that have any (k)."""
        groups = int(self.pairs.sum())
        return self.edges / groups if groups else 0.0


_kept: OrderedDict[tuple[int, int, int], tuple[ref[Ids], ref[Ids], GroupCounts]] = OrderedDict()


def group_counts(rowptr: Ids, col: Ids, size: int) -> GroupCounts:
    """The counts of edges in compressed rows, for groups of `size` sources; linear in the edges once, then free.

    Args:
        rowptr: [destinations + 1].
        col: [edges]; in any order within rows. Neither is to be changed from now on.
        size: consecutive sources of a group, from a multiple of it on.
    """
    key = (id(rowptr), id(col), size)
    known = _kept.get(key)
    if known is not None and known[0]() is rowptr and known[1]() is col:
        return known[2]
    found = GroupCounts(_counted(rowptr, col, size))
    _kept[key] = ref(rowptr), ref(col), found
    if len(_kept) > MOST_KEPT:
        _kept.popitem(last=False)
    return found


def _counted(rowptr: Ids, col: Ids, size: int) -> Longs:
    total = np.zeros(1, np.int64)
    first, rows = 0, len(rowptr) - 1
    while first < rows:
        begin = int(rowptr[first])
        last = int(np.searchsorted(rowptr, begin + PIECE_EDGES, side="right")) - 1
        last = min(max(last, first + 1), rows)
        counted = _of_piece(np.asarray(rowptr[first : last + 1], np.int64), col[begin : int(rowptr[last])], size)
        longer, shorter = (total, counted) if len(total) >= len(counted) else (counted, total)
        longer[: len(shorter)] += shorter
        total, first = longer, last
    return total


def _of_piece(pointers: Longs, col: Ids, size: int) -> Longs:
    """The same of some rows; sorted, equal pairs stand together."""
    groups = np.asarray(col, np.int64) // size
    row = np.repeat(np.arange(len(pointers) - 1), pointers[1:] - pointers[:-1])
    keys = row * (int(groups.max(initial=0)) + 1) + groups
    if (keys[1:] < keys[:-1]).any():
        keys.sort()
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return np.bincount(np.diff(np.append(starts, len(keys))), minlength=1).astype(np.int64)
