"""Edges per destination and group of sources, and the dense groups split off, against one-by-one enumeration."""

from __future__ import annotations

from collections import Counter
from weakref import ref

import numpy as np
import numpy.typing as npt
import pytest

from pimflow.sparse import groups
from pimflow.sparse.groups import group_counts, split_dense

Ints = npt.NDArray[np.int64]


def random_rows(seed: int) -> tuple[Ints, npt.NDArray[np.int32]]:
    """600 edges from 200 sources into 42 destinations, unsorted within rows."""
    rng = np.random.default_rng(seed)
    dst = np.sort(rng.integers(0, 40, 600))
    return np.searchsorted(dst, np.arange(43)), rng.integers(0, 200, 600).astype(np.int32)


def destinations(rowptr: Ints) -> Ints:
    return np.repeat(np.arange(len(rowptr) - 1), np.diff(rowptr))


@pytest.mark.parametrize("piece", [7, 1 << 22])
@pytest.mark.parametrize("size", [8, 16])
def test_counts_match_a_loop(piece: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "PIECE_EDGES", piece)
    rowptr, col = random_rows(piece)
    pairs = Counter(zip(destinations(rowptr).tolist(), (col // size).tolist(), strict=True))
    expected = Counter(pairs.values())
    found = group_counts(rowptr, col, size, 4)
    assert {edges: count for edges, count in enumerate(found.pairs.tolist()) if count} == expected
    assert found.edges == 600
    assert found.edges_per_group == 600 / len(pairs)
    assert found.units == len({(row, group // 4) for row, group in pairs})
    assert found.runs == sum((row, group - 1) not in pairs or group % 4 == 0 for row, group in pairs)


def test_edges_are_visited_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rowptr, col = np.array([0, 2, 5]), np.array([1, 2, 20, 40, 41])
    first, parts = group_counts(rowptr, col, 16, 32), split_dense(rowptr, col, 16, 2)
    monkeypatch.delattr(groups, "_pairs")
    assert group_counts(rowptr, col, 16, 32) is first
    assert split_dense(rowptr, col, 16, 2) is parts


def test_no_edges_have_no_groups() -> None:
    assert group_counts(np.zeros(4, np.int64), np.zeros(0, np.int32), 16, 32).edges_per_group == 0.0


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("piece", [7, 1 << 22])
def test_dense_pairs_are_separated(piece: int, is_sorted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "PIECE_EDGES", piece)
    rowptr, col = random_rows(piece)
    row = destinations(rowptr)
    if is_sorted:
        col = col[np.lexsort((col, row))]
    pairs = Counter(zip(row.tolist(), (col // 16).tolist(), strict=True))
    is_dense = np.array([pairs[at, source // 16] >= 3 for at, source in zip(row.tolist(), col.tolist(), strict=True)])
    assert 0 < is_dense.sum() < 600
    for part, chosen in zip(split_dense(rowptr, col, 16, 3), (is_dense, ~is_dense), strict=True):
        np.testing.assert_array_equal(part.positions, np.flatnonzero(chosen))
        np.testing.assert_array_equal(part.col, col[chosen])
        np.testing.assert_array_equal(destinations(part.rowptr), row[chosen])
        assert len(part.rowptr) == len(rowptr)
        assert (part.rowptr.dtype, part.col.dtype) == (rowptr.dtype, col.dtype)


def test_cached_parts_are_dropped_with_their_arrays() -> None:
    rowptr, col = random_rows(1)
    part = ref(split_dense(rowptr, col, 16, 2)[0].col)
    assert part() is not None
    del col
    assert part() is None
