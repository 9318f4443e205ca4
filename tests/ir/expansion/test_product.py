"""The expansion of low-precision and transposed matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from pimflow.ir import Array
from support.expansions import bytes_in, check_expansion, reason
from support.int8 import needs_exact_bytes
from support.opaque_models import CONTRIB, integers, normal, opaque_model

ROUNDED = ["DequantizeLinear", "MatMul"]


@needs_exact_bytes
def test_a_quantised_product() -> None:
    constants: dict[str, Array] = {
        "a_scale": np.array(0.02, np.float32),
        "a_zero": np.array(120, np.uint8),
        "b": integers(64, 48),
        "b_scale": np.linspace(0.01, 0.03, 48).astype(np.float32),
        "b_zero": np.zeros(48, np.int8),
        "y_scale": np.array(0.5, np.float32),
        "y_zero": np.array(110, np.uint8),
    }
    model = bytes_in(opaque_model("QLinearMatMul", {"a": (8, 64)}, constants), TensorProto.UINT8)
    check_expansion(model, [*ROUNDED, "QuantizeLinear"], rtol=1 / 200)


@needs_exact_bytes
def test_a_product_of_integers_is_exact() -> None:
    constants: dict[str, Array] = {
        "b": integers(192, 48),
        "a_zero": np.array(120, np.uint8),
        "b_zero": np.arange(48).astype(np.int8),
    }
    model = bytes_in(opaque_model("MatMulInteger", {"a": (8, 192)}, constants), TensorProto.INT32)
    check_expansion(model, [*ROUNDED, "Cast"], rtol=0)


@needs_exact_bytes
def test_a_product_of_integers_that_is_scaled() -> None:
    constants: dict[str, Array] = {
        "b": integers(64, 48),
        "a_scale": np.array(0.02, np.float32),
        "b_scale": np.array(0.03, np.float32),
        "a_zero": np.array(120, np.uint8),
        "b_zero": np.array(3, np.int8),
        "bias": normal(48),
    }
    model = opaque_model("MatMulIntegerToFloat", {"a": (8, 64)}, constants, domain=CONTRIB)
    check_expansion(bytes_in(model), [*ROUNDED, "Add"])


@needs_exact_bytes
@pytest.mark.parametrize(("columns", "zeros", "bias"), [(1, True, True), (48, False, True), (48, True, False)])
def test_a_product_with_dynamic_quantisation(columns: int, zeros: bool, bias: bool) -> None:
    alone = () if columns == 1 else (columns,)
    constants: dict[str, Array] = {
        "b": integers(64, 48),
        "b_scale": np.linspace(0.01, 0.03, columns).astype(np.float32).reshape(alone),
        "b_zero": np.arange(columns).astype(np.int8).reshape(alone),
        "bias": normal(48),
    }
    given = {"b_zero": zeros, "bias": bias}
    order = ["a", *(name if given.get(name, True) else "" for name in constants)]
    kept = {name: array for name, array in constants.items() if given.get(name, True)}
    model = opaque_model("DynamicQuantizeMatMul", {"a": (8, 64)}, kept, order, domain=CONTRIB)
    kinds = ["DynamicQuantizeLinear", "DequantizeLinear", "MatMul", *["Add"] * bias]
    check_expansion(model, kinds)


@needs_exact_bytes
@pytest.mark.parametrize(("turned", "columns", "alpha"), [((0, 0), 48, 1.0), ((1, 1), 48, 0.5), ((0, 1), 1, 1.0)])
@pytest.mark.parametrize(("quantised", "opset"), [(False, 17), (True, 17), (True, 11), (True, 10)])
def test_a_low_precision_gemm(turned: tuple[int, int], columns: int, alpha: float, quantised: bool, opset: int) -> None:
    alone = () if columns == 1 else (columns,)
    constants: dict[str, Array] = {
        "a_scale": np.array(0.02, np.float32),
        "a_zero": np.array(120, np.uint8),
        "b": integers(48, 64) if turned[1] else integers(64, 48),
        "b_scale": np.linspace(0.01, 0.03, columns).astype(np.float32).reshape(alone),
        "b_zero": np.zeros(alone, np.int8),
        "c": np.arange(-2400, 2400, 100).astype(np.int32),
    }
    if quantised:
        constants |= {"y_scale": np.array(0.5, np.float32), "y_zero": np.array(110, np.uint8)}
    inputs = {"a": (64, 8) if turned[0] else (8, 64)}
    attributes: dict[str, Any] = {"transA": turned[0], "transB": turned[1], "alpha": alpha}
    model = opaque_model("QGemm", inputs, constants, domain=CONTRIB, opset=opset, **attributes)
    model = bytes_in(model, TensorProto.UINT8 if quantised else TensorProto.FLOAT)
    kinds = ["DequantizeLinear", *["Transpose"] * turned[0], "MatMul", "Add", *["QuantizeLinear"] * quantised]
    compiled = check_expansion(model, kinds, rtol=1 / 200 if quantised else 2e-6)
    packed = compiled.graph.packed_form(compiled.graph.nodes[1 + turned[0]].inputs[1])
    assert packed is not None
    assert packed.operands[0] is not None
    assert packed.operands[0].dtype == np.int8


@pytest.mark.parametrize(("bits", "zeros"), [(4, False), (4, True), (8, True)])
def test_block_quantised_weights(bits: int, zeros: bool) -> None:
    depth, columns, block = 80, 48, 32
    blocks = -(-depth // block)
    constants: dict[str, Array] = {
        "b": integers(columns, blocks, block * bits // 8, dtype="uint8"),
        "scales": np.linspace(0.01, 0.03, columns * blocks).astype(np.float32),
    }
    if zeros:
        constants["zeros"] = integers(columns * -(-blocks * bits // 8), dtype="uint8")
    sizes: dict[str, Any] = {"K": depth, "N": columns, "bits": bits, "block_size": block}
    check_expansion(opaque_model("MatMulNBits", {"x": (2, 5, depth)}, constants, domain=CONTRIB, **sizes), ["MatMul"])


@pytest.mark.parametrize(
    ("a", "b", "attributes", "before"),
    [
        ((2, 3, 64, 8), (2, 3, 48, 64), {"transA": 1, "transB": 1, "alpha": 0.125}, 2),
        ((5, 3, 64), (3, 48, 64), {"transBatchA": 1, "transB": 1, "alpha": 0.5}, 2),
    ],
)
def test_transposed_operands(a: tuple[int, ...], b: tuple[int, ...], attributes: dict[str, Any], before: int) -> None:
    model = opaque_model("FusedMatMul", {"a": a, "b": b}, domain=CONTRIB, **attributes)
    check_expansion(model, [*["Transpose"] * before, "MatMul", "Mul"])


def test_a_transposed_constant_is_transposed_in_advance() -> None:
    model = opaque_model("FusedMatMul", {"a": (2, 5, 64)}, {"b": normal(48, 64)}, domain=CONTRIB, transB=1)
    check_expansion(model, ["MatMul"])


def test_reasons_against_expansion() -> None:
    inputs = {"a": (8, 64), "b": (64, 48)}
    assert "is computed" in reason(bytes_in(opaque_model("MatMulInteger", inputs), TensorProto.INT32))
