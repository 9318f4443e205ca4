"""Valid ranges of integer values: indices into a table, positions along an axis, divisors.

The range of an index follows from the table that it reads: for a Gather from [30522, 768] along axis 0 it is 0 to
30521. A divisor is at least 1. Ranges are propagated back to the inputs, through ops that move or shift integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from pimflow.ir.graph import Array, Graph, Node
from pimflow.ir.ops.elementwise import Elementwise
from pimflow.ir.ops.movement import MovementOp
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.records import NamedTuple

QUANTISED = frozenset({"int8", "uint8", "int4", "uint4", "int2", "uint2"})
"""Integer types that hold values, mostly quantised ones, rather than indices and counts."""


class IntegerRange(NamedTuple):
    """Integers from `least` to `most`, inclusive."""

    least: int
    most: int

    def intersection(self, other: IntegerRange) -> IntegerRange:
        """The intersection of both ranges; this range if that is empty."""
        least, most = max(self.least, other.least), min(self.most, other.most)
        return IntegerRange(least, most) if least <= most else self


UNLIMITED = 2**62
"""The end of a range without one. Sums and products of ranges may be somewhat lower, but no index is nearly as high."""
_DIVISORS = IntegerRange(1, UNLIMITED)

InputRanges = Iterator[tuple[str, IntegerRange]]
"""Names of values that a node reads, with the ranges that it accepts."""


def integer_ranges(graph: Graph) -> Mapping[str, IntegerRange]:
    """The integers that each value may hold for every node downstream to run, by name; values without a known range are
    left out.

    The range of a value read by several nodes is the intersection of theirs. Reads in bodies of If, Loop and Scan are
    ignored.
    """
    ranges: dict[str, IntegerRange] = {}
    for node in reversed(graph.nodes):
        for name, found in _ranges_of(graph, node, ranges):
            if name and found.least <= found.most and name not in graph.constants:
                ranges[name] = found.intersection(ranges[name]) if name in ranges else found
    return ranges


def _ranges_of(graph: Graph, node: Node, ranges: Mapping[str, IntegerRange]) -> InputRanges:
    if isinstance(node.op, OnnxOp):
        rule = _INDEXED.get((node.op.domain, node.op.op_type))
        if rule is not None:
            yield from rule(graph, node, node.op)
    elif isinstance(node.op, Elementwise) and node.op.kind in ("Div", "Mod"):
        divisor = graph.value(node.inputs[1])
        if divisor.dtype.startswith(("int", "uint")):
            yield divisor.name, _DIVISORS
    made = [ranges[name] for name in node.outputs if name in ranges]
    if not made:
        return
    wanted = made[0]
    for other in made[1:]:
        wanted = wanted.intersection(other)
    yield from _propagated(graph, node, wanted)


def _propagated(graph: Graph, node: Node, wanted: IntegerRange) -> InputRanges:
    """Propagates a range from a node's outputs to its inputs."""
    kind = node.op.op_type if isinstance(node.op, OnnxOp) and not node.op.domain else ""
    if isinstance(node.op, MovementOp) or kind == "Concat":
        yield from ((name, wanted) for name in node.inputs)
    elif kind in _FIRST_INPUT:
        yield node.inputs[0], wanted
    elif isinstance(node.op, Elementwise):
        yield from _propagated_elementwise(graph, node, node.op.kind, wanted)


_FIRST_INPUT = frozenset(
    {"Identity", "Cast", "Split", "Expand", "Tile", "Gather", "Slice", "Reshape", "Squeeze", "Unsqueeze", "Flatten"}
)
"""Operators whose output consists of (some of) their first input's elements."""


def _propagated_elementwise(graph: Graph, node: Node, kind: str, wanted: IntegerRange) -> InputRanges:
    """Propagates a range through Add, Sub, Mul and Where."""
    if kind == "Where":
        yield from ((name, wanted) for name in node.inputs[1:])
        return
    if kind not in ("Add", "Sub", "Mul") or len(node.inputs) != 2:
        return
    first, second = node.inputs
    constants = [_extremes(graph.constants.get(name)) for name in (first, second)]
    if constants[1] is not None:
        yield first, _operand_range(kind, wanted, *constants[1])
    elif constants[0] is not None and kind != "Sub":
        yield second, _operand_range(kind, wanted, *constants[0])
    elif kind == "Add":
        half = IntegerRange(-(-wanted.least // 2), wanted.most // 2)
        yield from ((name, half) for name in node.inputs)


def _operand_range(kind: str, wanted: IntegerRange, least: int, most: int) -> IntegerRange:
    """The x for which x + c, x - c or x * c is in the wanted range for every c from `least` to `most`."""
    if kind == "Add":
        return IntegerRange(wanted.least - least, wanted.most - most)
    if kind == "Sub":
        return IntegerRange(wanted.least + most, wanted.most + least)
    if least < 1:
        return wanted
    return IntegerRange(max(-(-wanted.least // least), -(-wanted.least // most)), wanted.most // most)


def _extremes(array: Array | None) -> tuple[int, int] | None:
    if array is None or array.dtype.kind not in "iu" or not array.size:
        return None
    return int(np.min(array)), int(np.max(array))


def _indices(size: int) -> IntegerRange:
    return IntegerRange(0, size - 1)


def _axis_size(graph: Graph, node: Node, op: OnnxOp, operand: int, default: int = 0) -> int:
    """The size of an operand along the node's axis; 0 if it is unknown."""
    shape = graph.value(node.inputs[operand]).shape
    axis = dict(op.attributes).get("axis", default)
    if not shape or not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        return 0
    return shape[axis]


def _gathered(graph: Graph, node: Node, op: OnnxOp) -> InputRanges:
    yield node.inputs[1], _indices(_axis_size(graph, node, op, 0))


def _gathered_features(graph: Graph, node: Node, op: OnnxOp) -> InputRanges:
    yield node.inputs[1], _indices((graph.value(node.inputs[0]).shape or (0,))[-1])


def _gathered_points(graph: Graph, node: Node, op: OnnxOp) -> InputRanges:
    """GatherND and ScatterND: each point has an index along several axes; the shortest axis bounds all of them."""
    data, points = (graph.value(name).shape for name in node.inputs[:2])
    first = dict(op.attributes).get("batch_dims", 0)
    if data and points and isinstance(first, int):
        yield node.inputs[1], _indices(min(data[first : first + points[-1]], default=0))


def _one_hot(graph: Graph, node: Node, op: OnnxOp) -> InputRanges:
    depth = _extremes(graph.constants.get(node.inputs[1]))
    if depth is not None:
        yield node.inputs[0], _indices(depth[0])


def _embedded(graph: Graph, node: Node, op: OnnxOp) -> InputRanges:
    """EmbedLayerNormalization: word and segment indices, and the tables of words, positions and segments."""
    for index, table in ((0, 2), (1, 4)):
        if table < len(node.inputs) and node.inputs[table]:
            yield node.inputs[index], _indices((graph.value(node.inputs[table]).shape or (0,))[0])


def _largest(graph: Graph, node: Node, op: OnnxOp) -> InputRanges:
    """TopK: the number of elements taken along the axis."""
    yield from _lengths(node, 1, _axis_size(graph, node, op, 0, -1))


def _recurrent(graph: Graph, node: Node, op: OnnxOp) -> InputRanges:
    yield from _lengths(node, 4, (graph.value(node.inputs[0]).shape or (0,))[0])


def _reversed(graph: Graph, node: Node, op: OnnxOp) -> InputRanges:
    axis, shape = dict(op.attributes).get("time_axis", 0), graph.value(node.inputs[0]).shape
    if shape and isinstance(axis, int) and -len(shape) <= axis < len(shape):
        yield from _lengths(node, 1, shape[axis])


def _lengths(node: Node, place: int, most: int) -> Iterable[tuple[str, IntegerRange]]:
    return [(node.inputs[place], IntegerRange(1, most))] if place < len(node.inputs) else []


_INDEXED: Mapping[tuple[str, str], Callable[[Graph, Node, OnnxOp], InputRanges]] = {
    ("", "Gather"): _gathered,
    ("", "GatherElements"): _gathered,
    ("", "ScatterElements"): _gathered,
    ("", "Scatter"): _gathered,
    ("", "GatherND"): _gathered_points,
    ("", "ScatterND"): _gathered_points,
    ("", "OneHot"): _one_hot,
    ("", "TopK"): _largest,
    ("", "ReverseSequence"): _reversed,
    ("", "LSTM"): _recurrent,
    ("", "GRU"): _recurrent,
    ("", "RNN"): _recurrent,
    ("ai.onnx.ml", "ArrayFeatureExtractor"): _gathered_features,
    ("com.microsoft", "EmbedLayerNormalization"): _embedded,
    ("com.microsoft", "GatherBlockQuantized"): _gathered,
}
"""By domain and op_type, the rule for the inputs that a node reads as indices or lengths."""
