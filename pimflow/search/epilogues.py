"""Which nodes of an epilogue need kernels of their own if their root leaves the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pimflow.ir import Graph
from pimflow.ir.analysis.regions import cut_subgraph
from pimflow.ir.readout import Readout
from pimflow.passes import UnfuseEpilogues


def members_by_root(graph: Graph) -> Mapping[str, Sequence[str]]:
    """The fused nodes of a graph, by the name of the root that they are fused into."""
    members: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.placement.fused_into is not None:
            members.setdefault(node.placement.fused_into, []).append(node.name)
    return members


def own_kernels(
    graph: Graph, root: str, members: Sequence[str], device: str, readouts: tuple[Readout, ...], host: str
) -> Mapping[str, bool]:
    """Whether a root that runs on a device, and each node fused into it, then has a kernel of its own."""
    names = [root, *members]
    region = cut_subgraph(graph, names)
    placed = region.replace(nodes=(node.placed(device=device if node.name == root else host) for node in region.nodes))
    unfused = UnfuseEpilogues(readouts, host).run(placed).graph
    return {name: unfused.node(name).placement.fused_into is None for name in names}
