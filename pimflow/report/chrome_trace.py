"""A timeline as a Chrome JSON trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

One process has a track per device, one for all links and one for regions of several nodes; every unit that has parts
(channels, clusters of ranks) is a process of its own with a track for each. Counters are what is alive in the arena,
the power drawn, and what passes the host's memory. Arrows lead from one half of a split to the other, and between
stages of a pipeline on two devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

from pimflow.codegen.answers import Lane, UnitCost
from pimflow.codegen.host import HostCost
from pimflow.ir import Graph, Node
from pimflow.report.measures import origin_of
from pimflow.report.plan_report import PlanReport
from pimflow.report.slices import complete, named, steps
from pimflow.report.spill import spilled_slices
from pimflow.report.steady import steady_slices
from pimflow.runtime.costs import CostModel
from pimflow.runtime.memory import MemoryPlan
from pimflow.runtime.offload.schedule import SpilledSchedule
from pimflow.runtime.offload.spill import Spill
from pimflow.runtime.spending import STATIC, EventCost
from pimflow.runtime.steady_state import SteadyState
from pimflow.runtime.timeline import NO_RESOURCE, Event, Timeline
from pimflow.version import format_of

MAX_EVENTS = 100_000
"""Viewers become slow beyond this many slices."""

_LINKS = "Transfers"
_REGIONS = "Regions"
_WITHIN_US = 1e-3  # an arrow begins within a slice: at its very end there is none any more
_PROGRAM = 1  # the process of devices, links and regions; units with channels come after it
_TRACKS = 100  # before the numbers of tracks: viewers take one that is numbered as its process for a main thread


@dataclass(frozen=True)
class SliceFacts:
    """What there is to say of a node's slice, beside what it spends.

    Args:
        why: why it runs there.
        fraction: share of the original node's output that it makes.
        cycles: of a unit's slowest part, in its own clock; None on the host.
        commands: what a unit executes for it, by name.
        bytes: on the host what passes its memory, on a unit its operands and results, each once.
        lanes: when which part of the unit (a channel) is busy with it.
    """

    why: str
    fraction: float
    cycles: int | None = None
    commands: Mapping[str, int] | None = None
    bytes: int | None = None
    lanes: tuple[Lane, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Arguments of a slice; what does not apply is left out."""
        told = {"why": self.why, "fraction": self.fraction, "cycles": self.cycles, "bytes": self.bytes}
        commands = None if self.commands is None else dict(self.commands)
        return {key: value for key, value in {**told, "commands": commands}.items() if value is not None}


def slice_facts(graph: Graph, report: PlanReport, costs: CostModel) -> dict[str, SliceFacts]:
    """What there is to say of every node of a rewritten graph that takes time, by name.

    Args:
        graph: the rewritten graph.
        report: what its plan comes to.
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
    """Of what a node makes; what only moves it makes nothing."""
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
    """The timeline as JSON values, in us.

    Slices on one track never overlap: starts and ends are rounded to the same grid of a nanosecond. If there are more
    than `max_events` events, the first ones are written, and a note says how many are left out; channels get tracks as
    far as they fit beside them.

    Args:
        timeline: the schedule.
        titles: what every device is called, the host first.
        name: of the process in the trace.
        costs: of the timeline's events, in its order: their parts become arguments of the slices, and the power.
        facts: what else to say of nodes, by name.
        memory: the arena that it runs in, whose live bytes are a counter.
        graph: what was scheduled: its data flow becomes arrows.
        steady: a schedule of several inferences in flight, which gets a process of its own.
        spilled: where activations do not all fit, what becomes of them and the schedule of that: a process likewise.
        max_events: slices at most.
    """
    tracks = _Tracks(titles)
    facts = facts or {}

    def facts_of(event: Event) -> SliceFacts | None:
        return facts.get(event.node) if event.resource in titles else None  # not of copies over links

    parts: list[EventCost | None] = [*costs] or [None] * len(timeline.events)
    all_shown = [pair for pair in zip(timeline.events, parts, strict=True) if pair[0].resource != NO_RESOURCE]
    shown = all_shown[:max_events]
    left_out = len(all_shown) - len(shown)
    entries = [tracks.slice(event, _details(event, cost, facts_of(event))) for event, cost in shown]
    last_region = max((event.region for event, _ in shown), default=-1)
    entries.extend(tracks.regions(timeline, last_region + 1))
    lanes = [lane for event, _ in shown for lane in tracks.lanes(event, facts_of(event))]
    entries.extend(lanes[: max(0, max_events - len(shown))])
    told = [(event, cost, facts_of(event)) for event, cost in shown]
    entries.extend(_counters(timeline, told, memory, next(iter(titles))))
    entries.extend(tracks.arrows([event for event, _ in shown], graph))
    if steady is not None:
        entries.extend(steady_slices(steady, titles, _PROGRAM + len(titles) + 1, max(0, max_events - len(entries))))
    if spilled is not None:
        entries.extend(spilled_slices(*spilled, titles, _PROGRAM + len(titles) + 1, max(0, max_events - len(entries))))
    notes: dict[str, Any] = {
        "format": format_of("timeline"),
        "makespan_us": timeline.makespan_us,
        "energy_mj": dict(timeline.energy_mj),
    }
    if spilled is not None:
        _, moving = spilled
        notes["spilled"] = {"makespan_us": moving.makespan_us, "energy_mj": dict(moving.energy_mj)}
    if left_out:
        notes["events_left_out"] = left_out
        entries.append(tracks.note(f"{left_out} later events are left out", timeline.events[0].start_us))
    return {"traceEvents": [*tracks.metadata(name), *entries], "displayTimeUnit": "ns", "otherData": notes}


class _Tracks:
    """Numbers the tracks, and makes what stands on them."""

    def __init__(self, titles: Mapping[str, str]) -> None:
        self._device_titles = titles
        self._titles = (*titles.values(), _LINKS, _REGIONS)
        self._number = {device: number for number, device in enumerate(titles, 1)}
        self._links, self._regions = (_TRACKS + len(titles) + more for more in (1, 2))
        self._used = {_TRACKS + number for number in self._number.values()}
        self._lanes: dict[str, dict[int, str]] = {}

    def metadata(self, name: str) -> list[dict[str, Any]]:
        """The names of the processes and of the tracks: of all devices, and of what else has a slice."""
        entries = [named("process_name", _PROGRAM, None, name)]
        tracks = enumerate(self._titles, _TRACKS + 1)
        entries += [named("thread_name", _PROGRAM, number, title) for number, title in tracks if number in self._used]
        for device, parts in self._lanes.items():
            process = self._process(device)
            entries.append(named("process_name", process, None, self._device_titles[device]))
            entries += [
                named("thread_name", process, _TRACKS + part, f"{word} {part}") for part, word in sorted(parts.items())
            ]
        return entries

    def slice(self, event: Event, args: dict[str, Any]) -> dict[str, Any]:
        """One use of a device or a link."""
        category, track = event.resource if event.resource in self._number else "transfer", self._track(event)
        self._used.add(track)
        return complete(event.node, category, (_PROGRAM, track), event.start_us, event.end_us, args)

    def lanes(self, event: Event, facts: SliceFacts | None) -> Iterator[dict[str, Any]]:
        """When each part of a device is busy with one use of it."""
        if facts is None or event.resource not in self._number:
            return
        for lane in facts.lanes:
            self._lanes.setdefault(event.resource, {})[lane.part] = lane.word
            start, end = event.start_us + lane.start_us, min(event.start_us + lane.end_us, event.end_us)
            yield complete(event.node, lane.word, (self._process(event.resource), _TRACKS + lane.part), start, end, {})

    def regions(self, timeline: Timeline, count: int) -> list[dict[str, Any]]:
        """The first `count` regions, those of one node left out."""
        nodes: dict[int, int] = {}
        for event in timeline.events:
            nodes[event.region] = nodes.get(event.region, 0) + 1
        slices: list[dict[str, Any]] = []
        now = 0.0
        for index, duration in enumerate(timeline.region_us[:count]):
            if nodes.get(index, 0) > 1 and duration > 0:
                self._used.add(self._regions)
                track = (_PROGRAM, self._regions)
                slices.append(complete(f"region {index}", "region", track, now, now + duration, {}))
            now += duration
        return slices

    def arrows(self, events: Sequence[Event], graph: Graph | None) -> Iterator[dict[str, Any]]:
        """From halves of a split to the other half, and along the data from one device's stage to another's."""
        if graph is None:
            return
        at = {event.node: event for event in events if event.resource in self._number}
        for number, (first, second, what) in enumerate(_joined(graph, at)):
            leaves = first.start_us if what == "split" else max(first.start_us, first.end_us - _WITHIN_US)
            for phase, event, when in (("s", first, leaves), ("f", second, second.start_us)):
                entry = {"ph": phase, "pid": _PROGRAM, "tid": self._track(event), "name": what, "cat": what}
                yield {**entry, "id": number, "ts": round(when, 3), **({"bp": "e"} if phase == "f" else {})}

    def note(self, text: str, at_us: float) -> dict[str, Any]:
        """A remark on the host's track."""
        return {"ph": "i", "s": "g", "pid": _PROGRAM, "tid": _TRACKS + 1, "name": text, "ts": round(at_us, 3)}

    def _track(self, event: Event) -> int:
        number = self._number.get(event.resource)
        return self._links if number is None else _TRACKS + number

    def _process(self, device: str) -> int:
        return _PROGRAM + self._number[device]


def _joined(graph: Graph, at: Mapping[str, Event]) -> Iterator[tuple[Event, Event, str]]:
    """Pairs of events on two devices in one region that belong together, the earlier first."""
    halves: dict[tuple[str, int, int | None], Event] = {}
    for name, event in at.items():
        node = graph.node(name)
        key = (origin_of(node), event.region, event.stage)
        other = halves.setdefault(key, event)
        if not node.op.is_movement and other.resource != event.resource:
            first, second = sorted((other, event), key=lambda event: event.start_us)
            yield first, second, "split"
        for source in _sources(graph, node, at):
            if source.region == event.region and source.resource != event.resource:
                yield source, event, "stage"


def _sources(graph: Graph, node: Node, at: Mapping[str, Event]) -> Iterator[Event]:
    """The events that a node's operands come from, through what takes no time."""
    waiting, seen = [name for name in node.inputs if name], set[str]()
    while waiting:
        producer = graph.producer(waiting.pop())
        if producer is None or producer.name in seen:
            continue
        seen.add(producer.name)
        if producer.name in at:
            yield at[producer.name]
        else:
            waiting += [name for name in producer.inputs if name]


def _counters(
    timeline: Timeline,
    shown: Sequence[tuple[Event, EventCost | None, SliceFacts | None]],
    memory: MemoryPlan | None,
    host: str,
) -> Iterator[dict[str, Any]]:
    starts = [0.0, *accumulate(timeline.region_us)]
    if memory is not None:
        yield from steps("live bytes", _PROGRAM, zip(starts, [*live_bytes(memory), 0], strict=False))
    drawn, passed = [], []
    for event, cost, told in shown:
        length = event.end_us - event.start_us
        if cost is not None and length > 0:
            drawn.append((event, sum(cost.energy_parts_mj.values()) / length * 1e3))
        if event.resource == host and told is not None and told.bytes and length > 0:
            passed.append((event, told.bytes / length * 1e-3))
    if drawn:
        base = timeline.energy_mj.get(STATIC, 0.0) / timeline.makespan_us * 1e3
        yield from steps("power, W", _PROGRAM, _summed(drawn, timeline.makespan_us, base))
    if passed:
        yield from steps("host memory, GB/s", _PROGRAM, _summed(passed, timeline.makespan_us, 0.0))


def live_bytes(memory: MemoryPlan) -> list[int]:
    """What is alive in the arena, by step."""
    changes = [0] * (memory.steps + 1)
    for piece in memory.regions:
        changes[piece.first] += piece.bytes
        changes[piece.last + 1] -= piece.bytes
    return list(accumulate(changes))[:-1]


def _summed(amounts: Iterable[tuple[Event, float]], end_us: float, base: float) -> Iterator[tuple[float, float]]:
    """The sum of what runs at a time, wherever it changes; nothing after the end."""
    turns: dict[float, float] = {0.0: base}
    for event, amount in amounts:
        turns[event.start_us] = turns.get(event.start_us, 0.0) + amount
        turns[event.end_us] = turns.get(event.end_us, 0.0) - amount
    turns[end_us] = turns.get(end_us, 0.0) - base
    level = 0.0
    for when in sorted(turns):
        level += turns[when]
        yield when, level


def _details(event: Event, cost: EventCost | None, facts: SliceFacts | None) -> dict[str, Any]:
    """What a slice's node is, and what it spends; parts of the time add up to the slice, static power is apart."""
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
