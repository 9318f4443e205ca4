"""Orders of a graph's vertices that improve the locality of edges; each is linear except for sorting by small keys.

An order is an int32 permutation: the new id of every vertex. Edges are treated as undirected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from pimflow.errors import GraphDataError, choice
from pimflow.sparse.checks import Ids, Ints, Longs
from pimflow.sparse.graph import Graph
from pimflow.sparse.statistics import PIECE_EDGES, in_degrees, out_degrees, row_pieces

ROUNDS = 10
"""The maximum number of rounds of label propagation."""


def reordered(graph: Graph, order: str) -> Graph:
    """The same graph with its vertices in another order: "degree", "rcm" or "community".

    Raises:
        GraphDataError: the order is unknown, or sources and destinations are not the same vertices.
    """
    return relabelled(graph, ORDERS[choice("order", order, ORDERS, GraphDataError)](graph))


def relabelled(graph: Graph, names: Ids) -> Graph:
    """The graph with each vertex v renamed to `names[v]`; its edges are in the order in which they were given."""
    src, dst = graph.as_given(graph.col), graph.as_given(graph.destinations())
    weight = None if graph.weight is None else graph.as_given(graph.weight)
    kinds = None if graph.edge_type is None else graph.as_given(graph.edge_type)
    return Graph.from_edges(names[src], names[dst], graph.num_src, graph.num_dst, weight, kinds)


def by_degree(graph: Graph) -> Ints:
    """Vertices in descending order of degree."""
    return _new_ids(np.argsort(-_degrees(graph), kind="stable"))


def reverse_cuthill_mckee(graph: Graph) -> Ints:
    """The reverse Cuthill-McKee order (ACM 1969): breadth first, each vertex's neighbours in order of degree.

    All components are searched at the same time. The search of each starts at the vertex of lowest degree among those
    farthest from the component's vertex of lowest degree.
    """
    degrees = _degrees(graph)
    graphs, component = _undirected(graph), _components(graph)
    _, levels = _breadth_first(graphs, _starts(np.zeros(len(degrees), np.int32), degrees, component), degrees)
    visited, _ = _breadth_first(graphs, _starts(-levels, degrees, component), degrees)
    visited = visited[np.argsort(component[visited], kind="stable")]
    return _new_ids(visited[::-1])


def by_community(graph: Graph) -> Ints:
    """Vertices grouped by community, found by label propagation.

    The method of Raghavan, Albert and Kumara (Physical Review E 76, 2007): in every round, alternating halves of the
    vertices adopt the most frequent label among their neighbours.
    """
    labels = _square(graph)
    graphs = _undirected(graph)
    parity = np.random.default_rng(0).permutation(len(labels)) % 2
    for turn in range(2 * ROUNDS):
        wanted = _most_frequent(graphs, labels)
        changes = (wanted != labels) & (parity == turn % 2)
        labels = np.where(changes, wanted, labels)
        if np.count_nonzero(changes) < len(labels) // 1000:
            break
    return _new_ids(np.lexsort((-_degrees(graph), labels)))


ORDERS: Mapping[str, Callable[[Graph], Ints]] = {
    "degree": by_degree,
    "rcm": reverse_cuthill_mckee,
    "community": by_community,
}
"""Orders by name."""


def _square(graph: Graph) -> Ints:
    """The vertices of a graph that is not bipartite.

    Raises:
        GraphDataError: sources and destinations are not the same vertices.
    """
    if graph.num_src != graph.num_dst:
        raise GraphDataError(f"{graph!r} is bipartite", "only a graph with one kind of vertices can be reordered")
    return np.arange(graph.num_dst, dtype=np.int32)


def _degrees(graph: Graph) -> Longs:
    _square(graph)
    return in_degrees(graph) + out_degrees(graph)


def _undirected(graph: Graph) -> tuple[Graph, ...]:
    """One or two graphs whose rows together hold all neighbours of every vertex.

    One is enough if every vertex has as many incoming as outgoing edges, as in a graph in which every edge has its
    reverse.
    """
    is_symmetric = bool((in_degrees(graph) == out_degrees(graph)).all())
    return (graph,) if is_symmetric else (graph, graph.transposed())


def _new_ids(sequence: Ids) -> Ints:
    """The position of every vertex in a sequence of all vertices."""
    ids: Ints = np.empty(len(sequence), np.int32)
    ids[sequence] = np.arange(len(sequence), dtype=np.int32)
    return ids


def _components(graph: Graph) -> Ints:
    """The component of every vertex, numbered from 0."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    narrow = graph.rowptr.astype(np.int32) if graph.num_edges < 2**31 else graph.rowptr
    matrix = csr_matrix((np.ones(graph.num_edges, np.int8), graph.col, narrow), (graph.num_dst, graph.num_src))
    labels: Ints = connected_components(matrix, connection="weak")[1]
    return labels


def _starts(first: Ints, degrees: Longs, component: Ints) -> Ints:
    """The vertex of each component with the smallest `first`, ties broken by the smallest degree."""
    ranked = np.lexsort((degrees, first, component))
    begins = np.ones(len(ranked), bool)
    begins[1:] = component[ranked][1:] != component[ranked][:-1]
    starts: Ints = ranked[begins].astype(np.int32)
    return starts


def _breadth_first(graphs: tuple[Graph, ...], starts: Ints, degrees: Longs) -> tuple[Ints, Ints]:
    """All vertices in the order in which they are reached, and the distance of each from its start."""
    levels = np.full(len(degrees), -1, np.int32)
    levels[starts] = 0
    reached, frontier, level = [starts], starts, 0
    while len(frontier):
        level += 1
        nexts = [_next_frontier(graphs, piece, levels, degrees, level) for piece in _pieces(frontier, degrees)]
        frontier = np.concatenate(nexts)
        reached.append(frontier)
    return np.concatenate(reached), levels


def _pieces(frontier: Ints, degrees: Longs) -> list[Ints]:
    """Runs of vertices with a bounded number of edges, to limit the memory needed at a time."""
    places = np.cumsum(degrees[frontier]) // PIECE_EDGES
    return np.split(frontier, np.flatnonzero(np.diff(places)) + 1)


def _next_frontier(graphs: tuple[Graph, ...], frontier: Ints, levels: Ints, degrees: Longs, level: int) -> Ints:
    """Neighbours not reached before, ordered by the first vertex that they are neighbours of, then by degree."""
    parents, found = _neighbours(graphs, frontier)
    unseen = levels[found] < 0
    parents, found = parents[unseen], found[unseen]
    found = found[np.lexsort((degrees[found], parents))]
    levels[found] = level
    return found[_first_of_each(found, len(degrees))]


def _neighbours(graphs: tuple[Graph, ...], frontier: Ints) -> tuple[Longs, Ints]:
    """The neighbours of some vertices, each with the position of the vertex that it is a neighbour of."""
    parents, found = [], []
    for graph in graphs:
        begins, counts = graph.rowptr[frontier], graph.rowptr[frontier + 1] - graph.rowptr[frontier]
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        parents.append(np.repeat(np.arange(len(frontier)), counts))
        found.append(graph.col[np.repeat(begins, counts) + offsets])
    return np.concatenate(parents), np.concatenate(found)


def _first_of_each(ids: Ints, count: int) -> npt.NDArray[np.bool_]:
    """A mask of the first occurrences of ids in a sequence."""
    places = np.arange(len(ids))
    last_written = np.empty(count, np.int64)
    last_written[ids[::-1]] = places[::-1]
    firsts: npt.NDArray[np.bool_] = last_written[ids] == places
    return firsts


def _most_frequent(graphs: tuple[Graph, ...], labels: Ints) -> Ints:
    """The most frequent label among each vertex's neighbours; ties go to its own label."""
    best = labels.astype(np.int64)  # twice the count of a label, plus one for the vertex's own; and the label
    for graph in graphs:
        for first, rows, sources in row_pieces(graph):
            keys = np.sort(rows.astype(np.int64) * len(labels) + labels[sources])
            begins = np.flatnonzero(np.diff(keys, prepend=-1))
            owners, candidates = np.divmod(keys[begins], len(labels))
            owners += first
            counts = 2 * np.diff(begins, append=len(keys)) + (candidates == labels[owners])
            of_owner = np.flatnonzero(np.diff(owners, prepend=-1))
            frequent = np.maximum.reduceat(counts * len(labels) + candidates, of_owner)
            owners = owners[of_owner]
            best[owners] = np.maximum(best[owners], frequent)
    found: Ints = (best % max(len(labels), 1)).astype(np.int32)
    return found
