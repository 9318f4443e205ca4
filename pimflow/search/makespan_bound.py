"""What no plan for a graph and a machine is below, whatever the policy: a lower bound of the makespan.

Every node is taken at the best rate that any share of it has on a device. A share is a number of output rows, or of
columns where the search divides by them; its rate is what it takes over the share. So launches and half-empty waves
count as far as no division avoids them. Whatever a plan does with a node, it takes a share x_d of the devices d, which
add up to one, and keeps each busy for at least x_d times what the node takes there at its best rate. Two things follow:

- **Load.** No resource is busy for longer than the makespan T. The least T over all shares is a linear program, the
  load balance of unrelated machines (Lenstra, Shmoys and Tardos, Mathematical Programming 46, 1990, without
  integrality). By duality it is the largest, over prices of the resources that add up to one, of the sum over the nodes
  of the cheapest device at these prices; any prices give a bound, so that no solver's precision is in the result.
- **Path.** A node starts when what it reads is there: all of it, or as much as one row needs where both may be parts
  of one pipeline or split. It then takes as long as all devices together at their best rates, and ends no earlier than
  what it reads, and one row of it behind that. The longest chain of these is the critical path.

Movements, copies of results that the host adds up, and meeting points count for nothing. The host alone with all memory
channels, which is a plan too, may be below both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pimflow.codegen.backend import Transfer
from pimflow.ir import Graph, Node, Op, Refusal, RowPart, Shape
from pimflow.ir.analysis.content import content_of
from pimflow.ir.analysis.regions import node_columns, node_part, node_rows
from pimflow.ir.analysis.rows import row_count
from pimflow.search import bounds
from pimflow.search.candidates.columns import FEW_ROWS
from pimflow.search.parts import columns_alone, divides_by_columns, row_part_alone

Array = npt.NDArray[np.float64]

SLACK = 0.01
"""What a rate may be too low by, at most, so that few shares have to be priced."""
GROWTH = 1.05
"""A share is at least this much larger than the one priced before it, whatever `SLACK` says."""
_STEPS = 60
"""Of a search between two resources, each of which narrows it down by the golden ratio."""
_GOLDEN = (math.sqrt(5) - 1) / 2
_ROWS_LOOKED_AT = 4096


class Costs(bounds.Costs, Protocol):
    """What is asked of a cost model here."""

    def transfer(self, graph: Graph, node: Node) -> Transfer | None:
        """What the copies of a node cost; None if there are none."""

    def measured_us(self, op: Op) -> float:
        """The shortest time that was measured of any kernel of an op's name."""


@dataclass(frozen=True)
class Bottleneck:
    """A node, and how much of the bound it makes."""

    node: str
    time_us: float


@dataclass(frozen=True)
class MakespanBound:
    """What no plan takes less than, and why.

    Args:
        time_us: the smaller of `host_us` and the larger of the two others.
        load_us: what the work takes if it is divided over the resources as evenly as can be.
        path_us: what the longest chain of nodes takes.
        host_us: the host alone, with all memory channels.
        bottlenecks: the fewest nodes that make half of it, the one that makes most of it first.
    """

    time_us: float
    load_us: float
    path_us: float
    host_us: float
    bottlenecks: tuple[Bottleneck, ...]

    @property
    def binding(self) -> str:
        """Which of the three it is: "load", "path" or "host"."""
        told = {"load": self.load_us, "path": self.path_us, "host": self.host_us}
        return next(name for name, time_us in told.items() if time_us == self.time_us)

    def ratio(self, time_us: float) -> float:
        """How much longer something takes; 1 where there is nothing to do."""
        return time_us / self.time_us if self.time_us > 0 else 1.0


class _Least(NamedTuple):
    """What a node takes on a device at least.

    `whole_us` is all of it at the best rate of any share, `link_us` the same of copies, `first_us` the smallest share
    with its copies.
    """

    device: str
    whole_us: float
    link_us: float
    first_us: float

    @property
    def path_us(self) -> float:
        """All of it, with its copies."""
        return self.whole_us + self.link_us


@dataclass(frozen=True)
class _Times:
    """A node on all devices that it can run on, the host first, and whether it can be in one decision with others that
    it reads or that read it."""

    least: tuple[_Least, ...]
    divided: bool
    flows: bool

    @cached_property
    def whole_us(self) -> float:
        """What all of it takes, on all devices at once where it can be divided."""
        times = [least.path_us for least in self.least]
        if not self.divided or min(times) <= 0:
            return min(times)
        return 1 / sum(1 / time for time in times)

    @cached_property
    def first_us(self) -> float:
        """What the first part of it takes, if it is in one decision with others."""
        parts = [least.first_us for least in self.least] if self.flows else []
        return min([self.whole_us, *parts])


def makespan_bound(graph: Graph, costs: Costs, host_us: float) -> MakespanBound:
    """The bound for a graph.

    Args:
        graph: cleaned up, as the search gets it.
        costs: the cost model in PIM mode.
        host_us: what the host takes alone, with all memory channels.
    """
    least = _LeastTimes(graph, costs)
    times = {node.name: least.of(node) for node in graph.nodes}
    devices = (costs.target.host, *costs.units)
    load_us, weights = _load(times, (*devices, *map(_link, costs.units)))
    path_us, path = _critical_path(graph, times)
    if host_us <= max(load_us, path_us):
        alone = {
            node.name: costs.node_cost(graph, node.placed(device=costs.target.host)).time_us for node in graph.nodes
        }
        return MakespanBound(host_us, load_us, path_us, host_us, _bottlenecks(alone))
    found = (load_us, weights) if load_us >= path_us else (path_us, path)
    return MakespanBound(found[0], load_us, path_us, host_us, _bottlenecks(found[1]))


def _bottlenecks(shares: Mapping[str, float]) -> tuple[Bottleneck, ...]:
    """The fewest nodes that make half of the sum; of equal ones those that come first."""
    half, found = sum(shares.values()) / 2, []
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        if half <= 0:
            break
        found.append(Bottleneck(name, share))
        half -= share
    return tuple(found)


class _Price(NamedTuple):
    """What a share of a node takes on a device, and its copies over the link."""

    run_us: float
    link_us: float


class _LeastTimes:
    """What nodes take at least; nodes alike are looked at once."""

    def __init__(self, graph: Graph, costs: Costs) -> None:
        self._graph = graph
        self._costs = costs
        self._host = costs.target.host
        self._known: dict[Hashable, _Times] = {}
        self._choices = {device: {unit.default_choice, *unit.choices} for device, unit in costs.units.items()}

    def of(self, node: Node) -> _Times:
        """A node's times. Of what is fused into another, and of movements, they are 0."""
        if node.placement.fused_into is not None or node.op.is_movement:
            return _Times((_Least(self._host, 0.0, 0.0, 0.0),), divided=False, flows=_flows(self._graph, node))
        graph = self._graph
        operands = tuple(
            (None if value is None else (value.shape, value.dtype), name in graph.constants)
            for name, value in zip(node.inputs, graph.in_values(node), strict=True)
        )
        results = tuple((value.shape, value.dtype) for value in graph.out_values(node))
        key = (node.op, operands, results, content_of(graph, node))
        if key not in self._known:
            self._known[key] = self._times(node)
        return self._known[key]

    def _times(self, node: Node) -> _Times:
        devices = (self._host, *self._costs.units)
        flows = _flows(self._graph, node)
        if node.op.is_sparse:
            least = tuple(filter(None, (self._sparse(device, node) for device in devices)))
            return _Times(least, divided=False, flows=flows)
        rows = node_rows(self._graph, node) if flows else 1
        columns = self._columns(node, rows)
        least = tuple(filter(None, (self._dense(device, node, rows, columns) for device in devices)))
        return _Times(least, divided=rows > 1 or columns > 1, flows=flows)

    def _columns(self, node: Node, rows: int) -> int:
        """The columns that the search may divide; 1 where it does not."""
        few = node.op.is_matrix_product or rows < FEW_ROWS
        return node_columns(self._graph, node) if few and divides_by_columns(self._graph, node) else 1

    def _sparse(self, device: str, node: Node) -> _Least | None:
        """Sums over edges: parts that are made of them read what all of it reads, and more.

        A division of the edges leaves a unit what it takes for its part, and the host nothing that is known.
        """
        whole = self._price(device, self._graph, node)
        if whole is None:
            return None
        divisions = () if device == self._host else self._costs.edge_divisions(self._graph, node, device)
        return _Least(
            device, min([whole.run_us, *(way.least_us for way in divisions)]), 0.0 if divisions else whole.link_us, 0.0
        )

    def _dense(self, device: str, node: Node, rows: int, columns: int) -> _Least | None:
        """Any other node, in shares of its rows or of its columns; None where it cannot run there.

        What is elementwise takes a launch and time in proportion: no share of it has a better rate than all of it.
        """
        whole = self._price(device, self._graph, node)
        if whole is None:
            return None
        run_us, link_us = whole
        first_us = run_us + link_us
        if rows > 1 and not node.op.is_elementwise:
            by_rows = _least_share(lambda count: self._rows(device, node, rows, count), whole, rows)
            run_us, link_us = map(min, zip(whole, by_rows, strict=True))
        if rows > 1:
            first_us = sum(self._rows(device, node, rows, 1))
        if columns > 1:
            by_columns = _least_share(
                lambda count: self._part(device, columns_alone(self._graph, node, count)), whole, columns
            )
            run_us, link_us = min(run_us, by_columns.run_us), min(link_us, by_columns.link_us)
        if device == self._host:
            measured_us = self._costs.measured_us(node.op)
            run_us, first_us = min(run_us, measured_us), min(first_us, measured_us)
        return _Least(device, run_us, link_us, min(first_us, run_us + link_us))

    def _rows(self, device: str, node: Node, rows: int, count: int) -> _Price:
        """So many rows where they take least: at the top or at the bottom, whose windows reach into the padding."""
        parts = (row_part_alone(self._graph, node, start, start + count) for start in {0, rows - count})
        prices = [self._part(device, part) for part in parts if part is not None]
        return _Price(*map(min, zip(*prices, strict=True))) if prices else _Price(0.0, 0.0)

    def _part(self, device: str, alone: Graph) -> _Price:
        """What a part takes; 0 where it cannot run alone, so that it bounds nothing."""
        return self._price(device, alone, alone.nodes[0]) or _Price(0.0, 0.0)

    def _price(self, device: str, graph: Graph, node: Node) -> _Price | None:
        """What a node, or a part of one, takes at least; None where it cannot run there."""
        if device == self._host:
            placed = node.placed(device=device, fused_into=None)
            spared_us = self._costs.avoidable_us(graph, placed)
            return _Price(self._costs.node_cost(graph, placed).time_us - spared_us, 0.0)
        prices = [self._on_unit(device, graph, node, choice) for choice in sorted(self._choices[device])]
        told = [price for price in prices if price is not None]
        return _Price(*map(min, zip(*told, strict=True))) if told else None

    def _on_unit(self, device: str, graph: Graph, node: Node, choice: str) -> _Price | None:
        placed = node.placed(device=device, choice=choice, fused_into=None)
        work = self._costs.work(graph, placed.placed(device=None), device)
        if isinstance(work, Refusal):
            return None
        run_us = self._costs.units[device].least_us(work, choice)
        exact = run_us <= 0
        if exact:
            cost = self._costs.unit_cost(device, work, choice)
            if isinstance(cost, Refusal):
                return None
            run_us = cost.time_us
        moved = self._costs.transfer(graph, placed) if exact or not node.op.is_sparse else None
        copies = () if moved is None else (*moved.before, *moved.after)
        return _Price(run_us, sum(copy.time_us for copy in copies if not copy.resource))


def _least_share(price: Callable[[int], _Price], whole: _Price, size: int) -> _Price:
    """What all of `size` rows or columns takes at least, in any number of parts.

    Args:
        price: of so many; of more it is no less.
        whole: of all of them.
        size: how many there are, more than one.
    """
    run_us = _least_rate(lambda count: price(count).run_us, whole.run_us, size)
    return _Price(run_us, _least_rate(lambda count: price(count).link_us, whole.link_us, size))


def _least_rate(price: Callable[[int], float], whole_us: float, size: int) -> float:
    """The least over all counts of their price, times `size` over the count; at most `SLACK` too low.

    What `count` rows take, so many more take as well: a price tells of all counts up to the one at which that would be
    a better rate than the best so far.
    """
    best = least = whole_us
    count = 1
    while count < size and least > 0:
        us = price(count)
        best = min(best, us * size / count)
        last = max(int(us * size / (best * (1 - SLACK))) if best else size, int(count * GROWTH), count)
        last = min(last, size - 1)
        least = min(least, us * size / last)
        count = last + 1
    return least


def _flows(graph: Graph, node: Node) -> bool:
    """Whether a node's rows follow from rows of what it reads, so that parts of it can be in a decision with others."""
    if len(node.outputs) != 1:
        return False
    return not isinstance(node_part(graph, node, 0, max(node_rows(graph, node), 1)), Refusal)


def _load(times: Mapping[str, _Times], resources: Sequence[str]) -> tuple[float, dict[str, float]]:
    """The load balance, and what every node makes of it at the prices of the resources that it is found with."""
    names = [name for name, time in times.items() if any(least.whole_us for least in time.least)]
    if not names:
        return 0.0, {}
    loads = _loads([times[name] for name in names], resources)
    prices = _best_prices(loads)
    weights = (loads @ prices).min(axis=1)
    return float(weights.sum()), dict(zip(names, weights.tolist(), strict=True))


def _loads(times: Sequence[_Times], resources: Sequence[str]) -> Array:
    """What nodes load resources with: [nodes, devices, resources]; where there are fewer devices the last one again."""
    at = {resource: place for place, resource in enumerate(resources)}
    most = max(len(time.least) for time in times)
    loads = np.zeros((len(times), most, len(resources)))
    for row, time in zip(loads, times, strict=True):
        for place in range(most):
            least = time.least[min(place, len(time.least) - 1)]
            row[place, at[least.device]] = least.whole_us
            if least.link_us:
                row[place, at[_link(least.device)]] = least.link_us
    return loads


def _best_prices(loads: Array) -> Array:
    """Prices of resources, adding up to one, at which all nodes together cost most.

    What they cost is concave: along the line between any two prices it has one top, which the golden ratio narrows
    down. With two resources that is all there is; with more it is done for every pair until nothing is gained.
    """
    prices = np.full(loads.shape[2], 1 / loads.shape[2])
    best = -math.inf
    for _ in range(_STEPS):
        for first, second in combinations(range(len(prices)), 2):
            prices = _best_between(loads, prices, first, second)
        cost = _cost(loads, prices)
        if cost <= best * (1 + 1e-6) or len(prices) <= 2:
            break
        best = cost
    return prices


def _best_between(loads: Array, prices: Array, first: int, second: int) -> Array:
    """The same prices with what two of them have together divided anew."""
    both = prices[first] + prices[second]

    def divided(share: float) -> Array:
        changed: Array = prices.copy()
        changed[first], changed[second] = share * both, (1 - share) * both
        return changed

    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if _cost(loads, divided(left)) < _cost(loads, divided(right)):
            low = left
        else:
            high = right
    moved = divided((low + high) / 2)
    return moved if _cost(loads, moved) > _cost(loads, prices) else prices


def _cost(loads: Array, prices: Array) -> float:
    return float((loads @ prices).min(axis=1).sum())


def _link(device: str) -> str:
    """The resource of copies to and from a device."""
    return f"link of {device}"


class _Reach(NamedTuple):
    """Bounds on when the first part of a node has ended, and all of it.

    `behind` is the node whose end, or (`flows`) whose first part, it starts behind; `ends_behind` the node whose end it
    ends a part behind, where that is later than all of it behind its start.
    """

    first_us: float
    end_us: float
    behind: str | None
    flows: bool
    ends_behind: str | None


def _critical_path(graph: Graph, times: Mapping[str, _Times]) -> tuple[float, dict[str, float]]:
    """The longest chain, and what its nodes add to it."""
    reached: dict[str, _Reach] = {}
    for node in graph.nodes:
        reached[node.name] = _reach(graph, node, times, reached)
    if not reached:
        return 0.0, {}
    last = max(reached, key=lambda name: reached[name].end_us)
    return reached[last].end_us, _chain(last, times, reached)


def _chain(last: str, times: Mapping[str, _Times], reached: Mapping[str, _Reach]) -> dict[str, float]:
    """What the nodes of the chain to a node's end add to it."""
    added: dict[str, float] = {}
    name: str | None = last
    whole = True
    while name is not None:
        reach = reached[name]
        behind = reach.ends_behind if whole else None
        added[name] = times[name].whole_us if whole and behind is None else times[name].first_us
        name, whole = (behind, True) if behind is not None else (reach.behind, not reach.flows)
    return added


def _reach(graph: Graph, node: Node, times: Mapping[str, _Times], reached: Mapping[str, _Reach]) -> _Reach:
    """When a node has ended at least.

    Behind what it reads whole it starts then. Of what it reads row by row the first rows are enough to start with, if
    every part of it reads some; and if all of that is read, a part of it comes behind the last rows.
    """
    own = times[node.name]
    start, behind, flows = 0.0, None, False
    end, ends_behind = 0.0, None
    inputs: Sequence[_Flow | None] = _flow_in(graph, node) if own.flows else [None] * len(node.inputs)
    for name, by_rows in zip(node.inputs, inputs, strict=True):
        maker = graph.producer(name) if name else None
        if maker is None:
            continue
        before, flow = reached[maker.name], by_rows if times[maker.name].flows else None
        ready = before.end_us if flow is None else before.first_us if flow.every_part_reads else 0.0
        if ready > start:
            start, behind, flows = ready, maker.name, flow is not None
        if flow is not None and flow.all_is_read and before.end_us + own.first_us > end:
            end, ends_behind = before.end_us + own.first_us, maker.name
    whole_us = start + own.whole_us
    return _Reach(start + own.first_us, max(whole_us, end), behind, flows, ends_behind if end > whole_us else None)


class _Flow(NamedTuple):
    """How the parts of a node read an input: whether every one reads some of it, and whether all of it is read."""

    every_part_reads: bool
    all_is_read: bool


def _flow_in(graph: Graph, node: Node) -> Sequence[_Flow | None]:
    """How a node that is made row by row reads its inputs; None for those that it reads whole."""
    shapes = tuple(None if value is None else value.shape for value in graph.in_values(node))
    return _rows_read(node.op, shapes, graph.value(node.outputs[0]).shape)


@lru_cache(maxsize=1024)
def _rows_read(op: Op, shapes: tuple[Shape | None, ...], out_shape: Shape | None) -> Sequence[_Flow | None]:
    rows = row_count(out_shape)
    whole = op.part_rows(shapes, out_shape, 0, max(rows, 1))
    if isinstance(whole, Refusal):
        return [None] * len(shapes)
    by_rows = [isinstance(span, tuple) for span in whole.spans]
    if op.is_elementwise or op.is_matrix_product:  # a row from a row
        return [_Flow(every_part_reads=True, all_is_read=True) if by_row else None for by_row in by_rows]
    if rows > _ROWS_LOOKED_AT:
        return [_Flow(every_part_reads=False, all_is_read=False) if by_row else None for by_row in by_rows]
    parts = [op.part_rows(shapes, out_shape, row, row + 1) for row in range(rows)]
    return [
        _flow_of([_span(part, index) for part in parts], row_count(shape)) if by_row else None
        for index, (shape, by_row) in enumerate(zip(shapes, by_rows, strict=True))
    ]


def _flow_of(spans: Sequence[tuple[int, int]], rows: int) -> _Flow:
    """Of an input with so many rows, and what each output row reads of them."""
    reached = 0
    for start, stop in spans:
        reached = max(reached, stop) if start <= reached else reached
    return _Flow(every_part_reads=all(start < stop for start, stop in spans), all_is_read=reached >= rows)


def _span(part: RowPart | Refusal, index: int) -> tuple[int, int]:
    """The rows of an input that a part reads; none where it has none of its own."""
    span = (0, 0) if isinstance(part, Refusal) else part.spans[index]
    return span if isinstance(span, tuple) else (0, 0)
