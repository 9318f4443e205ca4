"""The order in which decisions run: a topological order that keeps neighbours together, and the regions within it.

The solver is exact over contiguous stretches of this order, so nodes that can be decided together have to be adjacent.
It is the depth-first postorder from the graph's ends: wherever possible, a node comes right after a node that it reads.
Hence
- a chain is contiguous,
- between a fork and the join that post-dominates it there are the branches, one whole branch after the other, and
- an elementwise node that is fused into its producer comes right after it (its other operands are computed before).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain

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

    @cached_property
    def anchor(self) -> Node:
        """The node that the others are fused into."""
        return self.nodes[0]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of its nodes."""
        return tuple([node.name for node in self.nodes])


def names_of(units: Iterable[Unit]) -> tuple[str, ...]:
    """The names of all nodes of some units, in order."""
    return tuple(chain.from_iterable([unit.names for unit in units]))


@dataclass(frozen=True)
class ForkJoin:
    """Positions start .. stop-1 between a fork and its join: all data enters and leaves through those two."""

    start: int
    stop: int


def execution_order(graph: Graph) -> tuple[Node, ...]:
    """All nodes in the order described above; deterministic, linear in the graph."""
    done: set[str] = set()
    order: list[Node] = []
    for sink in graph.nodes:
        if any(graph.users(output) for output in sink.outputs):
            continue
        stack = [(sink, iter(_producers(graph, sink)))]
        while stack:
            node, producers = stack[-1]
            waiting = next((producer for producer in producers if producer.name not in done), None)
            if waiting is not None:
                stack.append((waiting, iter(_producers(graph, waiting))))
                continue
            stack.pop()
            done.add(node.name)
            order.append(node)
    return tuple(order)


def _producers(graph: Graph, node: Node) -> list[Node]:
    """The nodes whose outputs a node reads, in operand order, but the one that it is fused into last."""
    producers = [producer for name in node.inputs if name and (producer := graph.producer(name)) is not None]
    into = node.placement.fused_into
    if into is not None and len(producers) > 1:
        producers.sort(key=lambda producer: into in (producer.name, producer.placement.fused_into))
    return producers


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

    All data enters and leaves such a region through the two, so in the order all of it, and nothing else, is between
    them. Regions of fewer than two nodes have no concurrency and are left out.
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
    producers = {output: index for index, node in enumerate(nodes) for output in node.outputs if output}
    group = [[index] for index in range(len(nodes))]
    for index, node in enumerate(nodes):
        for producer in {producers[name] for name in node.inputs if name in producers}:
            small, large = sorted((group[index], group[producer]), key=len)
            if small is not large:
                large += small
                for member in small:
                    group[member] = large
    groups = sorted(sorted(members) for members in {id(members): members for members in group}.values())
    return tuple(tuple(nodes[index] for index in members) for members in groups)


def unordered(graph: Graph, order: Sequence[Node], reach: int) -> Iterator[tuple[int, int]]:
    """Pairs of positions less than `reach` apart in which the later one does not depend on the earlier one."""
    place = {node.name: index for index, node in enumerate(order)}
    near = (1 << reach) - 2
    awaited: list[int] = []
    """By position, a bit for every distance at which it depends on an earlier position."""
    for index, node in enumerate(order):
        found = 0
        for producer in _producers(graph, node):
            away = index - place[producer.name]
            found |= (1 | awaited[index - away]) << away if away < reach else 0
        awaited.append(found & near)
        others = near & ~found
        for away in range(1, min(reach, index + 1)) if others else ():
            if others >> away & 1:
                yield index - away, index


def _flow(graph: Graph, order: tuple[Node, ...]) -> dict[int, list[int]]:
    """By position, the positions that read its outputs; -1 is before all nodes, len(order) after them."""
    last = len(order)
    producers = {output: index for index, node in enumerate(order) for output in node.outputs if output}
    behind: dict[int, set[int]] = {place: set() for place in range(-1, last + 1)}
    for index, node in enumerate(order):
        for producer in {producers.get(name, -1) for name in graph.activations(node)} or {-1}:
            behind[producer].add(index)
    for index, node in enumerate(order):
        if not behind[index] or any(output in graph.outputs for output in node.outputs):
            behind[index].add(last)
    return {place: sorted(successors) for place, successors in behind.items()}


def _mirrored(flow: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """The predecessors of each position in the reversed flow: positions with their signs changed, in order."""
    return {-place: [-other for other in flow[place]] for place in sorted(flow, reverse=True)}


def _dominators(before: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """The immediate dominator of every position; the first one is its own.

    One pass of the algorithm of Cooper, Harvey and Kennedy (A Simple, Fast Dominance Algorithm, 2001) is enough,
    because the graph is acyclic and visited in topological order.

    Args:
        before: in order, every position with its predecessors; only the first has none.
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
