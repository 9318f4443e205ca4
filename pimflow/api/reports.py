"""A compiled model, or two beside each other, as one HTML page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pimflow.api.outputs import diff, opened_model, original_graph
from pimflow.bundle.files import a_path, write_whole
from pimflow.compiled import CompiledModel
from pimflow.errors import one_line
from pimflow.options import read_argument
from pimflow.report.chrome_trace import slice_facts
from pimflow.report.inspection import inspect_graph
from pimflow.report.network import NetworkReport
from pimflow.report.page.page import page
from pimflow.report.page.run import Content, Run
from pimflow.search.progress import telling


@dataclass(frozen=True)
class HtmlReport:
    """One HTML page that needs nothing but a browser.

    Args:
        title: what it is about.
        html: the page.
    """

    title: str
    html: str = field(repr=False)

    def __repr__(self) -> str:
        return one_line("HtmlReport", f"{self.title}, {len(self.html) / 1e3:,.0f} kB")

    def save(self, path: str | Path) -> Path:
        """Writes the page, whole or not at all.

        Raises:
            OutputError: the file exists, or cannot be written.
        """
        path = a_path(path, "path")
        write_whole(path, self.html.encode())
        return path


def html_report(
    compiled: str | Path | CompiledModel,
    other: str | Path | CompiledModel | None = None,
    *,
    verify: bool = False,
    progress: Callable[[str], None] | None = None,
) -> HtmlReport:
    """What ran where, how much faster and why, as one HTML page; of two compiled models, their difference.

    (`pimflow.report` is a package, so that the function of the verb `report` is called otherwise.)

    Args:
        compiled: an output folder, or a compiled model.
        other: another, to be shown beside it.
        verify: run original and compiled model and say on the page whether their values agree.
        progress: receives a line of text now and then.

    Raises:
        ArgumentError: one of the two is neither.
        ModelError: a folder is not an output, or is damaged.
    """
    content = content_of(compiled, other, verify=verify, progress=progress)
    return HtmlReport(content.title, page(content))


def content_of(
    compiled: str | Path | CompiledModel,
    other: str | Path | CompiledModel | None = None,
    *,
    verify: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Content:
    """What the page of `html_report` is made from."""
    verify = read_argument("verify", bool, verify)
    tell = telling(progress)
    first = opened_model("compiled", compiled)
    if other is None:
        return Content((_run("this plan", first, verify, tell),))
    second = opened_model("other", other)
    names = ("" if side is given else f"{given}: " for side, given in ((first, compiled), (second, other)))
    runs = tuple(
        _run(label, side, verify, tell, name) for label, side, name in zip("AB", (first, second), names, strict=True)
    )
    return Content(runs, diff(first, second))


def _run(label: str, compiled: CompiledModel, verify: bool, tell: Callable[[str], None], name: str = "") -> Run:
    machine = compiled.machine
    costs = machine.costs
    tell("reading the original")
    graph = original_graph(compiled)
    serving = costs.serving(compiled.graph)
    inspection = inspect_graph(graph, costs, compiled.source.text, compiled.source.sha256)
    facts = slice_facts(compiled.graph, compiled.report, serving)
    network = None if compiled.network is None else NetworkReport.of(compiled.network, graph, costs)
    checked, passed = _verified(compiled, tell) if verify else ("", False)
    return Run(
        label=label,
        model=f"{name}{compiled.source.text}",
        target=machine.target.name,
        policy=compiled.plan.policy,
        about=compiled.about,
        titles=costs.titles,
        plan=compiled.plan,
        graph=compiled.graph,
        report=compiled.report,
        timeline=compiled.timeline,
        memory=compiled.memory,
        verdicts={verdict.name: verdict for verdict in inspection.nodes},
        roofs=inspection.roofs,
        lanes={name: told.lanes for name, told in facts.items() if told.lanes},
        verification=checked,
        passed=passed,
        network=network,
    )


def _verified(compiled: CompiledModel, tell: Callable[[str], None]) -> tuple[str, bool]:
    found = compiled.verify(progress=tell)
    outputs = f"{len(found.outputs)} output{'s' if len(found.outputs) != 1 else ''}"
    return f"{outputs}, largest relative error {found.max_rel_err:.1e} of {found.rtol:.1e} allowed", found.passed
