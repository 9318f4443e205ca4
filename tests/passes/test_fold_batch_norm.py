"""Batch norms and affine steps fold into the node before them: values are kept, and notes say why a node stays."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pimflow
from pimflow.ir import Array, Builder, Conv2d, Elementwise, Gemm, Pool2d
from pimflow.passes import FoldBatchNorm, RemoveDeadCode
from support.onnx_models import model_of
from support.passes import kinds, run_pass
from support.values import assert_same_values


def positive(build: Builder, *shape: int) -> str:
    return build.constant((0.5 + build.rng.random(shape)).astype(np.float32))


@settings(max_examples=30)
@given(groups=st.sampled_from([1, 2, 4]), bias=st.booleans(), steps=st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_chains_of_affine_steps_fold_into_a_convolution(groups: int, bias: bool, steps: list[int]) -> None:
    build = Builder(seed=sum(steps))
    x = build.conv(build.input(2, 4, 6, 5), 8, 3, 1, 1, groups=groups, bias=bias, name="conv")
    for step in steps:
        x = affine_step(build, x, step)
    graph = build.graph(build.op(Elementwise("Softplus"), x))
    folded = run_pass(FoldBatchNorm(), graph)
    assert kinds(folded.graph) == ["Conv", "Softplus"]
    assert_same_values(graph, folded.graph)


def affine_step(build: Builder, x: str, step: int) -> str:
    if step == 0:
        return build.batch_norm(x)
    shape = [(8, 1, 1), (1, 8, 1, 1), (), (1,)][step % 4]
    kind = ["Mul", "Add", "Sub", "Div", "Mul", "Sub"][step - 1]
    constant = positive(build, *shape)
    operands = (constant, x) if step in (5, 6) else (x, constant)
    return build.op(Elementwise(kind), *operands)


@pytest.mark.parametrize(
    ("factors", "folds"), [([1e-6] * 8, False), ([1e7] * 8, False), ([0.5] + [1e-6] * 7, True), ([0.0] * 8, True)]
)
def test_weights_stay_within_the_range_of_16_bits(factors: list[float], folds: bool) -> None:
    """An initial LayerScale would leave none of their digits; single channels may vanish, and all may be 0."""
    build = Builder()
    x = build.batch_norm(build.conv(build.input(1, 4, 6, 5), 8, 3, name="conv"))
    scaled = build.op(
        Elementwise("Mul"), x, build.constant(np.array(factors, np.float32).reshape(8, 1, 1)), name="scale"
    )
    graph = build.graph(scaled)
    folded = run_pass(FoldBatchNorm(), graph)
    assert kinds(folded.graph) == ["Conv", *["Mul"] * (not folds)]
    assert any("scale: it would take the weights of conv out" in note for note in folded.notes) == (not folds)
    if any(factors):
        assert_same_values(graph, folded.graph)


@pytest.mark.parametrize("bias", [None, (6,), (1, 6), (5, 6), (5, 1), ()])
@pytest.mark.parametrize("trans_b", [False, True])
def test_gemm(bias: tuple[int, ...] | None, trans_b: bool) -> None:
    build = Builder()
    x = build.input(5, 4)
    inputs = [build.weights(6, 4) if trans_b else build.weights(4, 6)]
    inputs += [build.weights(*bias)] if bias is not None else []
    out = build.op(Gemm(0.5, 2.0, trans_b=trans_b), x, *inputs, name="fc")
    graph = build.graph(build.batch_norm(out))
    folded = run_pass(FoldBatchNorm(), graph)
    assert kinds(folded.graph) == ["Gemm"]
    assert_same_values(graph, folded.graph)


def test_matmul_and_its_bias_become_a_gemm() -> None:
    build = Builder()
    out = build.add(build.matmul(build.input(5, 4), 6), build.weights(6))
    graph = build.graph(out)
    folded = run_pass(FoldBatchNorm(), graph)
    assert kinds(folded.graph) == ["Gemm"]
    assert_same_values(graph, folded.graph)


def test_shared_weights_fold_for_each_user() -> None:
    build = Builder()
    x = build.input(1, 4, 6, 5)
    weights = build.weights(4, 4, 1, 1)
    first = build.conv(x, 4, name="seed")
    one = build.batch_norm(build.op(Conv2d((1, 1)), first, weights, name="one"))
    two = build.batch_norm(build.op(Conv2d((1, 1)), one, weights, name="two"))
    graph = build.graph(two)
    folded = run_pass(FoldBatchNorm(), graph)
    assert kinds(folded.graph) == ["Conv"] * 3
    assert_same_values(graph, folded.graph)


def test_a_bias_alone_leaves_the_weights_as_they_are() -> None:
    build = Builder()
    conv = build.conv(build.input(1, 4, 6, 5), 4, bias=False, name="conv")
    graph = build.graph(build.add(conv, build.weights(4, 1, 1)))
    folded = run_pass(FoldBatchNorm(), graph).graph
    assert folded.constants[folded.node("conv").inputs[1]] is graph.constants[graph.node("conv").inputs[1]]


def test_unfolded_batch_norms_have_a_reason() -> None:
    build = Builder()
    x = build.input(1, 4, 6, 5)
    first = build.batch_norm(x, name="first")
    conv = build.conv(first, 4, name="conv")
    second = build.batch_norm(conv, name="second")
    graph = build.graph(build.add(second, conv))
    result = run_pass(FoldBatchNorm(), graph)
    assert not result.changed
    assert result.notes == (
        "first: a graph input cannot absorb it",
        "second: other nodes also read 'conv_out'",
    )


def test_an_unfolded_batch_norm_absorbs_the_steps_after_it() -> None:
    build = Builder()
    pooled = build.op(Pool2d("max", (2, 2)), build.input(1, 4, 6, 5))
    out = build.mul(build.batch_norm(pooled), build.weights(4, 1, 1))
    graph = build.graph(build.relu(build.add(out, build.weights(4, 1, 1))))
    folded = run_pass(FoldBatchNorm(), graph)
    assert kinds(folded.graph) == ["MaxPool", "BatchNormalization", "Relu"]
    assert_same_values(graph, folded.graph)


def test_steps_along_other_axes_stay() -> None:
    build = Builder()
    conv = build.conv(build.input(1, 4, 6, 4), 4, name="conv")
    for shape in [(4,), (6, 1), (4, 6, 4), (1, 1, 1, 1, 1)]:
        graph = build.graph(build.mul(conv, build.weights(*shape)))
        assert not run_pass(FoldBatchNorm(), RemoveDeadCode().run(graph).graph).changed
    residual = build.graph(build.add(conv, build.input(1, 4, 1, 1, name="y")))
    assert not run_pass(FoldBatchNorm(), RemoveDeadCode().run(residual).graph).changed


@pytest.mark.parametrize(("opset", "lowest", "why"), [(13, -127, ""), (13, -128, "quantised"), (12, -127, "lacks")])
def test_low_precision_weights_stay_low_precision(opset: int, lowest: int, why: str) -> None:
    """With other scales: with negated weights, if the negative of the lowest value fits into 8 bits."""
    graph = pimflow.opt(quantised(opset, lowest), "fold-constants").graph
    folded = run_pass(FoldBatchNorm(), graph)
    assert ("BatchNormalization" in kinds(folded.graph)) == bool(why)
    assert any("norm:" in note and why in note for note in folded.notes) == bool(why)
    (conv,) = (node for node in folded.graph.nodes if node.op.is_contraction)
    assert folded.graph.packed_form(conv.inputs[1]) is not None
    assert_same_values(graph, folded.graph)


def quantised(opset: int, lowest: int) -> onnx.ModelProto:
    """A batch norm with negative factors after an 8-bit convolution with a single scale."""
    elements = np.random.default_rng(0).integers(lowest, 128, (8, 4, 3, 3)).astype(np.int8)
    elements[0, 0, 0, 0] = lowest
    vectors = {name: np.linspace(*ends, 8).astype(np.float32) for name, ends in zip("fbmv", ENDS, strict=True)}
    constants: dict[str, Array] = {"i": elements, "s": np.array(0.02, np.float32), "z": np.array(0, np.int8), **vectors}
    nodes = [
        onnx.helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantise"),
        onnx.helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "back"),
        onnx.helper.make_node("DequantizeLinear", ["i", "s"], ["w"], "weights"),
        onnx.helper.make_node("Conv", ["d", "w"], ["c"], "conv"),
        onnx.helper.make_node("BatchNormalization", ["c", *"fbmv"], ["y"], "norm"),
    ]
    return model_of(nodes, {"x": (1, 4, 8, 8)}, ["y"], constants, opset)


ENDS = ((-1, -0.5), (0, 1), (-1, 1), (0.5, 2))
