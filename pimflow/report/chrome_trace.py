"""A timeline as a Chrome JSON trace, for Perfetto (ui.perfetto.dev) and chrome://tracing.

One process has a track per device, one for all links and one for regions of several nodes; every unit with parts
(channels, clusters of ranks) is a separate process with a track for each. Counters show live bytes in the arena, power,
and traffic to the host's memory. Arrows connect the two halves of a split, and the stages of a pipeline on two devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any, cast

from pimflow.codegen.answers import Lane, UnitCost
from pimflow.codegen.host import HostCost
from pimflow.ir import Graph, Node
from pimflow.records import dataclass
from pimflow.report.measures import origin_of
from pimflow.report.plan_report import PlanReport
from pimflow.report.slices import steps
from pimflow.report.tracks import PROGRAM, Tracks
from pimflow.runtime.costs import CostModel
from pimflow.runtime.memory import MemoryPlan
from pimflow.runtime.spending import STATIC, EventCost
from pimflow.runtime.timeline import NO_RESOURCE, Event, Timeline
from pimflow.version import format_of

if TYPE_CHECKING:
    from pimflow.runtime.offload.schedule import SpilledSchedule
    from pimflow.runtime.offload.spill import Spill
    from pimflow.runtime.steady_state import SteadyState

MAX_EVENTS = 100_000
"""The maximum number of slices, beyond which viewers become slow."""


@dataclass(frozen=True)
class SliceFacts:
    """The facts about a node's slice other than its breakdown of time and energy.

    Args:
        why: why it runs there.
        fraction: share of the original node's output that it computes.
        cycles: of a unit's slowest part, in its own clock; None on the host.
        commands: what a unit executes for it, by name.
        bytes: on the host its memory traffic, on a unit its operands and results, each once.
        lanes: when each part of the unit (a channel) is busy with it.
    """

    why: str
    fraction: float
    cycles: int | None = None
    commands: Mapping[str, int] | None = None
    bytes: int | None = None
    lanes: tuple[Lane, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Arguments of a slice, without those that do not apply."""
        values = {"why": self.why, "fraction": self.fraction, "cycles": self.cycles, "bytes": self.bytes}
        commands = None if self.commands is None else dict(self.commands)
        return {key: value for key, value in {**values, "commands": commands}.items() if value is not None}


def slice_facts(graph: Graph, report: PlanReport, costs: CostModel) -> dict[str, SliceFacts]:
    """The facts about every node of a rewritten graph that takes time, by name.

    Args:
        graph: the rewritten graph.
        report: the report on its plan.
        costs: the cost model that it runs under.
    """
    rows = {row.name: row for row in report.nodes}
    made: dict[str, int] = {}
    for node in graph.nodes:
        made[origin_of(node)] = made.get(origin_of(node), 0) + _elements(graph, node)
    facts = {}
    for node in graph.nodes:
        cost = costs.node_cost(graph, node).detail
        if cost is None:
            continue
        origin = origin_of(node)
        why = rows[origin].why if origin in rows else ""
        fraction = _elements(graph, node) / made[origin] if made[origin] else 1.0
        unit = costs.units.get(node.device or "")
        if unit is None:
            facts[node.name] = SliceFacts(why, fraction, bytes=cast(HostCost, cost).bytes)
            continue
        done = cast(UnitCost, cost)
        moved = _operand_elements(graph, node) * costs.host.element_bytes
        facts[node.name] = SliceFacts(why, fraction, done.cycles, dict(done.counters), moved, unit.lanes(done))
    return facts


def _operand_elements(graph: Graph, node: Node) -> int:
    return sum(graph.value(name).elements for name in dict.fromkeys((*node.inputs, *node.outputs)) if name)


def _elements(graph: Graph, node: Node) -> int:
    """Elements that a node computes; a movement computes none."""
    return 0 if node.op.is_movement else sum(graph.value(name).elements for name in node.outputs if name)


def chrome_trace(
    timeline: Timeline,
    titles: Mapping[str, str],
    name: str = "pimflow",
    costs: Sequence[EventCost] = (),
    *,
    facts: Mapping[str, SliceFacts] | None = None,
    memory: MemoryPlan | None = None,
    graph: Graph | None = None,
    steady: SteadyState | None = None,
    spilled: tuple[Spill, SpilledSchedule] | None = None,
    max_events: int = MAX_EVENTS,
) -> dict[str, Any]:
    """The timeline as JSON values, in us; the list of entries is a lazy iterator.

    Slices on one track never overlap: starts and ends are rounded to the same grid of one nanosecond. If there are more
    than `max_events` events, the first ones are written, and a note says how many are left out; channels get tracks as
    far as the remaining number of slices permits.

    Args:
        timeline: the schedule.
        titles: the title of every device, the host first.
        name: of the process in the trace.
        costs: of the timeline's events, in its order: arguments of the slices, and the source of the power counter.
        facts: further facts about nodes, by name.
        memory: its arena, whose live bytes are a counter.
        graph: the scheduled graph: its data flow becomes arrows.
        steady: a schedule of several inferences in flight, shown as a separate process.
        spilled: if activations do not all fit, how they are handled and that schedule, as a separate process.
        max_events: the maximum number of slices.
    """
    records = _event_records(timeline, titles, costs, facts or {})
    shown = records[:max_events]
    left_out = len(records) - len(shown)
    tracks = Tracks(titles, timeline, [(event, () if about is None else about.lanes) for event, _, about in shown])
    own = chain(
        (tracks.slice(event, _details(event, cost, about)) for event, cost, about in shown),
        tracks.regions(),
        islice(tracks.lanes(), max_events - len(shown)),
        _counters(timeline, shown, memory, next(iter(titles))),
        tracks.arrows(graph),
    )
    beside = _other_processes(titles, steady, spilled)
    notes: dict[str, Any] = {
        "format": format_of("timeline"),
        "makespan_us": timeline.makespan_us,
        "energy_mj": dict(timeline.energy_mj),
    }
    if spilled is not None:
        _, moving = spilled
        notes["spilled"] = {"makespan_us": moving.makespan_us, "energy_mj": dict(moving.energy_mj)}
    last = []
    if left_out:
        notes["events_left_out"] = left_out
        last.append(tracks.note(f"{left_out} later events are left out", timeline.events[0].start_us))
    entries = chain(tracks.metadata(name), _entries(own, max_events, beside), last)
    return {"traceEvents": entries, "displayTimeUnit": "ns", "otherData": notes}


_EventRecord = tuple[Event, EventCost | None, SliceFacts | None]
"""An event, its cost and other facts about it."""


def _event_records(
    timeline: Timeline, titles: Mapping[str, str], costs: Sequence[EventCost], facts: Mapping[str, SliceFacts]
) -> list[_EventRecord]:
    """The events that get a slice, with their costs and other facts."""
    parts: list[EventCost | None] = [*costs] or [None] * len(timeline.events)
    return [
        (event, cost, facts.get(event.node) if event.resource in titles else None)  # none for copies over links
        for event, cost in zip(timeline.events, parts, strict=True)
        if event.resource != NO_RESOURCE
    ]


def _other_processes(
    titles: Mapping[str, str], steady: SteadyState | None, spilled: tuple[Spill, SpilledSchedule] | None
) -> Iterator[Callable[[int], Iterator[dict[str, Any]]]]:
    """Functions that create the slices of other processes, up to a given number."""
    process = PROGRAM + len(titles) + 1
    if steady is not None:
        from pimflow.report.steady import steady_slices

        yield partial(steady_slices, steady, titles, process)
    if spilled is not None:
        from pimflow.report.spill import spilled_slices

        yield partial(spilled_slices, *spilled, titles, process)


def _entries(
    own: Iterable[dict[str, Any]], most: int, beside: Iterable[Callable[[int], Iterator[dict[str, Any]]]]
) -> Iterator[dict[str, Any]]:
    """The entries, followed by those of other processes: as many slices as remain of `most`."""
    count = 0
    for entry in own:
        count += 1
        yield entry
    for made in beside:
        yield from made(max(0, most - count))


def _counters(
    timeline: Timeline,
    shown: Sequence[_EventRecord],
    memory: MemoryPlan | None,
    host: str,
) -> Iterator[dict[str, Any]]:
    starts = [0.0, *accumulate(timeline.region_us)]
    if memory is not None:
        yield from steps("live bytes", PROGRAM, zip(starts, [*live_bytes(memory), 0], strict=False))
    drawn, passed = [], []
    for event, cost, facts in shown:
        length = event.end_us - event.start_us
        if cost is not None and length > 0:
            drawn.append((event, sum(cost.energy_parts_mj.values()) / length * 1e3))
        if event.resource == host and facts is not None and facts.bytes and length > 0:
            passed.append((event, facts.bytes / length * 1e-3))
    if drawn:
        base = timeline.energy_mj.get(STATIC, 0.0) / timeline.makespan_us * 1e3
        yield from steps("power, W", PROGRAM, _sum_at_changes(drawn, timeline.makespan_us, base))
    if passed:
        yield from steps("host memory, GB/s", PROGRAM, _sum_at_changes(passed, timeline.makespan_us, 0.0))


def live_bytes(memory: MemoryPlan) -> list[int]:
    """The live bytes in the arena at every step."""
    changes = [0] * (memory.steps + 1)
    for piece in memory.regions:
        changes[piece.first] += piece.bytes
        changes[piece.last + 1] -= piece.bytes
    return list(accumulate(changes))[:-1]


def _sum_at_changes(
    amounts: Iterable[tuple[Event, float]], end_us: float, base: float
) -> Iterator[tuple[float, float]]:
    """The sum over simultaneous events, at every change; 0 after the end."""
    changes: dict[float, float] = {0.0: base}
    for event, amount in amounts:
        changes[event.start_us] = changes.get(event.start_us, 0.0) + amount
        changes[event.end_us] = changes.get(event.end_us, 0.0) - amount
    changes[end_us] = changes.get(end_us, 0.0) - base
    level = 0.0
    for when in sorted(changes):
        level += changes[when]
        yield when, level


def _details(event: Event, cost: EventCost | None, facts: SliceFacts | None) -> dict[str, Any]:
    """The node of a slice and its breakdown; parts of the time add up to the slice, and static power is separate."""
    args: dict[str, Any] = {"region": event.region}
    if event.stage is not None:
        args["stage"] = event.stage
    if cost is None:
        return args
    args |= {
        "op": cost.node.kind,
        "origin": cost.node.placement.origin or cost.node.name,
        "share_us": cost.share_us,
        "time_parts_us": dict(cost.time_parts_us),
        "energy_mj": sum(cost.energy_parts_mj.values()),
        "energy_parts_mj": dict(cost.energy_parts_mj),
    }
    return args if facts is None else args | facts.as_json()
