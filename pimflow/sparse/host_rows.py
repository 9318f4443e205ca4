"""The number of requests that GPU threads make when they read rows, by index, from memory across a link.

A kernel writes the indexed rows consecutively, one thread per element, 32 threads per warp. Each line of memory that
the threads of a warp touch is one request (Min et al., EMOGI, VLDB 2020), so a warp whose elements straddle two lines
makes two. PyTorch-Direct (Min et al., 2021) therefore rotates every row: threads start at the start of a source line,
and those at the row's end read its beginning. Rows that fit into a line, and rows of whole lines, are not rotated.
"""

from __future__ import annotations

from math import lcm

import numpy as np

from pimflow.records import dataclass
from pimflow.sparse.checks import Ids, Longs

LANES = 32
"""The number of threads of a warp."""

WARPS_AT_ONCE = 1 << 16
"""Warps that are counted together, which bounds the memory that this takes."""


@dataclass(frozen=True)
class HostRows:
    """Rows of a table that starts at a line boundary, as GPU threads read them.

    Args:
        row_bytes: size of a row.
        element_bytes: bytes that a thread reads.
        line_bytes: maximum size of a request.
        shifted: whether rows are rotated if the rule applies.
    """

    row_bytes: int
    element_bytes: int = 4
    line_bytes: int = 128
    shifted: bool = True

    @property
    def rotates(self) -> bool:
        """Whether rows are rotated: they are longer than a line and do not consist of whole lines."""
        return self.shifted and self.row_bytes > self.line_bytes and self.row_bytes % self.line_bytes != 0

    @property
    def warp_bytes(self) -> int:
        """Bytes that a warp writes."""
        return LANES * self.element_bytes

    def requests(self, index: Ids) -> int:
        """The number of distinct pairs of a warp and a line when the rows of an index [R] are read: exact, O(R).

        The requests of warps within a single row depend only on the row's alignment to lines and warps, and are counted
        once per alignment; those of warps that rows share with their neighbours are counted row by row.
        """
        if not len(index):
            return 0
        written = np.arange(len(index), dtype=np.int64) * self.row_bytes
        source = index.astype(np.int64) * self.row_bytes
        return self._within_rows(written, source) + self._at_ends(written, source)

    def _within_rows(self, written: Longs, source: Longs) -> int:
        """Requests of the warps that write elements of only one row."""
        period = lcm(self.warp_bytes, self.line_bytes)
        places = (written % period) * self.line_bytes + source % self.line_bytes
        kinds, counts = np.unique(places, return_counts=True)
        at_once = max(1, WARPS_AT_ONCE // (self.row_bytes // self.warp_bytes + 1))
        total = 0
        for first in range(0, len(kinds), at_once):
            written, source = np.divmod(kinds[first : first + at_once], self.line_bytes)
            total += int(np.dot(self._of_places(written, source), counts[first : first + at_once]))
        return total

    def _of_places(self, written: Longs, source: Longs) -> Longs:
        """Requests of the warps within a row, for rows of several alignments."""
        written, source = written[:, None], source[:, None]
        begins = -written % self.warp_bytes + self.warp_bytes * np.arange(self.row_bytes // self.warp_bytes)
        stops = begins + self.warp_bytes
        low, high = self._lines(begins, stops, self._rotation(written, source), source)
        count = np.maximum(high - low + 1, 0).sum(axis=0)
        # The two runs of a warp across the seam may end and begin in the same line.
        shared = np.minimum(high[0], high[1]) - np.maximum(low[0], low[1]) + 1
        each = count - np.maximum(np.where((high < low).any(axis=0), 0, shared), 0)
        return np.asarray(np.where(stops <= self.row_bytes, each, 0).sum(axis=1))

    def _at_ends(self, written: Longs, source: Longs) -> int:
        """Requests of the warps at the ends of a row, which the rows before and after it may share."""
        rotation = self._rotation(written, source)
        end = written + self.row_bytes
        head = np.minimum(-(-written // self.warp_bytes) * self.warp_bytes, end)
        tail = np.maximum(end // self.warp_bytes * self.warp_bytes, head)
        warps, lines = [], []
        for begin, stop in ((written, head), (tail, end)):
            low, high = self._lines(begin - written, stop - written, rotation, source)
            for step in range(self.warp_bytes // self.line_bytes + 2):
                present = low + step <= high
                lines.append((low + step)[present])
                warps.append(np.broadcast_to(begin // self.warp_bytes, low.shape)[present])
        return _distinct(np.concatenate(warps), np.concatenate(lines))

    def _rotation(self, written: Longs, source: Longs) -> Longs:
        """The bytes by which a row is rotated, so that bytes are written and read at the same offset in a line."""
        return (written - source) % self.line_bytes if self.rotates else 0 * written

    def _lines(self, begin: Longs, stop: Longs, rotation: Longs, source: Longs) -> tuple[Longs, Longs]:
        """First and last lines of bytes `begin` to `stop` of rotated rows, [2, ..]: before the seam and after it.

        For an empty run, the first line is above the last.
        """
        seam = self.row_bytes - rotation
        before = (begin + rotation, np.minimum(stop, seam) + rotation)
        after = (np.maximum(begin, seam) - seam, stop - seam)
        low = np.stack([(source + run[0]) // self.line_bytes for run in (before, after)])
        high = np.stack([(source + run[1] - 1) // self.line_bytes for run in (before, after)])
        empty = np.stack([run[1] <= run[0] for run in (before, after)])
        return low, np.where(empty, low - 1, high)


def _distinct(first: Longs, second: Longs) -> int:
    order = np.lexsort((second, first))
    first, second = first[order], second[order]
    return int(len(first) and 1 + np.count_nonzero((np.diff(first) != 0) | (np.diff(second) != 0)))
