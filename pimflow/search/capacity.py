"""What plans keep in the memories of units, and the cheapest plan found that fits into them.

The weights of all kernels of a plan are in a unit's memory at once. Plans seldom come near the limit, so the dynamic
program ignores it at first. Where its plan does not fit, two steps find one that does:

1. Every interval is charged for the share of the memories that it takes, at a price per memory: bisection finds the
   least price under which the cheapest plan fits. By Lagrangian duality no plan that fits is cheaper than the charged
   optimum less the price of all memories.
2. What lies between the two is searched by a dynamic program over (cost, shares) that leaves out what is dominated, and
   what the bound excludes. It ends with an optimum, but for spaces in which too much is left to look at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pimflow.codegen.backend import Capacity, Kept
from pimflow.ir import Graph, Node
from pimflow.ir.plan import Storage
from pimflow.search.chain import Chain, Interval

Payload = TypeVar("Payload")

_STEPS = 60
MOST_LABELS = 500_000
_ROUNDING = 1e-12


class Memories(Protocol):
    """What is asked of a cost model here."""

    @property
    def capacities(self) -> Mapping[str, Capacity]:
        """How much the units' memories hold, by device; units without a limit are left out."""

    def kept(self, graph: Graph, node: Node) -> Kept:
        """What a node that is placed on a unit keeps in the unit's memory."""


class Places:
    """Where in the units' memories the nodes of a placed graph keep what they keep, one behind the other.

    Parts of one node that arrange its weights alike share them. Nodes that read the same constants do not: one may read
    them transposed.

    Attributes:
        used: by device, what is kept so far, in the unit of its capacity.
    """

    def __init__(self, graph: Graph, costs: Memories) -> None:
        self._graph = graph
        self._costs = costs
        self._first: dict[Hashable, int] = {}
        self.used = dict.fromkeys(costs.capacities, 0)

    def of(self, node: Node) -> int:
        """Where what a node keeps begins; 0 on a unit whose memory has no limit."""
        device = node.device or ""
        if device not in self.used:
            return 0
        kept = self._costs.kept(self._graph, node)
        what = (device, node.placement.origin or node.name, self._constants(node), kept.arrangement)
        if what not in self._first:
            self._first[what] = self.used[device]
            self.used[device] += kept.amount
        return self._first[what]

    def _constants(self, node: Node) -> tuple[str, ...]:
        """What it keeps: constants, or a second operand of its own."""
        return tuple(filter(self._graph.is_constant, node.inputs)) or (node.name,)


def kept_by(graph: Graph, costs: Memories) -> dict[str, int]:
    """What the nodes of a placed graph keep in the units' memories, by device, in the unit of its capacity."""
    places = Places(graph, costs)
    for node in graph.nodes:
        places.of(node)
    return places.used


def stored_of(kept: Mapping[str, int], costs: Memories) -> tuple[Storage, ...]:
    """How full the units' memories are by what plans keep there; those of which nothing is taken are left out."""
    return tuple(
        Storage(device, kept[device], capacity.amount, capacity.unit)
        for device, capacity in costs.capacities.items()
        if kept.get(device)
    )


@dataclass(frozen=True)
class Fitting(Generic[Payload]):
    """A cover that fits, its cost, and what no such cover can cost less than: the same, if it is an optimum."""

    cost: float
    chosen: tuple[Interval[Payload], ...]
    bound: float


def cover_that_fits(
    n: int,
    intervals: Sequence[Interval[Payload]],
    kept: Callable[[Payload], Mapping[str, int]],
    capacities: Mapping[str, int],
    most_labels: int = MOST_LABELS,
) -> Fitting[Payload] | None:
    """The cheapest cover of n positions that keeps no more than the memories hold.

    Args:
        n: number of positions.
        intervals: the candidates.
        kept: what a candidate keeps, by device.
        capacities: what every memory holds.
        most_labels: partial covers that are looked at before the search settles for the best cover found so far.

    Returns:
        None if no cover was found that fits.
    """
    memories = len(capacities)
    loaded = [_Loaded(interval, _shares(kept(interval.payload), capacities)) for interval in intervals]
    priced: _Priced[Payload] = _Priced(math.inf, (), 0.0, 0.0)
    low, high = 0.0, max(interval.cost for interval in intervals)
    chain, taken = Chain(n, intervals), [sum(item.shares) for item in loaded]
    for _ in range(_STEPS):
        price = high if math.isinf(priced.cost) else (low + high) / 2
        charged = [interval.cost + price * share for interval, share in zip(intervals, taken, strict=True)]
        total, found = chain.solve(charged)
        priced = priced.with_bound(total - price * memories, price)
        chosen = tuple([loaded[index] for index in found])
        if _fit(item.shares for item in chosen):
            high = price
            priced = priced.with_cover(sum(item.interval.cost for item in chosen), chosen)
        else:
            low, high = price, high if math.isfinite(priced.cost) else high * 4
    exact = _close_gap(n, loaded, priced, memories, most_labels)
    best = exact or priced
    if math.isinf(best.cost):
        return None
    return Fitting(best.cost, tuple(item.interval for item in best.chosen), min(best.bound, best.cost))


@dataclass(frozen=True)
class _Loaded(Generic[Payload]):
    """An interval, and the share of every memory that it takes."""

    interval: Interval[Payload]
    shares: tuple[float, ...]

    def charged(self, price: float) -> float:
        """What it costs where the shares have a price."""
        return self.interval.cost + price * sum(self.shares)


@dataclass(frozen=True)
class _Priced(Generic[Payload]):
    """The best cover that fits so far, the best bound, and the price that the bound comes from."""

    cost: float
    chosen: tuple[_Loaded[Payload], ...]
    bound: float
    price: float

    def with_bound(self, bound: float, price: float) -> _Priced[Payload]:
        return _Priced(self.cost, self.chosen, bound, price) if bound > self.bound else self

    def with_cover(self, cost: float, chosen: tuple[_Loaded[Payload], ...]) -> _Priced[Payload]:
        return _Priced(cost, chosen, self.bound, self.price) if cost < self.cost else self


@dataclass(frozen=True)
class _Label(Generic[Payload]):
    """A cover of the first positions, by its last interval and the cover before that."""

    cost: float
    shares: tuple[float, ...]
    last: _Loaded[Payload] | None = None
    before: _Label[Payload] | None = None

    def dominates(self, other: _Label[Payload]) -> bool:
        """Whether it is as good in everything; of two, it costs no more."""
        return all(mine <= theirs for mine, theirs in zip(self.shares, other.shares, strict=True))

    def chosen(self) -> tuple[_Loaded[Payload], ...]:
        found, label = [], self
        while label.last is not None and label.before is not None:
            found.append(label.last)
            label = label.before
        return tuple(reversed(found))


def _close_gap(
    n: int, loaded: Sequence[_Loaded[Payload]], known: _Priced[Payload], memories: int, most_labels: int
) -> _Priced[Payload] | None:
    """The cheapest cover that fits; None if there are more partial covers to look at than `most_labels`."""
    starting: list[list[_Loaded[Payload]]] = [[] for _ in range(n)]
    for item in loaded:
        starting[item.interval.start].append(item)
    rest = _charged_rest(n, starting, known.price)
    ceiling = known.cost + known.price * memories
    labels: list[list[_Label[Payload]]] = [[] for _ in range(n + 1)]
    labels[0] = [_Label(0.0, (0.0,) * memories)]
    for position in range(n):
        for label in _undominated(labels[position]):
            for item in starting[position]:
                shares = tuple(a + b for a, b in zip(label.shares, item.shares, strict=True))
                cost, stop = label.cost + item.interval.cost, item.interval.stop
                if max(shares) <= 1 + _ROUNDING and cost + known.price * sum(shares) + rest[stop] < ceiling:
                    labels[stop].append(_Label(cost, shares, item, label))
                    most_labels -= 1
        labels[position] = []
        if most_labels < 0:
            return None
    found = min(labels[n], key=lambda label: label.cost, default=None)
    if found is None or found.cost >= known.cost:
        return _Priced(known.cost, known.chosen, known.cost, known.price)
    return _Priced(found.cost, found.chosen(), found.cost, known.price)


def _charged_rest(n: int, starting: Sequence[Sequence[_Loaded[Payload]]], price: float) -> list[float]:
    """By position, the least charged cost of covering what follows."""
    rest = [math.inf] * n + [0.0]
    for position in reversed(range(n)):
        costs = (item.charged(price) + rest[item.interval.stop] for item in starting[position])
        rest[position] = min(costs, default=math.inf)
    return rest


def _undominated(labels: list[_Label[Payload]]) -> list[_Label[Payload]]:
    kept: list[_Label[Payload]] = []
    for label in sorted(labels, key=lambda label: (label.cost, label.shares)):
        rivals = kept[-1:] if len(label.shares) == 1 else kept  # of one memory the last takes the least
        if not any(better.dominates(label) for better in rivals):
            kept.append(label)
    return kept


def _shares(kept: Mapping[str, int], capacities: Mapping[str, int]) -> tuple[float, ...]:
    return tuple(kept.get(device, 0) / capacity for device, capacity in capacities.items())


def _fit(shares: Iterable[tuple[float, ...]]) -> bool:
    totals = [sum(column) for column in zip(*shares, strict=True)]
    return all(total <= 1 + _ROUNDING for total in totals)
