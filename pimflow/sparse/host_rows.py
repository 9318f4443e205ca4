"""What GPU threads request when they read rows, by index, from memory across a link.

A kernel writes the indexed rows consecutively, one thread per element, 32 threads per warp and 256 per block. A warp
that touches a line of memory requests the sectors of it that it needs, in one request; sectors that an earlier warp of
its block has requested are in the cache of their multiprocessor. The number of requests therefore depends on where
rows begin: a warp whose elements straddle two lines makes two. PyTorch-Direct (Min et al., 2021) rotates every row:
threads start at the start of a source line, and those at the row's end read its beginning. Rows that fit into a line,
and rows of whole lines, are not rotated.

Hardware counters of an H200 (`tests/data/measured/h200.json`) have the same numbers of sectors within 0.25 %, and of
requests within 3 % where rows are rotated or of whole lines. For others the GPU merges a fifth of the requests.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pimflow.records import dataclass
from pimflow.sparse.checks import Ids, Longs

LANES = 32
"""The number of threads of a warp."""
WARPS = 8
"""The number of warps of a block: 256 threads, as in the kernel whose requests were counted on an H200."""

MANY = 32
"""Rows of a block from which on each row is counted."""

SECTORS_AT_ONCE = 1 << 22
"""Sectors that are counted together, which bounds the memory that this takes."""


@dataclass(frozen=True)
class Requests:
    """The number of requests, and of the sectors that they ask for."""

    requests: int = 0
    sectors: int = 0

    def __add__(self, other: Requests) -> Requests:
        return Requests(self.requests + other.requests, self.sectors + other.sectors)


@dataclass(frozen=True)
class HostRows:
    """Rows of a table that starts at a line boundary, as GPU threads read them.

    Args:
        row_bytes: size of a row.
        element_bytes: bytes that a thread reads.
        line_bytes: maximum size of a request, a multiple of `sector_bytes`.
        shifted: whether rows are rotated if the rule applies.
        sector_bytes: what a request is made of.
    """

    row_bytes: int
    element_bytes: int = 4
    line_bytes: int = 128
    shifted: bool = True
    sector_bytes: int = 32

    @property
    def rotates(self) -> bool:
        """Whether rows are rotated: they are longer than a line and do not consist of whole lines."""
        return self.shifted and self.row_bytes > self.line_bytes and self.row_bytes % self.line_bytes != 0

    @property
    def warp_bytes(self) -> int:
        """Bytes that a warp writes."""
        return LANES * self.element_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes that a block writes."""
        return WARPS * self.warp_bytes

    def requests(self, index: Ids) -> Requests:
        """What is requested when the rows of an index [R] are read: exact.

        A row that has no line in common with another row of its blocks is counted once per alignment to lines and
        blocks; others are counted one by one.
        """
        if not len(index) or not self.row_bytes:
            return Requests()
        written = np.arange(len(index), dtype=np.int64) * self.row_bytes
        source = index.astype(np.int64) * self.row_bytes
        together = self._together(source)
        alone = ~together
        return self._by_alignment(written[alone], source[alone]) + self._one_by_one(written, source, together)

    def _together(self, source: Longs) -> npt.NDArray[np.bool_]:
        """The rows that may have a line in common with another row of one of their blocks."""
        if self.block_bytes >= MANY * self.row_bytes:  # comparing neighbours would take longer than counting
            return np.ones(len(source), np.bool_)
        found = np.zeros(len(source), np.bool_)
        reach = self.row_bytes + self.line_bytes
        for distance in range(1, min(self.block_bytes // self.row_bytes + 1, len(source) - 1) + 1):
            near = np.abs(source[distance:] - source[:-distance]) < reach
            found[distance:] |= near
            found[:-distance] |= near
        return found

    def _by_alignment(self, written: Longs, source: Longs) -> Requests:
        """The requests of rows that share nothing."""
        places = (written % self.block_bytes) * self.line_bytes + source % self.line_bytes
        kinds, counts = np.unique(places, return_counts=True)
        written, source = np.divmod(kinds, self.line_bytes)
        total = Requests()
        apart = 2 * self.block_bytes + self.row_bytes  # so that no two rows are written by the same block
        apart -= apart % -self.block_bytes
        for part in self._parts(len(kinds)):
            shifted = written[part] + apart * np.arange(len(written[part]))
            total += self._counted(shifted, source[part], counts[part])
        return total

    def _one_by_one(self, written: Longs, source: Longs, chosen: npt.NDArray[np.bool_]) -> Requests:
        """The requests of some rows, in parts that no block belongs to two of."""
        total = Requests()
        blocks = written // self.block_bytes
        at_once = max(1, SECTORS_AT_ONCE // (self.block_bytes // self.sector_bytes))
        last = (written[-1] + self.row_bytes - 1) // self.block_bytes
        if not chosen.any():
            return total
        for first in range(0, int(last) + 1, at_once):
            within = (blocks + self.row_bytes // self.block_bytes + 1 >= first) & (blocks < first + at_once) & chosen
            rows = np.flatnonzero(within)
            total += self._counted(written[rows], source[rows], None, (first, first + at_once))
        return total

    def _parts(self, count: int) -> list[slice]:
        at_once = max(1, SECTORS_AT_ONCE // (self.row_bytes // self.sector_bytes + 2))
        return [slice(first, first + at_once) for first in range(0, count, at_once)]

    def _counted(
        self, written: Longs, source: Longs, times: Longs | None, blocks: tuple[int, int] | None = None
    ) -> Requests:
        """The requests of rows by enumeration of sectors; each row counts `times` as often, if it is given.

        Only warps of `blocks`, from the first to before the second, count.
        """
        row, begin, stop = self._runs(written, source)
        warp, low, high = self._warps(written, source, row, begin, stop)
        row = np.repeat(row, _pieces(begin, stop, self.warp_bytes))
        if blocks is not None:
            inside = (warp // WARPS >= blocks[0]) & (warp // WARPS < blocks[1])
            row, warp, low, high = row[inside], warp[inside], low[inside], high[inside]
        each = high - low + 1
        sector = np.repeat(low, each) + _ranks(each)
        warp, row = np.repeat(warp, each), np.repeat(row, each)
        first = _firsts(warp // WARPS, sector, warp)
        warp, row, line = warp[first], row[first], sector[first] * self.sector_bytes // self.line_bytes
        requested = _firsts(warp, line)
        if times is None:
            return Requests(len(requested), len(first))
        return Requests(int(times[row[requested]].sum()), int(times[row].sum()))

    def _runs(self, written: Longs, source: Longs) -> tuple[Longs, Longs, Longs]:
        """Runs of consecutively read bytes: the row of each, and where its bytes are written, from and to."""
        rows = np.arange(len(written))
        if not self.rotates:
            return rows, written, written + self.row_bytes
        seam = written + self.row_bytes - self._rotation(written, source)
        begin = np.concatenate([written, seam])
        stop = np.concatenate([seam, written + self.row_bytes])
        kept = begin < stop
        return np.tile(rows, 2)[kept], begin[kept], stop[kept]

    def _warps(
        self, written: Longs, source: Longs, row: Longs, begin: Longs, stop: Longs
    ) -> tuple[Longs, Longs, Longs]:
        """The part of every warp in every run: the warp, and its first and last sectors."""
        count = _pieces(begin, stop, self.warp_bytes)
        warp = np.repeat(begin // self.warp_bytes, count) + _ranks(count)
        rotation = self._rotation(written, source)[row] if self.rotates else 0 * begin
        wrapped = np.where(begin < written[row] + self.row_bytes - rotation, 0, self.row_bytes)
        ahead = np.repeat(source[row] - written[row] + rotation - wrapped, count)
        low = np.maximum(warp * self.warp_bytes, np.repeat(begin, count)) + ahead
        high = np.minimum((warp + 1) * self.warp_bytes, np.repeat(stop, count)) + ahead - 1
        return warp, low // self.sector_bytes, high // self.sector_bytes

    def _rotation(self, written: Longs, source: Longs) -> Longs:
        """The bytes by which a row is rotated, so that bytes are written and read at the same offset in a line."""
        return (written - source) % self.line_bytes


def _pieces(begin: Longs, stop: Longs, size: int) -> Longs:
    """The number of stretches of `size` bytes that each run touches."""
    return (stop - 1) // size - begin // size + 1


def _ranks(counts: Longs) -> Longs:
    """0, 1, .. up to each count, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)


def _firsts(*keys: Longs) -> Longs:
    """Positions of the first entry for every distinct pair of the first two keys, in the order of the third if any."""
    order = np.lexsort(keys[::-1])
    first, second = keys[0][order], keys[1][order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (np.diff(first) != 0) | (np.diff(second) != 0)
    found: Longs = order[new]
    return found
