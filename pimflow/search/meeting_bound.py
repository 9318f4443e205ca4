"""A lower bound on the makespan that follows from all devices synchronising at the end of each decision of a plan.

A node is a *waist* if every other node is before or behind it in the graph, it needs all rows of all nodes before it,
and every row of every node behind it needs some of its rows (each through other nodes, if necessary). So

- the waists of a decision are consecutive: a waist between two of them could run neither before nor after the decision,
  and the same holds for all other nodes between two of them;
- a waist in a decision of its own takes its time alone, and nothing else runs meanwhile. Elementwise nodes behind a
  node that is divided may be part of its decision, and do not count;
- several waists in one decision are parts of a pipeline, or of decisions that are joined. A waist with only one part
  there also runs alone, because everything before it has ended and nothing behind it can begin: the decision is
  equivalent to two, with a decision for the waist between them. All others have two parts or more. If only the host can
  run a waist, each of its parts is a kernel of the host; if a unit can run it too, it may be divided between both and
  counts at its best rate. (A node divided by columns or K is read as a whole: all of its parts run before anything
  behind it, as in a decision of its own.)

A run of waists in a pipeline, and the nodes between the first and the last of them, keep each device busy for at least
the time that their best rates give. For any prices of device time that add up to one, the run takes at least the total
cost of its nodes, each on the device where it is cheapest. The minimum over all ways to cut the waists into single ones
and runs is computed position by position. For the run that ends at a waist, it uses the price, from a fixed set, at
which the cheapest start of the run costs most; so the result is no larger than with the best price for each start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from pimflow.ir import Graph, Node
from pimflow.records import dataclass
from pimflow.search.flows import flow_in
from pimflow.search.least_times import LeastTimes, NodeTimes

Array = npt.NDArray[np.float64]

PRICES = np.linspace(0.0, 1.0, 33)
"""The prices of the host's time; the rest, up to one, is divided among the units."""


@dataclass(frozen=True)
class _Waist:
    """A waist.

    Args:
        name: the node's name.
        alone_us: its time in a decision of its own.
        divided_us: its minimum time on the host in a decision with others; None if it cannot be divided into parts.
        before: the other nodes between the previous waist and this one.
    """

    name: str
    alone_us: float
    divided_us: float | None
    before: tuple[str, ...]


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
    waists = _waists(graph, times, least)
    cuts = _Cuts(times, behind)
    for waist in waists:
        cuts.add(waist)
    return cuts.best_us[-1], cuts.weights(waists)


class _Cuts:
    """The least sum over all ways to cut the waists so far, by their number, and where the last cut is.

    Attributes:
        best_us: the minimum time of the first waists, by their number.
    """

    def __init__(self, times: Mapping[str, NodeTimes], behind: Mapping[tuple[str, str], float]) -> None:
        self.best_us = [0.0]
        self._times = times
        self._behind = behind
        self._last: list[tuple[int, int | None]] = []
        """By waist, the start of the last run and the price at which it costs most; the price is None for a waist on
        its own."""
        self._spent_us = np.zeros(len(PRICES))
        """By price, the cost so far of everything that may be in runs."""
        self._open_us = np.full(len(PRICES), np.inf)
        self._opened = np.zeros(len(PRICES), np.intp)
        """By price, the start of the cheapest run that may continue, and the best time before it minus `_spent_us` at
        that point."""

    def add(self, waist: _Waist) -> None:
        """Add the next waist: on its own, or at the end of a run."""
        place = len(self._last)
        single_us = self.best_us[-1] + waist.alone_us
        for name in waist.before:
            self._spent_us = self._spent_us + self._cost(name, self._times[name].on_devices[0].whole_us)
        begins_us = self.best_us[-1] - self._spent_us
        if waist.divided_us is not None:
            self._spent_us = self._spent_us + self._cost(waist.name, waist.divided_us)
        else:
            self._open_us = np.full(len(PRICES), np.inf)
            begins_us = self._open_us
        run_us = self._open_us + self._spent_us
        price = int(run_us.argmax())
        is_run = run_us[price] < single_us
        self.best_us.append(float(run_us[price]) if is_run else single_us)
        self._last.append((int(self._opened[price]), price) if is_run else (place, None))
        self._opened = np.where(begins_us < self._open_us, place, self._opened)
        self._open_us = np.minimum(self._open_us, begins_us)

    def _cost(self, name: str, host_us: float) -> Array:
        """The cost of a node in a run on its cheapest device, at all prices."""
        found: Array = PRICES * host_us
        units = self._times[name].on_devices[1:]
        for unit in units:
            own = (1 - PRICES) / len(units) * unit.whole_us
            found = np.minimum(found, own + PRICES * self._behind.get((name, unit.device), 0.0))
        return found

    def weights(self, waists: Sequence[_Waist]) -> dict[str, float]:
        """The contributions of the nodes to the bound."""
        found: dict[str, float] = {}
        stop = len(waists)
        while stop:
            start, price = self._last[stop - 1]
            for waist in waists[start:stop]:
                if price is None or waist.divided_us is None:
                    found[waist.name] = waist.alone_us
                    continue
                found[waist.name] = float(self._cost(waist.name, waist.divided_us)[price])
                for name in waist.before if waist is not waists[start] else ():
                    found[name] = float(self._cost(name, self._times[name].on_devices[0].whole_us)[price])
            stop = start
        return found


def _waists(graph: Graph, times: Mapping[str, NodeTimes], least: LeastTimes) -> list[_Waist]:
    """The waists that take time, in order.

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
    found: list[_Waist] = []
    before: list[str] = []
    for here, node in enumerate(graph.nodes):
        if not any(least.whole_us for least in times[node.name].on_devices):
            continue
        if latest[here] > here or earliest[here] < here:
            before.append(node.name)
            continue
        alone_us = 0.0 if _may_follow(graph, node, times) else times[node.name].whole_us
        found.append(_Waist(node.name, alone_us, _divided_us(node, times[node.name], least), tuple(before)))
        before = []
    return found


def _divided_us(node: Node, times: NodeTimes, least: LeastTimes) -> float | None:
    """The host's minimum time for a waist in a decision with others: in two parts or more if no unit can run one; None
    if it cannot be divided into parts."""
    if len(times.on_devices) == 1:
        return least.divided_us(node)
    return times.on_devices[0].whole_us if least.has_parts(node) else None


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
