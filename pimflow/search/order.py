"""The order in which decisions run: a topological order that keeps neighbours together, and the regions within it.

The solver is exact over contiguous stretches of this order, so the order must put what can be decided together side by
side. It is the depth-first postorder from the graph's ends: before a node comes, wherever possible, a node it reads.
Hence
- a chain is contiguous,
- between a fork and the join that post-dominates it there are the branches, one whole branch after the other, and
- an elementwise node that is fused into its producer comes right behind it (its other operands are computed before).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pimflow.ir import Graph, Node


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
    sources = _flow(graph, order)
    last = len(sources) - 1
    readers: list[list[int]] = [[] for _ in sources]
    for place, before in enumerate(sources):
        for source in before:
            readers[source].append(place)
    dominator = _immediate_dominators(sources)
    post = _immediate_dominators([[last - reader for reader in behind] for behind in reversed(readers)])
    found = []
    for fork in range(last):
        join = last - post[last - fork]
        if len(readers[fork]) >= 2 and dominator[join] == fork and join - fork > 2:
            found.append(ForkJoin(fork, join - 1))
    return tuple(sorted(found, key=lambda region: (region.stop - region.start, region.start)))


def branches_of(graph: Graph, nodes: tuple[Node, ...]) -> tuple[tuple[Node, ...], ...]:
    """The given nodes in groups that exchange no value with each other, each in the given order."""
    makers = {output: index for index, node in enumerate(nodes) for output in node.outputs if output}
    first = list(range(len(nodes)))  # of each node's group
    for index, node in enumerate(nodes):
        joined = {first[index], *(first[makers[name]] for name in node.inputs if name in makers)}
        first = [min(joined) if member in joined else member for member in first]
    groups: dict[int, list[Node]] = {}
    for member, node in zip(first, nodes, strict=True):
        groups.setdefault(member, []).append(node)
    return tuple(tuple(group) for group in groups.values())


def _flow(graph: Graph, order: tuple[Node, ...]) -> list[list[int]]:
    """Where the data of each place come from. Place 0 is before the order, its nodes follow, the last is behind it."""
    makers = {output: place for place, node in enumerate(order, start=1) for output in node.outputs if output}
    sources = [sorted({makers.get(name, 0) for name in graph.activations(node)}) or [0] for node in order]
    read = {source for before in sources for source in before}
    ends = [
        place
        for place, node in enumerate(order, start=1)
        if place not in read or any(output in graph.outputs for output in node.outputs)
    ]
    return [[], *sources, ends]


def _immediate_dominators(sources: Sequence[Sequence[int]]) -> list[int]:
    """The immediate dominator of every place: the nearest that all ways from place 0 to it go through.

    Places are in topological order, so it is the nearest common ancestor, in the tree of dominators so far, of all that
    the place reads from (Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm", 2001). Place 0 has itself.
    """
    dominator = [0] * len(sources)

    def common(one: int, other: int) -> int:
        while one != other:
            one, other = (dominator[one], other) if one > other else (one, dominator[other])
        return one

    for place, before in enumerate(sources[1:], start=1):
        dominator[place] = reduce(common, before)
    return dominator
