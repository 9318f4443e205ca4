"""The edges of a graph cut into equal ranges of sources, for all numbers of parts at once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from pimflow.codegen.upmem.partition import Longs, filled_before
from pimflow.sparse import Graph, source_histogram

_KEPT = 8  # parts whose rows are remembered: strategies ask for the same ones in turn


class EdgeParts:
    """Row pointers of every part, from one pass over the edges.

    Part p of s has the edges from sources p ceil(N/s) to (p + 1) ceil(N/s) - 1, as PyGim cuts them (`col_split`).

    Args:
        graph: the edges.
        counts: the numbers of parts that will be asked for.
    """

    def __init__(self, graph: Graph, counts: Iterable[int]) -> None:
        self.graph = graph
        starts = {part * self.width(count) for count in counts for part in range(count)}
        self._starts = np.array(sorted(start for start in starts | {0} if start < max(graph.num_src, 1)))
        single = len(self._starts) == 1
        self._edges = np.diff(graph.rowptr)[None] if single else source_histogram(graph, self._starts)
        self._nonzeros: dict[int, Longs] = {}
        self._made: OrderedDict[tuple[int, int], tuple[Longs, Longs]] = OrderedDict()

    def width(self, count: int) -> int:
        """Sources of a part, but for the last ones, which may have fewer."""
        return -(-self.graph.num_src // count)

    def sources(self, count: int, part: int) -> int:
        """Sources of one part."""
        width = self.width(count)
        return max(0, min(width, self.graph.num_src - part * width))

    def nonzeros(self, count: int) -> Longs:
        """Edges of every part, int64 [count]."""
        if count not in self._nonzeros:
            found = [self._of(count, part).sum(dtype=np.int64) for part in range(count)]
            self._nonzeros[count] = np.array(found)
        return self._nonzeros[count]

    def rows(self, count: int, part: int) -> tuple[Longs, Longs]:
        """Row pointers of a part, and how many rows before each one have edges: int64 [destinations + 1] each."""
        if (count, part) not in self._made:
            rowptr = np.zeros(self.graph.num_dst + 1, dtype=np.int64)
            np.cumsum(self._of(count, part).sum(axis=0, dtype=np.int64), out=rowptr[1:])
            self._made[count, part] = rowptr, filled_before(rowptr)
            if len(self._made) > _KEPT:
                self._made.popitem(last=False)
        self._made.move_to_end((count, part))
        return self._made[count, part]

    def _of(self, count: int, part: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
        width = self.width(count)
        first, end = np.searchsorted(self._starts, [part * width, (part + 1) * width])
        return self._edges[first:end]
