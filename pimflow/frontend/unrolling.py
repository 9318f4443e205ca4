"""Loops and Scans of known length as their iterations, one after the other: training needs the values of each.

Nodes and constants are made as ONNX's, with the names of the graph that they become part of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from pimflow.ir import Array, Node, OnnxOp, Value
from pimflow.ir.names import FreshNames
from pimflow.onnxio.captures import capture_count, graph_attribute, is_counted_loop, rename_names
from pimflow.onnxio.tensors import sparse_to_array, to_array
from pimflow.records import dataclass

MAX_NODES = 4096
"""The maximum number of nodes that a Loop or a Scan is replaced by."""

AXES_AS_OPERAND = 13
"""The first opset in which Unsqueeze reads its axes as an operand."""


@dataclass(frozen=True)
class Iterations:
    """What a Loop or a Scan iterates over.

    Args:
        count: number of iterations.
        states: the carried values before the first one.
        scanned: values of which each iteration reads an element, with the axis and whether from the end.
        stacked: axis of each stacked result, and whether it is stacked from the end.
        is_loop: whether the body reads the number of the iteration and a condition.
    """

    count: int
    states: tuple[str, ...]
    scanned: tuple[tuple[str, int, bool], ...]
    stacked: tuple[tuple[int, bool], ...]
    is_loop: bool


def iterations_of(node: Node, values: Mapping[str, Value], known: Mapping[str, Array]) -> Iterations | None:
    """The iterations of a Loop or a Scan; None for other nodes, for an unknown number of iterations, none or too many.

    Args:
        node: any node.
        values: types of the values that it reads.
        known: arrays of the known values that it reads.
    """
    found = _of_loop(node, known) if node.kind == "Loop" else _of_scan(node, values) if node.kind == "Scan" else None
    if found is None or found.count < 1:
        return None
    assert isinstance(node.op, OnnxOp)
    return found if found.count * len(graph_attribute(node.op, "body").node) <= MAX_NODES else None


def _own_inputs(node: Node) -> tuple[str, ...]:
    return node.inputs[: len(node.inputs) - capture_count(node)]


def _of_loop(node: Node, known: Mapping[str, Array]) -> Iterations | None:
    if not is_counted_loop(node, known):
        return None
    trips, condition, *states = _own_inputs(node)
    count = int(known[trips].reshape(-1)[0]) if not condition or known[condition].all() else 0
    return Iterations(count, tuple(states), (), ((0, False),) * (len(node.outputs) - len(states)), True)


def _of_scan(node: Node, values: Mapping[str, Value]) -> Iterations | None:
    assert isinstance(node.op, OnnxOp)
    given, own = dict(node.op.attributes), _own_inputs(node)
    number = given.get("num_scan_inputs")
    if not isinstance(number, int) or not 0 < number <= len(own):
        return None
    states, scanned = own[: len(own) - number], own[len(own) - number :]
    shapes = [values[name].shape for name in scanned]
    results = len(node.outputs) - len(states)
    axes, reverse = (_integers(given, f"scan_input_{what}", number) for what in ("axes", "directions"))
    out_axes, out_reverse = (_integers(given, f"scan_output_{what}", results) for what in ("axes", "directions"))
    counts = {None if shape is None else shape[axis] for shape, axis in zip(shapes, axes, strict=True)}
    (count,) = counts if len(counts) == 1 else (None,)
    if count is None:
        return None
    reads = tuple(zip(scanned, axes, map(bool, reverse), strict=True))
    return Iterations(count, states, reads, tuple(zip(out_axes, map(bool, out_reverse), strict=True)), False)


def _integers(given: Mapping[str, object], name: str, count: int) -> Sequence[int]:
    value = given.get(name)
    return [item for item in value if isinstance(item, int)] if isinstance(value, tuple) else [0] * count


class Unrolled:
    """The nodes and constants that a Loop or a Scan is replaced by.

    Args:
        node: the Loop or Scan.
        iterations: its own.
        names: of the graph.
        opset: of ONNX's own domain.
    """

    def __init__(self, node: Node, iterations: Iterations, names: FreshNames, opset: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self._node, self._iterations, self._names, self._opset = node, iterations, names, opset
        self._shared: dict[str, str] = {}
        count = len(iterations.states)
        states, stacked = list(iterations.states), list[list[str]]()
        for number in range(iterations.count):
            made = self._iteration(number, states)
            states = made[:count]
            stacked.append(made[count:])
        self._finish(states, [list(parts) for parts in zip(*stacked, strict=True)])

    def _iteration(self, number: int, states: Sequence[str]) -> list[str]:
        """Writes an iteration; returns the new states, and its elements of the stacked results."""
        assert isinstance(self._node.op, OnnxOp)
        body, is_first = graph_attribute(self._node.op, "body"), number == 0
        given = [*states, *(self._element(number, *scanned) for scanned in self._iterations.scanned)]
        if self._iterations.is_loop:
            given = [self._constant("iteration", np.array(number)), self._constant("condition", np.array(True)), *given]
        named = dict(zip((info.name for info in body.input), given, strict=True))
        if is_first:
            self._share_constants(body)
        named |= self._shared
        outer = self._node.inputs[len(_own_inputs(self._node)) :]
        captured = {f"@{place}": name for place, name in enumerate(outer)}
        rename_names(body, captured.__getitem__, lambda name: named.get(name) or self._fresh(name))
        self.nodes += [inner for inner in body.node if is_first or inner.op_type != "Constant"]
        return [info.name for info in body.output[1 if self._iterations.is_loop else 0 :]]

    def _share_constants(self, body: onnx.GraphProto) -> None:
        """Names the constants of the body, which are the same in every iteration."""
        constants = {tensor.name: to_array(tensor) for tensor in body.initializer}
        constants |= {sparse.values.name: sparse_to_array(sparse) for sparse in body.sparse_initializer}
        made = (inner.output[0] for inner in body.node if inner.op_type == "Constant")
        self._shared = {name: self._fresh(name) for name in (*constants, *made)}
        self.constants |= {self._shared[name]: array for name, array in constants.items()}

    def _element(self, number: int, name: str, axis: int, reverse: bool) -> str:
        """The element of a scanned value that an iteration reads."""
        place = self._iterations.count - 1 - number if reverse else number
        made = self._fresh(f"{name}_{place}")
        self._write("Gather", [name, self._constant("place", np.array(place))], made, axis=axis)
        return made

    def _finish(self, states: Sequence[str], stacked: Sequence[list[str]]) -> None:
        """Writes the results: the last states, and the stacks."""
        results = self._node.outputs
        for state, result in zip(states, results, strict=False):
            if result:
                self._write("Identity", [state], result)
        for (axis, reverse), parts, result in zip(
            self._iterations.stacked, stacked, results[len(states) :], strict=True
        ):
            if result:
                wide = [self._unsqueezed(part, axis) for part in parts]
                self._write("Concat", wide[::-1] if reverse else wide, result, axis=axis)

    def _unsqueezed(self, name: str, axis: int) -> str:
        made = self._fresh(f"{name}_row")
        if self._opset >= AXES_AS_OPERAND:
            self._write("Unsqueeze", [name, self._constant("axes", np.array([axis]))], made)
        else:
            self._write("Unsqueeze", [name], made, axes=[axis])
        return made

    def _write(self, op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))

    def _constant(self, base: str, array: Array) -> str:
        name = self._fresh(base)
        self.constants[name] = array
        return name

    def _fresh(self, name: str) -> str:
        return self._names.fresh(f"{self._node.name}/{name}")
