"""The graph that a graph network runs on, as people and programs are shown it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from pimflow.ir import Graph
from pimflow.sparse import Graph as Adjacency

ESTIMATE = "an estimate, on a random graph of this size: give yours with --graph"


@dataclass(frozen=True, eq=False)
class Network:
    """The graph that a graph network was read for.

    Args:
        adjacency: the graph; its edges are constants of the program.
        is_estimate: whether it is a random one, of the size that was asked for.
    """

    adjacency: Adjacency
    is_estimate: bool

    @property
    def text(self) -> str:
        """What it is, on one line."""
        graph = self.adjacency
        known = ESTIMATE if self.is_estimate else f"sha256 {graph.sha256[:12]}"
        return f"{graph.num_dst:,} vertices, {graph.num_edges:,} edges ({known})"

    def as_json(self) -> dict[str, Any]:
        """As "graph" of documents."""
        graph = self.adjacency
        size = {"vertices": graph.num_dst, "edges": graph.num_edges}
        return {**size, "sha256": graph.sha256, "estimate": self.is_estimate}


@dataclass(frozen=True, eq=False)
class NetworkReport:
    """What was recovered for a graph, and what is known of the graph.

    Args:
        network: the graph.
        recovered: sparse ops by kind: how many there are.
        degrees: of its vertices, by name.
    """

    network: Network
    recovered: dict[str, int]
    degrees: dict[str, float]

    @classmethod
    def of(cls, network: Network, program: Graph) -> NetworkReport:
        """The report on a program that was read for a graph."""
        kinds = Counter(node.kind for node in program.nodes if node.op.is_sparse)
        return cls(network, dict(sorted(kinds.items())), _degrees(network.adjacency))

    def as_json(self) -> dict[str, Any]:
        """As "graph" of `inspect --json`."""
        return {**self.network.as_json(), "recovered": self.recovered, "statistics": self.degrees}

    def lines(self) -> list[str]:
        """As text."""
        found = ", ".join(f"{count} {kind}" for kind, count in self.recovered.items()) or "no aggregation"
        statistics = ", ".join(f"{name.replace('_', ' ')} {value:,.6g}" for name, value in self.degrees.items())
        return [f"graph: {self.network.text}", f"  recovered: {found}", f"  {statistics}"]


def _degrees(graph: Adjacency) -> dict[str, float]:
    """Statistics of the edges into vertices, linear in the size of the graph."""
    counts = np.diff(graph.rowptr)
    loops = int((graph.col == graph.destinations()).sum())
    return {
        "mean_degree": graph.num_edges / max(graph.num_dst, 1),
        "largest_in_degree": int(counts.max(initial=0)),
        "vertices_without_in_edges": int((counts == 0).sum()),
        "self_loops": loops,
    }
