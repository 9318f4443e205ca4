"""Named graphs for mini-batch training: their sizes, and a generator of random graphs of the same size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pimflow.errors import GraphDataError, OptionError, did_you_mean, kind_of
from pimflow.gnn.kinds import heterogeneous
from pimflow.options import graph_of
from pimflow.records import dataclass
from pimflow.sparse import Graph
from pimflow.sparse.hashed import HashedGraph
from pimflow.sparse.sampling import EDGES, VERTICES, Heterogeneous, InMemory, of_one_kind


@dataclass(frozen=True)
class Published:
    """The published facts about a graph.

    Args:
        vertices, edges: how many.
        max_degree: the largest degree of a vertex, partly assumed.
        features, classes: columns of a vertex's features, and number of classes to predict.
        train: number of vertices that an epoch trains.
    """

    vertices: int
    edges: int
    max_degree: int
    features: int
    classes: int
    train: int


WORKLOADS: Mapping[str, Published] = {
    # Hamilton et al., NeurIPS 2017, as in PyTorch Geometric.
    "reddit": Published(232_965, 114_615_892, 21_657, 602, 41, 153_431),
    # Hu et al., NeurIPS 2020 (OGB), edges in both directions.
    "ogbn-products": Published(2_449_029, 123_718_280, 17_481, 100, 47, 196_615),
    # KONECT and the SuiteSparse collection, without features of their own. Sizes and numbers of columns are from memory
    # of these and of PyTorch-Direct's evaluation, not looked up; largest degrees, classes and training shares (1 %) are
    # assumed.
    "twitter7": Published(41_652_230, 1_468_365_182, 770_155, 343, 47, 416_522),
    "sk-2005": Published(50_636_154, 1_949_412_601, 8_563_808, 293, 47, 506_361),
    "wikipedia": Published(13_593_032, 437_217_424, 1_050_000, 800, 47, 135_930),
    # Hu et al., NeurIPS 2020 (OGB); the largest degree is assumed.
    "ogbn-papers100m": Published(111_059_956, 1_615_685_872, 155_000, 128, 172, 1_207_179),
}
"""Graphs of the sizes that PyTorch-Direct was evaluated on, as far as these are known (docs/gnn-epoch.md)."""


@dataclass(frozen=True, eq=False)
class Workload:
    """A graph to train on.

    Args:
        name: for readers.
        graph: from which neighbours are drawn.
        is_estimate: whether it is a random graph of a published graph's size.
        features: columns of each kind's features, where they are known.
        published: the published facts; None for a user's graph.
    """

    name: str
    graph: Heterogeneous
    is_estimate: bool
    features: Mapping[str, int]
    published: Published | None = None

    @property
    def is_typed(self) -> bool:
        """Whether it came as several edge lists."""
        return EDGES not in self.graph.relations

    @property
    def bytes(self) -> int:
        """The size of its edges as the loader stores them: one pointer per row and one id per edge, 8 bytes each."""
        rows = sum(relation.edges.num_vertices + 1 for relation in self.graph.relations.values())
        return 8 * (rows + self.graph.num_edges)


def workload(graph: object, seed: int = 0, vertices: Mapping[str, int] | None = None) -> Workload:
    """A graph by name, from a file, or as a value.

    Args:
        graph: a name, a file, or anything that `pimflow.compile` takes for a graph.
        seed: of a random graph.
        vertices: their number by kind, for a graph with several edge lists.

    Raises:
        GraphDataError: there is no such file or name, or the file does not hold a graph.
    """
    if not isinstance(graph, (str, Path)):
        counts = {**_counts(graph), **(vertices or {})}
        return _given("graph", _graph(graph), counts, _columns(graph))
    known = WORKLOADS.get(str(graph).lower())
    if known is not None:
        drawn = HashedGraph(known.vertices, known.edges, known.max_degree, seed)
        kinds = of_one_kind(drawn, known.edges)
        return Workload(str(graph).lower(), kinds, True, {VERTICES: known.features}, known)
    path = Path(graph)
    if not path.exists() and not path.suffix:
        raise GraphDataError(
            f"no graph and no file is called {str(graph)!r}",
            f"{did_you_mean(str(graph), WORKLOADS)} give a file, or one of {', '.join(WORKLOADS)}".lstrip(),
        )
    return _given(path.name, Graph.load(path), vertices or {}, {})


def _graph(given: object) -> Graph:
    """Convert a value that is neither a name nor a file to a graph.

    Raises:
        GraphDataError: it is not a graph.
    """
    try:
        found: Graph = graph_of(given)
    except OptionError:
        raise GraphDataError(
            f"graph is {kind_of(given)}", "give a file, a name, a pimflow.sparse.Graph, or edge lists by name"
        ) from None
    return found


def _counts(graph: Any) -> Mapping[str, int]:
    """Vertices by kind, if a PyTorch Geometric HeteroData states them; kinds that no edge joins are never drawn."""
    joined = {
        kind for source, _, destination in getattr(graph, "edge_index_dict", ()) for kind in (source, destination)
    }
    kinds = (kind for kind in getattr(graph, "node_types", ()) if kind in joined)
    return {kind: int(graph[kind].num_nodes) for kind in kinds if graph[kind].num_nodes is not None}


def _columns(graph: Any) -> Mapping[str, int]:
    """Columns of features by kind, if a Data or HeteroData of PyTorch Geometric's has them as `x`."""
    holders = {kind: graph[kind] for kind in getattr(graph, "node_types", ())} or {VERTICES: graph}
    shapes: dict[str, tuple[int, ...]] = {
        kind: getattr(getattr(holder, "x", None), "shape", ()) for kind, holder in holders.items()
    }
    return {kind: int(shape[1]) for kind, shape in shapes.items() if len(shape) == 2}


def _given(name: str, graph: Graph, vertices: Mapping[str, int], features: Mapping[str, int]) -> Workload:
    if graph.relations:
        return Workload(name, heterogeneous(graph, vertices, name), False, features)
    if vertices:
        raise GraphDataError(f"{name} has one edge list", "numbers of vertices by kind are for several lists")
    return Workload(name, of_one_kind(InMemory(_square(graph)), graph.num_edges), False, features)


def _square(graph: Graph) -> Graph:
    if graph.num_src != graph.num_dst:
        raise GraphDataError(
            f"the graph leads from {graph.num_src:,} sources to {graph.num_dst:,} destinations",
            "give a graph whose vertices are both sources and destinations",
        )
    return graph
