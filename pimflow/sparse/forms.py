"""The contents of graph files before they are a `Graph`, and the check that memory has room for the edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt

from pimflow.errors import GraphDataError
from pimflow.records import dataclass
from pimflow.sparse.memory import available_bytes, size_text

Progress = Callable[[str], None]
"""Receives one line of text from time to time."""

BYTES_PER_EDGE = 28
"""Peak memory for reading an edge: source, destination and position as int32, the same again as rows, and a weight."""


@dataclass(frozen=True)
class Edges:
    """A list of edges: sources, destinations, and the number of each if it is given."""

    src: npt.NDArray[Any]
    dst: npt.NDArray[Any]
    num_src: int | None
    num_dst: int | None
    weight: npt.NDArray[Any] | None
    edge_type: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class Rows:
    """Compressed rows, one per destination."""

    rowptr: npt.NDArray[Any]
    col: npt.NDArray[Any]
    num_src: int
    weight: npt.NDArray[Any] | None
    edge_type: npt.NDArray[Any] | None = None
    order: npt.NDArray[Any] | None = None
    relations: tuple[Relation, ...] = ()


@dataclass(frozen=True)
class EdgeLists:
    """The edge lists of a heterogeneous graph, integers [2, E] each, by name."""

    lists: Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Relation:
    """One edge list of a heterogeneous graph.

    Args:
        name: name of the list.
        num_src, num_dst: number of sources and of destinations, numbered from 0 in every list.
    """

    name: str
    num_src: int
    num_dst: int


def check_memory(edges: int, where: str) -> None:
    """Checks that memory has room for a number of edges.

    Raises:
        GraphDataError: it has not.
    """
    if edges * BYTES_PER_EDGE > available_bytes():
        raise too_large(f"{where} has {edges:,} edges, which take {size_text(edges * BYTES_PER_EDGE)}")


def too_large(what: str) -> GraphDataError:
    """The error for something that does not fit into memory."""
    return GraphDataError(f"{what}; {size_text(available_bytes())} of memory is free", "use a machine with more")
