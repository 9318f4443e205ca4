"""From one time to another in steps: a column for each change, which starts where the previous one ended."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pimflow.records import dataclass
from pimflow.report.page.axes import WIDTH, Scale, chart, tick_text, vertical_axis
from pimflow.report.page.markup import Markup, element, joined, shortened
from pimflow.report.tables import significant

MAX_STEPS = 36
_TOP, _BOTTOM, _LEFT = 44.0, 300.0, 64.0
_HEIGHT = 376.0
_END_WIDTH = 84.0
_MIN_LABELLED = 34.0
MIN_US = 1e-9  # smaller changes are due to the rounding of sums
_LOW_SHARE = 0.7  # space below the changes, relative to them, if the axis does not start at 0
_MIN_CUT = 0.3  # minimum start of the axis, as a share of the times; otherwise it starts at 0


@dataclass(frozen=True)
class Step:
    """One change.

    Args:
        kind: the group that it belongs to.
        name: its label.
        change_us: negative for a gain.
        nodes: numbers of the page's nodes that it concerns.
    """

    kind: str
    name: str
    change_us: float
    nodes: tuple[int, ...] = ()


def grouped_steps(steps: Iterable[Step], most: int = MAX_STEPS) -> list[Step]:
    """Steps by kind, the largest first in each; steps beyond `most` are combined into one per kind.

    Steps that change nothing are omitted. The sum stays the same.
    """
    changing = sorted((step for step in steps if abs(step.change_us) > MIN_US), key=lambda step: -abs(step.change_us))
    shown, rest = changing[:most], changing[most:]
    kinds: dict[str, float] = {}
    for step in changing:
        kinds[step.kind] = kinds.get(step.kind, 0.0) + step.change_us
    result = []
    for kind in sorted(kinds, key=lambda kind: -kinds[kind] if kinds[kind] > 0 else kinds[kind]):
        result += [step for step in shown if step.kind == kind]
        others = [step for step in rest if step.kind == kind]
        if others:
            nodes = tuple(node for step in others for node in step.nodes)
            result.append(Step(kind, f"{len(others)} more", sum(step.change_us for step in others), nodes))
    return result


def waterfall(before: tuple[str, float], steps: Sequence[Step], after: tuple[str, float]) -> Markup:
    """The chart.

    Args:
        before, after: the names of both ends, and their times in us.
        steps: the changes between them, sorted by kind (`grouped_steps`).
    """
    levels = [before[1]]
    for step in steps:
        levels.append(levels[-1] + step.change_us)
    scale = _scale([*levels, after[1]])
    axis = vertical_axis(scale, _LEFT, "time, us", WIDTH, tick_text)
    left = _LEFT + 12 + _END_WIDTH + 12
    right = WIDTH - _END_WIDTH - 12
    width = min(90.0, (right - left) / max(1, len(steps)))
    bars = [*_break(scale), _end(before, _LEFT + 12, scale)]
    for index, step in enumerate(steps):
        bars.append(_column(step, left + index * width, width, levels[index], scale))
    bars.append(_end(after, left + len(steps) * width + 12, scale))
    label = f"{before[0]} {before[1]:,.1f} us, {after[0]} {after[1]:,.1f} us"
    return chart(_HEIGHT, label, axis, *bars, *_brackets(steps, left, width), class_="waterfall")


def _scale(levels: Sequence[float]) -> Scale:
    """Starts at 0 if changes are large relative to the times; otherwise at a round value, so that they are visible."""
    low, high = min(levels), max(levels)
    if high - low < MIN_US * high:
        low = 0.0
    start = max(0.0, low - _LOW_SHARE * (high - low))
    if start <= _MIN_CUT * high:
        return Scale(0.0, high * 1.02 or 1.0, _BOTTOM, _TOP)
    step = 10.0 ** math.floor(math.log10(max(high - start, high * 1e-6)))
    start = math.floor(start / step) * step
    return Scale(start, high + 0.02 * (high - start) or 1.0, _BOTTOM, _TOP)


def _break(scale: Scale) -> Iterable[Markup]:
    """The note that the axis does not start at 0."""
    if not scale.low:
        return
    yield element(
        "text", f"the axis starts at {scale.low:,g} us", x=WIDTH, y=_TOP - 22, class_="tick", text_anchor="end"
    )


def _end(end: tuple[str, float], x: float, scale: Scale) -> Markup:
    name, time_us = end
    top, middle = scale(time_us), x + _END_WIDTH / 2
    cut = f"M{x - 4:g} {_BOTTOM - 14:g}l23 -8l23 8l23 -8l23 8" if scale.low else None
    return element(
        "g",
        element("rect", x=x, y=top, width=_END_WIDTH, height=max(1.0, _BOTTOM - top), class_="total"),
        element("path", d=cut, class_="cut") if cut else "",
        element("text", f"{significant(time_us)} us", x=middle, y=top - 6, class_="value", text_anchor="middle"),
        element("text", shortened(name, 16), x=middle, y=_BOTTOM + 18, class_="name", text_anchor="middle"),
    )


def _column(step: Step, x: float, width: float, start: float, scale: Scale) -> Markup:
    begin, end = scale(start), scale(start + step.change_us)
    top, height = min(begin, end), max(1.0, abs(end - begin))
    tooltip = f"{shortened(step.name)}: {step.change_us:+,.2f} us ({step.kind})"
    label = ""
    if width >= _MIN_LABELLED:
        below = top + height + 13
        y = below if step.change_us <= 0 and below <= _BOTTOM else top - 5
        text = f"{step.change_us:+,.0f}" if abs(step.change_us) >= 1_000 else f"{step.change_us:+.3g}"
        label = element("text", text, x=x + width / 2, y=y, class_="small", text_anchor="middle")
    return element(
        "g",
        element("title", tooltip),
        element("rect", x=x, y=_TOP, width=width, height=_BOTTOM - _TOP, class_="hit"),
        element("line", x1=x - 2, x2=x + width, y1=begin, y2=begin, class_="join"),
        element("rect", x=x + 1, y=top, width=max(1.0, width - 3), height=height),
        label,
        class_=f"mark {'gain' if step.change_us < 0 else 'loss'}",
        data_n=" ".join(map(str, step.nodes)) or None,
    )


def _brackets(steps: Sequence[Step], left: float, width: float) -> Iterable[Markup]:
    """Labels below the columns with the sum of each kind; labels that would overlap are staggered."""
    first, taken = 0, [0.0, 0.0, 0.0]
    while first < len(steps):
        kind, last = steps[first].kind, first
        while last + 1 < len(steps) and steps[last + 1].kind == kind:
            last += 1
        change = sum(step.change_us for step in steps[first : last + 1])
        begin, end = left + first * width, left + (last + 1) * width
        text, middle = f"{kind}: {change:+,.1f} us", (begin + end) / 2
        half = 3.4 * len(text)
        middle = min(max(middle, _LEFT + half), WIDTH - half)
        row = next((row for row, until in enumerate(taken) if until <= middle - half), len(taken) - 1)
        taken[row] = middle + half + 8
        yield joined(
            [
                element("path", d=f"M{begin + 2:g} {_BOTTOM + 5:g}v5H{end - 3:g}v-5", class_="bracket"),
                element("text", text, x=middle, y=_BOTTOM + 38 + 17 * row, class_="name", text_anchor="middle"),
            ]
        )
        first = last + 1
