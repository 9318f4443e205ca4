"""Edges by pairs of a destination and a group of consecutive sources: counts, and the split into dense and others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from weakref import ref

import numpy as np
import numpy.typing as npt

from pimflow.records import dataclass
from pimflow.sparse.checks import Longs
from pimflow.sparse.statistics import PIECE_EDGES

MAX_CACHED_COUNTS = 64
"""The maximum number of cached counts: a program has few graphs."""
MAX_CACHED_SPLITS = 4
"""The maximum number of cached splits: each is as large as its graph."""

T = TypeVar("T")
Ids = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class GroupCounts:
    """Counts of pairs of a destination and a group of sources with an edge between them.

    Args:
        pairs: element i is the number of pairs with i edges.
        runs: number of runs of pairs with one destination and consecutive groups in one block.
        units: number of pairs of a destination and a block of groups with an edge between them.
    """

    pairs: Longs
    runs: int
    units: int

    @property
    def edges(self) -> int:
        """The number of edges of all pairs."""
        return int(self.pairs @ np.arange(len(self.pairs)))

    @property
    def edges_per_group(self) -> float:
        """The mean number of edges of pairs that have any (k)."""
        groups = int(self.pairs.sum())
        return self.edges / groups if groups else 0.0


@dataclass(frozen=True, eq=False)
class Part:
    """A subset of a graph's edges, in compressed rows.

    Args:
        rowptr: [destinations + 1].
        col: [edges].
        positions: positions of these edges in the whole graph.
    """

    rowptr: Ids
    col: Ids
    positions: Longs


_Key = tuple[int, ...]
_counts: OrderedDict[_Key, tuple[ref[Ids], ref[Ids], GroupCounts]] = OrderedDict()
_parts: OrderedDict[_Key, tuple[ref[Ids], ref[Ids], tuple[Part, Part]]] = OrderedDict()


def group_counts(rowptr: Ids, col: Ids, size: int, block: int) -> GroupCounts:
    """The counts for edges in compressed rows and groups of `size` sources; linear in the edges once, then cached.

    Args:
        rowptr: [destinations + 1].
        col: [edges], in any order within rows. Neither array may be modified afterwards.
        size: number of consecutive sources of a group, which starts at a multiple of it.
        block: number of consecutive groups of a block, likewise.
    """
    return _cached(_counts, MAX_CACHED_COUNTS, rowptr, col, (size, block), lambda: _counted(rowptr, col, size, block))


def split_dense(rowptr: Ids, col: Ids, size: int, at_least: int) -> tuple[Part, Part]:
    """The edges of pairs of a destination and a group with at least `at_least` edges, and all other edges.

    Linear in the edges, except for the sorting of unsorted rows. The same arrays are returned as long as they are
    cached.

    Args:
        rowptr, col, size: as for `group_counts`.
        at_least: minimum number of edges of a dense pair.
    """
    return _cached(
        _parts, MAX_CACHED_SPLITS, rowptr, col, (size, at_least), lambda: _split_dense(rowptr, col, size, at_least)
    )


def _cached(
    known: OrderedDict[_Key, tuple[ref[Ids], ref[Ids], T]],
    most: int,
    rowptr: Ids,
    col: Ids,
    options: tuple[int, ...],
    make: Callable[[], T],
) -> T:
    """The cached result for these arrays, or a new one from `make`."""
    key = (id(rowptr), id(col), *options)
    entry = known.get(key)
    if entry is not None and entry[0]() is rowptr and entry[1]() is col:
        known.move_to_end(key)
        return entry[2]
    made = make()
    known[key] = ref(rowptr), ref(col, lambda _: known.pop(key, None)), made
    if len(known) > most:
        known.popitem(last=False)
    return made


def _counted(rowptr: Ids, col: Ids, size: int, block: int) -> GroupCounts:
    total, runs, units = np.zeros(1, np.int64), 0, 0
    for first, last in _pieces(rowptr):
        pointers, sources = _piece(rowptr, col, first, last)
        keys, sizes, groups = _pairs(pointers, sources, size)
        counted = np.bincount(sizes, minlength=1).astype(np.int64)
        longer, shorter = (total, counted) if len(total) >= len(counted) else (counted, total)
        longer[: len(shorter)] += shorter
        total = longer
        group = keys % groups
        new_unit = np.diff(keys // groups * (groups // block + 1) + group // block, prepend=-1) != 0
        units += int(np.count_nonzero(new_unit))
        runs += int(np.count_nonzero(new_unit | (np.diff(keys, prepend=-2) != 1)))
    return GroupCounts(total, runs, units)


def _split_dense(rowptr: Ids, col: Ids, size: int, at_least: int) -> tuple[Part, Part]:
    is_dense = np.empty(len(col), bool)
    for first, last in _pieces(rowptr):
        pointers, sources = _piece(rowptr, col, first, last)
        keys, sizes, groups = _pairs(pointers, sources, size)
        own = _keys(pointers, sources, size, groups)
        in_order = not (own[1:] < own[:-1]).any()
        of_edge = np.repeat(sizes, sizes) if in_order else sizes[np.searchsorted(keys, own)]
        is_dense[int(rowptr[first]) : int(rowptr[last])] = of_edge >= at_least
    return _part(rowptr, col, is_dense), _part(rowptr, col, ~is_dense)


def _part(rowptr: Ids, col: Ids, chosen: npt.NDArray[np.bool_]) -> Part:
    positions = np.flatnonzero(chosen)
    return Part(np.searchsorted(positions, rowptr).astype(rowptr.dtype), col[positions], positions)


def _pieces(rowptr: Ids) -> Iterator[tuple[int, int]]:
    """Ranges of rows with a bounded number of edges; a row with more is a range of its own."""
    first, rows = 0, len(rowptr) - 1
    while first < rows:
        last = int(np.searchsorted(rowptr, int(rowptr[first]) + PIECE_EDGES, side="right")) - 1
        last = min(max(last, first + 1), rows)
        yield first, last
        first = last


def _piece(rowptr: Ids, col: Ids, first: int, last: int) -> tuple[Longs, Ids]:
    """The row pointers and the edge sources of a range of rows."""
    return np.asarray(rowptr[first : last + 1], np.int64), col[int(rowptr[first]) : int(rowptr[last])]


def _pairs(pointers: Longs, col: Ids, size: int) -> tuple[Longs, Longs, int]:
    """Pairs of a row and a group, as row * groups + group in ascending order; the edges of each; the group count."""
    groups = int(col.max(initial=0)) // size + 1
    keys = _keys(pointers, col, size, groups)
    if (keys[1:] < keys[:-1]).any():
        keys.sort()
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[starts], np.diff(np.append(starts, len(keys))), groups


def _keys(pointers: Longs, col: Ids, size: int, groups: int) -> Longs:
    """The pair of every edge, encoded as in `_pairs`."""
    row = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))
    return row * groups + np.asarray(col, np.int64) // size
