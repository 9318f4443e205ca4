"""Checks of graph data: each error is one line that says what is wrong, where, and what to do."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pimflow.errors import GraphDataError
from pimflow.sparse.forms import Relation

Ids = npt.NDArray[np.integer[Any]]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Number = TypeVar("Number", bound=np.generic)

FORMAT = "pimflow-graph/1"
"""The format in which `Graph.save` stores a graph."""

_HASHED_BYTES = 1 << 24

MAX_VERTICES = 2**31 - 1
"""The maximum number of vertices: their ids are stored as int32."""


def vertex_count(count: object, where: str) -> int:
    """A number of vertices, checked.

    Raises:
        GraphDataError: a graph cannot have this number.
    """
    array = np.asarray(count)
    if array.size != 1 or array.dtype.kind not in "iu":
        raise GraphDataError(f"{where}: the number of vertices is {count}; it must be one integer")
    number = int(array.reshape(-1)[0])
    if not 0 <= number <= MAX_VERTICES:
        raise GraphDataError(f"{where}: the number of vertices is {number}; it must be between 0 and {MAX_VERTICES}")
    return number


def vertex_counts(count: object, where: str) -> tuple[int, int]:
    """The numbers of sources and of destinations: two integers, or one for both.

    Raises:
        GraphDataError: a graph cannot have these numbers.
    """
    array = np.asarray(count)
    if array.shape != (2,):
        number = vertex_count(count, where)
        return number, number
    return vertex_count(array[0], where), vertex_count(array[1], where)


def integers(array: npt.NDArray[Any], what: str, where: str) -> Ids:
    """An array of integers; an empty one may be of any type.

    Raises:
        GraphDataError: it holds something else.
    """
    if array.dtype.kind in "iu":
        return array
    if array.size == 0:
        return array.astype(np.int32)
    raise GraphDataError(f"{where}: {what} holds {array.dtype.name}, not integers", "save it as int64")


def pairs(array: npt.NDArray[Any], where: str) -> tuple[Ids, Ids]:
    """Sources and destinations of an edge list [2, E].

    Raises:
        GraphDataError: it has another shape, or does not hold integers.
    """
    if array.ndim != 2 or array.shape[0] != 2:
        raise GraphDataError(
            f"{where}: edge_index has shape {list(array.shape)}; it must be [2, E]",
            "give a row of sources and a row of destinations",
        )
    src, dst = integers(array, "edge_index", where)
    return src, dst


def vertices_of(src: Ints, dst: Ints, where: str) -> int:
    """The number of vertices that edges imply: the largest id plus one.

    Raises:
        GraphDataError: there are no edges.
    """
    if not src.size:
        raise GraphDataError(f"{where} has no edges, and does not say how many vertices there are", "give num_nodes")
    return max(int(np.max(src)), int(np.max(dst))) + 1


def ids(array: Ids, what: str, vertices: int | None, where: str) -> Ints:
    """Vertex ids as int32.

    Args:
        array: one id per edge.
        what: their role in an edge ("source", "destination").
        vertices: number of vertices; None if unknown.
        where: the source of the data, for error messages.

    Raises:
        GraphDataError: an id is negative or too large.
    """
    if array.size == 0:
        return array.astype(np.int32)
    bound = MAX_VERTICES if vertices is None else vertices
    if int(np.min(array)) < 0:
        edge = int(np.argmax(array < 0))
        raise GraphDataError(f"{where}: edge {edge} has {what} {array[edge]}; vertices are numbered from 0")
    if int(np.max(array)) >= bound:
        edge = int(np.argmax(array >= bound))
        found = f"{where}: edge {edge} has {what} {array[edge]}"
        if vertices is None:
            raise GraphDataError(f"{found}; ids go up to {bound - 1}", "correct the edge")
        raise GraphDataError(
            f"{found}, but there are {bound} vertices",
            "vertices are numbered from 0; correct the edges or the number of vertices",
        )
    return array.astype(np.int32, copy=False)


def per_edge(array: npt.NDArray[Any], edges: int, what: str, where: str) -> npt.NDArray[Any]:
    """One value per edge as [E]; [E, 1] is accepted.

    Raises:
        GraphDataError: it has another shape.
    """
    if array.shape in ((edges,), (edges, 1)):
        return array.reshape(edges)
    raise GraphDataError(
        f"{where}: {what} has shape {list(array.shape)}, but there are {edges} edges", "give one per edge"
    )


def weights(array: npt.NDArray[Any], edges: int, where: str) -> Floats:
    """Edge weights as float32 [E].

    Raises:
        GraphDataError: there is not one per edge, or one is not a finite number.
    """
    values = per_edge(array, edges, "edge_weight", where)
    if values.dtype.kind not in "iufb":
        raise GraphDataError(f"{where}: edge_weight holds {values.dtype.name}, not real numbers", "save it as float32")
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32, copy=False)
    if narrow.size and not np.isfinite(np.min(narrow) + np.max(narrow)):  # a NaN or an infinity shows in the sum
        faults = np.flatnonzero(~np.isfinite(narrow))
        if faults.size:
            edge = int(faults[0])
            raise GraphDataError(f"{where}: edge {edge} has weight {values[edge]}, which is not a finite float32")
    return narrow


def matrix_weights(values: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """The values of a matrix as weights; None if they only mark edges: booleans, or all of them 1."""
    if values.dtype.kind == "b" or (values.size and bool((values == 1).all())):
        return None
    return values


def types(array: npt.NDArray[Any], edges: int, where: str) -> Ints:
    """Edge types as int32 [E].

    Raises:
        GraphDataError: there is not one per edge, or one is not a valid type.
    """
    values = integers(per_edge(array, edges, "edge_type", where), "edge_type", where)
    if values.size and not 0 <= int(np.min(values)) <= int(np.max(values)) < 2**31 - 1:
        edge = int(np.argmax((values < 0) | (values >= 2**31 - 1)))
        raise GraphDataError(f"{where}: edge {edge} has type {values[edge]}; types are numbered from 0")
    return values.astype(np.int32, copy=False)


def rows(rowptr: npt.NDArray[Any], edges: int, where: str) -> Longs:
    """Row pointers as int64.

    Raises:
        GraphDataError: they do not fit the number of edges.
    """
    pointers = integers(rowptr, "rowptr", where).astype(np.int64, copy=False)
    if pointers.ndim != 1 or pointers.size == 0:
        raise GraphDataError(f"{where}: rowptr has shape {list(pointers.shape)}; it must be [vertices + 1]")
    if pointers[0] != 0 or pointers[-1] != edges:
        raise GraphDataError(f"{where}: rowptr goes from {pointers[0]} to {pointers[-1]}, but there are {edges} edges")
    falls = np.flatnonzero(np.diff(pointers) < 0)
    if falls.size:
        raise GraphDataError(f"{where}: rowptr decreases after row {falls[0]}; it must not")
    return pointers


def permutation(order: npt.NDArray[Any], edges: int, where: str) -> Ids:
    """Positions of edges, int32 if they fit.

    Raises:
        GraphDataError: they are not a permutation.
    """
    positions = integers(per_edge(order, edges, "order", where), "order", where)
    seen = np.zeros(edges, bool)
    if edges and 0 <= int(np.min(positions)) <= int(np.max(positions)) < edges:
        seen[positions] = True
    if not seen.all():
        raise GraphDataError(f"{where}: order is not a permutation of {edges} edges")
    return positions if positions.dtype.itemsize <= 4 else positions.astype(np.int32 if edges < 2**31 else np.int64)


def relations(found: tuple[Relation, ...], num_src: int, num_dst: int, where: str) -> tuple[Relation, ...]:
    """The edge lists of a graph, checked.

    Raises:
        GraphDataError: their vertices are not those of the graph.
    """
    sizes = (sum(item.num_src for item in found), sum(item.num_dst for item in found))
    if found and sizes != (num_src, num_dst):
        raise GraphDataError(f"{where}: its edge lists are damaged", "save the graph again with Graph.save")
    return found


def defensive_copy(array: npt.NDArray[Number], given: npt.ArrayLike) -> npt.NDArray[Number]:
    """An array that the caller cannot modify: a copy if it shares memory with a writeable `given`."""
    if isinstance(given, np.ndarray) and given.flags.writeable and np.may_share_memory(array, given):
        copy: npt.NDArray[Number] = array.copy()
        return copy
    return array


def hash_array(digest: Any, array: npt.NDArray[Any]) -> None:
    """Adds an array's elements to a hash, little-endian and in chunks: the array may be mapped and exceed memory."""
    piece = _HASHED_BYTES // array.itemsize
    for first in range(0, len(array), piece):
        part = array[first : first + piece]
        digest.update(np.ascontiguousarray(part, part.dtype.newbyteorder("<")).data)
