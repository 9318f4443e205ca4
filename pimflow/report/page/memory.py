"""Live bytes in the arena over time, their peak, and the movements that remain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from pimflow.records import dataclass
from pimflow.report.chrome_trace import live_bytes
from pimflow.report.page.axes import WIDTH, Scale, chart, horizontal_axis, tick_text, vertical_axis
from pimflow.report.page.markup import Markup, element, joined, shortened
from pimflow.report.tables import megabytes, number, significant
from pimflow.runtime.memory import MemoryPlan
from pimflow.runtime.timeline import Timeline

MAX_MOVEMENTS = 100
_LEFT, _RIGHT, _TOP, _BOTTOM = 72.0, WIDTH - 12, 22.0, 230.0
_LINE = 14.0
_MB = 1e6


@dataclass(frozen=True)
class Usage:
    """One run's memory.

    Args:
        label: the name of the run.
        memory, timeline: of the compiled model.
        numbers: of the page's nodes, by node of the rewritten graph.
        steps: for every step, numbers of the nodes that run in it.
    """

    label: str
    memory: MemoryPlan
    timeline: Timeline
    numbers: Mapping[str, int]
    steps: Sequence[Sequence[int]]


def memory_chart(usages: Sequence[Usage]) -> Markup:
    """Live bytes over time, step by step; a dashed line shows the size of the arena."""
    end = max(usage.timeline.makespan_us for usage in usages) or 1.0
    high = max(usage.memory.arena_bytes for usage in usages) / _MB * 1.12 or 1.0
    across, up = Scale(0.0, end, _LEFT, _RIGHT), Scale(0.0, high, _BOTTOM, _TOP)
    axes = [
        horizontal_axis(across, _BOTTOM, "time, us", _TOP, tick_text),
        vertical_axis(up, _LEFT, "activations, MB", _RIGHT, tick_text),
    ]
    marks = [mark for index, usage in enumerate(usages) for mark in _usage(usage, index, len(usages) > 1, across, up)]
    marks += _peaks(usages, across, up)
    peaks = "; ".join(f"{usage.label}: {megabytes(usage.memory.arena_bytes)} at the peak" for usage in usages)
    return chart(_BOTTOM + 44, f"memory over time, {peaks}", *axes, *marks, class_="memory")


def movements(usage: Usage) -> Markup:
    """The number of movements that cost nothing, and a table of those that remain, with reasons."""
    memory = usage.memory
    free, kept = len(memory.eliminated), memory.kept
    if not free and not kept:
        return element("p", "There is no Slice, Pad, Concat or view node.")
    summary = f"{free:,} of {free + len(kept):,} Slice, Pad, Concat and view nodes cost nothing"
    summary += "; these remain:" if kept else "; none remain."
    ranked = sorted(kept.items(), key=lambda item: -item[1].bytes)
    rows = [
        element(
            "tr",
            element("td", shortened(name)),
            element("td", number(movement.bytes / 1024), class_="number"),
            element("td", shortened(movement.reason, 400)),
            class_="mark",
            data_n=usage.numbers.get(name),
        )
        for name, movement in ranked[:MAX_MOVEMENTS]
    ]
    head = element("tr", *(element("th", text) for text in ("remaining movement", "KiB", "reason")))
    table = element("table", element("thead", head), element("tbody", *rows), class_="small-table") if rows else ""
    more = len(ranked) - len(rows)
    return joined(
        [element("p", summary), table, element("p", f"{more:,} more move less.", class_="note") if more else ""]
    )


def _usage(usage: Usage, index: int, several: bool, across: Scale, up: Scale) -> Iterator[Markup]:
    if not usage.timeline.region_us:
        return
    alive = [size / _MB for size in live_bytes(usage.memory)]
    times = [0.0, *accumulate(usage.timeline.region_us)]
    corners = [f"M{across(0.0):g} {_BOTTOM:g}"]
    corners += [f"V{up(size):g}H{across(end):g}" for size, end in zip(alive, times[1:], strict=True)]
    yield element("path", d=f"{''.join(corners)}V{_BOTTOM:g}Z", class_=f"area{' second' if index else ''}")
    for step, (start, stop) in enumerate(pairwise(times)):
        if stop > start and not several:
            yield _hit(usage, step, alive[step], across(start), across(stop))
    arena = up(usage.memory.arena_bytes / _MB)
    yield element("line", x1=_LEFT, x2=_RIGHT, y1=arena, y2=arena, class_="limit")


def _peaks(usages: Sequence[Usage], across: Scale, up: Scale) -> Iterator[Markup]:
    """The peak of every run and its size. A label at the height of an earlier one is moved above it."""
    taken: list[float] = []
    for usage in usages:
        if not usage.timeline.region_us:
            continue
        alive = [size / _MB for size in live_bytes(usage.memory)]
        times = [0.0, *accumulate(usage.timeline.region_us)]
        peak = max(range(len(alive)), key=alive.__getitem__)
        x, y = across((times[peak] + times[peak + 1]) / 2), up(alive[peak])
        label = f"{usage.label + ': ' if len(usages) > 1 else ''}peak {significant(alive[peak])} MB"
        arena = f", arena {significant(usage.memory.arena_bytes / _MB)} MB"
        height = y - 10
        while any(abs(height - other) < _LINE for other in taken):
            height -= _LINE
        taken.append(height)
        yield element("circle", cx=x, cy=y, r=4, class_="peak")
        anchor = "start" if x < WIDTH / 2 else "end"
        yield element("text", label + arena, x=x, y=height, class_="value", text_anchor=anchor)


def _hit(usage: Usage, step: int, size: float, start: float, stop: float) -> Markup:
    """The area to point at to see what runs in a step."""
    tooltip = f"{size:,.3f} MB alive, from {sum(usage.timeline.region_us[:step]):,.1f} us on"
    return element(
        "g",
        element("title", tooltip),
        element("rect", x=start, y=_TOP, width=round(stop - start, 2), height=_BOTTOM - _TOP, class_="hit"),
        class_="mark",
        data_n=" ".join(map(str, usage.steps[step])) or None,
    )
