"""Nodes under the rooflines of the machine: operations per byte and per second, in the plan and on the host alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pimflow.codegen.answers import Roof
from pimflow.errors import counted
from pimflow.records import dataclass
from pimflow.report.page.axes import WIDTH, Scale, chart, horizontal_axis, power_text, vertical_axis
from pimflow.report.page.markup import Markup, element, joined, shortened

_LEFT, _RIGHT, _TOP, _BOTTOM = 72.0, WIDTH - 12, 14.0, 380.0
_PER_TERA = 1e6
_RADIUS = 4.2


@dataclass(frozen=True)
class Ceiling:
    """The roof of a unit.

    Args:
        name: of the unit.
        hue: CSS class of its colour.
        roof: its peaks.
        is_alone: whether this is the host with all memory channels, which it lacks while other units use some.
    """

    name: str
    hue: str
    roof: Roof
    is_alone: bool = False


@dataclass(frozen=True)
class Point:
    """A node.

    Args:
        number: of the page's nodes.
        name: its name.
        hue: CSS class of the colour of its device.
        intensity: multiply-accumulates per byte.
        rate: multiply-accumulates per microsecond, in the plan.
        before: the same on the host alone.
    """

    number: int
    name: str
    hue: str
    intensity: float
    rate: float
    before: float


def roofline(ceilings: Sequence[Ceiling], points: Sequence[Point]) -> Markup:
    """The chart, both axes logarithmic."""
    if not points:
        return element("p", "As far as is known, no node multiplies.", class_="note")
    across, up = _scales(ceilings, points)
    axes = [
        horizontal_axis(across, _BOTTOM, "multiply-accumulates per byte", _TOP, power_text),
        vertical_axis(up, _LEFT, "performance, TMAC/s", _RIGHT, power_text),
    ]
    roofs = [mark for ceiling in ceilings for mark in _roof(ceiling, across, up)]
    marks = [_mark(point, across, up) for point in points]
    label = f"roofline of {counted(len(points), 'node')} under {counted(len(ceilings), 'roof')}"
    return joined([_legend(ceilings), chart(_BOTTOM + 44, label, *axes, *roofs, *marks, class_="roofline")])


def _scales(ceilings: Sequence[Ceiling], points: Sequence[Point]) -> tuple[Scale, Scale]:
    """Scales with round ends that enclose all points and roofs."""
    works = [point.intensity for point in points] + [ceiling.roof.ridge for ceiling in ceilings]
    rates = [rate for point in points for rate in (point.rate, point.before)]
    rates += [ceiling.roof.macs_per_us for ceiling in ceilings]
    return (
        Scale(*_around(works), _LEFT, _RIGHT, logarithmic=True),
        Scale(*_around([rate / _PER_TERA for rate in rates]), _BOTTOM, _TOP, logarithmic=True),
    )


def _around(values: Sequence[float]) -> tuple[float, float]:
    """1, 2 or 5 times a power of ten: the nearest below the smallest value, and the nearest above the largest."""
    low, high = (10.0 ** math.floor(math.log10(value)) for value in (min(values), max(values)))
    below = max(factor * low for factor in (1, 2, 5) if factor * low <= min(values) * (1 + 1e-9))
    above = min(factor * high for factor in (1, 2, 5, 10) if factor * high >= max(values) * (1 - 1e-9))
    return below, max(above, 10 * below)


def _roof(ceiling: Ceiling, across: Scale, up: Scale) -> Iterator[Markup]:
    """The slope of a unit's memory, then its peak; the part below the axis is omitted."""
    roof = ceiling.roof
    slope = roof.bytes_per_us / _PER_TERA
    start = max(across.low, up.low / slope)
    ridge, peak = max(roof.ridge, across.low), roof.macs_per_us / _PER_TERA
    places = [(start, min(start * slope, peak)), (ridge, peak), (across.high, peak)]
    path = "L".join(f"{across(x):g} {up(y):g}" for x, y in places if x >= across.low)
    dashed = "" if not ceiling.is_alone else " dashed"
    tooltip = f"{ceiling.name}: {peak:,.3g} TMAC/s, {roof.bytes_per_us / 1e3:,.4g} GB/s"
    title = element("title", tooltip)
    yield element("path", title, d=f"M{path}", class_=f"roof {ceiling.hue}{dashed}")


def _legend(ceilings: Sequence[Ceiling]) -> Markup:
    entries = [
        element(
            "span",
            element("span", class_=f"swatch {ceiling.hue}"),
            f"{ceiling.name}{' (dashed)' if ceiling.is_alone else ''}: "
            f"{ceiling.roof.macs_per_us / _PER_TERA:,.3g} TMAC/s, {ceiling.roof.bytes_per_us / 1e3:,.4g} GB/s",
        )
        for ceiling in ceilings
    ]
    hollow = element("span", "filled: where the node runs; hollow: on the host alone")
    return element("p", *entries, hollow, class_="legend")


def _mark(point: Point, across: Scale, up: Scale) -> Markup:
    x, y, before = across(point.intensity), up(point.rate / _PER_TERA), up(point.before / _PER_TERA)
    tooltip = f"{shortened(point.name)}: {point.intensity:,.3g} MACs per byte, {point.rate / _PER_TERA:,.3g} TMAC/s"
    tooltip += f"; {point.before / _PER_TERA:,.3g} TMAC/s on the host alone"
    parts = [element("title", tooltip)]
    if abs(before - y) > _RADIUS:
        parts.append(element("line", x1=x, x2=x, y1=y, y2=before, class_="way"))
        parts.append(element("circle", cx=x, cy=before, r=_RADIUS - 1.2, class_="was"))
    parts.append(element("circle", cx=x, cy=y, r=_RADIUS, class_=point.hue))
    return element("g", *parts, class_="mark", data_n=point.number)
