"""Transposed convolutions, those over one dimension, and those of 8 bits, written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from pimflow.ir import Array
from support.expansions import bytes_in, check_expansion, reason
from support.kept import integers, kept_model, normal

SHUFFLE = ["Conv", "Reshape", "Transpose", "Reshape"]


@pytest.mark.parametrize(
    ("kernel", "strides", "pads", "extra", "dilation", "groups", "kinds"),
    [
        ((2, 2), (2, 2), (0, 0, 0, 0), (0, 0), 1, 1, SHUFFLE),
        ((4, 4), (2, 2), (1, 1, 1, 1), (0, 0), 1, 1, [*SHUFFLE, "Slice", "Slice"]),
        ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1, 1, [*SHUFFLE, "Slice", "Slice"]),
        ((3, 3), (2, 2), (0, 0, 0, 0), (1, 1), 1, 2, SHUFFLE),
        ((3, 3), (1, 1), (1, 1, 1, 1), (0, 0), 2, 1, ["Conv", "Slice", "Slice"]),
        ((5, 5), (3, 3), (2, 2, 2, 2), (2, 2), 1, 1, [*SHUFFLE, "Slice", "Slice"]),
        ((3, 4), (2, 3), (1, 0, 2, 1), (0, 0), 1, 1, [*SHUFFLE, "Slice", "Slice"]),
    ],
)
def test_a_transposed_convolution_is_one_of_sub_pixels(
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, ...],
    extra: tuple[int, int],
    dilation: int,
    groups: int,
    kinds: list[str],
) -> None:
    constants: dict[str, Array] = {"w": normal(16, 24 // groups, *kernel), "b": normal(24)}
    attributes: dict[str, Any] = {
        "strides": strides,
        "pads": pads,
        "output_padding": extra,
        "dilations": [dilation] * 2,
    }
    check_expansion(kept_model("ConvTranspose", {"x": (2, 16, 7, 6)}, constants, group=groups, **attributes), kinds)


def test_a_convolution_over_one_dimension() -> None:
    model = kept_model(
        "Conv", {"x": (2, 16, 50)}, {"w": normal(32, 16, 5), "b": normal(32)}, strides=[2], pads=[2, 1], dilations=[2]
    )
    check_expansion(model, ["Reshape", "Conv", "Reshape"])


def quantised_convolution(scales: Array, zeros: Array) -> onnx.ModelProto:
    constants: dict[str, Array] = {
        "x_scale": np.array(0.02, np.float32),
        "x_zero": np.array(120, np.uint8),
        "w": integers(32, 16, 3, 3),
        "w_scale": scales.astype(np.float32),
        "w_zero": zeros.astype(np.int8),
        "y_scale": np.array(0.5, np.float32),
        "y_zero": np.array(110, np.uint8),
        "b": np.arange(-500, 500, 1000 / 32).astype(np.int32),
    }
    model = kept_model("QLinearConv", {"x": (1, 16, 9, 9)}, constants, pads=[1] * 4)
    return bytes_in(model, TensorProto.UINT8)


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_quantised_convolution(per_channel: bool) -> None:
    scales = np.linspace(0.01, 0.03, 32) if per_channel else np.array(0.01)
    model = quantised_convolution(scales, np.zeros(32) if per_channel else np.array(3))
    compiled = check_expansion(model, ["DequantizeLinear", "Conv", "QuantizeLinear"], rtol=1 / 200)
    weights = compiled.graph.nodes[1].inputs[1]
    packed = compiled.graph.packed_form(weights)
    assert packed is not None
    assert packed.operands[0] is not None
    assert packed.operands[0].dtype == np.int8


def test_a_convolution_of_integers_is_exact() -> None:
    constants: dict[str, Array] = {
        "w": integers(32, 16, 3, 3, dtype="uint8"),
        "x_zero": np.array(120, np.uint8),
        "w_zero": np.array(127, np.uint8),
    }
    model = bytes_in(kept_model("ConvInteger", {"x": (1, 16, 9, 9)}, constants, pads=[1] * 4), TensorProto.INT32)
    check_expansion(model, ["DequantizeLinear", "Conv", "Cast"], rtol=0)


def test_why_not() -> None:
    assert "over 3 dimensions" in reason(kept_model("Conv", {"x": (1, 4, 5, 5, 5)}, {"w": normal(8, 4, 3, 3, 3)}))
    assert "weights are computed" in reason(kept_model("ConvTranspose", {"x": (1, 4, 5, 5), "w": (4, 8, 3, 3)}))
    depthwise = kept_model("ConvTranspose", {"x": (1, 4, 5, 5)}, {"w": normal(4, 1, 3, 3)}, group=4)
    assert "depthwise" in reason(depthwise)
