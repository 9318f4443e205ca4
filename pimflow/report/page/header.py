"""The header of a page: model and machine, and the result in a few figures and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pimflow.errors import counted
from pimflow.report.difference import Change, Difference
from pimflow.report.page.gains import Gain
from pimflow.report.page.markup import Markup, element, joined, shortened
from pimflow.report.page.run import Run
from pimflow.report.page.waterfall import MIN_US
from pimflow.report.steady import SteadyReport
from pimflow.report.tables import energies, megabytes, number, significant
from pimflow.targets.schema.origin import spelled


def header_of_one(run: Run) -> Markup:
    """Model, machine, policy, the figures, and a sentence on where they come from."""
    return element(
        "header",
        element("p", "pimflow report", class_="kicker"),
        element("h1", shortened(run.model), " ", element("small", f"on {run.target}, policy {run.policy}")),
        element("p", shortened(dict(run.about).get("machine", ""), 300), class_="lead"),
        element("div", *_tiles(run), class_="tiles"),
        element("p", _story(run), class_="story"),
        _words(run),
        _about(run.about),
    )


def header_of_two(runs: Sequence[Run], difference: Difference) -> Markup:
    """Both models, their options, and the totals side by side."""
    first, second = runs
    differing = sum(node.differs for node in difference.nodes)
    before_us, after_us = first.report.result.time_us, second.report.result.time_us
    story = f"B is {compared(before_us, after_us)}: {significant(after_us)} us instead of "
    differ = "differs" if differing == 1 else "differ"
    story += f"{significant(before_us)} us. {differing:,} of {counted(len(difference.nodes), 'node')} {differ}"
    story += f"; {difference.renamed:,} matched by what they compute, not by name." if difference.renamed else "."
    return element(
        "header",
        element("p", "pimflow report: a difference", class_="kicker"),
        element("h1", f"A: {first.title}", class_="side"),
        element("h1", f"B: {second.title}", class_="side"),
        element("p", story, class_="story"),
        _totals(difference),
        _changes("option", difference.options),
        _changes("machine", difference.machine),
        *(
            element("details", element("summary", f"{run.label}: machine and compilation"), _fields(run.about))
            for run in runs
        ),
    )


def compared(before_us: float, after_us: float) -> str:
    """How much faster or slower than before: as a ratio if both take time."""
    if before_us == after_us:
        return "as fast"
    word, shorter_us = ("slower", before_us) if after_us > before_us else ("faster", after_us)
    return f"{max(before_us, after_us) / shorter_us:.2f}x {word}" if shorter_us else word


def _tiles(run: Run) -> Iterator[Markup]:
    result, alone = run.report.result, run.report.baseline
    energy, energy_alone = energies(result.energy_mj, alone.energy_mj)
    saved = 100 * (result.energy_mj / alone.energy_mj - 1) if alone.energy_mj else 0.0
    time, time_alone = significant(result.time_us), significant(alone.time_us)
    if run.steady is not None:
        yield _rate(run.steady)
    yield _tile("end to end", f"{run.report.speedup:.2f}x", f"{time} us; {run.host_alone} {time_alone} us")
    yield _tile("energy", f"{saved:+.0f} %", f"{energy}; {run.host_alone} {energy_alone}")
    costly = [row for row in run.report.nodes if row.time_us > 0]
    away = sum(row.leaves_host for row in costly)
    host = run.plan.host.upper()
    yield _tile(f"nodes that leave the {host}", f"{away} of {len(costly)}", "of the nodes that take time")
    memory = run.memory
    reuse = f"at the peak; {megabytes(memory.bytes_without_reuse)} without reuse"
    yield _tile("memory for activations", megabytes(memory.arena_bytes), reuse)
    verified = "passed" if run.passed else "failed"
    yield _tile(
        "same values as the original",
        verified if run.verification else "not checked",
        "; ".join(run.verification) or "to check, use pimflow report --verify",
    )


def _rate(steady: SteadyReport) -> Markup:
    """The tile of a throughput plan, because the page's charts show a single inference."""
    each = f"{number(steady.inferences_per_s, 0)} per second, one every {significant(steady.interval_us)} us"
    flying = f"{steady.in_flight} at once, {significant(steady.latency_us)} us each"
    return _tile("inferences in flight", f"{steady.speedup:.2f}x", f"{each}; {flying}. Below: a single one")


def _tile(what: str, figure: str, note: str) -> Markup:
    return element(
        "div",
        element("span", what, class_="what"),
        element("strong", figure),
        element("span", note, class_="note"),
        class_="tile",
    )


def _story(run: Run) -> str:
    """The sources of the gain or loss, in plain words."""
    kinds: dict[str, list[Gain]] = {}
    for gain in run.gains:
        if abs(gain.change_us) > MIN_US:
            kinds.setdefault(gain.kind, []).append(gain)
    if not kinds:
        return (
            f"Policy {run.policy} leaves everything on the {run.plan.host.upper()}: no decision makes the model faster."
        )
    sums = {kind: sum(gain.change_us for gain in found) for kind, found in kinds.items()}
    clauses = [
        f"{kind} ({_count(kinds[kind])}): {sums[kind]:+,.1f} us" for kind in sorted(sums, key=lambda kind: sums[kind])
    ]
    largest = max(run.gains, key=lambda gain: abs(gain.change_us))
    more = f" and {len(largest.nodes) - 1} more" if len(largest.nodes) > 1 else ""
    does = "saves" if largest.change_us < 0 else "costs"
    unknown = len(run.report.unknown)
    left = f" The cost of {counted(unknown, 'node')} is not fully known." if unknown else ""
    return (
        f"Against the {run.host_alone}: {'; '.join(clauses)}. The largest single decision, "
        f"on {shortened(largest.nodes[0], 60)}{more}, {does} {abs(largest.change_us):,.1f} us.{left}"
    )


def _count(gains: Sequence[Gain]) -> str:
    nodes = sum(len(gain.nodes) for gain in gains)
    decisions = counted(len(gains), "decision")
    return decisions if nodes == len(gains) else f"{decisions} on {counted(nodes, 'node')}"


def _words(run: Run) -> Markup:
    """A glossary of the page's terms, for readers who do not know the tool."""
    host = run.plan.host.upper()
    others = ", ".join(run.titles[device] for device in run.devices[1:])
    beside = f"; {others}, which run the nodes that they support" if others else ""
    words = [
        ("units", f"the {host}, which can run every node{beside}"),
        ("alone", f"the whole model on the {host}, with all memory channels: the baseline of all comparisons"),
        ("moved", f"a node runs on a unit other than the {host}"),
        ("split", "two units each compute a part of a node's rows, columns or edges, at the same time"),
        (
            "pipelined",
            "consecutive nodes are cut into stages: one unit computes one while another computes (part of) the next",
        ),
        ("branches at once", "nodes that do not depend on each other run on two units at the same time"),
        ("put together", "neighbours that need not all wait for each other: the units do not synchronise between them"),
        ("fused", "a node is computed while the results of another are written, and takes no time of its own"),
        ("origin", "nodes are those of the original model; the parts that they were cut into are shown together"),
    ]
    return element("details", element("summary", "glossary"), _fields(words), class_="about")


def _about(about: Sequence[tuple[str, str]]) -> Markup:
    return element(
        "details", element("summary", "machine, settings, digests, versions"), _fields(about), class_="about"
    )


def _fields(about: Iterable[tuple[str, str]]) -> Markup:
    pairs = [joined([element("dt", what), element("dd", shortened(text, 2_000))]) for what, text in about]
    return element("dl", *pairs)


def _totals(difference: Difference) -> Markup:
    units = {"time_us": "time, us", "conv_us": "convolutions, us", "energy_mj": "energy, mJ"}
    units |= {"speedup": "speedup over the host alone", "peak_bytes": "activations, peak MB"}
    before, after = difference.a.totals, difference.b.totals
    rows = []
    for key, text in units.items():
        a, b = (side[key] / 1e6 if key == "peak_bytes" else side[key] for side in (before, after))
        change = f"{100 * (b / a - 1):+.1f} %" if a else "-"
        cells = (element("td", cell, class_="number") for cell in (significant(a), significant(b), change))
        rows.append(element("tr", element("th", text, scope="row"), *cells))
    return _table(("total", "A", "B", "change"), rows)


def _changes(what: str, changes: Sequence[Change]) -> Markup:
    rows = []
    for change in changes:
        sides = ("-" if side is None else shortened(spelled(side)) for side in (change.a, change.b))
        rows.append(element("tr", element("th", change.key, scope="row"), *(element("td", side) for side in sides)))
    return _table((what, "A", "B"), rows) if rows else Markup("")


def _table(headings: Sequence[str], rows: Sequence[Markup]) -> Markup:
    head = element("tr", *(element("th", text, scope="col") for text in headings))
    return element("table", element("thead", head), element("tbody", *rows), class_="small-table")
