"""Computes what depends on constants alone, so that it is done once and not at every run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pimflow.ir import (
    Array,
    Concat,
    Elementwise,
    Graph,
    GraphEditor,
    Node,
    OnnxOp,
    OpRules,
    Pad,
    Reshape,
    Slice,
    Transpose,
)
from pimflow.ir.ops.movement import MovementOp
from pimflow.passes.base import Pass, PassResult

Evaluate = Callable[[Graph, Node, Sequence["Array | None"]], Sequence[Array]]
"""Runs one node of a graph on arrays (None for absent inputs) and returns one for each named output."""

_NOT_PURE = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
_NUMPY: Mapping[str, Callable[..., Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Abs": np.absolute,
    "Sqrt": np.sqrt,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Where": np.where,
    "Equal": np.equal,
    "Greater": np.greater,
    "Less": np.less,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Not": np.logical_not,
}
"""Elementwise kinds that numpy and ONNX define alike, to the last bit."""

_EXACT_TYPES = frozenset({"float32", "float64", "int32", "int64", "bool"})


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Replaces nodes that read constants alone, and Shape and Size of what has a static shape, by constants.

    Ops with an exact equal in numpy are folded with it; all others by `evaluate`, or not at all without one. Random
    ops, control flow and other domains' ops stay. So does what would make a constant of more than `max_bytes`.

    Args:
        evaluate: runs one node.
        max_bytes: largest constant made, unless its inputs are larger still.
    """

    evaluate: Evaluate | None = None
    max_bytes: int = 1 << 29

    def run(self, graph: Graph) -> PassResult:
        """Rewrites the graph."""
        editor = GraphEditor(graph)
        known: dict[str, Array] = dict(graph.constants)
        notes: list[str] = []
        for node in graph.nodes:
            if not _foldable(graph, node, known):
                continue
            arrays = self._fold(graph, node, known, notes)
            if arrays is None:
                continue
            made = dict(zip((name for name in node.outputs if name), arrays, strict=True))
            known.update(made)
            for name, array in made.items():
                editor.set_constant(name, array)
            editor.replace_node(node.name, ())
        if not editor.changed:
            return PassResult(graph, False, tuple(notes))
        return PassResult(editor.finish(), True, tuple(notes))

    def _fold(self, graph: Graph, node: Node, known: Mapping[str, Array], notes: list[str]) -> Sequence[Array] | None:
        static = _static_fact(graph, node)
        if static is not None:
            return [static]
        inputs = [known[name] if name else None for name in node.inputs]
        limit = max([self.max_bytes, *(array.nbytes for array in inputs if array is not None)])
        expected = max((_bytes(graph, name) for name in node.outputs if name), default=0)
        if expected > limit:
            notes.append(f"{node.name}: the result of {node.kind} would take {expected} bytes, the limit is {limit}")
            return None
        exact = _fold_exactly(node, inputs)
        if exact is not None:
            return [exact]
        if self.evaluate is None:
            notes.append(f"{node.name}: {node.kind} of constants needs an evaluator to be folded")
            return None
        arrays = self.evaluate(graph, node, inputs)
        return arrays if all(isinstance(array, np.ndarray) for array in arrays) else None


def _foldable(graph: Graph, node: Node, known: Mapping[str, Array]) -> bool:
    if any(name in graph.outputs for name in node.outputs):
        return False  # a graph output is made by a node
    if isinstance(node.op, OnnxOp):
        if node.op.domain or node.op.op_type in _NOT_PURE or node.op.op_type in _CONTROL_FLOW:
            return False
        if _static_fact(graph, node) is not None:
            return True
    return all(not name or name in known for name in node.inputs)


def _static_fact(graph: Graph, node: Node) -> Array | None:
    """The value of a Shape or Size whose input has a static shape, constant or not."""
    if not isinstance(node.op, OnnxOp) or node.op.domain or node.op.op_type not in ("Shape", "Size"):
        return None
    shape = graph.value(node.inputs[0]).shape
    if shape is None:
        return None
    if node.op.op_type == "Size":
        return np.asarray(math.prod(shape), np.int64)
    attributes = dict(node.op.attributes)
    start, end = attributes.get("start", 0), attributes.get("end", len(shape))
    assert isinstance(start, int)
    assert isinstance(end, int)
    return np.asarray(shape[start:end], np.int64)


def _bytes(graph: Graph, name: str) -> int:
    value = graph.value(name)
    return value.elements * (np.dtype(value.dtype).itemsize if value.dtype in _EXACT_TYPES else 4)


def _fold_exactly(node: Node, inputs: Sequence[Array | None]) -> Array | None:
    arrays = [array for array in inputs if array is not None]
    if len(arrays) != len(inputs) or not arrays:
        return None
    rule = EXACT.find(node.op)
    return None if rule is None else rule(node.op, arrays)


EXACT: OpRules[Callable[[Any, Sequence[Array]], Array | None]] = OpRules(
    "exact folding", asks=lambda kind: kind.is_elementwise or issubclass(kind, MovementOp)
)
"""What numpy computes of an op to the last bit as ONNX defines it; None where it does not. Ops that add up numbers are
not asked for: the order of additions is the runtime's."""


@EXACT.register(Reshape)
def _reshape(op: Reshape, arrays: Sequence[Array]) -> Array:
    return arrays[0].reshape(op.shape)


@EXACT.register(Transpose)
def _transpose(op: Transpose, arrays: Sequence[Array]) -> Array:
    return np.ascontiguousarray(arrays[0].transpose(op.perm))


@EXACT.register(Slice)
def _slice(op: Slice, arrays: Sequence[Array]) -> Array:
    return arrays[0][(slice(None),) * op.axis + (slice(op.start, op.stop, op.step),)]


@EXACT.register(Concat)
def _concat(op: Concat, arrays: Sequence[Array]) -> Array:
    return np.concatenate(arrays, op.axis)


@EXACT.register(Pad)
def _pad(op: Pad, arrays: Sequence[Array]) -> Array:
    return np.pad(arrays[0], list(zip(op.before, op.after, strict=True)), constant_values=op.value)


@EXACT.register(Elementwise)
def _elementwise(op: Elementwise, arrays: Sequence[Array]) -> Array | None:
    if op.attributes or any(array.dtype.name not in _EXACT_TYPES for array in arrays):
        return None
    kind = op.kind
    if kind == "Div" and arrays[0].dtype.kind == "f":
        function: Callable[..., Array] | None = np.divide
    else:
        function = _NUMPY.get(kind)
    if function is None or (kind in ("Add", "Mul", "Sub") and arrays[0].dtype.kind == "b"):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(function(*arrays))
