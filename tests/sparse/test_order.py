"""Orders of vertices: permutations that bring the ends of edges closer together, whatever the graph."""

from __future__ import annotations

import numpy as np
import pytest

from pimflow.errors import GraphDataError
from pimflow.sparse import ORDERS, Graph, generate, reordered, statistics_of
from pimflow.sparse.order import by_community, by_degree, relabelled, reverse_cuthill_mckee

GRAPHS = {
    "streets": generate.road_grid(20, 30),
    "one way": generate.rmat(8, 900),
    "isolated": Graph.from_edge_index([[3, 3], [3, 5]], 9),
    "no edges": Graph.from_edge_index(np.zeros((2, 0), int), 4),
    "no vertices": Graph.from_edge_index(np.zeros((2, 0), int), 0),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", GRAPHS)
def test_an_order_is_a_permutation_and_keeps_the_edges(order: str, name: str) -> None:
    graph = GRAPHS[name]
    names = ORDERS[order](graph)
    assert sorted(names.tolist()) == list(range(graph.num_dst))
    np.testing.assert_array_equal(relabelled(graph, names).edge_index(), names[graph.edge_index()])


def test_values_of_edges_move_with_them() -> None:
    edges = generate.rmat(6, 300).edge_index()
    graph = Graph.from_edge_index(edges, 64, np.arange(300), np.arange(300) % 7)
    moved = reordered(graph, "degree")
    assert moved.weight is not None
    assert moved.edge_type is not None
    assert moved.as_given(moved.weight).tolist() == list(range(300))
    assert moved.as_given(moved.edge_type).tolist() == [edge % 7 for edge in range(300)]


def test_by_degree_the_busiest_comes_first() -> None:
    star = Graph.from_edge_index([[4, 4, 4, 1], [0, 2, 3, 2]], 5)
    assert by_degree(star).tolist() == [2, 3, 1, 4, 0]


def bandwidth(graph: Graph) -> int:
    src, dst = graph.edge_index()
    return int(np.abs(src - dst).max())


def test_cuthill_mckee_narrows_the_band_as_far_as_scipys() -> None:
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import reverse_cuthill_mckee as scipys

    graph = generate.road_grid(20, 30)
    src, dst = graph.edge_index()
    sequence = scipys(coo_matrix((np.ones(graph.num_edges), (src, dst)), (600, 600)).tocsr(), symmetric_mode=True)
    names = np.empty(600, int)
    names[sequence] = np.arange(600)
    assert bandwidth(graph) > 400
    assert bandwidth(relabelled(graph, reverse_cuthill_mckee(graph))) <= 1.1 * bandwidth(relabelled(graph, names))


def test_cuthill_mckee_follows_directed_paths() -> None:
    path = Graph.from_edge_index([[2, 0, 3], [0, 3, 1]], 4)
    names = reverse_cuthill_mckee(path)
    assert bandwidth(relabelled(path, names)) == 1


def test_communities_that_were_planted_are_found() -> None:
    graph = generate.block_model(4000, 60_000, 40, 0.1)
    planted = generate.block_model(4000, 60_000, 40, 0.1, in_order=True)
    best = statistics_of(planted).edges_per_group
    assert statistics_of(graph).edges_per_group < 0.6 * best
    assert statistics_of(reordered(graph, "community")).edges_per_group > 0.9 * best
    assert by_community(graph).tolist() == by_community(graph).tolist()


def test_a_bipartite_graph_keeps_its_order() -> None:
    with pytest.raises(GraphDataError, match="is bipartite"):
        reordered(Graph.from_csr([0, 1], [3], 4), "rcm")
    with pytest.raises(GraphDataError, match="unknown order 'rmc'; did you mean 'rcm'"):
        reordered(GRAPHS["streets"], "rmc")
