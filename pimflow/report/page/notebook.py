"""The charts of pages in a notebook, where no script runs."""

from __future__ import annotations

from collections.abc import Sequence

from pimflow.report.page.gantt import Schedule, gantt
from pimflow.report.page.markup import Markup, asset, element
from pimflow.report.page.parts import Bar, parts_chart
from pimflow.report.plan_report import PlanReport

MAX_EVENTS = 500
_STYLE = "max-width:1180px;--ink:currentColor;--soft:currentColor;--paper:transparent"


def notebook_charts(schedule: Schedule, report: PlanReport, policy: str) -> Markup:
    """When units are busy, and a breakdown of time and energy next to the host alone; `policy` names the plan."""
    devices = tuple(schedule.titles)
    ends = ((f"{devices[0].upper()} alone", report.baseline.spent), (policy, report.result.spent))
    time = [Bar(label, spent.share_parts_us) for label, spent in ends]
    energy = [Bar(label, spent.energy_parts_mj) for label, spent in ends]
    return in_notebook(gantt(schedule), *spent_charts(time, energy, devices))


def spent_charts(time: Sequence[Bar], energy: Sequence[Bar], devices: Sequence[str]) -> tuple[Markup, Markup]:
    """Breakdowns of time and energy, one bar per run."""
    return parts_chart("time", "us", time, devices), parts_chart("energy", "mJ", energy, devices)


def in_notebook(*charts: Markup, style: str = "") -> Markup:
    """Charts with the style sheet that they need, plus `style`."""
    return element("div", element("style", Markup(asset("charts.css") + style)), *charts, style=_STYLE)
