"""Several inferences in flight: a modulo schedule that completes one inference per interval without conflicts.

Every job of an inference has one start time; the next inference repeats the schedule an interval later, and so on. No
data flows from one inference to another, so the interval need not exceed the time for which one inference keeps the
busiest resource busy (the resource bound of modulo scheduling: Rau, Iterative Modulo Scheduling, MICRO 1994). That
resource's jobs follow each other without a gap, in any order, and a job whose slot in the interval is taken waits for
the next interval. The order determines how long jobs wait, and so the latency and the number of inferences in flight;
the search minimises the latency.

Times are whole numbers of picoseconds, so that nothing drifts over any number of inferences.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise

from pimflow.ir import Graph
from pimflow.records import dataclass
from pimflow.runtime.timeline import NO_RESOURCE, CopiesOperands, Costs, Job, QueuesLaunches, jobs_of
from pimflow.targets import Target

TICKS_PER_US = 1_000_000
_MAX_STEPS = 1_000_000
"""Limit on the search for an order: jobs placed in total, which takes a second or two."""
_ORDERS_PER_GROUP = 150
"""The maximum number of orders to try per group."""
_MAX_CHANGES = 3
_PIECES = 4
"""The number of pieces into which a resource's idle time is divided; the search moves each of them."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A use of a resource by the first inference, in ticks from its start."""

    node: str
    resource: str
    start: int
    end: int


@dataclass(frozen=True)
class SteadyState:
    """A repeating schedule.

    Args:
        interval: ticks between two inferences.
        slots: the slots of the first inference, in the order of the data flow.
    """

    interval: int
    slots: tuple[Slot, ...]

    @property
    def interval_us(self) -> float:
        """Microseconds between two inferences."""
        return self.interval / TICKS_PER_US

    @cached_property
    def latency(self) -> int:
        """Ticks from the start of an inference to its end."""
        return max((slot.end for slot in self.slots), default=0)

    @property
    def latency_us(self) -> float:
        """Microseconds from the start of an inference to its end."""
        return self.latency / TICKS_PER_US

    @property
    def in_flight(self) -> int:
        """The maximum number of inferences at any time."""
        return max(1, -(-self.latency // self.interval)) if self.interval else 1

    @cached_property
    def busy_us(self) -> dict[str, float]:
        """Microseconds for which each resource works on one inference."""
        busy: dict[str, int] = {}
        for slot in self.slots:
            if slot.resource != NO_RESOURCE:
                busy[slot.resource] = busy.get(slot.resource, 0) + slot.end - slot.start
        return {resource: ticks / TICKS_PER_US for resource, ticks in busy.items()}

    def unrolled(self, inferences: int) -> tuple[tuple[int, Slot], ...]:
        """The slots of the first `inferences` inferences with their numbers, sorted by start."""
        found = [
            (number, Slot(slot.node, slot.resource, slot.start + shift, slot.end + shift))
            for number in range(inferences)
            for shift in (number * self.interval,)
            for slot in self.slots
        ]
        found.sort(key=lambda numbered: (numbered[1].start, numbered[1].end, numbered[0]))
        return tuple(found)


def steady_state(graph: Graph, target: Target, costs: Costs, rest_us: float = 0.0) -> SteadyState:
    """The modulo schedule of a graph whose nodes have devices.

    Args:
        graph: the graph; the regions of its placements are ignored, only the data flow orders nodes.
        target: the machine.
        costs: prices nodes and copies, as for `build_timeline`.
        rest_us: idle time of the busiest resource per interval: the longer, the fewer inferences are in flight.
    """
    transfers = costs.transfer if isinstance(costs, CopiesOperands) else None
    queued = costs if isinstance(costs, QueuesLaunches) else None
    jobs = jobs_of(graph, graph.nodes, target.host, costs, transfers, dict.fromkeys(target.devices, 0.0), queued)
    flow = _Flow.of(jobs, _ticks(rest_us))
    starts = _Search(flow).starts()
    slots = tuple(
        Slot(job.node.name, job.resource, start, start + ticks)
        for job, start, ticks in zip(jobs, starts, flow.ticks, strict=True)
    )
    return SteadyState(flow.interval, slots)


@dataclass(frozen=True)
class _Flow:
    """Jobs in topological order: their lengths in ticks, their resources, and the jobs that each waits for.

    `ahead` holds the ticks by which each job may start before its operands are ready. `rest` is the idle time of the
    busiest resource per interval, in ticks.
    """

    ticks: tuple[int, ...]
    resources: tuple[str, ...]
    predecessors: tuple[tuple[int, ...], ...]
    ahead: tuple[int, ...]
    rest: int = 0

    @classmethod
    def of(cls, jobs: Sequence[Job], rest: int = 0) -> _Flow:
        predecessors: list[list[int]] = [[] for _ in jobs]
        for index, job in enumerate(jobs):
            for successor in job.successors:
                predecessors[successor].append(index)
        ticks = tuple(math.ceil(job.duration_us * TICKS_PER_US) for job in jobs)  # up: no interval is below a bound
        return cls(
            ticks,
            tuple(job.resource if length else NO_RESOURCE for job, length in zip(jobs, ticks, strict=True)),
            tuple(map(tuple, predecessors)),
            tuple(min(_ticks(job.ahead_us), length) for job, length in zip(jobs, ticks, strict=True)),
            rest,
        )

    @cached_property
    def loads(self) -> Mapping[str, int]:
        """Ticks for which each resource works on one inference."""
        loads: dict[str, int] = {}
        for resource, ticks in zip(self.resources, self.ticks, strict=True):
            if resource != NO_RESOURCE:
                loads[resource] = loads.get(resource, 0) + ticks
        return loads

    @cached_property
    def interval(self) -> int:
        """The largest load plus `rest`."""
        return max(self.loads.values(), default=0) + self.rest

    @cached_property
    def _steps(self) -> tuple[tuple[bool, tuple[int, ...], int, int], ...]:
        """Of each job: whether it occupies a resource, the jobs that it waits for, `ahead`, and its ticks."""
        placed = (resource != NO_RESOURCE for resource in self.resources)
        return tuple(zip(placed, self.predecessors, self.ahead, self.ticks, strict=True))

    def continue_at(self, offsets: Sequence[int], starts: list[int], ends: list[int]) -> None:
        """Appends the earliest start and end of each further job at its offset in the interval, after the jobs that it
        waits for."""
        interval, first = self.interval, len(starts)
        for offset, (placed, predecessors, ahead, ticks) in zip(offsets[first:], self._steps[first:], strict=True):
            ready = 0
            for predecessor in predecessors:  # as in `ready`; there are a few million of these
                end = ends[predecessor]
                if end > ready:
                    ready = end
            ready = ready - ahead if ready > ahead else 0
            start = ready + (offset - ready) % interval if placed else ready
            starts.append(start)
            ends.append(start + ticks)

    def ready(self, index: int, starts: Sequence[int]) -> int:
        """When a job may start, given the jobs that it waits for; a queued launch may start earlier."""
        ready = max((starts[i] + self.ticks[i] for i in self.predecessors[index]), default=0) - self.ahead[index]
        return max(ready, 0)


def _ticks(time_us: float) -> int:
    return round(time_us * TICKS_PER_US)


@dataclass(frozen=True)
class _Schedule:
    """The orders of groups on each resource, the offset of each job in the interval, its start and its end, and the
    cost: the latency, then the sum of the start times."""

    cost: tuple[int, int]
    offsets: list[int]
    starts: list[int]
    ends: list[int]
    orders: Mapping[str, list[int]]


class _Search:
    """Searches for the order in which each resource executes its jobs.

    Consecutive jobs of an inference on the same resource form a group and stay together. Local search moves a group
    that has to wait to where it would not, as long as that helps. Then the best order so far is perturbed at random,
    and the local search starts again. The random seed is fixed.
    """

    def __init__(self, flow: _Flow) -> None:
        self._flow = flow
        self._steps = 0
        self._groups, orders = _groups(flow)
        self._max_steps = min(_MAX_STEPS, _ORDERS_PER_GROUP * len(self._groups) * len(flow.ticks))
        self._lengths = [sum(flow.ticks[job] for job in group) for group in self._groups]
        for resource, load in flow.loads.items():
            pieces = _pieces(flow.interval - load)
            orders[resource] += range(len(self._lengths), len(self._lengths) + len(pieces))
            self._lengths += pieces
        self._best = self._schedule(orders)

    def starts(self) -> list[int]:
        """Start times of all jobs; the earliest is 0."""
        rng = random.Random(0)
        self._descend(self._best)
        movable = sorted(resource for resource, order in self._best.orders.items() if len(order) > 1)
        while movable and self._steps < self._max_steps:
            self._descend(self._schedule(_perturbed(self._best.orders, movable, rng), self._best))
        first = min(self._best.starts, default=0)
        return [start - first for start in self._best.starts]

    def _schedule(self, orders: Mapping[str, list[int]], like: _Schedule | None = None) -> _Schedule:
        """The start times for an order: each group begins where the previous one ends.

        Args:
            like: another schedule; whatever follows from equal orders is taken from it.
        """
        offsets = [0] * len(self._flow.ticks) if like is None else like.offsets.copy()
        for resource, order in orders.items():
            if like is None or order is not like.orders[resource]:
                self._set_offsets(order, offsets)
        starts, ends = ([], []) if like is None else self._unchanged(like, offsets)
        self._flow.continue_at(offsets, starts, ends)
        self._steps += len(starts)
        cost = (max(ends, default=0) - min(starts, default=0), sum(starts))
        return _Schedule(cost, offsets, starts, ends, orders)

    def _set_offsets(self, order: Sequence[int], offsets: list[int]) -> None:
        now = 0
        for group in order:
            if group >= len(self._groups):
                now += self._lengths[group]
                continue
            for job in self._groups[group]:
                offsets[job] = now
                now += self._flow.ticks[job]

    def _unchanged(self, like: _Schedule, offsets: Sequence[int]) -> tuple[list[int], list[int]]:
        """Starts and ends of the jobs before the first one with another offset."""
        pairs = enumerate(zip(like.offsets, offsets, strict=True))
        same = next((job for job, (old, new) in pairs if old != new), len(offsets))
        return like.starts[:same], like.ends[:same]

    def _descend(self, found: _Schedule) -> None:
        """Moves one group at a time while that helps; keeps the result if it is the best so far."""
        moved = True
        while moved and self._steps < self._max_steps:
            moved = False
            for resource, group in self._waiting(found):
                better = self._schedule(self._with_moved(found, resource, group), found)
                if better.cost < found.cost:
                    found, moved = better, True
                    break
        if found.cost < self._best.cost:
            self._best = found

    def _waiting(self, found: _Schedule) -> list[tuple[str, int]]:
        """The groups that wait for their slot, longest wait first."""
        waits = []
        for resource, order in found.orders.items():
            for group in order:
                if group < len(self._groups):
                    job = self._groups[group][0]
                    waits.append((self._flow.ready(job, found.starts) - found.starts[job], group, resource))
        return [(resource, group) for wait, group, resource in sorted(waits) if wait < 0]

    def _with_moved(self, found: _Schedule, resource: str, group: int) -> Mapping[str, list[int]]:
        """The orders with a group moved to the point in its resource's order when it becomes ready."""
        left = [other for other in found.orders[resource] if other != group]
        wanted = self._flow.ready(self._groups[group][0], found.starts) % self._flow.interval
        ends = accumulate((self._lengths[other] for other in left), initial=0)
        place = next((place for place, end in enumerate(ends) if end >= wanted), 0)
        return {**found.orders, resource: [*left[:place], group, *left[place:]]}


def _groups(flow: _Flow) -> tuple[list[list[int]], dict[str, list[int]]]:
    """Groups of consecutive jobs on one resource, and the groups of each resource, in the order of the data flow."""
    groups: list[list[int]] = []
    orders: dict[str, list[int]] = {}
    last = NO_RESOURCE
    for job, resource in enumerate(flow.resources):
        if resource == NO_RESOURCE:
            continue
        if resource != last:
            orders.setdefault(resource, []).append(len(groups))
            groups.append([])
        groups[-1].append(job)
        last = resource
    return groups, orders


def _pieces(idle: int) -> list[int]:
    """Idle time divided into up to `_PIECES` pieces."""
    cuts = [idle * piece // _PIECES for piece in range(_PIECES + 1)]
    return [end - begin for begin, end in pairwise(cuts) if end > begin]


def _perturbed(orders: Mapping[str, list[int]], movable: Sequence[str], rng: random.Random) -> dict[str, list[int]]:
    """The orders after a few random changes: two groups swapped, or the whole order of a resource rotated."""
    changed = {resource: list(order) for resource, order in orders.items()}
    for _ in range(rng.randint(1, _MAX_CHANGES)):
        order = changed[rng.choice(movable)]
        one, other = rng.sample(range(len(order)), 2)
        if rng.random() < 0.5:
            order[one], order[other] = order[other], order[one]
        else:
            order[:] = order[one:] + order[:one]
    return changed
