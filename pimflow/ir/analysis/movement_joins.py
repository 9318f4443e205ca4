"""Placing rules of the nodes that join data: Pad, Concat."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from pimflow.ir import Concat, Node, Pad
from pimflow.ir.analysis.movement_walk import PLACING, REORDERED, Movement, Walk, moved_bytes
from pimflow.ir.analysis.spaces import MIXED, Box, Cells, Space
from pimflow.ir.analysis.tensor_layout import Index


@PLACING.register(Pad)
def _pad(walk: Walk, node: Node, op: Pad, prior: Movement | None) -> Movement:
    source, out = node.inputs[0], node.output
    space = walk.space(source)
    inner = space.places[source]
    lo = tuple(a - b for a, b in zip(inner.lo, op.before, strict=True))
    outer = Box.at(lo, walk.graph.shape(out))
    margins = outer.minus(inner)
    if not margins:
        walk.join(out, space, outer)
        return Movement(True, 0, "the same bytes")
    reason = walk.immovable(node, space, prior)
    if reason:
        return walk.copy_verdict(node, f"{source} {reason}")
    hull = space.hull.hull(outer)
    if not space.can_fill(margins, op.value):
        return walk.copy_verdict(node, f"the space around {source} holds other data")
    if not space.stays_dense(hull):
        return walk.copy_verdict(node, f"the bytes of {source} are also read under another shape")
    space.content.add(Cells(box, op.value) for box in margins)
    space.hull = hull
    space.owner = space.owner if space.owner == walk.region_of.get(node.name, "") else MIXED
    walk.join(out, space, outer)
    return Movement(True, 0, "space reserved around its input, filled beforehand")


@PLACING.register(Concat)
def _concat(walk: Walk, node: Node, op: Concat, prior: Movement | None) -> Movement:
    out = node.output
    shape = walk.graph.shape(out)
    boxes = _operand_boxes(walk, node, op.axis)
    free = Movement(True, 0, "inputs are written into one region")
    if (prior is None or prior.free) and _already_joined(walk, node, boxes):
        first = walk.space(node.inputs[0])
        walk.join(out, first, Box.at(first.places[node.inputs[0]].lo, shape))
        return free
    window = Box.at((0,) * len(shape), shape)
    owner = walk.region_of.get(node.name, "") if prior is None else MIXED
    strides = walk.reordered_strides(out, node) if prior is None and walk.region_of else None
    fixed = "" if strides is None else REORDERED
    walk.join(out, Space(window, walk.graph.value(out).dtype, owner, fixed, strides=strides), window)
    refused: dict[int, str] = {}
    if prior is not None and not prior.free:
        refused = dict.fromkeys(prior.copied or range(len(boxes)), prior.reason)
    for group in _operand_groups(walk, node, [index for index in range(len(boxes)) if index not in refused]):
        refused |= _place_group(walk, node, group, boxes, prior)
    space = walk.spaces[out]
    shift = space.places[out].lo
    space.content.add(Cells(boxes[index].shifted(shift)) for index in refused if boxes[index].volume)
    if not refused:
        return free
    copied = tuple(sorted(refused))
    reasons = dict.fromkeys(refused[index] for index in copied)
    return Movement(False, moved_bytes(walk.graph, node, copied), ", ".join(reasons), copied)


def _already_joined(walk: Walk, node: Node, boxes: Sequence[Box]) -> bool:
    """Whether the operands already lie in one space as the output needs them, without gaps."""
    space = walk.space(node.inputs[0])
    start = space.places[node.inputs[0]].lo
    return all(
        walk.space(name) is space and space.places[name] == box.shifted(start)
        for name, box in zip(node.inputs, boxes, strict=True)
    )


def _operand_boxes(walk: Walk, node: Node, axis: int) -> list[Box]:
    boxes: list[Box] = []
    position = 0
    for name in node.inputs:
        shape = walk.graph.shape(name)
        origin = [0] * len(shape)
        origin[axis] = position
        position += shape[axis]
        boxes.append(Box.at(origin, shape))
    return boxes


def _operand_groups(walk: Walk, node: Node, indexes: Sequence[int]) -> list[list[int]]:
    """Operands by space, largest group first: if two groups conflict, the smaller one is copied."""
    groups: dict[int, list[int]] = {}
    for index in indexes:
        groups.setdefault(id(walk.space(node.inputs[index])), []).append(index)

    def order(group: list[int]) -> tuple[int, int]:
        return -sum(math.prod(walk.graph.shape(node.inputs[index])) for index in group), group[0]

    return sorted(groups.values(), key=order)


def _place_group(
    walk: Walk, node: Node, group: list[int], boxes: Sequence[Box], prior: Movement | None
) -> dict[int, str]:
    """Merges the space of a group of operands into the output's; returns the refused operands with the reason."""
    out, names = node.output, node.inputs
    other = walk.space(names[group[0]])
    reason = walk.immovable(node, other, prior)
    if other.composed or (reason and not all(_is_part(walk, node, names[index]) for index in group)):
        return {index: f"{names[index]} {reason}" for index in group}
    target = walk.spaces[out]
    frame = target.places[out]
    first = boxes[group[0]].shifted(frame.lo)
    here = other.places[names[group[0]]]
    shift = tuple(a - b for a, b in zip(first.lo, here.lo, strict=True))
    back = tuple(-step for step in shift)
    refused: dict[int, str] = {}
    parts: dict[int, Box] = {}
    for index in group:
        wanted, placed = boxes[index].shifted(frame.lo), other.places[names[index]]
        if placed.shifted(shift) == wanted:
            parts[index] = placed
        else:
            refused[index] = f"{names[index]} already has another place"
    # Operands' boxes are disjoint, so a space that lies inside one operand's box cannot clash.
    is_enclosed = len(group) == 1 and any(part.holds(other.hull) for part in parts.values())
    if not is_enclosed:
        begin = tuple(a - b for a, b in zip(here.lo, boxes[group[0]].lo, strict=True))
        elsewhere = [box.shifted(begin) for box in _boxes_without(boxes, parts)]
        if other.has_content(elsewhere) or target.clash(other, shift):
            return dict.fromkeys(group, f"{names[group[0]]} has neighbours where the other inputs would go")
    hull = target.hull.hull(other.hull.shifted(shift))
    if target.strides is not None and hull != target.hull:
        return dict.fromkeys(group, f"{out} {REORDERED}")
    if not (target.stays_dense(hull) and other.stays_dense(hull.shifted(back))):
        return dict.fromkeys(group, f"the bytes of {names[group[0]]} are also read under another shape")
    _merge(walk, target, other, shift, hull)
    return refused


def _boxes_without(boxes: Sequence[Box], left_out: Collection[int]) -> list[Box]:
    """The boxes of a Concat's operands, which lie side by side, without some of them; adjacent ones as one."""
    found: list[Box] = []
    for index, box in enumerate(boxes):
        if index in left_out:
            continue
        if found and index - 1 not in left_out:
            found[-1] = Box(found[-1].lo, box.hi)
        else:
            found.append(box)
    return found


def _merge(walk: Walk, target: Space, other: Space, shift: Index, hull: Box) -> None:
    """Merges two spaces; the values of the smaller one are moved, so that a chain of merges stays near linear."""
    owner = target.owner if target.owner == other.owner else MIXED
    fixed, strides = ("", None) if target.strides is None else (target.fixed, target.strides)
    if len(target.places) < len(other.places):
        shift = tuple(-step for step in shift)
        hull = hull.shifted(shift)
        target, other = other, target
    for name, box in other.places.items():
        walk.join(name, target, box.shifted(shift))
    target.content.add(cells.shifted(shift) for cells in other.content)
    target.dense |= other.dense
    target.hull = hull
    target.owner = owner
    target.fixed, target.strides = fixed, strides


def _is_part(walk: Walk, node: Node, name: str) -> bool:
    """Whether a value is rows that the Concat's own region computed, so that they can be placed like one value.

    If Concats of the whole graph have placed some of them in a buffer that other regions write as well, the others are
    placed next to them.
    """
    producer = walk.graph.producer(name)
    if not walk.region_of or producer is None or walk.region_of[producer.name] != walk.region_of[node.name]:
        return False
    return isinstance(producer.op, Concat) or not producer.op.is_movement
