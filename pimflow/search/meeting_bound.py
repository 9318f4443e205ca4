"""A lower bound on the makespan that follows from all devices synchronising at the end of each decision of a plan.

A node is a *waist* if every other node is before or behind it in the graph, it needs all rows of all nodes before it,
and every row of every node behind it needs some of its rows (each through other nodes, if necessary). So

- the waists of a decision are consecutive: a waist between two of them could run neither before nor after the decision,
  and the same holds for all other nodes between two of them;
- a waist in a decision of its own takes its time alone, and nothing else runs meanwhile. Elementwise waists right
  behind it may be in its decision, applied to its parts: then the decision takes no less than all of their work takes
  if it is balanced;
- several waists in one decision are parts of a pipeline, or of decisions that are joined. A waist with only one part
  there also runs alone, because everything before it has ended and nothing behind it can begin: the decision is
  equivalent to two, with a decision for the waist between them. All others have two parts or more, each at least one
  row: of these, the host computes none, or all, or shares them with a unit. (A node divided by columns or K is read as
  a whole: all of its parts run before anything behind it, as in a decision of its own.)
- the other nodes between two waists run between those, in decisions of their own or in decisions with waists.

A run of waists in one decision, and the nodes between the first and the last of them, keep each device busy for at
least the time that their best rates give. For any prices of device time that add up to one, the run takes at least the
total cost of its nodes, each where it is cheapest; so do nodes between two waists, and, at the same prices, those of
them that are in the run's decision together with those that are not. The minimum over all ways to cut the waists and
what is between them into single ones and runs is computed position by position. For the run that ends at a position, it
uses the price, from a fixed set, at which the cheapest start of the run costs most; so the result is no larger than
with the best price for each start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from pimflow.ir import Graph, Node
from pimflow.ir.analysis.regions import node_rows
from pimflow.records import NamedTuple
from pimflow.search.flows import flow_in
from pimflow.search.least_times import LeastTimes, NodeTimes

Array = npt.NDArray[np.float64]

PRICES = np.linspace(0.0, 1.0, 65)
"""The prices of the host's time; the rest, up to one, is divided among the units."""


class _Step(NamedTuple):
    """A waist, or all other nodes between two waists.

    Args:
        alone_us: its time in decisions without other steps.
        alone: what each node contributes to that.
        costs: the cost of each node in a decision with other steps, at all prices; None for a waist that cannot be in
            one, as it has only one part.
        follows: whether it is a waist that may be in the decision of the step before it.
        balanced: its cost in a decision with those that follow it, or that it follows, at all prices; None if there can
            be none.
    """

    alone_us: float
    alone: Mapping[str, float]
    costs: Mapping[str, Array] | None
    follows: bool = False
    balanced: Array | None = None


class _Lead(NamedTuple):
    """A waist in a decision of its own, and those that follow it.

    Args:
        start: the position of the first.
        alone_us: the time of the first alone.
        balanced: the cost of all of them, at all prices.
    """

    start: int
    alone_us: float
    balanced: Array

    @property
    def time_us(self) -> float:
        """The minimum time of all of them in one decision."""
        return max(self.alone_us, float(self.balanced.max()))


def meeting_bound(
    graph: Graph, times: Mapping[str, NodeTimes], behind: Mapping[tuple[str, str], float], least: LeastTimes
) -> tuple[float, dict[str, float]]:
    """The bound, and each node's contribution to it.

    Args:
        graph: cleaned up.
        times: the minimum times of its nodes.
        behind: by node and unit, the host's minimum time for the epilogue if the unit computes the node.
        least: the source of the times.
    """
    cuts = _Cuts()
    for step in _steps(graph, _Prices(times, behind), least):
        cuts.add(step)
    return cuts.best_us[-1], cuts.weights()


class _Cuts:
    """The least sum over all ways to cut the steps so far into single ones and runs, by their number, and where the
    last cut is.

    Attributes:
        best_us: the minimum time of the first steps, by their number.
    """

    def __init__(self) -> None:
        self.best_us = [0.0]
        self._steps: list[_Step] = []
        self._last: list[tuple[int, int | None]] = []
        """By step, the start of the last run and the price at which it costs most; the price is None for a step in a
        decision of its own, or for a waist and what follows it."""
        self._lead: _Lead | None = None
        """The last waist that follows no other, with those that follow it."""
        self._spent_us = np.zeros(len(PRICES))
        """By price, the cost so far of everything that may be in runs."""
        self._open_us = np.full(len(PRICES), np.inf)
        self._opened = np.zeros(len(PRICES), np.intp)
        """By price, the start of the cheapest run that may continue, and the best time before it minus `_spent_us` at
        that point."""

    def add(self, step: _Step) -> None:
        """Add the next step: on its own, or at the end of a run."""
        place = len(self._last)
        single_us, start = self._alone(step, place)
        begins_us = self.best_us[-1] - self._spent_us
        if step.costs is None:
            begins_us = self._open_us = np.full(len(PRICES), np.inf)
        else:
            self._spent_us = self._spent_us + sum(step.costs.values())
        run_us = self._open_us + self._spent_us
        price = int(run_us.argmax())
        is_run = run_us[price] < single_us
        self.best_us.append(float(run_us[price]) if is_run else single_us)
        self._last.append((int(self._opened[price]), price) if is_run else (start, None))
        self._steps.append(step)
        self._opened = np.where(begins_us < self._open_us, place, self._opened)
        self._open_us = np.minimum(self._open_us, begins_us)

    def _alone(self, step: _Step, place: int) -> tuple[float, int]:
        """The least sum with a step on its own, or in the decision of the waist that it follows, and where that
        decision starts."""
        apart_us = self.best_us[-1] + step.alone_us
        if not step.follows:
            self._lead = None if step.balanced is None else _Lead(place, step.alone_us, step.balanced)
            return apart_us, place
        assert self._lead is not None, "it follows a waist"
        assert step.balanced is not None, "it follows a waist"
        self._lead = self._lead._replace(balanced=self._lead.balanced + step.balanced)
        return min((apart_us, place), (self.best_us[self._lead.start] + self._lead.time_us, self._lead.start))

    def weights(self) -> dict[str, float]:
        """The contributions of the nodes to the bound."""
        found: dict[str, float] = {}
        stop = len(self._last)
        while stop:
            start, price = self._last[stop - 1]
            found |= _in_run(self._steps[start:stop], price) if price is not None else _alone(self._steps[start:stop])
            stop = start
        return found


def _in_run(steps: Sequence[_Step], price: int) -> dict[str, float]:
    """The contributions of the nodes of a run at a price."""
    return {name: float(costs[price]) for step in steps for name, costs in (step.costs or {}).items()}


def _alone(steps: Sequence[_Step]) -> dict[str, float]:
    """The contributions of the nodes of a step alone, or of a waist and those that follow it."""
    first, *others = steps
    balanced = {name: step.balanced for step in steps for name in step.alone if step.balanced is not None}
    total: Array = np.zeros(len(PRICES)) + sum(balanced.values())
    if not others or total.max() <= first.alone_us:
        return dict(first.alone)
    price = int(total.argmax())
    return {name: float(cost[price]) for name, cost in balanced.items()}


class _Prices:
    """The costs of nodes at all prices of device time."""

    def __init__(self, times: Mapping[str, NodeTimes], behind: Mapping[tuple[str, str], float]) -> None:
        self.times = times
        self._behind = behind
        self._divided: dict[tuple[int, tuple[float, ...]], Array] = {}
        """Results of `divided_cost` by what they depend on; nodes that are alike share their times."""

    def cost(self, name: str, host_us: float) -> Array:
        """The cost of a node on its cheapest device, of which the host takes at least `host_us`."""
        found: Array = PRICES * host_us
        units = self.times[name].on_devices[1:]
        for unit in units:
            own = (1 - PRICES) / len(units) * unit.whole_us
            found = np.minimum(found, own + PRICES * self._behind.get((name, unit.device), 0.0))
        return found

    def divided_cost(self, name: str) -> Array:
        """The cost of a node that units can run too, in two parts or more: all on units, all on the host, or shared.

        If the host computes a share x, it takes x times its whole time and no less than one row takes; units likewise.
        The total is convex in x and piecewise linear.
        """
        times = self.times[name]
        key = id(times), tuple([self._behind.get((name, least.device), 0.0) for least in times.on_devices])
        if key not in self._divided:
            self._divided[key] = self._divided_cost(name)
        return self._divided[key]

    def _divided_cost(self, name: str) -> Array:
        host, *units = self.times[name].on_devices
        found = self.cost(name, max(host.whole_us, 2 * host.row_us))
        whole_us, row_us = (min(us) for us in zip(*((unit.whole_us, unit.row_us) for unit in units), strict=True))
        behind_us = min(self._behind.get((name, unit.device), 0.0) for unit in units)
        kinks = (host.row_us / host.whole_us if host.whole_us else 0.0, 1 - row_us / whole_us if whole_us else 1.0)
        shared = [
            PRICES * (max(host.row_us, x * host.whole_us) + (1 - x) * behind_us)
            + (1 - PRICES) / len(units) * max(row_us, (1 - x) * whole_us)
            for x in (0.0, *kinks, 1.0)
        ]
        least: Array = np.minimum(found, np.min(shared, axis=0))
        return least


def _steps(graph: Graph, prices: _Prices, least: LeastTimes) -> Iterator[_Step]:
    """The waists that take time, and the nodes before, between and behind them, in order.

    An elementwise waist behind other nodes than waists may be in a decision of theirs; alone, it counts as nothing.
    """
    between: list[Node] = []
    is_led = False
    for node, is_waist in zip(graph.nodes, _waists(graph, prices.times), strict=True):
        if not any(time.whole_us for time in prices.times[node.name].on_devices):
            continue
        if not is_waist:
            between.append(node)
            continue
        if between:
            yield _between(graph, between, prices)
        follows = _may_follow(graph, node, prices.times)
        is_led = not follows or (is_led and not between)
        between = []
        step = _waist(graph, node, prices, least)
        yield step._replace(follows=follows) if is_led else _Step(0.0, {node.name: 0.0}, step.costs)
    if between:
        yield _between(graph, between, prices)


def _waists(graph: Graph, times: Mapping[str, NodeTimes]) -> list[bool]:
    """By node, whether it is a waist.

    In a topological order, all nodes before a node are its ancestors if each of them is read by a node up to this one;
    all nodes after it are its descendants if each of them reads a node from this one on.
    """
    place = {node.name: index for index, node in enumerate(graph.nodes)}
    first_reader = [len(place)] * len(place)
    last_read = [-1] * len(place)
    for node in graph.nodes:
        here = place[node.name]
        flows = flow_in(graph, node) if times[node.name].flows else [None] * len(node.inputs)
        for name, flow in zip(node.inputs, flows, strict=True):
            producer = graph.producer(name) if name else None
            if producer is None:
                continue
            there = place[producer.name]
            if flow is None or flow.all_is_read:
                first_reader[there] = min(first_reader[there], here)
            if flow is None or flow.every_part_reads:
                last_read[here] = max(last_read[here], there)
    latest = list(accumulate(first_reader, max, initial=0))[:-1]
    earliest = list(accumulate(reversed(last_read), min, initial=len(place)))[-2::-1]
    return [latest[here] <= here <= earliest[here] for here in range(len(place))]


def _between(graph: Graph, nodes: Sequence[Node], prices: _Prices) -> _Step:
    """The other nodes between two waists; elementwise ones that read none of the others may be in the decision of the
    first waist, and do not count."""
    costs = {node.name: prices.cost(node.name, prices.times[node.name].on_devices[0].whole_us) for node in nodes}
    following: set[str] = set()
    for node in nodes:
        producers = (graph.producer(name) for name in node.inputs if name)
        read = (producer.placement.fused_into or producer.name for producer in producers if producer is not None)
        if _may_follow(graph, node, prices.times) and not any(name in costs and name not in following for name in read):
            following.add(node.name)
    alone = {name: cost for name, cost in costs.items() if name not in following}
    total: Array = np.zeros(len(PRICES)) + sum(alone.values())
    price = int(total.argmax())
    return _Step(float(total[price]), {name: float(cost[price]) for name, cost in alone.items()}, costs)


def _waist(graph: Graph, node: Node, prices: _Prices, least: LeastTimes) -> _Step:
    """A waist; one that only the host can run costs a kernel of the host for each part."""
    times = prices.times[node.name]
    cost: Array | None = None
    if len(times.on_devices) > 1:
        has_parts = times.flows and node_rows(graph, node) > 1
        cost = prices.divided_cost(node.name) if has_parts else None
    elif (divided_us := least.divided_us(node)) is not None:
        cost = PRICES * divided_us
    return _Step(
        times.whole_us,
        {node.name: times.whole_us},
        None if cost is None else {node.name: cost},
        balanced=prices.cost(node.name, times.on_devices[0].whole_us),
    )


def _may_follow(graph: Graph, node: Node, times: Mapping[str, NodeTimes]) -> bool:
    """Whether a node may be part of the decision that divides another: it is elementwise, and reads such a node or
    another elementwise one."""
    if not node.op.is_elementwise:
        return False
    producers = (graph.producer(name) for name in node.inputs if name)
    return any(
        producer is not None and (producer.op.is_elementwise or len(times[producer.name].on_devices) > 1)
        for producer in producers
    )
