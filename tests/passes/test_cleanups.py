"""Clean-ups: values stay, what should go goes, what must stay stays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.ir import (
    BatchNorm,
    Builder,
    Concat,
    Conv2d,
    Elementwise,
    Gemm,
    Graph,
    OnnxOp,
    Pad,
    Pool2d,
    Reshape,
    Slice,
    Transpose,
)
from pimflow.ir.verify import verify_graph
from pimflow.passes import (
    CLEANUP,
    FoldBatchNorm,
    FoldConstants,
    FuseEpilogues,
    Pass,
    PassResult,
    RemoveDeadCode,
    RemoveDropout,
    RemoveIdentity,
)
from support.values import assert_same_values


def run(one: Pass, graph: Graph) -> PassResult:
    result = one.run(graph)
    verify_graph(result.graph)
    assert result.graph.inputs == graph.inputs
    assert result.graph.outputs == graph.outputs
    assert result.changed == (result.graph is not graph)
    return result


def kinds(graph: Graph) -> list[str]:
    return [node.kind for node in graph.nodes]


def positive(build: Builder, *shape: int) -> str:
    return build.constant((0.5 + build.rng.random(shape)).astype(np.float32))


def batch_norm(build: Builder, x: str, name: str = "") -> str:
    channels = build.shape(x)[1]
    parameters = [build.weights(channels), build.weights(channels), build.weights(channels)]
    return build.op(BatchNorm(1e-3), x, *parameters, positive(build, channels), name=name)


# ---- batch norm


@settings(deadline=None, max_examples=30)
@given(groups=st.sampled_from([1, 2, 4]), bias=st.booleans(), steps=st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_chains_of_affine_steps_fold_into_a_convolution(groups: int, bias: bool, steps: list[int]) -> None:
    build = Builder(seed=sum(steps))
    x = build.conv(build.input(2, 4, 6, 5), 8, 3, 1, 1, groups=groups, bias=bias, name="conv")
    for step in steps:
        x = affine_step(build, x, step)
    graph = build.graph(build.op(Elementwise("Softplus"), x))
    folded = run(FoldBatchNorm(), graph)
    assert kinds(folded.graph) == ["Conv", "Softplus"]
    assert_same_values(graph, folded.graph)


def affine_step(build: Builder, x: str, step: int) -> str:
    if step == 0:
        return batch_norm(build, x)
    shape = [(8, 1, 1), (1, 8, 1, 1), (), (1,)][step % 4]
    kind = ["Mul", "Add", "Sub", "Div", "Mul", "Sub"][step - 1]
    constant = positive(build, *shape)
    operands = (constant, x) if step in (5, 6) else (x, constant)
    return build.op(Elementwise(kind), *operands)


@pytest.mark.parametrize("bias", [None, (6,), (1, 6), (5, 6), (5, 1), ()])
@pytest.mark.parametrize("trans_b", [False, True])
def test_gemm(bias: tuple[int, ...] | None, trans_b: bool) -> None:
    build = Builder()
    x = build.input(5, 4)
    inputs = [build.weights(6, 4) if trans_b else build.weights(4, 6)]
    inputs += [build.weights(*bias)] if bias is not None else []
    out = build.op(Gemm(0.5, 2.0, trans_b=trans_b), x, *inputs, name="fc")
    graph = build.graph(batch_norm(build, out))
    folded = run(FoldBatchNorm(), graph)
    assert kinds(folded.graph) == ["Gemm"]
    assert_same_values(graph, folded.graph)


def test_matmul_and_its_bias_become_a_gemm() -> None:
    build = Builder()
    out = build.add(build.matmul(build.input(5, 4), 6), build.weights(6))
    graph = build.graph(out)
    folded = run(FoldBatchNorm(), graph)
    assert kinds(folded.graph) == ["Gemm"]
    assert_same_values(graph, folded.graph)


def test_shared_weights_fold_for_each_user() -> None:
    build = Builder()
    x = build.input(1, 4, 6, 5)
    weights = build.weights(4, 4, 1, 1)
    first = build.conv(x, 4, name="seed")
    one = batch_norm(build, build.op(Conv2d((1, 1)), first, weights, name="one"))
    two = batch_norm(build, build.op(Conv2d((1, 1)), one, weights, name="two"))
    graph = build.graph(two)
    folded = run(FoldBatchNorm(), graph)
    assert kinds(folded.graph) == ["Conv"] * 3
    assert_same_values(graph, folded.graph)


def test_a_bias_alone_leaves_the_weights_as_they_are() -> None:
    build = Builder()
    conv = build.conv(build.input(1, 4, 6, 5), 4, bias=False, name="conv")
    graph = build.graph(build.add(conv, build.weights(4, 1, 1)))
    folded = run(FoldBatchNorm(), graph).graph
    assert folded.constants[folded.node("conv").inputs[1]] is graph.constants[graph.node("conv").inputs[1]]


def test_batch_norms_that_stay_say_why() -> None:
    build = Builder()
    x = build.input(1, 4, 6, 5)
    first = batch_norm(build, x, "first")
    conv = build.conv(first, 4, name="conv")
    second = batch_norm(build, conv, "second")
    graph = build.graph(build.add(second, conv))
    result = run(FoldBatchNorm(), graph)
    assert not result.changed
    assert result.notes == (
        "first: a graph input cannot take it up",
        "second: 'conv_out' is read by others too",
    )


def test_a_batch_norm_that_stays_takes_up_what_is_behind_it() -> None:
    build = Builder()
    pooled = build.op(Pool2d("max", (2, 2)), build.input(1, 4, 6, 5))
    out = build.mul(batch_norm(build, pooled), build.weights(4, 1, 1))
    graph = build.graph(build.relu(build.add(out, build.weights(4, 1, 1))))
    folded = run(FoldBatchNorm(), graph)
    assert kinds(folded.graph) == ["MaxPool", "BatchNormalization", "Relu"]
    assert_same_values(graph, folded.graph)


def test_steps_along_other_axes_stay() -> None:
    build = Builder()
    conv = build.conv(build.input(1, 4, 6, 4), 4, name="conv")
    for shape in [(4,), (6, 1), (4, 6, 4), (1, 1, 1, 1, 1)]:
        graph = build.graph(build.mul(conv, build.weights(*shape)))
        assert not run(FoldBatchNorm(), RemoveDeadCode().run(graph).graph).changed
    residual = build.graph(build.add(conv, build.input(1, 4, 1, 1, name="y")))
    assert not run(FoldBatchNorm(), RemoveDeadCode().run(residual).graph).changed


# ---- identities and dropout


def test_every_kind_of_identity_goes() -> None:
    build = Builder()
    x = build.relu(build.input(2, 3, 4, 5))
    x = build.onnx("Identity", x)
    x = build.op(Reshape((2, 3, 4, 5)), x)
    x = build.op(Transpose((0, 1, 2, 3)), x)
    x = build.op(Slice(2, 0, 4), x)
    x = build.op(Pad((0,) * 4, (0,) * 4), x)
    x = build.op(Concat(1), x)
    x = build.onnx("Cast", x, to=1)
    graph = build.graph(build.sigmoid(x))
    result = run(RemoveIdentity(), graph)
    assert kinds(result.graph) == ["Relu", "Sigmoid"]
    assert_same_values(graph, result.graph)


def test_what_only_looks_like_an_identity_stays() -> None:
    build = Builder()
    x = build.input(2, 2, 4, 4)
    x = build.op(Transpose((0, 1, 3, 2)), x)
    x = build.op(Slice(2, 0, 3), x)
    x = build.op(Reshape((4, 3, 4)), x)
    x = build.op(Pad((0, 0, 0), (0, 0, 1)), x)
    x = build.onnx("Identity", x, domain="elsewhere")
    graph = build.graph(x)
    assert not run(RemoveIdentity(), graph).changed


def test_identities_that_only_name_outputs() -> None:
    build = Builder()
    x = build.input(2, 3)
    same = build.onnx("Identity", x, name="same")
    made = build.relu(build.add(x, build.weights(3)))
    one = build.onnx("Identity", made, name="one")
    two = build.onnx("Identity", one, name="two")
    graph = build.graph(same, one, two, build.sigmoid(two))
    result = run(RemoveIdentity(), graph)
    assert kinds(result.graph) == ["Identity", "Add", "Relu", "Identity", "Sigmoid"]
    assert_same_values(graph, result.graph)
    again = RemoveIdentity().run(result.graph)
    assert not again.changed
    assert len(again.notes) == 2


def test_shared_initializers_are_shared_directly() -> None:
    build = Builder()
    bias = build.onnx("Identity", build.weights(4))
    x = build.input(1, 4, 6, 5)
    graph = build.graph(build.op(Conv2d((1, 1)), x, build.weights(4, 4, 1, 1), bias, name="conv"))
    result = run(RemoveIdentity(), graph)
    assert result.graph.node("conv").inputs[2] in result.graph.constants
    assert_same_values(graph, result.graph)


@pytest.mark.parametrize(
    ("inputs", "mask_is_read"),
    [((), True), (("", "training"), False), (("", "on"), False)],
    ids=["mask", "may be training", "is training"],
)
def test_dropout_stays_where_it_may_do_something(inputs: tuple[str, ...], mask_is_read: bool) -> None:
    build = Builder()
    x = build.input(2, 3)
    build.constant(np.array(True), "on")
    build.input(name="training", dtype="bool")
    types = [((2, 3), "float32"), ((2, 3), "bool")]
    y, *mask = build.node(OnnxOp("Dropout"), (x, *inputs), types if mask_is_read else types[:1], name="d")
    graph = build.graph(build.relu(y), *mask)
    result = RemoveDropout().run(graph)
    assert not result.changed
    assert result.notes[0].startswith("d: it")


def test_dropout_that_is_off_goes() -> None:
    build = Builder()
    x = build.input(2, 3)
    off = build.constant(np.array(False))
    y = build.onnx("Dropout", x, build.weights(), off)
    graph = build.graph(build.relu(y))
    result = run(RemoveDropout(), graph)
    assert kinds(result.graph) == ["Relu"]
    assert_same_values(graph, result.graph)


# ---- constants


def test_constants_fold_through_typed_ops() -> None:
    build = Builder()
    weights = build.weights(4, 3, 2)
    folded = build.op(Transpose((2, 0, 1)), weights)
    folded = build.op(Reshape((8, 3)), folded)
    folded = build.op(Slice(0, 1, 6, 2), folded)
    folded = build.op(Pad((1, 0), (0, 1), 0.5), folded)
    folded = build.concat(0, folded, build.weights(1, 4))
    for kind in ("Add", "Sub", "Mul", "Div"):
        folded = build.op(Elementwise(kind), folded, build.weights(4))
    for kind in ("Abs", "Sqrt", "Neg"):
        folded = build.op(Elementwise(kind), folded)
    graph = build.graph(build.add(build.input(5, 4), folded))
    result = run(FoldConstants(), graph)
    assert kinds(result.graph) == ["Add"]
    assert len(result.graph.constants) == 1
    assert_same_values(graph, result.graph, rtol=0)


def test_shapes_fold_whatever_they_are_of() -> None:
    build = Builder()
    x = build.input(2, 3, 4)
    for index, attributes in enumerate([(), (("start", 1),), (("end", -1), ("start", -2))]):
        build.node(OnnxOp("Shape", "", attributes), (x,), [((3 - index,), "int64")], f"s{index}")
    first = build.onnx("Expand", build.input(4, name="row"), "s0_out", shape=(2, 3, 4))
    graph = build.graph(build.add(x, first))
    result = run(FoldConstants(), graph)
    assert list(result.graph.constants["s0_out"]) == [2, 3, 4]
    assert kinds(result.graph) == ["Expand", "Add"]


def test_what_is_not_folded() -> None:
    build = Builder()
    out = build.relu(build.weights(3), name="graph_output")
    noise = build.onnx("RandomNormalLike", build.weights(3))
    foreign = build.onnx("Relu", build.weights(3), domain="elsewhere")
    big = build.op(Pad((0,), (100,)), build.weights(3), name="big")
    graph = build.graph(out, build.relu(noise), build.relu(foreign), build.concat(0, big, build.input(3)))
    result = FoldConstants(max_bytes=100).run(graph)
    assert not result.changed
    foreign_note, big_note = result.notes
    assert foreign_note.startswith(f"{build.producer(foreign).name}: ONNX Runtime refuses")
    assert big_note == "big: the result of Pad would take 412 bytes, the limit is 100"


def test_dead_code_goes_with_its_constants() -> None:
    build = Builder()
    x = build.input(1, 4, 6, 5)
    build.input(3, name="unread")
    out = build.conv(x, 4, name="live")
    build.relu(build.conv(x, 4, name="dead"), name="dead too")
    graph = build.graph(out)
    result = run(RemoveDeadCode(), graph)
    assert [node.name for node in result.graph.nodes] == ["live"]
    assert set(result.graph.constants) == set(graph.node("live").inputs[1:])
    assert set(result.graph.values) == {"x", "unread", "live_out", *result.graph.constants}
    assert not run(RemoveDeadCode(), result.graph).changed


# ---- fusion


def fused(graph: Graph, residual: bool = False) -> dict[str, str]:
    tagged = FuseEpilogues(residual).run(graph).graph
    return {node.name: into for node in tagged.nodes if (into := node.placement.fused_into)}


def test_what_libraries_fuse() -> None:
    build = Builder()
    x = build.input(1, 4, 6, 5)
    conv = build.conv(x, 4, name="conv")
    swish = build.mul(conv, build.sigmoid(conv, name="sigmoid"), name="swish")
    added = build.relu(build.add(swish, x, name="residual"), name="relu")
    pooled = build.relu(build.global_average(added), name="alone")
    graph = build.graph(pooled)
    assert fused(graph) == {"sigmoid": "conv", "swish": "conv", "relu": "residual"}
    assert fused(graph, residual=True) == dict.fromkeys(["sigmoid", "swish", "residual", "relu"], "conv")


def test_nothing_is_fused_past_a_second_reader() -> None:
    build = Builder()
    conv = build.conv(build.input(1, 4, 6, 5), 4, name="conv")
    relu = build.relu(conv, name="relu")
    assert fused(build.graph(relu)) == {"relu": "conv"}
    assert fused(build.graph(relu, conv)) == {}
    assert fused(build.graph(relu, build.global_average(conv))) == {}


def test_a_broadcast_to_a_larger_shape_is_no_epilogue() -> None:
    build = Builder()
    squeeze = build.conv(build.global_average(build.input(1, 4, 6, 5)), 4, name="squeeze")
    gate = build.sigmoid(squeeze, name="gate")
    graph = build.graph(build.add(gate, build.weights(6, 5), name="spread"))
    assert fused(graph) == {"gate": "squeeze"}


def test_fusion_tags_are_renewed() -> None:
    build = Builder()
    conv = build.conv(build.input(1, 4, 6, 5), 4, name="conv")
    graph = build.graph(build.global_average(conv))
    stale = graph.replace(nodes=[node.placed(fused_into="gone") for node in graph.nodes])
    assert fused(stale) == {}
    assert not FuseEpilogues().run(graph).changed


def test_all_clean_ups_together() -> None:
    assert [step.name for step in CLEANUP] == [
        "remove-identity", "remove-dropout", "fold-constants", "fold-batch-norm", "remove-dead-code",
        "fuse-epilogues", "movement-elimination",
    ]  # fmt: skip
    build = Builder()
    x = build.onnx("Dropout", build.input(1, 4, 9, 5))
    conv = build.conv(x, 8, 3, 2, name="conv")
    out = build.relu(batch_norm(build, build.onnx("Identity", conv)))
    build.relu(out)
    graph = build.graph(build.conv(out, 3, name="last"))
    clean = graph
    for step in CLEANUP:
        clean = run(step, clean).graph
    assert kinds(clean) == ["Conv", "Relu", "Conv"]
    assert clean.nodes[1].placement.fused_into == "conv"
    assert_same_values(graph, clean)
