"""Stretches of an execution order that are alike: large models are the same few layers again and again.

Two stretches are alike if their nodes are, one by one: the same op, shapes, types and content of what decides a price,
wired alike to each other and to what is around them. What may be decided of one may be decided of the other, at the
same cost, so that one of them is looked at for all.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import islice

from pimflow.ir import Graph, Node
from pimflow.search.order import ForkJoin, Unit
from pimflow.search.parts import likeness


class Alike:
    """Which units of an order begin stretches alike.

    Args:
        graph: whose order it is.
        order: its nodes.
        units: its units.
        regions: its fork-joins, as far as decisions are made of them.
        reach: how many units a stretch has at most; longer ones are like no other.

    Attributes:
        firsts: of all units with which stretches alike begin, the first.
    """

    def __init__(
        self, graph: Graph, order: Sequence[Node], units: Sequence[Unit], regions: Sequence[ForkJoin], reach: int
    ) -> None:
        stops = [unit.stop for unit in islice(units, reach - 1, None)]
        stops += [len(order)] * (len(units) - len(stops))
        longest = max((stop - unit.start for unit, stop in zip(units, stops, strict=True)), default=0)
        kinds = _kinds(graph, order, regions, longest)
        members: dict[tuple[int, ...], list[int]] = {}
        firsts: list[Unit] = []
        self._stops: dict[int, int] = {}
        self._first: dict[int, int] = {}
        for unit, stop in zip(units, stops, strict=True):
            starts = members.setdefault(kinds[unit.start : stop], [])
            if not starts:
                firsts.append(unit)
                self._stops[unit.start] = stop
            starts.append(unit.start)
            self._first[unit.start] = starts[0]
        self.firsts = tuple(firsts)
        self._shifts = {starts[0]: tuple([start - starts[0] for start in starts]) for starts in members.values()}

    def shift(self, start: int, stop: int) -> int:
        """How far behind the first stretch that is like it a stretch of whole units lies."""
        first = self._first[start]
        return start - first if stop - start <= self._stops[first] - first else 0

    def shifts(self, start: int, stop: int) -> tuple[int, ...]:
        """How far behind one of the `firsts` those stretches lie that are like it, itself (0) the first of them."""
        return self._shifts[start] if self._stops.get(start, start) >= stop else (0,)


class Apart:
    """Units of which none is like another, whatever they are made of."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.firsts = tuple(units)

    def shift(self, start: int, stop: int) -> int:
        """None lies behind one that is like it."""
        return 0

    def shifts(self, start: int, stop: int) -> tuple[int, ...]:
        """Nor does any other before it."""
        return (0,)


def _kinds(graph: Graph, order: Sequence[Node], regions: Sequence[ForkJoin], longest: int) -> tuple[int, ...]:
    """A number for every position: equal where nodes are alike, and what is less than `longest` positions away."""
    place = {node.name: index for index, node in enumerate(order)}
    made = {name: (index, at) for index, node in enumerate(order) for at, name in enumerate(node.outputs) if name}
    inside: list[list[tuple[int, int]]] = [[] for _ in order]
    for region in regions:
        for index in range(region.start, region.stop):
            inside[index].append((index - region.start, region.stop - index))
    inputs, outputs = set(graph.inputs), set(graph.outputs)
    read_at: dict[str, int] = {}
    numbers: dict[Hashable, int] = {}
    found: list[int] = []

    def near(distance: int) -> int | None:
        return distance if distance <= longest else None

    for index, node in enumerate(order):
        operands = []
        for name in node.inputs:
            maker, output = made.get(name, (-1, 0))
            from_maker = near(index - maker) if maker >= 0 else None
            since_read = near(index - read_at[name]) if name in read_at else None
            operands.append((from_maker, output if from_maker else 0, since_read, name in inputs))
            if name:
                read_at[name] = index
        results = []
        for name in node.outputs:
            distances = {near(place[user.name] - index) for user in graph.users(name)}
            results.append((None in distances, tuple(sorted(filter(None, distances))), name in outputs))
        into = node.placement.fused_into
        fused = near(index - place[into]) if into in place else into
        wiring = tuple(operands), tuple(results), fused, node.placement.access, tuple(inside[index])
        found.append(numbers.setdefault((likeness(graph, node), wiring), len(numbers)))
    return tuple(found)
