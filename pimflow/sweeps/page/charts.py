"""The charts of a sweep's page. Every mark has the number of its point, by which a script links them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from itertools import combinations

from pimflow.errors import counted
from pimflow.report.page.axes import WIDTH, Scale, chart, horizontal_axis, power_text, tick_text, vertical_axis
from pimflow.report.page.markup import Markup, element, joined, shortened
from pimflow.report.tables import significant
from pimflow.sweeps.fronts import Effect, Objective
from pimflow.sweeps.page.plotted import Dot, Plotted, axes_of, ordered

_LEFT, _TOP, _GAP = 86.0, 16.0, 26.0
_HEIGHT = 420.0
_LOG_FROM = 30.0  # ratio of the ends from which an axis is logarithmic
_MAX_CELLS = 24  # of a heat map, along one side
_SHADES = 9


def sheet() -> str:
    """The style of a sweep's charts and tables, in addition to the style of all pages."""
    return files("pimflow.sweeps.page").joinpath("page.css").read_text(encoding="utf-8")


def front_chart(points: Plotted, objectives: Sequence[Objective]) -> Markup:
    """Points over two figures, with the front connected by a line."""
    first, second = axes_of(objectives)
    at = [(dot, dot.costs[-2], dot.costs[-1]) for dot in points.dots]
    x = _scale([cost for _, cost, _ in at], _LEFT, WIDTH - 12)
    y = _scale([cost for _, _, cost in at], _HEIGHT - 56, _TOP)
    best = sorted((x(a), y(b)) for dot, a, b in at if dot.on_front)
    line = "M" + "L".join(f"{a:g} {b:g}" for a, b in best) if len(objectives) == 2 and len(best) > 1 else ""
    circles = [_circle(dot, x(a), y(b)) for dot, a, b in sorted(at, key=lambda item: item[0].on_front)]
    return chart(
        _HEIGHT,
        f"{points.title}: {second.text} over {first.text}, {len(best)} of {counted(len(at), 'point')} on the front",
        horizontal_axis(x, _HEIGHT - 56, _titled(first), _TOP, _text(x)),
        vertical_axis(y, _LEFT, _titled(second), WIDTH - 12, _text(y)),
        element("path", d=line, class_="front") if line else "",
        *circles,
        class_="scatter",
    )


def _circle(dot: Dot, x: float, y: float) -> Markup:
    name = "mark best" if dot.on_front else "mark"
    return element(
        "circle",
        element("title", dot.label),
        cx=x,
        cy=y,
        r=5.0 if dot.on_front else 3.2,
        class_=name,
        data_p=dot.number,
    )


def parallel_chart(points: Plotted, keys: Sequence[str], objectives: Sequence[Objective]) -> Markup:
    """A vertical axis for every key and objective, a line for every point."""
    keys = [key for key in keys if key not in {objective.name for objective in objectives}]
    names = [*keys, *(objective.text for objective in objectives)]
    height = 340.0
    step = (WIDTH - 160) / max(1, len(names) - 1)
    places = [70 + index * step for index in range(len(names))]
    scales: list[Scale] = []
    texts_of = {key: ordered([dot.settings[key] for dot in points.dots]) for key in keys}
    parts = []
    for index, (name, x) in enumerate(zip(names, places, strict=True)):
        if index < len(keys):
            texts = texts_of[name]
            scale = Scale(0, max(1, len(texts) - 1), height - 44, _TOP + 24)
            shown = [(float(place), text) for place, text in enumerate(texts) if _is_shown(place, len(texts))]
        else:
            scale = _scale([dot.costs[index - len(keys)] for dot in points.dots], height - 44, _TOP + 24)
            shown = [(tick, _text(scale)(tick)) for tick in scale.ticks]
        scales.append(scale)
        parts.append(element("line", x1=x, x2=x, y1=_TOP + 24, y2=height - 44, class_="rail"))
        parts += [
            element("text", shortened(text, 14), x=x - 5, y=scale(value) + 4, class_="tick", text_anchor="end")
            for value, text in shown
        ]
        parts.append(element("text", shortened(name, 26), x=x, y=height - 22, class_="axis", text_anchor="middle"))
    orders = {key: {text: place for place, text in enumerate(texts)} for key, texts in texts_of.items()}
    lines = []
    for dot in sorted(points.dots, key=lambda dot: dot.on_front):
        values = [*(float(orders[key][dot.settings[key]]) for key in keys), *dot.costs[: len(objectives)]]
        path = "L".join(f"{x:g} {scale(value):g}" for x, scale, value in zip(places, scales, values, strict=True))
        name = "mark best" if dot.on_front else "mark"
        lines.append(element("path", element("title", dot.label), d=f"M{path}", class_=name, data_p=dot.number))
    label = f"{points.title}: a line per point through {', '.join(map(shortened, names))}"
    return chart(height, label, *lines, *parts, class_="parallel")


def effects_chart(effects: Sequence[Effect]) -> Markup:
    """The effect of every key on every objective, in per cent of its smallest mean; the strongest first."""
    row, left = 24.0, 330.0
    height = row * len(effects) + 62
    most = max((100 * effect.share for effect in effects), default=1.0) or 1.0
    scale = Scale(0.0, most * 1.02, left, WIDTH - 70)
    bars = []
    for index, effect in enumerate(effects):
        y = 10 + index * row
        means = ", ".join(f"{value}: {significant(mean)}" for value, mean in effect.means.items())
        title = f"{effect.key} on {effect.objective}, means over all other settings: {means}"
        end = scale(100 * effect.share)
        name = f"{shortened(effect.key, 30)} on {effect.objective}"
        bars.append(
            element(
                "g",
                element("title", title),
                element("text", name, x=left - 8, y=y + 15, text_anchor="end"),
                element("rect", x=left, y=y + 3, width=max(1.0, end - left), height=row - 7, class_="d0"),
                element("text", f"{100 * effect.share:.1f} %", x=end + 6, y=y + 15, class_="value"),
            )
        )
    axis = horizontal_axis(scale, height - 46, "spread of the means, % of the smallest", 6, tick_text)
    return chart(height, "the effect of every key on the objectives", axis, *bars, class_="effects")


def heat_maps(points: Plotted, objective: Objective, effects: Sequence[Effect], most: int = 3) -> list[Markup]:
    """The best value of an objective over the strongest pairs of keys; `effects` are sorted by strength."""
    strongest = list(dict.fromkeys(effect.key for effect in effects if effect.objective == objective.name))
    maps = []
    for a, b in list(combinations(strongest, 2))[:most]:
        across, down = (ordered([dot.settings[key] for dot in points.dots]) for key in (a, b))
        if 1 < len(across) <= _MAX_CELLS and 1 < len(down) <= _MAX_CELLS:
            maps.append(_heat_map(points, objective, (a, across), (b, down)))
    return maps


def _heat_map(
    points: Plotted, objective: Objective, columns: tuple[str, list[str]], rows: tuple[str, list[str]]
) -> Markup:
    (a, across), (b, down) = columns, rows
    best: dict[tuple[str, str], Dot] = {}
    for dot in points.dots:
        cell = dot.settings[a], dot.settings[b]
        if cell not in best or (dot.costs[0] > best[cell].costs[0]) is objective.larger:
            best[cell] = dot
    costs = [dot.costs[0] for dot in best.values()]
    shade = Scale(min(costs), max(costs) if max(costs) > min(costs) else min(costs) + 1.0, 0, _SHADES - 1)
    left, width, row = 150.0, min(96.0, (WIDTH - 180) / len(across)), 26.0
    height = row * len(down) + 56
    cells = []
    for (x_text, y_text), dot in best.items():
        x, y = left + across.index(x_text) * width, 8 + down.index(y_text) * row
        tone = round(shade(dot.costs[0]))
        place = tone if objective.larger else _SHADES - 1 - tone
        cells.append(
            element(
                "g",
                element("title", dot.label),
                element("rect", x=x, y=y, width=width - 2, height=row - 2, class_=f"d0 h{place}"),
                element("text", significant(dot.costs[0]), x=x + width / 2 - 1, y=y + 16, class_=f"on{place // 5}"),
                class_="mark cell",
                data_p=dot.number,
            )
        )
    labels = [
        element("text", shortened(text, 12), x=left + (i + 0.5) * width - 1, y=height - 32, class_="tick mid")
        for i, text in enumerate(across)
    ]
    labels += [
        element("text", shortened(text, 14), x=left - 8, y=8 + i * row + 16, class_="tick", text_anchor="end")
        for i, text in enumerate(down)
    ]
    middle = 8 + row * len(down) / 2
    labels.append(element("text", a, x=left + len(across) * width / 2, y=height - 12, class_="axis mid"))
    turned = f"translate(14 {middle:g}) rotate(-90)"
    labels.append(element("text", shortened(b, 24), class_="axis mid", transform=turned))
    label = f"{points.title}: best {objective.text} by {a} and {b}"
    return joined([element("h4", label), chart(height, label, *cells, *labels, class_="heat")])


def _scale(values: Sequence[float], start: float, end: float) -> Scale:
    low, high = min(values), max(values)
    if low > 0 and high / low > _LOG_FROM:
        return Scale(low / 1.1, high * 1.1, start, end, logarithmic=True)
    room = 0.04 * (high - low) or 0.04 * abs(high) or 1.0
    return Scale(low - room if low <= 0 or low > room else 0.0, high + room, start, end)


def _text(scale: Scale) -> Callable[[float], str]:
    return power_text if scale.logarithmic else tick_text


def _titled(objective: Objective) -> str:
    better = "larger" if objective.larger else "smaller"
    return f"{objective.name} ({better} is better)"


def _is_shown(place: int, count: int) -> bool:
    """Whether there is room for the text of a setting among `count`."""
    return place % (-(-count // 14)) == 0
