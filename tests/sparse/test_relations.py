"""Heterogeneous graphs: named edge lists combined into one graph, and separated again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.errors import GraphDataError
from pimflow.sparse import Graph

Lists = dict[str, npt.NDArray[np.int64]]


@st.composite
def edge_lists(draw: st.DrawFn) -> Lists:
    """One to four lists of up to 20 edges, each with its own ids."""
    lists: Lists = {}
    for index in range(draw(st.integers(1, 4))):
        ids = st.lists(st.integers(0, draw(st.integers(0, 9))), min_size=0, max_size=20)
        src = draw(ids)
        dst = draw(st.lists(st.integers(0, 6), min_size=len(src), max_size=len(src)))
        lists[f"list {index}"] = np.array([src, dst], np.int64).reshape(2, len(src))
    return lists


def assert_same(found: Lists, lists: Lists) -> None:
    assert list(found) == list(lists)
    for name, pairs in lists.items():
        np.testing.assert_array_equal(found[name], pairs)


@settings(max_examples=50)
@given(edge_lists())
def test_lists_come_back_in_the_order_given(lists: Lists) -> None:
    graph = Graph.from_edge_lists(lists)
    assert_same(graph.edge_lists(), lists)
    assert graph.num_edges == sum(pairs.shape[1] for pairs in lists.values())
    assert graph.num_src == sum(int(pairs[0].max(initial=-1)) + 1 for pairs in lists.values())


def test_a_file_has_an_array_for_every_list_and_a_saved_graph_is_read_again(tmp_path: Path) -> None:
    lists = {"cites": np.array([[3, 0, 1], [1, 2, 0]]), "writes": np.zeros((2, 0), np.int64)}
    stored: Any = lists
    np.savez(tmp_path / "lists.npz", **stored, features=np.ones((2, 5), np.float32), sizes=np.arange(2))
    graph = Graph.load(tmp_path / "lists.npz")
    assert_same(graph.edge_lists(), lists)
    graph.save(tmp_path / "saved.npz")
    again = Graph.load(tmp_path / "saved.npz")
    assert_same(again.edge_lists(), lists)
    assert again.sha256 == graph.sha256
    renamed = Graph.from_edge_lists(dict(zip(("writes", "cites"), lists.values(), strict=True)))
    assert renamed.sha256 != graph.sha256, "names are part of the content"
    assert renamed.structure_sha256 == graph.structure_sha256


@pytest.mark.parametrize(
    ("others", "lists"),
    [
        (["paper__cites__paper"], "edge_index, .* but also the edge lists paper__cites__paper; leave out"),
        (["num_nodes", "cites", "writes"], "edge_index and num_nodes, .* but also the edge lists cites, writes; leave"),
        (["cites"], "cites edge_index"),
        (["edge_label_index", "num_nodes"], ""),
        (["edge_label_index", "labels"], ""),
    ],
)
def test_edge_index_is_a_list_of_several_or_refused_beside_them(others: list[str], lists: str, tmp_path: Path) -> None:
    """Never the whole graph while other lists are ignored; PyTorch Geometric's pairs to predict are no edges of it."""
    pairs = np.array([[3, 0, 1], [1, 2, 0]])
    known: Any = {"num_nodes": np.array(7), "labels": np.ones((2, 3), np.float32)}
    arrays: Any = {"edge_index": pairs, **{name: known.get(name, pairs) for name in others}}
    np.savez(tmp_path / "graph.npz", **arrays)
    reads: dict[str, Callable[[], Graph]] = {
        "graph.npz": lambda: Graph.load(tmp_path / "graph.npz"),
        "graph": lambda: Graph.from_mapping(arrays),
    }
    for where, read in reads.items():
        if ";" in lists:
            with pytest.raises(GraphDataError, match=f"{where} has {lists}"):
                read()
        else:
            assert sorted(relation.name for relation in read().relations) == lists.split()


def test_invalid_graphs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphDataError, match="graph has no edge list"):
        Graph.from_edge_lists({})
    with pytest.raises(GraphDataError, match="graph: cites: edge 1 has source -1; vertices are numbered from 0"):
        Graph.from_edge_lists({"cites": [[0, -1], [0, 0]]})
    with pytest.raises(GraphDataError, match="graph: cites: edge 0 has destination 18446744073709551615; ids go up to"):
        Graph.from_edge_lists({"cites": np.array([[0], [2**64 - 1]], np.uint64)})
    with pytest.raises(GraphDataError, match="graph: cites"):
        Graph.from_edge_lists({"cites": [[0, 1]]})
    names: tuple[Any, ...] = (5, ("paper", 1, "paper"))
    for name in names:
        with pytest.raises(GraphDataError, match=r"graph: an edge list is called .*; give a name"):
            Graph.from_edge_lists({name: [[0], [1]]})
    np.savez(tmp_path / "none.npz", features=np.ones((2, 5), np.float32))
    with pytest.raises(GraphDataError, match="has no edge_index"):
        Graph.load(tmp_path / "none.npz")
    stored: Any = {"paper__cites__paper": [[0], [1]], "author__writes__paper": np.zeros((2, 5))}
    np.savez(tmp_path / "floats.npz", **stored)
    with pytest.raises(GraphDataError, match="author__writes__paper: edge_index holds float64, not integers"):
        Graph.load(tmp_path / "floats.npz")
    graph = Graph.from_edge_lists({"cites": [[0, 1], [1, 0]]})
    graph.save(tmp_path / "good.npz")
    stored = dict(np.load(tmp_path / "good.npz"))
    for damage in ({"relation_ends": np.array([[2, 3]])}, {"relation_names": np.array(["a", "b"])}):
        np.savez(tmp_path / "damaged.npz", **(stored | damage))
        with pytest.raises(GraphDataError, match="its edge lists are damaged"):
            Graph.load(tmp_path / "damaged.npz")
