"""The walk over a graph that places its values; the rule for each movement op is registered in `PLACING`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pimflow.ir import Concat, Graph, MovementVerdict, Node, OnnxOp, OpRules, Pad
from pimflow.ir.analysis.spaces import MIXED, Box, Cells, Space
from pimflow.ir.analysis.tensor_layout import Index, element_bytes
from pimflow.ir.analysis.views import strides_for_views, views_after
from pimflow.ir.ops.movement import MovementOp
from pimflow.records import dataclass

REORDERED = "is written in the order of the views after it"
OUTSIDE = "is made outside at a fixed place"


@dataclass(frozen=True, slots=True)
class Movement:
    """The verdict on one movement node.

    `bytes` counts the bytes read plus those written by the copies that remain (0 if free). `copied` are the input
    positions of a Concat that are copied; the others are written in place. `reason` says why a node is free, or why
    copies remain. A `composed` node is free, and its result has no bytes of its own.
    """

    free: bool
    bytes: int
    reason: str
    copied: Index = ()
    composed: bool = False

    @property
    def verdict(self) -> MovementVerdict:
        """The part of the verdict that does not depend on shapes."""
        return MovementVerdict(self.free, self.reason, self.copied, self.composed)


@dataclass(frozen=True, eq=False)
class Places:
    """The places of all values.

    Args:
        spaces: the space of every value that the walk placed; any other value is a space by itself.
        movements: the verdicts.
        actual: the verdicts that hold in this graph: if one from a node's placement cannot be carried out here, the
            node is a copy.
    """

    spaces: Mapping[str, Space]
    movements: Mapping[str, Movement]
    actual: Mapping[str, Movement]


def movement_from(graph: Graph, node: Node, verdict: MovementVerdict) -> Movement:
    """The verdict from a node's placement, with the bytes that it moves in this graph."""
    moved = 0 if verdict.free else moved_bytes(graph, node, verdict.copied)
    return Movement(verdict.free, moved, verdict.reason, verdict.copied, verdict.composed)


def moved_bytes(graph: Graph, node: Node, copied: Sequence[int] = ()) -> int:
    """Bytes read plus bytes written when a movement node is executed (for a Concat, of its `copied` inputs)."""

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
"""Places a movement node's output relative to its inputs, or says why it remains a copy. Arguments: the walk over the
graph, the node, its op and the verdict in its placement, if any."""


class Walk:
    """One walk over the graph, region by region; every movement node adds a relation of places or is refused.

    Args:
        graph: the graph.
        composed: names of nodes that are composed with the copies after them.
        reordered: values that kernels write in the order of the views after them.
    """

    def __init__(
        self, graph: Graph, composed: frozenset[str] = frozenset(), reordered: frozenset[str] = frozenset()
    ) -> None:
        self.graph = graph
        self.composed = composed
        self.reordered = reordered
        self.spaces: dict[str, Space] = {}
        self.movements: dict[str, Movement] = {}
        self.actual: dict[str, Movement] = {}
        self.region_of: dict[str, str] = {}

    def run(self) -> Places:
        """Places all values."""
        nodes = [node for node in self.graph.nodes if node.op.is_movement]
        if nodes:
            self._number_regions()
        for node in self._by_region(nodes):
            verdict = node.placement.movement
            prior = None if verdict is None else movement_from(self.graph, node, verdict)
            found = self._decide(node, prior)
            self.actual[node.name] = found
            self.movements[node.name] = found if prior is None else prior
        return Places(self.spaces, self.movements, self.actual)

    def _number_regions(self) -> None:
        regions = {node.name: node.placement.region for node in self.graph.nodes}
        if any(region is not None for region in regions.values()):
            self.region_of = {name: f"#{name}" if region is None else str(region) for name, region in regions.items()}

    def _by_region(self, nodes: list[Node]) -> list[Node]:
        if not self.region_of:
            return nodes
        last = len(self.graph.nodes)  # nodes without a region only occur in graphs that are not compiled yet

        def key(node: Node) -> int:
            region = node.placement.region
            return last if region is None else region

        return sorted(nodes, key=key)

    def _decide(self, node: Node, prior: Movement | None) -> Movement:
        names = (*(node.inputs if isinstance(node.op, Concat) else node.inputs[:1]), *node.outputs)
        values = [self.graph.values.get(name) for name in names]
        if any(value is None or value.shape is None or element_bytes(value.dtype) is None for value in values):
            return self.copy_verdict(node, "its shape or element type is not static")
        if node.name in self.composed or (prior is not None and prior.composed) or self._joins_composed(node):
            return self._compose(node)
        if prior is not None and not prior.free and not isinstance(node.op, Concat):
            return prior
        if not isinstance(node.op, Concat) and self.graph.is_constant(node.inputs[0]):
            return self.copy_verdict(node, "its input is a constant, which lies outside the arena")
        return PLACING.of(node.op)(self, node, node.op, prior)

    def _joins_composed(self, node: Node) -> bool:
        """Whether a Concat joins the parts of a composed node's result, which its region computed in parts."""
        if node.placement.movement is not None or not self.region_of or not isinstance(node.op, Concat):
            return False
        return all(self.space(name).composed for name in node.inputs)

    def _compose(self, node: Node) -> Movement:
        """Leaves a node to the copies that read its result."""
        shape = self.graph.shape(node.output)
        window = Box.at((0,) * len(shape), shape)
        space = Space(window, self.graph.value(node.output).dtype, MIXED, "has no bytes of its own", composed=True)
        self.join(node.output, space, window)
        return Movement(True, 0, "the copies that read it read its inputs instead", composed=True)

    def copy_verdict(self, node: Node, reason: str) -> Movement:
        """The verdict that a node remains a copy, with the reason."""
        return Movement(False, moved_bytes(self.graph, node), reason)

    def space(self, name: str) -> Space:
        """The space of a value, created on first use."""
        known = self.spaces.get(name)
        if known is not None:
            return known
        value = self.graph.value(name)
        shape = self.graph.shape(name)
        producer = self.graph.producer(name)
        box = Box.at((0,) * len(shape), shape)
        if producer is None:
            fixed = "is a constant" if self.graph.is_constant(name) else OUTSIDE
            space = Space(box, value.dtype, MIXED, fixed)
        else:
            strides = self.reordered_strides(name, producer)
            fixed = "" if strides is None else REORDERED
            space = Space(box, value.dtype, self.region_of.get(producer.name, ""), fixed, strides=strides)
        space.places[name] = box
        space.content.add((Cells(box),))
        self.spaces[name] = space
        return space

    def join(self, name: str, space: Space, box: Box) -> None:
        """Places a value in a space."""
        space.places[name] = box
        self.spaces[name] = space

    def immovable(self, node: Node, space: Space, prior: Movement | None) -> str:
        """Why the node must not move the values of this space; "" if it may.

        In an extracted region, a value from outside looks like an input; a verdict in the placement takes precedence.
        """
        if space.fixed and (prior is None or space.fixed != OUTSIDE):
            return space.fixed
        if prior is None and space.owner != self.region_of.get(node.name, ""):
            return "is made outside the region at a fixed place"
        return ""

    def reordered_strides(self, name: str, producer: Node) -> Index | None:
        """The strides in which a node was decided to write its result; None for the layout's own."""
        if name in self.reordered:
            return strides_for_views(self.graph, name)
        views = [] if producer.op.is_movement and not isinstance(producer.op, Concat) else views_after(self.graph, name)
        verdicts = [node.placement.movement for node in views]
        if not views or any(verdict is None or not verdict.free or verdict.composed for verdict in verdicts):
            return None
        return strides_for_views(self.graph, name)
