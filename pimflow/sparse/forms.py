"""What files say of a graph, before it is one, and how many edges memory has room for."""

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
"""Peak memory of reading an edge: source, destination and position as int32, the same again as rows, a weight."""


@dataclass(frozen=True)
class Edges:
    """A list of edges: sources, destinations, and how many of each there are, where that is said."""

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
        name: what it is called.
        num_src, num_dst: how many vertices its edges may lead from and to, numbered anew in every list.
    """

    name: str
    num_src: int
    num_dst: int


def check_memory(edges: int, where: str) -> None:
    """Refuses more edges than memory has room for.

    Raises:
        GraphDataError: there are.
    """
    if edges * BYTES_PER_EDGE > available_bytes():
        raise too_large(f"{where} has {edges:,} edges, which take {size_text(edges * BYTES_PER_EDGE)}")


def too_large(what: str) -> GraphDataError:
    """The error that something does not fit into memory."""
    return GraphDataError(f"{what}; {size_text(available_bytes())} of memory are free", "use a machine with more")
