"""An HTML page of a compiled model, or of two side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Annotated

from pimflow.api.outputs import diff, opened_model, original_graph
from pimflow.bundle.files import path_argument, write_new_file
from pimflow.compiled import CompiledModel
from pimflow.data import Limits, read_argument
from pimflow.errors import one_line
from pimflow.gnn import tune
from pimflow.ir import Graph, Spmm
from pimflow.records import dataclass
from pimflow.report.chrome_trace import slice_facts
from pimflow.report.explaining import compare_units, price_nodes
from pimflow.report.inspection import inspect_graph
from pimflow.report.network import NetworkReport
from pimflow.report.page.page import page
from pimflow.report.page.roofline import Ceiling
from pimflow.report.page.run import Content, Run
from pimflow.report.tuning import Tuning
from pimflow.runtime.costs import CostModel
from pimflow.search.progress import receiver_of
from pimflow.search.solver import learning
from pimflow.sparse import Graph as Adjacency
from pimflow.targets.schema.upmem import UpmemSpec

WHAT_IF = 400
"""The default number of nodes to price alternatives for: the number that a page shows in detail."""
MAX_BREAK_EVENS = 100
"""The maximum number of kinds of work, among those where a unit is slower, to find the break-even for. Each takes
tenths of a second."""


@dataclass(frozen=True)
class HtmlReport:
    """A self-contained HTML page.

    Args:
        title: its title.
        html: the page.
    """

    title: str
    html: str = field(repr=False)

    def __repr__(self) -> str:
        return one_line("HtmlReport", f"{self.title}, {len(self.html) / 1e3:,.0f} kB")

    def save(self, path: str | Path) -> Path:
        """Writes the page to a file, whole or not at all.

        Raises:
            OutputError: the file exists, or cannot be written.
        """
        path = path_argument(path, "path")
        write_new_file(path, self.html.encode())
        return path


def html_report(
    compiled: str | Path | CompiledModel,
    other: str | Path | CompiledModel | None = None,
    *,
    verify: bool = False,
    what_if: int = WHAT_IF,
    progress: Callable[[str], None] | None = None,
) -> HtmlReport:
    """Makes an HTML page of what runs where, how much faster that is and why, or of how two compiled models differ.

    (`pimflow.report` is a package, so the function for the verb `report` has another name.)

    Args:
        compiled: an output folder, or a compiled model.
        other: another one to compare it with.
        verify: run the original and the compiled model, and show on the page whether their values agree.
        what_if: number of nodes to price alternatives for, longest first (of each model).
        progress: called with a line of text from time to time.

    Raises:
        ArgumentError: one of the arguments is neither.
        ModelError: a folder is not an output folder, or is damaged.
    """
    content = content_of(compiled, other, verify=verify, what_if=what_if, progress=progress)
    return HtmlReport(content.title, page(content))


def content_of(
    compiled: str | Path | CompiledModel,
    other: str | Path | CompiledModel | None = None,
    *,
    verify: bool = False,
    what_if: int = WHAT_IF,
    progress: Callable[[str], None] | None = None,
) -> Content:
    """The content from which `html_report` makes the page."""
    verify = read_argument("verify", bool, verify)
    what_if = read_argument("what_if", Annotated[int, Limits(least=0)], what_if)
    builder = _ContentBuilder(verify, what_if, receiver_of(progress))
    first = opened_model("compiled", compiled)
    if other is None:
        return Content((builder.run("this plan", first),))
    second = opened_model("other", other)
    names = ("" if side is given else f"{given}: " for side, given in ((first, compiled), (second, other)))
    runs = tuple(builder.run(label, side, name) for label, side, name in zip("AB", (first, second), names, strict=True))
    return Content(runs, diff(first, second))


@dataclass(frozen=True)
class _ContentBuilder:
    """Collects from compiled models what a page shows.

    Args:
        verify: whether to compare values.
        what_if: number of nodes to price alternatives for.
        tell: called with a line of text from time to time.
    """

    verify: bool
    what_if: int
    tell: Callable[[str], None]

    def run(self, label: str, compiled: CompiledModel, name: str = "") -> Run:
        """The data of one compiled model; `name` is prefixed to the model's name."""
        self.tell("reading the original")
        graph = original_graph(compiled)
        with learning(compiled.options, costs=compiled.machine.costs):
            return self._run_of(label, compiled, name, graph)

    def _run_of(self, label: str, compiled: CompiledModel, name: str, graph: Graph) -> Run:
        costs, report = compiled.machine.costs, compiled.report
        inspection = inspect_graph(graph, costs, compiled.source.text, compiled.source.sha256)
        facts = slice_facts(compiled.graph, report, costs.serving(compiled.graph))
        network = None if compiled.network is None else NetworkReport.of(compiled.network, graph, costs)
        checks = self._checks(compiled)
        costly = sorted((row for row in report.nodes if row.share_us), key=lambda row: -row.share_us)
        priced = [row.name for row in costly[: self.what_if]]
        return Run(
            label=label,
            model=f"{name}{compiled.source.text if compiled.source.zoo else compiled.source.name}",
            target=compiled.machine.target.name,
            policy=compiled.plan.policy,
            about=compiled.about,
            titles=costs.titles,
            plan=compiled.plan,
            graph=compiled.graph,
            report=report,
            timeline=compiled.timeline,
            memory=compiled.memory,
            verdicts={verdict.name: verdict for verdict in inspection.nodes},
            ceilings=tuple(_ceilings(costs)),
            lanes={name: fact.lanes for name, fact in facts.items() if fact.lanes},
            verification=[clause for _, clause in checks],
            passed=all(passed for passed, _ in checks),
            what_if=price_nodes(graph, compiled.plan, priced, costs, self.tell),
            units=compare_units(
                graph, compiled.plan, priced, MAX_BREAK_EVENS, costs, compiled.machine.measured, self.tell
            ),
            network=network,
            steady=compiled.steady_report,
            tunings={} if compiled.network is None else self._tunings(compiled, compiled.network.adjacency, graph),
        )

    def _checks(self, compiled: CompiledModel) -> list[tuple[bool, str]]:
        """The results of value checks: whether values agree, and a clause with the errors. New checks come before
        stored ones."""
        found = [compiled.verify(progress=self.tell)] if self.verify else []
        kept = [check for check in compiled.checks if all(check.how != vars(fresh.how) for fresh in found)]
        return [*((fresh.passed, fresh.clause) for fresh in found), *((check.passed, check.told) for check in kept)]

    def _tunings(self, compiled: CompiledModel, adjacency: Adjacency, graph: Graph) -> dict[int, Tuning]:
        """The ranked UPMEM strategies for every width of its aggregations, if the machine has UPMEM modules."""
        target = compiled.machine.target
        modules = next((unit for unit in target.units.values() if isinstance(unit, UpmemSpec)), None)
        if modules is None or adjacency.relations:
            return {}
        widths = {graph.shape(node.output)[-1] for node in graph.nodes if isinstance(node.op, Spmm)}
        return {
            width: tune(adjacency, width, target, wide=modules.widened, progress=self.tell) for width in sorted(widths)
        }


def _ceilings(costs: CostModel) -> Iterator[Ceiling]:
    """The roofs of the host, with all memory channels and with those left to it, and of units with known peaks."""
    alone, beside = costs.host_only().host.roof, costs.host.roof
    name = costs.target.host.upper()
    if alone != beside:
        yield Ceiling(f"{name} with all memory channels", "d0", alone, is_alone=True)
    yield Ceiling(f"{name} beside the others" if alone != beside else name, "d0", beside)
    for index, (device, unit) in enumerate(costs.units.items(), 1):
        if unit.roof is not None:
            yield Ceiling(device.upper(), f"d{min(index, 3)}", unit.roof)
