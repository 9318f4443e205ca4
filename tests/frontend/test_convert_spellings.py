"""Each typed op, imported from its form in every opset, and exported to the same opset."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from pimflow.errors import ModelError
from pimflow.frontend import load_model
from pimflow.ir import (
    Array,
    BatchNorm,
    Concat,
    Conv2d,
    Elementwise,
    Gemm,
    GlobalPool,
    Graph,
    MatMul,
    OnnxOp,
    Op,
    Pad,
    Pool2d,
    Reshape,
    Slice,
    Transpose,
)
from pimflow.onnxio import to_onnx
from pimflow.runtime.execute.ort import random_inputs, run_graph
from support.onnx_models import OPSETS, model_of, run_plain, single
from support.passes import folded, kinds
from support.values import assert_close
from support.versions import OLDER_RUNTIME

RNG = np.random.default_rng(5)


def weights(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def check(model: onnx.ModelProto, *ops: Op) -> Graph:
    """Assert that the model's nodes are these ops, and that values are the original's, before and after exporting it in
    its own opset."""
    graph = load_model(model)
    assert [node.op for node in graph.nodes] == list(ops)
    inputs = random_inputs(graph, 3)
    want = run_plain(model, inputs)
    written = to_onnx(graph)
    onnx.checker.check_model(written, full_check=True)
    assert written.opset_import[0].version == model.opset_import[0].version
    for got in (run_graph(graph, inputs), run_plain(written, inputs)):
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array)
            assert (graph.shape(name), graph.value(name).dtype) == (array.shape, array.dtype.name)
            assert array.size < 2 or np.ptp(array.astype(float)) > 0
    again = load_model(written)
    assert again.nodes == graph.nodes
    return graph


@pytest.mark.parametrize("opset", OPSETS)
def test_convolution(opset: int) -> None:
    w = weights(6, 2, 3, 3)
    op = Conv2d((3, 3), (2, 1), (1, 0, 1, 2), (1, 2), 2)
    fields: dict[str, Any] = {"strides": [2, 1], "pads": [1, 0, 1, 2], "dilations": [1, 2], "group": 2}
    check(single("Conv", (1, 4, 9, 8), [w], opset, **fields), op)
    check(single("Conv", (1, 4, 9, 8), [w, weights(6)], opset, kernel_shape=[3, 3], **fields), op)


@pytest.mark.parametrize("opset", OPSETS)
def test_clip(opset: int) -> None:
    limits: dict[str, Any] = {"min": -0.5, "max": 1.25}
    if opset < 11:
        model = single("Clip", (2, 5), (), opset, **limits)
    else:
        model = single("Clip", (2, 5), [np.float32(value).reshape(()) for value in limits.values()], opset)
    check(model, Elementwise("Clip", (("max", 1.25), ("min", -0.5))))


@pytest.mark.parametrize("opset", OPSETS)
def test_clip_with_one_bound(opset: int) -> None:
    one = np.float32(0.1).reshape(())
    model = single("Clip", (2, 5), (), opset, max=0.1) if opset < 11 else single("Clip", (2, 5), [None, one], opset)
    check(model, Elementwise("Clip", (("max", 0.1),)))


@pytest.mark.parametrize("opset", OPSETS)
def test_slice(opset: int) -> None:
    if opset < 10:
        model = single("Slice", (2, 8, 9), (), opset, axes=[1, 2], starts=[1, -3], ends=[-1, 1000])
        check(model, Slice(1, 1, 7), Slice(2, 6, 9))
    else:
        parts = [ints(1, -9, 0), ints(-1, 1000, 5), ints(1, -1, 0), ints(2, 3, 1)]
        check(single("Slice", (2, 8, 9), parts, opset), Slice(1, 1, 7, 2), Slice(2, 0, 9, 3))


@pytest.mark.parametrize("opset", OPSETS)
def test_slice_of_everything_is_the_identity(opset: int) -> None:
    model = (
        single("Slice", (2, 8), (), opset, starts=[0, 0], ends=[2, 8])
        if opset < 10
        else single("Slice", (2, 8), [ints(0, 0), ints(2, 8)], opset)
    )
    check(model, OnnxOp("Identity"))


@pytest.mark.parametrize("opset", OPSETS)
def test_pad(opset: int) -> None:
    pads = [0, 0, 1, 2, 0, 0, 3, 4]
    op = Pad((0, 0, 1, 2), (0, 0, 3, 4), 1.5)
    if opset < 11:
        check(single("Pad", (1, 2, 3, 4), (), opset, mode="constant", pads=pads, value=1.5), op)
    else:
        check(single("Pad", (1, 2, 3, 4), [ints(*pads), np.float32(1.5).reshape(())], opset), op)
    if opset >= 18:
        axes = [ints(1, 2, 3, 4), None, ints(2, -1)]
        check(single("Pad", (1, 2, 3, 4), axes, opset), Pad((0, 0, 1, 2), (0, 0, 3, 4), 0.0))


@pytest.mark.parametrize("opset", OPSETS)
def test_reshapes(opset: int) -> None:
    check(single("Reshape", (2, 3, 4), [ints(0, -1)], opset), Reshape((2, 12)))
    check(single("Flatten", (2, 3, 4), (), opset, axis=2), Reshape((6, 4)))
    if opset < 13:
        check(single("Squeeze", (1, 3, 1, 4), (), opset, axes=[0]), Reshape((3, 1, 4)))
        check(single("Unsqueeze", (3, 4), (), opset, axes=[0, 3]), Reshape((1, 3, 4, 1)))
    else:
        check(single("Squeeze", (1, 3, 1, 4), [ints(-4)], opset), Reshape((3, 1, 4)))
        check(single("Unsqueeze", (3, 4), [ints(0, 3)], opset), Reshape((1, 3, 4, 1)))
    check(single("Squeeze", (1, 3, 1, 4), (), opset), Reshape((3, 4)))


@pytest.mark.parametrize("opset", OPSETS)
def test_mean_over_the_map_is_a_global_pool(opset: int) -> None:
    for axes, keep in (([2, 3], 1), ([-1, 2], 1), ([2, 3], 0), ([1, 2], 1)):
        if opset < 18:
            model = single("ReduceMean", (1, 3, 4, 5), (), opset, axes=axes, keepdims=keep)
        else:
            model = single("ReduceMean", (1, 3, 4, 5), [ints(*axes)], opset, keepdims=keep)
        graph = load_model(model)
        exact = keep == 1 and sorted(axis % 4 for axis in axes) == [2, 3]
        assert (graph.nodes[0].op == GlobalPool("average")) is exact
        inputs = random_inputs(graph, 1)
        want, got = run_plain(model, inputs)["y"], run_graph(graph, inputs)["y"]
        assert_close(got, want, 1e-6)


@pytest.mark.parametrize("opset", OPSETS)
def test_pools(opset: int) -> None:
    shape = (1, 2, 9, 11)
    check(
        single("MaxPool", shape, (), opset, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 0, 1]),
        Pool2d("max", (3, 2), (2, 2), (1, 0, 0, 1)),
    )
    check(
        single("AveragePool", shape, (), opset, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
        Pool2d("average", (3, 3), (1, 1), (1, 1, 1, 1), count_include_pad=True),
    )
    check(single("GlobalAveragePool", shape, (), opset), GlobalPool("average"))
    check(single("GlobalMaxPool", shape, (), opset), GlobalPool("max"))
    if opset >= 10:
        check(
            single("MaxPool", shape, (), opset, kernel_shape=[2, 2], dilations=[2, 1]),
            Pool2d("max", (2, 2), dilations=(2, 1)),
        )
    if opset >= 19:
        check(
            single("AveragePool", shape, (), opset, kernel_shape=[2, 2], dilations=[2, 1]),
            Pool2d("average", (2, 2), dilations=(2, 1)),
        )


@pytest.mark.parametrize("opset", OPSETS)
def test_products(opset: int) -> None:
    check(
        single("Gemm", (4, 3), [weights(5, 4), weights(5)], opset, alpha=0.5, beta=2.0, transA=1, transB=1),
        Gemm(0.5, 2.0, True, True),
    )
    check(single("MatMul", (2, 4, 3), [weights(3, 5)], opset), MatMul())
    if opset >= 11:
        check(single("Gemm", (4, 3), [weights(3, 5)], opset), Gemm())


@pytest.mark.parametrize("opset", OPSETS)
def test_batch_norm(opset: int) -> None:
    parts = [weights(3), weights(3), weights(3), np.abs(weights(3)) + 1]
    check(single("BatchNormalization", (1, 3, 4, 4), parts, opset, epsilon=1e-3), BatchNorm(1e-3))
    check(single("BatchNormalization", (1, 3, 4, 4), parts, opset), BatchNorm(1e-5))


@pytest.mark.parametrize("opset", OPSETS)
def test_elementwise_and_layout(opset: int) -> None:
    nodes = [
        helper.make_node("Sum", ["x", "x", "c"], ["a"]),
        helper.make_node("LeakyRelu", ["a"], ["b"], alpha=0.25),
        helper.make_node("Mul", ["b", "c"], ["d"]),
        helper.make_node("Concat", ["d", "a"], ["e"], axis=-2),
        helper.make_node("Transpose", ["e"], ["f"]),
        helper.make_node("Dropout", ["f"], ["g", "mask"]) if opset < 12 else helper.make_node("Dropout", ["f"], ["g"]),
        helper.make_node("Greater", ["g", "h"], ["y"]),
    ]
    constants = {"c": weights(3, 4, 5) if opset == 7 else weights(4, 1), "h": weights(1)}  # Sum broadcasts since 8
    model = model_of(nodes, {"x": (3, 4, 5)}, ["y"], constants, opset, onnx.TensorProto.FLOAT)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.BOOL
    check(
        model,
        Elementwise("Sum"),
        Elementwise("LeakyRelu", (("alpha", 0.25),)),
        Elementwise("Mul"),
        Concat(1),
        Transpose((2, 1, 0)),
        OnnxOp("Dropout"),
        Elementwise("Greater"),
    )


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation"), [(9, 4, 2, 1), (8, 3, 3, 1), (7, 2, 1, 1), (5, 1, 4, 1)]
)
def test_auto_pad_of_convolution(mode: str, size: int, kernel: int, stride: int, dilation: int) -> None:
    fields: dict[str, Any] = {"auto_pad": mode, "strides": [stride, 1], "dilations": [dilation, 1]}
    graph = load_model(single("Conv", (1, 1, size, 9), [weights(1, 1, kernel, 3)], 17, **fields))
    assert isinstance(graph.nodes[0].op, Conv2d)
    check(single("Conv", (1, 1, size, 9), [weights(1, 1, kernel, 3)], 17, **fields), graph.nodes[0].op)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("ceil", [0, 1])
def test_auto_pad_of_pools(mode: str, kind: str, ceil: int) -> None:
    model = single(kind, (1, 2, 9, 8), (), 17, kernel_shape=[4, 3], strides=[2, 2], auto_pad=mode, ceil_mode=ceil)
    check(model, load_model(model).nodes[0].op)


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("sizes", [(9,), (9, 8), (6, 5, 7)])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "ceil"), [(3, 1, 2, 0), (3, 2, 2, 1), (2, 2, 3, 0), (2, 3, 2, 0), (1, 3, 1, 0)]
)
def test_auto_pad_of_unusual_pools(
    kind: str, mode: str, sizes: tuple[int, ...], kernel: int, stride: int, dilation: int, ceil: int
) -> None:
    """ONNX Runtime pads as if there were no dilation, and may start windows that are smaller than their stride late."""
    rank = len(sizes)
    fields: dict[str, Any] = {"kernel_shape": [kernel] * rank, "strides": [stride] * rank, "ceil_mode": ceil}
    model = single(kind, (1, 2, *sizes), (), 22, auto_pad=mode, dilations=[dilation] * rank, **fields)
    graph = load_model(model)
    inputs = random_inputs(graph, 0)
    if kind == "MaxPool" and kernel < stride and dilation == 1:
        pytest.skip("ONNX Runtime does not run it")
    if OLDER_RUNTIME and kind == "AveragePool" and kernel < stride and rank == 3:
        pytest.skip("this version of ONNX Runtime leaves the last windows empty")
    want = run_plain(model, inputs)["y"]
    assert_close(run_graph(graph, inputs)["y"], want, 1e-6)
    assert graph.shape("y") == want.shape
    if kernel >= stride and rank == 2 and kind != "LpPool":
        assert isinstance(graph.nodes[0].op, Pool2d)


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("size", range(6, 14))
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 2, 0], None])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (3, 3), (2, 3)])
def test_ceil_mode(kind: str, include: int, size: int, pads: list[int] | None, kernel: int, stride: int) -> None:
    pads = pads and [min(pad, kernel - 1) for pad in pads]  # ONNX Runtime requires pads smaller than the kernel
    fields: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "ceil_mode": 1}
    fields |= {"auto_pad": "VALID"} if pads is None else {"pads": pads}
    if kind == "AveragePool":
        fields["count_include_pad"] = include
    model = single(kind, (1, 2, size, 12), (), 19, **fields)
    graph = load_model(model)
    (node,) = graph.nodes
    inputs = random_inputs(graph, 0)
    want = run_plain(model, inputs)["y"]
    assert_close(run_graph(graph, inputs)["y"], want, 1e-6)
    assert graph.shape("y") == want.shape
    assert isinstance(node.op, Pool2d)


@pytest.mark.parametrize("size", range(6, 14))
def test_ceil_mode_of_a_pool_that_stays_opaque(size: int) -> None:
    model = single("MaxPool", (1, 2, size), (), 19, kernel_shape=[2], strides=[3], ceil_mode=1)
    graph = load_model(model)
    assert graph.shape("y") == run_plain(model, random_inputs(graph, 0))["y"].shape


def test_an_stft_is_one_sided_by_default() -> None:
    """ONNX's shape inference assumes the opposite default."""
    nodes = [helper.make_node("STFT", ["x", "step", "window"], ["s"]), helper.make_node("Mul", ["s", "gain"], ["y"])]
    given = {"step": np.array(8), "window": weights(16), "gain": weights(9, 2)}
    model = model_of(nodes, {"x": (1, 64, 1)}, ["y"], given, opset=17)
    graph = load_model(model)
    inputs = random_inputs(graph, 0)
    want = run_plain(model, inputs)["y"]
    assert graph.shape("y") == want.shape == (1, 7, 9, 2)
    np.testing.assert_array_equal(run_graph(graph, inputs)["y"], want)


def reshaped_to(target: list[str], rank: int, opset: int = 17) -> onnx.ModelProto:
    """Abs(x) in a shape that is concatenated from sizes (x's), one, zero and rest (-1)."""
    given = {"one": ints(1), "zero": ints(0), "rest": ints(-1)}
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Concat", target, ["target"], axis=0),
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Reshape", ["a", "target"], ["y"]),
    ]
    return model_of(nodes, {"x": ["e", "f"][:rank]}, ["y"], given, opset)


@pytest.mark.parametrize(
    ("shape", "target", "made"),
    [
        ((0,), ["one", "sizes"], (1, 0)),
        ((0,), ["sizes", "zero"], (0, 0)),
        ((0, 3), ["one", "sizes"], (1, 0, 3)),
        ((3, 0), ["one", "sizes"], (1, 3, 0)),
    ],
)
def test_a_zero_size_without_a_dimension_to_copy(
    shape: tuple[int, ...], target: list[str], made: tuple[int, ...]
) -> None:
    """Exporters mean it as a size, for a relation without edges, for example: the same as a model with allowzero=1."""
    model = reshaped_to(target, len(shape))
    graph = load_model(model, dict(zip(("e", "f"), shape, strict=False)))
    model.graph.node[-1].attribute.append(helper.make_attribute("allowzero", 1))
    inputs = random_inputs(graph, 0)
    want = run_plain(model, inputs)["y"]
    assert graph.shape("y") == run_graph(graph, inputs)["y"].shape == want.shape == made


@pytest.mark.parametrize("rows", [0, 2])
def test_a_zero_size_that_copies_a_dimension_still_does(rows: int) -> None:
    model = reshaped_to(["zero", "zero", "one"], 2)
    graph = load_model(model, {"e": rows, "f": 3})
    inputs = random_inputs(graph, 0)
    assert graph.shape("y") == run_plain(model, inputs)["y"].shape == (rows, 3, 1)


def test_an_impossible_zero_size() -> None:
    with pytest.raises(ModelError, match="cannot run: "):
        load_model(reshaped_to(["rest", "sizes"], 1), {"e": 0})
    with pytest.raises(ModelError, match=r"cannot run: (?!.*allowzero)"):
        load_model(reshaped_to(["one", "sizes"], 1, opset=13), {"e": 0})  # this opset has no allowzero
    with pytest.raises(ModelError, match="cannot run: "):
        load_model(reshaped_to(["one", "zero"], 1), {"e": 3})


def test_cast_like_needs_no_value() -> None:
    """A bias cast to the input's type, as PyTorch exports it without optimisation, is a constant."""
    nodes = [
        helper.make_node("CastLike", ["zero", "x"], ["typed"]),
        helper.make_node("Expand", ["typed", "four"], ["b"]),
        helper.make_node("Conv", ["x", "w", "b"], ["a"]),
        helper.make_node("CastLike", ["a", "zero"], ["y"]),
    ]
    given = {"zero": np.array(3, np.int64), "four": ints(4), "w": weights(4, 2, 1, 1)}
    model = model_of(nodes, {"x": (1, 2, 5, 5)}, ["y"], given, opset=19)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    graph = folded(load_model(model))
    assert kinds(graph) == ["Conv", "Cast"]
    inputs = random_inputs(graph, 0)
    want = run_plain(model, inputs)["y"]
    np.testing.assert_array_equal(run_graph(graph, inputs)["y"], want)
    assert want.std() > 0.5


@pytest.mark.parametrize(
    ("shape", "axis", "condition"),
    [((2, 8), 1, [True, False, True]), ((8, 2), 0, [False] * 8), ((8, 2), -2, [True] * 8)],
)
def test_a_known_condition_chooses_known_places(
    shape: tuple[int, ...], axis: int | None, condition: list[bool]
) -> None:
    """Symmetric padding in TensorFlow is exported as Concat and Compress; conditions may end early."""
    model = single("Compress", shape, [np.array(condition)], axis=axis)
    graph = load_model(model)
    assert kinds(graph) == ["Gather"]
    inputs = random_inputs(graph, 0)
    want = run_plain(model, inputs)["y"]
    assert graph.shape("y") == want.shape
    np.testing.assert_array_equal(run_graph(graph, inputs)["y"], want)


def test_a_known_condition_on_all_elements_flattens_them() -> None:
    model = single("Compress", (2, 3), [np.array([True, False, False, False, False, True])])
    graph = load_model(model)
    assert kinds(graph) == ["Reshape", "Gather"]
    inputs = random_inputs(graph, 0)
    np.testing.assert_array_equal(run_graph(graph, inputs)["y"], inputs["x"].reshape(-1)[[0, 5]])
    np.testing.assert_array_equal(run_plain(model, inputs)["y"], inputs["x"].reshape(-1)[[0, 5]])


KEPT = {
    "one-dimensional convolution": lambda: single("Conv", (1, 3, 9), [weights(4, 3, 3)]),
    "three-dimensional convolution": lambda: single("Conv", (1, 3, 5, 5, 5), [weights(4, 3, 3, 3, 3)]),
    "one-dimensional pool": lambda: single("MaxPool", (1, 3, 9), (), kernel_shape=[3]),
    "global pool of a line": lambda: single("GlobalAveragePool", (1, 3, 9)),
    "LpPool": lambda: single("LpPool", (1, 3, 9, 9), (), kernel_shape=[3, 3]),
    "reflecting pad": lambda: single("Pad", (1, 1, 5, 5), [ints(0, 0, 1, 1, 0, 0, 1, 1)], mode="reflect"),
    "negative pad": lambda: single("Pad", (1, 1, 5, 5), [ints(0, 0, -1, 1, 0, 0, 1, 1)]),
    "backward slice": lambda: single("Slice", (4, 5), [ints(-1), ints(-100), ints(0), ints(-1)]),
    "double-precision product": lambda: single(
        "MatMul", (4, 3), [weights(3, 5).astype(np.float64)], dtype=onnx.TensorProto.DOUBLE
    ),
}


@pytest.mark.parametrize("what", KEPT)
def test_operators_without_a_typed_form_stay_unchanged(what: str) -> None:
    model = KEPT[what]()
    graph = check(model, load_model(model).nodes[0].op)
    assert isinstance(graph.nodes[0].op, OnnxOp)


def test_max_pool_with_indices_is_kept() -> None:
    node = helper.make_node("MaxPool", ["x"], ["v", "i"], kernel_shape=[2, 2])
    nodes = [node, helper.make_node("Cast", ["i"], ["y"], to=onnx.TensorProto.FLOAT)]
    model = model_of(nodes, {"x": (1, 2, 4, 4)}, ["y", "v"])
    assert isinstance(load_model(model).nodes[0].op, OnnxOp)
    check(model, *(node.op for node in load_model(model).nodes))
    unused = model_of([node], {"x": (1, 2, 4, 4)}, ["v"])
    check(unused, Pool2d("max", (2, 2)))


def test_computed_parameters_are_kept() -> None:
    """Bounds and widths that depend on an input are not fields; a Clip with them stays opaque."""
    model = model_of([helper.make_node("Clip", ["x", "low"], ["y"])], {"x": (3, 4), "low": ()})
    graph = load_model(model)
    assert isinstance(graph.nodes[0].op, OnnxOp)
    assert graph.shape("y") == (3, 4)


@pytest.mark.parametrize("opset", [12, 17, OPSETS[-1]])
def test_integers_and_half_precision(opset: int) -> None:
    bounds = [np.array(0, np.int32), np.array(1, np.int32)]
    model = single("Clip", (20,), bounds, opset, onnx.TensorProto.INT32)
    graph = load_model(model)
    assert graph.nodes[0].op == Elementwise("Clip", (("max", 1), ("min", 0)))
    x = {"x": np.arange(-10, 10, dtype=np.int32)}
    np.testing.assert_array_equal(run_graph(graph, x)["y"], run_plain(model, x)["y"])
    half = single("Conv", (1, 2, 5, 5), [weights(3, 2, 3, 3).astype(np.float16)], opset, onnx.TensorProto.FLOAT16)
    check(half, Conv2d((3, 3)))


def test_ceil_mode_becomes_explicit_pads_where_that_is_exact() -> None:
    fields: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
    check(single("MaxPool", (1, 2, 8, 9), (), **fields), Pool2d("max", (3, 3), (2, 2), (0, 0, 1, 0)))
    check(
        single("AveragePool", (1, 2, 8, 9), (), **fields, pads=[0, 0, 0, 1], count_include_pad=1),
        Pool2d("average", (3, 3), (2, 2), (0, 0, 0, 1), ceil_mode=True, count_include_pad=True),
    )


def test_an_unpooling_has_the_size_that_it_is_given() -> None:
    """ONNX's inference finds none; the size that the strides imply is another one."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p", "i"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("MaxUnpool", ["p", "i", "size"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    model = model_of(nodes, {"x": (1, 2, 5, 5)}, ["y"], {"size": ints(1, 2, 5, 5)})
    graph = load_model(model)
    assert graph.shape("y") == (1, 2, 5, 5)
    inputs = random_inputs(graph, 0)
    want = run_plain(model, inputs)["y"]
    np.testing.assert_array_equal(run_graph(graph, inputs)["y"], want)
    assert np.count_nonzero(want) == 8
