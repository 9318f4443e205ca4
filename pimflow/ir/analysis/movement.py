"""Which Slice, Pad, Concat, Reshape, Transpose, Split and Identity move bytes, and which are only places in memory.

Algebra of places. A value is a box in a space; nodes put their output in a place relative to their inputs:

    Slice      out = in + start                      always possible
    Split      out_k = in + offset_k                 always possible
    Identity   out = in                              always possible
    Concat     in_k = out + offset_k                 unless an operand is already elsewhere, or a cell has two writers
    Pad        out = in - before, margins filled     unless a margin has a writer or another constant
    Reshape    out shows the bytes of in             if strides can show them so
    Transpose  out shows the bytes of in             likewise

What a Reshape or Transpose shows out of the layout's order is free only if every reader accepts it: a matrix
product (transposed or pitched operands), or another movement, which then copies once for both. A matrix product whose
result only such views read writes it in the order of the last of them, if its rows stay dense (heads of an attention
side by side: strided batches with a pitch).

A copy whose result only copies read is none: they read what it reads, each element once (a roll in two Concats before
it is cut into windows, a Concat before channels are shuffled). It is *composed* with them, and its result has no place.

Kernels read and write boxes with strides, so that a box of a larger space needs no copy; only the innermost axis of the
layout has to be dense.

Rules are local. With a region, a node places values written by its own region only, so its verdict depends on nothing
else; a graph without regions is one space of decisions. The pass `MovementElimination` writes the verdicts that hold
for a whole graph into the nodes' placements, which rewrites keep and which count wherever the node is seen again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

from pimflow.ir import Concat, Graph, MovementVerdict, Node, OnnxOp, OpRules, Pad, Reshape, Slice, Transpose
from pimflow.ir.analysis.spaces import MIXED, Alias, Box, CellIndex, Cells, Space
from pimflow.ir.analysis.tensor_layout import (
    Index,
    axis_order,
    dense_strides,
    element_bytes,
    is_contiguous,
    permuted,
    reshaped_strides,
    same_strides,
    transpose_keeps_bytes,
)
from pimflow.ir.analysis.views import all_take, order_behind, views_behind
from pimflow.ir.ops.movement import MovementOp

_ROUNDS = 4
"""Copies in a row that are composed with one at most: each is found once the next one is."""

_TURNED = "is written in the order of the views behind it"
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


_CACHE: WeakKeyDictionary[Graph, Places] = WeakKeyDictionary()


def place(graph: Graph) -> Places:
    """Places all values of a graph (linear in its nodes; kept as long as the graph lives)."""
    known = _CACHE.get(graph)
    if known is None:
        known = _CACHE[graph] = _Placer(graph).run() if _is_decided(graph) else _placed_anew(graph)
    return known


def _is_decided(graph: Graph) -> bool:
    """Whether a movement of a graph has a verdict, or it is cut into regions."""
    return any(node.placement.movement is not None or node.placement.region is not None for node in graph.nodes)


def _placed_anew(graph: Graph) -> Places:
    """With matrix products turned, so that no view behind them is a copy, and copies composed that only copies read."""
    products = (node.output for node in graph.nodes if node.op.is_matrix_product)
    turned = frozenset(name for name in products if order_behind(graph, name) is not None)
    places = _Placer(graph, turned=turned).run()
    composed: frozenset[str] = frozenset()
    for _ in range(_ROUNDS):
        more = frozenset(_composable(graph, places.movements))
        if more == composed:
            break
        found = _Placer(graph, more, turned).run()
        if not more <= set(_composable(graph, found.movements)):
            break
        composed, places = more, found
    return places


def _composable(graph: Graph, movements: Mapping[str, Movement]) -> Iterator[str]:
    """Names of the movement nodes that are copies, or composed, and whose results only copies read."""
    for node in graph.nodes:
        found = movements.get(node.name)
        if found is None or (found.free and not found.composed) or len(node.outputs) != 1:
            continue
        if graph.value(node.output).shape is not None and _only_copies_read(graph, node.output, movements):
            yield node.name


def _only_copies_read(graph: Graph, name: str, movements: Mapping[str, Movement]) -> bool:
    """Whether a value, and all that is shown of it, is read by copies alone."""
    values = [name]
    while values:
        value = values.pop()
        readers = graph.users(value)
        if value in graph.outputs or not readers:
            return False
        for reader in readers:
            found = movements.get(reader.name)
            if found is None or _keeps(reader, value, found):
                return False
            if found.free and not found.composed:
                values.extend(reader.outputs)
    return True


def _keeps(reader: Node, value: str, found: Movement) -> bool:
    """Whether a movement needs a value where it lies: to grow around it, or to leave it in its own result."""
    if found.composed or not isinstance(reader.op, (Concat, Pad)):
        return False
    left = [index for index, name in enumerate(reader.inputs) if name == value and index not in found.copied]
    return found.free or (bool(found.copied) and bool(left))


def movement(graph: Graph) -> Mapping[str, Movement]:
    """The verdict on every movement node, by node name."""
    return place(graph).movements


def movement_of(graph: Graph, node: Node) -> Movement:
    """The verdict on one movement node; the graph is looked at as a whole only where the node brings none along."""
    verdict = node.placement.movement
    return movement(graph)[node.name] if verdict is None else _movement_of(graph, node, verdict)


def _movement_of(graph: Graph, node: Node, verdict: MovementVerdict) -> Movement:
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


PLACING: OpRules[Callable[[_Placer, Node, Any, Movement | None], Movement]] = OpRules(
    "movement analysis", asks=lambda kind: issubclass(kind, (MovementOp, OnnxOp))
)
"""Puts a movement node's output in a place relative to its inputs, or says why it stays a copy: from the walk over the
graph, the node, its op and the verdict that it brought along."""


class _Placer:
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
        nodes = [node for node in self.graph.nodes if node.op.is_movement]
        if nodes:
            self._number_regions()
        for node in self._by_region(nodes):
            verdict = node.placement.movement
            brought = None if verdict is None else _movement_of(self.graph, node, verdict)
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
            return self._kept(node, "its shape or element type is not static")
        if node.name in self.composed or (brought is not None and brought.composed) or self._joins_composed(node):
            return self._compose(node)
        if brought is not None and not brought.free and not isinstance(node.op, Concat):
            return brought
        if not isinstance(node.op, Concat) and self.graph.is_constant(node.inputs[0]):
            return self._kept(node, "its input is a constant, which lies outside the arena")
        return PLACING.of(node.op)(self, node, node.op, brought)

    def _joins_composed(self, node: Node) -> bool:
        """Whether a node puts a composed node's result together, which its region has made in parts."""
        if node.placement.movement is not None or not self.region_of or not isinstance(node.op, Concat):
            return False
        return all(self._space(name).composed for name in node.inputs)

    def _compose(self, node: Node) -> Movement:
        """Leaves a node to the copies that read its result."""
        shape = self.graph.shape(node.output)
        window = Box.at((0,) * len(shape), shape)
        space = Space(window, self.graph.value(node.output).dtype, MIXED, "has no bytes of its own", composed=True)
        self._join(node.output, space, window)
        return Movement(True, 0, "the copies that read it read what it reads", composed=True)

    def _kept(self, node: Node, reason: str) -> Movement:
        return Movement(False, moved_bytes(self.graph, node), reason)

    def _space(self, name: str) -> Space:
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
            strides = self._turned(name, producer)
            fixed = "" if strides is None else _TURNED
            space = Space(box, value.dtype, self.region_of.get(producer.name, ""), fixed, strides=strides)
        space.places[name] = box
        space.content.add((Cells(box),))
        self.spaces[name] = space
        return space

    def _join(self, name: str, space: Space, box: Box) -> None:
        space.places[name] = box
        self.spaces[name] = space

    def _immovable(self, node: Node, space: Space, brought: Movement | None) -> str:
        """Why the node must not decide where the values of this space lie; "" if it may.

        In a region that is cut out, a value from outside looks like an input. A verdict brought along knows better.
        """
        if space.fixed and (brought is None or space.fixed != _OUTSIDE):
            return space.fixed
        if brought is None and space.owner != self.region_of.get(node.name, ""):
            return "is made outside the region and arrives as it is"
        return ""

    def _is_part(self, node: Node, name: str) -> bool:
        """Whether a value is rows that the region of a Concat made itself, which lie as those of one value do.

        Where Concats of the whole graph have put some of them into a buffer that other regions write as well, the place
        of the others is beside them.
        """
        maker = self.graph.producer(name)
        if not self.region_of or maker is None or self.region_of[maker.name] != self.region_of[node.name]:
            return False
        return isinstance(maker.op, Concat) or not maker.op.is_movement

    @PLACING.register(Slice)
    def _slice(self, node: Node, op: Slice, brought: Movement | None) -> Movement:
        source, out = node.inputs[0], node.output
        shape = self.graph.shape(out)
        if op.step != 1:
            if op.axis == axis_order(len(shape))[-1]:
                return self._kept(
                    node, f"takes one element in {op.step} of the innermost axis, kernels read dense runs"
                )
            self._alias(out, Alias(source, "step", op.axis, op.start, op.step, strides=self._stepped(source, op)))
            return Movement(True, 0, "offset and stride in the region of its input")
        space = self._space(source)
        origin = list(space.places[source].lo)
        origin[op.axis] += op.start
        self._join(out, space, Box.at(origin, shape))
        return Movement(True, 0, "offset in the region of its input")

    def _stepped(self, source: str, op: Slice) -> Index | None:
        alias = self._space(source).alias
        if alias is None or alias.strides is None:
            return None
        return (*alias.strides[: op.axis], alias.strides[op.axis] * op.step, *alias.strides[op.axis + 1 :])

    @PLACING.register(OnnxOp)
    def _opaque(self, node: Node, op: OnnxOp, brought: Movement | None) -> Movement:
        return self._split(node, op) if op.op_type == "Split" else self._identity(node)

    def _split(self, node: Node, op: OnnxOp) -> Movement:
        source = node.inputs[0]
        space = self._space(source)
        rank = len(self.graph.shape(source))
        axis = cast(int, dict(op.attributes).get("axis", 0)) % rank
        origin = list(space.places[source].lo)
        for out in node.outputs:
            shape = self.graph.shape(out)
            self._join(out, space, Box.at(origin, shape))
            origin[axis] += shape[axis]
        return Movement(True, 0, "offsets in the region of its input")

    def _identity(self, node: Node) -> Movement:
        space = self._space(node.inputs[0])
        self._join(node.output, space, space.places[node.inputs[0]])
        return Movement(True, 0, "the same bytes")

    def _alias(self, out: str, alias: Alias) -> None:
        shape = self.graph.shape(out)
        box = Box.at((0,) * len(shape), shape)
        space = Space(box, self.graph.value(out).dtype, MIXED, "shows another value's bytes", alias=alias)
        space.composed = self._space(alias.base).composed
        self._join(out, space, box)

    @PLACING.register(Reshape)
    def _reshape(self, node: Node, op: Reshape, brought: Movement | None) -> Movement:
        source, out = node.inputs[0], node.output
        before, after = self.graph.shape(source), self.graph.shape(out)
        strides = self._settled_strides(source)
        if strides is None:
            return self._kept(node, "where its input lies is not settled")
        return self._show(node, Alias(source, "reshape", strides=reshaped_strides(before, strides, after)))

    @PLACING.register(Transpose)
    def _transpose(self, node: Node, op: Transpose, brought: Movement | None) -> Movement:
        source = node.inputs[0]
        strides = self._settled_strides(source)
        if strides is not None and self._is_run(source):
            return self._show(node, Alias(source, "transpose", perm=op.perm, strides=permuted(strides, op.perm)))
        if not transpose_keeps_bytes(self.graph.shape(source), op.perm):
            return self._kept(node, "orders the elements anew")
        self._alias(node.output, Alias(source, "transpose", perm=op.perm))
        return Movement(True, 0, "the same bytes, axes renamed")

    def _show(self, node: Node, alias: Alias) -> Movement:
        """Lets a node's output show its input's bytes, if they are in order or all readers can do with the strides."""
        out = node.output
        if alias.strides is None:
            return self._kept(node, "orders the elements anew")
        shape = self.graph.shape(out)
        in_order = same_strides(shape, alias.strides, dense_strides(shape))
        if not in_order and not self._readers_take(out, alias.strides, node.placement.movement):
            return self._kept(node, "orders the elements anew for readers that need them in order")
        self._keep_dense(node.inputs[0])
        self._alias(out, alias)
        return Movement(True, 0, "the same bytes" if in_order else "the same bytes, read with strides")

    def _readers_take(self, name: str, strides: Index, verdict: MovementVerdict | None) -> bool:
        """Whether every reader accepts a value that is not in the layout's order.

        Products take a transposed or pitched matrix (BLAS: trans and ld), copies take anything. Who reads a value is
        known in a whole graph only; in regions the verdict that the node brings along tells.
        """
        if verdict is not None:
            return True
        if self.region_of:
            return False
        return all_take(self.graph, name, strides)

    def _settled_strides(self, name: str) -> Index | None:
        """Element strides of a value: of one run of elements, of a box in one, or as it shows one; else None."""
        space = self._space(name)
        if space.alias is not None:
            return space.alias.strides
        return dense_strides(self._run_around(name)) if space.strides is None else space.strides

    def _run_around(self, name: str) -> Index:
        """The shape of the run of elements that a value is, or lies in."""
        space = self._space(name)
        shape = space.places[name].shape
        return shape if is_contiguous(shape, space.hull.shape) else space.hull.shape

    def _is_run(self, name: str) -> bool:
        """Whether a value is one run of elements in its region, or shows one."""
        space = self._space(name)
        return space.alias is not None or is_contiguous(space.places[name].shape, space.hull.shape)

    def _keep_dense(self, name: str) -> None:
        """Makes the run of elements that `name` is, lies in or shows stay one."""
        space = self._space(name)
        if space.alias is None:
            space.dense.add(self._run_around(name))

    @PLACING.register(Pad)
    def _pad(self, node: Node, op: Pad, brought: Movement | None) -> Movement:
        source, out = node.inputs[0], node.output
        space = self._space(source)
        inner = space.places[source]
        lo = tuple(a - b for a, b in zip(inner.lo, op.before, strict=True))
        outer = Box.at(lo, self.graph.shape(out))
        margins = outer.minus(inner)
        if not margins:
            self._join(out, space, outer)
            return Movement(True, 0, "the same bytes")
        reason = self._immovable(node, space, brought)
        if reason:
            return self._kept(node, f"{source} {reason}")
        hull = space.hull.hull(outer)
        if not space.can_fill(margins, op.value):
            return self._kept(node, f"the space around {source} holds other data")
        if not space.stays_dense(hull):
            return self._kept(node, f"the bytes of {source} are also read under another shape")
        space.content.add(Cells(box, op.value) for box in margins)
        space.hull = hull
        space.owner = space.owner if space.owner == self.region_of.get(node.name, "") else MIXED
        self._join(out, space, outer)
        return Movement(True, 0, "space reserved around its input, filled beforehand")

    @PLACING.register(Concat)
    def _concat(self, node: Node, op: Concat, brought: Movement | None) -> Movement:
        out = node.output
        shape = self.graph.shape(out)
        boxes = self._operand_boxes(node, op.axis)
        free = Movement(True, 0, "inputs are written into one region")
        if (brought is None or brought.free) and self._lie_together(node, boxes):
            first = self._space(node.inputs[0])
            self._join(out, first, Box.at(first.places[node.inputs[0]].lo, shape))
            return free
        window = Box.at((0,) * len(shape), shape)
        owner = self.region_of.get(node.name, "") if brought is None else MIXED
        strides = self._turned(out, node) if brought is None and self.region_of else None
        fixed = "" if strides is None else _TURNED
        self._join(out, Space(window, self.graph.value(out).dtype, owner, fixed, strides=strides), window)
        refused: dict[int, str] = {}
        if brought is not None and not brought.free:
            refused = dict.fromkeys(brought.copied or range(len(boxes)), brought.reason)
        for group in self._operand_groups(node, [index for index in range(len(boxes)) if index not in refused]):
            refused |= self._place_group(node, group, boxes, brought)
        space = self.spaces[out]
        shift = space.places[out].lo
        space.content.add(Cells(boxes[index].shifted(shift)) for index in refused if boxes[index].volume)
        if not refused:
            return free
        copied = tuple(sorted(refused))
        reasons = dict.fromkeys(refused[index] for index in copied)
        return Movement(False, moved_bytes(self.graph, node, copied), ", ".join(reasons), copied)

    def _turned(self, name: str, maker: Node) -> Index | None:
        """The strides in which a node writes its result, as was decided; None for the layout's own."""
        if name in self.turned:
            return order_behind(self.graph, name)
        told = [] if maker.op.is_movement and not isinstance(maker.op, Concat) else views_behind(self.graph, name)
        verdicts = [node.placement.movement for node in told]
        if not told or any(verdict is None or not verdict.free or verdict.composed for verdict in verdicts):
            return None
        return order_behind(self.graph, name)

    def _lie_together(self, node: Node, boxes: Sequence[Box]) -> bool:
        """Whether the operands already lie in one space as the output wants them (cells between them: none)."""
        space = self._space(node.inputs[0])
        start = space.places[node.inputs[0]].lo
        return all(
            self._space(name) is space and space.places[name] == box.shifted(start)
            for name, box in zip(node.inputs, boxes, strict=True)
        )

    def _operand_boxes(self, node: Node, axis: int) -> list[Box]:
        boxes: list[Box] = []
        position = 0
        for name in node.inputs:
            shape = self.graph.shape(name)
            origin = [0] * len(shape)
            origin[axis] = position
            position += shape[axis]
            boxes.append(Box.at(origin, shape))
        return boxes

    def _operand_groups(self, node: Node, indexes: Sequence[int]) -> list[list[int]]:
        """Operands by space, largest group first: where two exclude each other, the smaller one is copied."""
        groups: dict[int, list[int]] = {}
        for index in indexes:
            groups.setdefault(id(self._space(node.inputs[index])), []).append(index)

        def order(group: list[int]) -> tuple[int, int]:
            return -sum(math.prod(self.graph.shape(node.inputs[index])) for index in group), group[0]

        return sorted(groups.values(), key=order)

    def _place_group(
        self, node: Node, group: list[int], boxes: Sequence[Box], brought: Movement | None
    ) -> dict[int, str]:
        """Puts the operands of one space into the output's; returns those refused, with the reason."""
        out, names = node.output, node.inputs
        other = self._space(names[group[0]])
        reason = self._immovable(node, other, brought)
        if other.composed or (reason and not all(self._is_part(node, names[index]) for index in group)):
            return {index: f"{names[index]} {reason}" for index in group}
        target = self.spaces[out]
        frame = target.places[out]
        first = boxes[group[0]].shifted(frame.lo)
        here = other.places[names[group[0]]]
        shift = tuple(a - b for a, b in zip(first.lo, here.lo, strict=True))
        refused: dict[int, str] = {}
        parts: dict[Box, None] = {}
        for index in group:
            wanted = boxes[index].shifted(frame.lo)
            if other.places[names[index]].shifted(shift) == wanted and wanted not in parts:
                parts[wanted] = None
            else:
                refused[index] = f"{names[index]} already has another place"
        # Inside one operand's box nothing of another can be: boxes of operands are disjoint.
        apart = len(group) == 1 and any(part.holds(other.hull.shifted(shift)) for part in parts)
        covers = CellIndex(map(Cells, parts))
        if not apart and (not other.covered_by(frame, covers, shift) or target.clash(other, shift)):
            return dict.fromkeys(group, f"{names[group[0]]} has neighbours where the other inputs would go")
        back = tuple(-step for step in shift)
        hull = target.hull.hull(other.hull.shifted(shift))
        if target.strides is not None and hull != target.hull:
            return dict.fromkeys(group, f"{out} {_TURNED}")
        if not (target.stays_dense(hull) and other.stays_dense(hull.shifted(back))):
            return dict.fromkeys(group, f"the bytes of {names[group[0]]} are also read under another shape")
        self._merge(target, other, shift, hull)
        return refused

    def _merge(self, target: Space, other: Space, shift: Index, hull: Box) -> None:
        """Makes one space of two; the smaller one's values are moved, so that a chain of merges stays near linear."""
        owner = target.owner if target.owner == other.owner else MIXED
        fixed, strides = ("", None) if target.strides is None else (target.fixed, target.strides)
        if len(target.places) < len(other.places):
            shift = tuple(-step for step in shift)
            hull = hull.shifted(shift)
            target, other = other, target
        for name, box in other.places.items():
            self._join(name, target, box.shifted(shift))
        target.content.add(cells.shifted(shift) for cells in other.content)
        target.dense |= other.dense
        target.hull = hull
        target.owner = owner
        target.fixed, target.strides = fixed, strides
