"""MD-DP splits: values, structure, refusals."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pimflow.errors import PlanError
from pimflow.ir import Builder, Concat, Elementwise, Gemm, Graph, MatMul, OnDevice, Refusal, Slice, SplitRows
from pimflow.passes import why_not
from support.passes import applied
from support.values import assert_same_values


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Graph, int]:
    """A convolution of any kind, and a row at which to split it."""
    build = Builder(seed=draw(st.integers(0, 99)))
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    kernel = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    strides = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    pads = draw(st.tuples(*[st.integers(0, 3)] * 4))
    dilation = draw(st.integers(1, 2))
    size = draw(st.integers(4, 21)), draw(st.integers(5, 9))
    assume(size[0] + pads[0] + pads[2] > dilation * (kernel[0] - 1))
    x = build.input(draw(st.integers(1, 2)), 4, *size)
    out = build.conv(x, 4, kernel, strides, pads, dilation, groups, draw(st.booleans()), name="conv")
    rows = build.shape(out)[2]
    assume(rows > 1)
    return build.graph(out), draw(st.integers(1, rows - 1))


@settings(max_examples=120)
@given(convolutions())
def test_any_convolution_at_any_row(case: tuple[Graph, int]) -> None:
    graph, rows = case
    decision = SplitRows("conv", rows, "newton++")
    refusal = why_not(graph, decision)
    assert refusal is None or "padding" in refusal.reason
    assume(refusal is None)
    split = applied(graph, decision)
    gpu, pim = split.node("conv_gpu"), split.node("conv_pim")
    assert (gpu.device, pim.device) == ("gpu", "pim")
    assert split.shape(gpu.output)[2] == rows
    assert gpu.inputs[1:] == pim.inputs[1:] == graph.node("conv").inputs[1:], "constants are shared"
    assert_same_values(graph, split)


@pytest.mark.parametrize("bias", [None, (6,), (1, 6), (9, 6), (9, 1), (1, 1)])
@pytest.mark.parametrize("rows", [1, 4, 8])
def test_gemm(bias: tuple[int, ...] | None, rows: int) -> None:
    build = Builder()
    graph = build.graph(build.gemm(build.input(9, 5), 6, bias, name="fc"))
    split = applied(graph, SplitRows("fc", rows, "auto"))
    assert_same_values(graph, split)
    slices = [node for node in split.nodes if isinstance(node.op, Slice)]
    assert len(slices) == 2, "the bias is sliced as a constant, not by a node"


def test_gemm_scaled_and_transposed() -> None:
    build = Builder()
    x = build.input(9, 5)
    weights = build.weights(6, 5)
    graph = build.graph(build.op(Gemm(0.5, 2.0, trans_b=True), x, weights, build.weights(6), name="fc"))
    assert_same_values(graph, applied(graph, SplitRows("fc", 2, "auto")))


@pytest.mark.parametrize("shape", [(7, 4), (1, 7, 4), (3, 7, 4), (2, 3, 7, 4)])
def test_matmul_with_batches(shape: tuple[int, ...]) -> None:
    build = Builder()
    out = build.matmul(build.input(*shape), 5, name="mm")
    out = build.add(out, build.weights(5), name="bias")
    graph = build.graph(build.add(out, build.weights(7, 5), name="position"))
    assert_same_values(graph, applied(graph, SplitRows("mm", 3, "auto", ("bias", "position"))))


def test_matmul_of_two_activations() -> None:
    build = Builder()
    a, b = build.input(2, 7, 4), build.input(2, 4, 5, name="y")
    graph = build.graph(build.op(MatMul(), a, b, name="mm"))
    assert_same_values(graph, applied(graph, SplitRows("mm", 3, "auto")))


def squeeze_and_excite() -> Graph:
    """conv -> clip -> Mul by a gate from elsewhere -> Add of a residual -> sigmoid."""
    build = Builder()
    x = build.input(2, 4, 9, 5)
    gate = build.sigmoid(build.conv(build.global_average(x), 4, name="squeeze"), name="gate")
    out = build.clip(build.conv(x, 4, 3, 1, 1, name="conv"), name="clip")
    out = build.mul(out, gate, name="excite")
    return build.graph(build.sigmoid(build.add(out, x, name="residual"), name="last"))


def test_followers_go_along_and_one_concat_ends_the_region() -> None:
    graph = squeeze_and_excite()
    followers = ("clip", "excite", "residual", "last")
    before = [OnDevice(node.name, "gpu") for node in graph.nodes[:3]]
    split = applied(graph, *before, SplitRows("conv", 4, "newton+", followers))
    assert_same_values(graph, split)
    assert [node.name for node in split.nodes if isinstance(node.op, Concat)] == ["concat_last_out"]
    assert split.nodes[-1].outputs == graph.outputs
    # The input is sliced for the convolution (with halo) and for the residual (without); nothing else is moved.
    assert sum(isinstance(node.op, Slice) for node in split.nodes) == 4


def test_swish_follows_as_a_whole() -> None:
    build = Builder()
    conv = build.conv(build.input(1, 4, 8, 8), 4, name="conv")
    swish = build.mul(conv, build.sigmoid(conv, name="sigmoid"), name="swish")
    graph = build.graph(swish)
    split = applied(graph, SplitRows("conv", 3, "auto", ("sigmoid", "swish")))
    assert_same_values(graph, split)
    assert sum(isinstance(node.op, Concat) for node in split.nodes) == 1
    # If the convolution is also read elsewhere, two values leave the region.
    other = build.graph(swish, build.global_average(conv, name="average"))
    split = applied(
        other,
        SplitRows("conv", 3, "auto", ("sigmoid", "swish")),
        OnDevice("average", "gpu"),
    )
    assert_same_values(other, split)
    assert sum(isinstance(node.op, Concat) for node in split.nodes) == 2


def test_the_gate_of_a_nodes_own_output_cannot_follow() -> None:
    build = Builder()
    conv = build.conv(build.input(1, 4, 8, 8), 4, name="conv")
    gate = build.sigmoid(build.conv(build.global_average(conv), 4, name="squeeze"), name="gate")
    graph = build.graph(build.mul(conv, gate, name="excite"))
    squeezed = [OnDevice(node.name, "gpu") for node in graph.nodes[1:-1]]
    with pytest.raises(PlanError, match="makes later"):
        applied(graph, SplitRows("conv", 3, "auto", ("excite",)), *squeezed)


def test_an_operand_made_later_but_independent_can_be_followed() -> None:
    build = Builder()
    x = build.input(1, 4, 8, 8)
    main = build.conv(x, 4, 3, 1, 1, name="main")
    shortcut = build.conv(x, 4, name="shortcut")
    graph = build.graph(build.add(main, shortcut, name="add"))
    assert_same_values(
        graph, applied(graph, OnDevice("shortcut", "pim", "auto"), SplitRows("main", 5, "auto", ("add",)))
    )
    with pytest.raises(PlanError, match="later"):
        applied(graph, SplitRows("main", 5, "auto", ("add",)), OnDevice("shortcut", "pim", "auto"))


def test_values_read_elsewhere_get_a_concat_of_their_own() -> None:
    build = Builder()
    conv = build.conv(build.input(1, 4, 8, 8), 4, name="conv")
    graph = build.graph(build.clip(conv, name="clip"), build.global_average(conv, name="pooled"))
    split = applied(graph, SplitRows("conv", 3, "auto", ("clip",)), OnDevice("pooled", "gpu"))
    assert sum(isinstance(node.op, Concat) for node in split.nodes) == 2
    assert_same_values(graph, split)


def test_fusion_into_a_node_split_alone_points_to_a_part_that_exists() -> None:
    build = Builder()
    conv = build.conv(build.input(1, 4, 8, 8), 4, name="conv")
    graph = build.graph(build.clip(conv, name="clip"))
    clip = graph.node("clip").placed(fused_into="conv")
    graph = graph.replace(nodes=[clip if node.name == "clip" else node for node in graph.nodes])
    split = applied(graph, SplitRows("conv", 3, "newton++"), OnDevice("clip", "gpu"))
    assert split.node("clip").placement.fused_into == "conv_gpu"


def test_what_can_be_split() -> None:
    build = Builder()
    conv = build.conv(build.input(1, 4, 8, 8), 4, name="conv")
    build.conv(build.global_average(conv), 4, name="squeeze")
    build.op(Elementwise("Relu"), conv, name="relu")
    build.op(Slice(2, 0, 4), conv, name="part")
    x = build.input(1, 5, name="y")
    out = build.gemm(x, 3, name="row")
    graph = build.graph(out)
    assert why_not(graph, SplitRows("conv", 1, "newton++")) is None
    assert why_not(graph, SplitRows("relu", 1, "newton++")) is None
    for name, reason in [
        ("squeeze", "squeeze: 1 of 1 rows on the GPU leave a part empty"),
        ("row", "row: 1 of 1 rows on the GPU leave a part empty"),
        ("part", "part: Slice only moves data and cannot run on PIM"),
    ]:
        assert why_not(graph, SplitRows(name, 1, "newton++")) == Refusal(reason)


def test_a_half_of_padding_alone_is_refused_with_the_reason() -> None:
    build = Builder()
    x = build.input(1, 2, 4, 4)
    graph = build.graph(build.conv(x, 2, pad=(3, 0, 0, 0), name="conv"))
    refusal = Refusal("conv: output rows 0 to 1 lie wholly in the padding")
    assert why_not(graph, SplitRows("conv", 2, "auto")) == refusal
    assert_same_values(graph, applied(graph, SplitRows("conv", 4, "auto")))
