"""Common parts of charts: scales, ticks, axes with their labels, and colours of places."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from pimflow.records import dataclass
from pimflow.report.page.markup import Markup, element, joined
from pimflow.runtime.spending import STATIC

WIDTH = 1180.0
"""The width of every chart's view box in user units; on a page of 1280 pixels, one unit is one pixel."""
_HUES = 4


@dataclass(frozen=True)
class Scale:
    """A map from values to positions along an axis.

    Args:
        low, high: values at both ends.
        start, end: their positions.
        logarithmic: whether equal factors have equal distances; `low` must then be positive.
    """

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value."""
        if self.logarithmic:
            part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return round(self.start + part * (self.end - self.start), 2)

    @property
    def ticks(self) -> list[float]:
        """Round values between the ends: powers of ten, or about six steps of 1, 2 or 5 times a power of ten."""
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            return [10.0**power for power in range(first, last + 1)]
        return steps(self.low, self.high)


def steps(low: float, high: float, about: int = 6) -> list[float]:
    """Round values between two values, in steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / about
    if rough <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def horizontal_axis(scale: Scale, y: float, title: str, top: float, text: Callable[[float], str]) -> Markup:
    """Ticks and title below a chart, and grid lines up to `top`."""
    parts = []
    for tick in scale.ticks:
        x = scale(tick)
        parts.append(element("line", x1=x, x2=x, y1=top, y2=y, class_="grid"))
        parts.append(element("text", text(tick), x=x, y=y + 16, class_="tick", text_anchor="middle"))
    middle = (scale.start + scale.end) / 2
    parts.append(element("text", title, x=middle, y=y + 34, class_="axis", text_anchor="middle"))
    return element("g", *parts, class_="xaxis")


def vertical_axis(scale: Scale, x: float, title: str, right: float, text: Callable[[float], str]) -> Markup:
    """Ticks and title left of a chart, and grid lines up to `right`."""
    parts = []
    for tick in scale.ticks:
        y = scale(tick)
        parts.append(element("line", x1=x, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(element("text", text(tick), x=x - 6, y=y + 4, class_="tick", text_anchor="end"))
    middle = (scale.start + scale.end) / 2
    turned = f"translate(14 {middle:g}) rotate(-90)"
    parts.append(element("text", title, class_="axis", text_anchor="middle", transform=turned))
    return joined(parts)


def chart(height: float, label: str, *content: str, class_: str = "") -> Markup:
    """An SVG of the page's width; `label` is read aloud by screen readers."""
    view = f"0 0 {WIDTH:g} {height:g}"
    return element("svg", *content, viewBox=view, role="img", aria_label=label, class_=f"chart {class_}".strip())


def hues(devices: Sequence[str], places: Sequence[str]) -> Mapping[str, str]:
    """The CSS class of every place's colour: one per device, the host first, one for links, one for static power."""
    found = {STATIC: "static"}
    found |= {device: f"d{min(index, _HUES - 1)}" for index, device in enumerate(devices)}
    return found | {place: "link" for place in places if place not in found}


def tick_text(value: float) -> str:
    """The text of a tick: as short as possible without losing precision."""
    return f"{value:,.10g}" if abs(value) < 1e6 else f"{value:.3g}"


def power_text(value: float) -> str:
    """The text of a tick at a power of ten."""
    return f"{value:,.10g}" if 1e-3 <= value < 1e5 else f"{value:.0e}"
