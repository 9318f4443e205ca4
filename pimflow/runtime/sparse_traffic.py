"""Memory traffic of kernels over the edges of a graph, on any unit: streams read once, and rows that may be cached.

All amounts are bytes, derived from shapes and from the order in which rows are accessed. The part that reaches memory
follows from the size of the unit's last-level cache with LRU replacement (`pimflow/sparse/stack_distance.py`).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pimflow.records import dataclass
from pimflow.sparse import cached_profile
from pimflow.sparse.stack_distance import EXACT_ACCESSES

UNKNOWN_ORDER = "the rows it accesses are only known when it runs: no cache reuse is counted"

Kind = Literal["elementwise", "softmax"]


@dataclass(frozen=True)
class Cache:
    """The last level of cache before memory.

    Args:
        bytes: its size, as far as it is available to these kernels.
        line_bytes: the size of a cache line, the smallest unit it fetches.
    """

    bytes: float
    line_bytes: int


@dataclass(frozen=True, eq=False)
class RowAccess:
    """A sequence of accesses to rows of a table.

    Args:
        row_bytes: bytes of a row.
        rows: number of rows of the table.
        count: number of accesses.
        ids: the row of each access, in order; None if unknown.
        updates: whether rows are added to, so that fetched lines are also written back.
        copies: how often the sequence is repeated, each time on the next `rows` rows; `count` includes all of them.
    """

    row_bytes: int
    rows: int
    count: int
    ids: npt.NDArray[Any] | None
    updates: bool = False
    copies: int = 1

    def requested_bytes(self, cache: Cache) -> int:
        """Bytes that pass the cache: whole lines, twice for updates."""
        return self.count * _rounded_up(self.row_bytes, cache.line_bytes) * (2 if self.updates else 1)

    def memory_bytes(self, cache: Cache) -> int:
        """Bytes that reach memory: lines that miss the cache.

        Rows shorter than a line share it with their neighbours; longer rows take whole lines each.
        """
        if not self.row_bytes:
            return 0
        held = _rounded_up(self.row_bytes, cache.line_bytes)
        misses: float = self.count
        if self.ids is not None:
            misses = (
                self._misses(self.ids, cache.bytes // held, max(cache.line_bytes // self.row_bytes, 1)) * self.copies
            )
        return round(misses * held * (2 if self.updates else 1))

    def _misses(self, ids: npt.NDArray[Any], lines: float, per_line: int) -> float:
        """Fetches into a cache of `lines` lines; if it holds the whole table, each line is fetched only once."""
        if -(-self.rows // per_line) <= lines and len(ids) <= EXACT_ACCESSES:
            return len(np.unique(ids // per_line))
        return cached_profile(ids, self.rows, per_line).misses(lines)


def _rounded_up(row_bytes: int, line_bytes: int) -> int:
    return -(-row_bytes // line_bytes) * line_bytes


@dataclass(frozen=True, eq=False)
class SparseWork:
    """One kernel over the edges of a graph.

    Args:
        operations: arithmetic operations; a multiply-add counts as one.
        macs: multiply-accumulates among them.
        streamed_bytes: bytes that pass memory once: edges, weights, results.
        accesses: accesses to rows that may be in the cache.
        again_bytes: bytes that pass the cache again, but not memory.
        kind: the family of kernels that it belongs to.
    """

    operations: int
    macs: int
    streamed_bytes: int
    accesses: tuple[RowAccess, ...] = ()
    again_bytes: int = 0
    kind: Kind = "elementwise"

    @property
    def bytes(self) -> int:
        """Bytes without any cache."""
        return self.streamed_bytes + sum(access.count * access.row_bytes for access in self.accesses)

    @property
    def is_known(self) -> bool:
        """Whether all rows that it accesses are known."""
        return all(access.ids is not None for access in self.accesses)

    def memory_bytes(self, cache: Cache) -> int:
        """Bytes that reach memory."""
        return self.streamed_bytes + sum(access.memory_bytes(cache) for access in self.accesses)

    def cache_bytes(self, cache: Cache) -> int:
        """Bytes that pass the cache."""
        rows = sum(access.requested_bytes(cache) for access in self.accesses)
        return self.streamed_bytes + self.again_bytes + rows
