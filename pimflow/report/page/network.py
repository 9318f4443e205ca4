"""The graph of a graph network: its statistics, and the best strategies for its aggregations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pimflow.report.network import NetworkReport
from pimflow.report.page.axes import WIDTH, Scale, chart, horizontal_axis, tick_text
from pimflow.report.page.markup import Markup, element, joined, shortened
from pimflow.report.tables import number, significant
from pimflow.report.tuning import Tuning, TuningRow

MAX_STRATEGIES = 12
_STAGES = ("load", "kernel", "retrieve", "merge")
_LEFT, _BAR, _GAP = 250.0, 20.0, 6.0


def network_panel(report: NetworkReport) -> Iterator[Markup]:
    """The graph and its statistics."""
    found = ", ".join(f"{count} {kind}" for kind, count in report.recovered.items()) or "no aggregation"
    yield element("p", f"{report.network.text}; recovered: {found}")
    pairs = [
        joined([element("dt", name.replace("_", " ")), element("dd", f"{value:,.6g}")])
        for name, value in report.statistics.items()
    ]
    yield element("dl", *pairs, class_="statistics")
    if report.times_us is not None:
        now, exported = report.times_us
        total = f"All aggregations take {number(now)} us on the host, {number(exported)} us in the exported form."
        yield element("p", total)


def ranking(features: int, tuning: Tuning) -> Iterator[Markup]:
    """The strategies for aggregations of `features` features, the best first, and why it is the best."""
    yield element("h3", f"strategies for {features:,} features, {tuning.asked.element}")
    rows = tuning.rows[:MAX_STRATEGIES]
    if not rows:
        yield element("p", tuning.why)
        return
    yield element("p", f"Best: {tuning.best}: {tuning.why}.")
    yield _bars(rows)
    left = len(tuning.rows) - len(rows)
    if left:
        yield element("p", f"{left:,} slower strategies are not shown.", class_="note")


def _bars(rows: Sequence[TuningRow]) -> Markup:
    scale = Scale(0.0, max(row.total_us for row in rows) / 1e3 or 1.0, _LEFT, WIDTH - 190)
    bottom = len(rows) * (_BAR + _GAP)
    marks = [mark for index, row in enumerate(rows) for mark in _row(row, index * (_BAR + _GAP), scale)]
    axis = horizontal_axis(scale, bottom, "time, ms", 0.0, tick_text)
    swatches = [
        element("span", element("span", class_=f"swatch d{index}"), stage) for index, stage in enumerate(_STAGES)
    ]
    legend = element("p", *swatches, class_="legend")
    best = f"{rows[0].strategy} {rows[0].total_us / 1e3:,.2f} ms"
    return joined([legend, chart(bottom + 42, f"strategies by time; best: {best}", axis, *marks, class_="parts")])


def _row(row: TuningRow, y: float, scale: Scale) -> Iterator[Markup]:
    yield element("text", shortened(row.strategy, 38), x=0, y=y + 14, class_="name")
    start = 0.0
    for index, stage in enumerate(_STAGES):
        time = getattr(row, f"{stage}_us") / 1e3
        left, right = scale(start), scale(start + time)
        title = element("title", f"{row.strategy}: {stage} {significant(time)} ms")
        yield element("rect", title, x=left, y=y, width=round(right - left, 2), height=_BAR, class_=f"d{index}")
        start += time
    text = f"{significant(row.total_us / 1e3)} ms{'' if row.exact else ', predicted'}"
    yield element("text", text, x=scale(start) + 6, y=y + 14, class_="value")
