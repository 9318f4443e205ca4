"""One HTML page for one or two runs: no other files, no network, and most of it works without a script too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pimflow.errors import counted
from pimflow.report.difference import Difference, notes_of, place_of
from pimflow.report.measures import Measure
from pimflow.report.node_rows import NodeRow
from pimflow.report.page.details import details
from pimflow.report.page.document import html_document
from pimflow.report.page.gantt import gantt, schedule_data
from pimflow.report.page.header import header_of_one, header_of_two
from pimflow.report.page.markup import Markup, asset, element, joined, shortened
from pimflow.report.page.memory import memory_chart, movements
from pimflow.report.page.network import network_panel, ranking
from pimflow.report.page.node_table import TableRow, amount, change, node_table
from pimflow.report.page.parts import Bar, parts_chart, parts_table
from pimflow.report.page.roofline import Point, roofline
from pimflow.report.page.run import Content, Run
from pimflow.report.page.waterfall import MIN_US, Step, grouped_steps, waterfall
from pimflow.runtime.spending import PartsByPlace


def page(content: Content) -> str:
    """The page as text: the same content gives the same bytes."""
    schedules = [run.schedule(numbers) for run, numbers in zip(content.runs, content.numbers, strict=True)]
    data = {"runs": [schedule_data(schedule) for schedule in schedules], "shares": _shares(content)}
    body = (
        _header(content),
        element("main", *_sections(content)),
        element("aside", id="inspector", hidden=True, aria_live="polite"),
        element("div", id="tip", hidden=True, role="tooltip"),
    )
    return html_document(f"{shortened(content.title)} - pimflow report", body, script=asset("page.js"), data=data)


def _header(content: Content) -> Markup:
    if content.difference is None:
        return header_of_one(content.runs[0])
    return header_of_two(content.runs, content.difference)


def _sections(content: Content) -> Iterator[Markup]:
    yield _section("gains", "Where the time goes", _GAINS[len(content.runs) - 1], _waterfall(content))
    yield _section("schedule", "What runs when", _SCHEDULE, *_schedules(content))
    yield _section("nodes", "Every node", _NODES, _table(content))
    yield _section("parts", "Where time and energy go", _PARTS, *_spent(content))
    yield _section("roofline", "What bounds every node", _ROOFLINE, *_rooflines(content))
    yield _section("memory", "Memory over time", _MEMORY, *_memory(content))
    for run in content.runs:
        if run.network is not None:
            label = f" of {run.label}" if len(content.runs) > 1 else ""
            panels = [part for features, tuning in run.tunings.items() for part in ranking(features, tuning)]
            yield _section(f"graph-{run.label}", f"The graph{label}", _NETWORK, *network_panel(run.network), *panels)
    yield _section("details", "Node by node", _DETAILS, *_priced(content), details(content), class_="store")


_GAINS = (
    "From the host alone to the plan: every column is the change due to one decision, and all of them add up.",
    "From A to B, node by node: every column is the change of one node's share of the run, and all of them add up.",
)
_SCHEDULE = (
    "One track per unit and link, one bar per kernel or copy. Drag over an interval to select what runs in it. "
    "On the keyboard, + and - zoom, the arrows pan, and 0 shows everything."
)
_NODES = (
    "Times are shares of the run and add up to it. Click a heading to sort, and a row (or press Enter) to select it."
)
_PARTS = "Where n kernels overlap, each counts 1/n of the time, so that the parts add up to the run."
_ROOFLINE = (
    "The roof of a unit is its peak performance: left of the bend memory is the limit, right of it the multipliers. "
    "Kernels that execute fewer multiplications than counted (Winograd's) exceed it. PIM's roof bends far to the left, "
    "because it reads inside the memory."
)
_MEMORY = "Live bytes in the arena of activations, step by step. Data movements that need no copy cost nothing."
_NETWORK = "What the prices of aggregations depend on, and the ways to divide one among the cores of the modules."
_DETAILS = "The cost of each node, why it runs where it does, and its alternatives, each priced in isolation."


def _section(name: str, title: str, lead: str, *content: str, class_: str | None = None) -> Markup:
    heading = element("h2", title)
    return element("section", heading, element("p", lead, class_="lead"), *content, id=name, class_=class_)


def _waterfall(content: Content) -> Markup:
    if content.difference is not None:
        return content.difference.waterfall()
    (run,), (numbers,) = content.runs, content.numbers
    steps = [
        Step(gain.kind, _called(gain.nodes), gain.change_us, tuple(numbers[name] for name in gain.nodes))
        for gain in run.gains
    ]
    if all(abs(step.change_us) < MIN_US for step in steps):
        note = f"With policy {run.policy} everything runs on the {run.host_alone}: no decision changes its time."
        return element("p", note)
    ends = (run.host_alone, run.report.baseline.time_us), (run.policy, run.report.result.time_us)
    return waterfall(ends[0], grouped_steps(steps), ends[1])


def _called(nodes: tuple[str, ...]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"


def _schedules(content: Content) -> Iterator[Markup]:
    end = max(run.timeline.makespan_us for run in content.runs)
    actions = {"in": "zoom in", "out": "zoom out", "fit": "whole run", "brush": "zoom to selection"}
    buttons = [element("button", text, type="button", data_zoom=action) for action, text in actions.items()]
    yield element("div", *buttons, element("output", id="brushed"), class_="controls needs-script")
    for side, (run, numbers) in enumerate(zip(content.runs, content.numbers, strict=True)):
        schedule = run.schedule(numbers)
        if len(content.runs) > 1:
            yield element("h3", run.label)
        yield gantt(schedule, side, end)
        if schedule.left_out:
            yield element("p", f"{schedule.left_out:,} later events are left out.", class_="note")


def _table(content: Content) -> Markup:
    labels: dict[str, str] = {}
    for run in content.runs:
        labels |= {device: device.upper() for device in run.devices}
    if content.difference is not None:
        return _table_of_two(content, content.difference, labels)
    run = content.runs[0]
    longest = max((row.share_us for row in run.report.nodes), default=0.0)
    most = max((row.energy_mj for row in run.report.nodes), default=0.0)
    alone = {name: verdict.times_us[run.plan.host] or 0.0 for name, verdict in run.verdicts.items()}
    whole = run.report.result.time_us or 1.0
    rows = [
        TableRow(
            number,
            row.name,
            row.op,
            (_place(run, row),),
            _devices(run, row),
            (
                amount(row.share_us, longest),
                amount(100 * row.share_us / whole, 0.0, 1),
                amount(alone[row.name], 0.0),
                amount(row.energy_mj, most),
            ),
            row.why,
            row.time_us > 0,
            _hue(run, row),
        )
        for number, row in enumerate(run.report.nodes)
    ]
    columns = ("time, us", "% of the run", f"{run.host_alone}, us", "energy, mJ")
    return node_table(("runs on",), columns, rows, labels, "why")


def _table_of_two(content: Content, difference: Difference, labels: dict[str, str]) -> Markup:
    most_us = max((abs(node.change_us) for node in difference.nodes), default=0.0)
    most_mj = max((abs(node.change_mj) for node in difference.nodes), default=0.0)
    rows = []
    for number, node in enumerate(difference.nodes):
        sides = tuple(zip(content.runs, (node.a, node.b), strict=True))
        there = [(run, row) for run, row in sides if row is not None]
        cells = [amount(0.0 if row is None else row.share_us, 0.0) for _, row in sides]
        rows.append(
            TableRow(
                number,
                node.row.name,
                node.row.op,
                tuple(((), "-") if row is None else _place(run, row) for run, row in sides),
                tuple(dict.fromkeys(device for run, row in there for device in _devices(run, row))),
                (change(node.change_us, most_us), *cells, change(node.change_mj, most_mj)),
                "; ".join(notes_of(node)),
                any(row.time_us > 0 for _, row in there),
                _hue(*there[-1]),
            )
        )
    columns = ("change, us", "A, us", "B, us", "change, mJ")
    return node_table(("A runs on", "B runs on"), columns, rows, labels, "what else")


def _devices(run: Run, row: NodeRow) -> tuple[str, ...]:
    """The devices that run any part of it; for nodes that cost nothing, the one that would."""
    busy = tuple(device for device in run.devices if row.busy_us.get(device))
    return busy or (row.mode if row.mode in run.titles else run.plan.host,)


def _place(run: Run, row: NodeRow) -> tuple[Sequence[str], str]:
    return [f"d{min(run.devices.index(device), 3)}" for device in _devices(run, row)], place_of(row)


def _hue(run: Run, row: NodeRow) -> str:
    """The colour of the device that does most of its work."""
    devices = _devices(run, row)
    most = max(devices, key=lambda device: row.busy_us.get(device, 0.0))
    return f"d{min(run.devices.index(most), 3)}"


def _spent(content: Content) -> Iterator[Markup]:
    devices = tuple(dict.fromkeys(device for run in content.runs for device in run.devices))
    measures: list[tuple[str, str, Measure]] = []
    for side, run in enumerate(content.runs):
        prefix = f"{run.label}, " if len(content.runs) > 1 else ""
        if not side or run.report.baseline != content.runs[0].report.baseline:
            measures.append((f"{prefix}{run.host_alone}", f"alone{side}", run.report.baseline))
        measures.append((f"{prefix}{run.policy}", f"run{side}", run.report.result))
    for what, unit in (("time", "us"), ("energy", "mJ")):
        bars = [Bar(label, _parts(found, what), f"{key} {what}") for label, key, found in measures]
        table = element("details", element("summary", f"{what} in figures"), parts_table(unit, bars, devices))
        yield element("h3", f"{what}, {unit}")
        yield joined([parts_chart(what, unit, bars, devices), table])


def _priced(content: Content) -> Iterator[Markup]:
    """For which nodes no alternatives were priced, and their share of the run."""
    for run in content.runs:
        left = [row for row in run.report.nodes if row.share_us and row.name not in run.what_if]
        if left:
            share = 100 * sum(row.share_us for row in left) / (run.report.result.time_us or 1.0)
            nodes = counted(len(left), "node")
            note = f"No alternatives were priced for {nodes}, {share:.1f} % of the run (--what-if N prices N)."
            yield element("p", note, class_="note")


def _rooflines(content: Content) -> Iterator[Markup]:
    for side, (run, numbers) in enumerate(zip(content.runs, content.numbers, strict=True)):
        if len(content.runs) > 1:
            yield element("h3", run.label)
        points = []
        for row in (row[side] for row in content.rows):
            verdict = None if row is None else run.verdicts[row.name]
            if row is None or verdict is None or not verdict.macs * verdict.bytes * row.time_us:
                continue
            alone_us = verdict.times_us[run.plan.host] or row.time_us
            rates = verdict.macs / row.time_us, verdict.macs / alone_us
            intensity = verdict.macs / verdict.bytes
            points.append(Point(numbers[row.name], row.name, _hue(run, row), intensity, *rates))
        yield roofline(run.ceilings, points)


def _memory(content: Content) -> Iterator[Markup]:
    usages = [run.usage(numbers) for run, numbers in zip(content.runs, content.numbers, strict=True)]
    yield memory_chart(usages)
    for usage in usages:
        if len(usages) > 1:
            yield element("h3", usage.label)
        yield movements(usage)


def _parts(found: Measure, what: str) -> PartsByPlace:
    return found.spent.share_parts_us if what == "time" else found.spent.energy_parts_mj


def _shares(content: Content) -> dict[str, list[float]]:
    """Each node's share of the bars of parts; for the host alone the energy of single nodes is not available."""
    shares: dict[str, list[float]] = {}
    for side, run in enumerate(content.runs):
        rows = [row[side] for row in content.rows]
        host_us = {name: verdict.times_us[run.plan.host] or 0.0 for name, verdict in run.verdicts.items()}
        result, alone = run.report.result, run.report.baseline
        shares[f"run{side} time"] = [_share(row.share_us if row else 0.0, result.time_us) for row in rows]
        shares[f"run{side} energy"] = [_share(row.energy_mj if row else 0.0, result.energy_mj) for row in rows]
        shares[f"alone{side} time"] = [_share(host_us[row.name] if row else 0.0, alone.time_us) for row in rows]
    return shares


def _share(amount: float, whole: float) -> float:
    return round(amount / whole, 5) if whole else 0.0
