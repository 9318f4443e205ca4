"""Edge lists whose names state which kinds of vertices they join."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pimflow import gnn
from pimflow.errors import GraphDataError
from pimflow.gnn.kinds import heterogeneous
from pimflow.gnn.workloads import workload
from pimflow.options import graph_of
from pimflow.sparse import Graph

CITES, WRITES = np.array([[0, 4], [1, 1]]), np.array([[2, 2, 0], [3, 0, 3]])
LISTS = {("paper", "cites", "paper"): CITES, ("author", "writes", "paper"): WRITES}


def test_the_largest_id_determines_the_number_of_vertices() -> None:
    found = heterogeneous(graph_of(LISTS), {}, "graph")
    assert found.vertices == {"paper": 5, "author": 3}
    writes = found.relations["author__writes__paper"]
    assert (writes.source, writes.destination, writes.num_edges) == ("author", "paper", 3)
    assert writes.edges.degrees(np.arange(5)).tolist() == [1, 0, 0, 2, 0]
    assert writes.edges.sources(np.array([3, 3]), np.array([0, 1])).tolist() == [2, 0]
    assert heterogeneous(graph_of(LISTS), {"paper": 9}, "graph").vertices == {"paper": 9, "author": 3}


def test_files_use_names_and_pytorch_geometric_triples(tmp_path: Path) -> None:
    stored: Any = {"__".join(triple): pairs for triple, pairs in LISTS.items()}
    np.savez(tmp_path / "mag.npz", **stored)

    class Kind:
        num_nodes = 12
        x = np.zeros((12, 7))

    class HeteroData:
        edge_index_dict = LISTS
        node_types = ("paper", "author", "joined by no edge")

        def __getitem__(self, kind: str) -> Kind:
            return Kind()

    assert workload(tmp_path / "mag.npz").graph.vertices == {"paper": 5, "author": 3}
    known = workload(HeteroData()).graph
    assert known.vertices == {"paper": 12, "author": 12}
    assert list(known.relations) == list(stored)
    assert workload(HeteroData(), vertices={"author": 20}).graph.vertices == {"paper": 12, "author": 20}
    found = gnn.epoch(HeteroData(), kind="paper", fan_outs={("author", "writes", "paper"): (2,), "*": (0,)})
    assert [kind.features for kind in found.loop.kinds] == [7, 7]
    assert [one.fan_outs for one in found.loop.relations] == [(0,), (2,)]


@pytest.mark.parametrize(
    ("lists", "vertices", "message"),
    [
        (
            {"writes": WRITES},
            {},
            "the edge list 'writes' does not say which kinds of vertices it joins; call it SOURCE",
        ),
        ({"a__b__c__d": WRITES}, {}, "the edge list 'a__b__c__d' does not say"),
        (LISTS, {"field": 3}, "has no vertices of kind 'field'; it has paper, author"),
        (LISTS, {"author": 2}, "has an edge of author 2, but only 2 vertices of that kind; number them from 0"),
    ],
)
def test_invalid_heterogeneous_graphs_are_one_line_errors(lists: Any, vertices: dict[str, int], message: str) -> None:
    with pytest.raises(GraphDataError) as caught:
        workload(lists, vertices=vertices)
    assert message in str(caught.value)


def test_one_edge_list_has_no_kinds() -> None:
    with pytest.raises(GraphDataError, match="graph has one edge list"):
        workload(Graph.from_edge_index(CITES), vertices={"paper": 9})
