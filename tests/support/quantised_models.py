"""Quantised networks as PyTorch and ONNX Runtime export them: QuantizeLinear and DequantizeLinear at every tensor."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from pimflow.ir import Array
from support.onnx_models import model_of

STEP = 4 / 127
"""Quantisation step of all activations, which lie within about four standard deviations of 0."""


class QdqWriter:
    """Writes nodes and constants of a network whose activations are int8, all with the same step."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {
            "step": np.array(STEP, np.float32),
            "zero": np.array(0, np.int8),
            "lowest": np.array(-128, np.int8),
        }
        self._random = np.random.default_rng(0)

    def rounded(self, x: str, zero: str = "zero") -> str:
        """The value, quantised and dequantised."""
        self.nodes.append(helper.make_node("QuantizeLinear", [x, "step", zero], [f"{x}_q"], f"quantise_{x}"))
        self.nodes.append(helper.make_node("DequantizeLinear", [f"{x}_q", "step", zero], [f"{x}_d"], f"back_{x}"))
        return f"{x}_d"

    def weights(self, name: str, shape: tuple[int, ...], axis: int = 0) -> str:
        """int8 weights with one scale per channel along the axis; a sum over the other axes has a standard deviation of
        about 1."""
        scales = self._random.uniform(0.5, 1.5, shape[axis]).astype(np.float32)
        depth = np.prod(shape) / shape[axis]
        elements = self._random.integers(-127, 128, shape).astype(np.int8)
        self.constants |= {
            f"{name}_i8": elements,
            f"{name}_s": (scales / (73 * np.sqrt(depth))).astype(np.float32),
            f"{name}_z": np.zeros(shape[axis], np.int8),
        }
        inputs = [f"{name}_i8", f"{name}_s", f"{name}_z"]
        self.nodes.append(helper.make_node("DequantizeLinear", inputs, [name], f"weights_{name}", axis=axis))
        return name

    def conv(self, x: str, name: str, channels: tuple[int, int], kernel: int) -> str:
        """A convolution with a 32-bit bias, and a Relu; quantised."""
        weights = self.weights(f"{name}_w", (channels[1], channels[0], kernel, kernel))
        scale = (self.constants[f"{weights}_s"] * np.float32(STEP)).astype(np.float32)
        self.constants |= {
            f"{name}_b_i32": self._random.integers(-2000, 2000, channels[1]).astype(np.int32),
            f"{name}_b_s": scale,
        }
        bias = [f"{name}_b_i32", f"{name}_b_s"]
        self.nodes.append(helper.make_node("DequantizeLinear", bias, [f"{name}_b"], f"bias_{name}", axis=0))
        pads = [kernel // 2] * 4
        self.nodes.append(helper.make_node("Conv", [x, weights, f"{name}_b"], [f"{name}_c"], name, pads=pads))
        self.nodes.append(helper.make_node("Relu", [f"{name}_c"], [f"{name}_r"], f"relu_{name}"))
        return self.rounded(f"{name}_r", "lowest")


def qdq_model(opset: int = 17, domain: str = "") -> onnx.ModelProto:
    """`qdq_nodes` as a model, with the (de)quantising operators of a domain."""
    writer = qdq_nodes()
    for node in writer.nodes:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            node.domain = domain
    return model_of(
        writer.nodes, {"x": (1, 16, 12, 12)}, ["y"], writer.constants, opset, domains={domain: 1} if domain else {}
    )


def qdq_nodes() -> QdqWriter:
    """Three convolutions and a classifier over [1, 16, 12, 12]; output y [1, 24] is also quantised."""
    writer = QdqWriter()
    x = writer.conv(writer.rounded("x"), "one", (16, 32), 1)
    x = writer.conv(writer.conv(x, "two", (32, 32), 3), "three", (32, 64), 1)
    writer.nodes.append(helper.make_node("GlobalAveragePool", [x], ["p"], "pool"))
    writer.nodes.append(helper.make_node("Flatten", [writer.rounded("p")], ["f"], "flatten"))
    weights = writer.weights("fc_w", (64, 24), axis=1)
    writer.nodes.append(helper.make_node("MatMul", ["f", weights], ["m"], "fc"))
    writer.nodes.append(helper.make_node("QuantizeLinear", ["m", "fine", "zero"], ["m_q"], "quantise_m"))
    writer.nodes.append(helper.make_node("DequantizeLinear", ["m_q", "fine", "zero"], ["y"], "back_m"))
    writer.constants["fine"] = np.array(STEP / 4, np.float32)
    return writer


def normed_qdq_model() -> onnx.ModelProto:
    """A convolution with a batch norm before its Relu and QuantizeLinear, as left by quantisation-aware training.

    The norm negates some of its channels, and zeroes one.
    """
    writer = QdqWriter()
    weights = writer.weights("w", (32, 16, 3, 3))
    nodes, x = writer.nodes, writer.rounded("x")
    nodes.append(helper.make_node("Conv", [x, weights], ["c"], "conv", pads=[1] * 4))
    factors = np.linspace(-1, 1.5, 32).astype(np.float32)
    factors[7] = 0
    ones = np.ones(32, np.float32)
    writer.constants |= {"factor": factors, "shift": factors[::-1], "mean": ones / 4, "variance": ones}
    nodes.append(helper.make_node("BatchNormalization", ["c", "factor", "shift", "mean", "variance"], ["n"], "norm"))
    nodes.append(helper.make_node("Relu", ["n"], ["r"], "relu"))
    x = writer.conv(writer.rounded("r", "lowest"), "two", (32, 32), 1)
    nodes.append(helper.make_node("Identity", [x], ["y"], "last"))
    return model_of(nodes, {"x": (1, 16, 12, 12)}, ["y"], writer.constants)
