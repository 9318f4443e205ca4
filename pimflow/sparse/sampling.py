"""Mini-batches of a graph: neighbours of neighbours of some vertices, drawn without replacement, hop by hop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from pimflow.records import dataclass
from pimflow.sparse.checks import Ints, Longs
from pimflow.sparse.graph import Graph


class Neighbourhood(Protocol):
    """A graph of which only what is asked for need be there."""

    @property
    def num_vertices(self) -> int:
        """How many vertices it has."""

    def degrees(self, vertices: Longs) -> Longs:
        """How many edges lead into each of some vertices."""

    def sources(self, vertices: Longs, positions: Longs) -> Longs:
        """The sources of edges: of each vertex the edge at a position below its degree; shapes broadcast."""

    def types(self, vertices: Longs, positions: Longs) -> Ints | None:
        """The types of the same edges; None where edges have none."""


@dataclass(frozen=True)
class InMemory:
    """A graph that is there."""

    graph: Graph

    @property
    def num_vertices(self) -> int:
        """Of its destinations."""
        return self.graph.num_dst

    def degrees(self, vertices: Longs) -> Longs:
        """By its row pointers."""
        found: Longs = self.graph.rowptr[vertices + 1] - self.graph.rowptr[vertices]
        return found

    def sources(self, vertices: Longs, positions: Longs) -> Longs:
        """As its rows have them."""
        found: Longs = self.graph.col[self.graph.rowptr[vertices] + positions].astype(np.int64)
        return found

    def types(self, vertices: Longs, positions: Longs) -> Ints | None:
        """As its rows have them."""
        kinds = self.graph.edge_type
        return None if kinds is None else kinds[self.graph.rowptr[vertices] + positions]


@dataclass(frozen=True)
class EdgeType:
    """Edges of one relation.

    Args:
        source, destination: the kinds of vertices that they lead from and to.
        edges: where they are drawn: a row for every destination.
        num_edges: how many there are.
    """

    source: str
    destination: str
    edges: Neighbourhood
    num_edges: int


@dataclass(frozen=True)
class Heterogeneous:
    """Vertices of several kinds, numbered anew in each, and relations between them; any graph is one of one kind.

    Args:
        vertices: how many, by kind.
        relations: by name.
    """

    vertices: Mapping[str, int]
    relations: Mapping[str, EdgeType]

    @property
    def num_edges(self) -> int:
        """Of all relations."""
        return sum(relation.num_edges for relation in self.relations.values())


VERTICES, EDGES = "vertices", "edges"
"""The kind and the relation of a graph that has one of each."""


def of_one_kind(edges: Neighbourhood, num_edges: int) -> Heterogeneous:
    """A graph whose vertices are both sources and destinations."""
    return Heterogeneous({VERTICES: edges.num_vertices}, {EDGES: EdgeType(VERTICES, VERTICES, edges, num_edges)})


@dataclass(frozen=True, eq=False)
class Batch:
    """What one step of training reads of a graph of one kind.

    Args:
        vertices: int64, of which features are read, each once; those that the step is about come first.
        hops: the edges, a bipartite graph a hop, the outermost first: from vertices of the next hop (the first of
            `vertices`, as many as it has sources) to those of the hop before it, which are the first of its sources.
    """

    vertices: Longs
    hops: tuple[Graph, ...]

    @property
    def edges(self) -> int:
        """How many were drawn."""
        return sum(hop.num_edges for hop in self.hops)


@dataclass(frozen=True, eq=False)
class TypedBatch:
    """What one step of training reads.

    Args:
        vertices: as `Batch` has them, by kind.
        hops: as `Batch` has them, a bipartite graph for every relation.
    """

    vertices: Mapping[str, Longs]
    hops: tuple[Mapping[str, Graph], ...]

    @property
    def num_vertices(self) -> int:
        """Of all kinds."""
        return sum(map(len, self.vertices.values()))

    @property
    def edges(self) -> int:
        """How many were drawn."""
        return sum(edges.num_edges for hop in self.hops for edges in hop.values())

    @property
    def single(self) -> Batch:
        """The batch of a graph of one kind."""
        (vertices,) = self.vertices.values()
        return Batch(vertices, tuple(edges for hop in self.hops for edges in hop.values()))


def sample(graph: Neighbourhood, seeds: Longs, fan_outs: Sequence[int], random: np.random.Generator) -> Batch:
    """Draws for every seed `fan_outs[0]` of its neighbours, for each of all these `fan_outs[1]` of theirs, and so on.

    As `sample_typed`, of a graph of one kind.
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
    """Draws neighbours of seeds, and of these, hop by hop: so many of every relation that leads to a vertex.

    Edges are drawn evenly and without replacement; a vertex of fewer has all of its own.

    Args:
        graph: where they are drawn.
        kind, seeds: the vertices that a step is about.
        fan_outs: how many are drawn of a vertex, by relation and hop.
        random: what draws.
        once: of a vertex neighbours are drawn in one hop alone, the one behind that which found it, as PyTorch
            Geometric's loader does for networks that run over all vertices of a batch. Otherwise, as in DGL's blocks,
            all vertices of a hop have theirs drawn anew: those of the hop before it and whatever is new.
    """
    known = {name: np.zeros(0, np.int64) for name in graph.vertices} | {kind: seeds.astype(np.int64)}
    begins, hops = dict.fromkeys(known, 0), []
    for depth in range(min(map(len, fan_outs.values()))):
        found = {
            name: _neighbours(relation, known, begins, fan_outs[name][depth], random)
            for name, relation in graph.relations.items()
        }
        grown = {
            name: _grown(vertices, [found[one].sources for one in found if graph.relations[one].source == name])
            for name, vertices in known.items()
        }
        hops.append({name: _block(drawn, grown[graph.relations[name].source]) for name, drawn in found.items()})
        begins = {name: len(vertices) if once else 0 for name, vertices in known.items()}
        known = grown
    return TypedBatch(known, tuple(reversed(hops)))


class _Neighbours(NamedTuple):
    """Edges that were drawn: how many of each vertex, their sources, and their types."""

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


def _grown(vertices: Longs, found: Sequence[Longs]) -> Longs:
    """Vertices, and behind them those that were found anew."""
    new = np.unique(np.concatenate(found)) if found else vertices[:0]
    return np.concatenate((vertices, new[~np.isin(new, vertices, assume_unique=True)]))


def _block(drawn: _Neighbours, known: Longs) -> Graph:
    """Edges by the positions of their sources among known vertices."""
    order = np.argsort(known, kind="stable")
    columns = order[np.searchsorted(known[order], drawn.sources)]
    rowptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(drawn.rows)))
    return Graph(rowptr, columns.astype(np.int32), len(known), edge_type=drawn.types)


def _drawn(graph: Neighbourhood, vertices: Longs, most: int, random: np.random.Generator) -> tuple[Longs, Longs, Longs]:
    """How many edges of each vertex are drawn, and of each of them, vertex by vertex, whose it is and its position.

    A subset of k of d by Floyd's method: position j of the last k is drawn from 0 to j, and taken itself where that is
    taken already (Bentley and Floyd, Communications of the ACM 30, 1987).
    """
    degrees = graph.degrees(vertices)
    taken = np.minimum(degrees, most)
    chosen = np.full((len(vertices), most), -1, np.int64)
    for column in range(most):
        last = degrees - taken + column
        draws = random.integers(0, np.maximum(last, 0) + 1)
        again = (chosen[:, :column] == draws[:, None]).any(axis=1)
        chosen[:, column] = np.where(again, last, draws)
    valid = np.arange(most) < taken[:, None]
    owners = np.repeat(vertices, taken)
    return taken, owners, chosen[valid]
