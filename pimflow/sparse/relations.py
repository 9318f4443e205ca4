"""The edge lists of a heterogeneous graph as one graph, in which each list has vertices of its own, in list order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.errors import GraphDataError
from pimflow.sparse import checks
from pimflow.sparse.checks import Ids
from pimflow.sparse.forms import Relation

SEPARATOR = "__"
"""The separator in a list's name SOURCE__RELATION__DESTINATION, PyTorch Geometric's notation for edge types."""


def concatenated(lists: Mapping[str, npt.NDArray[Any]], where: str) -> tuple[Ids, Ids, tuple[Relation, ...]]:
    """The sources and destinations of all lists, concatenated, and the lists' descriptions.

    The numbers of sources and destinations of a list follow from its largest ids.

    Args:
        lists: integers [2, E] each, by name.
        where: the source of the data, for error messages.

    Raises:
        GraphDataError: there are none, or one is not an edge list.
    """
    if not lists:
        raise GraphDataError(f"{where} has no edge list", "give integers [2, E] for every edge list of the model")
    ends: list[list[Ids]] = []
    found: list[Relation] = []
    offsets = np.zeros(2, np.int64)
    for name, given in lists.items():
        pair = checks.pairs(given, f"{where}: {name}")
        sides = [
            checks.ids(side, end, None, f"{where}: {name}")
            for end, side in zip(("source", "destination"), pair, strict=True)
        ]
        sizes = [int(side.max()) + 1 if len(side) else 0 for side in sides]
        ends.append([side.astype(np.int64) + first for side, first in zip(sides, offsets, strict=True)])
        found.append(Relation(name, *sizes))
        offsets += sizes
    src, dst = (np.concatenate(side) for side in zip(*ends, strict=True))
    return src, dst, tuple(found)


def states_kinds(name: str) -> bool:
    """Whether a list's name states the kinds that it joins."""
    parts = name.split(SEPARATOR)
    return len(parts) == 3 and all(parts)


def is_one_of_several(others: Sequence[str], beside: Sequence[str], where: str) -> bool:
    """Whether `edge_index` is the name of one edge list among several, and not that of the edges of the whole graph.

    Args:
        others: the names of other edge lists. One that ends in "_index", such as PyTorch Geometric's edge_label_index,
            picks from the graph and is no list of it.
        beside: the names of what belongs to the edges of a whole graph: weights, types, the number of vertices.
        where: the source of the data, for error messages.

    Raises:
        GraphDataError: the arrays are those of a whole graph and of a heterogeneous one.
    """
    lists = [name for name in others if states_kinds(name) or not name.endswith("_index")]
    if (lists and beside) or any(map(states_kinds, lists)):
        whole = " and ".join(("edge_index", *beside))
        raise GraphDataError(
            f"{where} has {whole}, as for a model with one edge list, but also the edge lists {', '.join(lists)}",
            "leave out what the model does not read",
        )
    return bool(lists)


def list_name(name: object, where: str) -> str:
    """The name of a list as a string; PyTorch Geometric's triples are joined.

    Raises:
        GraphDataError: it is neither a string nor a tuple of strings.
    """
    parts = name if isinstance(name, tuple) else (name,)
    if not all(isinstance(part, str) for part in parts):
        raise GraphDataError(f"{where}: an edge list is called {name!r}", "give a name, or three of them in a tuple")
    return SEPARATOR.join(parts)


def find_list(name: str, lists: Iterable[str]) -> str | None:
    """The list with a given name: the full name, or the relation if only one list has it; None if there is none."""
    names = tuple(lists)
    alike = [known for known in names if known.split(SEPARATOR)[1:2] == [name]]
    if name in names:
        return name
    return alike[0] if len(alike) == 1 else None
