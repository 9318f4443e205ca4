"""Gradients of ops fused by ONNX Runtime, and of attention: float64 against differences, float32 against the op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pimflow.errors import ModelError
from pimflow.ir import Array, Builder, Graph, OnnxOp
from pimflow.passes.differentiate import Differentiate, training_step
from support.gradients import check_gradients, check_training_form, run_by_reference, with_inputs

CONTRIB = "com.microsoft"
B, S, T, H, D = 2, 3, 5, 2, 4
Made = Callable[["Net"], str]


class Net(Builder):
    """Inputs and weights of one element type."""

    def __init__(self, dtype: str, opset: int = 17) -> None:
        super().__init__(opset=opset)
        self.dtype = dtype

    def x(self, *shape: int, name: str = "x") -> str:
        """An input."""
        return self.input(*shape, name=name, dtype=self.dtype)

    def w(self, *shape: int, scale: float = 1.0) -> str:
        """A weight."""
        return self.constant(scale * np.random.default_rng(3).standard_normal(shape).astype(self.dtype), "weight")

    def fused(self, op_type: str, *inputs: str, shape: Any = None, domain: str = CONTRIB, **given: Any) -> str:
        """A fused operator."""
        return self.onnx(op_type, *inputs, shape=shape, domain=domain, **given)


def ints(*values: Any) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


def attention(build: Net, *beside: str, mask: str = "", **given: Any) -> str:
    x, weights = build.x(B, S, 6), build.w(6, 3 * H * D)
    inputs = (x, weights, build.w(3 * H * D), mask, *beside)
    return build.fused("Attention", *inputs, shape=(B, S, H * D), num_heads=H, **given)


def multi_head(build: Net, *beside: str, **given: Any) -> str:
    query, key, value = build.x(B, S, H * D), build.x(B, T, H * D, name="k"), build.x(B, T, H * D, name="v")
    bias = build.w(3 * H * D)
    return build.fused("MultiHeadAttention", query, key, value, bias, *beside, num_heads=H, **given)


def masked_by_keys(build: Net) -> str:
    return attention(build, mask=build.constant(ints([1, 1, 1], [1, 0, 1])))


def masked_by_rows(build: Net) -> str:
    mask = np.ones((B, S, S), np.int32)
    mask[1, :, 2] = 0
    return attention(build, mask=build.constant(mask))


def added_scores(build: Net) -> str:
    return multi_head(build, build.constant(ints([1, 1, 1, 1, 1], [1, 1, 1, 0, 0])), build.w(1, H, S, T))


def embedding(build: Net) -> str:
    tables = [build.w(rows, 4) for rows in (7, 5, 2)]
    words, kinds = (build.constant(ints([1, 2, 6], [3, 0, 3])), build.constant(ints([0, 0, 1], [0, 1, 1])))
    op = OnnxOp("EmbedLayerNormalization", CONTRIB, (("epsilon", 1e-6),))
    inputs = (words, kinds, *tables, build.w(4), build.w(4))
    return build.node(op, inputs, [((B, S, 4), build.dtype), ((B,), "int32")])[0]


def skip_norm(build: Net) -> str:
    """With the sum itself read once more."""
    inputs = (build.x(B, S, 4), build.x(B, S, 4, name="skip"), build.w(4), build.w(4), build.w(4))
    op = OnnxOp("SkipLayerNormalization", CONTRIB, (("epsilon", 1e-6),))
    made = build.node(op, inputs, [((B, S, 4), build.dtype), ((0,), ""), ((0,), ""), ((B, S, 4), build.dtype)])
    return build.mul(made[0], made[3])


FUSED: dict[str, Made] = {
    "skip, then norm": skip_norm,
    "skip, then RMS norm": lambda build: build.fused(
        "SkipSimplifiedLayerNormalization", build.x(B, S, 4), build.x(B, S, 4, name="skip"), build.w(4), epsilon=1e-6
    ),
    "BiasGelu": lambda build: build.fused("BiasGelu", build.x(B, S, 4), build.w(4)),
    "FastGelu": lambda build: build.fused("FastGelu", build.x(B, S, 4), build.w(4)),
    "FastGelu without bias": lambda build: build.fused("FastGelu", build.mul(build.x(B, 4), build.w(4))),
    "embedding": embedding,
    "product": lambda build: build.fused(
        "FusedMatMul", build.x(B, 4, S), build.w(B, 4, 5), shape=(B, S, 5), transA=1, alpha=0.5
    ),
    "product, batch between": lambda build: build.fused(
        "FusedMatMul", build.x(S, B, 4), build.w(B, 5, 4), shape=(B, S, 5), transBatchA=1, transB=1
    ),
    "convolution": lambda build: build.fused(
        "FusedConv", build.x(B, 4, 6), build.w(3, 4, 3), build.w(3), shape=(B, 3, 4), activation="Tanh"
    ),
    "convolution, added": lambda build: build.fused(
        "FusedConv",
        build.x(B, 4, 6),
        build.w(3, 4, 3),
        build.w(3),
        build.x(B, 3, 4, name="z"),
        shape=(B, 3, 4),
        activation="LeakyRelu",
        activation_params=(0.25,),
    ),
    "attention": attention,
    "attention, causal": lambda build: attention(build, unidirectional=1, scale=0.3),
    "attention, masked keys": masked_by_keys,
    "attention, masked rows": masked_by_rows,
    "attention, lengths": lambda build: attention(build, mask=build.constant(ints(3, 2))),
    "attention, own scores": lambda build: attention(build, "", build.w(B, H, S, S)),
    "attention of several": multi_head,
    "attention of several, added scores": added_scores,
}


def graph(make: Made, dtype: str, opset: int = 17) -> Graph:
    build = Net(dtype, opset)
    return build.graph(make(build))


@pytest.mark.parametrize("name", FUSED)
def test_fused_operators(name: str) -> None:
    check_gradients(with_inputs(graph(FUSED[name], "float64")))
    step = check_training_form(graph(FUSED[name], "float32"))
    assert not any(isinstance(node.op, OnnxOp) and node.op.domain for node in step.graph.nodes)


SIZES = {"q_num_heads": H, "kv_num_heads": 1}


def standard(build: Net, *mask: str, keys: int = 1, **given: Any) -> str:
    query = build.x(B, S, H * D)
    key, value = (build.x(B, T, keys * D, name=name) for name in "kv")
    return build.fused("Attention", query, key, value, *mask, domain="", q_num_heads=H, kv_num_heads=keys, **given)


STANDARD: dict[str, Made] = {
    "heads that share keys": standard,
    "causal": lambda build: standard(build, is_causal=1, keys=H),
    "a mask of truths": lambda build: standard(build, build.constant(np.tri(S, T, 1) > 0), scale=0.4),
    "a mask of scores": lambda build: standard(build, build.x(B, 1, S, T, name="m")),
    "heads apart": lambda build: build.fused(
        "Attention", build.x(B, H, S, D), build.x(B, H, T, D, name="k"), build.x(B, H, T, D, name="v"), domain=""
    ),
}


@pytest.mark.parametrize("name", STANDARD)
def test_attention_of_onnx(name: str) -> None:
    """Some versions of ONNX Runtime compute heads with shared keys wrongly."""
    check_gradients(graph(STANDARD[name], "float64", opset=23))
    check_training_form(graph(STANDARD[name], "float32", opset=23), run=run_by_reference)


REFUSED: dict[str, Made] = {
    "a past": lambda build: attention(build, build.w(2, B, H, 1, D)),
    "rotated places": lambda build: attention(build, do_rotary=1),
    "a mask of": lambda build: attention(build, mask=build.constant(np.zeros(3 * B + 2, np.int32))),
    "packed operands": lambda build: build.fused(
        "MultiHeadAttention", build.x(B, S, H, 3, D), shape=(B, S, H * D), num_heads=H
    ),
    "capped scores": lambda build: standard(build, softcap=1.0),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_untrainable_operators_have_a_reason(reason: str) -> None:
    with pytest.raises(ModelError, match=rf"has no gradient: .*{reason}"):
        training_step(graph(REFUSED[reason], "float32"), Differentiate(inputs=True))


def test_a_result_that_training_does_not_compute() -> None:
    build = Net("float32")
    op = OnnxOp("SkipLayerNormalization", CONTRIB, ())
    inputs = (build.x(B, S, 4), build.x(B, S, 4, name="skip"), build.w(4))
    made = build.node(op, inputs, [((B, S, 4), "float32"), ((B, S, 1), "float32")])
    with pytest.raises(ModelError, match="its result 1 is not made in training"):
        training_step(build.graph(*made), Differentiate(inputs=True))


def test_mask_lengths_are_counted() -> None:
    """As attention after an embedding reads them."""

    def make(build: Net) -> str:
        words, mask = build.input(B, S, name="words", dtype="int32"), build.input(B, S, name="mask", dtype="int32")
        inputs = (words, "", build.w(7, 6), build.w(5, 6), "", build.w(6), build.w(6), mask)
        op = OnnxOp("EmbedLayerNormalization", CONTRIB, (("epsilon", 1e-6),))
        x, lengths = build.node(op, inputs, [((B, S, 6), build.dtype), ((B,), "int32")])
        given = (x, build.w(6, 3 * H * D), build.w(3 * H * D), lengths)
        return build.fused("Attention", *given, shape=(B, S, H * D), num_heads=H)

    words: dict[str, Array] = {"words": ints([1, 2, 6], [3, 0, 3]), "mask": ints([1, 1, 1], [1, 1, 0])}
    check_training_form(graph(make, "float32"), words)
