"""Lower bounds on the times of nodes, by device, at the best rate that any share of a node has.

A share is a number of output rows, or of columns or inner elements (K) where the search divides by them; its rate is
its time divided by the share. So launches and half-empty waves count only as far as no division avoids them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import cache, cached_property, partial
from itertools import combinations
from typing import Protocol
from weakref import WeakKeyDictionary

from pimflow.codegen.work import Work
from pimflow.ir import Graph, Node, Op, Refusal
from pimflow.ir.analysis.regions import node_columns, node_k, node_part, node_rows
from pimflow.ir.expansion import Expansion, expand, is_expandable
from pimflow.ir.placement import ALL_CHANNELS
from pimflow.records import NamedTuple, dataclass
from pimflow.search import part_prices
from pimflow.search.parts import (
    FEW_ROWS,
    divides_by_columns,
    divides_by_k,
    extract_columns,
    extract_k,
    extract_row_parts,
    price_key,
)
from pimflow.search.share_times import UNKNOWN, DividedTimes, OnePart, PartTimes, ShareTimes

SLACK = 0.002
"""The tolerance, as a share, for underestimating a rate, so that only a few shares have to be priced."""
_PLACES, _DIFFERENT = 16, 1.05
"""A stretch of counts longer than one part in `_PLACES` of a node is looked into if the prices of its ends differ by
this factor."""
GROWTH = 1.05
"""Each priced share is at least this factor larger than the previous one, whatever `SLACK` says."""


class Costs(part_prices.Costs, Protocol):
    """The interface that these bounds need from a cost model."""

    @property
    def channel_switch_us(self) -> float | None:
        """How long it takes for memory channels to change hands; None if units hold theirs for the whole run."""

    def measured_us(self, op: Op) -> float:
        """The shortest time measured for any kernel of an op's name."""

    def least_transfers_us(self, graph: Graph) -> Mapping[str, float]:
        """Lower bounds on the time for fetching rows of tables from the host's memory, by the node that fetches
        them."""


class DeviceTimes(NamedTuple):
    """The minimum time of a node on a device.

    `whole_us` is all of it at the best rate of any share, `link_us` the same for its copies. `first_us` is one row with
    its copies, and `least_us` the smallest share of rows, columns or K with its copies. If a unit computes only the
    product of an operator, `beside_us` is the host's time for the rest, and `around_us` the longest chain of that rest
    through the product. `rows` has every number of rows, and `columns` every number of columns, without copies; None if
    they are not computed apart.
    """

    device: str
    whole_us: float
    link_us: float
    first_us: float
    least_us: float
    beside_us: float = 0.0
    around_us: float = 0.0
    rows: ShareTimes | None = None
    columns: ShareTimes | None = None

    @property
    def path_us(self) -> float:
        """All of it, with its copies and the longest chain around the product."""
        return self.whole_us + self.link_us + self.around_us


@dataclass(frozen=True)
class NodeTimes:
    """The minimum times of a node on all devices that can run it, the host first; whether it can be divided, or only
    by rows; and whether it can be in one decision with nodes that it reads or that read it."""

    on_devices: tuple[DeviceTimes, ...]
    divided: bool
    only_rows: bool
    flows: bool

    @cached_property
    def whole_us(self) -> float:
        """The time of the whole node, on any devices at once if it can be divided."""
        times = [least.path_us for least in self.on_devices]
        if not self.divided or min(times) <= 0:
            return min(times)
        counts = range(2, len(times) + 1)
        shared = (_shared_us(some) for count in counts for some in combinations(self.on_devices, count))
        return min([*times, *shared])

    @cached_property
    def alone_us(self) -> float:
        """The time of the whole node in a decision of its own."""
        return max(self.whole_us, self.rows.alone_us) if self.rows and self.only_rows else self.whole_us

    @cached_property
    def rows(self) -> DividedTimes | None:
        """The times of its rows; None if they are not computed apart."""
        host, *units = (None if least.rows is None else PartTimes.of(least.rows) for least in self.on_devices)
        return None if host is None else DividedTimes(host, tuple(filter(None, units)))

    @cached_property
    def first_us(self) -> float:
        """The time of its first part, if it can be in one decision with others."""
        parts = [least.first_us for least in self.on_devices] if self.flows else []
        return min([self.whole_us, *parts])


def _shared_us(devices: Sequence[DeviceTimes]) -> float:
    """The time of a node that several devices share: at the best rates of all, and no less than a share takes on
    any."""
    return max(1 / sum(1 / least.path_us for least in devices), *(least.least_us for least in devices))


class _Price(NamedTuple):
    """The time of a share of a node on a device, and of its copies over the link."""

    run_us: float
    link_us: float


class _Division(NamedTuple):
    """A node divided along one dimension: its smallest share, all of it in any number of shares, and every share."""

    smallest: _Price
    whole: _Price
    shares: ShareTimes


_KNOWN: WeakKeyDictionary[Costs, dict[bool, dict[Hashable, NodeTimes]]] = WeakKeyDictionary()
"""By `busy` and `price_key`, for the lifetime of a cost model: the search and the bound ask for the same times."""


class LeastTimes:
    """Lower bounds on the times of nodes; nodes with the same `price_key` share one computation.

    Args:
        graph: the nodes.
        costs: their prices.
        busy: whether the times are those for which devices are busy, rather than those from a node's operands to its
            results: a launch that is queued is part of the former alone.
    """

    def __init__(self, graph: Graph, costs: Costs, *, busy: bool = False) -> None:
        self._graph = graph
        self._costs = costs
        self._busy = busy and costs.queues_launches
        self._host = costs.target.host
        self._divides_sums = costs.target.units[self._host].divides_sums
        self._known = _KNOWN.setdefault(costs, {}).setdefault(self._busy, {})
        self._choices = {device: sorted({unit.default_choice, *unit.choices}) for device, unit in costs.units.items()}

    def whole_us(self, node: Node, device: str) -> float:
        """The time of a whole node on a device at the best rate of any share, without copies; 0 if it cannot run
        there."""
        return self._on(node, device).whole_us

    def first_us(self, node: Node, device: str) -> float:
        """The time of a node's smallest share on a device with its copies: no set of rows takes less. 0 if it cannot
        run there."""
        return self._on(node, device).first_us

    def _on(self, node: Node, device: str) -> DeviceTimes:
        """The times of a node on a device; 0 if it cannot run there."""
        found = (least for least in self.of(node).on_devices if least.device == device)
        return next(found, DeviceTimes(device, 0.0, 0.0, 0.0, 0.0))

    def rows_on(self, node: Node, device: str) -> OnePart:
        """The times of a node's rows in one part on a device, without copies; 0 if they are not known apart."""
        return OnePart(self._on(node, device).rows or UNKNOWN)

    def columns_on(self, node: Node, device: str) -> OnePart:
        """The times of a node's columns in one part on a device, without copies; 0 if they are not known apart."""
        return OnePart(self._on(node, device).columns or UNKNOWN)

    def of(self, node: Node) -> NodeTimes:
        """A node's times. They are 0 for fused nodes, movements and copies from the host."""
        if node.placement.fused_into is not None or node.op.is_movement or node.placement.access is not None:
            nothing = DeviceTimes(self._host, 0.0, 0.0, 0.0, 0.0)
            return NodeTimes((nothing,), divided=False, only_rows=False, flows=_flows(self._graph, node))
        key = price_key(self._graph, node)
        if key not in self._known:
            self._known[key] = self._times(node)
        return self._known[key]

    def _times(self, node: Node) -> NodeTimes:
        devices = (self._host, *self._costs.units)
        flows = _flows(self._graph, node)
        if node.op.is_sparse:
            least = tuple(filter(None, (self._sparse(device, node) for device in devices)))
            return NodeTimes(least, divided=False, only_rows=False, flows=flows)
        rows = node_rows(self._graph, node) if flows else 1
        columns = self._columns(node, rows)
        inner = self._inner(node)
        least = tuple(filter(None, (self._dense(device, node, rows, columns, inner) for device in devices)))
        others = max(columns, inner)
        return NodeTimes(least, divided=max(rows, others) > 1, only_rows=others <= 1, flows=flows)

    def _columns(self, node: Node, rows: int) -> int:
        """The number of columns that the search may divide; 1 if it does not divide them."""
        few = node.op.is_matrix_product or rows < FEW_ROWS
        return node_columns(self._graph, node) if few and divides_by_columns(self._graph, node) else 1

    def _inner(self, node: Node) -> int:
        """The number of inner elements (K) if the search may divide them; otherwise 1."""
        return node_k(self._graph, node) if self._divides_sums and divides_by_k(self._graph, node) else 1

    def _sparse(self, device: str, node: Node) -> DeviceTimes | None:
        """Sums over edges: their parts read everything that the whole reads, and more.

        If the edges can be divided, a unit only needs the time for its part, and nothing is known about the host's.
        """
        whole = self._whole(device, node)
        if whole is None:
            return None
        divisions = () if device == self._host else self._costs.edge_divisions(self._graph, node, device)
        return DeviceTimes(
            device,
            min([whole.run_us, *(way.lower_bound_us for way in divisions)]),
            0.0 if divisions else whole.link_us,
            0.0,
            0.0,
        )

    def _dense(self, device: str, node: Node, rows: int, columns: int, inner: int) -> DeviceTimes | None:
        """Any other node, in shares of its rows, its columns or its K; None if it cannot run there.

        An elementwise node takes a launch plus time in proportion to its size: no share of it has a better rate than
        all of it.
        """
        whole = self._whole(device, node)
        if whole is None:
            return None
        by_rows, by_columns, by_inner = None, None, None
        least = whole
        if rows > 1:
            by_rows = self._by_rows(device, node, rows, whole)
            least = _lowest(least, by_rows.whole)
        if columns > 1:
            price = cache(lambda count: self._part(device, extract_columns(self._graph, node, count)))
            by_columns = _division(price, whole, whole, columns)
            least = _lowest(least, by_columns.whole)
        if inner > 1:
            price = cache(lambda count: self._part(device, extract_k(self._graph, node, 0, count)))
            by_inner = _division(price, whole, least, inner)
            least = by_inner.whole
        divisions = (by_rows, by_columns, by_inner)
        first_us = sum(whole if by_rows is None else by_rows.smallest)
        least_us = min([sum(whole), *(sum(division.smallest) for division in divisions if division)])
        run_us, shares = least.run_us, [division and division.shares for division in (by_rows, by_columns)]
        if device == self._host:
            most_us = self._costs.measured_us(node.op)
            run_us, first_us, least_us = (min(us, most_us) for us in (run_us, first_us, least_us))
            shares = [own and own.at_most(most_us) for own in shares]
        beside_us, around_us = (0.0, 0.0) if device == self._host else self._rest_us(node)
        first_us, least_us = min(first_us, run_us + least.link_us), min(least_us, run_us + least.link_us)
        return DeviceTimes(device, run_us, least.link_us, first_us, least_us, beside_us, around_us, *shares)

    def _by_rows(self, device: str, node: Node, rows: int, whole: _Price) -> _Division:
        """The rows of a node, more than one."""
        price = cache(partial(self._rows, device, node, rows))
        if node.op.is_elementwise:
            shares = ShareTimes(((1, price(1).run_us), (rows, whole.run_us)), whole.run_us / rows)
            return _Division(price(1), whole, shares)
        division = _division(price, whole, whole, rows)
        if device != self._host:  # its rates hardly differ
            return division
        least_us = _between(lambda count: price(count).run_us, division.shares.least_us)
        return division._replace(shares=division.shares._replace(least_us=least_us))

    def _rest_us(self, node: Node) -> tuple[float, float]:
        """The host's minimum time for everything in an operator except its product: the sum, and the longest chain
        through the product."""
        expansion = expand(self._graph, node, elements=False) if is_expandable(node.op) else None
        if expansion is None or isinstance(expansion, Refusal):
            return 0.0, 0.0
        others = [item for item in expansion.graph.nodes if item.name != expansion.product]
        kernels = {item.name: self._kernel_us(expansion.graph, item) for item in others}
        return sum(kernels.values()), _longest_through(expansion, kernels)

    def _kernel_us(self, graph: Graph, node: Node) -> float:
        """The time of a node in a kernel of its own on the host; 0 if it may be part of another kernel."""
        if node.op.is_movement or node.op.is_elementwise:
            return 0.0
        placed = node.placed(device=self._host)
        return min(self._alone_us(graph, placed), self._costs.measured_us(node.op))

    def _alone_us(self, graph: Graph, node: Node) -> float:
        """The time of a node that is placed on the host, without what a plan may avoid of it."""
        avoidable_us = self._costs.avoidable_us(graph, node, busy=self._busy)
        return self._costs.node_cost(graph, node).time_us - avoidable_us

    def _whole(self, device: str, node: Node) -> _Price | None:
        """The time of the whole node; on the host with all memory channels if the host may have them for a while and
        that is faster."""
        whole = self._price(device, self._graph, node)
        if whole is None or device != self._host or self._costs.channel_switch_us is None:
            return whole
        return min(whole, self._price(device, self._graph, node.placed(choice=ALL_CHANNELS)) or whole)

    def _rows(self, device: str, node: Node, rows: int, count: int) -> _Price:
        """The time of `count` rows where they are cheapest: at the top or at the bottom, where windows reach into the
        padding."""
        parts = extract_row_parts(self._graph, node, {0, rows - count}, count)
        prices = [self._part(device, part) for part in parts]
        return _Price(*map(min, zip(*prices, strict=True))) if prices else _Price(0.0, 0.0)

    def _part(self, device: str, part: Graph) -> _Price:
        """The time of a part; 0 if it cannot run alone, so that it constrains nothing."""
        return self._price(device, part, part.nodes[0]) or _Price(0.0, 0.0)

    def _price(self, device: str, graph: Graph, node: Node) -> _Price | None:
        """The minimum time of a node or a part of one; None if it cannot run there."""
        if device == self._host:
            placed = node.placed(device=device, fused_into=None)
            return _Price(self._alone_us(graph, placed), 0.0)
        work = self._costs.work(graph, node.placed(device=None, fused_into=None), device)
        if isinstance(work, Refusal):
            return None
        choices = self._distinct_choices(device, node, work)
        prices = [self._on_unit(device, graph, node, work, choice) for choice in choices]
        known = [price for price in prices if price is not None]
        return _Price(*map(min, zip(*known, strict=True))) if known else None

    def _distinct_choices(self, device: str, node: Node, work: Work) -> Collection[str]:
        """The choices of a unit of which the minimum time may differ: those with bounds of their own, or with none."""
        unit, choices = self._costs.units[device], self._choices[device]
        if unit.copies_by_work or node.op.is_sparse:
            return choices
        return {unit.lower_bound_us(work, choice) or choice: choice for choice in choices}.values()

    def _on_unit(self, device: str, graph: Graph, node: Node, work: Work, choice: str) -> _Price | None:
        placed = node.placed(device=device, choice=choice, fused_into=None)
        run_us = self._costs.units[device].lower_bound_us(work, choice)
        exact = run_us <= 0
        if exact:
            cost = self._costs.unit_cost(device, work, choice)
            if isinstance(cost, Refusal):
                return None
            run_us = cost.time_us
        moved = self._costs.transfer(graph, placed) if exact or not node.op.is_sparse else None
        copies = () if moved is None else (*moved.before, *moved.after)
        return _Price(run_us, sum(copy.time_us for copy in copies if not copy.resource))


def _lowest(one: _Price, other: _Price) -> _Price:
    return _Price(*map(min, zip(one, other, strict=True)))


def _division(price: Callable[[int], _Price], whole: _Price, least: _Price, size: int) -> _Division:
    """A node in any number of parts along one dimension.

    Args:
        price: the price of a number of rows, columns or elements of K; non-decreasing.
        whole: the price of all of them in one part.
        least: the lowest price of the node that is known so far.
        size: the number of all of them, more than one.
    """
    run_us, priced = _least_rate(lambda count: price(count).run_us, least.run_us, size)
    link_us, _ = _least_rate(lambda count: price(count).link_us, least.link_us, size)
    return _Division(price(1), _Price(run_us, link_us), ShareTimes((*priced, (size, whole.run_us)), run_us / size))


def _least_rate(price: Callable[[int], float], whole_us: float, size: int) -> tuple[float, list[tuple[int, float]]]:
    """A lower bound on the price of any count times `size` over that count, and the counts that were priced; the bound
    is too low by at most `SLACK` or one step of `GROWTH`.

    No larger count has a lower price, so one price covers all counts up to the one at which it would give a better rate
    than the best so far.
    """
    best = least = whole_us
    priced: list[tuple[int, float]] = []
    lasts: list[int] = []
    while least > 0 and (count := lasts[-1] + 1 if lasts else 1) < size:
        us = price(count)
        priced.append((count, us))
        best = min(best, us * size / count)
        last = max(int(us * size / (best * (1 - SLACK))) if best else size, int(count * GROWTH), count)
        lasts.append(min(last, size - 1))
        least = min(least, us * size / lasts[-1])
    falling_us = math.inf
    for (_, us), last in zip(reversed(priced), reversed(lasts), strict=True):
        falling_us = min(falling_us, us)  # should a kernel for more of them be faster
        least = min(least, falling_us * size / last)
    return least, priced


def _between(price: Callable[[int], float], priced: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Counts and their prices, with more counts wherever the prices differ much over a long stretch."""
    apart = max(priced[-1][0] // _PLACES, 1)
    *left, last = priced
    found = [last]
    while left:
        (count, us), (next_count, next_us) = left[-1], found[-1]
        if next_count - count > apart and next_us > us * _DIFFERENT:
            middle = (count + next_count) // 2
            left.append((middle, price(middle)))
        else:
            found.append(left.pop())
    return tuple(found[::-1])


def _longest_through(expansion: Expansion, kernels: Mapping[str, float]) -> float:
    """The longest chain of kernels that depend on each other and on the product, without the product's own time."""
    ends: dict[str, float] = {}
    through: dict[str, float] = {}
    for node in expansion.graph.nodes:
        read = [
            producer.name
            for producer in map(expansion.graph.producer, filter(None, node.inputs))
            if producer is not None
        ]
        us = kernels.get(node.name, 0.0)
        ends[node.name] = us + max((ends[name] for name in read), default=0.0)
        behind = us + max((through[name] for name in read), default=-math.inf)
        through[node.name] = ends[node.name] if node.name == expansion.product else behind
    return max(through.values())


def _flows(graph: Graph, node: Node) -> bool:
    """Whether a node's rows follow from rows of its inputs, so that its parts can be in one decision with other
    nodes."""
    if len(node.outputs) != 1:
        return False
    return not isinstance(node_part(graph, node, 0, max(node_rows(graph, node), 1)), Refusal)
