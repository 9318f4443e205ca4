"""The tracks of a Chrome trace, and their slices and arrows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pimflow.codegen.answers import Lane
from pimflow.ir import Graph, Node
from pimflow.report.measures import origin_of
from pimflow.report.slices import complete, named
from pimflow.runtime.timeline import Event, Timeline

PROGRAM = 1
"""The process of devices, links and regions; units with channels follow it."""
_LINKS = "Transfers"
_REGIONS = "Regions"
_WITHIN_US = 1e-3  # an arrow must begin within a slice: at its very end there is no slice any more
_TRACKS = 100  # offset of track numbers: viewers treat a track with its process's number as the main thread


class Tracks:
    """Numbers the tracks, and creates their content lazily.

    Args:
        titles: the title of every device, the host first.
        timeline: the schedule.
        shown: the events that have slices, each with the intervals in which parts of its device are busy.
    """

    def __init__(
        self, titles: Mapping[str, str], timeline: Timeline, shown: Sequence[tuple[Event, Sequence[Lane]]]
    ) -> None:
        self._device_titles = titles
        self._titles = (*titles.values(), _LINKS, _REGIONS)
        self._number = {device: number for number, device in enumerate(titles, 1)}
        self._links, self._regions = (_TRACKS + len(titles) + more for more in (1, 2))
        self._timeline, self._shown = timeline, shown

    def metadata(self, name: str) -> Iterator[dict[str, Any]]:
        """The names of the processes and tracks: those of all devices, and of everything else with a slice."""
        used = {_TRACKS + number for number in self._number.values()}
        used |= {self._track(event) for event, _ in self._shown}
        if next(self.regions(), None) is not None:
            used.add(self._regions)
        yield named("process_name", PROGRAM, None, name)
        for number, title in enumerate(self._titles, _TRACKS + 1):
            if number in used:
                yield named("thread_name", PROGRAM, number, title)
        for device, parts in self._parts().items():
            process = self._process(device)
            yield named("process_name", process, None, self._device_titles[device])
            for part, word in sorted(parts.items()):
                yield named("thread_name", process, _TRACKS + part, f"{word} {part}")

    def _parts(self) -> dict[str, dict[int, str]]:
        """By device, the parts that are ever busy, each with the name of such parts."""
        parts: dict[str, dict[int, str]] = {}
        for event, lanes in self._shown:
            if event.resource in self._number and lanes:
                parts.setdefault(event.resource, {}).update((lane.part, lane.word) for lane in lanes)
        return parts

    def slice(self, event: Event, args: dict[str, Any]) -> dict[str, Any]:
        """One use of a device or a link."""
        category = event.resource if event.resource in self._number else "transfer"
        return complete(event.node, category, (PROGRAM, self._track(event)), event.start_us, event.end_us, args)

    def lanes(self) -> Iterator[dict[str, Any]]:
        """The intervals in which each part of a device is busy."""
        for event, lanes in self._shown:
            if event.resource not in self._number:
                continue
            process, begin = self._process(event.resource), event.start_us
            for lane in lanes:
                end = min(begin + lane.end_us, event.end_us)
                yield complete(event.node, lane.word, (process, _TRACKS + lane.part), begin + lane.start_us, end, {})

    def regions(self) -> Iterator[dict[str, Any]]:
        """The regions shown, except those of a single node."""
        nodes: dict[int, int] = {}
        for event in self._timeline.events:
            nodes[event.region] = nodes.get(event.region, 0) + 1
        count = 1 + max((event.region for event, _ in self._shown), default=-1)
        now = 0.0
        for index, duration in enumerate(self._timeline.region_us[:count]):
            if nodes.get(index, 0) > 1 and duration > 0:
                yield complete(f"region {index}", "region", (PROGRAM, self._regions), now, now + duration, {})
            now += duration

    def arrows(self, graph: Graph | None) -> Iterator[dict[str, Any]]:
        """Arrows between the halves of a split, and along the data from a stage on one device to one on another."""
        if graph is None:
            return
        events = {event.node: event for event, _ in self._shown if event.resource in self._number}
        for number, (first, second, what) in enumerate(_arrow_ends(graph, events)):
            leaves = first.start_us if what == "split" else max(first.start_us, first.end_us - _WITHIN_US)
            for phase, event, when in (("s", first, leaves), ("f", second, second.start_us)):
                entry = {"ph": phase, "pid": PROGRAM, "tid": self._track(event), "name": what, "cat": what}
                yield {**entry, "id": number, "ts": round(when, 3), **({"bp": "e"} if phase == "f" else {})}

    def note(self, text: str, at_us: float) -> dict[str, Any]:
        """A remark on the host's track."""
        return {"ph": "i", "s": "g", "pid": PROGRAM, "tid": _TRACKS + 1, "name": text, "ts": round(at_us, 3)}

    def _track(self, event: Event) -> int:
        number = self._number.get(event.resource)
        return self._links if number is None else _TRACKS + number

    def _process(self, device: str) -> int:
        return PROGRAM + self._number[device]


def _arrow_ends(graph: Graph, events: Mapping[str, Event]) -> Iterator[tuple[Event, Event, str]]:
    """Pairs of events on two devices in one region that belong together, the earlier one first."""
    if len({event.resource for event in events.values()}) < 2:
        return  # before looking at every operand
    halves: dict[tuple[str, int, int | None], Event] = {}
    for name, event in events.items():
        node = graph.node(name)
        key = (origin_of(node), event.region, event.stage)
        other = halves.setdefault(key, event)
        if not node.op.is_movement and other.resource != event.resource:
            first, second = sorted((other, event), key=lambda event: event.start_us)
            yield first, second, "split"
        for source in _sources(graph, node, events):
            if source.region == event.region and source.resource != event.resource:
                yield source, event, "stage"


def _sources(graph: Graph, node: Node, events: Mapping[str, Event]) -> Iterator[Event]:
    """The events that produce a node's operands, looking through nodes that take no time."""
    waiting, seen = [name for name in node.inputs if name], set[str]()
    while waiting:
        producer = graph.producer(waiting.pop())
        if producer is None or producer.name in seen:
            continue
        seen.add(producer.name)
        if producer.name in events:
            yield events[producer.name]
        else:
            waiting += [name for name in producer.inputs if name]
