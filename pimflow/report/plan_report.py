"""The cost of a plan, node by node and in total: the rows of a compile report, convolution time, energy.

All times are taken from the timeline of the rewritten graph. A node's time is the length of the union of its events
(its parts on both devices, and the movements that remain from dividing it): simultaneous events count once. The times
of nodes that share a region, and so may overlap, can add up to more than the time of the region; all others add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pimflow.data import decode, encode, pick
from pimflow.errors import counted, one_line
from pimflow.ir import Graph, Plan
from pimflow.records import dataclass
from pimflow.report.measures import Costs, Measure, measure, measure_events
from pimflow.report.node_rows import NodeRow, NodeRows
from pimflow.runtime.spending import schedule
from pimflow.search import makespan_bound, pricing
from pimflow.search.makespan_bound import MakespanBound
from pimflow.search.progress import Tell, silent


@dataclass(frozen=True, repr=False)
class PlanCosts:
    """A plan's cost and that of the host alone, in total and by node of the original graph in the plan's order."""

    baseline: Measure
    result: Measure
    nodes: tuple[NodeRow, ...]

    def __repr__(self) -> str:
        return one_line(type(self).__name__, self._title)

    @property
    def _title(self) -> str:
        nodes, result = counted(len(self.nodes), "node"), self.result
        own = f"{result.time_us:,.1f} us, {result.energy_mj:,.2f} mJ"
        return f"{nodes}, {own}, host alone {self.baseline.time_us:,.1f} us"

    @property
    def speedup(self) -> float:
        """The speedup end to end, over the whole model on the host with all memory channels."""
        return _ratio(self.baseline.time_us, self.result.time_us)

    @property
    def conv_speedup(self) -> float:
        """The speedup of convolution alone; see `Measure.conv_us`."""
        return _ratio(self.baseline.conv_us, self.result.conv_us)

    @property
    def unknown(self) -> tuple[NodeRow, ...]:
        """The nodes whose time and energy are incomplete."""
        return tuple(row for row in self.nodes if row.unknown)

    @property
    def violations(self) -> dict[str, int]:
        """How often devices other than the host do something that their hardware could not, by name, over all nodes."""
        names = dict.fromkeys(name for row in self.nodes for name in row.violations)
        return {name: sum(row.violations.get(name, 0) for row in self.nodes) for name in names}


@dataclass(frozen=True, repr=False)
class PlanReport(PlanCosts):
    """A plan's cost, and a lower bound on the makespan of any plan."""

    bound: MakespanBound

    @property
    def _title(self) -> str:
        return f"{super()._title}, bound {self.bound.time_us:,.1f} us"

    @property
    def bound_ratio(self) -> float:
        """The plan's time over the lower bound."""
        return self.bound.ratio(self.result.time_us)

    def as_json(self, *, lazily: bool = False) -> dict[str, Any]:
        """The keys "baseline", "result", "bound", "violations" and "nodes" of a compile report; `lazily` makes the
        last one, which is long, an iterator."""
        rows = (row.as_json() for row in self.nodes)
        return {
            "baseline": self.baseline.as_json(),
            "result": {**self.result.as_json(), "speedup": self.speedup, "conv_speedup": self.conv_speedup},
            "bound": {**encode(self.bound), "ratio": self.bound_ratio},
            "violations": self.violations,
            "nodes": rows if lazily else list(rows),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], devices: Sequence[str]) -> PlanReport:
        """Reads what `as_json` wrote on a machine with these devices, the host first; other keys are ignored.

        Raises:
            DataError: a key is missing; or, within one of the four, unknown or of another type.
        """
        baseline, result, bound, nodes = pick(data, "baseline", "result", "bound", "nodes")
        values = {key: value for key, value in decode(Mapping[str, Any], bound, path="bound").items() if key != "ratio"}
        return cls(
            Measure.from_json(baseline, "baseline"),
            Measure.from_json(result, "result"),
            tuple(NodeRow.from_json(row, devices) for row in decode(tuple[Any, ...], nodes, path="nodes")),
            decode(MakespanBound, values, path="bound"),
        )


def report_plan(
    original: Graph,
    plan: Plan,
    graph: Graph,
    costs: Costs,
    bound: MakespanBound | None = None,
    progress: Tell = silent,
) -> PlanReport:
    """A plan's cost and the lower bound on the makespan (`bound`, if it is already known). For the other arguments, see
    `cost_plan`."""
    cost = cost_plan(original, plan, graph, costs, progress)
    if bound is None:
        bound = makespan_bound.makespan_bound(original, costs, cost.baseline.time_us)
    return PlanReport(cost.baseline, cost.result, cost.nodes, bound)


def cost_plan(original: Graph, plan: Plan, graph: Graph, costs: Costs, progress: Tell = silent) -> PlanCosts:
    """The cost of a plan.

    Args:
        original: the graph that the plan is for.
        plan: the plan.
        graph: `original` as rewritten by the plan.
        costs: the cost model with all units in use; a plan that never leaves the host is priced with all of its memory
            channels.
        progress: receives the number of finished nodes, as lines of text.
    """
    used = costs.serving(graph)
    timeline, events = schedule(graph, used)
    rows = NodeRows(original, plan, graph, events, used, timeline.makespan_us).rows(progress)
    return PlanCosts(
        measure(pricing.host_alone(original, costs), costs.host_only()),
        measure_events(graph, timeline, events, used),
        rows,
    )


def _ratio(before: float, after: float) -> float:
    return before / after if after > 0 else 1.0
