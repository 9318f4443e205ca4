"""Bags of embeddings, as PyTorch exports them: a Loop over bags, each a reduction of a range of rows.

ONNX has no such operator, and no gradient of a Loop. In training, the rows of all bags are read at once and reduced by
scatters, whose sizes do not depend on where bags begin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import onnx

from pimflow.ir import Array, Graph, Node, OnnxOp, Slice
from pimflow.ir.gradients import Tape, renamed
from pimflow.ir.gradients.tape import SCATTER_OPSET
from pimflow.onnxio.captures import capture_count, graph_attribute, is_counted_loop, subgraphs
from pimflow.onnxio.tensors import to_array
from pimflow.passes.plain_constants import with_plain_constants
from pimflow.records import dataclass

Kind = Literal["sum", "mean", "max"]

_MAX_OPSET = 18
"""The first opset in which ScatterND can keep the maximum."""

_KINDS: dict[frozenset[str], Kind] = {
    frozenset({"ReduceSum"}): "sum",
    frozenset({"ReduceMean"}): "mean",
    frozenset({"ReduceSum", "ReduceMean"}): "mean",  # the last bag is a sum divided by what is left of the rows
    frozenset({"ReduceMax"}): "max",
}

_SAME_ELEMENTS = frozenset({"Cast", "CastLike", "Identity", "Reshape", "Squeeze", "Unsqueeze"})

_KNOWN = _SAME_ELEMENTS | {"Add", "Constant", "Div", "Equal", "Gather", "Greater", "If", "Less", "Mul"}
_KNOWN |= {"ReduceMax", "ReduceMean", "ReduceSum", "SequenceInsert", "Slice", "Sub"}
"""The operators of a body that reduces one bag; Less, Equal, Greater, Sub and Div serve empty bags and the last one."""


@dataclass(frozen=True)
class Bags:
    """Reductions of ranges of rows, each range from one offset to the next.

    Args:
        kind: what they are reduced to; empty ranges give zeros.
        offsets: int [bags + 1].
        rows: float [rows, features], or the table that they are read from.
        index: the row of the table for each row, int [rows]; "" if `rows` are not a table.
        weights: a factor of each row, float [rows]; "" for none.
        result: the value [bags, features].
        loop: names of the nodes that are needed only for the Loop, and the Loop's.
    """

    kind: Kind
    offsets: str
    rows: str
    index: str
    weights: str
    result: str
    loop: tuple[str, ...]


def without_bag_loops(graph: Graph) -> Graph:
    """The graph with Loops over bags of embeddings written out; itself if it has none."""
    if not any(node.kind == "Loop" for node in graph.nodes):
        return graph
    plain = with_plain_constants(graph)
    found = {bags.result: bags for node in plain.nodes if (bags := _bags_of(plain, node)) is not None}
    if not found:
        return graph
    tape, nodes = Tape(plain, ()), list[Node]()
    replaced = {name for bags in found.values() for name in bags.loop}
    for node in plain.nodes:
        bags = found.get(node.outputs[0])
        if bags is None:
            nodes += [] if node.name in replaced else [node]
            continue
        with tape.recording(node.name) as made:
            result = _written_out(tape, bags)
        nodes += [renamed(new, {result: bags.result}) for new in made]
        tape.values[bags.result] = replace(tape.value(result), name=bags.result)
    return plain.replace(nodes=nodes, values=tape.values, constants=tape.constants)


def _written_out(tape: Tape, bags: Bags) -> str:
    """The reductions [bags, features]; rows after the last bag are added to one that is then left out."""
    rows = bags.rows
    if bags.index:
        (count,), features = tape.shape(bags.index), tape.shape(rows)[1]
        rows = tape.onnx("Gather", (rows, bags.index), (count, features), axis=0)
    count, features = tape.shape(rows)
    if bags.weights:
        rows = tape.mul(rows, tape.reshape(bags.weights, (count, 1)))
    (ends,) = tape.shape(bags.offsets)
    offsets = bags.offsets if tape.dtype(bags.offsets) == "int64" else tape.cast(bags.offsets, "int64")
    reduction, start = ("max", -np.inf) if bags.kind == "max" else ("add", 0.0)
    initial = tape.broadcast_to(tape.number(start, rows), (ends, features))
    inputs = (initial, _bag_of_each_row(tape, offsets, count), rows)
    total = tape.onnx("ScatterND", inputs, (ends, features), reduction=reduction)
    made = tape.slice(total, 0, 0, ends - 1)
    if bags.kind == "sum":
        return made
    sizes = tape.sub(tape.slice(offsets, 0, 1, ends), tape.slice(offsets, 0, 0, ends - 1))
    sizes = tape.reshape(tape.cast(sizes, tape.dtype(rows)), (ends - 1, 1))
    if bags.kind == "max":
        return tape.masked(tape.above(sizes, 0.5), made)
    return tape.div(made, tape.elementwise("Max", sizes, tape.number(1.0, sizes)))


def _bag_of_each_row(tape: Tape, offsets: str, count: int) -> str:
    """The number of the bag of each row, [rows, 1]: of the offsets up to it, less one."""
    (ends,) = tape.shape(offsets)
    none = tape.broadcast_to(tape.constant(np.array(0), "none"), (count + 1,))
    ones = tape.constant(np.ones(ends, np.int64), "ones")
    starting = tape.onnx("ScatterND", (none, tape.reshape(offsets, (ends, 1)), ones), (count + 1,), reduction="add")
    begun = tape.onnx("CumSum", (starting, tape.constant(np.array(0), "axis")), (count + 1,))
    bag = tape.sub(tape.slice(begun, 0, 0, count), tape.constant(np.array(1), "one"))
    return tape.reshape(bag, (count, 1))


# ---- recognition


def _bags_of(graph: Graph, node: Node) -> Bags | None:
    """The bags that a Loop reduces; None if it does anything else, or the opset lacks a scatter to do it by."""
    if not is_counted_loop(node, graph.constants):
        return None
    body = _Body(graph, node)
    reductions = frozenset(inner.op_type for inner in body.reductions())
    kind, result = _KINDS.get(reductions), body.result()
    if kind is None or result is None or not body.is_plain() or body.divides() != (len(reductions) > 1):
        return None
    if graph.opset.get("", 0) < (_MAX_OPSET if kind == "max" else SCATTER_OPSET):
        return None
    rows = {body.rows(inner.input[0]) for inner in body.reductions()}
    offsets = body.offsets()
    if offsets is None or len(rows) != 1 or None in rows:
        return None
    (read,) = rows
    found = None if read is None else Bags(kind, offsets, *read, result, (node.name, *body.sequence()))
    trips = int(graph.constants[node.inputs[0]].reshape(-1)[0])
    return found if found is not None and _fits(graph, found, trips) else None


def _fits(graph: Graph, bags: Bags, trips: int) -> bool:
    """Whether the operands have the shapes of as many bags as a Loop has iterations, and the result that of all."""
    rows, made = graph.value(bags.rows).shape, graph.value(bags.result).shape
    vectors = [graph.value(name).shape for name in (bags.offsets, bags.index, bags.weights) if name]
    if rows is None or len(rows) != 2 or any(shape is None or len(shape) != 1 for shape in vectors):
        return False
    return vectors[0] == (trips + 1,) and made in (None, (trips, rows[1]))


class _Body:
    """The body of a Loop, with the branches inside it as if they were part of it: names are unique."""

    def __init__(self, graph: Graph, node: Node) -> None:
        assert isinstance(node.op, OnnxOp)
        self.graph, self.node = graph, node
        self.proto = graph_attribute(node.op, "body")
        own = len(node.inputs) - capture_count(node)
        self.outer = {f"@{place}": name for place, name in enumerate(node.inputs[own:])}
        self.nodes = list(_all_nodes(self.proto))
        self.producers = {name: inner for inner in self.nodes for name in inner.output if name}
        self.arrays = {tensor.name: to_array(tensor) for tensor in _all_tensors(self.proto)}
        self.arrays |= {name: graph.constants[outer] for name, outer in self.outer.items() if outer in graph.constants}
        self.counters = set(self._counters())

    def reductions(self) -> list[onnx.NodeProto]:
        """The nodes that reduce the rows of a bag."""
        return [inner for inner in self.nodes if inner.op_type.startswith("Reduce")]

    def is_plain(self) -> bool:
        """Whether only known operators occur, rows are reduced over the first axis, and that is all that is kept."""
        known = all(inner.op_type in _KNOWN and not inner.domain for inner in self.nodes)
        return known and all(self._is_over_rows(inner) for inner in self.nodes)

    def divides(self) -> bool | None:
        """Whether sums are divided by the number of rows from the bag's first one on; None if anything else is
        divided."""
        divisions = [self._is_mean(inner) for inner in self.nodes if inner.op_type == "Div"]
        return bool(divisions) if all(divisions) else None

    def result(self) -> str | None:
        """The value of the graph that all reductions form: what the Loop stacks, or a concatenated sequence."""
        outputs = [info.name for info in self.proto.output[1:]]
        if len(outputs) == 1 and len(self.proto.input) == 2:
            return self.node.outputs[0] if self._is_reduced(outputs[0]) else None
        last = self.producers.get(outputs[-1])
        if len(outputs) != 2 or last is None or last.op_type != "SequenceInsert" or len(last.input) != 2:
            return None
        users = [user for name in self.node.outputs for user in self.graph.users(name)]
        if not self._is_reduced(last.input[1]) or last.input[0] != self.proto.input[3].name or len(users) != 1:
            return None
        (user,) = users
        along_rows = isinstance(user.op, OnnxOp) and dict(user.op.attributes) in (
            {"axis": 0},
            {"axis": 0, "new_axis": 0},
        )
        return user.output if user.kind == "ConcatFromSequence" and along_rows and self.sequence() else None

    def sequence(self) -> tuple[str, ...]:
        """The name of the node that makes the empty sequence to which a Loop appends; () if there is none."""
        begin = self.graph.producer(self.node.inputs[-1 - len(self.outer)])
        return (begin.name,) if begin is not None and begin.kind == "SequenceEmpty" else ()

    def rows(self, name: str) -> tuple[str, str, str] | None:
        """The rows or table, the index, and the weights, as values of the graph, that a bag's rows are a range of."""
        inner = self.producers.get(name)
        if inner is None:
            return None
        if inner.op_type == "If":
            branches = {self.rows(branch.output[0].name) for branch in subgraphs(inner.attribute)}
            return branches.pop() if len(branches) == 1 else None
        if inner.op_type == "Slice":
            return (self.outer[inner.input[0]], "", "") if inner.input[0] in self.outer else None
        if inner.op_type == "Gather" and inner.input[0] in self.outer:
            index = self.rows(inner.input[1])
            return None if index is None or any(index[1:]) else (self.outer[inner.input[0]], index[0], "")
        if inner.op_type != "Mul":
            return None
        read, weights = self.rows(inner.input[0]), self.rows(self._source(inner.input[1]))
        return None if read is None or weights is None or any(weights[1:]) or read[2] else (*read[:2], weights[0])

    def offsets(self) -> str | None:
        """The value whose elements all ranges of rows go from, and to the next ones of; None if there is none."""
        ranges = [inner for inner in self.nodes if inner.op_type == "Slice" and not self._reads_element(inner)]
        starts = {self._element(inner.input[1]) for inner in ranges}
        ends = {self._element(inner.input[2]) for inner in ranges if not self._is_end(inner)}
        if len(starts) != 1 or len(ends) != 1:
            return None
        (start,), (end,) = starts, ends
        if start is None or end is None or start[1] != 0:
            return None
        return start[0] if end == (start[0], 1) or (end[1] == 0 and self._are_next(start[0], end[0])) else None

    # ---- parts

    def _counters(self) -> Iterator[str]:
        """The number of the iteration: the Loop's own, or a carried number that starts at 0 and counts up."""
        yield self.proto.input[0].name
        for place, info in enumerate(self.proto.input[2:], start=2):
            begin = self.graph.constants.get(self.node.inputs[place])
            step = self.producers.get(self.proto.output[place - 1].name)
            if begin is None or begin.any() or step is None or step.op_type != "Add":
                continue
            one = self._array(step.input[1])
            if step.input[0] == info.name and one is not None and one.reshape(-1).tolist() == [1]:
                yield info.name

    def _is_reduced(self, name: str) -> bool:
        """Whether a value is a reduction, or zeros, or chosen from such values."""
        array, inner = self._array(name), self.producers.get(name)
        if array is not None or inner is None:
            return array is not None and not array.any()
        if inner.op_type == "If":
            return all(self._is_reduced(branch.output[0].name) for branch in subgraphs(inner.attribute))
        if inner.op_type in ("Identity", "Div"):
            return self._is_reduced(inner.input[0])
        return inner.op_type.startswith("Reduce")

    def _is_mean(self, division: onnx.NodeProto) -> bool:
        """Whether a sum of rows is divided by the number of rows from the bag's first one on."""
        total, left = (self.producers.get(self._source(name)) for name in division.input)
        if total is None or left is None or (total.op_type, left.op_type) != ("ReduceSum", "Sub"):
            return False
        rows = self.producers.get(total.input[0])
        if rows is None or rows.op_type != "Slice" or self._array(left.input[0]) is None:
            return False
        return self._source(left.input[1]) == self._source(rows.input[1])

    def _is_over_rows(self, inner: onnx.NodeProto) -> bool:
        """Whether a node that slices or reduces does so along the first axis, and reads each row once."""
        if inner.op_type == "Slice":
            operands = [self._array(name) for name in inner.input[3:]]
            given = [None if array is None else array.reshape(-1).tolist() for array in operands]
            return given in ([], [[0]], [[0], [1]])
        if not inner.op_type.startswith("Reduce"):
            return True
        attributes = [list(attribute.ints) for attribute in inner.attribute if attribute.name == "axes"]
        array = self._array(inner.input[1]) if len(inner.input) > 1 else None
        axes = attributes[0] if attributes else [] if array is None else array.reshape(-1).tolist()
        return bool(axes == [0])

    def _source(self, name: str) -> str:
        """The value with the same elements that a value was cast or reshaped from."""
        inner = self.producers.get(name)
        while inner is not None and inner.op_type in _SAME_ELEMENTS:
            name = inner.input[0]
            inner = self.producers.get(name)
        return name

    def _array(self, name: str) -> Array | None:
        name = self._source(name)
        inner = self.producers.get(name)
        if inner is not None and inner.op_type == "Constant":
            values = [to_array(attribute.t) for attribute in inner.attribute if attribute.name == "value"]
            return values[0] if values else None
        return self.arrays.get(name)

    def _element(self, name: str) -> tuple[str, int] | None:
        """The vector of the graph that a number is an element of, and how far that is from the iteration's own."""
        inner = self.producers.get(self._source(name))
        if inner is None or inner.op_type not in ("Gather", "Slice") or inner.input[0] not in self.outer:
            return None
        place = self._place(inner.input[1])
        return None if place is None else (self.outer[inner.input[0]], place)

    def _place(self, name: str) -> int | None:
        """How far a number is from the iteration's."""
        name = self._source(name)
        inner = self.producers.get(name)
        if inner is None or inner.op_type != "Add":
            return 0 if name in self.counters else None
        begin, step = self._place(inner.input[0]), self._array(inner.input[1])
        return None if begin is None or step is None or step.size != 1 else begin + int(step.reshape(-1)[0])

    def _reads_element(self, inner: onnx.NodeProto) -> bool:
        """Whether a Slice reads the single element of an iteration."""
        begin, end = self._place(inner.input[1]), self._place(inner.input[2])
        return begin is not None and end == begin + 1

    def _is_end(self, inner: onnx.NodeProto) -> bool:
        """Whether a Slice ends with the last row, as that of the last bag may."""
        end, shape = self._array(inner.input[2]), self.graph.value(self.outer.get(inner.input[0], "")).shape
        return end is not None and shape is not None and end.reshape(-1).tolist() == [shape[0]]

    def _are_next(self, starts: str, ends: str) -> bool:
        """Whether the elements of a vector are those of another one from the second on."""
        known, following = self.graph.constants.get(starts), self.graph.constants.get(ends)
        if known is not None and following is not None:
            return np.array_equal(known[1:], following)
        producer = self.graph.producer(ends)
        if producer is None or not isinstance(producer.op, Slice) or producer.inputs != (starts,):
            return False
        return (producer.op.start, producer.op.step) == (1, 1) and producer.op.stop == self.graph.shape(starts)[0]


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for inner in subgraphs(node.attribute):
            yield from _all_nodes(inner)


def _all_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for inner in subgraphs(node.attribute):
            yield from _all_tensors(inner)
