"""Bytes over the edges of a graph, against a cache simulated access by access."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from pimflow.runtime.sparse_traffic import Cache, RowAccess, SparseWork
from pimflow.sparse import generate


def fetched(ids: list[int], row_bytes: int, cache: Cache) -> int:
    """Bytes of lines that a cache of whole lines fetches under least-recently-used replacement."""
    held: OrderedDict[int, None] = OrderedDict()
    missed = 0
    lines_per_row = -(-row_bytes // cache.line_bytes)
    rows_per_line = max(cache.line_bytes // row_bytes, 1)
    for row in ids:
        for line in range(row // rows_per_line * lines_per_row, (row // rows_per_line + 1) * lines_per_row):
            missed += line not in held
            held[line] = None
            held.move_to_end(line)
            if len(held) * cache.line_bytes > cache.bytes:
                held.popitem(last=False)
    return missed * cache.line_bytes


@pytest.mark.parametrize("row_bytes", [4, 16, 32, 100, 512])
@pytest.mark.parametrize("cache_bytes", [0, 4096, 65536])
def test_misses_match_a_simulated_cache_of_lines(row_bytes: int, cache_bytes: int) -> None:
    graph = generate.power_law(600, 5000, 200)
    cache = Cache(cache_bytes, 32)
    access = RowAccess(row_bytes, 600, graph.num_edges, graph.col)
    assert access.memory_bytes(cache) == fetched(graph.col.tolist(), row_bytes, cache)
    assert access.requested_bytes(cache) == 5000 * -(-row_bytes // 32) * 32


def test_rows_that_are_added_to_are_written_back() -> None:
    graph = generate.uniform(600, 5000)
    cache = Cache(65536, 32)
    read = RowAccess(256, 600, 5000, graph.col)
    added = RowAccess(256, 600, 5000, graph.col, updates=True)
    assert added.memory_bytes(cache) == 2 * read.memory_bytes(cache)
    assert added.requested_bytes(cache) == 2 * read.requested_bytes(cache)


def test_an_unknown_order_always_misses() -> None:
    cache = Cache(1 << 20, 32)
    unknown = RowAccess(256, 10, 5000, None)
    assert unknown.memory_bytes(cache) == 5000 * 256
    assert not SparseWork(0, 0, 0, (unknown,)).is_known


def test_work_is_the_sum_of_streams_and_misses() -> None:
    ids = np.array([0, 1, 0, 1], np.int32)
    cache = Cache(1 << 20, 32)
    work = SparseWork(8, 8, 1000, (RowAccess(64, 2, 4, ids),), again_bytes=500)
    assert (work.memory_bytes(cache), work.cache_bytes(cache), work.bytes) == (1128, 1756, 1256)
    assert RowAccess(0, 2, 4, ids).memory_bytes(cache) == 0
