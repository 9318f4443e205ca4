"""Graphs as text: edge lists and MatrixMarket files, plain and gzip, and errors in lines."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from pimflow.errors import GraphDataError
from pimflow.sparse import Graph, forms, text

EDGES = np.array([[2, 0, 1, 1], [1, 0, 0, 3]])


def load(tmp_path: Path, content: str | bytes, packed: bool = False) -> Graph:
    file = tmp_path / "graph.txt"
    octets = content.encode() if isinstance(content, str) else content
    file.write_bytes(gzip.compress(octets) if packed else octets)
    return Graph.load(file)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        "2 1\n0 0\n1 0\n1 3\n",
        "2,1\r\n0,0\r\n1,0\r\n1,3",
        "# a comment\n% another\n// and one more\n\n2\t1\n  0 0  # here too\n\n1; 0\n1 3\n\n",
        "source,target\n2,1\n0,0\n1,0\n1,3\n",
        "\ufeff2 1\n0 0\n1 0\n1 3\n",
    ],
)
def test_an_edge_list(content: str, packed: bool, tmp_path: Path) -> None:
    graph = load(tmp_path, content, packed)
    np.testing.assert_array_equal(graph.edge_index(), EDGES)
    assert graph.weight is None
    assert graph.num_dst == 4


def test_weights_are_in_a_third_column(tmp_path: Path) -> None:
    graph = load(tmp_path, "2 1 0.5\n0 0 1e-3\n1 0 -2\n1 3 7\n")
    assert graph.weight is not None
    np.testing.assert_array_equal(graph.as_given(graph.weight), np.array([0.5, 1e-3, -2, 7], np.float32))


@pytest.mark.parametrize("delimiter", [" ", ","])
def test_edge_lists_of_networkx_have_dicts(delimiter: str, tmp_path: Path) -> None:
    graph, file = nx.DiGraph(EDGES.T.tolist()), tmp_path / "graph.txt"
    nx.write_edgelist(graph, file, delimiter=delimiter)
    found = Graph.load(file)
    assert (sorted(zip(*found.edge_index(), strict=True)), found.weight) == (sorted(map(tuple, EDGES.T)), None)
    weights = {edge: np.float64(place + 0.5) for place, edge in enumerate(graph.edges)}
    nx.set_edge_attributes(graph, "a, #1", "name")
    nx.set_edge_attributes(graph, weights, "weight")
    nx.write_edgelist(graph, file, delimiter=delimiter)
    found = Graph.load(file)
    assert found.weight is not None
    given = zip(*found.edge_index().tolist(), found.as_given(found.weight).tolist(), strict=True)
    assert {(src, dst): weight for src, dst, weight in given} == weights


def test_a_comment_may_state_the_number_of_vertices(tmp_path: Path) -> None:
    assert load(tmp_path, "# Nodes: 9 Edges: 1\n0 1\n").num_dst == 9
    assert load(tmp_path, "# Nodes: 1 Edges: 1\n0 1\n").num_dst == 2  # as in a data set whose ids have gaps
    assert load(tmp_path, "# num_nodes=5\n").num_edges == 0


def test_pieces_meet_at_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_PIECE_BYTES", 64)
    edges = np.random.default_rng(0).integers(0, 5000, (2, 200))
    lines = "\n".join(f"{src} {dst}" for src, dst in edges.T)
    for packed in (False, True):
        np.testing.assert_array_equal(load(tmp_path, "from to\n" + lines, packed).edge_index(), edges)
    with pytest.raises(GraphDataError, match="line 152: 'x' where"):
        load(tmp_path, "\n".join([*lines.split("\n")[:150], "1 2", "x 4", "5 6"]))


@pytest.mark.parametrize("field", ["real", "integer", "pattern"])
@pytest.mark.parametrize("symmetry", ["general", "symmetric"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_matrix_of_matrix_market(field: str, symmetry: str, packed: bool, tmp_path: Path) -> None:
    value = {"real": " 0.5", "integer": " 3", "pattern": ""}[field]
    head = f"%%MatrixMarket matrix coordinate {field} {symmetry}\n% a comment\n3 3 3\n"
    graph = load(tmp_path, head + f"1 1{value}\n3 1{value}\n3 2{value}\n", packed)
    expected = {(0, 0), (2, 0), (2, 1)} | ({(0, 2), (1, 2)} if symmetry == "symmetric" else set())
    assert sorted(map(tuple, graph.edge_index().T.tolist())) == sorted(expected)
    if field == "pattern":
        assert graph.weight is None
    else:
        assert graph.weight is not None
        assert set(graph.weight.tolist()) == {float(value)}


HEAD = "%%MatrixMarket matrix coordinate real general\n"


@pytest.mark.parametrize("packed", [False, True])
def test_a_matrix_that_was_cut_off_in_a_number_crashes_nothing(packed: bool, tmp_path: Path) -> None:
    """scipy's reader would read past the end of the file; that of 1.10 refuses such a number."""

    def found() -> str:
        try:
            return str(load(tmp_path, HEAD + "2 2 2\n1 1 1\n1 2 2.5e", packed).weight)
        except GraphDataError as error:
            return error.what

    assert found().endswith(("[1.  2.5]", "could not convert string to float: b'2.5e'"))


BAD = [
    ("0 1\n2 three\n", "line 2: 'three' where a vertex id, an integer, should be"),
    ("0 1\n2 1-2\n", "line 2: '1-2' where a number should be"),
    ("0 1\n0.5 2\n", "line 2: '0.5' where a vertex id, an integer, should be"),
    ("0 1 1\n1e3 2 1\n", "line 2: '1e3' where a vertex id"),
    ("0 1\n1 2 3\n", "line 2: 3 numbers where an edge should be; the lines before have 2"),
    ("0 1\n0 2\n1 2 3\n", "line 3: 3 numbers where an edge should be; the lines before have 2"),
    ("4 4\n2 3\n1 3 4\n1 2\n2\n", "3 numbers where an edge should be; the file seems to be a METIS graph; write"),
    ("% c\n3 2 011 1\n1 2 5\n\n2 1 5 3 1\n", "4 numbers where an edge should be; the file seems to be a METIS graph"),
    (
        "0 1 2\n1 3\n2 0 1 3\n",
        "line 2: 2 numbers where an edge should be; the file seems to be a list of neighbours",
    ),
    ("# c\n0 1 2 3\n1\n2 3\n", "line 2: 4 numbers where an edge should be; the file seems to be a list of neighbours"),
    ("0 1\n1\n", "line 2: 1 number where an edge should be"),
    ("0 1 2 3\n", "line 1: 4 numbers where an edge should be"),
    ("a b\nc d\n", "line 2: 'c' where an edge should be"),
    ("0 1\n-1 2\n", "edge 1 goes from -1 to 2; vertices are numbered from 0"),
    ("0 1\n1 99999999999\n", "edge 1 goes from 1 to 99999999999"),
    ("0 1 nan\n", "edge 0 has weight nan"),
    (
        "source,target\n",
        "line 1: 'source' where an edge should be; write a line with two vertex ids for every edge, or",
    ),
    ("\n# data\nsome text", "line 3: 'some' where an edge should be"),
    ("# nothing\n", "graph.txt has no edges; write a line with two vertex ids for every edge, or save edge_index"),
    ("", "graph.txt has no edges; write a line with two"),
    ("<?xml version='1.0'?>\n<graphml>\n", "is neither an edge list nor an .npz file; write a line with two"),
    ("graph [\n  node [\n    id 0\n", "is neither an edge list nor an .npz file"),
    ("# made by hand\nstrict digraph G {\n0 -> 1\n}\n", "is neither an edge list nor an .npz file"),
    ('{"nodes": [{"id": 0}], "edges": [{"source": 0, "target": 0}]}', "is neither an edge list nor an .npz file"),
    ("0 1 {'weight': 2}\n1 2 {}\n", "line 2: 2 numbers where an edge should be; the lines before have 3"),
    (b"\0\1\2\3\n", "is neither text nor an .npz file"),
    (gzip.compress(b"0 1\n" * 9999, mtime=0)[:40], "cannot be read: Compressed file ended"),
    ("%%MatrixMarket matrix array real general\n1 1\n1\n", "its first line is '%%matrixmarket matrix array"),
    (HEAD + "2 2 2\n1 1 1\n1 2 2e\0\n", "is neither text nor an .npz file"),
    (HEAD + "2 2\n", "does not say how many rows, columns and entries"),
    (HEAD + "2 2 2\n1 1 1\n", "is not a MatrixMarket file: "),
    (HEAD + "2 2 1\n1 3 1\n", "is not a MatrixMarket file: "),
    (HEAD + "2 2 1\n0 1 1\n", "is not a MatrixMarket file: "),
    (HEAD + "2 2 1\n1 1 nan\n", "edge 0 has weight nan"),
    (HEAD + f"2 2 {10**15}\n1 1 1\n", "has 1,000,000,000,000,000 edges, which take"),
]


@pytest.mark.parametrize(("content", "message"), BAD)
def test_errors_name_the_line(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(GraphDataError) as caught:
        load(tmp_path, content)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_reading_stops_when_an_edge_list_outgrows_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_PIECE_BYTES", 4096)
    monkeypatch.setattr(forms, "available_bytes", lambda: 100_000)
    with pytest.raises(GraphDataError, match=r"has 4,096 edges, which take 112\.0 KiB; 97\.7 KiB of memory is free"):
        load(tmp_path, "0 1\n" * 100_000, packed=True)


def test_progress_says_how_far_reading_has_come(tmp_path: Path) -> None:
    file = tmp_path / "graph.txt"
    file.write_text("1 0\n0 1\n")
    lines: list[str] = []
    Graph.load(file, lines.append)
    assert lines == ["reading graph.txt: 100 %, 2 edges", "sorting 2 edges into rows"]
