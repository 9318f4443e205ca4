"""Mini-batches of a graph: neighbours of neighbours of some vertices, drawn without replacement, hop by hop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

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


@dataclass(frozen=True, eq=False)
class Batch:
    """What one step of training reads.

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


def sample(graph: Neighbourhood, seeds: Longs, fan_outs: Sequence[int], random: np.random.Generator) -> Batch:
    """Draws for every seed `fan_outs[0]` of its neighbours, for each of all these `fan_outs[1]` of theirs, and so on.

    Edges are drawn evenly and without replacement; a vertex of fewer has all of its own. As in DGL's blocks, the
    vertices of a hop are those of the hop before it and whatever is new.
    """
    vertices, hops = seeds.astype(np.int64), []
    for most in fan_outs:
        rows, owners, positions = _drawn(graph, vertices, most, random)
        drawn = graph.sources(owners, positions)
        known = np.unique(drawn)
        known = np.concatenate((vertices, known[~np.isin(known, vertices, assume_unique=True)]))
        order = np.argsort(known, kind="stable")
        columns = order[np.searchsorted(known[order], drawn)]
        rowptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(rows)))
        kinds = graph.types(owners, positions)
        hops.append(Graph(rowptr, columns.astype(np.int32), len(known), edge_type=kinds))
        vertices = known
    return Batch(vertices, tuple(reversed(hops)))


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
