"""Small graphs for the tests of passes, built by hand, and ONNX Runtime as the judge of their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pimflow.ir import (
    Array,
    Concat,
    Conv2d,
    Elementwise,
    Gemm,
    GlobalPool,
    Graph,
    MatMul,
    Node,
    Op,
    Pool2d,
    Value,
)
from pimflow.ir.shapes import infer
from pimflow.runtime.execute.ort import OrtRunner


class Builder:
    """Adds nodes one by one; weights are seeded and scaled so that values stay near 1."""

    def __init__(self, seed: int = 0, opset: int = 17) -> None:
        self.random = np.random.default_rng(seed)
        self.opset = opset
        self.inputs: list[str] = []
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = {}
        self.constants: dict[str, Array] = {}

    def input(self, *shape: int, name: str = "x") -> str:
        self.inputs.append(name)
        self.values[name] = Value(name, shape)
        return name

    def constant(self, array: Array, name: str | None = None) -> str:
        name = name or f"c{len(self.constants)}"
        self.constants[name] = array
        self.values[name] = Value(name, array.shape, array.dtype.name)
        return name

    def weights(self, *shape: int, scale: float = 1.0) -> str:
        return self.constant((scale * self.random.standard_normal(shape)).astype(np.float32))

    def op(self, op: Op, *inputs: str, name: str | None = None, shape: Sequence[int] | None = None) -> str:
        name = name or f"n{len(self.nodes)}"
        output = f"{name}_out"
        if shape is None:
            shape, dtype = infer(op, [self.values[i] if i else None for i in inputs])[0]
        else:
            dtype = self.values[inputs[0]].dtype
        self.values[output] = Value(output, tuple(shape), dtype)
        self.nodes.append(Node(op, inputs, (output,), name))
        return output

    def conv(
        self,
        x: str,
        out: int,
        k: int | tuple[int, int] = 1,
        s: int | tuple[int, int] = 1,
        p: int | tuple[int, int, int, int] = 0,
        d: int = 1,
        g: int = 1,
        bias: bool = True,
        name: str | None = None,
    ) -> str:
        kernel = (k, k) if isinstance(k, int) else k
        channels = self.values[x].shape[1] // g
        scale = 1 / np.sqrt(channels * kernel[0] * kernel[1])
        weights = [self.weights(out, channels, *kernel, scale=scale)]
        weights += [self.weights(out, scale=0.1)] if bias else []
        strides = (s, s) if isinstance(s, int) else s
        pads = (p, p, p, p) if isinstance(p, int) else p
        return self.op(Conv2d(kernel, strides, pads, (d, d), g), x, *weights, name=name)

    def depthwise(self, x: str, k: int = 3, s: int = 1, p: int = 1, name: str | None = None) -> str:
        channels = self.values[x].shape[1]
        return self.conv(x, channels, k, s, p, g=channels, name=name)

    def relu(self, x: str, name: str | None = None) -> str:
        return self.op(Elementwise("Relu"), x, name=name)

    def clip(self, x: str, name: str | None = None) -> str:
        return self.op(Elementwise("Clip", (("max", 6.0), ("min", 0.0))), x, name=name)

    def add(self, a: str, b: str, name: str | None = None) -> str:
        return self.op(Elementwise("Add"), a, b, name=name)

    def mul(self, a: str, b: str, name: str | None = None) -> str:
        return self.op(Elementwise("Mul"), a, b, name=name)

    def sigmoid(self, x: str, name: str | None = None) -> str:
        return self.op(Elementwise("Sigmoid"), x, name=name)

    def global_pool(self, x: str) -> str:
        return self.op(GlobalPool("average"), x)

    def pool(self, x: str, op: Pool2d, name: str | None = None) -> str:
        return self.op(op, x, name=name)

    def concat(self, axis: int, *inputs: str, name: str | None = None) -> str:
        return self.op(Concat(axis), *inputs, name=name)

    def gemm(self, x: str, out: int, bias_shape: tuple[int, ...] | None = None, name: str | None = None) -> str:
        inner = self.values[x].shape[1]
        inputs = [self.weights(inner, out, scale=inner**-0.5)]
        inputs += [self.weights(*bias_shape)] if bias_shape is not None else []
        return self.op(Gemm(), x, *inputs, name=name)

    def matmul(self, x: str, out: int, name: str | None = None) -> str:
        inner = self.values[x].shape[-1]
        return self.op(MatMul(), x, self.weights(inner, out, scale=inner**-0.5), name=name)

    def graph(self, *outputs: str) -> Graph:
        return Graph(
            "test", tuple(self.inputs), outputs, tuple(self.nodes), self.values, self.constants, {"": self.opset}
        )


def seeded_inputs(graph: Graph, seed: int = 0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(graph.shape(name)).astype(np.float32) for name in graph.inputs}


def run_in_ort(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    return OrtRunner(graph, threads=1, optimise=False).run(inputs)


def assert_same_values(before: Graph, after: Graph, rtol: float = 1e-5, seed: int = 0) -> None:
    """Both graphs compute the same outputs, within `rtol` of the largest magnitude; and these vary."""
    inputs = seeded_inputs(before, seed)
    expected, actual = run_in_ort(before, inputs), run_in_ort(after, inputs)
    assert expected.keys() == actual.keys()
    for name, array in expected.items():
        assert array.shape == actual[name].shape
        if array.size >= 8:
            assert array.std() > 1e-3 * np.abs(array).max() > 0, f"{name} hardly varies"
        error = np.abs(array - actual[name]).max() / max(np.abs(array).max(), 1e-6)
        assert error <= rtol, f"{name}: relative error {error:.2e}"
