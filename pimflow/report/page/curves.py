"""Figures over a setting: a line per series with a point for every tried value, in side-by-side panels on one scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pimflow.records import dataclass
from pimflow.report.page.axes import WIDTH, Scale, chart, tick_text, vertical_axis
from pimflow.report.page.bars import Series
from pimflow.report.page.markup import Markup, element
from pimflow.report.tables import significant

_LEFT, _TOP, _BOTTOM, _NAMES = 64.0, 34.0, 292.0, 132.0
_ROW = 15.0  # of a label
_ROOM = 0.05  # of the range, above and below


@dataclass(frozen=True)
class CurvePanel:
    """One panel.

    Args:
        title: above the panel.
        setting: the name of the setting, below the axis.
        settings: its values, ascending.
        values: a row for each series, with a value for each setting.
    """

    title: str
    setting: str
    settings: Sequence[float]
    values: Sequence[Sequence[float]]


def curves(series: Sequence[Series], panels: Sequence[CurvePanel], *, unit: str, base: float) -> Markup:
    """The chart.

    Args:
        series: the lines of every panel; each is named at its end.
        panels: from left to right.
        unit: of the values, next to the axis.
        base: draws a line at this value.
    """
    every = [base, *(value for panel in panels for row in panel.values for value in row)]
    room = _ROOM * (max(every) - min(every)) or 1.0
    y = Scale(min(every) - room, max(every) + room, _BOTTOM, _TOP)
    width = WIDTH / len(panels)
    drawn = [
        element("g", *_panel(panel, series, y, width, unit, base), transform=f"translate({index * width:g} 0)")
        for index, panel in enumerate(panels)
    ]
    label = f"{'; '.join(panel.title for panel in panels)}: {unit}, by {', '.join(one.label for one in series)}"
    return chart(_BOTTOM + 42, label, *drawn, class_="curves")


def _panel(
    panel: CurvePanel, series: Sequence[Series], y: Scale, width: float, unit: str, base: float
) -> Iterator[Markup]:
    end = width - _NAMES
    first, last = panel.settings[0], panel.settings[-1]
    x = Scale(first, last if last > first else first + 1, _LEFT + 14, end - 10)
    yield element("text", panel.title, x=_LEFT, y=16, class_="value")
    yield vertical_axis(y, _LEFT, unit, end, tick_text)
    yield element("line", x1=_LEFT, x2=end, y1=y(base), y2=y(base), class_="base")
    for value in panel.settings:
        yield element("text", tick_text(value), x=x(value), y=_BOTTOM + 16, class_="tick", text_anchor="middle")
    yield element("text", panel.setting, x=(_LEFT + end) / 2, y=_BOTTOM + 34, class_="axis", text_anchor="middle")
    heights = spread([y(row[-1]) for row in panel.values], _ROW)
    for one, row, height in zip(series, panel.values, heights, strict=True):
        yield _curve(one, panel, row, x, y)
        yield element("path", d=f"M{end - 7:g} {y(row[-1]):g}L{end + 6:g} {height:g}", class_="join")
        yield element("circle", cx=end + 13, cy=height, r=4, class_=one.class_)
        yield element("text", one.label, x=end + 22, y=height + 4)


def _curve(one: Series, panel: CurvePanel, row: Sequence[float], x: Scale, y: Scale) -> Markup:
    places = [(x(setting), y(value)) for setting, value in zip(panel.settings, row, strict=True)]
    line = "L".join(f"{a:g} {b:g}" for a, b in places)
    points = [
        element(
            "circle",
            element("title", f"{one.label}, {panel.setting} {tick_text(setting)}: {significant(value)}"),
            cx=a,
            cy=b,
            r=3.4,
            class_=one.class_,
        )
        for (a, b), setting, value in zip(places, panel.settings, row, strict=True)
    ]
    return element("g", element("path", d=f"M{line}", class_=f"line {one.class_}"), *points)


def spread(places: Sequence[float], least: float) -> list[float]:
    """Places moved as little as possible so that any two are at least `least` apart, in the same order."""
    found = list(places)
    blocks: list[tuple[list[int], float]] = []  # groups of adjacent labels, with the place of the first one
    for index in sorted(range(len(places)), key=lambda index: places[index]):
        members, start = [index], places[index]
        while blocks and start < blocks[-1][1] + least * len(blocks[-1][0]):
            members = blocks.pop()[0] + members
            start = sum(places[one] - least * row for row, one in enumerate(members)) / len(members)
        blocks.append((members, start))
    for members, start in blocks:
        for row, one in enumerate(members):
            found[one] = round(start + least * row, 2)
    return found
