"""Equivalent stretches of an execution order: large models repeat the same few layers.

Two stretches are equivalent if their nodes are, one by one: the same op, shapes, types and content as far as it affects
prices, wired in the same way to each other and to their surroundings. Any decision about one is possible for the other
at the same cost, so only one of them is evaluated.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import islice

from pimflow.ir import Graph, Node
from pimflow.search.order import ForkJoin, Unit
from pimflow.search.parts import price_key


class Equivalents:
    """Which units of an order start equivalent stretches.

    Args:
        graph: the graph of the order.
        order: its nodes.
        units: its units.
        regions: its fork-joins, as far as decisions depend on them.
        reach: the maximum number of units in a stretch; longer ones have no equivalent.

    Attributes:
        firsts: the first unit of each class of units that start equivalent stretches.
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
        """The distance of a stretch of whole units from the first one equivalent to it."""
        first = self._first[start]
        return start - first if stop - start <= self._stops[first] - first else 0

    def shifts(self, start: int, stop: int) -> tuple[int, ...]:
        """The distances of all stretches equivalent to one that starts with a unit of `firsts`; its own (0) comes
        first."""
        return self._shifts[start] if self._stops.get(start, start) >= stop else (0,)


class NoEquivalents:
    """Units without equivalents: every one is a class of its own."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.firsts = tuple(units)

    def shift(self, start: int, stop: int) -> int:
        """Always 0: every stretch is the first of its class."""
        return 0

    def shifts(self, start: int, stop: int) -> tuple[int, ...]:
        """Always (0,): no stretch has another equivalent to it."""
        return (0,)


def _kinds(graph: Graph, order: Sequence[Node], regions: Sequence[ForkJoin], longest: int) -> tuple[int, ...]:
    """A number for every position: equal if the nodes and their wiring less than `longest` positions away are
    equivalent."""
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
            producer, output = made.get(name, (-1, 0))
            from_producer = near(index - producer) if producer >= 0 else None
            since_read = near(index - read_at[name]) if name in read_at else None
            operands.append((from_producer, output if from_producer else 0, since_read, name in inputs))
            if name:
                read_at[name] = index
        results = []
        for name in node.outputs:
            distances = {near(place[user.name] - index) for user in graph.users(name)}
            results.append((None in distances, tuple(sorted(filter(None, distances))), name in outputs))
        into = node.placement.fused_into
        fused = near(index - place[into]) if into in place else into
        wiring = tuple(operands), tuple(results), fused, node.placement.access, tuple(inside[index])
        found.append(numbers.setdefault((price_key(graph, node), wiring), len(numbers)))
    return tuple(found)
