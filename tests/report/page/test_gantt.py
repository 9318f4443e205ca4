"""A track per unit and link; a script unfolds it into the activity of the channels."""

from __future__ import annotations

import re

import pimflow
from pimflow.api.reports import content_of
from pimflow.report.page.gantt import gantt, schedule_data


def test_every_event_is_a_bar_and_channels_unfold() -> None:
    compiled = pimflow.compile("zoo:toy", policy="md-dp", use_cache=False)
    content = content_of(compiled, what_if=0)
    schedule = content.runs[0].schedule(content.numbers[0])
    chart = gantt(schedule)
    events = [event for event in compiled.timeline.events if event.end_us > event.start_us]
    assert len(re.findall(r'class="mark bar', chart)) == len(events)
    assert schedule.tracks == ("gpu", "pim")
    lanes = schedule_data(schedule)["lanes"]
    assert list(lanes) == ["pim"]
    assert schedule_data(schedule)["words"] == {"pim": "channel"}
    on_pim = {event.node: event for event in events if event.resource == "pim"}
    assert {lane[0] for lane in lanes["pim"]} == {schedule.numbers[name] for name in on_pim}
    busy = sum((last - first + 1) * length for _, first, last, _, length in lanes["pim"])
    told = [lane for name in on_pim for lane in schedule.lanes[name]]
    assert abs(busy - sum(lane.end_us - lane.start_us for lane in told)) < 1e-2 * len(told)
    assert all(0 <= first <= last < 16 for _, first, last, _, _ in lanes["pim"])
