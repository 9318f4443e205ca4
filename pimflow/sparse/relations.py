"""The edge lists of a heterogeneous graph, as one graph: vertices of every list for themselves, one after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.errors import GraphDataError
from pimflow.sparse import checks
from pimflow.sparse.checks import Ids
from pimflow.sparse.forms import Relation

SEPARATOR = "__"
"""Of the name SOURCE__RELATION__DESTINATION that a list may have, as PyTorch Geometric writes types of edges."""


def joined(lists: Mapping[str, npt.NDArray[Any]], where: str) -> tuple[Ids, Ids, tuple[Relation, ...]]:
    """Sources and destinations of all lists one after another, and the lists.

    A list has as many sources and destinations as its largest ids say.

    Args:
        lists: integers [2, E] each, by name.
        where: what is read, for errors.

    Raises:
        GraphDataError: there is none, or one is no edge list.
    """
    if not lists:
        raise GraphDataError(f"{where} has no edge list", "give integers [2, E] for every edge list of the model")
    ends: list[list[Ids]] = []
    found: list[Relation] = []
    offsets = np.zeros(2, np.int64)
    for name, given in lists.items():
        pair = checks.pairs(given, f"{where}: {name}")
        sides = [checks.integers(side, "edge_index", f"{where}: {name}") for side in pair]
        sizes = [int(side.max()) + 1 if len(side) else 0 for side in sides]
        if any(len(side) and side.min() < 0 for side in sides):
            raise GraphDataError(f"{where}: {name} has a negative id", "number vertices from 0")
        ends.append([side.astype(np.int64) + first for side, first in zip(sides, offsets, strict=True)])
        found.append(Relation(name, *sizes))
        offsets += sizes
    src, dst = (np.concatenate(side) for side in zip(*ends, strict=True))
    return src, dst, tuple(found)


def spelled(name: str | tuple[str, ...]) -> str:
    """The name of a list, of which PyTorch Geometric's triples are one too."""
    return name if isinstance(name, str) else SEPARATOR.join(name)


def called(name: str, lists: Iterable[str]) -> str | None:
    """The one of some lists that is called so: by its whole name, or by its relation where that is one list's alone."""
    names = tuple(lists)
    alike = [known for known in names if known.split(SEPARATOR)[1:2] == [name]]
    if name in names:
        return name
    return alike[0] if len(alike) == 1 else None
