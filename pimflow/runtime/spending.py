"""The breakdown of a run's time and energy by part, for each event and each node.

Amounts are recorded by place (a device, a link, or `STATIC`) and within a place by part, under the backends' names for
parts. Two rules make the parts add up:

- Within a kernel, of activities that overlap only the longest counts as time: the backends' parts add up to the
  kernel's time.
- Between kernels, an instant in which n of them run counts 1/n for each. So the shares of all nodes add up to the
  makespan, and a kernel's parts are charged in proportion to its share.

Static power is charged to the nodes in proportion to their shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from pimflow.codegen.answers import Copy, Parts, Transfer
from pimflow.ir import Graph, Node
from pimflow.records import NamedTuple, dataclass
from pimflow.runtime.timeline import CHANNELS, NO_RESOURCE, Event, NodePrice, Timeline, build_timeline
from pimflow.targets import Target

STATIC = "static"
"""The place of the static power that the board always draws; its only part is `BOARD`."""
BOARD = "board"

PartsByPlace = Mapping[str, Parts]
"""Amounts by place, then by part."""


class PartPrice(NodePrice, Protocol):
    """A node's price, with the parts of its energy."""

    @property
    def energy_parts_mj(self) -> Parts:
        """Millijoules by part."""


class SpendingCosts(Protocol):
    """Costs that can be broken down into parts."""

    @property
    def target(self) -> Target:
        """The machine."""

    def node_cost(self, graph: Graph, node: Node) -> PartPrice:
        """The node's time and energy on its device."""

    def time_parts_us(self, graph: Graph, node: Node) -> Parts:
        """The node's time by part."""

    def transfer(self, graph: Graph, node: Node) -> Transfer | None:
        """The cost of a node's copies; None if there are none."""


@dataclass(frozen=True, slots=True)
class EventCost:
    """Time and energy of one use of a resource.

    Args:
        event: the event.
        node: the node that it belongs to.
        place: the device or link.
        share_us: its share of the makespan.
        time_parts_us: time by part; the sum is the event's length.
        energy_parts_mj: energy by part; the sum is the event's energy without static power.
    """

    event: Event
    node: Node
    place: str
    share_us: float
    time_parts_us: Parts
    energy_parts_mj: Parts


@dataclass(frozen=True)
class Spending:
    """Time and energy of some nodes, or of a whole run.

    Args:
        share_parts_us: their share of the makespan; for a whole run this adds up to its time.
        busy_parts_us: the time for which they keep each device and link busy.
        energy_parts_mj: their energy, including static power in proportion to their share.
    """

    share_parts_us: PartsByPlace
    busy_parts_us: PartsByPlace
    energy_parts_mj: PartsByPlace

    def ordered(self, devices: Sequence[str]) -> Spending:
        """The same with places in a fixed order: static power, devices, links."""
        if self is NOTHING:
            return self
        places = (STATIC, *devices)

        def order(parts: PartsByPlace) -> PartsByPlace:
            links = sorted(set(parts) - set(places))
            return {place: parts[place] for place in (*places, *links) if place in parts}

        return Spending(order(self.share_parts_us), order(self.busy_parts_us), order(self.energy_parts_mj))


NOTHING = Spending({}, {}, {})
"""No time and no energy: one object for the many nodes of large models that are fused into others."""


def total(parts: PartsByPlace) -> float:
    """The sum over all places and parts."""
    return sum(sum(amounts.values()) for amounts in parts.values())


class Schedule(NamedTuple):
    """The timeline of a graph, and its events with their costs, in the same order."""

    timeline: Timeline
    events: tuple[EventCost, ...]


_SCHEDULES: WeakKeyDictionary[Graph, tuple[SpendingCosts, Schedule]] = WeakKeyDictionary()


def schedule(graph: Graph, costs: SpendingCosts) -> Schedule:
    """The schedule of a graph whose nodes all have devices; the last one is cached while the graph lives."""
    known = _SCHEDULES.get(graph)
    if known is not None and known[0] is costs:
        return known[1]
    timeline = build_timeline(graph, costs.target, costs)
    result = Schedule(timeline, event_costs(graph, timeline, costs))
    _SCHEDULES[graph] = costs, result
    return result


def event_costs(graph: Graph, timeline: Timeline, costs: SpendingCosts) -> tuple[EventCost, ...]:
    """The timeline's events with their costs, in the same order.

    Args:
        graph: the graph; all its nodes have devices.
        timeline: its schedule.
        costs: the cost model that the schedule was made with.
    """
    shares = shares_us([event if event.resource != NO_RESOURCE else None for event in timeline.events])
    copies: dict[str, list[Copy]] = {}
    result = []
    for event, share_us in zip(timeline.events, shares, strict=True):
        node = graph.node(event.node)
        device = node.device or costs.target.host
        if event.resource == NO_RESOURCE and node.placement.access is not None:
            result.append(EventCost(event, node, device, share_us, {}, {}))
            continue
        if event.resource == CHANNELS:
            result.append(EventCost(event, node, CHANNELS, share_us, {"switch": event.end_us - event.start_us}, {}))
            continue
        if event.resource in (device, NO_RESOURCE):
            energy_parts = costs.node_cost(graph, node).energy_parts_mj
            result.append(EventCost(event, node, device, share_us, costs.time_parts_us(graph, node), energy_parts))
            continue
        if node.name not in copies:
            moved = costs.transfer(graph, node)
            copies[node.name] = [] if moved is None else [*moved.before, *moved.after]
        copy = copies[node.name].pop(0)
        time_parts, energy_parts = {copy.part: copy.time_us}, {copy.part: copy.energy_mj}
        result.append(EventCost(event, node, event.resource, share_us, time_parts, energy_parts))
    return tuple(result)


def shares_us(events: Sequence[Event | None]) -> list[float]:
    """Each event's share of the time in which any event runs; 0 for None and for events without duration."""
    shares = [0.0] * len(events)
    turns = sorted(
        (when, begins, index)
        for index, event in enumerate(events)
        if event is not None and event.end_us > event.start_us
        for when, begins in ((event.start_us, True), (event.end_us, False))
    )
    running: set[int] = set()
    before = 0.0
    for when, begins, index in turns:
        for other in running:
            shares[other] += (when - before) / len(running)
        before = when
        if begins:
            running.add(index)
        else:
            running.remove(index)
    return shares


def spending(
    groups: Iterable[str], events: Iterable[tuple[str, EventCost]], static_mj: float, makespan_us: float
) -> dict[str, Spending]:
    """Time and energy of groups of events.

    Args:
        groups: their names; a group without events spends nothing.
        events: every event with the name of its group.
        static_mj: static energy of the board over the run.
        makespan_us: how long the run takes.
    """
    found = dict.fromkeys(groups, NOTHING)
    amounts: dict[str, _Amounts] = {}
    for group, event in events:
        found.setdefault(group, NOTHING)
        if event.time_parts_us or event.energy_parts_mj:
            amounts.setdefault(group, _Amounts()).add(event)
    static_w = static_mj / makespan_us if makespan_us else 0.0
    return {**found, **{group: counted.spending(static_w) for group, counted in amounts.items()}}


class _Amounts:
    """Adds up events."""

    def __init__(self) -> None:
        self._share: dict[str, dict[str, float]] = {}
        self._busy: dict[str, dict[str, float]] = {}
        self._energy: dict[str, dict[str, float]] = {}

    def add(self, cost: EventCost) -> None:
        length_us = sum(cost.time_parts_us.values())
        charged = cost.share_us / length_us if length_us else 0.0
        for part, time_us in cost.time_parts_us.items():
            _add(self._share, cost.place, part, time_us * charged)
            _add(self._busy, cost.place, part, time_us)
        for part, energy_mj in cost.energy_parts_mj.items():
            _add(self._energy, cost.place, part, energy_mj)

    def spending(self, static_mj_per_us: float) -> Spending:
        share_us = total(self._share)
        drawn = {STATIC: {BOARD: static_mj_per_us * share_us}} if share_us else {}
        return Spending(self._share, self._busy, {**drawn, **self._energy})


def _add(amounts: dict[str, dict[str, float]], place: str, part: str, amount: float) -> None:
    parts = amounts.setdefault(place, {})
    parts[part] = parts.get(part, 0.0) + amount
