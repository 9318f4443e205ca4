"""LRU stack distances: whole sequences against a cache simulated step by step, samples against whole sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimflow.sparse import Graph, generate, profile_of, reordered, stack_distance
from support.lru import misses


@given(st.lists(st.integers(0, 12), max_size=120), st.integers(0, 14))
def test_all_misses_are_counted(ids: list[int], cache_rows: int) -> None:
    profile = profile_of(np.array(ids, np.int32), 13)
    assert profile.is_exact
    assert profile.misses(cache_rows) == misses(ids, cache_rows)


def test_a_longer_sequence_in_which_rows_come_back_late() -> None:
    ids = (np.random.default_rng(0).random(30_000) ** 3 * 2500).astype(np.int32)
    profile = profile_of(ids, 2500)
    for cache_rows in (1, 10, 300, 1500):
        assert profile.misses(cache_rows) == misses(ids.tolist(), cache_rows)
    assert profile.miss_ratio(3000) == len(set(ids.tolist())) / 30_000


def test_nothing_is_accessed() -> None:
    profile = profile_of(np.empty(0, np.int32), 5)
    assert (profile.misses(3), profile.miss_ratio(3)) == (0, 0)


GRAPHS: dict[str, Callable[[], Graph]] = {
    "uniform": lambda: generate.uniform(40_000, 300_000),
    "dense": lambda: generate.uniform(2_000, 300_000),
    "power law": lambda: generate.power_law(30_000, 300_000, 3_000),
    "power law by degree": lambda: reordered(GRAPHS["power law"](), "degree"),
    "R-MAT": lambda: generate.rmat(15, 300_000),
    "R-MAT, mild": lambda: generate.rmat(16, 400_000, 1, (0.4, 0.25, 0.2, 0.15)),
    "streets": lambda: generate.road_grid(300, 300),
    "streets in order": lambda: generate.road_grid(300, 300, in_order=True),
    "blocks": lambda: generate.block_model(30_000, 400_000, 300, 0.1),
    "blocks in order": lambda: generate.block_model(30_000, 400_000, 300, 0.1, in_order=True),
    "Reddit": lambda: generate.like("reddit", 0.05, keep="density"),
    "proteins by community": lambda: reordered(generate.like("ogbn-proteins", 0.06, keep="density"), "community"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_sample_stands_for_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For caches from 64 rows to half of all; the windows are as short as for graphs hundreds of times as large."""
    graph = GRAPHS[name]()
    monkeypatch.setattr(stack_distance, "EXACT_ACCESSES", 1 << 40)
    whole = profile_of(graph.col, graph.num_src)
    monkeypatch.setattr(stack_distance, "EXACT_ACCESSES", 0)
    sample = profile_of(graph.col, graph.num_src)
    assert whole.is_exact
    assert not sample.is_exact
    monkeypatch.setattr(stack_distance, "WINDOW", 1 << 13)
    thinned = profile_of(graph.col, graph.num_src)
    for cache_rows in np.geomspace(64, whole.rows / 2, 12):
        exact = whole.misses(cache_rows)
        assert sample.misses(cache_rows) == pytest.approx(exact, rel=0.02)
        assert thinned.misses(cache_rows) == pytest.approx(exact, rel=0.05)


def test_the_same_sequence_gives_the_same_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_distance, "EXACT_ACCESSES", 0)
    ids: Any = generate.uniform(1000, 30_000).col
    first, second = (profile_of(ids, 1000).distances for _ in range(2))
    assert first.tolist() == second.tolist()
