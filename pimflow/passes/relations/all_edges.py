"""The edges of several relations as one list, and tables of several relations as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pimflow.passes.relations.rows import Ints, types_of_rows


class Rows(NamedTuple):
    """Values of several relations in one: row n of relation r is row begins[r] + n * stride; of edges, as `Edges` says.

    Where all relations read one table (`is_shared`) every one begins at 0. What a product makes of that has all results
    of each row one after the other.
    """

    name: str
    begins: tuple[int, ...]
    stride: int = 1
    is_shared: bool = False

    def of(self, relation: int, rows: Ints) -> Ints:
        """Where rows of a relation are."""
        return self.begins[relation] + rows.astype(np.int64) * self.stride


def behind_one_another(name: str, counts: Sequence[int]) -> Rows:
    """Rows relation by relation, so many of each."""
    return Rows(name, tuple(np.cumsum([0, *counts[:-1]]).tolist()))


class Edges:
    """The edges of all relations in one order.

    Attributes:
        types: the relation of every edge.
        destination: its row in its relation.
        order: where it is if all relations' edges lie one behind the other.
    """

    def __init__(self, pointers: Sequence[Ints], *, together: bool) -> None:
        """The edges of relations.

        Args:
            pointers: where the edges of each destination begin, for every relation, from 0.
            together: by destination and then by relation, for what all relations bring a destination to be added up;
                otherwise relation by relation.
        """
        self._pointers, self._together = pointers, together
        types = np.repeat(np.arange(len(pointers)), [int(own[-1]) for own in pointers])
        destination = np.concatenate([types_of_rows(own) for own in pointers])
        self.order = np.argsort(destination, kind="stable") if together else np.arange(len(types))
        self.types, self.destination = types[self.order], destination[self.order]

    def joined(self, arrays: Sequence[Ints]) -> Ints:
        """Values of each relation's edges as those of all."""
        return np.concatenate(arrays)[self.order]

    def are_of(self, pointers: Sequence[Ints]) -> bool:
        """Whether relations have these edges into each destination."""
        return all(np.array_equal(own, other) for own, other in zip(self._pointers, pointers, strict=True))

    @property
    def pointers(self) -> Ints:
        """Where the edges begin that are reduced to one row."""
        if not self._together:
            return self.by_relation
        return _begins(np.bincount(self.destination, minlength=len(self._pointers[0]) - 1))

    @property
    def by_relation(self) -> Ints:
        """Where the edges of each relation into each destination begin; of those into none as well, if not together."""
        if not self._together:
            return _begins(np.concatenate([np.diff(own) for own in self._pointers]))
        pairs = self.destination * len(self._pointers) + self.types
        return np.concatenate([np.flatnonzero(np.diff(pairs, prepend=-1)), [len(pairs)]]).astype(np.int64)


def _begins(counts: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
