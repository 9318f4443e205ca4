"""Statistics of graphs against their definitions, counted edge by edge."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimflow.sparse import Graph, generate, in_degrees, out_degrees, source_histogram, statistics, statistics_of
from pimflow.sparse.statistics import measure


def as_defined(edges: list[tuple[int, int]], vertices: int) -> dict[str, int]:
    """Every number of `Statistics`, one edge at a time."""
    groups = {(dst, src // 16) for src, dst in edges}
    served = Counter(group for _, group in groups)
    busiest: dict[int, int] = {}
    for group, count in served.items():
        busiest[group // 32] = max(busiest.get(group // 32, 0), count)
    proper = [(src, dst) for src, dst in edges if src != dst]
    return {
        "self_loops": len(edges) - len(proper),
        "duplicates": len(edges) - len(set(edges)),
        "isolated": vertices - len({vertex for edge in proper for vertex in edge}),
        "max_in": max(Counter(dst for _, dst in edges).values(), default=0),
        "max_out": max(Counter(src for src, _ in edges).values(), default=0),
        "groups": len(groups),
        "blocks": len({(dst, src // 512) for src, dst in edges}),
        "fills": sum(busiest.values()),
    }


@given(st.integers(1, 1500), st.integers(0, 200), st.integers(0, 5))
def test_numbers_are_as_defined(vertices: int, edges: int, seed: int) -> None:
    pairs = np.random.default_rng(seed).integers(0, vertices, (2, edges))
    found = measure(Graph.from_edge_index(pairs, vertices))
    expected = as_defined([(int(src), int(dst)) for src, dst in pairs.T], vertices)
    assert {name: getattr(found, name) for name in expected} == expected
    assert (found.num_edges, found.reuse.rows) == (edges, len(set(pairs[0].tolist())))


@pytest.mark.parametrize("piece", [1, 7, 100])
@pytest.mark.parametrize("width", [30, 88])
def test_pieces_of_rows_add_up(piece: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = generate.power_law(700, 3000, 90)
    whole, histogram = measure(graph), source_histogram(graph, range(0, 700, width))
    monkeypatch.setattr(statistics, "PIECE_EDGES", piece)
    parts = measure(graph)
    assert {name: value for name, value in vars(parts).items() if name != "reuse"} == {
        name: value for name, value in vars(whole).items() if name != "reuse"
    }
    np.testing.assert_array_equal(source_histogram(graph, range(0, 700, width)), histogram)


def test_degrees_and_the_histogram_by_source_range() -> None:
    graph = generate.rmat(8, 2000)
    dense = np.zeros((256, 256), int)
    src, dst = graph.edge_index()
    np.add.at(dense, (dst, src), 1)
    assert in_degrees(graph).tolist() == dense.sum(axis=1).tolist()
    assert out_degrees(graph).tolist() == dense.sum(axis=0).tolist()
    np.testing.assert_array_equal(source_histogram(graph, range(0, 256, 8)), dense.reshape(256, 32, 8).sum(axis=2).T)
    for width in (32, 50, 256):
        found = source_histogram(graph, range(0, 256, width))
        np.testing.assert_array_equal(found, np.add.reduceat(dense, range(0, 256, width), axis=1).T)
    few: Any = source_histogram(Graph.from_edge_index([[0, 4], [1, 1]], 5), [0, 3])
    assert few.tolist() == [[0, 1, 0, 0, 0], [0, 1, 0, 0, 0]]


def test_ratios() -> None:
    found = statistics_of(Graph.from_edge_index([[0, 1, 2, 40], [0, 0, 0, 0]], 41))
    assert (found.groups, found.blocks, found.fills) == (2, 1, 1)
    assert (found.edges_per_group, found.blocks_per_edge, found.mean_degree) == (2, 0.25, 4 / 41)
    assert found.density == 4 / 41**2
    empty = statistics_of(Graph.from_edge_index(np.zeros((2, 0), int), 3))
    assert (empty.edges_per_group, empty.blocks_per_edge, empty.isolated) == (0, 0, 3)
