"""Writes a timeline as a Chrome JSON trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pimflow.errors import OutputError
from pimflow.runtime.timeline import Event, Timeline

MAX_EVENTS = 100_000
"""Viewers become slow beyond this many slices."""

_TRACKS = {"gpu": "GPU stream", "pim": "PIM channels", "transfer": "Transfers"}
_REGION_TRACK = "Regions"


def chrome_trace(timeline: Timeline, name: str = "pimflow", max_events: int = MAX_EVENTS) -> dict[str, Any]:
    """The timeline as JSON values: one track per resource and one for the regions of several nodes; times in us.

    Slices on one track never overlap: starts and ends are rounded to the same grid of a nanosecond. If there are more
    than `max_events` events, the first ones are written, and a note says how many are left out.
    """
    shown = [event for event in timeline.events if event.resource != "none"]
    left_out = max(0, len(shown) - max_events)
    events = [_slice(event) for event in shown[:max_events]]
    last_region = max((event.region for event in shown[:max_events]), default=-1)
    events.extend(_region_slices(timeline, last_region + 1))
    notes = {"makespan_us": timeline.makespan_us}
    if left_out:
        notes["events_left_out"] = left_out
        events.append(_note(f"{left_out} later events are left out", timeline.events[0].start_us))
    return {"traceEvents": [*_metadata(name), *events], "displayTimeUnit": "ns", "otherData": notes}


def write_chrome_trace(
    timeline: Timeline, path: str | Path, name: str = "pimflow", max_events: int = MAX_EVENTS
) -> None:
    """Writes `chrome_trace` to a file, byte-stable.

    Raises:
        OutputError: the file cannot be written.
    """
    text = json.dumps(chrome_trace(timeline, name, max_events), separators=(",", ":"))
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write trace {path}: {error.strerror}", "give another path") from None


def _track(resource: str) -> int:
    return 1 + (*_TRACKS, _REGION_TRACK).index(resource)


def _metadata(name: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": name}}]
    for resource, title in (*_TRACKS.items(), (_REGION_TRACK, _REGION_TRACK)):
        entries.append({"ph": "M", "pid": 1, "tid": _track(resource), "name": "thread_name", "args": {"name": title}})
    return entries


def _complete(name: str, track: int, start_us: float, end_us: float, args: dict[str, Any]) -> dict[str, Any]:
    start, end = round(start_us, 3), round(end_us, 3)
    return {"ph": "X", "pid": 1, "tid": track, "name": name, "ts": start, "dur": round(end - start, 3), "args": args}


def _slice(event: Event) -> dict[str, Any]:
    args: dict[str, Any] = {"region": event.region}
    if event.stage is not None:
        args["stage"] = event.stage
    return _complete(event.node, _track(event.resource), event.start_us, event.end_us, args)


def _region_slices(timeline: Timeline, count: int) -> list[dict[str, Any]]:
    nodes: dict[int, int] = {}
    for event in timeline.events:
        nodes[event.region] = nodes.get(event.region, 0) + 1
    slices: list[dict[str, Any]] = []
    now = 0.0
    for index, duration in enumerate(timeline.region_us[:count]):
        if nodes.get(index, 0) > 1 and duration > 0:
            slices.append(_complete(f"region {index}", _track(_REGION_TRACK), now, now + duration, {}))
        now += duration
    return slices


def _note(text: str, at_us: float) -> dict[str, Any]:
    return {"ph": "i", "s": "g", "pid": 1, "tid": _track("gpu"), "name": text, "ts": round(at_us, 3)}
