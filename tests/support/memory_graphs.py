"""Small graphs for the tests of memory, with ops that move bytes, and hypothesis strategies that draw them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from pimflow.ir import (
    Array,
    Concat,
    Conv2d,
    Elementwise,
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
)
from pimflow.ir.placement import Placement
from pimflow.ir.shapes import infer


class Maker:
    """Adds nodes one by one; every method returns the name of the value it makes."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.inputs: list[str] = []
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = {}
        self.constants: dict[str, Array] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        shape = self.values[name].shape
        assert shape is not None
        return shape

    def input(self, *shape: int, dtype: str = "float32") -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.values[name] = Value(name, shape, dtype)
        return name

    def constant(self, *shape: int) -> str:
        name = f"w{len(self.constants)}"
        fan = max(1, int(np.prod(shape[1:])))
        self.constants[name] = (self.rng.standard_normal(shape) / np.sqrt(fan)).astype(np.float32)
        self.values[name] = Value(name, shape)
        return name

    def op(self, op: Op, *inputs: str, device: str | None = None, name: str = "", **placement: Any) -> str:
        name = name or f"n{len(self.nodes)}"
        if isinstance(op, OnnxOp):
            assert op.op_type in ("Identity", "Softmax")
            shape, dtype = self.shape(inputs[0]), self.values[inputs[0]].dtype
        else:
            shape, dtype = infer(op, [self.values[item] if item else None for item in inputs])[0]
        out = f"{name}_out"
        self.values[out] = Value(out, tuple(shape), dtype)
        self.nodes.append(Node(op, inputs, (out,), name, Placement(device, **placement)))
        return out

    def split(self, x: str, axis: int, *sizes: int) -> list[str]:
        name = f"n{len(self.nodes)}"
        outs = []
        for index, size in enumerate(sizes):
            shape = list(self.shape(x))
            shape[axis] = size
            outs.append(f"{name}_out{index}")
            self.values[outs[-1]] = Value(outs[-1], tuple(shape), self.values[x].dtype)
        lengths = f"sizes{len(self.constants)}"
        self.constants[lengths] = np.array(sizes, np.int64)
        self.values[lengths] = Value(lengths, (len(sizes),), "int64")
        self.nodes.append(Node(OnnxOp("Split", "", (("axis", axis),)), (x, lengths), tuple(outs), name))
        return outs

    def conv(self, x: str, out: int = 4, k: int = 1, s: int = 1, p: int = 0, **kwargs: str) -> str:
        weights = self.constant(out, self.shape(x)[1], k, k)
        return self.op(Conv2d((k, k), (s, s), (p, p, p, p)), x, weights, **kwargs)  # type: ignore[arg-type]

    def relu(self, x: str, **kwargs: str) -> str:
        return self.op(Elementwise("Relu"), x, **kwargs)  # type: ignore[arg-type]

    def tanh(self, x: str) -> str:
        return self.op(Elementwise("Tanh"), x)

    def add(self, a: str, b: str) -> str:
        return self.op(Elementwise("Add"), a, b)

    def slice(self, x: str, axis: int, start: int, stop: int, step: int = 1, **kwargs: str) -> str:
        return self.op(Slice(axis, start, stop, step), x, **kwargs)  # type: ignore[arg-type]

    def concat(self, axis: int, *inputs: str, **kwargs: str) -> str:
        return self.op(Concat(axis), *inputs, **kwargs)  # type: ignore[arg-type]

    def pad(self, x: str, before: tuple[int, ...], after: tuple[int, ...], value: float = 0.0) -> str:
        return self.op(Pad(before, after, value), x)

    def pad_hw(self, x: str, top: int, left: int, bottom: int, right: int, value: float = 0.0) -> str:
        return self.pad(x, (0, 0, top, left), (0, 0, bottom, right), value)

    def graph(self, *outputs: str) -> Graph:
        return Graph("test", tuple(self.inputs), outputs, tuple(self.nodes), self.values, self.constants, {"": 17})


def seeded_inputs(graph: Graph, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    inputs = {name: 3 * rng.standard_normal(graph.shape(name)) for name in graph.inputs}
    bools = {name for name in graph.inputs if graph.value(name).dtype == "bool"}
    return {
        name: array > 0 if name in bools else array.astype(graph.value(name).dtype) for name, array in inputs.items()
    }


def attention() -> Graph:
    """Scores and context of two heads over five tokens of eight channels."""
    make = Maker()
    x = make.input(1, 5, 8)
    heads = []
    for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)):
        projected = make.op(MatMul(), x, make.constant(8, 8))
        heads.append(make.op(Transpose(perm), make.op(Reshape((1, 5, 2, 4)), projected)))
    scores = make.op(OnnxOp("Softmax", "", (("axis", -1),)), make.op(MatMul(), heads[0], heads[1]))
    context = make.op(Transpose((0, 2, 1, 3)), make.op(MatMul(), scores, heads[2]))
    return make.graph(make.op(MatMul(), make.op(Reshape((1, 5, 8)), context), make.constant(8, 8)))


@st.composite
def moving_graphs(draw: st.DrawFn) -> Graph:
    """Graphs of convolutions, activations and adds with every kind of movement between them, of any rank."""
    make = Maker(draw(st.integers(0, 99)))
    height, width = draw(st.integers(3, 6)), draw(st.integers(2, 5))
    values = [make.input(draw(st.integers(1, 2)), draw(st.integers(1, 4)), height, width)]
    values.append(make.tanh(values[0]))
    for _ in range(draw(st.integers(2, 12))):
        values.append(_drawn_node(draw, make, values))
    read = {name for node in make.nodes for name in node.inputs}
    unread = [name for name in values if name not in read]
    extra = draw(st.lists(st.sampled_from(values[1:]), max_size=2))
    return make.graph(*dict.fromkeys(unread + extra))


def _drawn_node(draw: st.DrawFn, make: Maker, values: list[str]) -> str:
    kind = draw(st.sampled_from(["conv", "tanh", "add", "pool", "slice", "slice", "concat", "concat", "pad", "pad",
                                 "reshape", "transpose", "identity", "split"]))  # fmt: skip
    x = draw(st.sampled_from(values[-6:]))
    shape = make.shape(x)
    rank = len(shape)
    if kind == "conv" and rank == 4:
        return make.conv(x, draw(st.integers(1, 4)), 1 if min(shape[2:]) < 3 else draw(st.sampled_from([1, 3])), p=1)
    if kind == "pool" and rank == 4 and min(shape[2:]) >= 2:
        return make.op(Pool2d("average", (2, 2)), x)
    if kind == "add":
        others = [name for name in values if make.shape(name) == shape]
        return make.add(x, draw(st.sampled_from(others)))
    if kind == "slice":
        axis = draw(st.integers(0, rank - 1))
        start = draw(st.integers(0, shape[axis] - 1))
        stop = draw(st.integers(start + 1, shape[axis]))
        return make.slice(x, axis, start, stop, draw(st.sampled_from([1, 1, 1, 2])))
    if kind == "concat":
        return _drawn_concat(draw, make, values, x)
    if kind == "pad" and sum(shape) < 40:
        widths = st.lists(st.integers(0, 2), min_size=rank, max_size=rank).map(tuple)
        return make.pad(x, draw(widths), draw(widths), draw(st.sampled_from([0.0, 0.0, 0.0, 1.5])))
    if kind == "reshape":
        return make.op(Reshape(draw(st.sampled_from(_shapes_like(shape)))), x)
    if kind == "transpose":
        return make.op(Transpose(tuple(draw(st.permutations(range(rank))))), x)
    if kind == "identity":
        return make.op(OnnxOp("Identity"), x)
    if kind == "split" and max(shape) >= 2:
        axis = shape.index(max(shape))
        first = draw(st.integers(1, shape[axis] - 1))
        return draw(st.sampled_from(make.split(x, axis, first, shape[axis] - first)))
    return make.tanh(x)


def _drawn_concat(draw: st.DrawFn, make: Maker, values: list[str], x: str) -> str:
    shape = make.shape(x)
    axis = draw(st.integers(0, len(shape) - 1))

    def fits(name: str) -> bool:
        other = make.shape(name)
        return len(other) == len(shape) and all(i == axis or other[i] == shape[i] for i in range(len(shape)))

    choices = [name for name in values if fits(name)]
    others = draw(st.lists(st.sampled_from(choices), min_size=1, max_size=2))
    return make.concat(axis, *draw(st.permutations([x, *others])))


def _shapes_like(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    count = int(np.prod(shape))
    n, rest = shape[0], count // shape[0]
    shapes = [(count,), (n, rest), (1, *shape), (n, rest, 1, 1), (n, 1, rest), (1, count, 1, 1)]
    if len(shape) == 4:
        shapes += [(n, shape[1], shape[2] * shape[3]), (n, shape[1], shape[2] * shape[3], 1), (n, 1, *shape[1:])]
    return shapes
