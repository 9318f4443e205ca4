"""The details of one node: its work, its cost, why it runs where it does, and its alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pimflow.report.difference import place_of
from pimflow.report.explanation import Alternative, Verdict, verdict_text
from pimflow.report.inspection import NodeVerdict
from pimflow.report.node_rows import NodeRow
from pimflow.report.page.markup import Markup, element, joined, shortened
from pimflow.report.page.parts import part_text
from pimflow.report.page.run import Content, Run
from pimflow.report.tables import significant
from pimflow.runtime.spending import PartsByPlace, total

MAX_NODES = 400
_MAX_PARTS = 4


def details(content: Content) -> Markup:
    """An article for each of the most expensive nodes; a script shows the one that is selected."""
    numbered = [(number, row) for number, row in enumerate(content.rows) if _cost(row)]
    kept = {number for number, _ in sorted(numbered, key=lambda item: -_cost(item[1]))[:MAX_NODES]}
    return joined(_article(content, number, row) for number, row in numbered if number in kept)


def _cost(row: Sequence[NodeRow | None]) -> float:
    return max(side.share_us for side in row if side is not None)


def _article(content: Content, number: int, row: Sequence[NodeRow | None]) -> Markup:
    first = next(side for side in row if side is not None)
    sides = []
    for run, side in zip(content.runs, row, strict=True):
        title = [element("h4", run.label)] if len(row) > 1 else []
        if side is None:
            sides.append(element("div", *title, element("p", "has no such node"), class_="side"))
        else:
            sides.append(element("div", *title, *_side(run, side), class_="side"))
    heading = joined([element("b", shortened(first.name)), f" {first.op}"])
    return element("details", element("summary", heading), *sides, id=f"detail-{number}")


def _side(run: Run, row: NodeRow) -> Iterator[Markup]:
    verdict = run.verdicts.get(row.name)
    whole = run.report.result.time_us
    share = f" ({100 * row.share_us / whole:.1f} % of the run)" if whole else ""
    facts = [
        ("runs on", place_of(row)),
        ("why", row.why or "-"),
        ("time", f"{significant(row.share_us)} us{share}"),
        ("spent on", _largest(row.spent.share_parts_us, "us", run.devices)),
        ("energy", f"{significant(row.energy_mj)} mJ"),
        ("spent on", _largest(row.spent.energy_parts_mj, "mJ", run.devices)),
        *([] if verdict is None else _work(verdict)),
        *([("not known", row.unknown)] if row.unknown else []),
        *([("movement", moved)] if (moved := _moved(run, row)) else []),
    ]
    pairs = [joined([element("dt", what), element("dd", shortened(text, 600))]) for what, text in facts]
    verdicts = (_verdict(run, row, verdict) for verdict in run.units.get(row.name, ()))
    yield element("div", element("dl", *pairs), *verdicts, class_="facts")
    alternatives = run.what_if.get(row.name, ())
    if alternatives:
        yield _table(alternatives)
    elif row.share_us:
        left = "No alternatives were priced. --what-if N prices those of the N most expensive nodes."
        yield element("p", left, class_="note")


def _verdict(run: Run, row: NodeRow, verdict: Verdict) -> Markup:
    """How a unit compares with the host for the node, and what would change that."""
    sentence, needs = verdict_text(verdict, run.plan.host, run.what_if[row.name][0].measure.time_us)
    listed = [element("ul", *(element("li", need) for need in needs))] if needs else []
    standing = [element("p", f"Its bounds there: {verdict.standing}.", class_="told")] if verdict.standing else []
    return joined([element("p", shortened(sentence, 600), class_="told"), *listed, *standing])


def _work(verdict: NodeVerdict) -> Iterator[tuple[str, str]]:
    yield "output", verdict.shape
    if verdict.macs:
        intensity = verdict.macs / verdict.bytes if verdict.bytes else 0.0
        work = f"{verdict.macs / 1e6:,.2f} MMACs, {verdict.bytes / 1024:,.1f} KiB, {intensity:,.1f} MACs per byte"
        yield "work", work
    for device, reason in verdict.reasons.items():
        if reason:
            yield f"not on {device.upper()}", reason


def _moved(run: Run, row: NodeRow) -> str:
    """The text on the movement that the node is, or that remains from dividing it."""
    kept = run.memory.kept.get(row.name)
    return "" if kept is None else f"{kept.bytes / 1024:,.1f} KiB moved: {kept.reason}"


def _largest(parts: PartsByPlace, unit: str, devices: Sequence[str]) -> str:
    amounts = [(amount, place, part) for place, inside in parts.items() for part, amount in inside.items() if amount]
    ranked = sorted(amounts, reverse=True)[:_MAX_PARTS]
    whole = total(parts)
    shares = [
        f"{part_text(place, part, devices)} {significant(amount)} {unit} ({100 * amount / whole:.0f} %)"
        for amount, place, part in ranked
    ]
    return ", ".join(shares) or "-"


def _table(alternatives: Sequence[Alternative]) -> Markup:
    """The ways to run the node, the fastest first; the plan's choice is marked."""
    ranked = sorted(alternatives, key=lambda item: item.measure.time_us)
    longest = max(item.measure.time_us for item in ranked) or 1.0
    headings = ("what if", "time alone, us", "energy, mJ", "mapping or split")
    head = element("tr", *(element("th", text) for text in headings))
    rows = []
    for item in ranked:
        bar = element("i", class_="pos alt", style=f"width:{100 * item.measure.time_us / longest:.1f}%")
        cell = joined([element("em", "chosen"), f" {item.what}"]) if item.is_chosen else item.what
        rows.append(
            element(
                "tr",
                element("td", cell),
                element(
                    "td", element("span", significant(item.measure.time_us)), element("b", bar), class_="number bar"
                ),
                element("td", significant(item.measure.energy_mj), class_="number"),
                element("td", shortened(item.arranged, 200)),
                class_="chosen" if item.is_chosen else None,
            )
        )
    return element("table", element("thead", head), element("tbody", *rows), class_="small-table what-if")
