"""Sequences whose elements are known values, or known parts of one: reads of them are reads of these.

Exporters write lists of tensors as sequences: what a value is split into (SplitToSequence), or what a program collects
(SequenceConstruct, SequenceInsert), to be read one by one (SequenceAt) or stacked (ConcatFromSequence).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise

from pimflow.ir import Array, Node, OnnxOp, Value
from pimflow.records import NamedTuple

MAX_ELEMENTS = 4096
"""Longer sequences are not followed: inserting one element after the other would take quadratic memory."""

MAX_PARTS = 256
"""A ConcatFromSequence of more parts of split values stays: each would become a node."""


class Part(NamedTuple):
    """Rows `begin` to `end` of `source` along an axis; the axis itself is dropped unless `keeps_axis`."""

    source: str
    axis: int
    begin: int
    end: int
    keeps_axis: bool


Element = str | Part
"""A value by name, or a part of one."""


class Sequences:
    """The elements of the sequences of a graph, as far as they do not depend on data."""

    def __init__(self) -> None:
        self._elements: dict[str, tuple[Element, ...]] = {}

    def add(self, node: Node, values: Mapping[str, Value], known: Mapping[str, Array]) -> None:
        """Notes the elements of the sequence that a node makes, if it makes one.

        Args:
            node: any node.
            values: types of the values that it reads.
            known: arrays of the known values that it reads.
        """
        made = self._made(node, values, known)
        if made is not None and len(made) <= MAX_ELEMENTS:
            self._elements[node.outputs[0]] = made

    def length(self, node: Node) -> int | None:
        """What a SequenceLength returns; None for other nodes, and if that depends on data."""
        elements = self._elements.get(node.inputs[0]) if _kind(node) == "SequenceLength" else None
        return None if elements is None else len(elements)

    def read(self, node: Node, known: Mapping[str, Array]) -> tuple[Element, ...] | None:
        """The elements that a SequenceAt or a ConcatFromSequence reads; None for other nodes, and if they depend on
        data or do not exist.

        Args:
            node: any node.
            known: arrays of the known values that it reads.
        """
        if _kind(node) not in ("SequenceAt", "ConcatFromSequence"):
            return None
        elements = self._elements.get(node.inputs[0])
        if not elements:
            return None
        if _kind(node) == "ConcatFromSequence":
            return elements if sum(isinstance(element, Part) for element in elements) <= MAX_PARTS else None
        place = _place(node.inputs[1], len(elements), known)
        return None if place is None or place == len(elements) else (elements[place],)

    def _made(self, node: Node, values: Mapping[str, Value], known: Mapping[str, Array]) -> tuple[Element, ...] | None:
        kind = _kind(node)
        if kind in ("SequenceEmpty", "SequenceConstruct"):
            return node.inputs
        if kind == "SplitToSequence":
            return _parts(node, values, known)
        elements = self._elements.get(node.inputs[0]) if node.inputs else None
        if elements is None or kind not in ("Identity", "SequenceInsert", "SequenceErase"):
            return None
        if kind == "Identity":
            return elements
        inserts, position = kind == "SequenceInsert", node.inputs[2:] if kind == "SequenceInsert" else node.inputs[1:]
        last = len(elements) if inserts else len(elements) - 1
        place = _place(position[0], len(elements), known) if position and position[0] else last
        if place is None or not 0 <= place <= last:
            return None
        return (*elements[:place], node.inputs[1], *elements[place:]) if inserts else _without(elements, place)


def _without(elements: tuple[Element, ...], place: int) -> tuple[Element, ...]:
    return elements[:place] + elements[place + 1 :]


def _place(name: str, length: int, known: Mapping[str, Array]) -> int | None:
    """A position in a sequence of some length, or the end of it; None if it is not known, or beyond."""
    position = known.get(name)
    if position is None or not -length <= (place := int(position.reshape(-1)[0])) <= length:
        return None
    return place + length if place < 0 else place


def _parts(split: Node, values: Mapping[str, Value], known: Mapping[str, Array]) -> tuple[Part, ...] | None:
    """The parts that a value is split into; None if they depend on data."""
    shape = values[split.inputs[0]].shape
    axis, keeps_axis = (_attribute(split, name, default) for name, default in (("axis", 0), ("keepdims", 1)))
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    sizes = _sizes(split, shape[axis], known)
    if sizes is None:
        return None
    keeps = len(split.inputs) > 1 or keeps_axis != 0
    bounds = pairwise(accumulate(sizes, initial=0))
    return tuple([Part(split.inputs[0], axis % len(shape), begin, end, keeps) for begin, end in bounds])


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
