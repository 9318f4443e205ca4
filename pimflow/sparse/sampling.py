"""Mini-batches of a graph: neighbours of some vertices, and theirs in turn, drawn hop by hop without replacement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from pimflow.records import NamedTuple, dataclass
from pimflow.sparse.checks import Ints, Longs
from pimflow.sparse.graph import Graph


class Neighbourhood(Protocol):
    """A graph that may be computed on demand."""

    @property
    def num_vertices(self) -> int:
        """The number of vertices."""

    def degrees(self, vertices: Longs) -> Longs:
        """The number of edges into each of some vertices."""

    def sources(self, vertices: Longs, positions: Longs) -> Longs:
        """The sources of edges, each given by a vertex and a position below its degree; shapes broadcast."""

    def types(self, vertices: Longs, positions: Longs) -> Ints | None:
        """The types of the same edges; None if edges have none."""


@dataclass(frozen=True)
class InMemory:
    """A graph held in memory."""

    graph: Graph

    @property
    def num_vertices(self) -> int:
        """The number of destinations."""
        return self.graph.num_dst

    def degrees(self, vertices: Longs) -> Longs:
        """The degrees, from the row pointers."""
        found: Longs = self.graph.rowptr[vertices + 1] - self.graph.rowptr[vertices]
        return found

    def sources(self, vertices: Longs, positions: Longs) -> Longs:
        """The sources stored in the rows."""
        found: Longs = self.graph.col[self.graph.rowptr[vertices] + positions].astype(np.int64)
        return found

    def types(self, vertices: Longs, positions: Longs) -> Ints | None:
        """The edge types stored in the rows."""
        kinds = self.graph.edge_type
        return None if kinds is None else kinds[self.graph.rowptr[vertices] + positions]


@dataclass(frozen=True)
class EdgeType:
    """The edges of one relation.

    Args:
        source, destination: kinds of the vertices that they go from and to.
        edges: the graph that they are drawn from, with a row for every destination.
        num_edges: number of edges.
    """

    source: str
    destination: str
    edges: Neighbourhood
    num_edges: int


@dataclass(frozen=True)
class Heterogeneous:
    """Vertices of several kinds, numbered from 0 in each, and relations between them; any graph is one with one kind.

    Args:
        vertices: number of vertices, by kind.
        relations: relations by name.
    """

    vertices: Mapping[str, int]
    relations: Mapping[str, EdgeType]

    @property
    def num_edges(self) -> int:
        """The number of edges of all relations."""
        return sum(relation.num_edges for relation in self.relations.values())


VERTICES, EDGES = "vertices", "edges"
"""The names of the kind and the relation in a graph with one of each."""


def of_one_kind(edges: Neighbourhood, num_edges: int) -> Heterogeneous:
    """A heterogeneous graph with one kind of vertices, which are both sources and destinations."""
    return Heterogeneous({VERTICES: edges.num_vertices}, {EDGES: EdgeType(VERTICES, VERTICES, edges, num_edges)})


@dataclass(frozen=True, eq=False)
class Batch:
    """The part of a graph with one kind of vertices that one training step reads.

    Args:
        vertices: int64, the vertices whose features are read, without duplicates, the seeds first.
        hops: the edges, one bipartite graph per hop, the outermost first. Its sources are the first of `vertices`, its
            destinations the first of its sources.
    """

    vertices: Longs
    hops: tuple[Graph, ...]

    @property
    def edges(self) -> int:
        """The number of edges drawn."""
        return sum(hop.num_edges for hop in self.hops)


@dataclass(frozen=True, eq=False)
class TypedBatch:
    """The part of a heterogeneous graph that one training step reads.

    Args:
        vertices: as in `Batch`, by kind.
        hops: as in `Batch`, a bipartite graph for every relation.
    """

    vertices: Mapping[str, Longs]
    hops: tuple[Mapping[str, Graph], ...]

    @property
    def num_vertices(self) -> int:
        """The number of vertices of all kinds."""
        return sum(map(len, self.vertices.values()))

    @property
    def edges(self) -> int:
        """The number of edges drawn."""
        return sum(edges.num_edges for hop in self.hops for edges in hop.values())

    @property
    def single(self) -> Batch:
        """The batch of a graph with one kind of vertices."""
        (vertices,) = self.vertices.values()
        return Batch(vertices, tuple(edges for hop in self.hops for edges in hop.values()))


def sample(graph: Neighbourhood, seeds: Longs, fan_outs: Sequence[int], random: np.random.Generator) -> Batch:
    """Draws `fan_outs[0]` neighbours of every seed, `fan_outs[1]` neighbours of each of these, and so on.

    Like `sample_typed`, for a graph with one kind of vertices.
    """
    return sample_typed(of_one_kind(graph, 0), VERTICES, seeds, {EDGES: fan_outs}, random).single


def sample_typed(
    graph: Heterogeneous,
    kind: str,
    seeds: Longs,
    fan_outs: Mapping[str, Sequence[int]],
    random: np.random.Generator,
    *,
    once: bool = False,
) -> TypedBatch:
    """Draws neighbours of the seeds, then of these, hop by hop: a given number for every relation into a vertex.

    Edges are drawn uniformly and without replacement; a vertex with fewer edges gets all of them.

    Args:
        graph: the graph to draw from.
        kind, seeds: the vertices for which the training step computes results.
        fan_outs: number of neighbours to draw per vertex, by relation and hop.
        random: random number generator.
        once: whether the neighbours of a vertex are drawn in only one hop, the one after it was found, as in PyTorch
            Geometric's loader for networks that run over all vertices of a batch. Otherwise, as in DGL's blocks,
            neighbours are drawn again in each hop for all vertices found so far.
    """
    known = {name: np.zeros(0, np.int64) for name in graph.vertices} | {kind: seeds.astype(np.int64)}
    begins, hops = dict.fromkeys(known, 0), []
    for depth in range(min(map(len, fan_outs.values()))):
        found = {
            name: _neighbours(relation, known, begins, fan_outs[name][depth], random)
            for name, relation in graph.relations.items()
        }
        extended = {
            name: _extended(vertices, [found[one].sources for one in found if graph.relations[one].source == name])
            for name, vertices in known.items()
        }
        hops.append({name: _block(drawn, extended[graph.relations[name].source]) for name, drawn in found.items()})
        begins = {name: len(vertices) if once else 0 for name, vertices in known.items()}
        known = extended
    return TypedBatch(known, tuple(reversed(hops)))


class _Neighbours(NamedTuple):
    """Edges drawn: their number for each vertex, their sources, and their types."""

    rows: Longs
    sources: Longs
    types: Ints | None


def _neighbours(
    relation: EdgeType, known: Mapping[str, Longs], begins: Mapping[str, int], most: int, random: np.random.Generator
) -> _Neighbours:
    vertices, first = known[relation.destination], begins[relation.destination]
    rows, owners, positions = _drawn(relation.edges, vertices[first:], most, random)
    every = np.concatenate((np.zeros(first, np.int64), rows))
    return _Neighbours(every, relation.edges.sources(owners, positions), relation.edges.types(owners, positions))


def _extended(vertices: Longs, found: Sequence[Longs]) -> Longs:
    """The vertices, followed by newly found ones."""
    new = np.unique(np.concatenate(found)) if found else vertices[:0]
    return np.concatenate((vertices, new[~np.isin(new, vertices, assume_unique=True)]))


def _block(drawn: _Neighbours, known: Longs) -> Graph:
    """A graph of the drawn edges, with the positions of their sources among the known vertices."""
    order = np.argsort(known, kind="stable")
    columns = order[np.searchsorted(known[order], drawn.sources)]
    rowptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(drawn.rows)))
    return Graph(rowptr, columns.astype(np.int32), len(known), edge_type=drawn.types)


def _drawn(graph: Neighbourhood, vertices: Longs, most: int, random: np.random.Generator) -> tuple[Longs, Longs, Longs]:
    """Draws edges: their number for each vertex, and for each edge, vertex by vertex, its vertex and its position.

    Draws k of d by Floyd's method: for each j of the last k positions, a position from 0 to j is drawn; if that is
    already taken, j itself is taken (Bentley and Floyd, Communications of the ACM 30, 1987).
    """
    degrees = graph.degrees(vertices)
    counts = np.minimum(degrees, most)
    chosen = np.full((len(vertices), most), -1, np.int64)
    for column in range(most):
        last = degrees - counts + column
        draws = random.integers(0, np.maximum(last, 0) + 1)
        again = (chosen[:, :column] == draws[:, None]).any(axis=1)
        chosen[:, column] = np.where(again, last, draws)
    valid = np.arange(most) < counts[:, None]
    owners = np.repeat(vertices, counts)
    return counts, owners, chosen[valid]
