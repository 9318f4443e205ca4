"""The page of a sweep: the best points, the effect of every key, and every point."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from pimflow.errors import counted
from pimflow.options import cli_words
from pimflow.report.page.document import html_document
from pimflow.report.page.markup import Markup, element, joined, shortened
from pimflow.report.tables import number, significant
from pimflow.sweeps.fronts import figure_text
from pimflow.sweeps.page.charts import effects_chart, front_chart, heat_maps, parallel_chart, sheet
from pimflow.sweeps.page.plotted import Plotted
from pimflow.sweeps.result import PointResult, SweepResult

MAX_ROWS = 3_000
_MAX_EFFECTS = 16
_FRONTS = (
    "Every circle is a machine under a policy; those in colour are on the front: nothing else is at least as good in "
    "all objectives and better in one. A click selects a point in all panels."
)
_PARALLEL = "A line per point, from its settings to its objectives; those on the front are highlighted."
_EFFECTS = "How much the mean of an objective changes with one key, over all values of the others."
_POINTS = "Headings sort the table; a click or Enter selects a row. Links open the reports."


def sweep_page(result: SweepResult, reports: Mapping[str, str]) -> str:
    """The page as text: the same result gives the same bytes.

    Args:
        result: the result of the sweep.
        reports: by key of a point, the path of its report relative to the page.
    """
    script = files("pimflow.sweeps.page").joinpath("page.js").read_text(encoding="utf-8")
    body = (
        _header(result),
        element("main", *_sections(result, reports)),
        element("aside", id="inspector", hidden=True, aria_live="polite"),
        element("div", id="tip", hidden=True, role="tooltip"),
    )
    return html_document(f"{shortened(result.title)} - pimflow sweep", body, style=sheet(), script=script)


def _header(result: SweepResult) -> Markup:
    models = ", ".join(map(shortened, result.study.models))
    targets = ", ".join(map(shortened, result.study.targets))
    ok, total = result.count("ok"), len(result.found)
    best = len({index for one in result.fronts for index in one.points})
    tiles = [
        _tile("points", f"{ok:,}", f"of {total:,}; the others are invalid or failed" if ok < total else "all valid"),
        _tile("on the fronts", f"{best:,}", f"by {', '.join(result.study.objectives)}"),
    ]
    if ok:
        fastest = max((at for at in result.found if at.is_ok), key=lambda at: at.outcome.figures["speedup"])
        speedup = fastest.outcome.figures["speedup"]
        tiles.append(_tile("largest speedup", f"{speedup:.2f}x", f"{_point_text(fastest)}, over the host alone"))
    return element(
        "header",
        element("p", "pimflow sweep", class_="kicker"),
        element("h1", shortened(models, 300), " ", element("small", f"on {shortened(targets, 200)}")),
        element("div", *tiles, class_="tiles"),
        element("p", _story(result), class_="story"),
    )


def _tile(what: str, figure: str, note: str) -> Markup:
    texts = element("span", what, class_="what"), element("strong", figure), element("span", note, class_="note")
    return element("div", *texts, class_="tile")


def _story(result: SweepResult) -> str:
    """The best points by each objective alone, and the key with the largest effect, in words."""
    sentences = []
    for objective in result.objectives:
        at = [found for found in result.found if found.is_ok]
        if not at or not objective.is_figure:
            continue
        pick = max if objective.larger else min
        best = pick(at, key=lambda found: objective.value(found.outcome))
        sentences.append(f"Best {objective.name}: {significant(objective.value(best.outcome))} by {_point_text(best)}.")
    if result.effects:
        first = result.effects[0]
        share = number(100 * first.share)
        sentences.append(
            f"The most influential key is {first.key}: it changes {first.objective} by {share} % on average."
        )
    return " ".join(sentences) or "No point is ok; the table says why."


def _point_text(found: PointResult) -> str:
    point = found.point
    values = ", ".join(f"{key} {value}" for key, value in point.values.items())
    return shortened(f"{point.policy}{f' with {values}' if values else ''} ({point.model})", 160)


def _sections(result: SweepResult, reports: Mapping[str, str]) -> Iterator[Markup]:
    places = result.plotted
    if places:
        yield _section("fronts", "Which points are best", _FRONTS, *_fronts(places, result))
        yield _section("parallel", "From settings to objectives", _PARALLEL, *_parallels(places, result))
    if result.effects:
        shown = result.effects[:_MAX_EFFECTS]
        maps = [chart for place in places for chart in heat_maps(place, result.objectives[0], result.effects)]
        yield _section("effects", "What each key does", _EFFECTS, effects_chart(shown), *maps)
    yield _section("points", "Every point", _POINTS, *_table(result, reports))


def _section(name: str, title: str, lead: str, *content: str) -> Markup:
    return element("section", element("h2", title), element("p", lead, class_="lead"), *content, id=name)


def _fronts(places: Sequence[Plotted], result: SweepResult) -> Iterator[Markup]:
    for place in places:
        yield element("h3", shortened(place.title))
        yield front_chart(place, result.objectives)
        if place.left_out:
            yield element("p", f"left out here: {counted(place.left_out, 'point')} behind the front.", class_="note")


def _parallels(places: Sequence[Plotted], result: SweepResult) -> Iterator[Markup]:
    for place in places:
        if result.varied:
            yield element("h3", shortened(place.title))
            yield parallel_chart(place, result.varied, result.objectives)


def _table(result: SweepResult, reports: Mapping[str, str]) -> Iterator[Markup]:
    best = {index for one in result.fronts for index in one.points}
    order = sorted(
        range(len(result.found)), key=lambda index: (index not in best, not result.found[index].is_ok, index)
    )
    kept = order[:MAX_ROWS]
    figures = list(dict.fromkeys([*(o.name for o in result.objectives), "time_us", "energy_mj", "speedup"]))
    keys = [key for key in result.varied if key not in figures]
    headings = ["#", "model", *keys, *figures, "status"]
    first = 2 + len(keys)
    head = [
        element("th", element("button", text, type="button"), scope="col", class_=_numeric(at, first, len(figures)))
        for at, text in enumerate(headings)
    ]
    search = element("input", type="search", id="search", placeholder="filter points", aria_label="filter points")
    yield element("div", search, element("output", id="counted"), class_="controls")
    rows = [_line(result, index, keys, figures, index in best, reports) for index in kept]
    table = element("table", element("thead", element("tr", *head)), element("tbody", *rows), id="points-table")
    yield element("div", table, class_="scroll")
    if len(order) > len(kept):
        yield element("p", f"in points.csv: {counted(len(order) - len(kept), 'more point')}.", class_="note")


def _numeric(at: int, first: int, count: int) -> str | None:
    return "number" if at == 0 or first <= at < first + count else None


def _line(
    result: SweepResult, index: int, keys: list[str], figures: list[str], on_front: bool, reports: Mapping[str, str]
) -> Markup:
    found = result.found[index]
    values = {**found.outcome.figures, **found.outcome.machine}
    numbers = [
        element("td", figure_text(values[name]) if name in values else "-", class_="number", data_v=values.get(name))
        for name in figures
    ]
    outcome = found.outcome
    state = "on the front" if on_front else "ok" if found.is_ok else f"{outcome.status}: {outcome.reason}"
    report = reports.get(outcome.key)
    link = joined([" ", element("a", "report", href=report)]) if report else ""
    name = shortened(f"{found.point.model} on {found.point.graph}" if found.point.graph else found.point.model)
    return element(
        "tr",
        element("td", str(index), class_="number dim"),
        element("th", name, scope="row"),
        *(element("td", shortened(result.setting(index, key))) for key in keys),
        *numbers,
        element("td", shortened(state, 300), link),
        class_="mark best" if on_front else "mark",
        data_p=index,
        tabindex=0,
        data_command=_command(found, result.study.options),
    )


def _command(found: PointResult, options: Mapping[str, Any]) -> str:
    """The command that compiles the point."""
    point = found.point
    where = {"policy": point.policy, "target": point.target, **({"graph": point.graph} if point.graph else {})}
    changes = [word for key, value in point.values.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    return shlex.join(["pimflow", "compile", point.model, *cli_words(where), *changes, *cli_words(options)])
