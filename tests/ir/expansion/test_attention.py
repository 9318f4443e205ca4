"""The projection inside ONNX Runtime's Attention and QAttention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pimflow.ir import Array
from support.expansions import bytes_in, check_expansion, reason
from support.int8 import needs_exact_bytes
from support.opaque_models import CONTRIB, integers, normal, opaque_model

BATCH, ROWS = 2, 6
KINDS = ["MatMul", "Slice", "Slice", "Slice", "MultiHeadAttention"]
MASKS: dict[str, Array] = {
    "none": np.zeros((BATCH, 1), np.int32),
    "lengths": np.array([4, 6], np.int32),
    "places": np.array([4, 6, 0, 4, 10, 0, 4, 10], np.int32),
    "keys": np.array([[1, 1, 1, 1, 0, 0], [1] * ROWS], np.int32),
    "pairs": np.tril(np.ones((BATCH, ROWS, ROWS), np.int32)),
}


@pytest.mark.parametrize("mask", [*MASKS, None])
def test_all_supported_masks(mask: str | None) -> None:
    """The host alone runs the same nodes, at the price of the operator."""
    constants = {"w": np.float32(0.1) * normal(64, 192), "b": normal(192)} | ({"mask": MASKS[mask]} if mask else {})
    model = opaque_model("Attention", {"x": (BATCH, ROWS, 64)}, constants, domain=CONTRIB, num_heads=4)
    check_expansion(model, KINDS, unfused=True)


@pytest.mark.parametrize("attributes", [{"unidirectional": 1}, {"scale": 0.5}, {"qkv_hidden_sizes": [64, 64, 32]}])
def test_other_attributes(attributes: dict[str, Any]) -> None:
    width = sum(attributes.get("qkv_hidden_sizes", (192,)))
    constants = {"w": np.float32(0.1) * normal(64, width), "b": normal(width)}
    model = opaque_model("Attention", {"x": (2, 6, 64)}, constants, domain=CONTRIB, num_heads=4, **attributes)
    check_expansion(model, KINDS, unfused=True)


@needs_exact_bytes
@pytest.mark.parametrize("columns", [1, 192])
def test_quantised_attention(columns: int) -> None:
    constants: dict[str, Array] = {
        "w": integers(64, 192),
        "b": normal(192),
        "x_scale": np.array(0.01, np.float32),
        "w_scale": np.linspace(0.002, 0.004, columns).astype(np.float32).reshape(() if columns == 1 else columns),
        "mask": MASKS["keys"],
        "x_zero": np.array(120, np.uint8),
        "w_zero": np.zeros(() if columns == 1 else columns, np.int8),
    }
    model = opaque_model("QAttention", {"x": (BATCH, ROWS, 64)}, constants, domain=CONTRIB, num_heads=4)
    compiled = check_expansion(bytes_in(model), ["DequantizeLinear", *KINDS], rtol=1e-5)
    packed = compiled.graph.packed_form(compiled.graph.nodes[1].inputs[1])
    assert packed is not None
    assert packed.operands[0] is not None
    assert packed.operands[0].dtype == np.int8


def test_reasons_against_expansion() -> None:
    model = opaque_model("Attention", {"x": (2, 6, 64), "w": (64, 192), "b": (192,)}, domain=CONTRIB, num_heads=4)
    assert "are computed" in reason(model)
    constants = {"w": normal(64, 192), "b": normal(192), "mask": np.array([4, 6, 1, 0], np.int32)}
    model = opaque_model("Attention", {"x": (2, 6, 64)}, constants, domain=CONTRIB, num_heads=4)
    assert "mask has a form" in reason(model)
    del constants["mask"]
    model = opaque_model("Attention", {"x": (2, 6, 64)}, constants, None, ("y", "p"), domain=CONTRIB, num_heads=4)
    assert "several values" in reason(model)
