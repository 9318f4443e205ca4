"""The input of a page: one compiled model, or two side by side, node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property

from pimflow.codegen.answers import Lane
from pimflow.ir import Graph, Plan
from pimflow.records import dataclass
from pimflow.report.difference import Difference
from pimflow.report.explanation import Alternative, Verdict
from pimflow.report.inspection import NodeVerdict
from pimflow.report.measures import origin_of
from pimflow.report.network import NetworkReport
from pimflow.report.node_rows import NodeRow
from pimflow.report.page.gains import Gain, gains_of
from pimflow.report.page.gantt import Schedule
from pimflow.report.page.memory import Usage
from pimflow.report.page.roofline import Ceiling
from pimflow.report.plan_report import PlanReport
from pimflow.report.steady import SteadyReport
from pimflow.report.tuning import Tuning
from pimflow.runtime.memory import MemoryPlan
from pimflow.runtime.timeline import Timeline, regions


@dataclass(frozen=True)
class Run:
    """A compiled model, and further reports on it.

    Args:
        label: its name next to another one.
        model, target, policy: the model, its machine, and the policy of the plan.
        about: lines on the machine and the compilation: (label, text).
        titles: the title of every device, the host first.
        plan, graph, report, timeline, memory: of the compiled model.
        verdicts: by node of the original: its work, and its time on each device.
        ceilings: peak performance of the units.
        lanes: by node of the rewritten graph, when each channel of a unit is busy with it.
        verification: the results of comparisons with the original, one clause each.
        passed: whether all of them passed.
        what_if: by node of the original, the ways to run it with their prices.
        units: by node of the original, how each unit compares with the host.
        network: the graph of a graph network.
        tunings: strategies for its aggregations, by number of features.
        steady: for a throughput plan, several inferences in flight.
    """

    label: str
    model: str
    target: str
    policy: str
    about: Sequence[tuple[str, str]]
    titles: Mapping[str, str]
    plan: Plan
    graph: Graph
    report: PlanReport
    timeline: Timeline
    memory: MemoryPlan
    verdicts: Mapping[str, NodeVerdict]
    ceilings: Sequence[Ceiling]
    lanes: Mapping[str, tuple[Lane, ...]]
    verification: Sequence[str] = ()
    passed: bool = False
    what_if: Mapping[str, Sequence[Alternative]] = field(default_factory=dict)
    units: Mapping[str, Sequence[Verdict]] = field(default_factory=dict)
    network: NetworkReport | None = None
    tunings: Mapping[int, Tuning] = field(default_factory=dict)
    steady: SteadyReport | None = None

    @property
    def title(self) -> str:
        """The model, its machine and its policy as one clause."""
        return f"{self.model} on {self.target}, policy {self.policy}"

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the machine, the host first."""
        return tuple(self.titles)

    @property
    def host_alone(self) -> str:
        """The name of the baseline."""
        return f"{self.plan.host.upper()} alone"

    @cached_property
    def gains(self) -> tuple[Gain, ...]:
        """The gain of every decision over the host alone."""
        host_us = {name: verdict.times_us[self.plan.host] or 0.0 for name, verdict in self.verdicts.items()}
        return gains_of(self.plan, self.graph, self.timeline, host_us)

    def schedule(self, numbers: Mapping[str, int]) -> Schedule:
        """Its Gantt chart, with numbers for the nodes of the original."""
        origins = {node.name: origin_of(node) for node in self.graph.nodes}
        known = {name: numbers[origin] for name, origin in origins.items() if origin in numbers}
        return Schedule(self.titles, self.timeline, known, origins, self.lanes)

    def usage(self, numbers: Mapping[str, int]) -> Usage:
        """Its memory over time, with numbers for the nodes of the original."""
        origins = {node.name: numbers[origin_of(node)] for node in self.graph.nodes if origin_of(node) in numbers}
        steps = [
            tuple(dict.fromkeys(origins[node.name] for node in nodes if node.name in origins))
            for nodes in regions(self.graph)
        ]
        return Usage(self.label, self.memory, self.timeline, origins, steps)


@dataclass(frozen=True)
class Content:
    """One run, or two with their difference.

    Args:
        runs: one or two runs.
        difference: for two runs, their difference node by node.
    """

    runs: tuple[Run, ...]
    difference: Difference | None = None

    @cached_property
    def rows(self) -> Sequence[tuple[NodeRow | None, ...]]:
        """For each node of the page, its row in every run."""
        if self.difference is None:
            return [(row,) for row in self.runs[0].report.nodes]
        return [(node.a, node.b) for node in self.difference.nodes]

    @cached_property
    def numbers(self) -> Sequence[Mapping[str, int]]:
        """For each run, the page's node numbers by the node's name there."""
        return [
            {row[side].name: number for number, row in enumerate(self.rows) if (row[side]) is not None}  # type: ignore[union-attr]
            for side in range(len(self.runs))
        ]

    @property
    def title(self) -> str:
        """The subject of the page."""
        if self.difference is None:
            return self.runs[0].title
        return f"{self.runs[0].label} and {self.runs[1].label}"
