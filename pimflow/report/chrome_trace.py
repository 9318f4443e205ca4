"""A timeline as a Chrome JSON trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

from pimflow.runtime.spending import EventCost
from pimflow.runtime.timeline import NO_RESOURCE, Event, Timeline
from pimflow.version import format_of

MAX_EVENTS = 100_000
"""Viewers become slow beyond this many slices."""

_LINKS = "Transfers"
_REGIONS = "Regions"


def chrome_trace(
    timeline: Timeline,
    titles: Mapping[str, str],
    name: str = "pimflow",
    costs: Sequence[EventCost] = (),
    max_events: int = MAX_EVENTS,
) -> dict[str, Any]:
    """The timeline as JSON values: one track per device, one for all links, one for regions of several nodes; in us.

    Slices on one track never overlap: starts and ends are rounded to the same grid of a nanosecond. If there are more
    than `max_events` events, the first ones are written, and a note says how many are left out.

    Args:
        timeline: the schedule.
        titles: what every device is called, the host first.
        name: of the process in the trace.
        costs: of the timeline's events, in its order: their parts become arguments of the slices.
        max_events: slices at most.
    """
    tracks = _Tracks(titles)
    details = map(_details, costs) if costs else repeat({})
    shown = [
        (event, args) for event, args in zip(timeline.events, details, strict=False) if event.resource != NO_RESOURCE
    ]
    left_out = max(0, len(shown) - max_events)
    events = [tracks.slice(event, args) for event, args in shown[:max_events]]
    last_region = max((event.region for event, _ in shown[:max_events]), default=-1)
    events.extend(tracks.regions(timeline, last_region + 1))
    notes: dict[str, Any] = {
        "format": format_of("timeline"),
        "makespan_us": timeline.makespan_us,
        "energy_mj": dict(timeline.energy_mj),
    }
    if left_out:
        notes["events_left_out"] = left_out
        events.append(tracks.note(f"{left_out} later events are left out", timeline.events[0].start_us))
    return {"traceEvents": [*tracks.metadata(name), *events], "displayTimeUnit": "ns", "otherData": notes}


class _Tracks:
    """Numbers the tracks, and makes what stands on them."""

    def __init__(self, titles: Mapping[str, str]) -> None:
        self._titles = (*titles.values(), _LINKS, _REGIONS)
        self._number = {device: number for number, device in enumerate(titles, 1)}
        self._links, self._regions = len(titles) + 1, len(titles) + 2

    def metadata(self, name: str) -> list[dict[str, Any]]:
        """The names of the process and of the tracks."""
        entries: list[dict[str, Any]] = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": name}}]
        for number, title in enumerate(self._titles, 1):
            entries.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": title}})
        return entries

    def slice(self, event: Event, details: Mapping[str, Any]) -> dict[str, Any]:
        """One use of a device or a link."""
        args: dict[str, Any] = {"region": event.region}
        if event.stage is not None:
            args["stage"] = event.stage
        args.update(details)
        track = self._number.get(event.resource, self._links)
        return _complete(event.node, track, event.start_us, event.end_us, args)

    def regions(self, timeline: Timeline, count: int) -> list[dict[str, Any]]:
        """The first `count` regions, those of one node left out."""
        nodes: dict[int, int] = {}
        for event in timeline.events:
            nodes[event.region] = nodes.get(event.region, 0) + 1
        slices: list[dict[str, Any]] = []
        now = 0.0
        for index, duration in enumerate(timeline.region_us[:count]):
            if nodes.get(index, 0) > 1 and duration > 0:
                slices.append(_complete(f"region {index}", self._regions, now, now + duration, {}))
            now += duration
        return slices

    def note(self, text: str, at_us: float) -> dict[str, Any]:
        """A remark on the host's track."""
        return {"ph": "i", "s": "g", "pid": 1, "tid": 1, "name": text, "ts": round(at_us, 3)}


def _details(cost: EventCost) -> dict[str, Any]:
    """What a slice's node is, and what it spends; parts of the time add up to the slice, static power is apart."""
    return {
        "op": cost.node.kind,
        "origin": cost.node.placement.origin or cost.node.name,
        "share_us": cost.share_us,
        "time_parts_us": dict(cost.time_parts_us),
        "energy_mj": sum(cost.energy_parts_mj.values()),
        "energy_parts_mj": dict(cost.energy_parts_mj),
    }


def _complete(name: str, track: int, start_us: float, end_us: float, args: dict[str, Any]) -> dict[str, Any]:
    start, end = round(start_us, 3), round(end_us, 3)
    return {"ph": "X", "pid": 1, "tid": track, "name": name, "ts": start, "dur": round(end - start, 3), "args": args}
