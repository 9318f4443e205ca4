"""The edges of several relations as one list, and tables of several relations as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pimflow.passes.relations.rows import Ints, types_of_rows
from pimflow.records import NamedTuple


class Rows(NamedTuple):
    """Values of several relations as one: row n of relation r is row begins[r] + n * stride; rows of edges are as in
    `Edges`.

    If all relations read one table (`is_shared`), every one begins at 0. A product of it has all results for each row
    next to each other.
    """

    name: str
    begins: tuple[int, ...]
    stride: int = 1
    is_shared: bool = False

    def of(self, relation: int, rows: Ints) -> Ints:
        """The places of rows of a relation."""
        return self.begins[relation] + rows.astype(np.int64) * self.stride


def concatenated_rows(name: str, counts: Sequence[int]) -> Rows:
    """Rows concatenated relation by relation, with the given counts."""
    return Rows(name, tuple(np.cumsum([0, *counts[:-1]]).tolist()))


class Edges:
    """The edges of all relations in one order.

    Attributes:
        types: the relation of every edge.
        destination: the row of its destination in its relation.
        order: its place in the concatenation of all relations' edges.
    """

    def __init__(self, pointers: Sequence[Ints], *, by_destination: bool) -> None:
        """Order the edges of relations.

        Args:
            pointers: for every relation, the start of each destination's edges, from 0.
            by_destination: order by destination and then by relation, so that the results of all relations for a
                destination are added up; otherwise relation by relation.
        """
        self._pointers, self._by_destination = pointers, by_destination
        types = np.repeat(np.arange(len(pointers)), [int(own[-1]) for own in pointers])
        destination = np.concatenate([types_of_rows(own) for own in pointers])
        self.order = np.argsort(destination, kind="stable") if by_destination else np.arange(len(types))
        self.types, self.destination = types[self.order], destination[self.order]

    def joined(self, arrays: Sequence[Ints]) -> Ints:
        """Values of each relation's edges as values of all edges."""
        return np.concatenate(arrays)[self.order]

    def are_of(self, pointers: Sequence[Ints]) -> bool:
        """Whether relations have these edges into each destination."""
        return all(np.array_equal(own, other) for own, other in zip(self._pointers, pointers, strict=True))

    @property
    def pointers(self) -> Ints:
        """The start of the edges of each row of the reduction."""
        if not self._by_destination:
            return self.by_relation
        return _begins(np.bincount(self.destination, minlength=len(self._pointers[0]) - 1))

    @property
    def by_relation(self) -> Ints:
        """The start of each relation's edges into each destination; unless `by_destination`, also for destinations
        without edges."""
        if not self._by_destination:
            return _begins(np.concatenate([np.diff(own) for own in self._pointers]))
        pairs = self.destination * len(self._pointers) + self.types
        return np.concatenate([np.flatnonzero(np.diff(pairs, prepend=-1)), [len(pairs)]]).astype(np.int64)


def _begins(counts: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
