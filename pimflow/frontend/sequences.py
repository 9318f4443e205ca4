"""Elements of split values, which exporters write as reads (SequenceAt) of a sequence (SplitToSequence)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import NamedTuple

from pimflow.ir import Array, Node, OnnxOp, Value


class Part(NamedTuple):
    """Rows `begin` to `end` of `source` along an axis; the axis itself is dropped unless `keeps_axis`."""

    source: str
    axis: int
    begin: int
    end: int
    keeps_axis: bool


def part_read(node: Node, split: Node | None, values: Mapping[str, Value], known: Mapping[str, Array]) -> Part | None:
    """The part of a value that a SequenceAt reads; None if it, or the split, depends on data.

    Args:
        node: the SequenceAt.
        split: the node that makes the sequence, if known.
        values: types of the values that both read.
        known: arrays of the known values that both read.
    """
    if split is None or _kind(split) != "SplitToSequence" or _kind(node) != "SequenceAt":
        return None
    shape, position = values[split.inputs[0]].shape, known.get(node.inputs[1])
    axis, keeps_axis = (_attribute(split, name, default) for name, default in (("axis", 0), ("keepdims", 1)))
    if position is None or shape is None or not -len(shape) <= axis < len(shape):
        return None
    sizes = _sizes(split, shape[axis], known)
    if sizes is None or not -len(sizes) <= (place := int(position)) < len(sizes):
        return None
    begin, end = list(pairwise(accumulate(sizes, initial=0)))[place]
    given = len(split.inputs) > 1
    return Part(split.inputs[0], axis % len(shape), begin, end, given or keeps_axis != 0)


def _sizes(split: Node, size: int, known: Mapping[str, Array]) -> list[int] | None:
    """The sizes of all parts; None if they are not known, or do not add up to `size`."""
    if len(split.inputs) < 2:
        return [1] * size
    given = known.get(split.inputs[1])
    if given is None:
        return None
    if given.ndim:
        sizes = [int(part) for part in given]
    else:
        each = int(given)
        sizes = [min(each, size - begin) for begin in range(0, size, each)] if each > 0 else []
    return sizes if sum(sizes) == size and min(sizes, default=0) >= 0 else None


def _kind(node: Node) -> str:
    return node.op.op_type if isinstance(node.op, OnnxOp) and not node.op.domain else ""


def _attribute(node: Node, name: str, default: int) -> int:
    assert isinstance(node.op, OnnxOp)
    value = dict(node.op.attributes).get(name, default)
    return value if isinstance(value, int) else default
