"""Encoder layers of a transformer, as BERT has them, with seeded weights: ONNX with every operation spelled out.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", NAACL 2019: the base
model has 12 layers of 768 features, 12 heads and 3072 hidden features. All layers are alike, so that a few of them tell
what all of them do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8


class _Encoder:
    """A graph under construction; names of values are those of the nodes that make them."""

    def __init__(self, tokens: int, features: int, heads: int, hidden: int, seed: int) -> None:
        self.tokens, self.features, self.heads, self.hidden = tokens, features, heads, hidden
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(seed)

    def node(self, op: str, name: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, name: str, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def scalar(self, name: str, value: float) -> str:
        return self.constant(name, np.array(value, np.float32))

    def linear(self, x: str, name: str, width: int, columns: int) -> str:
        """x @ w + b, of unit variance for inputs of unit variance."""
        weights = self._rng.standard_normal((width, columns), np.float32) / math.sqrt(width)
        product = self.node("MatMul", f"{name}.product", x, self.constant(f"{name}.weight", weights))
        bias = self._rng.standard_normal(columns, np.float32) * np.float32(0.1)
        return self.node("Add", name, product, self.constant(f"{name}.bias", bias))

    def norm(self, x: str, name: str) -> str:
        gain = self._rng.uniform(0.8, 1.2, self.features).astype(np.float32)
        shift = self._rng.standard_normal(self.features, np.float32) * np.float32(0.1)
        constants = (self.constant(f"{name}.weight", gain), self.constant(f"{name}.bias", shift))
        return self.node("LayerNormalization", name, x, *constants, axis=-1)

    def split_heads(self, x: str, name: str, perm: Sequence[int]) -> str:
        shape = np.array([1, self.tokens, self.heads, self.features // self.heads], np.int64)
        apart = self.node("Reshape", f"{name}.apart", x, self.constant(f"{name}.shape", shape))
        return self.node("Transpose", f"{name}.heads", apart, perm=list(perm))

    def attention(self, x: str, name: str) -> str:
        perms = {"query": (0, 2, 1, 3), "key": (0, 2, 3, 1), "value": (0, 2, 1, 3)}
        query, key, value = (
            self.split_heads(self.linear(x, f"{name}.{part}", self.features, self.features), f"{name}.{part}", perm)
            for part, perm in perms.items()
        )
        width = self.scalar(f"{name}.width", math.sqrt(self.features / self.heads))
        scores = self.node("Div", f"{name}.scores", self.node("MatMul", f"{name}.dots", query, key), width)
        mixed = self.node("MatMul", f"{name}.mixed", self.node("Softmax", f"{name}.shares", scores, axis=-1), value)
        together = self.node("Transpose", f"{name}.together", mixed, perm=[0, 2, 1, 3])
        shape = np.array([1, self.tokens, self.features], np.int64)
        joined = self.node("Reshape", f"{name}.joined", together, self.constant(f"{name}.shape", shape))
        return self.linear(joined, f"{name}.out", self.features, self.features)

    def gelu(self, x: str, name: str) -> str:
        """x / 2 * (1 + erf(x / sqrt 2))."""
        scaled = self.node("Div", f"{name}.scaled", x, self.scalar(f"{name}.root", math.sqrt(2)))
        shifted = self.node(
            "Add", f"{name}.shifted", self.node("Erf", f"{name}.erf", scaled), self.scalar(f"{name}.one", 1.0)
        )
        product = self.node("Mul", f"{name}.product", x, shifted)
        return self.node("Mul", name, product, self.scalar(f"{name}.half", 0.5))

    def layer(self, x: str, name: str) -> str:
        residual = self.node("Add", f"{name}.residual1", self.attention(x, f"{name}.attention"), x)
        attended = self.norm(residual, f"{name}.norm1")
        hidden = self.gelu(self.linear(attended, f"{name}.up", self.features, self.hidden), f"{name}.gelu")
        down = self.linear(hidden, f"{name}.down", self.hidden, self.features)
        return self.norm(self.node("Add", f"{name}.residual2", down, attended), f"{name}.norm2")


def encoder(
    layers: int = 2, tokens: int = 64, features: int = 768, heads: int = 12, hidden: int = 3072, seed: int = 1
) -> onnx.ModelProto:
    """Encoder layers over embedded tokens: `input` and `output` are float32 [1, tokens, features].

    The defaults are two of the twelve layers of BERT base. The same arguments give the same bytes.
    """
    net = _Encoder(tokens, features, heads, hidden, seed)
    x = "input"
    for index in range(layers):
        x = net.layer(x, f"layer{index}")
    net.node("Identity", "output", x)
    shape = [1, tokens, features]
    graph = helper.make_graph(
        net.nodes,
        f"encoder-{layers}x{tokens}",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, shape)],
        net.constants,
    )
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="pimflow-zoo")
