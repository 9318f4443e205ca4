"""The cost of a run of a whole graph: time, energy, and the time during which convolutions are running."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from pimflow.codegen.answers import Cost, UnitCost, Way
from pimflow.codegen.backend import Backend
from pimflow.codegen.work import Work
from pimflow.data import decode, pick
from pimflow.ir import Conv2d, Graph, Node, Refusal
from pimflow.records import dataclass
from pimflow.runtime.gpu.kept import is_convolution
from pimflow.runtime.offload.fitting import MemoryCosts
from pimflow.runtime.spending import EventCost, PartPrice, Spending, schedule, spending
from pimflow.runtime.timeline import Event, Timeline
from pimflow.search import pricing


class DetailedPrice(PartPrice, Protocol):
    """A node's price, with the cost that it is based on."""

    @property
    def detail(self) -> Cost | None:
        """The cost on its device; None if the node costs nothing."""


class Costs(pricing.Costs, MemoryCosts, Protocol):
    """The part of a cost model that a report needs: that of the search, and the costs of single nodes."""

    @property
    def units(self) -> Mapping[str, Backend[Any, Any]]:
        """The units except the host, by device."""

    def host_only(self) -> Costs:
        """The same machine with no other unit in use."""

    def serving(self, graph: Graph) -> Costs:
        """The cost model that a placed graph runs under."""

    def node_cost(self, graph: Graph, node: Node) -> DetailedPrice:
        """The node's time and energy on its device."""

    def work(self, graph: Graph, node: Node, device: str) -> Work | Refusal:
        """The work that a node is for a unit, or why it cannot run there."""

    def unit_cost(self, device: str, work: Work, choice: str) -> UnitCost | Refusal:
        """The cost of work on a unit under a choice, or why it cannot run there."""

    def unknown(self, graph: Graph, node: Node) -> str:
        """What is missing from the host's price of a node, and why; "" if nothing."""

    def ways(self, graph: Graph, node: Node) -> tuple[Way, ...]:
        """The ways to run a contraction of a placed graph on its device; empty if there is only one."""


@dataclass(frozen=True)
class Measure:
    """Time, energy and convolution time of one run of a whole graph, with a breakdown of time and energy.

    `conv_us` is the time during which at least one convolution (depthwise ones included), a part of one, or a movement
    that remains from dividing one, is running on either device. Elementwise neighbours count only if they are fused.
    """

    time_us: float
    energy_mj: float
    conv_us: float
    spent: Spending

    def as_json(self) -> dict[str, Any]:
        """The totals and their parts."""
        spent = self.spent
        return {
            "time_us": self.time_us,
            "energy_mj": self.energy_mj,
            "conv_us": self.conv_us,
            "time_parts_us": spent.share_parts_us,
            "energy_parts_mj": spent.energy_parts_mj,
            "busy_parts_us": spent.busy_parts_us,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], path: str) -> Measure:
        """Reads what `as_json` wrote; other keys are ignored.

        Raises:
            DataError: a key is missing or of another type.
        """
        totals = dict(zip(_TOTALS, pick(data, *_TOTALS), strict=True))
        share, busy, energy = pick(data, "time_parts_us", "busy_parts_us", "energy_parts_mj")
        spent = {"share_parts_us": share, "busy_parts_us": busy, "energy_parts_mj": energy}
        return decode(cls, {**totals, "spent": spent}, path=path)


_TOTALS = ("time_us", "energy_mj", "conv_us")


def measure(graph: Graph, costs: Costs) -> Measure:
    """Measures a graph with devices on its nodes (nodes without one run on the host)."""
    return measure_events(graph, *schedule(graph, costs), costs)


def measure_events(graph: Graph, timeline: Timeline, events: Sequence[EventCost], costs: Costs) -> Measure:
    """Measures a graph with a known timeline."""
    time_us, energy_mj = timeline.makespan_us, timeline.total_energy_mj
    (spent,) = spending(("",), (("", event) for event in events), costs.static_energy_mj(time_us), time_us).values()
    return Measure(time_us, energy_mj, conv_us(graph, timeline), spent.ordered(costs.target.devices))


def conv_us(graph: Graph, timeline: Timeline) -> float:
    """Time during which convolutions are running; see `Measure`."""
    convs = {origin_of(node) for node in graph.nodes if isinstance(node.op, Conv2d) or is_convolution(node.op)}
    return busy_us(event for event in timeline.events if origin_of(graph.node(event.node)) in convs)


def busy_us(events: Iterable[Event]) -> float:
    """The length of the union of the events' intervals."""
    total, end = 0.0, float("-inf")
    for event in sorted(events, key=lambda event: event.start_us):
        if event.end_us > end:
            total += event.end_us - max(event.start_us, end)
            end = event.end_us
    return total


def origin_of(node: Node) -> str:
    """The node of the original graph that a node of the rewritten one comes from."""
    return node.placement.origin or node.name
