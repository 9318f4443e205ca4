"""The order in which decisions run: a topological order that keeps neighbours together, and the regions within it.

The solver is exact over contiguous stretches of this order, so the order must put what can be decided together side by
side. It is the depth-first postorder from the graph's ends: before a node comes, wherever possible, a node it reads.
Hence
- a chain is contiguous,
- between a fork and the join that post-dominates it there are the branches, one whole branch after the other, and
- an elementwise node that is fused into its producer comes right behind it (its other operands are computed before).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pimflow.ir import Graph, Node

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class Unit:
    """Consecutive positions start .. stop-1 of the order: a node and the elementwise nodes fused into it."""

    start: int
    nodes: tuple[Node, ...]

    @property
    def stop(self) -> int:
        """One past the last position."""
        return self.start + len(self.nodes)

    @property
    def anchor(self) -> Node:
        """The node that the others are fused into."""
        return self.nodes[0]


@dataclass(frozen=True)
class ForkJoin:
    """Positions start .. stop-1 between a fork and its join: entered and left through those two alone."""

    start: int
    stop: int


def execution_order(graph: Graph) -> tuple[Node, ...]:
    """All nodes in the order described above; deterministic, linear in the graph."""
    done: set[str] = set()
    order: list[Node] = []
    for sink in graph.nodes:
        if any(graph.users(output) for output in sink.outputs):
            continue
        stack = [sink]
        while stack:
            node = stack[-1]
            waiting = [maker for maker in _makers(graph, node) if maker.name not in done]
            if waiting:
                stack.append(waiting[0])
                continue
            stack.pop()
            done.add(node.name)
            order.append(node)
    return tuple(order)


def _makers(graph: Graph, node: Node) -> list[Node]:
    """The nodes that a node reads from, in operand order; the one that it is fused into comes last."""
    makers = [maker for name in node.inputs if name and (maker := graph.producer(name)) is not None]
    into = node.placement.fused_into
    if into is not None and len(makers) > 1:
        makers.sort(key=lambda maker: into in (maker.name, maker.placement.fused_into))
    return makers


def units_of(order: tuple[Node, ...]) -> tuple[Unit, ...]:
    """The order cut into units."""
    units: list[Unit] = []
    start = 0
    while start < len(order):
        members = [order[start]]
        names = {order[start].name}
        for node in order[start + 1 :]:
            if node.placement.fused_into not in names:
                break
            members.append(node)
            names.add(node.name)
        units.append(Unit(start, tuple(members)))
        start += len(members)
    return tuple(units)


def fork_joins(graph: Graph, order: tuple[Node, ...]) -> tuple[ForkJoin, ...]:
    """Every region between a node and its immediate post-dominator that it immediately dominates, inner ones first.

    Such a region is entered and left through the two alone, so the order has all of it, and nothing else, between them.
    Regions of fewer than two nodes have nothing to run at once and are left out.
    """
    if not order:
        return ()
    import networkx as nx  # takes a while, and few policies look for branches

    flow = _flow_graph(graph, order)
    last = len(order)
    dominator = nx.immediate_dominators(flow, -1)
    post = nx.immediate_dominators(flow.reverse(copy=False), last)
    found = []
    for fork in range(-1, last):
        join = post.get(fork)
        if join is None or flow.out_degree(fork) < 2 or dominator.get(join) != fork:
            continue
        if join - fork > 2:
            found.append(ForkJoin(fork + 1, join))
    return tuple(sorted(found, key=lambda region: (region.stop - region.start, region.start)))


def branches_of(graph: Graph, nodes: tuple[Node, ...]) -> tuple[tuple[Node, ...], ...]:
    """The given nodes in groups that exchange no value with each other, each in the given order."""
    import networkx as nx

    makers = {output: index for index, node in enumerate(nodes) for output in node.outputs if output}
    links = nx.Graph()
    links.add_nodes_from(range(len(nodes)))
    for index, node in enumerate(nodes):
        links.add_edges_from((makers[name], index) for name in node.inputs if name in makers)
    groups = sorted((sorted(group) for group in nx.connected_components(links)), key=lambda group: group[0])
    return tuple(tuple(nodes[index] for index in group) for group in groups)


def _flow_graph(graph: Graph, order: tuple[Node, ...]) -> nx.DiGraph:
    """Positions with their data flow; -1 stands before everything, len(order) behind."""
    import networkx as nx

    last = len(order)
    makers = {output: index for index, node in enumerate(order) for output in node.outputs if output}
    flow = nx.DiGraph()
    flow.add_nodes_from(range(-1, last + 1))
    for index, node in enumerate(order):
        for name in graph.activations(node):
            flow.add_edge(makers.get(name, -1), index)
        if flow.in_degree(index) == 0:
            flow.add_edge(-1, index)
    for index, node in enumerate(order):
        if flow.out_degree(index) == 0 or any(output in graph.outputs for output in node.outputs):
            flow.add_edge(index, last)
    return flow
