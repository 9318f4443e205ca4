"""`Builder`: the one way to make graphs by hand, a node at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pimflow.errors import GraphError
from pimflow.ir.graph import Array, Graph, Node, Value
from pimflow.ir.names import FreshNames
from pimflow.ir.ops.base import Op
from pimflow.ir.ops.contraction import PRODUCT, Conv2d, Gemm
from pimflow.ir.ops.elementwise import BatchNorm, Elementwise
from pimflow.ir.ops.movement import Concat, Pad, Reshape, Slice, Transpose
from pimflow.ir.ops.opaque import Attributes, AttributeValue, OnnxOp
from pimflow.ir.ops.window import GlobalPool, Pool2d
from pimflow.ir.shapes import infer
from pimflow.ir.verify import verify_graph

Pair = int | tuple[int, int]
"""A number for height and width: one for both, or (height, width)."""
Border = int | tuple[int, int, int, int]
"""Padding: one width for all sides, or (top, left, bottom, right)."""


class Builder:
    """Builds a graph a node at a time; shapes and element types come from the ops' own rules.

    Every method that makes a value returns its name; other methods take such names. A node gets the requested name, or
    one made of its kind and position ("conv0", "relu1"); its value is named after it ("conv0_out"). A number is
    appended to a name that is taken. Weights are drawn from a seeded generator and scaled by their fan-in, so that
    values stay near 1.

        build = Builder()
        x = build.input(1, 3, 32, 32)
        y = build.relu(build.conv(x, 16, kernel=3, pad=1))
        graph = build.graph(build.conv(y, 4))

    Args:
        name: the graph's name.
        seed: seed of all weights; the same calls and seed give the same graph.
        opset: version of ONNX's default operator set.
    """

    def __init__(self, name: str = "graph", *, seed: int = 0, opset: int = 17) -> None:
        self.name = name
        self.rng = np.random.default_rng(seed)
        self._opset = opset
        self._inputs: list[str] = []
        self._nodes: list[Node] = []
        self._producers: dict[str, int] = {}
        self._values: dict[str, Value] = {}
        self._constants: dict[str, Array] = {}
        self._value_names = FreshNames()
        self._node_names = FreshNames()

    # ---- queries

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes made so far, in order."""
        return tuple(self._nodes)

    def value(self, name: str) -> Value:
        """A value made so far.

        Raises:
            GraphError: there is no such value.
        """
        if name not in self._values:
            raise GraphError(f"graph {self.name!r} has no value {name!r}")
        return self._values[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """The static shape of a value made so far.

        Raises:
            GraphError: there is no such value, or it has no static shape.
        """
        shape = self.value(name).shape
        if shape is None:
            raise GraphError(f"value {name!r} has no static shape")
        return shape

    def producer(self, value: str) -> Node:
        """The node that makes a value.

        Raises:
            GraphError: no node does.
        """
        return self._nodes[self._position(value)]

    def _position(self, value: str) -> int:
        if value not in self._producers:
            raise GraphError(f"no node of graph {self.name!r} makes {value!r}")
        return self._producers[value]

    # ---- inputs and constants

    def input(self, *shape: int, name: str = "x", dtype: str = "float32") -> str:
        """A graph input with this shape and element type (numpy's name)."""
        name = self._add_value(name, shape, dtype)
        self._inputs.append(name)
        return name

    def constant(self, array: Array, name: str = "constant") -> str:
        """A constant that holds `array`."""
        name = self._add_value(name, array.shape, array.dtype.name)
        self._constants[name] = array
        return name

    def weights(self, *shape: int, scale: float = 1.0, name: str = "weights") -> str:
        """A float32 constant drawn from a normal distribution of mean 0 and standard deviation `scale`."""
        return self.constant((scale * self.rng.standard_normal(shape)).astype(np.float32), name)

    def _add_value(self, base: str, shape: Sequence[int] | None, dtype: str) -> str:
        name = self._value_names.fresh(base)
        self._values[name] = Value(name, None if shape is None else tuple(shape), dtype)
        return name

    # ---- nodes of any kind

    def node(
        self, op: Op, inputs: Sequence[str], outputs: Sequence[tuple[Sequence[int] | None, str]], name: str = ""
    ) -> tuple[str, ...]:
        """Any op, with the (shape, element type) of each output given; shape None if it is not static.

        A single output of node n is named n_out; several are named n_out0, n_out1, ...

        Raises:
            GraphError: an input is neither "" (absent) nor a value made before.
        """
        for value in inputs:
            if value:
                self.value(value)
        name = self._node_names.fresh(name or f"{op.onnx_name.lower()}{len(self._nodes)}")
        suffixes = [""] if len(outputs) == 1 else [str(index) for index in range(len(outputs))]
        made = tuple(
            self._add_value(f"{name}_out{suffix}", shape, dtype)
            for suffix, (shape, dtype) in zip(suffixes, outputs, strict=True)
        )
        self._producers |= dict.fromkeys(made, len(self._nodes))
        self._nodes.append(Node(op, tuple(inputs), made, name))
        return made

    def op(self, op: Op, *inputs: str, name: str = "") -> str:
        """A typed op; its rule gives the shape and element type. "" is an absent optional input.

        Raises:
            GraphError: the op is an `OnnxOp` (see `onnx`), or the inputs do not fit it.
        """
        return self.node(op, inputs, infer(op, [self.value(item) if item else None for item in inputs]), name)[0]

    def onnx(
        self,
        op_type: str,
        x: str,
        *others: str,
        shape: Sequence[int] | None = None,
        dtype: str = "",
        domain: str = "",
        name: str = "",
        **attributes: AttributeValue,
    ) -> str:
        """Any other ONNX operator with one output, of the shape and element type of `x` unless they are given."""
        first = self.value(x)
        output = (first.shape if shape is None else shape, dtype or first.dtype)
        return self.node(OnnxOp(op_type, domain, _sorted(attributes)), (x, *others), [output], name)[0]

    def place(self, value: str, **fields: Any) -> str:
        """Replaces fields of the placement of the node that makes `value`; returns `value`."""
        position = self._position(value)
        self._nodes[position] = self._nodes[position].placed(**fields)
        return value

    # ---- contractions

    def conv(
        self,
        x: str,
        channels: int,
        kernel: Pair = 1,
        stride: Pair = 1,
        pad: Border = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        name: str = "",
    ) -> str:
        """A convolution of [N, C, H, W] with new weights [channels, C/groups, *kernel] and, if `bias`, a new bias."""
        pads = (pad, pad, pad, pad) if isinstance(pad, int) else pad
        op = Conv2d(_pair(kernel), _pair(stride), pads, _pair(dilation), groups)
        fan_in = (self.shape(x)[1] // groups, *op.kernel)
        operands = [self._scaled(channels, *fan_in, fan_in=math.prod(fan_in))]
        operands += [self.weights(channels, scale=0.1, name="bias")] if bias else []
        return self.op(op, x, *operands, name=name)

    def depthwise(
        self, x: str, kernel: Pair = 3, stride: Pair = 1, pad: Border = 1, bias: bool = True, name: str = ""
    ) -> str:
        """A convolution with one filter for each channel."""
        channels = self.shape(x)[1]
        return self.conv(x, channels, kernel, stride, pad, groups=channels, bias=bias, name=name)

    def gemm(self, x: str, features: int, bias: Sequence[int] | None = None, name: str = "") -> str:
        """A matrix product of [M, K] with new weights [K, features], plus a new bias of shape `bias` if given."""
        inner = self.shape(x)[1]
        operands = [self._scaled(inner, features, fan_in=inner)]
        operands += [self.weights(*bias, name="bias")] if bias is not None else []
        return self.op(Gemm(), x, *operands, name=name)

    def matmul(self, x: str, features: int, name: str = "") -> str:
        """A matrix product of [..., M, K] with new weights [K, features]."""
        inner = self.shape(x)[-1]
        return self.op(PRODUCT, x, self._scaled(inner, features, fan_in=inner), name=name)

    def _scaled(self, *shape: int, fan_in: int) -> str:
        return self.weights(*shape, scale=1 / math.sqrt(max(1, fan_in)))

    def batch_norm(self, x: str, epsilon: float = 1e-5, name: str = "") -> str:
        """Batch normalisation of [N, C, ...] with new scale, bias, mean and variance."""
        channels = self.shape(x)[1]
        operands = [self.weights(channels, name=part) for part in ("scale", "bias", "mean")]
        variance = (0.5 + self.rng.random(channels)).astype(np.float32)
        return self.op(BatchNorm(epsilon), x, *operands, self.constant(variance, "variance"), name=name)

    # ---- elementwise

    def elementwise(self, kind: str, *inputs: str, name: str = "", **attributes: AttributeValue) -> str:
        """An elementwise op by its ONNX name, over inputs that broadcast."""
        return self.op(Elementwise(kind, _sorted(attributes)), *inputs, name=name)

    def relu(self, x: str, name: str = "") -> str:
        """max(x, 0)."""
        return self.elementwise("Relu", x, name=name)

    def clip(self, x: str, low: float = 0.0, high: float = 6.0, name: str = "") -> str:
        """`x` clamped to two bounds; ReLU6 by default."""
        return self.elementwise("Clip", x, name=name, min=low, max=high)

    def sigmoid(self, x: str, name: str = "") -> str:
        """1 / (1 + exp(-x))."""
        return self.elementwise("Sigmoid", x, name=name)

    def tanh(self, x: str, name: str = "") -> str:
        """The hyperbolic tangent."""
        return self.elementwise("Tanh", x, name=name)

    def add(self, a: str, b: str, name: str = "") -> str:
        """a + b."""
        return self.elementwise("Add", a, b, name=name)

    def mul(self, a: str, b: str, name: str = "") -> str:
        """a * b."""
        return self.elementwise("Mul", a, b, name=name)

    # ---- windows

    def max_pool(self, x: str, kernel: Pair, stride: Pair = 1, pad: Border = 0, name: str = "") -> str:
        """The largest element of each window."""
        pads = (pad, pad, pad, pad) if isinstance(pad, int) else pad
        return self.op(Pool2d("max", _pair(kernel), _pair(stride), pads), x, name=name)

    def average_pool(self, x: str, kernel: Pair, stride: Pair = 1, name: str = "") -> str:
        """The mean of each window."""
        return self.op(Pool2d("average", _pair(kernel), _pair(stride)), x, name=name)

    def global_average(self, x: str, name: str = "") -> str:
        """The mean over H and W, which are kept as dims of 1."""
        return self.op(GlobalPool("average"), x, name=name)

    # ---- movement

    def slice(self, x: str, axis: int, start: int, stop: int, step: int = 1, name: str = "") -> str:
        """Elements start, start + step, .. < stop along one axis."""
        return self.op(Slice(axis, start, stop, step), x, name=name)

    def split(self, x: str, axis: int, *sizes: int, name: str = "") -> tuple[str, ...]:
        """ONNX's Split of `x` into parts of these sizes along one axis."""
        lengths = self.constant(np.array(sizes, np.int64), "sizes")
        shape, dtype = self.shape(x), self.value(x).dtype
        parts = [((*shape[:axis], size, *shape[axis + 1 :]), dtype) for size in sizes]
        return self.node(OnnxOp("Split", "", (("axis", axis),)), (x, lengths), parts, name)

    def concat(self, axis: int, *inputs: str, name: str = "") -> str:
        """The inputs concatenated along one axis."""
        return self.op(Concat(axis), *inputs, name=name)

    def pad(self, x: str, before: Sequence[int], after: Sequence[int], value: float = 0.0, name: str = "") -> str:
        """`x` with before[i] and after[i] elements of `value` around axis i."""
        return self.op(Pad(tuple(before), tuple(after), value), x, name=name)

    def reshape(self, x: str, *shape: int, name: str = "") -> str:
        """The same elements, in the same order, under another shape."""
        return self.op(Reshape(shape), x, name=name)

    def transpose(self, x: str, *perm: int, name: str = "") -> str:
        """`x` with its axes permuted."""
        return self.op(Transpose(perm), x, name=name)

    # ---- the result

    def graph(self, *outputs: str) -> Graph:
        """The graph built so far, with these outputs, verified. More nodes may be added and another graph made.

        Raises:
            GraphError: there is no output, or the graph breaks a rule of `verify_graph`.
        """
        if not outputs:
            raise GraphError(f"graph {self.name!r} needs an output")
        opset = {"": self._opset}
        graph = Graph(self.name, tuple(self._inputs), outputs, tuple(self._nodes), self._values, self._constants, opset)
        verify_graph(graph)
        return graph


def _pair(number: Pair) -> tuple[int, int]:
    return (number, number) if isinstance(number, int) else number


def _sorted(attributes: dict[str, AttributeValue]) -> Attributes:
    return tuple(sorted(attributes.items()))
