"""`Tape`: writes the nodes of a backward pass, from the outputs of a graph to its inputs and parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from pimflow.ir.analysis.rows import Shape
from pimflow.ir.analysis.tensor_layout import is_float
from pimflow.ir.graph import Array, Graph, Node, Value
from pimflow.ir.names import FreshNames
from pimflow.ir.ops.base import Op
from pimflow.ir.ops.contraction import PRODUCT
from pimflow.ir.ops.elementwise import Elementwise
from pimflow.ir.ops.movement import Pad, Reshape, Slice, Transpose
from pimflow.ir.ops.opaque import Attributes, AttributeValue, OnnxOp
from pimflow.ir.ops.rules import OpRules
from pimflow.ir.refusal import Refusal
from pimflow.ir.registry import Registry
from pimflow.ir.shapes import infer

_CODES = {"float32": 1, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "float64": 11, "bfloat16": 16}
"""ONNX's TensorProto.DataType of the element types that the rules cast to."""

CONTRIB = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

SHARED_ELEMENTS = 64
"""Constants of at most this many elements are stored only once."""

SCATTER_OPSET = 16
"""The first opset in which ScatterElements and ScatterND can add; before, they keep one of several duplicates."""

Gradients = Sequence[str] | Refusal
"""The gradient of every input, "" if there is none or none is wanted; or why there cannot be any."""

Rule = Callable[["Tape", Node, Any, tuple[str, ...]], Gradients]
"""Computes the gradients of a node's inputs from those of its outputs ("" for an output without one)."""

GRADIENTS: OpRules[Rule] = OpRules("gradients")
"""The gradient of every op; where an op is not smooth, the one-sided derivative that PyTorch uses."""

ONNX_GRADIENTS: Registry[tuple[str, str], Rule] = Registry("gradients of ONNX operators")
"""The gradients of operators that are not converted to typed ops, by domain and op_type."""

TrainingForm = Callable[["Tape", Node, Any], tuple[Node, ...]]
"""Returns the nodes that replace a node in training: they make its results and whatever else its gradient reads."""

TRAINING_FORMS: Registry[type[Op], TrainingForm] = Registry("training forms")
"""Ops that a training step computes differently from inference."""

ONNX_TRAINING_FORMS: Registry[tuple[str, str], TrainingForm] = Registry("training forms of ONNX operators")
"""The training forms of operators that are not converted to typed ops, by domain and op_type."""

TRAINED_INPUTS: Registry[tuple[str, str], tuple[int, ...]] = Registry("trained inputs of ONNX operators")
"""Which inputs of ONNX operators are parameters, by domain and op_type."""

Decomposition = Callable[["Tape", Node, Any], Sequence[str] | Refusal]
"""Writes the nodes that an operator is equivalent to, and returns its results ("" for one that is not made)."""


@TRAINING_FORMS.register(OnnxOp)
def _onnx_form(tape: Tape, node: Node, op: OnnxOp) -> tuple[Node, ...]:
    form = ONNX_TRAINING_FORMS.get((op.domain, op.op_type))
    return (node,) if form is None else form(tape, node, op)


def writes_out(
    *op_types: str, domain: str = "", trained: tuple[int, ...] = ()
) -> Callable[[Decomposition], Decomposition]:
    """A decorator for a function that writes the nodes as which a training step computes some ONNX operators.

    The operators' gradients are those of these nodes. If the function refuses, the operator has none.

    Args:
        op_types, domain: the operators.
        trained: which of their inputs are parameters if they are constants.

    Raises:
        ValueError: an operator already has a training form or a gradient.
    """

    def register(write: Decomposition) -> Decomposition:
        def form(tape: Tape, node: Node, op: OnnxOp) -> tuple[Node, ...]:
            return tape.written_out(node, lambda: write(tape, node, op))

        keys = [(domain, op_type) for op_type in op_types]
        ONNX_TRAINING_FORMS.register(*keys)(form)
        ONNX_GRADIENTS.register(*keys)(lambda tape, node, op, gradients: tape.refused[node.name])
        TRAINED_INPUTS.register(*keys)(trained)
        return write

    return register


def differentiates(*op_types: str, domain: str = "") -> Callable[[Rule], Rule]:
    """A decorator that registers a function as the gradient of some ONNX operators.

    Raises:
        ValueError: an operator already has one.
    """
    return ONNX_GRADIENTS.register(*((domain, op_type) for op_type in op_types))


@GRADIENTS.register(OnnxOp)
def _onnx_gradient(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    rule = ONNX_GRADIENTS.get((op.domain, op.op_type))
    if rule is None:
        domain = f"{op.domain}." if op.domain else ""
        return Refusal(f"{domain}{op.op_type} has no gradient rule")
    return tape.unsized(node) or rule(tape, node, op, gradients)


class Tape:
    """Writes nodes after those of a graph, and records the gradients found so far.

    Values are identified by name; every method that makes one returns its name. Nodes written for a node of the model
    are named after it, and have it as their origin.

    Args:
        graph: the model's graph.
        wanted: values whose gradients are requested or needed for one that is.
        frozen_statistics: whether batch normalisation uses the statistics stored in the model.
    """

    def __init__(self, graph: Graph, wanted: Iterable[str], frozen_statistics: bool = False) -> None:
        self.graph = graph
        self.frozen_statistics = frozen_statistics
        self.opset = graph.opset.get("", 0)
        self.nodes: list[Node] = []
        self.values = dict(graph.values)
        self.constants = dict(graph.constants)
        self._value_names = FreshNames(graph.values)
        self._node_names = FreshNames(graph.node_by_name)
        self.refused: dict[str, Refusal] = {}
        self._wanted = set(wanted)
        self._parts: dict[str, list[str]] = {}
        self._saved: dict[str, tuple[str, ...]] = {}
        self._shared: dict[tuple[str, Shape, bytes], str] = {}
        self._scope = "step"

    # ---- gradients

    def wants(self, name: str) -> bool:
        """Whether a value's gradient is wanted."""
        return name in self._wanted

    def add_gradient(self, name: str, gradient: str) -> None:
        """Adds a summand to a value's gradient."""
        if name and gradient and self.wants(name):
            self._parts.setdefault(name, []).append(gradient)

    def gradient(self, name: str) -> str:
        """A value's gradient, the sum of its summands; "" if there are none."""
        parts = self._parts.get(name, [])
        if not parts:
            return ""
        total = parts[0]
        for part in parts[1:]:
            total = self.add(total, part)
        self._parts[name] = [total]
        return total

    def set_scope(self, scope: str) -> None:
        """Names the nodes written from here on after `scope`."""
        self._scope = scope

    def save_for_backward(self, node: Node, *names: str) -> None:
        """Records the values that a node's gradient reads in addition to its own, for use by its training form."""
        self._saved[node.name] = names

    def saved(self, node: Node) -> tuple[str, ...]:
        """The values recorded by `save_for_backward` for a node."""
        return self._saved.get(node.name, ())

    @contextmanager
    def recording(self, scope: str) -> Iterator[list[Node]]:
        """A context in which nodes are written to a separate list and named after `scope`."""
        outer, self.nodes = self.nodes, []
        self.set_scope(scope)
        try:
            yield self.nodes
        finally:
            self.nodes = outer

    def written_out(self, node: Node, write: Callable[[], Sequence[str] | Refusal]) -> tuple[Node, ...]:
        """The nodes that `write` writes, with a model node's results as theirs; that node itself if `write` refuses."""
        unsized = self.unsized(node)
        if unsized is not None:
            self.refused[node.name] = unsized
            return (node,)
        with self.recording(node.name) as written:
            made = write()
        if not isinstance(made, Refusal):
            made = self._complete(node, made)
        if isinstance(made, Refusal):
            self.refused[node.name] = made
            return (node,)
        names = {value: name for value, name in zip(made, node.outputs, strict=False) if value and name}
        nodes = [renamed(new, names) for new in written]
        for new in nodes:
            if not self._wanted.isdisjoint(new.inputs):
                self._wanted.update(name for name in new.outputs if is_float(self.dtype(name)))
        return tuple(nodes)

    def _complete(self, node: Node, made: Sequence[str]) -> Sequence[str] | Refusal:
        """The results made, or a refusal if one of them is read but was not made."""
        for place, name in enumerate(node.outputs):
            read = name and (name in self.graph.outputs or self.graph.users(name))
            if read and not (place < len(made) and made[place]):
                return Refusal(f"{node.kind}: its result {place} is not made in training")
        return made

    # ---- queries

    def value(self, name: str) -> Value:
        """A value of the model or of the backward pass."""
        return self.values[name]

    def shape(self, name: str) -> Shape:
        """A value's static shape; () if it has none."""
        return self.value(name).shape or ()

    def unsized(self, node: Node) -> Refusal | None:
        """The refusal of a node that reads or makes a value without a static shape; None if it does not."""
        if all(not name or self.value(name).shape is not None for name in (*node.inputs, *node.outputs)):
            return None
        return Refusal(f"{node.kind}: the sizes of its operands or results depend on data")

    def dtype(self, name: str) -> str:
        """A value's element type."""
        return self.value(name).dtype

    def array(self, name: str) -> Array | None:
        """The elements of a constant of the model or the tape; None if the value is computed or absent."""
        return self.constants.get(name)

    def operand(self, node: Node, position: int) -> str:
        """An input of a node; "" if it is absent."""
        return node.inputs[position] if position < len(node.inputs) else ""

    # ---- nodes of any kind

    def op(self, op: Op, *inputs: str) -> str:
        """Writes a node of a typed op; its rule gives the shape and element type."""
        (made,) = infer(op, [self.value(name) if name else None for name in inputs])
        return self._write(op, inputs, ((made.shape, made.dtype),))[0]

    def onnx(
        self,
        op_type: str,
        inputs: Sequence[str],
        shape: Shape,
        dtype: str = "",
        attributes: Mapping[str, AttributeValue] | None = None,
        **named: AttributeValue,
    ) -> str:
        """Writes a node of an ONNX operator with one result.

        Args:
            op_type: the operator.
            inputs: the values that it reads.
            shape: shape of its result.
            dtype: the result's element type; by default that of the first input.
            attributes: attributes by name.
            named: attributes as keywords.
        """
        made = (shape, dtype or self.dtype(inputs[0]))
        given = tuple(sorted({**(attributes or {}), **named}.items()))
        return self._write(OnnxOp(op_type, "", given), inputs, (made,))[0]

    def _write(self, op: Op, inputs: Sequence[str], made: Sequence[tuple[Shape, str]]) -> tuple[str, ...]:
        node = self.node(op, inputs, made)
        self.nodes.append(node)
        return node.outputs

    def node(self, op: Op, inputs: Sequence[str], made: Sequence[tuple[Shape, str]]) -> Node:
        """A node, not written yet, with new output values of these shapes and element types."""
        name = self._node_names.fresh(f"{self._scope}.{op.onnx_name.lower()}")
        outputs = tuple(self.new_value(f"{name}_out", shape, dtype) for shape, dtype in made)
        return Node(op, tuple(inputs), outputs, name)

    def new_value(self, base: str, shape: Shape, dtype: str) -> str:
        """A value under a fresh name made from `base`, to be produced by a node or supplied as an input."""
        name = self._value_names.fresh(base)
        self.values[name] = Value(name, tuple(shape), dtype)
        return name

    def constant(self, array: Array, base: str = "constant") -> str:
        """A constant; equal ones of few elements are shared."""
        key = (array.dtype.name, array.shape, array.tobytes() if array.size <= SHARED_ELEMENTS else b"")
        if array.size <= SHARED_ELEMENTS and key in self._shared:
            return self._shared[key]
        name = self.new_value(f"{self._scope}.{base}", array.shape, array.dtype.name)
        self.constants[name] = np.ascontiguousarray(array).reshape(array.shape)
        self._shared[key] = name
        return name

    def number(self, value: float, like: str) -> str:
        """A scalar in the element type of another value."""
        return self.constant(np.array(value, np.dtype(self.dtype(like))), "number")

    def integers(self, *values: int) -> str:
        """A vector of int64."""
        return self.constant(np.array(values, np.int64), "integers")

    def zeros(self, shape: Shape, like: str) -> str:
        """Zeros in the element type of another value, expanded from a scalar when the step runs."""
        return self.broadcast_to(self.number(0.0, like), shape)

    def cast(self, x: str, dtype: str) -> str:
        """`x` in another element type."""
        return self.onnx("Cast", (x,), self.shape(x), dtype, to=_CODES[dtype])

    # ---- elementwise

    def elementwise(self, kind: str, *inputs: str, **attributes: AttributeValue) -> str:
        """An elementwise op by its ONNX name."""
        given: Attributes = tuple(sorted(attributes.items()))
        return self.op(Elementwise(kind, given), *inputs)

    def add(self, a: str, b: str) -> str:
        """a + b."""
        return self.elementwise("Add", a, b)

    def sub(self, a: str, b: str) -> str:
        """a - b."""
        return self.elementwise("Sub", a, b)

    def mul(self, a: str, b: str) -> str:
        """a * b."""
        return self.elementwise("Mul", a, b)

    def div(self, a: str, b: str) -> str:
        """a / b."""
        return self.elementwise("Div", a, b)

    def neg(self, a: str) -> str:
        """-a."""
        return self.elementwise("Neg", a)

    def scaled(self, a: str, factor: float) -> str:
        """a times a number; `a` itself if that is 1."""
        return a if factor == 1 else self.mul(a, self.number(factor, a))

    def plus(self, a: str, number: float) -> str:
        """a plus a number."""
        return self.add(a, self.number(number, a))

    def where(self, condition: str, a: str, b: str) -> str:
        """a where the condition holds, else b."""
        return self.elementwise("Where", condition, a, b)

    def masked(self, condition: str, a: str) -> str:
        """a where the condition holds, else 0."""
        return self.where(condition, a, self.number(0.0, a))

    def above(self, a: str, bound: float) -> str:
        """Whether a > bound."""
        return self.elementwise("Greater", a, self.number(bound, a))

    # ---- shapes

    def reshape(self, x: str, shape: Shape) -> str:
        """The same elements under another shape; `x` itself if it already has it."""
        return x if self.shape(x) == tuple(shape) else self.op(Reshape(tuple(shape)), x)

    def transpose(self, x: str, perm: Sequence[int]) -> str:
        """`x` with its axes permuted; `x` itself if their order stays the same."""
        return x if tuple(perm) == tuple(range(len(perm))) else self.op(Transpose(tuple(perm)), x)

    def slice(self, x: str, axis: int, start: int, stop: int) -> str:
        """Elements start .. stop-1 along one axis; `x` itself if these are all of them."""
        return x if (start, stop) == (0, self.shape(x)[axis]) else self.op(Slice(axis, start, stop), x)

    def split(self, x: str, axis: int, count: int) -> tuple[str, ...]:
        """`x` split into `count` equal parts along one axis."""
        shape = self.shape(x)
        size = shape[axis] // count
        made = [((*shape[:axis], size, *shape[axis + 1 :]), self.dtype(x))] * count
        if self.opset >= 13:
            return self._write(OnnxOp("Split", "", (("axis", axis),)), (x, self.integers(*(size,) * count)), made)
        return self._write(OnnxOp("Split", "", (("axis", axis), ("split", (size,) * count))), (x,), made)

    def pad(self, x: str, before: Sequence[int], after: Sequence[int]) -> str:
        """`x` with zeros around it; `x` itself if there are none."""
        return self.op(Pad(tuple(before), tuple(after)), x) if any((*before, *after)) else x

    def broadcast_to(self, x: str, shape: Shape) -> str:
        """`x` broadcast to a shape; `x` itself if it already has it."""
        if self.shape(x) == tuple(shape):
            return x
        return self.onnx("Expand", (x, self.integers(*shape)), tuple(shape))

    def matrix_transpose(self, x: str) -> str:
        """`x` with its last two axes swapped."""
        rank = len(self.shape(x))
        return self.transpose(x, (*range(rank - 2), rank - 1, rank - 2))

    # ---- sums

    def reduce(self, kind: str, x: str, axes: Sequence[int], keepdims: bool = True) -> str:
        """ReduceSum, ReduceMean, .. over axes, in the form of the graph's opset; `x` itself if there are no axes."""
        if not axes:
            return x
        shape = self.shape(x)
        places = tuple(sorted(axis % len(shape) for axis in axes))
        keepdims_shape = tuple(1 if axis in places else dim for axis, dim in enumerate(shape))
        made = keepdims_shape if keepdims else tuple(dim for axis, dim in enumerate(shape) if axis not in places)
        if self.opset >= (13 if kind == "ReduceSum" else 18):
            return self.onnx(kind, (x, self.integers(*places)), made, keepdims=int(keepdims))
        return self.onnx(kind, (x,), made, axes=places, keepdims=int(keepdims))

    def sum(self, x: str, axes: Sequence[int], keepdims: bool = True) -> str:
        """The sum over axes."""
        return self.reduce("ReduceSum", x, axes, keepdims)

    def mean(self, x: str, axes: Sequence[int]) -> str:
        """The mean over axes, which are kept as dims of 1."""
        return self.reduce("ReduceMean", x, axes)

    def sum_to(self, x: str, shape: Shape) -> str:
        """The gradient of a broadcast from `shape`: summed over the axes that it added or stretched."""
        given = self.shape(x)
        added = len(given) - len(shape)
        stretched = [axis + added for axis, dim in enumerate(shape) if dim == 1 and given[axis + added] != 1]
        return self.reshape(self.sum(x, (*range(added), *stretched)), shape)

    # ---- products

    def product(self, a: str, b: str) -> str:
        """numpy.matmul."""
        return self.op(PRODUCT, a, b)

    def rows_of(self, x: str) -> str:
        """`x` with all dims but the last merged into one."""
        shape = self.shape(x)
        return self.reshape(x, (math.prod(shape[:-1]), shape[-1]))

    # ---- indexing

    def scatter_add(self, index: str, updates: str, shape: Shape) -> str | Refusal:
        """Zeros of a shape, to whose rows (first axis) `updates` [*index dims, *shape[1:]] are added by index."""
        column = self.reshape(index, (*self.shape(index), 1))
        if self.dtype(column) != "int64":  # Gather accepts other types of index, ScatterND does not
            column = self.cast(column, "int64")
        inputs = (self.zeros(shape, updates), column, updates)
        known = self.array(index)
        if known is not None and len(np.unique(known % shape[0])) == known.size:
            return self.onnx("ScatterND", inputs, shape)
        if self.opset < SCATTER_OPSET:
            return no_scatter(self.opset)
        return self.onnx("ScatterND", inputs, shape, reduction="add")


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """A node with some of its inputs and outputs renamed."""
    if names.keys().isdisjoint((*node.inputs, *node.outputs)):
        return node
    inputs, outputs = (tuple(names.get(name, name) for name in side) for side in (node.inputs, node.outputs))
    return replace(node, inputs=inputs, outputs=outputs)


def no_scatter(opset: int) -> Refusal:
    """The refusal of a gradient that has to add by index, in an opset that cannot."""
    return Refusal(
        f"its gradient adds up duplicates of an index, but scatters of opset {opset} keep only one of them",
        remedy=f"export the model with opset {SCATTER_OPSET} or later",
    )


def attributes_of(op: OnnxOp) -> Mapping[str, AttributeValue]:
    """An operator's attributes by name."""
    return dict(op.attributes)


def integer(op: OnnxOp, name: str, default: int = 0) -> int:
    """An integer attribute."""
    value = attributes_of(op).get(name, default)
    return value if isinstance(value, int) else default


def number(attributes: Attributes, name: str, default: float) -> float:
    """A float attribute."""
    value = dict(attributes).get(name, default)
    return float(value) if isinstance(value, (int, float)) else default


def integers(op: OnnxOp, name: str) -> tuple[int, ...] | None:
    """An attribute of integers; None if it is absent."""
    value = attributes_of(op).get(name)
    return tuple(item for item in value if isinstance(item, int)) if isinstance(value, tuple) else None


def numbers(op: OnnxOp, name: str) -> tuple[float, ...]:
    """An attribute of floats; () if it is absent."""
    value = attributes_of(op).get(name)
    return tuple(float(item) for item in value if not isinstance(item, str)) if isinstance(value, tuple) else ()


def text(op: OnnxOp, name: str, default: str = "") -> str:
    """A string attribute."""
    value = attributes_of(op).get(name, default)
    return value if isinstance(value, str) else default
