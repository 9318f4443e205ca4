"""Graphs of named jobs with fixed prices, for the tests of the timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pimflow.ir import Concat, Elementwise, Graph, Node, Placement, Value


@dataclass(frozen=True)
class Job:
    """A node that makes the value of its own name from the values of those it waits for (a graph input, if none)."""

    name: str
    device: str
    time_us: float
    after: tuple[str, ...] = ()
    region: int | None = 0
    stage: int | None = None


@dataclass(frozen=True)
class Price:
    time_us: float
    energy_mj: float


@dataclass(frozen=True)
class FixedCosts:
    """Prices by node name; a microsecond costs 2 mJ on the GPU and 1 mJ on PIM."""

    times: Mapping[str, float]

    def node_cost(self, graph: Graph, node: Node) -> Price:
        time_us = self.times[node.name]
        return Price(time_us, time_us * (1 if node.device == "pim" else 2))


@dataclass(frozen=True)
class PoweredCosts(FixedCosts):
    """The same on a machine that draws 10 W."""

    def static_energy_mj(self, makespan_us: float) -> float:
        return 10 * makespan_us * 1e-3


def graph_of(jobs: Sequence[Job]) -> Graph:
    nodes = []
    for job in jobs:
        op = Concat(0) if len(job.after) > 1 else Elementwise("Relu")
        node = Node(op, job.after or ("input",), (job.name,), job.name, Placement(job.device, job.region, job.stage))
        nodes.append(node)
    values = {name: Value(name, (1,)) for name in ("input", *(job.name for job in jobs))}
    return Graph("jobs", ("input",), (jobs[-1].name,), tuple(nodes), values, {})


def costs_of(jobs: Sequence[Job]) -> FixedCosts:
    return FixedCosts({job.name: job.time_us for job in jobs})
