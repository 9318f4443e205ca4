"""The order in which decisions run: a topological order that keeps neighbours together, and the regions within it.

The solver is exact over contiguous stretches of this order, so the order must put what can be decided together side by
side. It is the depth-first postorder from the graph's ends: before a node comes, wherever possible, a node it reads.
Hence
- a chain is contiguous,
- between a fork and the join that post-dominates it there are the branches, one whole branch after the other, and
- an elementwise node that is fused into its producer comes right behind it (its other operands are computed before).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from pimflow.ir import Graph, Node
from pimflow.records import dataclass


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
    members: list[list[Node]] = []
    names: set[str] = set()
    for node in order:
        if node.placement.fused_into not in names:
            members.append([])
            names = set()
        members[-1].append(node)
        names.add(node.name)
    starts = accumulate(map(len, members), initial=0)
    return tuple(Unit(start, tuple(nodes)) for start, nodes in zip(starts, members, strict=False))


def fork_joins(graph: Graph, order: tuple[Node, ...]) -> tuple[ForkJoin, ...]:
    """Every region between a node and its immediate post-dominator that it immediately dominates, inner ones first.

    Such a region is entered and left through the two alone, so the order has all of it, and nothing else, between them.
    Regions of fewer than two nodes have nothing to run at once and are left out.
    """
    if not order:
        return ()
    behind = _flow(graph, order)
    before: dict[int, list[int]] = {place: [] for place in behind}
    for place, successors in behind.items():
        for successor in successors:
            before[successor].append(place)
    dominator = _dominators(before)
    post = {-place: -other for place, other in _dominators(_mirrored(behind)).items()}
    found = []
    for fork in range(-1, len(order)):
        join = post[fork]
        if len(behind[fork]) > 1 and dominator[join] == fork and join - fork > 2:
            found.append(ForkJoin(fork + 1, join))
    return tuple(sorted(found, key=lambda region: (region.stop - region.start, region.start)))


def branches_of(graph: Graph, nodes: tuple[Node, ...]) -> tuple[tuple[Node, ...], ...]:
    """The given nodes in groups that exchange no value with each other, each in the given order."""
    makers = {output: index for index, node in enumerate(nodes) for output in node.outputs if output}
    group = [[index] for index in range(len(nodes))]
    for index, node in enumerate(nodes):
        for maker in {makers[name] for name in node.inputs if name in makers}:
            small, large = sorted((group[index], group[maker]), key=len)
            if small is not large:
                large += small
                for member in small:
                    group[member] = large
    groups = sorted(sorted(members) for members in {id(members): members for members in group}.values())
    return tuple(tuple(nodes[index] for index in members) for members in groups)


def unordered(graph: Graph, order: Sequence[Node], reach: int) -> Iterator[tuple[int, int]]:
    """Positions less than `reach` apart of which the one behind does not wait for the one before."""
    place = {node.name: index for index, node in enumerate(order)}
    near = (1 << reach) - 2
    awaited: list[int] = []
    """By position, a bit for every distance at which it waits for a position before it."""
    for index, node in enumerate(order):
        found = 0
        for maker in _makers(graph, node):
            away = index - place[maker.name]
            found |= (1 | awaited[index - away]) << away if away < reach else 0
        awaited.append(found & near)
        others = near & ~found
        for away in range(1, min(reach, index + 1)) if others else ():
            if others >> away & 1:
                yield index - away, index


def _flow(graph: Graph, order: tuple[Node, ...]) -> dict[int, list[int]]:
    """Positions with those that read what they make; -1 stands before everything, len(order) behind."""
    last = len(order)
    makers = {output: index for index, node in enumerate(order) for output in node.outputs if output}
    behind: dict[int, set[int]] = {place: set() for place in range(-1, last + 1)}
    for index, node in enumerate(order):
        for maker in {makers.get(name, -1) for name in graph.activations(node)} or {-1}:
            behind[maker].add(index)
    for index, node in enumerate(order):
        if not behind[index] or any(output in graph.outputs for output in node.outputs):
            behind[index].add(last)
    return {place: sorted(successors) for place, successors in behind.items()}


def _mirrored(flow: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """What comes before each position where the flow runs backwards: positions with their signs changed, in order."""
    return {-place: [-other for other in flow[place]] for place in sorted(flow, reverse=True)}


def _dominators(before: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """The immediate dominator of every position, of the first one itself.

    One round of the algorithm of Cooper, Harvey and Kennedy (A Simple, Fast Dominance Algorithm, 2001), as nothing
    flows backwards.

    Args:
        before: in order, every position with those before it from which it is reached; none of the first alone.
    """
    found: dict[int, int] = {}
    for place, sources in before.items():
        common = sources[0] if sources else place
        for source in sources[1:]:
            other = source
            while common != other:
                common, other = (found[common], other) if common > other else (common, found[other])
        found[place] = common
    return found
