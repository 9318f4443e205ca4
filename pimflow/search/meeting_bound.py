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

For any prices of device time that add up to one, a run of waists in one decision takes at least what its nodes cost,
each where it is cheapest (`node_costs`), plus what devices wait for before their first waist and behind their last one
(`run_bound`); so do nodes between two waists, and, at the same prices, those of them that are in the run's decision
together with those that are not. The minimum over all ways to cut the waists and what is between them into single ones
and runs is computed position by position. For the run that ends at a position, it uses the price, from a fixed set, at
which the cheapest start of the run costs most; so the result is no larger than with the best price for each start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from pimflow.ir import Graph, Node
from pimflow.ir.analysis.regions import node_rows
from pimflow.records import NamedTuple
from pimflow.search.flows import flow_in
from pimflow.search.least_times import NodeTimes
from pimflow.search.node_costs import PRICES, NodeCosts
from pimflow.search.run_bound import Runs, Ways, costs_of_run

Array = npt.NDArray[np.float64]


class _Step(NamedTuple):
    """A waist, or all other nodes between two waists.

    Args:
        alone_us: its time in decisions without other steps.
        alone: what each node contributes to that.
        ways: its costs in a decision with other steps; None for a waist that cannot be in one, as it has only one part.
        together: for nodes between two waists, the cost of each in such a decision, at all prices.
        follows: whether it is a waist that may be in the decision of the step before it.
    """

    alone_us: float
    alone: Mapping[str, float]
    ways: Ways | None
    together: Mapping[str, Array] = MappingProxyType({})
    follows: bool = False


def meeting_bound(graph: Graph, costs: NodeCosts) -> tuple[float, dict[str, float]]:
    """The bound for a cleaned-up graph, given the costs of its nodes, and each node's contribution to it."""
    cuts = _Cuts(costs)
    for step in _steps(graph, costs):
        cuts.add(step)
    return cuts.best_us[-1], cuts.weights()


class _Cuts:
    """The least sum over all ways to cut the steps so far into single ones and runs, by their number, and where the
    last cut is.

    Attributes:
        best_us: the minimum time of the first steps, by their number.
    """

    def __init__(self, costs: NodeCosts) -> None:
        self.best_us = [0.0]
        self._costs = costs
        self._steps: list[_Step] = []
        self._starts: list[int | None] = []
        """By step, where the decision starts that ends with it: the step itself, or the waist that it follows; None for
        a run."""
        self._prices: dict[int, int] = {}
        """By the last step of a run, the price at which the run costs most."""
        self._lead = 0
        """The place of the last step that follows no other."""
        self._together: Array | None = None
        """The costs of that and of those that follow it, in one decision; None if nothing follows it."""
        self._runs: Runs | None = None
        """The runs that may continue; None if the last step cannot be in one."""

    def add(self, step: _Step) -> None:
        """Add the next step: on its own, or at the end of a run."""
        before_us, runs = self.best_us[-1], self._runs
        self._steps.append(step)
        single_us, start = self._alone(step)
        self.best_us.append(single_us)
        self._starts.append(start)
        if step.ways is None:
            self._runs = None
            return
        if runs is None:
            self._runs = Runs.from_step(before_us, step.ways)
            return
        runs = runs.with_step(step.ways)
        run_us = runs.least_us
        price = int(run_us.argmax())
        if run_us[price] < single_us:
            self.best_us[-1], self._starts[-1] = float(run_us[price]), None
            self._prices[len(self._steps)] = price
        self._runs = runs.or_from_step(before_us, step.ways)

    def _alone(self, step: _Step) -> tuple[float, int]:
        """The least sum with the last step on its own, or in the decision of the waist that it follows, and where that
        decision starts."""
        place, lead = len(self._steps) - 1, self._steps[self._lead]
        apart_us = self.best_us[-1] + step.alone_us
        if not step.follows:
            self._lead, self._together = place, None
            return apart_us, place
        before = self._cost(lead) if self._together is None else self._together
        self._together = before + self._cost(step)
        together_us = max(lead.alone_us, float(self._together.max()))
        return min((apart_us, place), (self.best_us[self._lead] + together_us, self._lead))

    def _cost(self, waist: _Step) -> Array:
        """The cost of a waist, however it is divided."""
        (name,) = waist.alone
        return self._costs.cost(name)

    def weights(self) -> dict[str, float]:
        """The contributions of the nodes to the bound."""
        found: dict[str, float] = {}
        stop = len(self._steps)
        while stop:
            start = self._starts[stop - 1]
            if start is not None:
                found |= self._weights_alone(start, stop)
                stop = start
                continue
            price = self._prices[stop]
            costs = costs_of_run(self._backwards(stop), price, self.best_us[stop])
            for step, cost in zip(self._steps[stop - len(costs) : stop], reversed(costs), strict=True):
                together = {name: float(own[price]) for name, own in step.together.items()}
                found |= together or dict.fromkeys(step.alone, cost)
            stop -= len(costs)
        return found

    def _weights_alone(self, start: int, stop: int) -> dict[str, float]:
        """The contributions of the nodes of a step alone, or of a waist and those that follow it."""
        first, *others = self._steps[start:stop]
        costs = [self._cost(step) for step in (first, *others)] if others else []
        total = sum(costs, np.zeros(len(PRICES)))
        if total.max() <= first.alone_us:
            return dict(first.alone)
        price = int(total.argmax())
        return {
            name: float(cost[price]) for step, cost in zip((first, *others), costs, strict=True) for name in step.alone
        }

    def _backwards(self, stop: int) -> Iterator[tuple[Ways, float]]:
        """The steps that may be in one run that ends before a place, from there to the front, each with the minimum
        time of all before it."""
        for at in range(stop - 1, -1, -1):
            ways = self._steps[at].ways
            if ways is None:
                return
            yield ways, self.best_us[at]


def _steps(graph: Graph, costs: NodeCosts) -> Iterator[_Step]:
    """The waists that take time, and the nodes before, between and behind them, in order.

    An elementwise waist behind other nodes than waists may be in a decision of theirs; alone, it counts as nothing.
    """
    between: list[Node] = []
    is_led = False
    for node, is_waist in zip(graph.nodes, _waists(graph, costs.busy), strict=True):
        if not any(time.whole_us for time in costs.busy[node.name].on_devices):
            continue
        if not is_waist:
            between.append(node)
            continue
        if between:
            yield _between(graph, between, costs)
        follows = _may_follow(graph, node, costs.busy)
        is_led = not follows or (is_led and not between)
        between = []
        if is_led:
            yield _waist(graph, node, costs)._replace(follows=follows)
        else:
            yield _Step(0.0, {node.name: 0.0}, Ways.anywhere(costs.cost(node.name)))
    if between:
        yield _between(graph, between, costs)


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


def _between(graph: Graph, nodes: Sequence[Node], costs: NodeCosts) -> _Step:
    """The other nodes between two waists; elementwise ones that read none of the others may be in the decision of the
    first waist, and do not count alone."""
    together = {node.name: costs.cost(node.name) for node in nodes}
    following: set[str] = set()
    for node in nodes:
        producers = (graph.producer(name) for name in node.inputs if name)
        read = {producer.placement.fused_into or producer.name for producer in producers if producer is not None}
        if _may_follow(graph, node, costs.busy) and read.isdisjoint(together.keys() - following):
            following.add(node.name)
    apart = {name: cost for name, cost in together.items() if name not in following}
    total: Array = sum(apart.values(), np.zeros(len(PRICES)))
    price = int(total.argmax())
    alone = {name: float(cost[price]) for name, cost in apart.items()}
    return _Step(float(total[price]), alone, Ways.anywhere(sum(together.values(), np.zeros(len(PRICES)))), together)


def _waist(graph: Graph, node: Node, costs: NodeCosts) -> _Step:
    times = costs.busy[node.name]
    has_parts = times.flows and node_rows(graph, node) > 1
    return _Step(times.alone_us, {node.name: times.alone_us}, costs.ways(node.name) if has_parts else None)


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
