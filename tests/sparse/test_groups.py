"""Edges per destination and group of sources, against counting them one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from pimflow.sparse import groups
from pimflow.sparse.groups import group_counts


@pytest.mark.parametrize("piece", [7, 1 << 22])
@pytest.mark.parametrize("size", [8, 16])
def test_counts_are_those_of_a_loop(piece: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "PIECE_EDGES", piece)
    rng = np.random.default_rng(piece)
    dst = np.sort(rng.integers(0, 40, 600))
    rowptr, col = np.searchsorted(dst, np.arange(43)), rng.integers(0, 200, 600).astype(np.int32)
    pairs = Counter(zip(dst.tolist(), (col // size).tolist(), strict=True))
    expected = Counter(pairs.values())
    found = group_counts(rowptr, col, size)
    assert {edges: count for edges, count in enumerate(found.pairs.tolist()) if count} == expected
    assert found.edges == 600
    assert found.edges_per_group == 600 / len(pairs)


def test_edges_are_gone_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rowptr, col = np.array([0, 2, 5]), np.array([1, 2, 20, 40, 41])
    first = group_counts(rowptr, col, 16)
    monkeypatch.delattr(groups, "_of_piece")
    assert group_counts(rowptr, col, 16) is first


def test_no_edges_have_no_groups() -> None:
    assert group_counts(np.zeros(4, np.int64), np.zeros(0, np.int32), 16).edges_per_group == 0.0
