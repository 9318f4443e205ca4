"""Opaque nodes -> typed ops, over all spellings since opset 7. What has no exact typed form stays opaque."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pimflow.errors import GraphError
from pimflow.frontend.importing import fresh_name
from pimflow.ir import (
    Array,
    BatchNorm,
    Concat,
    Conv2d,
    Elementwise,
    Gemm,
    GlobalPool,
    Graph,
    MatMul,
    Node,
    OnnxOp,
    Op,
    Pad,
    Pool2d,
    Reshape,
    Slice,
    Transpose,
    Value,
    window_out,
)
from pimflow.ir.ops.opaque import AttributeValue
from pimflow.ir.shapes import TensorType, infer
from pimflow.onnxio.tensors import shortest

FLOATS = frozenset({"float32", "float16", "bfloat16"})
"""Element types of the products and windows that the compiler reasons about; others stay opaque."""

ELEMENTWISE = (
    # of one input
    "Relu",
    "LeakyRelu",
    "ThresholdedRelu",
    "Elu",
    "Selu",
    "Celu",
    "Gelu",
    "Mish",
    "Swish",
    "HardSwish",
    "HardSigmoid",
    "Sigmoid",
    "Tanh",
    "Softplus",
    "Softsign",
    "Exp",
    "Log",
    "Sqrt",
    "Abs",
    "Neg",
    "Reciprocal",
    "Sign",
    "Floor",
    "Ceil",
    "Round",
    "Erf",
    "Sin",
    "Cos",
    "Tan",
    "Asin",
    "Acos",
    "Atan",
    "Sinh",
    "Cosh",
    "Asinh",
    "Acosh",
    "Atanh",
    "Not",
    "IsNaN",
    "IsInf",
    "BitwiseNot",
    # of several, with broadcasting
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Pow",
    "Mod",
    "PRelu",
    "Min",
    "Max",
    "Mean",
    "And",
    "Or",
    "Xor",
    "Equal",
    "Greater",
    "Less",
    "GreaterOrEqual",
    "LessOrEqual",
    "Where",
    "BitShift",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
)
"""Operators of ONNX's own domain that become `Elementwise` as they are."""


class Typed(NamedTuple):
    """Ops applied one after the other; the first reads `inputs`, each later one the result before it."""

    ops: tuple[Op, ...]
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Site:
    """One opaque node with what is known of its inputs."""

    node: Node
    values: Mapping[str, Value]
    constants: Mapping[str, Array]
    opset: int

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """The node's attributes."""
        assert isinstance(self.node.op, OnnxOp)
        return dict(self.node.op.attributes)

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def value(self, index: int = 0) -> Value:
        """An input's value."""
        return self.values[self.node.inputs[index]]

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """An input's shape; () where it is unknown or absent."""
        return self.value(index).shape or () if self.has(index) else ()

    def is_float(self) -> bool:
        """Whether the first input is of a type that the compiler reasons about."""
        return self.value().dtype in FLOATS

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def number(self, name: str, default: float) -> float:
        """A float attribute."""
        value = self.attributes.get(name, default)
        return float(value) if isinstance(value, (int, float)) else default

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, str) else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        """An attribute of integers, None where it is absent."""
        value = self.attributes.get(name)
        if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
            return tuple(int(item) for item in value if isinstance(item, int))
        return None

    def constant(self, index: int) -> Array | None:
        """A constant input's elements; None where it is absent or computed."""
        return self.constants.get(self.node.inputs[index]) if self.has(index) else None

    def constant_integers(self, index: int) -> tuple[int, ...] | None:
        """A constant input as integers; None where it is absent or computed."""
        array = self.constant(index)
        return None if array is None else tuple(int(item) for item in array.reshape(-1))

    def out_shape(self) -> tuple[int, ...] | None:
        """The first output's shape, None where it is not known yet."""
        value = self.values.get(self.node.output)
        return None if value is None else value.shape


Rule = Callable[[Site], "Typed | Op | None"]


def recognise(graph: Graph) -> Graph:
    """The graph with every node in typed form that has one which gives the very shape and type known for the node."""
    nodes: list[Node] = []
    values = dict(graph.values)
    names = {node.name for node in graph.nodes}
    for node in graph.nodes:
        node = _without_unused(node, graph)
        typed = typed_form(node, graph.values, graph.constants, graph.opset.get("", 0))
        if typed is None or not _agrees(typed[1], graph.value(node.output)):
            nodes.append(node)
        else:
            nodes.extend(_chain(node, typed[0], values, names))
    used = {*graph.inputs, *graph.outputs}
    used.update(name for node in nodes for name in (*node.inputs, *node.outputs) if name)
    return graph.replace(
        nodes=nodes,
        values={name: value for name, value in values.items() if name in used},
        constants={name: array for name, array in graph.constants.items() if name in used},
    )


def _agrees(result: TensorType, known: Value) -> bool:
    return (result.shape, result.dtype) == (known.shape, known.dtype)


def typed_form(
    node: Node, values: Mapping[str, Value], constants: Mapping[str, Array], opset: int
) -> tuple[Typed, TensorType] | None:
    """A node's exact typed form and what it makes; None where the node has to stay opaque.

    Args:
        node: an opaque node.
        values: the values that it reads, and what it makes as far as that is known.
        constants: those of them that are constants.
        opset: version of ONNX's own operators.
    """
    op = node.op
    if not isinstance(op, OnnxOp) or op.domain or len(node.outputs) != 1:
        return None
    rule = _RULES.get(op.op_type)
    static = all(values[name].shape is not None and values[name].dtype for name in node.inputs if name)
    if rule is None or not static or not node.inputs or not node.inputs[0]:
        return None
    found = rule(Site(node, values, constants, opset))
    if found is None:
        return None
    typed = found if isinstance(found, Typed) else Typed((found,), node.inputs)
    result = _result(typed, [values[name] if name else None for name in typed.inputs])
    return None if result is None else (typed, result)


def _result(typed: Typed, inputs: Sequence[Value | None]) -> TensorType | None:
    """What a chain of ops makes; None where its inputs do not fit."""
    if isinstance(typed.ops[-1], OnnxOp):  # Identity
        (value,) = inputs
        return None if value is None or value.shape is None else TensorType(value.shape, value.dtype)
    try:
        for op in typed.ops:
            (result,) = infer(op, inputs)
            inputs = [Value("", result.shape, result.dtype)]
    except GraphError:
        return None
    return result


def _without_unused(node: Node, graph: Graph) -> Node:
    """The node without a second output that nobody reads (the mask of Dropout, the indices of MaxPool)."""
    if len(node.outputs) != 2 or node.kind not in ("Dropout", "MaxPool"):
        return node
    unused = not graph.users(node.outputs[1]) and node.outputs[1] not in graph.outputs
    return replace(node, outputs=node.outputs[:1]) if unused else node


def _chain(node: Node, typed: Typed, values: dict[str, Value], names: set[str]) -> list[Node]:
    """One node for each op; the last keeps the original's name and output."""
    chain: list[Node] = []
    inputs = typed.inputs
    for step, op in enumerate(typed.ops[:-1]):
        (result,) = infer(op, [values[name] if name else None for name in inputs])
        output = fresh_name(f"{node.output}_{step}", values)
        values[output] = Value(output, result.shape, result.dtype)
        name = fresh_name(f"{node.name}_{step}", names)
        names.add(name)
        chain.append(Node(op, inputs, (output,), name, node.placement, node.tags))
        inputs = (output,)
    return [*chain, Node(typed.ops[-1], inputs, node.outputs, node.name, node.placement, node.tags)]


def _identity(site: Site) -> Typed:
    return Typed((OnnxOp("Identity"),), site.node.inputs[:1])


def _pair(values: tuple[int, ...] | None, default: int) -> tuple[int, int] | None:
    if values is None:
        return (default, default)
    return (values[0], values[1]) if len(values) == 2 and min(values) >= 1 else None


def _resolve_pads(
    site: Site, kernel: tuple[int, int], strides: tuple[int, int], dilations: tuple[int, int]
) -> tuple[int, int, int, int] | None:
    """Explicit pads (top, left, bottom, right); None for what has none (negative ones, unknown modes)."""
    mode = site.text("auto_pad", "NOTSET")
    if mode == "NOTSET":
        pads = site.integers("pads") or (0, 0, 0, 0)
        return (pads[0], pads[1], pads[2], pads[3]) if len(pads) == 4 and min(pads) >= 0 else None
    if mode == "VALID":
        return (0, 0, 0, 0)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        return None
    sizes = site.shape()[2:]
    totals = [
        max(0, (math.ceil(size / stride) - 1) * stride + dilation * (extent - 1) + 1 - size)
        for size, extent, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    begin, end = (less, more) if mode == "SAME_UPPER" else (more, less)
    return (begin[0], begin[1], end[0], end[1])


def _conv(site: Site) -> Typed | None:
    weights = site.shape(1)
    if len(site.shape()) != 4 or len(weights) != 4 or not site.is_float():
        return None
    kernel = site.integers("kernel_shape") or weights[2:]
    strides, dilations = _pair(site.integers("strides"), 1), _pair(site.integers("dilations"), 1)
    if kernel != weights[2:] or strides is None or dilations is None:
        return None
    pads = _resolve_pads(site, (kernel[0], kernel[1]), strides, dilations)
    if pads is None:
        return None
    op = Conv2d((kernel[0], kernel[1]), strides, pads, dilations, site.integer("group", 1))
    return Typed((op,), site.node.inputs[:3])


def _pool(site: Site) -> Op | None:
    kernel, strides = site.integers("kernel_shape"), _pair(site.integers("strides"), 1)
    dilations = _pair(site.integers("dilations"), 1)
    if len(site.shape()) != 4 or kernel is None or len(kernel) != 2 or strides is None or dilations is None:
        return None
    if site.value().dtype not in FLOATS or site.integer("storage_order", 0):
        return None
    size = (kernel[0], kernel[1])
    pads = _resolve_pads(site, size, strides, dilations)
    if pads is None:
        return None
    average = site.node.kind == "AveragePool"
    include = average and bool(site.integer("count_include_pad", 0))
    ceil = bool(site.integer("ceil_mode", 0)) and site.text("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    op = Pool2d("average" if average else "max", size, strides, pads, dilations, ceil, include)
    return _without_ceil(op, site.shape()) if ceil else op


def _without_ceil(op: Pool2d, shape: tuple[int, ...]) -> Pool2d:
    """The same pooling with floor mode and the trailing pads that the last windows reach into, where that is exact.

    Padding counts neither for a maximum nor for an average that leaves it out, so then it may be explicit.
    """
    ends = []
    for axis in range(2):
        extent = op.dilations[axis] * (op.kernel[axis] - 1) + 1
        before, after = op.pads[axis], op.pads[2 + axis]
        count = window_out(shape[2 + axis], op.kernel[axis], op.strides[axis], before, after, op.dilations[axis], True)
        ends.append(max(after, (count - 1) * op.strides[axis] + extent - before - shape[2 + axis]))
    pads = (op.pads[0], op.pads[1], ends[0], ends[1])
    exact = pads == op.pads or not op.count_include_pad
    if exact and all(end < size for end, size in zip(ends, op.kernel, strict=True)):
        return Pool2d(op.kind, op.kernel, op.strides, pads, op.dilations, False, op.count_include_pad)
    return op


def _global_pool(site: Site) -> Op | None:
    if len(site.shape()) != 4 or not site.is_float():
        return None
    return GlobalPool("average" if site.node.kind == "GlobalAveragePool" else "max")


def _reduce(site: Site) -> Typed | None:
    """ReduceMean or ReduceMax over exactly H and W, kept as dims of 1."""
    axes = site.constant_integers(1) if site.has(1) else site.integers("axes")
    if len(site.shape()) != 4 or site.value().dtype not in ("float32", "float16") or axes is None:
        return None
    if sorted(axis % 4 for axis in axes) != [2, 3] or not site.integer("keepdims", 1):
        return None
    return Typed((GlobalPool("average" if site.node.kind == "ReduceMean" else "max"),), site.node.inputs[:1])


def _gemm(site: Site) -> Op | None:
    if not site.is_float():
        return None
    return Gemm(
        site.number("alpha", 1.0),
        site.number("beta", 1.0),
        bool(site.integer("transA", 0)),
        bool(site.integer("transB", 0)),
    )


def _matmul(site: Site) -> Op | None:
    return MatMul() if site.is_float() else None


def _batch_norm(site: Site) -> Op | None:
    training = site.integer("training_mode", 0) or not site.integer("spatial", 1)
    return None if training or not site.is_float() else BatchNorm(site.number("epsilon", 1e-5))


def _elementwise(site: Site) -> Op | None:
    assert isinstance(site.node.op, OnnxOp)
    return Elementwise(site.node.kind, site.node.op.attributes) if all(site.node.inputs) else None


def _sum(site: Site) -> Typed | Op | None:
    return _identity(site) if len(site.node.inputs) == 1 else _elementwise(site)


def _clip(site: Site) -> Typed | None:
    if site.opset < 11:
        names = ("max", "min")
        bounds = {name: site.number(name, 0.0) for name in names if name in site.attributes}
        return Typed((Elementwise("Clip", tuple(sorted(bounds.items()))),), site.node.inputs[:1])
    found: list[tuple[str, AttributeValue]] = []
    for index, name in ((2, "max"), (1, "min")):
        bound = site.constant(index)
        if site.has(index) and (bound is None or bound.size != 1):
            return None
        if bound is not None:
            scalar = bound.reshape(())
            found.append((name, int(scalar) if bound.dtype.kind in "iu" else _decimal(scalar)))
    return Typed((Elementwise("Clip", tuple(found)),), site.node.inputs[:1])


def _decimal(scalar: Array) -> float:
    """A scalar as a Python float, written as short as its type allows."""
    return shortest(float(scalar)) if scalar.dtype.itemsize <= 4 and scalar.dtype.kind not in "iu" else float(scalar)


def _cut(site: Site) -> Typed | None:
    """Slice: one typed Slice for each axis that it really cuts."""
    rank = len(site.shape())
    if site.opset < 10:
        starts, ends = site.integers("starts"), site.integers("ends")
        axes, steps = site.integers("axes"), None
    else:
        starts, ends = site.constant_integers(1), site.constant_integers(2)
        axes, steps = site.constant_integers(3), site.constant_integers(4)
        if (site.has(3) and axes is None) or (site.has(4) and steps is None):
            return None
    if starts is None or ends is None:
        return None
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if any(step < 1 for step in steps):
        return None
    ops: list[Op] = []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = site.shape()[axis % rank]
        first, last, _ = slice(start, end, step).indices(size)
        if (first, last, step) != (0, size, 1):
            ops.append(Slice(axis % rank, first, max(first, last), step))
    return Typed(tuple(ops), site.node.inputs[:1]) if ops else _identity(site)


def _pad(site: Site) -> Typed | None:
    if site.text("mode", "constant") != "constant":
        return None
    rank = len(site.shape())
    if site.opset < 11:
        pads, value = site.integers("pads"), site.number("value", 0.0)
    else:
        pads, fill = site.constant_integers(1), site.constant(2)
        if site.has(2) and (fill is None or fill.dtype.kind not in "fiu"):
            return None
        value = 0.0 if fill is None else _decimal(fill.reshape(()))
        if fill is not None and fill.dtype.kind != "f" and int(value) != int(fill.reshape(())):
            return None
    axes = tuple(range(rank)) if not site.has(3) else site.constant_integers(3)
    if pads is None or axes is None or len(pads) != 2 * len(axes) or min(pads, default=0) < 0:
        return None
    before, after = [0] * rank, [0] * rank
    for index, axis in enumerate(axes):
        before[axis % rank], after[axis % rank] = pads[index], pads[index + len(axes)]
    return Typed((Pad(tuple(before), tuple(after), value),), site.node.inputs[:1])


def _concat(site: Site) -> Op | None:
    rank = len(site.shape())
    return Concat(site.integer("axis", 1) % rank) if rank and all(site.node.inputs) else None


def _reshape(site: Site) -> Typed | None:
    shape = site.out_shape()
    if shape is None or any(site.constant(i) is None for i in range(1, len(site.node.inputs))):
        return None
    if 0 in shape and site.opset < 14:  # nothing but allowzero says a size of 0
        return None
    return Typed((Reshape(shape),), site.node.inputs[:1])


def _transpose(site: Site) -> Op | None:
    rank = len(site.shape())
    return Transpose(site.integers("perm") or tuple(reversed(range(rank))))


def _dropout(site: Site) -> Typed | None:
    """Dropout outside training is the identity."""
    training = site.constant(2)
    if site.has(2) and (training is None or bool(training.reshape(()))):
        return None
    return _identity(site)


_RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    "Conv": _conv,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "ReduceMean": _reduce,
    "ReduceMax": _reduce,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "BatchNormalization": _batch_norm,
    "Sum": _sum,
    "Clip": _clip,
    "Slice": _cut,
    "Pad": _pad,
    "Concat": _concat,
    "Reshape": _reshape,
    "Flatten": _reshape,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
    "Transpose": _transpose,
    "Dropout": _dropout,
}
