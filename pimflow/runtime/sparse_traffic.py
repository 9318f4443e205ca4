"""What kernels over the edges of a graph move, whatever the unit: what passes once, and rows that a cache may hold.

All is bytes, from shapes and from which rows are touched in which order. How much of it reaches memory follows from the
size of the unit's last cache, under least-recently-used replacement (`pimflow/sparse/stack_distance.py`).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pimflow.records import dataclass
from pimflow.sparse import kept_profile
from pimflow.sparse.stack_distance import EXACT_ACCESSES

UNKNOWN_ORDER = "which rows it touches is only known when it runs: no reuse in a cache is counted"

Kind = Literal["elementwise", "softmax"]


@dataclass(frozen=True)
class Cache:
    """The last level of cache before memory.

    Args:
        bytes: its size, as far as it serves these kernels.
        line_bytes: the least that it fetches at a time.
    """

    bytes: float
    line_bytes: int


@dataclass(frozen=True, eq=False)
class RowAccess:
    """Rows of a table that are touched one after the other.

    Args:
        row_bytes: bytes of a row.
        rows: of the table.
        count: how many accesses there are.
        ids: the row of every access, in order; None if that is not known.
        updates: whether rows are added to, so that what is fetched is also written back.
        copies: how often the same follows again, each time on the next `rows` rows; `count` has all of it.
    """

    row_bytes: int
    rows: int
    count: int
    ids: npt.NDArray[Any] | None
    updates: bool = False
    copies: int = 1

    def requested_bytes(self, cache: Cache) -> int:
        """Bytes that pass the cache: whole lines, and of an update twice."""
        return self.count * _whole(self.row_bytes, cache.line_bytes) * (2 if self.updates else 1)

    def memory_bytes(self, cache: Cache) -> int:
        """Bytes that pass memory: lines that miss the cache.

        Rows shorter than a line share it with their neighbours; each longer one takes whole lines.
        """
        if not self.row_bytes:
            return 0
        held = _whole(self.row_bytes, cache.line_bytes)
        misses: float = self.count
        if self.ids is not None:
            misses = (
                self._misses(self.ids, cache.bytes // held, max(cache.line_bytes // self.row_bytes, 1)) * self.copies
            )
        return round(misses * held * (2 if self.updates else 1))

    def _misses(self, ids: npt.NDArray[Any], lines: float, per_line: int) -> float:
        """Fetches of lines into a cache of so many: each once if it holds them all, for which no order matters."""
        if -(-self.rows // per_line) <= lines and len(ids) <= EXACT_ACCESSES:
            return len(np.unique(ids // per_line))
        return kept_profile(ids, self.rows, per_line).misses(lines)


def _whole(row_bytes: int, line_bytes: int) -> int:
    return -(-row_bytes // line_bytes) * line_bytes


@dataclass(frozen=True, eq=False)
class SparseWork:
    """One kernel over the edges of a graph.

    Args:
        operations: arithmetic operations; a multiply-add is one.
        macs: multiply-accumulates among them.
        streamed_bytes: what passes once: edges, weights, results.
        accesses: rows that may be in cache.
        again_bytes: what passes the cache again, but not memory.
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
        """Whether all rows that it touches are known."""
        return all(access.ids is not None for access in self.accesses)

    def memory_bytes(self, cache: Cache) -> int:
        """Bytes that pass memory."""
        return self.streamed_bytes + sum(access.memory_bytes(cache) for access in self.accesses)

    def cache_bytes(self, cache: Cache) -> int:
        """Bytes that pass the cache."""
        rows = sum(access.requested_bytes(cache) for access in self.accesses)
        return self.streamed_bytes + self.again_bytes + rows
