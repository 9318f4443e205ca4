"""The walk over a graph that gives values their places; what a movement does there is registered in `PLACING`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pimflow.ir import Concat, Graph, MovementVerdict, Node, OnnxOp, OpRules, Pad
from pimflow.ir.analysis.spaces import MIXED, Box, Cells, Space
from pimflow.ir.analysis.tensor_layout import Index, element_bytes
from pimflow.ir.analysis.views import order_behind, views_behind
from pimflow.ir.ops.movement import MovementOp
from pimflow.records import dataclass

TURNED = "is written in the order of the views behind it"
_OUTSIDE = "is made outside and arrives as it is"


@dataclass(frozen=True, slots=True)
class Movement:
    """The verdict on one movement node.

    `bytes` are those read plus those written by what stays (0 if free). `copied` are the input positions of a Concat
    that are copied; the others are written in place. `reason` says why a node is free, or why something stays. What is
    `composed` is free, and its result has no bytes of its own.
    """

    free: bool
    bytes: int
    reason: str
    copied: Index = ()
    composed: bool = False

    @property
    def verdict(self) -> MovementVerdict:
        """What of it depends on no shape."""
        return MovementVerdict(self.free, self.reason, self.copied, self.composed)


@dataclass(frozen=True, eq=False)
class Places:
    """All values' places.

    Args:
        spaces: the space of every value that has a place of its own making; others are spaces by themselves.
        movements: the verdicts.
        actual: what holds in this graph: a verdict that a node brought along and that cannot be carried out here is a
            copy.
    """

    spaces: Mapping[str, Space]
    movements: Mapping[str, Movement]
    actual: Mapping[str, Movement]


def carried(graph: Graph, node: Node, verdict: MovementVerdict) -> Movement:
    """A verdict that the node brings along, with the bytes that it moves in this graph."""
    moved = 0 if verdict.free else moved_bytes(graph, node, verdict.copied)
    return Movement(verdict.free, moved, verdict.reason, verdict.copied, verdict.composed)


def moved_bytes(graph: Graph, node: Node, copied: Sequence[int] = ()) -> int:
    """Bytes read plus bytes written when a movement node is executed (of a Concat: the `copied` inputs)."""

    def size(name: str) -> int:
        value = graph.value(name)
        return value.elements * (element_bytes(value.dtype) or 0)

    if isinstance(node.op, Concat) and copied:
        return 2 * sum(size(node.inputs[index]) for index in copied)
    written = sum(size(name) for name in node.outputs if name)
    if isinstance(node.op, Pad):
        return size(node.inputs[0]) + written
    return 2 * written


PLACING: OpRules[Callable[[Walk, Node, Any, Movement | None], Movement]] = OpRules(
    "movement analysis", asks=lambda kind: issubclass(kind, (MovementOp, OnnxOp))
)
"""Puts a movement node's output in a place relative to its inputs, or says why it stays a copy: from the walk over the
graph, the node, its op and the verdict that it brought along."""


class Walk:
    """One walk over the graph, region by region; every movement node adds a relation of places or is refused.

    Args:
        graph: the graph.
        composed: names of nodes that are composed with the copies behind them.
        turned: values that kernels write in the order of the views behind them.
    """

    def __init__(
        self, graph: Graph, composed: frozenset[str] = frozenset(), turned: frozenset[str] = frozenset()
    ) -> None:
        self.graph = graph
        self.composed = composed
        self.turned = turned
        self.spaces: dict[str, Space] = {}
        self.movements: dict[str, Movement] = {}
        self.actual: dict[str, Movement] = {}
        self.region_of: dict[str, str] = {}

    def run(self) -> Places:
        """All values' places."""
        nodes = [node for node in self.graph.nodes if node.op.is_movement]
        if nodes:
            self._number_regions()
        for node in self._by_region(nodes):
            verdict = node.placement.movement
            brought = None if verdict is None else carried(self.graph, node, verdict)
            found = self._decide(node, brought)
            self.actual[node.name] = found
            self.movements[node.name] = found if brought is None else brought
        return Places(self.spaces, self.movements, self.actual)

    def _number_regions(self) -> None:
        regions = {node.name: node.placement.region for node in self.graph.nodes}
        if any(region is not None for region in regions.values()):
            self.region_of = {name: f"#{name}" if region is None else str(region) for name, region in regions.items()}

    def _by_region(self, nodes: list[Node]) -> list[Node]:
        if not self.region_of:
            return nodes
        last = len(self.graph.nodes)  # nodes without region only occur in graphs that are not compiled yet

        def key(node: Node) -> int:
            region = node.placement.region
            return last if region is None else region

        return sorted(nodes, key=key)

    def _decide(self, node: Node, brought: Movement | None) -> Movement:
        names = (*(node.inputs if isinstance(node.op, Concat) else node.inputs[:1]), *node.outputs)
        values = [self.graph.values.get(name) for name in names]
        if any(value is None or value.shape is None or element_bytes(value.dtype) is None for value in values):
            return self.kept(node, "its shape or element type is not static")
        if node.name in self.composed or (brought is not None and brought.composed) or self._joins_composed(node):
            return self._compose(node)
        if brought is not None and not brought.free and not isinstance(node.op, Concat):
            return brought
        if not isinstance(node.op, Concat) and self.graph.is_constant(node.inputs[0]):
            return self.kept(node, "its input is a constant, which lies outside the arena")
        return PLACING.of(node.op)(self, node, node.op, brought)

    def _joins_composed(self, node: Node) -> bool:
        """Whether a node puts a composed node's result together, which its region has made in parts."""
        if node.placement.movement is not None or not self.region_of or not isinstance(node.op, Concat):
            return False
        return all(self.space(name).composed for name in node.inputs)

    def _compose(self, node: Node) -> Movement:
        """Leaves a node to the copies that read its result."""
        shape = self.graph.shape(node.output)
        window = Box.at((0,) * len(shape), shape)
        space = Space(window, self.graph.value(node.output).dtype, MIXED, "has no bytes of its own", composed=True)
        self.join(node.output, space, window)
        return Movement(True, 0, "the copies that read it read what it reads", composed=True)

    def kept(self, node: Node, reason: str) -> Movement:
        """The verdict that a node stays, and why."""
        return Movement(False, moved_bytes(self.graph, node), reason)

    def space(self, name: str) -> Space:
        """The space of a value, made when it is first asked for."""
        known = self.spaces.get(name)
        if known is not None:
            return known
        value = self.graph.value(name)
        shape = self.graph.shape(name)
        producer = self.graph.producer(name)
        box = Box.at((0,) * len(shape), shape)
        if producer is None:
            fixed = "is a constant" if self.graph.is_constant(name) else _OUTSIDE
            space = Space(box, value.dtype, MIXED, fixed)
        else:
            strides = self.turned_strides(name, producer)
            fixed = "" if strides is None else TURNED
            space = Space(box, value.dtype, self.region_of.get(producer.name, ""), fixed, strides=strides)
        space.places[name] = box
        space.content.add((Cells(box),))
        self.spaces[name] = space
        return space

    def join(self, name: str, space: Space, box: Box) -> None:
        """Gives a value its place in a space."""
        space.places[name] = box
        self.spaces[name] = space

    def immovable(self, node: Node, space: Space, brought: Movement | None) -> str:
        """Why the node must not decide where the values of this space lie; "" if it may.

        In a region that is cut out, a value from outside looks like an input. A verdict brought along knows better.
        """
        if space.fixed and (brought is None or space.fixed != _OUTSIDE):
            return space.fixed
        if brought is None and space.owner != self.region_of.get(node.name, ""):
            return "is made outside the region and arrives as it is"
        return ""

    def turned_strides(self, name: str, maker: Node) -> Index | None:
        """The strides in which a node writes its result, as was decided; None for the layout's own."""
        if name in self.turned:
            return order_behind(self.graph, name)
        told = [] if maker.op.is_movement and not isinstance(maker.op, Concat) else views_behind(self.graph, name)
        verdicts = [node.placement.movement for node in told]
        if not told or any(verdict is None or not verdict.free or verdict.composed for verdict in verdicts):
            return None
        return order_behind(self.graph, name)
