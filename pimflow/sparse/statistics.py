"""Graph statistics that costs depend on: a few counts, the reuse of sources, and histograms by source range.

All are linear in the edges, except for sorting within chunks of a fixed size. Those of large graphs are cached on disk
by the graph's content hash (`statistics_of`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pimflow.records import dataclass
from pimflow.sparse.checks import Ids, Ints, Longs
from pimflow.sparse.forms import Progress
from pimflow.sparse.graph import Graph
from pimflow.sparse.stack_distance import ReuseProfile, profile_of

GROUP_SOURCES = 16
"""The number of sources that a bank multiplies at a time: consecutive ids, starting at a multiple of it."""
BLOCK_SOURCES = 512
"""The number of sources that fill a row of a bank, or a buffer."""

RANGES = 32

FEW_RANGES = 8
"""Up to this many ranges, comparing edges with every start is faster than looking up their range."""

PIECE_EDGES = 1 << 22
"""The number of edges processed at a time; the data derived from them fits into memory many times."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """The statistics of a graph.

    Args:
        num_src, num_dst, num_edges: numbers of sources, destinations and edges.
        self_loops: number of edges from a vertex to the one with the same id.
        duplicates: number of edges preceded by another one with the same ends.
        isolated: number of vertices without any edges except self loops; 0 in bipartite graphs.
        max_in, max_out: largest number of edges into a destination, and out of a source.
        groups: number of pairs of a destination and 16 consecutive sources with at least one edge between them.
        blocks: the same for 512 consecutive sources.
        fills: lower bound on the number of fills of a buffer of 512 sources' weights: each of its 32 columns serves one
            destination at a time, so a block takes as many fills as its busiest column has destinations.
        reuse: reuse of the sources, row by row.
    """

    num_src: int
    num_dst: int
    num_edges: int
    self_loops: int
    duplicates: int
    isolated: int
    max_in: int
    max_out: int
    groups: int
    blocks: int
    fills: int
    reuse: ReuseProfile

    @property
    def mean_degree(self) -> float:
        """Edges per destination."""
        return self.num_edges / self.num_dst if self.num_dst else 0.0

    @property
    def edges_per_group(self) -> float:
        """Edges per pair of a destination and a group of 16 sources that has any (k)."""
        return self.num_edges / self.groups if self.groups else 0.0

    @property
    def blocks_per_edge(self) -> float:
        """Pairs of a destination and a block of 512 sources that have an edge, per edge (D / E)."""
        return self.blocks / self.num_edges if self.num_edges else 0.0

    @property
    def density(self) -> float:
        """The number of edges divided by that of pairs of a source and a destination."""
        pairs = self.num_src * self.num_dst
        return self.num_edges / pairs if pairs else 0.0


def in_degrees(graph: Graph) -> Longs:
    """Edges into every destination, [num_dst]."""
    degrees: Longs = np.diff(graph.rowptr)
    return degrees


def out_degrees(graph: Graph) -> Longs:
    """Edges out of every source, [num_src]."""
    return np.bincount(graph.col, minlength=graph.num_src)


def measure(graph: Graph, progress: Progress = lambda line: None) -> Statistics:
    """Measures the statistics of a graph."""
    progress(f"counting groups of {graph.num_edges:,} edges")
    into, out = in_degrees(graph), out_degrees(graph)
    counts = np.zeros(-(-graph.num_src // BLOCK_SOURCES) * BLOCK_SOURCES // GROUP_SOURCES, np.int64)
    loops = duplicates = blocks = 0
    looped = np.zeros(max(graph.num_src, graph.num_dst), np.int32)
    for first, unsorted, cols in row_pieces(graph):
        keys = np.sort(unsorted.astype(np.int64) * graph.num_src + cols)
        rows, sources = np.divmod(keys, graph.num_src)
        news = np.diff(keys, prepend=-1) > 0
        duplicates += len(keys) - int(np.count_nonzero(news))
        begins = _changes(rows, sources // GROUP_SOURCES)
        counts += np.bincount(sources[begins] // GROUP_SOURCES, minlength=len(counts))
        blocks += int(np.count_nonzero(_changes(rows, sources // BLOCK_SOURCES)))
        own = rows[rows + first == sources] + first
        loops += len(own)
        looped += np.bincount(own, minlength=len(looped)).astype(np.int32)
    fills = counts.reshape(-1, BLOCK_SOURCES // GROUP_SOURCES).max(axis=1).sum() if len(counts) else 0
    alone = (into == looped) & (out == looped) if graph.num_src == graph.num_dst else np.zeros(0, bool)
    progress(f"measuring the reuse of {graph.num_src:,} sources")
    return Statistics(
        graph.num_src,
        graph.num_dst,
        graph.num_edges,
        loops,
        duplicates,
        int(np.count_nonzero(alone)),
        int(into.max(initial=0)),
        int(out.max(initial=0)),
        int(counts.sum()),
        blocks,
        int(fills),
        profile_of(graph.col, graph.num_src),
    )


def source_histogram(graph: Graph, starts: npt.ArrayLike | None = None) -> Ints:
    """Edges into every destination from every range of sources, int32 [ranges, num_dst], in one pass over the edges.

    Args:
        graph: the edges.
        starts: ascending from 0, where ranges begin; each ends where the next begins, the last one with the sources.
            None for `RANGES` ranges of equal size, as many as UPMEM modules have ranks.
    """
    if starts is None:
        starts = np.arange(0, max(graph.num_src, 1), max(-(-graph.num_src // RANGES), 1))
    first_of = np.asarray(starts, np.int64)
    count = len(first_of)
    if count <= FEW_RANGES:
        return _histogram_by_comparing(graph, first_of)
    of_source = np.repeat(np.arange(count, dtype=np.int32), np.diff(first_of, append=max(graph.num_src, 1)))
    found = np.zeros((graph.num_dst, count), np.int32)
    for first, rows, sources in row_pieces(graph):
        rows_here = int(rows[-1]) + 1
        cells = rows.astype(np.int64) * count + of_source[sources]
        found[first : first + rows_here] = np.bincount(cells, minlength=rows_here * count).reshape(rows_here, count)
    return np.ascontiguousarray(found.T)


def _histogram_by_comparing(graph: Graph, starts: Longs) -> Ints:
    """`source_histogram` as differences of the number of edges from sources before each start."""
    before = np.zeros((len(starts) + 1, graph.num_dst), np.int32)
    before[-1] = np.diff(graph.rowptr)
    for first, last in _runs(graph):
        pointers = graph.rowptr[first : last + 1]
        filled = np.flatnonzero(np.diff(pointers))
        sources, begins = graph.col[pointers[0] : pointers[-1]], pointers[filled] - pointers[0]
        for place, start in enumerate(starts[1:], start=1):
            before[place, first + filled] = np.add.reduceat(sources < start, begins, dtype=np.int32)
    return np.diff(before, axis=0)


def row_pieces(graph: Graph) -> Iterator[tuple[int, Ints, Ints]]:
    """Runs of whole rows: the first destination, and per edge the destination (relative to it) and the source."""
    for first, last in _runs(graph):
        pointers = graph.rowptr[first : last + 1]
        rows = np.repeat(np.arange(last - first, dtype=np.int32), np.diff(pointers))
        yield first, rows, graph.col[pointers[0] : pointers[-1]]


def _runs(graph: Graph) -> Iterator[tuple[int, int]]:
    """Runs of whole rows with at most `PIECE_EDGES` edges, or of a single row: the first, and the end."""
    first = 0
    while first < graph.num_dst:
        begin = int(graph.rowptr[first])
        last = int(np.searchsorted(graph.rowptr, begin + PIECE_EDGES, side="right")) - 1
        last = min(max(last, first + 1), graph.num_dst)
        if graph.rowptr[last] > begin:
            yield first, last
        first = last


def _changes(rows: Ids, parts: Ids) -> npt.NDArray[np.bool_]:
    """Where sorted pairs differ from the preceding ones."""
    changed = np.ones(len(rows), bool)
    changed[1:] = (rows[1:] != rows[:-1]) | (parts[1:] != parts[:-1])
    return changed
