"""Breakdowns of time and energy: a segmented bar for every run, and a table of the same numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pimflow.records import dataclass
from pimflow.report.page.axes import WIDTH, Scale, chart, horizontal_axis, hues, tick_text
from pimflow.report.page.markup import Markup, element
from pimflow.report.tables import significant
from pimflow.runtime.spending import BOARD, PartsByPlace, total

_LEFT, _BAR, _GAP, _TOP = 150.0, 34.0, 12.0, 6.0
_SHADES = 5
_LETTER = 6.6


@dataclass(frozen=True)
class Bar:
    """One run.

    Args:
        label: its name.
        parts: its breakdown.
        key: identifies the nodes' shares in it, for the script.
    """

    label: str
    parts: PartsByPlace
    key: str = ""


def parts_chart(what: str, unit: str, bars: Sequence[Bar], devices: Sequence[str]) -> Markup:
    """Stacked bars on one scale.

    Args:
        what: the quantity, such as "time".
        unit: of the amounts.
        bars: one per run.
        devices: of the machine, the host first.
    """
    high = max((total(bar.parts) for bar in bars), default=0.0) or 1.0
    scale = Scale(0.0, high, _LEFT, WIDTH - 90)
    keys = list(_keys(bars))
    hue = hues(devices, [place for place, _ in keys])
    shade = _shades(keys)
    bottom = _TOP + len(bars) * (_BAR + _GAP)
    rows: list[Markup] = []
    for index, bar in enumerate(bars):
        rows += _row(bar, _TOP + index * (_BAR + _GAP), unit, scale, devices, hue, shade)
    axis = horizontal_axis(scale, bottom, f"{what}, {unit}", _TOP, tick_text)
    label = "; ".join(f"{bar.label}: {significant(total(bar.parts))} {unit}" for bar in bars)
    return chart(bottom + 42, f"{what} by part: {label}", axis, *rows, class_="parts")


def parts_table(unit: str, bars: Sequence[Bar], devices: Sequence[str]) -> Markup:
    """A row per part, and the total."""
    keys = list(_keys(bars))
    hue, shade = hues(devices, [place for place, _ in keys]), _shades(keys)
    head = element("tr", *(element("th", text) for text in ("part", *(f"{bar.label}, {unit}" for bar in bars))))
    rows = []
    for place, part in keys:
        amounts = [bar.parts.get(place, {}).get(part, 0.0) for bar in bars]
        swatch = element("span", class_=f"swatch {hue[place]} s{shade[place, part]}")
        cells = [element("td", significant(amount) if amount else "-", class_="number") for amount in amounts]
        rows.append(element("tr", element("td", swatch, part_text(place, part, devices)), *cells))
    sums = [element("td", significant(total(bar.parts)), class_="number") for bar in bars]
    rows.append(element("tr", element("td", "total"), *sums, class_="sum"))
    return element("table", element("thead", head), element("tbody", *rows), class_="small-table")


def _keys(bars: Sequence[Bar]) -> Iterator[tuple[str, str]]:
    """Places and parts with a cost in any run, in order."""
    for place in dict.fromkeys(place for bar in bars for place in bar.parts):
        for part in dict.fromkeys(part for bar in bars for part in bar.parts.get(place, {})):
            if any(bar.parts.get(place, {}).get(part) for bar in bars):
                yield place, part


def _shades(keys: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], int]:
    """Shades for the parts of each place, from dark to light."""
    seen: dict[str, int] = {}
    found = {}
    for place, part in keys:
        found[place, part] = min(seen.get(place, 0), _SHADES - 1)
        seen[place] = seen.get(place, 0) + 1
    return found


def _row(
    bar: Bar,
    y: float,
    unit: str,
    scale: Scale,
    devices: Sequence[str],
    hue: Mapping[str, str],
    shade: Mapping[tuple[str, str], int],
) -> Iterator[Markup]:
    whole, start = total(bar.parts), 0.0
    yield element("text", bar.label, x=0, y=y + _BAR / 2 + 4, class_="name")
    for (place, part), place_shade in shade.items():
        amount = bar.parts.get(place, {}).get(part, 0.0)
        if not amount:
            continue
        left, right = scale(start), scale(start + amount)
        what = part_text(place, part, devices)
        tooltip = f"{bar.label}: {what}: {significant(amount)} {unit}, {100 * amount / whole:.1f} %"
        box = element("rect", x=left, y=y, width=right - left, height=_BAR, class_=f"{hue[place]} s{place_shade}")
        fits = _LETTER * len(what) < right - left - 8
        text = (
            element("text", what, x=left + 5, y=y + _BAR / 2 + 4, class_=f"on t{place_shade} {hue[place]}")
            if fits
            else ""
        )
        yield element("g", element("title", tooltip), box, text)
        start += amount
    yield element("text", f"{significant(whole)} {unit}", x=scale(whole) + 6, y=y + _BAR / 2 + 4, class_="value")
    full = round(scale(whole) - _LEFT, 2)
    if bar.key:
        place_below = {"x": _LEFT, "y": y + _BAR + 1, "width": 0, "height": 4}
        yield element("rect", **place_below, class_="of-node", data_full=full, data_key=bar.key)


def part_text(place: str, part: str, devices: Sequence[str]) -> str:
    """The name of a part for readers: devices in capitals."""
    where = place.upper() if place in devices else place
    return f"{where} power" if part == BOARD else f"{where} {part.replace('_', ' ')}"
