"""The expansion of transposed, one-dimensional and 8-bit convolutions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import pimflow
from pimflow.ir import Array
from support.expansions import bytes_in, check_expansion, reason
from support.int8 import clips_sums_of_bytes, needs_exact_bytes
from support.onnx_models import model_of
from support.opaque_models import CONTRIB, integers, normal, opaque_model

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
def test_a_transposed_convolution_becomes_a_sub_pixel_convolution(
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
    check_expansion(opaque_model("ConvTranspose", {"x": (2, 16, 7, 6)}, constants, group=groups, **attributes), kinds)


@pytest.mark.parametrize(
    ("sizes", "kernel", "attributes", "kinds"),
    [
        ((2, 16, 9), (4,), {"strides": [2], "pads": [1, 1]}, ["Reshape", "Conv", "Reshape", *SHUFFLE[1:], "Slice"]),
        ((1, 8, 3, 5, 4), (3, 3, 3), {"strides": [2, 1, 2], "pads": [1, 1, 1, 0, 1, 1]}, None),
        ((1, 8, 7, 6), (3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}, None),
        ((1, 8, 7, 6), (3, 4), {"strides": [2, 3], "auto_pad": "SAME_LOWER"}, None),
        ((1, 8, 7, 6), (3, 3), {"strides": [2, 2], "auto_pad": "VALID"}, None),
        ((1, 8, 7, 6), (3, 3), {"strides": [2, 2], "output_shape": [14, 12]}, None),
        ((1, 8, 7, 6), (2, 2), {"strides": [3, 3], "output_shape": [19, 16], "auto_pad": "SAME_UPPER"}, None),
        ((1, 8, 5), (3,), {"strides": [2], "output_shape": [8], "dilations": [2]}, None),
    ],
)
def test_a_transposed_convolution_of_any_padding_and_dimension(
    sizes: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, Any], kinds: list[str] | None
) -> None:
    constants: dict[str, Array] = {"w": normal(sizes[1], 12, *kernel), "b": normal(12)}
    model = opaque_model("ConvTranspose", {"x": sizes}, constants, **attributes)
    compiled = check_expansion(model, kinds)
    assert [node.kind for node in compiled.graph.nodes].count("Conv") == 1


@pytest.mark.parametrize(
    ("kernel", "attributes", "groups"),
    [
        ((3, 3, 3), {"pads": [1] * 6}, 1),
        ((3, 1, 2), {"strides": [2, 1, 2], "pads": [1, 0, 1, 0, 0, 1], "dilations": [2, 1, 2]}, 2),
        ((2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2, 1]}, 1),
        ((1, 3, 3), {"auto_pad": "SAME_LOWER", "strides": [1, 2, 2]}, 1),
        ((7, 3, 3), {"auto_pad": "VALID"}, 1),
    ],
)
def test_a_convolution_over_three_dimensions(kernel: tuple[int, ...], attributes: dict[str, Any], groups: int) -> None:
    constants: dict[str, Array] = {"w": normal(24, 16 // groups, *kernel), "b": normal(24)}
    model = opaque_model("Conv", {"x": (2, 16, 7, 6, 5)}, constants, group=groups, **attributes)
    kinds = [node.kind for node in check_expansion(model, None).graph.nodes]
    assert kinds[-3:] == ["Conv", "Reshape", "Transpose"]
    assert kinds.count("Gather") == (kernel[0] > 1), "planes are copied where kernels share them"


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_padding_derived_from_the_output_shape(mode: str) -> None:
    model = opaque_model("Conv", {"x": (2, 16, 50)}, {"w": normal(32, 16, 4)}, strides=[3], auto_pad=mode)
    check_expansion(model, ["Reshape", "Conv", "Reshape"])


def test_a_fused_convolution_over_one_dimension() -> None:
    """ONNX Runtime's optimiser fuses these too; two-dimensional ones are imported as their unfused parts."""
    constants: dict[str, Array] = {"w": normal(32, 16, 3), "b": normal(32)}
    fused: dict[str, Any] = {"activation": "LeakyRelu", "activation_params": [0.25], "pads": [1, 1]}
    inputs, order = {"x": (2, 16, 9), "z": (2, 32, 9)}, ["x", "w", "b", "z"]
    model = opaque_model("FusedConv", inputs, constants, order, domain=CONTRIB, **fused)
    check_expansion(model, ["Reshape", "Conv", "Reshape", "Add", "LeakyRelu"])


def test_a_convolution_over_one_dimension() -> None:
    model = opaque_model(
        "Conv", {"x": (2, 16, 50)}, {"w": normal(32, 16, 5), "b": normal(32)}, strides=[2], pads=[2, 1], dilations=[2]
    )
    check_expansion(model, ["Reshape", "Conv", "Reshape"])


def quantised_convolution(scales: Array, zeros: Array, kernel: tuple[int, ...] = (3, 3)) -> onnx.ModelProto:
    constants: dict[str, Array] = {
        "x_scale": np.array(0.02, np.float32),
        "x_zero": np.array(120, np.uint8),
        "w": integers(32, 16, *kernel),
        "w_scale": scales.astype(np.float32),
        "w_zero": zeros.astype(np.int8),
        "y_scale": np.array(0.5, np.float32),
        "y_zero": np.array(110, np.uint8),
        "b": np.arange(-500, 500, 1000 / 32).astype(np.int32),
    }
    sizes = (1, 16, *(9 for _ in kernel))
    return bytes_in(opaque_model("QLinearConv", {"x": sizes}, constants, pads=[1] * 2 * len(kernel)), TensorProto.UINT8)


@needs_exact_bytes
def test_a_quantised_convolution_over_one_dimension() -> None:
    model = quantised_convolution(np.linspace(0.01, 0.03, 32), np.zeros(32), (3,))
    kinds = ["DequantizeLinear", "Reshape", "Conv", "Reshape", "QuantizeLinear"]
    compiled = check_expansion(model, kinds, rtol=1 / 200)
    assert compiled.graph.packed_form(compiled.graph.nodes[2].inputs[1]) is not None


@pytest.mark.parametrize(("kernel", "scales"), [((3,), 32), ((3,), 1), ((2, 3, 3), 32)])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_weights_between_dequantisations_stay_bytes(kind: str, kernel: tuple[int, ...], scales: int) -> None:
    """In single precision, ONNX Runtime would quantise weights after a DequantizeLinear again, with other scales."""
    turned = kind == "ConvTranspose"
    channels = (8, 32) if turned else (32, 8)
    attributes: dict[str, Any] = {"group": 2, "strides": [3] * len(kernel)} if turned else {}
    constants = {
        "i": integers(*channels, *kernel),
        "s": np.linspace(0.01, 0.03, scales).astype(np.float32),
        "z": np.arange(scales).astype(np.int8),
    }
    nodes = [
        onnx.helper.make_node("DequantizeLinear", ["i", "s", "z"], ["w"], axis=int(turned)),
        onnx.helper.make_node(kind, ["x", "w"], ["y"], "conv", **attributes),
    ]
    model = model_of(nodes, {"x": (1, 8, *(9 for _ in kernel))}, ["y"], constants)
    compiled = pimflow.compile(model, policy="pim", use_cache=False)
    (product,) = (node for node in compiled.graph.nodes if node.device == "pim")
    packed = compiled.graph.packed_form(product.inputs[1])
    assert packed is not None
    assert packed.operands[0] is not None
    assert packed.operands[0].dtype == np.int8
    assert compiled.verify().passed


@pytest.mark.skipif(clips_sums_of_bytes(), reason="ONNX Runtime always clips this operator's sums on this CPU")
def test_a_quantised_convolution_whose_channels_come_last() -> None:
    model = quantised_convolution(np.linspace(0.01, 0.03, 32), np.zeros(32))
    (node,) = model.graph.node
    node.domain = CONTRIB
    node.attribute.append(onnx.helper.make_attribute("channels_last", 1))
    model.opset_import.append(onnx.helper.make_opsetid(CONTRIB, 1))
    model.graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("x", TensorProto.UINT8, (1, 9, 9, 16)))
    kinds = ["DequantizeLinear", "Transpose", "Conv", "Transpose", "QuantizeLinear"]
    check_expansion(model, kinds, rtol=1 / 200)


@needs_exact_bytes
@pytest.mark.parametrize("opset", [10, 11, 17])
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_quantised_convolution(per_channel: bool, opset: int, tmp_path: Path) -> None:
    scales = np.linspace(0.01, 0.03, 32) if per_channel else np.array(0.01)
    model = quantised_convolution(scales, np.zeros(32) if per_channel else np.array(3))
    model.opset_import[0].version = opset
    compiled = check_expansion(model, ["DequantizeLinear", "Conv", "QuantizeLinear"], rtol=1 / 200)
    weights = compiled.graph.nodes[1].inputs[1]
    packed = compiled.graph.packed_form(weights)
    assert packed is not None
    assert packed.operands[0] is not None
    assert packed.operands[0].dtype == np.int8
    loaded = pimflow.load(compiled.save(tmp_path / "out"))
    assert loaded.graph.nodes == compiled.graph.nodes, "the bias, of 32 bits, is a constant there too"
    assert loaded.timeline == compiled.timeline


def test_a_convolution_of_integers_is_exact() -> None:
    constants: dict[str, Array] = {
        "w": integers(32, 16, 3, 3, dtype="uint8"),
        "x_zero": np.array(120, np.uint8),
        "w_zero": np.array(127, np.uint8),
    }
    model = bytes_in(opaque_model("ConvInteger", {"x": (1, 16, 9, 9)}, constants, pads=[1] * 4), TensorProto.INT32)
    check_expansion(model, ["DequantizeLinear", "Conv", "Cast"], rtol=0)


def test_reasons_against_expansion() -> None:
    assert "weights are computed" in reason(opaque_model("ConvTranspose", {"x": (1, 4, 5, 5), "w": (4, 8, 3, 3)}))
    depthwise = opaque_model("ConvTranspose", {"x": (1, 4, 5, 5)}, {"w": normal(4, 1, 3, 3)}, group=4)
    assert "depthwise" in reason(depthwise)
