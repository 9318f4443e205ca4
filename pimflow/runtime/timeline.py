"""The timeline: an event-driven schedule of a device-annotated graph on the units of a machine.

The program is a sequence of regions (`region` of a node's placement), and all units synchronise at the end of each.
Inside a region, only the data flow and the resources order the nodes. So the makespan of a graph is the sum of its
regions' makespans, and a region scheduled on its own takes as long as it does within the whole graph.

Where memory channels are switched between regions (some nodes are placed with `ALL_CHANNELS`, others without), nothing
runs during the switch. Its time is part of the following region, and its event belongs to the first node there. A run
begins and ends with the units owning the channels; a switch at its end is part of the last region.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from typing import Protocol, runtime_checkable

from pimflow.codegen.answers import Transfer
from pimflow.errors import GraphError, counted, one_line
from pimflow.ir import Graph, Node
from pimflow.ir.placement import ALL_CHANNELS
from pimflow.records import dataclass
from pimflow.runtime.epilogues import by_kernel, epilogue_reads
from pimflow.targets import Target

NO_RESOURCE = "none"
"""The resource of nodes that take no time: fused nodes and free movements."""
CHANNELS = "memory channels"
"""The resource that is in use while memory channels are switched."""

TransferModel = Callable[[Graph, Node], "Transfer | None"]


class NodePrice(Protocol):
    """The part of a node's price that the timeline needs."""

    @property
    def time_us(self) -> float:
        """Microseconds on the node's own device; 0 for fused nodes and free movements."""

    @property
    def energy_mj(self) -> float:
        """Millijoules spent by the node itself, without static power."""


class Costs(Protocol):
    """Prices nodes of a device-annotated graph."""

    def node_cost(self, graph: Graph, node: Node) -> NodePrice:
        """The node's time and energy on its device."""


@runtime_checkable
class DrawsStaticPower(Protocol):
    """Costs of a machine that draws power for as long as it is on."""

    def static_energy_mj(self, makespan_us: float) -> float:
        """Static energy over a run in millijoules, independent of the work."""


@runtime_checkable
class CopiesOperands(Protocol):
    """Costs of a machine with units whose operands have to be copied to them."""

    def transfer(self, graph: Graph, node: Node) -> Transfer | None:
        """The cost of a node's copies; None if there are none."""


@runtime_checkable
class QueuesLaunches(Protocol):
    """Costs of a machine whose host launches a kernel while it waits for the kernel's operands."""

    def launch_ahead_us(self, graph: Graph, node: Node) -> float:
        """The part of a node's time that may pass before its operands are ready."""


@runtime_checkable
class SwitchesChannels(Protocol):
    """Costs of a machine whose units can return memory channels to the host between two regions."""

    @property
    def channel_switch_us(self) -> float | None:
        """The time of a switch in either direction; None if units keep their channels."""


@dataclass(frozen=True, slots=True)
class Event:
    """One use of a resource. `resource` is `NO_RESOURCE` for nodes that take no time (fused, or free movements).

    A queued launch is part of the event, so the event may start before the node's operands are ready, by up to the
    launch time.

    `region` is the position of the region in the order of execution; `stage` is the pipeline stage, if any.
    """

    node: str
    resource: str
    start_us: float
    end_us: float
    region: int
    stage: int | None = None


@dataclass(frozen=True, repr=False)
class Timeline:
    """The schedule of a graph: events by start time, the busy time of each resource, and the energy.

    `region_us` are the regions' makespans in order; `makespan_us` is their sum. `energy_mj` is by resource; static
    energy is under "static".
    """

    events: tuple[Event, ...]
    makespan_us: float
    busy_us: Mapping[str, float]
    energy_mj: Mapping[str, float]
    region_us: tuple[float, ...]

    def __repr__(self) -> str:
        events = counted(len(self.events), "event")
        return one_line("Timeline", f"{events}, {self.makespan_us:,.1f} us, {self.total_energy_mj:,.2f} mJ")

    @property
    def total_energy_mj(self) -> float:
        """The total energy including static energy."""
        return sum(self.energy_mj.values())


@dataclass(slots=True)
class Job:
    """A piece of work on one resource; jobs of a region are numbered in topological order.

    The first `ahead_us` of a job need no operands: they may overlap with waiting for them.
    """

    node: Node
    resource: str
    duration_us: float
    stage: int | None
    successors: list[int]
    waiting: int = 0
    ahead_us: float = 0.0


def build_timeline(
    graph: Graph,
    target: Target,
    costs: Costs,
    *,
    transfers: TransferModel | None = None,
    switching: bool = True,
) -> Timeline:
    """The schedule of a graph whose nodes have devices (no device: the host).

    Args:
        graph: placements may name a region (a node without one is a region of its own) and a stage.
        target: the machine, for its devices; prices come from `costs`.
        costs: prices one node; static energy is added if it has `static_energy_mj`.
        transfers: the cost of copying operands to a unit that cannot access them directly; by default `costs.transfer`,
            if `costs` has it.
        switching: whether to include the time of switching channels; False for regions that are priced on their own.

    Raises:
        GraphError: the regions' order contradicts the data flow, or the host has all channels in a region with a unit.
    """
    if transfers is None and isinstance(costs, CopiesOperands):
        transfers = costs.transfer
    queued = costs if isinstance(costs, QueuesLaunches) else None
    events: list[Event] = []
    busy = dict.fromkeys(target.devices, 0.0)
    energy = dict.fromkeys(target.devices, 0.0)
    region_us: list[float] = []
    now = 0.0
    found = regions(graph)
    for index, nodes in enumerate(found):
        jobs = jobs_of(graph, nodes, target.host, costs, transfers, energy, queued)
        starts, makespan = _best_schedule(jobs)
        for job, start in zip(jobs, starts, strict=True):
            begin, end = now + start, now + (start + job.duration_us)
            events.append(Event(job.node.name, job.resource, begin, end, index, job.stage))
            if job.duration_us > 0:
                busy[job.resource] = busy.get(job.resource, 0.0) + job.duration_us
        region_us.append(makespan)
        now += makespan
    if switching and isinstance(costs, SwitchesChannels) and costs.channel_switch_us:
        now += _switch(found, costs.channel_switch_us, events, busy, region_us)
    if len(region_us) > 1 or len(events) > 1:
        events.sort(key=lambda event: (event.start_us, event.end_us))
    if isinstance(costs, DrawsStaticPower):
        energy["static"] = costs.static_energy_mj(now)
    return Timeline(tuple(events), now, busy, energy, tuple(region_us))


def _switch(
    found: Sequence[Sequence[Node]],
    switch_us: float,
    events: list[Event],
    busy: dict[str, float],
    region_us: list[float],
) -> float:
    """Inserts the switches of channels between scheduled regions and at the end; returns their total time."""
    states = [False, *map(_has_all_channels, found), False]
    switches = [index for index, (before, behind) in enumerate(pairwise(states)) if before != behind]
    for place, event in enumerate(events):
        later_us = switch_us * bisect_right(switches, event.region)
        events[place] = replace(event, start_us=event.start_us + later_us, end_us=event.end_us + later_us)
    for index in switches:
        region, node = (index, found[index][0]) if index < len(found) else (index - 1, found[-1][-1])
        ends_us = sum(region_us[:index])
        events.append(Event(node.name, CHANNELS, ends_us, ends_us + switch_us, region))
        region_us[region] += switch_us
        busy[CHANNELS] = busy.get(CHANNELS, 0.0) + switch_us
    return switch_us * len(switches)


def _has_all_channels(nodes: Sequence[Node]) -> bool:
    """Whether the host has all memory channels in a region."""
    marked = next((node for node in nodes if node.placement.choice == ALL_CHANNELS), None)
    if marked is not None and any(node.device != marked.device for node in nodes):
        raise GraphError(f"node {marked.name!r} has all memory channels, but another device runs in its region")
    return marked is not None


def regions(graph: Graph) -> list[list[Node]]:
    """The nodes by region, in order of execution; within a region in topological order.

    Regions are ordered by number. A node without one is its own region, directly after the last region it reads from.

    Raises:
        GraphError: a region reads from a later one.
    """
    keys: dict[str, tuple[int, int]] = {}
    groups: dict[tuple[int, int], list[Node]] = {}
    for position, node in enumerate(graph.nodes):
        sources = [keys[name] for name in node.inputs if name in keys]
        region = node.placement.region
        key = (max(sources, default=(-1, 0))[0], 1 + position) if region is None else (region, 0)
        if sources and max(sources) > key:
            raise GraphError(f"node {node.name!r} of region {key[0]} reads from the later region {max(sources)[0]}")
        for name in node.outputs:
            keys[name] = key
        groups.setdefault(key, []).append(node)
    return [groups[key] for key in sorted(groups)]


def jobs_of(
    graph: Graph,
    nodes: Sequence[Node],
    host: str,
    costs: Costs,
    transfers: TransferModel | None,
    energy: dict[str, float],
    queued: QueuesLaunches | None,
) -> list[Job]:
    """The region's jobs in topological order, kernels after their epilogue operands; adds their energy to `energy`."""
    jobs: list[Job] = []
    producer: dict[str, int] = {}
    added = epilogue_reads(nodes) if len(nodes) > 1 else {}
    for node in by_kernel(nodes, added) if added else nodes:
        price = costs.node_cost(graph, node)
        device = node.device or host
        fetched = transfers is not None and node.placement.access is not None  # the node consists of copies
        energy[device] += 0.0 if fetched else price.energy_mj
        steps = [(device if price.time_us > 0 and not fetched else NO_RESOURCE, 0.0 if fetched else price.time_us)]
        ahead_us = queued.launch_ahead_us(graph, node) if queued is not None and device == host else 0.0
        moved = None if transfers is None or (device == host and not fetched) else transfers(graph, node)
        if moved is not None:
            for copy in (*moved.before, *moved.after):
                where = copy.resource or moved.link
                energy[where] = energy.get(where, 0.0) + copy.energy_mj
            steps[:0] = [(copy.resource or moved.link, copy.time_us) for copy in moved.before]
            steps += [(copy.resource or moved.link, copy.time_us) for copy in moved.after]
        before = {producer[name] for name in (*node.inputs, *added.get(node.name, ())) if name in producer}
        for resource, duration in steps:
            for source in sorted(before):
                jobs[source].successors.append(len(jobs))
            jobs.append(Job(node, resource, duration, node.placement.stage, [], len(before), ahead_us))
            before = {len(jobs) - 1}
        for name in node.outputs:
            producer[name] = len(jobs) - 1
    return jobs


def _best_schedule(jobs: Sequence[Job]) -> tuple[list[float], float]:
    """Start times from 0 and the makespan: the best of five list schedules, the first of equal ones.

    `by stage` finishes early stages first; `by arrival` serves jobs in the order in which they become ready; `by level`
    first serves the job with the longest chain of successors (highest level first: Adam, Chandy and Dickson, CACM 17,
    1974); two go `backwards` from the end to the start, by level and by number. None is always the best; all are linear
    except for the ready queue.
    """
    if len(jobs) == 1:
        return [0.0], jobs[0].duration_us
    levels = _levels(jobs)
    lower_bound_us = _lower_bound_us(jobs, levels)
    schedules = _schedules(jobs, levels)
    best = next(schedules)
    while best[1] > lower_bound_us and (other := next(schedules, None)) is not None:
        best = min(best, other, key=itemgetter(1))
    return best


def _schedules(jobs: Sequence[Job], levels: Sequence[float]) -> Iterator[tuple[list[float], float]]:
    """The five schedules in order, each made when it is asked for."""
    yield _list_schedule(jobs, [0.0] * len(jobs))
    yield _list_schedule(jobs, None)
    yield _list_schedule(jobs, [-level for level in levels])
    yield from _backwards(jobs)


def makespan_us(jobs: Sequence[Job]) -> float:
    """The makespan of the jobs of one region, as `build_timeline` schedules them."""
    return _best_schedule(jobs)[1] if jobs else 0.0


def _levels(jobs: Sequence[Job]) -> list[float]:
    """For each job, the length of the longest chain of jobs that starts with it, once its operands are ready."""
    levels = [0.0] * len(jobs)
    for index in range(len(jobs) - 1, -1, -1):
        job, behind = jobs[index], 0.0
        for other in job.successors:
            if levels[other] > behind:
                behind = levels[other]
        levels[index] = job.duration_us - job.ahead_us + behind
    return levels


def _lower_bound_us(jobs: Sequence[Job], levels: Sequence[float]) -> float:
    """A lower bound on any schedule: the longest chain of jobs, or the load of the busiest resource."""
    busy = dict.fromkeys([job.resource for job in jobs], 0.0)
    for job in jobs:
        busy[job.resource] += job.duration_us
    return max(*levels, *busy.values())


def _backwards(jobs: Sequence[Job]) -> Iterator[tuple[list[float], float]]:
    """Schedules whose job orders come from list schedules of the reversed graph; each job then starts as soon as it
    can in that order."""
    last = len(jobs) - 1
    mirrored = [Job(job.node, job.resource, job.duration_us, None, []) for job in reversed(jobs)]
    for index, job in enumerate(jobs):
        mirrored[last - index].waiting = len(job.successors)
        for other in job.successors:
            mirrored[last - other].successors.append(last - index)
    for ranks in ([-level for level in _levels(mirrored)], [0.0] * len(jobs)):
        ends_us = [-start for start in _list_schedule(mirrored, ranks)[0][::-1]]
        yield _in_order(jobs, sorted(range(len(jobs)), key=ends_us.__getitem__))


def _in_order(jobs: Sequence[Job], order: Sequence[int]) -> tuple[list[float], float]:
    """The schedule in which each job starts as soon as it can, in an order that respects the data flow."""
    starts, ready_us = [0.0] * len(jobs), [0.0] * len(jobs)
    free_us: dict[str, float] = {}
    makespan = 0.0
    for index in order:
        job = jobs[index]
        is_free = job.resource == NO_RESOURCE
        start_us = ready_us[index] if is_free else max(free_us.get(job.resource, 0.0), ready_us[index] - job.ahead_us)
        starts[index], end_us = start_us, start_us + job.duration_us
        if not is_free:
            free_us[job.resource] = end_us
        if end_us > makespan:
            makespan = end_us
        for other in job.successors:
            if end_us > ready_us[other]:
                ready_us[other] = end_us
    return starts, makespan


def _list_schedule(jobs: Sequence[Job], ranks: Sequence[float] | None) -> tuple[list[float], float]:
    """Non-delay list schedule: an idle resource immediately starts the first of its ready jobs.

    The first is the job with the lowest rank (None: in order of arrival); ties go to the earliest stage, then to the
    lowest number. The part of a job that needs no operands has already run, as far as its resource was idle.
    """
    starts = [0.0] * len(jobs)
    waiting = [job.waiting for job in jobs]
    places = [(-1 if job.stage is None else job.stage, index) for index, job in enumerate(jobs)]
    queues: dict[str, list[tuple[float, tuple[int, int]]]] = {job.resource: [] for job in jobs}
    running: list[tuple[float, int]] = []
    free_since: dict[str, float | None] = dict.fromkeys(queues, 0.0)
    """By resource; None while it is in use."""
    released = [index for index, count in enumerate(waiting) if count == 0]
    push, pop = heapq.heappush, heapq.heappop
    now = 0.0
    while True:
        while released:  # jobs that take no time are done at once
            index = released.pop()
            job = jobs[index]
            if job.resource == NO_RESOURCE:
                starts[index] = now
                _finish(job, waiting, released)
            else:
                push(queues[job.resource], (now if ranks is None else ranks[index], places[index]))
        for resource, queue in queues.items():
            since = free_since[resource]
            if queue and since is not None:
                index = pop(queue)[1][1]
                job = jobs[index]
                starts[index] = start_us = max(since, now - job.ahead_us)
                free_since[resource] = None
                push(running, (start_us + job.duration_us, index))
        if not running:
            return starts, now
        now = running[0][0]
        while running and running[0][0] == now:
            job = jobs[pop(running)[1]]
            free_since[job.resource] = now
            _finish(job, waiting, released)


def _finish(job: Job, waiting: list[int], released: list[int]) -> None:
    """Releases the jobs that were waiting only for `job`."""
    for successor in job.successors:
        waiting[successor] -= 1
        if waiting[successor] == 0:
            released.append(successor)
