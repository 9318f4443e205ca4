"""Attention in all forms: projections, scores, softmax, weighted sum of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import pimflow
from pimflow.runtime.gpu.work import MatrixWork, StreamWork
from support.onnx_models import newest_opset
from support.opaque_models import CONTRIB, kernels_of, normal, opaque_model, work_of

B, S, P, HEADS, D = 2, 16, 8, 4, 32
H = HEADS * D
SCORES = 2 * B * HEADS * S * S * D  # queries times keys, and weights times values

QKV: Mapping[str, Sequence[int]] = {"q": (B, S, H), "k": (B, S, H), "v": (B, S, H)}


def projected() -> onnx.ModelProto:
    weights = {"w": normal(H, 3 * H), "b": normal(3 * H)}
    return opaque_model("Attention", {"x": (B, S, H)}, weights, domain=CONTRIB, num_heads=HEADS)


def multi_head() -> onnx.ModelProto:
    return opaque_model("MultiHeadAttention", QKV, domain=CONTRIB, num_heads=HEADS)


def with_past() -> onnx.ModelProto:
    inputs = {**QKV, "pk": (B, HEADS, P, D), "pv": (B, HEADS, P, D)}
    order = ["q", "k", "v", "", "", "", "pk", "pv"]
    outputs = ["y", "nk", "nv"]
    return opaque_model("MultiHeadAttention", inputs, None, order, outputs, domain=CONTRIB, num_heads=HEADS)


def standard() -> onnx.ModelProto:
    return opaque_model("Attention", QKV, opset=23, q_num_heads=HEADS, kv_num_heads=HEADS)


def standard_apart() -> onnx.ModelProto:
    """Heads on a separate axis, with half as many heads of keys."""
    inputs = {"q": (B, HEADS, S, D), "k": (B, HEADS // 2, S, D), "v": (B, HEADS // 2, S, D)}
    return opaque_model("Attention", inputs, opset=23)


def grouped() -> onnx.ModelProto:
    inputs = {"q": (B, S, H), "k": (B, S, H // 2), "v": (B, S, H // 2)}
    nodes = [
        helper.make_node(
            "GroupQueryAttention",
            ["q", "k", "v", "", "", "lengths", "total"],
            ["y", "nk", "nv"],
            "kept",
            domain=CONTRIB,
            num_heads=HEADS,
            kv_num_heads=HEADS // 2,
        )
    ]
    constants = {"lengths": np.full(B, S - 1, np.int32), "total": np.array(S, np.int32)}
    model = opaque_model("Relu", inputs, constants, ["q"], domain="")
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.opset_import.append(helper.make_opsetid(CONTRIB, 1))
    return model


newest = pytest.mark.skipif(newest_opset() < 23, reason="this ONNX Runtime has no opset 23")
SPELLINGS = {
    "projected": (projected, SCORES + B * S * H * 3 * H),
    "multi-head": (multi_head, SCORES),
    "with a past": (with_past, 2 * B * HEADS * S * (S + P) * D),
    "grouped": (grouped, SCORES),
    "standard": (standard, SCORES),
    "standard, heads apart": (standard_apart, SCORES),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=newest if "standard" in name else ()) for name in SPELLINGS])
def test_multiply_accumulates_are_counted_and_values_kept(name: str) -> None:
    make, macs = SPELLINGS[name]
    assert work_of(make()).macs == macs
    assert pimflow.compile(make(), use_cache=False).verify().passed


def test_scores_softmax_and_the_sum_of_values_are_kernels() -> None:
    scores, softmax, values = kernels_of(multi_head())
    elements = B * HEADS * S * S
    assert scores == MatrixWork(S, S, D, B * HEADS, 2 * (2 * B * S * H + elements))
    assert softmax == StreamWork(8 * elements, 2 * 2 * elements, "softmax", B * HEADS * S, S)
    assert values == MatrixWork(S, D, S, B * HEADS, 2 * (elements + 2 * B * S * H))


def test_a_projection_comes_first() -> None:
    projection, *rest = kernels_of(projected())
    assert projection == MatrixWork(B * S, 3 * H, H, 1, 2 * (B * S * H + 3 * H * H + B * S * 3 * H))
    assert rest == kernels_of(multi_head())


def test_the_past_lengthens_the_keys_and_is_copied() -> None:
    copy, scores, *_ = kernels_of(with_past())
    assert copy == StreamWork(0, 2 * 2 * 2 * B * HEADS * (S + P) * D)
    assert isinstance(scores, MatrixWork)
    assert scores.n == S + P


def test_shared_heads_of_keys_are_read_once() -> None:
    scores = next(kernel for kernel in kernels_of(grouped()) if isinstance(kernel, MatrixWork))
    assert scores.bytes == 2 * (B * S * H + B * S * H // 2 + B * HEADS * S * S)


def test_data_dependent_lengths_are_reported() -> None:
    assert work_of(grouped()).unknown == "the number of keys depends on data: all are counted"
    assert work_of(multi_head()).unknown == ""


def test_the_quantised_form_has_its_past_elsewhere() -> None:
    """The quantised form has its past at another position."""
    constants = {
        "w": np.ones((H, 3 * H), np.int8),
        "b": normal(3 * H),
        "sx": np.array(0.1, np.float32),
        "sw": np.array(0.1, np.float32),
        "zx": np.array(3, np.uint8),
        "zw": np.array(0, np.int8),
    }
    order = ["x", "w", "b", "sx", "sw", "", "zx", "zw"]
    model = opaque_model(
        "QAttention",
        {"x": (B, S, H)},
        constants,
        order,
        domain=CONTRIB,
        dtype=TensorProto.UINT8,
        out_dtype=TensorProto.FLOAT,
        num_heads=HEADS,
    )
    assert work_of(model).macs == SCORES + B * S * H * 3 * H
    assert pimflow.compile(model, use_cache=False).verify().passed
