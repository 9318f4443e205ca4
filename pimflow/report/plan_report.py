"""What a plan comes to, node by node and in all: the rows of a compile report, convolution time, energy.

Every time is read off the timeline of the rewritten graph. A node's time is the length of the union of its events
(its parts on both devices and the movements that cutting it up left behind): what runs at once counts once. The times
of nodes that share a region, and so may overlap, can add up to more than the region takes; all others add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pimflow.codegen.newton.commands import CommandCounts
from pimflow.codegen.work import problem_of
from pimflow.data import decode, encode, pick
from pimflow.ir import Conv2d, Decision, Graph, Node, OnDevice, Parallel, Pipeline, Plan, Refusal, SplitRows
from pimflow.ir.analysis.regions import node_rows
from pimflow.runtime.costs import CostModel
from pimflow.runtime.timeline import Event, Timeline, build_timeline
from pimflow.search.policy import find_policy

Mode = str
"""A device's name, "md-dp" or "pipeline"."""


@dataclass(frozen=True)
class Measure:
    """Time, energy and convolution time of one run of a whole graph.

    `conv_us` is the time during which at least one convolution (depthwise ones too), a part of one, or a movement that
    cutting one up left behind, is running on either device. Elementwise neighbours count only where they are fused.
    """

    time_us: float
    energy_mj: float
    conv_us: float


def measure(graph: Graph, costs: CostModel, timeline: Timeline | None = None) -> Measure:
    """Measures a graph with devices (none: all on the GPU); the timeline is built if it is not given."""
    timeline = timeline or build_timeline(graph, costs.target, costs)
    energy = timeline.total_energy_mj + costs.static_energy_mj(timeline.makespan_us)
    return Measure(timeline.makespan_us, energy, conv_us(graph, timeline))


def conv_us(graph: Graph, timeline: Timeline) -> float:
    """Time during which convolution is going on; see `Measure`."""
    convs = {origin_of(node) for node in graph.nodes if isinstance(node.op, Conv2d)}
    return busy_us(event for event in timeline.events if origin_of(graph.node(event.node)) in convs)


def busy_us(events: Iterable[Event]) -> float:
    """Length of the union of the events' times."""
    total, end = 0.0, float("-inf")
    for event in sorted(events, key=lambda event: event.start_us):
        if event.end_us > end:
            total += event.end_us - max(event.start_us, end)
            end = event.end_us
    return total


def origin_of(node: Node) -> str:
    """The node of the original graph that a node of the rewritten one comes from."""
    return node.placement.origin or node.name


@dataclass(frozen=True)
class NodeRow:
    """What one node of the original graph came to.

    Args:
        name, op: the node and its ONNX op.
        mode: "gpu", "pim", "md-dp" or "pipeline". A node that runs beside a branch is "gpu" or "pim".
        pim_fraction: share of its output rows that PIM makes.
        gpu_us, pim_us: time during which the GPU or PIM works on it, movements left by cutting it up included.
        pim_cycles: DRAM command cycles of the slowest PIM channel, summed over its parts.
        time_us: time during which either works on it.
        commands: PIM commands over all channels.
        why: why it runs there.
        region: number of the plan's decision that it belongs to.
    """

    name: str
    op: str
    mode: Mode
    pim_fraction: float
    gpu_us: float
    pim_us: float
    pim_cycles: int
    time_us: float
    commands: CommandCounts
    why: str
    region: int

    def as_json(self) -> dict[str, Any]:
        """As one object of the report's "nodes"."""
        return {**encode(self), "commands": self.commands.as_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NodeRow:
        """Reads what `as_json` wrote.

        Raises:
            DataError: a key is missing, unknown or of another type.
        """
        counts = decode(Mapping[str, Any], pick(data, "commands")[0], path="commands")
        return decode(cls, {**data, "commands": {name.lower(): count for name, count in counts.items()}})


@dataclass(frozen=True)
class PlanReport:
    """A plan's cost beside the GPU's alone, in all and by node of the original graph in the plan's order."""

    baseline: Measure
    result: Measure
    nodes: tuple[NodeRow, ...]

    @property
    def speedup(self) -> float:
        """End to end, over the whole model on the GPU with all memory channels."""
        return _ratio(self.baseline.time_us, self.result.time_us)

    @property
    def conv_speedup(self) -> float:
        """Over convolution alone; see `Measure.conv_us`."""
        return _ratio(self.baseline.conv_us, self.result.conv_us)

    def as_json(self) -> dict[str, Any]:
        """The keys "baseline", "result" and "nodes" of a compile report."""
        return {
            "baseline": encode(self.baseline),
            "result": {**encode(self.result), "speedup": self.speedup, "conv_speedup": self.conv_speedup},
            "nodes": [row.as_json() for row in self.nodes],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlanReport:
        """Reads what `as_json` wrote; keys beside those are passed over.

        Raises:
            DataError: a key is missing, or within one of the three unknown or of another type.
        """
        baseline, result, nodes = pick(data, "baseline", "result", "nodes")
        result = decode(Mapping[str, float], result, path="result")
        measured = {key: value for key, value in result.items() if key not in ("speedup", "conv_speedup")}
        return cls(
            decode(Measure, baseline, path="baseline"),
            decode(Measure, measured, path="result"),
            tuple(NodeRow.from_json(row) for row in decode(tuple[Any, ...], nodes, path="nodes")),
        )


def report_plan(original: Graph, plan: Plan, graph: Graph, costs: CostModel) -> PlanReport:
    """What a plan comes to.

    Args:
        original: the graph that the plan is for.
        plan: the plan.
        graph: `original` as rewritten by the plan.
        costs: the cost model in PIM mode; a plan without PIM is priced with all memory channels at the GPU.
    """
    every = costs.gpu_only()
    used = costs if any(node.device == "pim" for node in graph.nodes) else every
    timeline = build_timeline(graph, used.target, used)
    rows = _Rows(original, plan, graph, timeline, used).rows()
    return PlanReport(measure(original, every), measure(graph, used, timeline), rows)


class _Rows:
    """Makes the rows of one report."""

    def __init__(self, original: Graph, plan: Plan, graph: Graph, timeline: Timeline, costs: CostModel) -> None:
        self._original = original
        self._plan = plan
        self._costs = costs
        self._graph = graph
        self._parts: dict[str, list[Node]] = {}
        for node in graph.nodes:
            self._parts.setdefault(origin_of(node), []).append(node)
        self._events: dict[str, list[Event]] = {}
        for event in timeline.events:
            self._events.setdefault(origin_of(graph.node(event.node)), []).append(event)
        spaces = find_policy(plan.policy).spaces
        self._mapping = spaces[-1].mapping if spaces else None

    def rows(self) -> tuple[NodeRow, ...]:
        """One row per node of the original graph."""
        return tuple(
            self._row(region, decision, name)
            for region, decision in enumerate(self._plan.decisions)
            for name in decision.nodes
        )

    def _row(self, region: int, decision: Decision, name: str) -> NodeRow:
        node, events = self._original.node(name), self._events.get(name, ())
        cycles, commands, rows = self._pim_work(name)
        return NodeRow(
            name=name,
            op=node.kind,
            mode=_mode(decision, name),
            pim_fraction=rows / max(1, node_rows(self._original, node)) if rows else 0.0,
            gpu_us=busy_us(event for event in events if event.resource == "gpu"),
            pim_us=busy_us(event for event in events if event.resource in ("pim", "transfer")),
            pim_cycles=cycles,
            time_us=busy_us(events),
            commands=commands,
            why=self._why(decision, node),
            region=region,
        )

    def _pim_work(self, name: str) -> tuple[int, CommandCounts, int]:
        """Cycles, commands and output rows of a node's PIM parts."""
        cycles, commands, rows = 0, CommandCounts(), 0
        for part in self._parts.get(name, ()):
            if part.device != "pim":
                continue
            cost = self._costs.node_cost(self._graph, part).pim
            if cost is not None:
                cycles, commands = cycles + cost.cycles, commands + cost.commands
            rows += node_rows(self._graph, part)
        return cycles, commands, rows

    def _why(self, decision: Decision, node: Node) -> str:
        if isinstance(decision, SplitRows) and node.name == decision.node:
            rows = node_rows(self._original, node)
            return f"{decision.gpu_rows} of {rows} rows on the GPU while PIM makes {rows - decision.gpu_rows}"
        if isinstance(decision, SplitRows):
            return f"applied to the halves of {decision.node}"
        if isinstance(decision, Pipeline) and node.placement.fused_into in decision.run:
            return f"fused into {node.placement.fused_into}, stage by stage"
        if isinstance(decision, Pipeline):
            stages = " + ".join(str(count) for count in decision.stage_rows)
            device = "PIM" if _device_in(decision, node.name) == "pim" else "the GPU"
            return f"on {device} in {len(decision.stage_rows)} stages, of {stages} rows of {decision.run[-1]}"
        beside = "beside another branch; " if isinstance(decision, Parallel) else ""
        return beside + self._why_there(node)

    def _why_there(self, node: Node) -> str:
        into = node.placement.fused_into
        if into is not None:
            return f"fused into {into}"
        problem = problem_of(self._original, node)
        if isinstance(problem, Refusal):
            return problem.reason
        if self._mapping is None:
            return f"policy {self._plan.policy}"
        cost = self._costs.pim_cost(problem, self._mapping)
        if isinstance(cost, Refusal):
            return cost.reason
        gpu_us = self._costs.node_cost(self._original, node).time_us
        return f"{gpu_us:.2f} us on the GPU, {cost.time_us:.2f} us on PIM"


def _mode(decision: Decision, name: str) -> Mode:
    if isinstance(decision, SplitRows):
        return "md-dp"
    if isinstance(decision, Pipeline):
        return "pipeline"
    if isinstance(decision, OnDevice):
        return decision.device
    placed = {item.node: item for branch in decision.branches for item in branch}
    return placed[name].device


def _device_in(decision: Pipeline, name: str) -> str:
    return dict(zip(decision.run, decision.devices, strict=True))[name]


def _ratio(before: float, after: float) -> float:
    return before / after if after > 0 else 1.0
