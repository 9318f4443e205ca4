"""A Gantt chart with a track per unit and link, in microseconds, so that a script can zoom with the view box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pimflow.codegen.answers import Lane
from pimflow.records import dataclass
from pimflow.report.page.axes import WIDTH, Scale, chart, hues, tick_text
from pimflow.report.page.markup import Markup, element, shortened
from pimflow.runtime.timeline import NO_RESOURCE, Event, Timeline

MAX_EVENTS = 6_000
MAX_LANES = 60_000
LEFT = 150.0
_TOP, _TRACK, _GAP = 8.0, 30.0, 6.0


@dataclass(frozen=True)
class Schedule:
    """The content of a Gantt chart.

    Args:
        titles: the title of every device, the host first.
        timeline: the schedule.
        numbers: of the page's nodes, by node of the rewritten graph.
        names: of the original nodes, by node of the rewritten graph.
        lanes: when each channel of a unit is busy, by node of the rewritten graph.
        most: the maximum number of events shown.
    """

    titles: Mapping[str, str]
    timeline: Timeline
    numbers: Mapping[str, int]
    names: Mapping[str, str]
    lanes: Mapping[str, tuple[Lane, ...]]
    most: int = MAX_EVENTS

    @property
    def shown(self) -> Sequence[Event]:
        """The events that take time, up to the maximum number."""
        return [event for event in self.timeline.events if event.resource != NO_RESOURCE][: self.most]

    @property
    def left_out(self) -> int:
        """The number of events that are not shown."""
        return sum(event.resource != NO_RESOURCE for event in self.timeline.events) - len(self.shown)

    @property
    def tracks(self) -> tuple[str, ...]:
        """Devices, then links."""
        return tuple(dict.fromkeys((*self.titles, *(event.resource for event in self.shown))))


def gantt(schedule: Schedule, run: int = 0, end_us: float = 0.0) -> Markup:
    """The chart; runs that are shown together share `end_us`, so that their lengths can be compared."""
    tracks, makespan = schedule.tracks, schedule.timeline.makespan_us
    end = max(end_us, makespan) or 1.0
    hue = hues(tuple(schedule.titles), tracks)
    height = _TOP + len(tracks) * (_TRACK + _GAP)
    rows = [
        _track(schedule, place, hue[place], _TOP + index * (_TRACK + _GAP), end) for index, place in enumerate(tracks)
    ]
    axis = _axis(Scale(0.0, end, LEFT, WIDTH), height)
    label = f"schedule of {len(schedule.shown)} kernels and copies on {len(tracks)} units and links"
    return element(
        "div",
        chart(height + 40, label, axis, *rows),
        class_="gantt",
        data_run=run,
        data_end=end,
        data_makespan=makespan,
        data_left=LEFT,
    )


def schedule_data(schedule: Schedule) -> dict[str, Any]:
    """The data for the script: the lanes of units with parts, and the names of such parts."""
    lanes: dict[str, list[list[Any]]] = {}
    words: dict[str, str] = {}
    count = 0
    for event in schedule.shown:
        if event.resource not in schedule.titles:
            continue
        own = schedule.lanes.get(event.node, ())
        if own:
            words[event.resource] = own[0].word
        for first, last, start, length in _alike(own, event):
            count += 1
            if count <= MAX_LANES:
                number = schedule.numbers.get(event.node, -1)
                lanes.setdefault(event.resource, []).append([number, first, last, start, length])
    return {"lanes": lanes, "words": words}


def _alike(lanes: Sequence[Lane], event: Event) -> list[tuple[int, int, float, float]]:
    """Neighbouring parts that are busy in the same interval, combined: first, last, start, length."""
    found: list[tuple[int, int, float, float]] = []
    for lane in lanes:
        start = round(event.start_us + lane.start_us, 3)
        length = round(min(event.start_us + lane.end_us, event.end_us) - start, 3)
        if found and found[-1][1] == lane.part - 1 and found[-1][2:] == (start, length):
            found[-1] = (found[-1][0], lane.part, start, length)
        else:
            found.append((lane.part, lane.part, start, length))
    return found


def _track(schedule: Schedule, place: str, hue: str, y: float, end: float) -> Markup:
    """A label, and the bars in a nested SVG whose units are microseconds."""
    title = schedule.titles.get(place, place)
    busy = schedule.timeline.busy_us.get(place, 0.0)
    share = f"{100 * busy / schedule.timeline.makespan_us:.0f} % busy" if schedule.timeline.makespan_us else ""
    bars = [_bar(schedule, event, hue) for event in schedule.shown if event.resource == place]
    return element(
        "g",
        element("text", shortened(title, 20), x=0, y=y + 14, class_="name"),
        element("text", share, x=0, y=y + 28, class_="busy"),
        element("rect", x=LEFT, y=y, width=WIDTH - LEFT, height=_TRACK, class_="ground"),
        element(
            "svg",
            *bars,
            x=LEFT,
            y=y,
            width=WIDTH - LEFT,
            height=_TRACK,
            viewBox=f"0 0 {end:.10g} 1",
            preserveAspectRatio="none",
            class_="time",
        ),
        class_="track",
        data_place=place,
        data_hue=hue,
        data_y=y,
    )


def _bar(schedule: Schedule, event: Event, hue: str) -> Markup:
    length = event.end_us - event.start_us
    name = shortened(schedule.names.get(event.node, event.node))
    stage = "" if event.stage is None else f", stage {event.stage + 1}"
    tooltip = f"{name}: {length:,.2f} us, from {event.start_us:,.2f} us on{stage}"
    return element(
        "rect",
        element("title", tooltip),
        x=round(event.start_us, 3),
        y=0,
        width=round(length, 3),
        height=1,
        class_=f"mark bar {hue}",
        data_n=schedule.numbers.get(event.node),
    )


def _axis(scale: Scale, y: float) -> Markup:
    marks = [
        element(
            "g",
            element("line", x1=scale(tick), x2=scale(tick), y1=_TOP, y2=y, class_="grid"),
            element("text", tick_text(tick), x=scale(tick), y=y + 14, class_="tick", text_anchor="middle"),
        )
        for tick in scale.ticks
    ]
    middle = (scale.start + scale.end) / 2
    title = element("text", "time, us", x=middle, y=y + 32, class_="axis", text_anchor="middle")
    return element("g", element("g", *marks, class_="ticks"), title, class_="xaxis", data_y=y)
