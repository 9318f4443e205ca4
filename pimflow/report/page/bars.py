"""Figures by group and series: grouped bars on a base line, with panels below each other under one legend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from pimflow.records import dataclass
from pimflow.report.page.axes import WIDTH, Scale, chart, steps, tick_text, vertical_axis
from pimflow.report.page.markup import Markup, element
from pimflow.report.tables import significant

_LEFT, _LEGEND, _TITLE, _BELOW, _GAP = 64.0, 30.0, 30.0, 26.0, 14.0
_LETTER = 6.9
_FILLED = 0.8  # of a group's width
_MARK = 5.0


@dataclass(frozen=True)
class Series:
    """Bars of one colour.

    Args:
        label: in the legend.
        class_: CSS class of the colour in `charts.css`; with "hollow" for an outline.
    """

    label: str
    class_: str


@dataclass(frozen=True)
class BarPanel:
    """One panel.

    Args:
        title: above the panel.
        values: a row for each series, with a value for each group.
        marks: values marked next to a bar, by the numbers of series and group.
    """

    title: str
    values: Sequence[Sequence[float]]
    marks: Mapping[tuple[int, int], float] = field(default_factory=dict)


def grouped_bars(
    groups: Sequence[str],
    series: Sequence[Series],
    panels: Sequence[BarPanel],
    *,
    unit: str,
    base: float = 0.0,
    mark: str = "",
    height: float = 210.0,
) -> Markup:
    """The chart.

    Args:
        groups: names of the groups.
        series: the bars of every group.
        panels: the panels from top to bottom, each with its own scale.
        unit: of the values, next to the axis.
        base: where bars begin, upwards or downwards; drawn as a line.
        mark: the meaning of the marks, for the legend.
        height: of every panel without its title and the names of its groups.
    """
    top, parts = _LEGEND, [legend(series, mark)]
    for panel in panels:
        values = [*(value for row in panel.values for value in row), *panel.marks.values(), base]
        scale = Scale(*_ends(min(values), max(values)), top + _TITLE + height, top + _TITLE)
        parts.append(element("text", panel.title, x=_LEFT, y=top + 16, class_="value"))
        parts.append(vertical_axis(scale, _LEFT, unit, WIDTH, tick_text))
        parts += _bars(panel, groups, series, scale, base, mark)
        parts.append(element("line", x1=_LEFT, x2=WIDTH, y1=scale(base), y2=scale(base), class_="base"))
        parts += _names(groups, scale.start + 18)
        top = scale.start + _BELOW + _GAP
    label = f"{'; '.join(panel.title for panel in panels)}: {unit}, by {', '.join(one.label for one in series)}"
    return chart(top - _GAP, label, *parts, class_="bars")


def legend(series: Iterable[Series], mark: str = "") -> Markup:
    """The meaning of the colours, in a row at the top of a chart."""
    parts, x = [], _LEFT
    for one in series:
        parts.append(element("rect", x=x, y=4, width=14, height=12, class_=one.class_))
        parts.append(element("text", one.label, x=x + 20, y=14))
        x += 20 + _LETTER * len(one.label) + 20
    if mark:
        parts += [_diamond(x + 6, 10.0), element("text", mark, x=x + 18, y=14)]
    return element("g", *parts)


def _ends(low: float, high: float) -> tuple[float, float]:
    """Round values that enclose everything drawn, so that there is a tick at both ends."""
    if high <= low:
        return low, low + (abs(low) or 1.0)
    ticks = steps(low, high)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else high - low
    first = ticks[0] if ticks[0] <= low + 1e-9 * step else ticks[0] - step
    last = ticks[-1] if ticks[-1] >= high - 1e-9 * step else ticks[-1] + step
    return first, last


def _center(group: int, groups: int) -> float:
    return _LEFT + (WIDTH - _LEFT) * (group + 0.5) / groups


def _bars(
    panel: BarPanel, groups: Sequence[str], series: Sequence[Series], scale: Scale, base: float, mark: str
) -> Iterator[Markup]:
    width = _FILLED * (WIDTH - _LEFT) / len(groups) / len(series)
    for number, (one, row) in enumerate(zip(series, panel.values, strict=True)):
        for group, (name, value) in enumerate(zip(groups, row, strict=True)):
            x = _center(group, len(groups)) + (number - len(series) / 2) * width
            top, bottom = sorted((scale(value), scale(base)))
            box = {"x": round(x + 1, 2), "y": top, "width": round(width - 2, 2), "height": round(bottom - top, 2)}
            tooltip = f"{name}, {one.label}: {significant(value)}"
            marked = panel.marks.get((number, group))
            tooltip += "" if marked is None else f"; {mark} {significant(marked)}"
            yield element(
                "g",
                element("title", tooltip),
                element("rect", **box, class_="under"),
                element("rect", **box, class_=one.class_),
                "" if marked is None else _diamond(round(x + width / 2, 2), scale(marked)),
            )


def _diamond(x: float, y: float) -> Markup:
    return element(
        "path", d=f"M{x:g} {y - _MARK:g}l{_MARK} {_MARK}l-{_MARK} {_MARK}l-{_MARK} -{_MARK}z", class_="published"
    )


def _names(groups: Sequence[str], y: float) -> Iterator[Markup]:
    for group, name in enumerate(groups):
        yield element("text", name, x=round(_center(group, len(groups)), 2), y=y, text_anchor="middle")
