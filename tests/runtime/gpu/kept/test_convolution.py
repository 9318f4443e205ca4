"""Convolutions that stay ONNX operators: priced as implicit GEMMs over their windows."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import pimflow
from pimflow.ir import Conv2d, Value
from pimflow.runtime.gpu.kept import is_convolution
from pimflow.runtime.gpu.work import DepthwiseWork, GpuWork, MatrixWork, gpu_work
from support.opaque_models import CONTRIB, integers, kernels_of, normal, opaque_model, work_of

SCALE, ZERO8, ZEROU8 = np.array(0.1, np.float32), np.array(1, np.int8), np.array(100, np.uint8)

MODELS: dict[str, tuple[onnx.ModelProto, int]] = {
    "one dimension": (opaque_model("Conv", {"x": (2, 8, 40)}, {"w": normal(16, 8, 3)}), 2 * 16 * 38 * 8 * 3),
    "three dimensions": (
        opaque_model("Conv", {"x": (1, 4, 6, 6, 6)}, {"w": normal(8, 2, 3, 3, 3)}, group=2),
        8 * 4**3 * 2 * 27,
    ),
    "depthwise": (opaque_model("Conv", {"x": (1, 8, 40)}, {"w": normal(8, 1, 5)}, group=8), 8 * 36 * 5),
    "fused, one dimension": (
        opaque_model("FusedConv", {"x": (1, 8, 40)}, {"w": normal(16, 8, 3)}, domain=CONTRIB, activation="Relu"),
        16 * 38 * 8 * 3,
    ),
    "integers": (
        opaque_model(
            "ConvInteger",
            {"x": (1, 8, 12, 12)},
            {"w": integers(16, 8, 3, 3, dtype="uint8")},
            dtype=TensorProto.UINT8,
            out_dtype=TensorProto.INT32,
        ),
        16 * 10 * 10 * 8 * 9,
    ),
    "quantised": (
        opaque_model(
            "QLinearConv",
            {"x": (1, 8, 12, 12)},
            {
                "sx": SCALE,
                "zx": ZEROU8,
                "w": integers(16, 8, 3, 3),
                "sw": SCALE,
                "zw": ZERO8,
                "sy": SCALE,
                "zy": ZEROU8,
            },
            dtype=TensorProto.UINT8,
        ),
        16 * 10 * 10 * 8 * 9,
    ),
    "transposed": (
        opaque_model("ConvTranspose", {"x": (1, 8, 5, 5)}, {"w": normal(8, 6, 2, 2)}, strides=(2, 2), group=2),
        25 * 8 * 6 * 4,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_multiply_accumulates_are_counted(name: str) -> None:
    model, macs = MODELS[name]
    assert work_of(model).macs == macs


@pytest.mark.parametrize("name", MODELS)
def test_it_compiles_with_the_models_values_and_counts_as_convolution(name: str) -> None:
    compiled = pimflow.compile(MODELS[name][0], use_cache=False)
    assert compiled.verify().passed
    assert compiled.report.baseline.conv_us == pytest.approx(compiled.report.baseline.time_us)


def test_a_one_dimensional_convolution_is_priced_as_one_row() -> None:
    (along,) = kernels_of(opaque_model("Conv", {"x": (2, 8, 40)}, {"w": normal(16, 8, 1)}, strides=(2,)))
    values = [Value("x", (2, 8, 1, 40), "float32"), Value("w", (16, 8, 1, 1), "float32")]
    flat = gpu_work(Conv2d((1, 1), (1, 2)), values, [Value("y", (2, 16, 1, 20), "float32")], 2)
    assert along == flat


def test_groups_are_products_of_their_own() -> None:
    (work,) = kernels_of(MODELS["three dimensions"][0])
    assert isinstance(work, MatrixWork)
    assert (work.m, work.n, work.k, work.groups) == (64, 4, 2 * 27, 2)
    (work,) = kernels_of(MODELS["depthwise"][0])
    assert isinstance(work, DepthwiseWork)


def test_quantised_operands_move_their_own_bytes() -> None:
    work: GpuWork
    (work,) = kernels_of(MODELS["quantised"][0])
    assert work.bytes == 8 * 144 + 16 * 72 + 16 * 100 + 3 * 2 + 3


def test_only_convolutions_are_convolutions() -> None:
    assert is_convolution(pimflow.ir.OnnxOp("FusedConv", CONTRIB))
    assert not is_convolution(pimflow.ir.OnnxOp("FusedConv"))
    assert not is_convolution(pimflow.ir.OnnxOp("MatMulInteger"))
