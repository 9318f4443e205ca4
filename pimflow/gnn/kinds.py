"""Heterogeneous graphs whose edge lists are named after the kinds of vertices that they join."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pimflow.errors import GraphDataError, counted
from pimflow.records import NamedTuple
from pimflow.sparse import Graph
from pimflow.sparse.relations import SEPARATOR, states_kinds
from pimflow.sparse.sampling import EdgeType, Heterogeneous, InMemory


class _Ends(NamedTuple):
    """The kinds that an edge list leads from and to."""

    source: str
    destination: str


def heterogeneous(graph: Graph, vertices: Mapping[str, int], where: str) -> Heterogeneous:
    """The relations of a graph with several edge lists, named SOURCE__RELATION__DESTINATION.

    Args:
        graph: the edge lists.
        vertices: their number, by kind; for other kinds, one more than the largest id.
        where: the name of the graph, for errors.

    Raises:
        GraphDataError: a name does not state its kinds, or an id exceeds the number of vertices.
    """
    ends = {relation.name: _ends(relation.name, where) for relation in graph.relations}
    least: dict[str, int] = {}
    for relation in graph.relations:
        for kind, count in zip(ends[relation.name], (relation.num_src, relation.num_dst), strict=True):
            least[kind] = max(least.get(kind, 0), count)
    _check(vertices, least, where)
    counts = {kind: vertices.get(kind, count) for kind, count in least.items()}
    lists = graph.edge_lists()
    return Heterogeneous(
        counts,
        {
            name: EdgeType(
                *kinds, _rows(lists[name], counts[kinds.source], counts[kinds.destination]), lists[name].shape[1]
            )
            for name, kinds in ends.items()
        },
    )


def _ends(name: str, where: str) -> _Ends:
    if not states_kinds(name):
        raise GraphDataError(
            f"{where}: the edge list {name!r} does not say which kinds of vertices it joins",
            "call it SOURCE__RELATION__DESTINATION, as in author__writes__paper",
        )
    source, _, destination = name.split(SEPARATOR)
    return _Ends(source, destination)


def _check(vertices: Mapping[str, int], least: Mapping[str, int], where: str) -> None:
    for kind, count in vertices.items():
        if kind not in least:
            raise GraphDataError(f"{where} has no vertices of kind {kind!r}", f"it has {', '.join(least)}")
        if count < least[kind]:
            known = counted(count, "vertex", "vertices")
            raise GraphDataError(
                f"{where} has an edge of {kind} {least[kind] - 1}, but only {known} of that kind",
                "number them from 0",
            )


def _rows(pairs: np.ndarray[tuple[int, ...], np.dtype[np.int64]], sources: int, destinations: int) -> InMemory:
    return InMemory(Graph.from_edges(pairs[0], pairs[1], sources, destinations))
