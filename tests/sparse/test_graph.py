"""Graphs as data: their rows, their identity, and what is rejected."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimflow.errors import GraphDataError
from pimflow.sparse import Graph


def naive_rows(edge_index: Any, vertices: int) -> tuple[list[int], list[int], list[int]]:
    """Row pointers, sources and positions, by one pass over the edges per row."""
    rowptr, col, order = [0], [], []
    for row in range(vertices):
        edges = [edge for edge in range(edge_index.shape[1]) if edge_index[1, edge] == row]
        col += [int(edge_index[0, edge]) for edge in edges]
        order += edges
        rowptr.append(len(col))
    return rowptr, col, order


@st.composite
def edge_lists(draw: st.DrawFn) -> tuple[Any, int]:
    vertices = draw(st.integers(1, 9))
    ids = st.integers(0, vertices - 1)
    pairs = draw(st.lists(st.tuples(ids, ids), max_size=30))
    return np.array(pairs, np.int64).reshape(-1, 2).T, vertices


@given(edge_lists())
def test_rows_are_those_of_a_naive_sort(case: tuple[Any, int]) -> None:
    edge_index, vertices = case
    weight = np.arange(edge_index.shape[1]) + 0.5
    graph = Graph.from_edge_index(edge_index, vertices, weight, edge_index[0] % 3)
    rowptr, col, order = naive_rows(edge_index, vertices)
    assert (graph.rowptr.tolist(), graph.col.tolist()) == (rowptr, col)
    assert graph.weight is not None
    assert graph.weight.tolist() == weight[order].tolist()
    assert graph.order is None if order == sorted(order) else graph.order.tolist() == order  # type: ignore[union-attr]
    np.testing.assert_array_equal(graph.edge_index(), edge_index)
    back = graph.transposed()
    np.testing.assert_array_equal(back.edge_index(), edge_index[::-1])
    assert back.transposed().sha256 == graph.sha256
    assert graph.num_types == (max(edge_index[0] % 3, default=-1) + 1)


def test_types_are_as_narrow_as_they_can_be() -> None:
    graph = Graph.from_edge_index([[2, 0, 1], [1, 0, 0]], edge_weight=[1, 2, 3], edge_type=[0, 1, 4])
    assert [graph.rowptr.dtype.name, graph.col.dtype.name] == ["int64", "int32"]
    assert graph.order is not None
    assert graph.weight is not None
    assert graph.edge_type is not None
    assert {array.dtype.name for array in (graph.order, graph.edge_type)} == {"int32"}
    assert graph.weight.dtype.name == "float32"
    assert (graph.num_src, graph.num_dst, graph.num_edges, graph.num_types) == (3, 3, 3, 5)
    assert repr(graph) == "Graph(3 vertices, 3 edges)"


def test_a_graph_is_immutable_even_through_its_source_arrays() -> None:
    rowptr, col = np.array([0, 2]), np.array([0, 0], np.int32)
    weight = np.ones(2, np.float32)
    graph = Graph.from_csr(rowptr, col, edge_weight=weight)
    weight[0] = rowptr[1] = col[1] = 7
    assert (graph.rowptr.tolist(), graph.col.tolist()) == ([0, 2], [0, 0])
    assert graph.weight is not None
    assert graph.weight.tolist() == [1, 1]
    with pytest.raises(ValueError, match="read-only"):
        graph.col[0] = 1


def test_one_vertex_and_no_edges() -> None:
    graph = Graph.from_edge_index(np.zeros((2, 0)), 1)
    assert (graph.num_dst, graph.num_edges, graph.num_types) == (1, 0, 0)
    assert graph.edge_index().shape == (2, 0)
    assert graph.transposed().sha256 == graph.sha256


def test_the_digest_covers_structure_and_values_only() -> None:
    edges = np.array([[0, 1, 2, 2], [1, 2, 0, 0]])
    graph = Graph.from_edge_index(edges, 3)
    swapped = Graph.from_edge_index(edges[:, [2, 0, 1, 3]], 3)  # rows keep their order
    assert graph.sha256 == swapped.sha256 == Graph.from_csr(graph.rowptr, graph.col).sha256
    others = [
        Graph.from_edge_index(edges, 4),
        Graph.from_edge_index(edges, 3, [1, 1, 1, 1]),
        Graph.from_edge_index(edges, 3, [1, 1, 1, 2]),
        Graph.from_edge_index(edges, 3, edge_type=[1, 1, 1, 1]),
        Graph.from_edge_index(edges[::-1], 3),
    ]
    assert len({graph.sha256, *(other.sha256 for other in others)}) == 6


def test_entries_of_a_scipy_matrix_are_edges_from_row_to_column() -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")
    matrix = scipy_sparse.coo_matrix(([2.0, 3.0, 4.0], ([0, 0, 1], [2, 2, 0])), shape=(2, 3))
    for form in (matrix, scipy_sparse.coo_array(matrix)):
        graph = Graph.from_scipy(form)
        assert (graph.num_src, graph.num_dst, repr(graph)) == (2, 3, "Graph(2 to 3 vertices, 3 edges)")
        assert graph.edge_index().tolist() == [[0, 0, 1], [2, 2, 0]]
        assert graph.weight is not None
        assert graph.as_given(graph.weight).tolist() == [2, 3, 4]
    assert Graph.from_scipy(matrix.astype(bool)).weight is None
    with pytest.raises(GraphDataError, match="a list is not a scipy sparse matrix"):
        Graph.from_scipy([[1]])


def test_an_object_of_pytorch_geometric_is_read_by_its_attributes() -> None:
    data = SimpleNamespace(edge_index=np.array([[0, 1], [1, 1]]), num_nodes=3, edge_attr=np.array([[1.0], [2.0]]))
    graph = Graph.from_pyg(data)
    assert graph.num_dst == 3
    assert graph.weight is not None
    assert graph.weight.tolist() == [1, 2]
    wide = SimpleNamespace(edge_index=data.edge_index, num_nodes=3, edge_attr=np.ones((2, 4)))
    assert Graph.from_pyg(wide).weight is None
    with pytest.raises(GraphDataError, match="has no edge_index"):
        Graph.from_pyg(SimpleNamespace())


def test_a_mapping_is_read_like_a_file_with_these_arrays() -> None:
    pairs = np.array([[0, 1], [1, 2]])
    expected = Graph.from_edge_index(pairs)
    assert Graph.from_mapping({"edge_index": pairs}).sha256 == expected.sha256
    assert Graph.from_mapping({"edge_index": pairs, "num_nodes": 3}).sha256 == expected.sha256
    assert len(Graph.from_mapping({"edge_index": pairs, "cites": pairs}).relations) == 2


BAD: dict[str, tuple[Callable[[], Graph], str]] = {
    "shape": (lambda: Graph.from_edge_index([[0, 1, 2]]), "edge_index has shape [1, 3]; it must be [2, E]"),
    "ragged": (lambda: Graph.from_edge_index([[0, 1], [1]]), "graph: edge_index: its rows differ in length"),
    "float": (lambda: Graph.from_edge_index([[0.0], [1.0]]), "edge_index holds float64, not integers"),
    "negative": (
        lambda: Graph.from_edge_index([[0, -1], [1, 1]]),
        "edge 1 has source -1; vertices are numbered from 0",
    ),
    "range": (lambda: Graph.from_edge_index([[0], [5]], 5), "edge 0 has destination 5, but there are 5 vertices"),
    "huge": (lambda: Graph.from_edge_index(np.array([[0], [2**63]], np.uint64)), "edge 0 has destination 92233"),
    "nothing": (lambda: Graph.from_edge_index(np.zeros((2, 0), int)), "does not say how many vertices"),
    "vertices": (lambda: Graph.from_edge_index([[0], [0]], -1), "the number of vertices is -1; it must be between 0"),
    "nan": (lambda: Graph.from_edge_index([[0, 0], [0, 0]], edge_weight=[1, np.nan]), "edge 1 has weight nan"),
    "infinite": (lambda: Graph.from_edge_index([[0], [0]], edge_weight=[1e60]), "edge 0 has weight 1e+60"),
    "weights": (lambda: Graph.from_edge_index([[0], [0]], edge_weight=[1, 2]), "edge_weight has shape [2], but there"),
    "complex": (lambda: Graph.from_edge_index([[0], [0]], edge_weight=[1j]), "edge_weight holds complex128"),
    "type": (lambda: Graph.from_edge_index([[0], [0]], edge_type=[-2]), "edge 0 has type -2"),
    "rows": (lambda: Graph.from_csr([0, 2, 1, 3], [0, 0, 0]), "rowptr decreases after row 1"),
    "ends": (lambda: Graph.from_csr([0, 2], [0]), "rowptr goes from 0 to 2, but there are 1 edges"),
    "column": (lambda: Graph.from_csr([0, 1], [1]), "edge 0 has source 1, but there are 1 vertices"),
    "order": (lambda: Graph.from_csr([0, 2], [0, 0], order=[1, 1]), "order is not a permutation of 2 edges"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_graphs_are_one_line_errors(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises(GraphDataError) as caught:
        make()
    assert message in str(caught.value)
    assert str(caught.value).startswith("graph")
    assert "\n" not in str(caught.value)
