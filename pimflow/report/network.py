"""The graph that a graph network runs on, for readers and programs."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from pimflow.errors import counted
from pimflow.ir import Graph, Spmm
from pimflow.records import dataclass
from pimflow.report.tables import number
from pimflow.runtime.costs import CostModel
from pimflow.sparse import Graph as Adjacency
from pimflow.sparse import in_degrees, statistics_of

ESTIMATE = "an estimate, on a random graph of this size: give yours with --graph"


@dataclass(frozen=True, eq=False)
class Network:
    """The graph that a graph network was read for.

    Args:
        adjacency: the graph; its edges are constants of the program.
        is_estimate: whether it is a random graph of the requested size.
    """

    adjacency: Adjacency
    is_estimate: bool

    @property
    def text(self) -> str:
        """The graph on one line."""
        graph = self.adjacency
        if graph.relations:
            lists = counted(len(graph.relations), "edge list")
            return f"{lists}, {counted(graph.num_edges, 'edge')} (sha256 {graph.sha256[:12]})"
        known = ESTIMATE if self.is_estimate else f"sha256 {graph.sha256[:12]}"
        kinds = "" if graph.num_src == graph.num_dst else f"{counted(graph.num_src, 'vertex', 'vertices')} to "
        vertices = counted(graph.num_dst, "vertex", "vertices")
        return f"{kinds}{vertices}, {counted(graph.num_edges, 'edge')} ({known})"

    def as_json(self) -> dict[str, Any]:
        """The object "graph" of documents."""
        graph = self.adjacency
        size = {"vertices": graph.num_dst, "edges": graph.num_edges}
        lists = {name: pairs.shape[1] for name, pairs in graph.edge_lists().items()}
        return {**size, "sha256": graph.sha256, "estimate": self.is_estimate, **({"lists": lists} if lists else {})}


@dataclass(frozen=True, eq=False)
class NetworkReport:
    """The sparse ops recovered for a graph, the graph's statistics, and the gain of recovery.

    Args:
        network: the graph.
        recovered: the number of sparse ops by kind.
        statistics: of the graph, by name.
        times_us: of all aggregations on the host: recovered, and in the exported form. None if that is not modelled.
    """

    network: Network
    recovered: dict[str, int]
    statistics: dict[str, float]
    times_us: tuple[float, float] | None

    @classmethod
    def of(cls, network: Network, program: Graph, costs: CostModel) -> NetworkReport:
        """The report on a program that was read for a graph."""
        kinds = Counter(node.kind for node in program.nodes if node.op.is_sparse)
        found = _statistics(network.adjacency)
        return cls(network, dict(sorted(kinds.items())), found, _times_us(network.adjacency, program, costs))

    def as_json(self) -> dict[str, Any]:
        """The object "graph" of `inspect --json`."""
        times = (
            {} if self.times_us is None else dict(zip(("aggregation_us", "exported_us"), self.times_us, strict=True))
        )
        return {**self.network.as_json(), "recovered": self.recovered, "statistics": self.statistics, **times}

    def lines(self) -> list[str]:
        """The report as lines of text."""
        found = ", ".join(f"{count} {kind}" for kind, count in self.recovered.items()) or "no aggregation"
        statistics = [f"{name.replace('_', ' ')} {value:,.6g}" for name, value in self.statistics.items()]
        half = -(-len(statistics) // 2)
        lines = [f"graph: {self.network.text}", f"  recovered: {found}"]
        lines += [f"  {', '.join(part)}" for part in (statistics[:half], statistics[half:])]
        if self.times_us is not None:
            now, exported = self.times_us
            lines.append(f"  aggregation on the host: {number(now, 1)} us; as exported, {number(exported, 1)} us")
        return lines


def _statistics(graph: Adjacency) -> dict[str, float]:
    """The inputs of price functions; `reuse_at_N` is the share of edges whose source is among the last N rows."""
    found = statistics_of(graph)
    same_ends = {} if graph.relations else {"isolated_vertices": found.isolated, "self_loops": found.self_loops}
    return {
        "mean_degree": found.mean_degree,
        "largest_in_degree": found.max_in,
        "largest_out_degree": found.max_out,
        "vertices_without_in_edges": int((in_degrees(graph) == 0).sum()),
        **same_ends,
        "duplicates": found.duplicates,
        "density": found.density,
        "edges_per_group_of_16": found.edges_per_group,
        "blocks_of_512_per_edge": found.blocks_per_edge,
        **{f"reuse_at_{rows}": 1 - found.reuse.miss_ratio(rows) for rows in (1024, 4096, 16384)},
    }


def _times_us(graph: Adjacency, program: Graph, costs: CostModel) -> tuple[float, float] | None:
    if graph.relations:  # no sum is over all of its edges
        return None
    host, now, exported = costs.host_only().host, 0.0, 0.0
    for node in program.nodes:
        if not isinstance(node.op, Spmm):
            continue
        width = math.prod((program.value(node.output).shape or (0,))[1:])
        cost = host.cost_as_exported(graph, width, len(node.inputs) > 3 and bool(node.inputs[3]))
        if cost is None:
            return None
        now, exported = now + host.cost(program, node).time_us, exported + cost.time_us
    return (now, exported) if exported else None
