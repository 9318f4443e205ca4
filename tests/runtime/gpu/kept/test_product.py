"""Products that stay ONNX operators: their sizes and bytes, whatever other operands come in between."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import pimflow
from pimflow.ir import Array
from pimflow.runtime.gpu.work import MatrixWork
from support.opaque_models import CONTRIB, integers, kernels_of, normal, opaque_model

SCALE, ZERO8, ZEROU8 = np.array(0.1, np.float32), np.array(1, np.int8), np.array(100, np.uint8)
QUANTISED = ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"]


def quantised(op_type: str, domain: str = "") -> onnx.ModelProto:
    constants: dict[str, Array] = {
        "sa": SCALE,
        "za": ZEROU8,
        "b": integers(48, 32),
        "sb": SCALE,
        "zb": ZERO8,
        "sy": SCALE,
        "zy": ZEROU8,
    }
    order = QUANTISED if not domain else [*QUANTISED[:6], "", *QUANTISED[6:]]
    return opaque_model(op_type, {"a": (6, 48)}, constants, order, domain=domain, dtype=TensorProto.UINT8)


MODELS: dict[str, tuple[onnx.ModelProto, MatrixWork]] = {
    "integers": (
        opaque_model(
            "MatMulInteger",
            {"a": (6, 48)},
            {"b": integers(48, 32)},
            dtype=TensorProto.UINT8,
            out_dtype=TensorProto.INT32,
        ),
        MatrixWork(6, 32, 48, 1, 6 * 48 + 48 * 32 + 4 * 6 * 32),
    ),
    "quantised": (quantised("QLinearMatMul"), MatrixWork(6, 32, 48, 1, 6 * 48 + 48 * 32 + 6 * 32 + 3 * 2 + 3)),
    "quantised Gemm": (quantised("QGemm", CONTRIB), MatrixWork(6, 32, 48, 1, 6 * 48 + 48 * 32 + 6 * 32 + 3 * 2 + 3)),
    "dynamically quantised": (
        opaque_model(
            "DynamicQuantizeMatMul",
            {"a": (6, 48)},
            {"b": integers(48, 32), "sb": SCALE, "zb": ZERO8},
            domain=CONTRIB,
        ),
        MatrixWork(6, 32, 48, 1, 2 * 6 * 48 + 48 * 32 + 2 * 6 * 32 + 2 + 1),
    ),
    "four bits": (
        opaque_model(
            "MatMulNBits",
            {"a": (2, 3, 64)},
            {"b": integers(32, 2, 16, dtype="uint8"), "s": normal(64)},
            domain=CONTRIB,
            K=64,
            N=32,
            bits=4,
            block_size=32,
        ),
        MatrixWork(6, 32, 64, 1, 2 * 6 * 64 + 32 * 64 // 2 + 2 * 64 + 2 * 6 * 32),
    ),
    "transposed batch": (
        opaque_model("FusedMatMul", {"a": (2, 4, 6, 8), "b": (2, 4, 5, 8)}, domain=CONTRIB, transB=1, alpha=0.5),
        MatrixWork(6, 5, 8, 8, 2 * 8 * (48 + 40 + 30)),
    ),
    "rows before the batch": (
        opaque_model("FusedMatMul", {"a": (6, 2, 4, 8), "b": (2, 4, 8, 5)}, domain=CONTRIB, transBatchA=1),
        MatrixWork(6, 5, 8, 8, 2 * 8 * (48 + 40 + 30)),
    ),
    "doubles": (
        opaque_model("MatMul", {"a": (6, 48)}, {"b": normal(48, 32).astype(np.float64)}, dtype=TensorProto.DOUBLE),
        MatrixWork(6, 32, 48, 1, 2 * (6 * 48 + 48 * 32 + 6 * 32)),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_sizes_and_bytes_of_a_product(name: str) -> None:
    model, expected = MODELS[name]
    assert kernels_of(model) == [expected]


@pytest.mark.parametrize("name", MODELS)
def test_it_compiles_with_the_models_values(name: str) -> None:
    compiled = pimflow.compile(MODELS[name][0], use_cache=False)
    assert compiled.verify().passed
    launch_us = 5000 / 1365
    assert compiled.report.baseline.time_us > launch_us
    assert not compiled.report.unknown
