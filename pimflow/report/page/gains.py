"""The gain of every decision of a plan over the host alone: the steps between the two times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pimflow.ir import Decision, Graph, Node, OnDevice, Parallel, Pipeline, Plan
from pimflow.records import dataclass
from pimflow.report.measures import origin_of
from pimflow.runtime.timeline import Timeline, regions


@dataclass(frozen=True)
class Gain:
    """One decision.

    Args:
        kind: the kind of decision, in words.
        nodes: the nodes that it decides, by name.
        before_us: time of these nodes on the host alone, with all of its memory channels.
        after_us: their time in the plan.
    """

    kind: str
    nodes: tuple[str, ...]
    before_us: float
    after_us: float

    @property
    def change_us(self) -> float:
        """The change in time, negative for a gain."""
        return self.after_us - self.before_us


def gains_of(plan: Plan, graph: Graph, timeline: Timeline, host_us: Mapping[str, float]) -> tuple[Gain, ...]:
    """The decisions of a plan in order; the host's time and all changes add up to the plan's makespan.

    Args:
        plan: the plan.
        graph: the rewritten graph.
        timeline: its schedule; all units synchronise at the end of every decision.
        host_us: by node of the original, its time on the host alone.
    """
    number = {name: index for index, decision in enumerate(plan.decisions) for name in decision.nodes}
    after = [0.0] * len(plan.decisions)
    last = 0
    for nodes, time_us in zip(regions(graph), timeline.region_us, strict=True):
        last = _decision_of(nodes, number, last)
        after[last] += time_us
    return tuple(
        Gain(_kind(decision, plan.host), decision.nodes, sum(host_us[name] for name in decision.nodes), after_us)
        for decision, after_us in zip(plan.decisions, after, strict=True)
    )


def _decision_of(nodes: Sequence[Node], number: Mapping[str, int], last: int) -> int:
    """The decision that the nodes of one region stem from; for nodes that a pass inserted, the preceding decision."""
    found = nodes[0].placement.region
    return found if found is not None else number.get(origin_of(nodes[0]), last)


def _kind(decision: Decision, host: str) -> str:
    if isinstance(decision, OnDevice):
        return f"stays on {host.upper()}" if decision.device == host else f"moved to {decision.device.upper()}"
    if isinstance(decision, Pipeline):
        return "pipelined"
    if isinstance(decision, Parallel):
        return "branches at once" if len(decision.branches) > 1 else "put together"
    return f"split, {decision.device.upper()} helps"
