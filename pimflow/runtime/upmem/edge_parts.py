"""The edges of a graph divided into equal ranges of sources, for several numbers of parts at the same time."""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.codegen.upmem.partition import Longs, filled_before
from pimflow.records import NamedTuple
from pimflow.sparse import Graph, source_histogram

_CACHED_PARTS = 8  # parts whose rows are cached: successive strategies use the same ones


class _Histogram(NamedTuple):
    """Edges into each destination from ranges of sources, int32 [ranges, destinations], and the ranges' starts."""

    starts: Longs
    edges: npt.NDArray[np.integer[Any]]


class EdgeParts:
    """Row pointers of each part. The edges of all parts of a division are counted on first use.

    Part p of s has the edges from sources p ceil(N/s) to (p + 1) ceil(N/s) - 1, as in PyGim (`col_split`).
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._counted: dict[int, _Histogram] = {}
        self._nonzeros: dict[int, Longs] = {}
        self._guesses: dict[int, tuple[Longs, Longs]] = {}
        self._rows: OrderedDict[tuple[int, int], tuple[Longs, Longs]] = OrderedDict()

    def width(self, count: int) -> int:
        """Sources per part; the last parts may have fewer."""
        return -(-self.graph.num_src // count)

    def sources(self, count: int, part: int) -> int:
        """Sources of one part."""
        width = self.width(count)
        return max(0, min(width, self.graph.num_src - part * width))

    def nonzeros(self, count: int) -> Longs:
        """Edges of each part, int64 [count]."""
        if count == 1:
            return np.array([self.graph.num_edges])
        if count not in self._nonzeros:
            found = [self._of(count, part).sum(dtype=np.int64) for part in range(count)]
            self._nonzeros[count] = np.array(found)
        return self._nonzeros[count]

    def rows(self, count: int, part: int) -> tuple[Longs, Longs]:
        """Row pointers of a part, and the number of non-empty rows before each row: int64 [destinations + 1] each."""
        if (count, part) not in self._rows:
            rowptr = self.graph.rowptr if count == 1 else self._pointers(count, part)
            self._rows[count, part] = rowptr, filled_before(rowptr)
            if len(self._rows) > _CACHED_PARTS:
                self._rows.popitem(last=False)
        self._rows.move_to_end((count, part))
        return self._rows[count, part]

    def counted(self, count: int) -> bool:
        """Whether the edges of a division into `count` parts are counted."""
        return count == 1 or count in self._counted

    def count(self, *counts: int) -> None:
        """Counts the edges of divisions into these numbers of parts, in one pass over all edges."""
        starts = {part * self.width(count) for count in counts for part in range(count)}
        kept = np.array(sorted(start for start in starts if start < max(self.graph.num_src, 1)))
        histogram = _Histogram(kept, source_histogram(self.graph, kept))
        self._counted.update(dict.fromkeys(counts, histogram))

    def guess(self, count: int) -> tuple[int, Longs, Longs]:
        """The heaviest part and its `rows`; if edges are not counted, as if all parts had equal shares of each row."""
        if not self.counted(count):
            if count not in self._guesses:
                rowptr = self.graph.rowptr // count
                self._guesses = {count: (rowptr, filled_before(rowptr))}
            return 0, *self._guesses[count]
        heaviest = int(np.argmax(self.nonzeros(count)))
        return heaviest, *self.rows(count, heaviest)

    @cached_property
    def longest_row(self) -> int:
        """The largest number of edges of a destination."""
        return int(np.diff(self.graph.rowptr).max(initial=0))

    def _pointers(self, count: int, part: int) -> Longs:
        rowptr = np.zeros(self.graph.num_dst + 1, dtype=np.int64)
        np.cumsum(self._of(count, part).sum(axis=0, dtype=np.int64), out=rowptr[1:])
        return rowptr

    def _of(self, count: int, part: int) -> npt.NDArray[np.integer[Any]]:
        """Edges into each destination, as one row or several rows to be added up."""
        if count not in self._counted:
            self.count(count)
        width, (starts, edges) = self.width(count), self._counted[count]
        first, end = np.searchsorted(starts, [part * width, (part + 1) * width])
        return edges[first:end]
