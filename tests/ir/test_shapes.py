"""Shape formulas against numpy's own behaviour and ONNX's inference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper, shape_inference

from pimflow.errors import GraphError
from pimflow.ir import (
    Array,
    BatchNorm,
    Concat,
    Conv2d,
    Elementwise,
    Gemm,
    GlobalPool,
    MatMul,
    OnnxOp,
    Op,
    Pad,
    Pool2d,
    Reshape,
    Shape,
    Slice,
    Transpose,
    Value,
)
from pimflow.ir.shapes import infer

QUICK = settings(max_examples=60)
dims = st.integers(1, 5)
shapes = st.lists(dims, min_size=1, max_size=4).map(tuple)


def values(*shapes_: Shape, dtype: str = "float32") -> list[Value]:
    return [Value(f"v{index}", shape, dtype) for index, shape in enumerate(shapes_)]


def shape_of(op: Op, *shapes_: Shape) -> Shape:
    (result,) = infer(op, values(*shapes_))
    return result.shape


def numpy_shape(function: Callable[..., Array], *shapes_: Shape) -> Shape | None:
    """The shape that numpy computes, or None if it refuses."""
    try:
        return function(*(np.zeros(shape) for shape in shapes_)).shape
    except ValueError:
        return None


def our_shape(op: Op, *shapes_: Shape) -> Shape | None:
    try:
        return shape_of(op, *shapes_)
    except GraphError:
        return None


@QUICK
@given(shapes, shapes)
def test_broadcast(a: Shape, b: Shape) -> None:
    assert our_shape(Elementwise("Add"), a, b) == numpy_shape(np.add, a, b)


@QUICK
@given(shapes, shapes, st.booleans())
def test_matmul(a: Shape, b: Shape, fit: bool) -> None:
    if fit:
        b = (*b[:-2], a[-1], b[-1]) if len(b) > 1 else (a[-1],)
    assert our_shape(MatMul(), a, b) == numpy_shape(np.matmul, a, b)


@QUICK
@given(st.data(), shapes)
def test_layout(data: st.DataObject, x: Shape) -> None:
    axis = data.draw(st.integers(0, len(x) - 1))
    start, stop = (data.draw(st.integers(0, x[axis])) for _ in range(2))
    step = data.draw(st.integers(1, 3))
    cut = (slice(None),) * axis + (slice(start, stop, step),)
    assert shape_of(Slice(axis, start, stop, step), x) == np.zeros(x)[cut].shape
    perm = data.draw(st.permutations(range(len(x))))
    assert shape_of(Transpose(tuple(perm)), x) == np.zeros(x).transpose(perm).shape
    widths = [tuple(data.draw(st.integers(0, 2)) for _ in range(2)) for _ in x]
    before, after = zip(*widths, strict=True)
    assert shape_of(Pad(before, after), x) == np.pad(np.zeros(x), widths).shape
    other = (*x[:axis], 7, *x[axis + 1 :])
    assert shape_of(Concat(axis), x, other) == np.concatenate([np.zeros(x), np.zeros(other)], axis).shape


@QUICK
@given(
    st.tuples(dims, dims, st.integers(3, 20), st.integers(3, 20)),
    st.tuples(dims, dims),
    st.tuples(dims, dims),
    st.tuples(*[st.integers(0, 3)] * 4),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.integers(1, 3),
)
def test_windows(
    x: tuple[int, int, int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, int, int, int],
    dilations: tuple[int, int],
    groups: int,
) -> None:
    extents = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    assume(all(x[2 + i] + pads[i] + pads[2 + i] >= extents[i] for i in range(2)))
    x = (x[0], x[1] * groups, *x[2:])
    w = (2 * groups, x[1] // groups, *kernel)
    fields = {"strides": strides, "pads": pads, "dilations": dilations, "kernel_shape": kernel}
    conv = by_onnx("Conv", [x, w], group=groups, **fields)
    assert shape_of(Conv2d(kernel, strides, pads, dilations, groups), x, w) == conv
    pool = by_onnx("MaxPool", [x], **fields)
    assert shape_of(Pool2d("max", kernel, strides, pads, dilations), x) == pool


def by_onnx(op_type: str, inputs: Sequence[Shape], **attributes: Any) -> Shape:
    names = [f"v{index}" for index in range(len(inputs))]
    infos = [helper.make_tensor_value_info(name, 1, shape) for name, shape in zip(names, inputs, strict=True)]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    shape = shape_inference.infer_shapes(model, strict_mode=True).graph.output[0].type.tensor_type.shape
    return tuple(dim.dim_value for dim in shape.dim)


@QUICK
@given(dims, dims, dims, st.booleans(), st.booleans())
def test_gemm(m: int, k: int, n: int, trans_a: bool, trans_b: bool) -> None:
    a, b = ((k, m) if trans_a else (m, k)), ((n, k) if trans_b else (k, n))
    for c in ((), (1,), (n,), (m, 1), (m, n)):
        assert shape_of(Gemm(trans_a=trans_a, trans_b=trans_b), a, b, c) == (m, n)


def test_the_rest() -> None:
    x = (2, 3, 4, 5)
    assert shape_of(GlobalPool("max"), x) == (2, 3, 1, 1)
    assert shape_of(BatchNorm(), x, (3,), (3,), (3,), (3,)) == x
    assert shape_of(Reshape((6, 20)), x) == (6, 20)
    assert shape_of(Reshape(()), (1, 1)) == ()


def test_element_types() -> None:
    (result,) = infer(Elementwise("Less"), values((2,), (2,)))
    assert result.dtype == "bool"
    mixed = [Value("c", (2,), "bool"), *values((2,), (2,), dtype="float16")]
    (result,) = infer(Elementwise("Where"), mixed)
    assert result.dtype == "float16"
    (result,) = infer(MatMul(), values((2, 3), (3, 4), dtype="bfloat16"))
    assert result.dtype == "bfloat16"


WRONG = [
    (OnnxOp("Softmax"), [(2, 3)]),
    (Conv2d((3, 3)), [(1, 3, 8, 8), (4, 2, 3, 3)]),
    (Conv2d((3, 3)), [(1, 3, 8, 8), (4, 3, 5, 5)]),
    (Conv2d((3, 3)), [(1, 3, 8, 8), (4, 3, 3, 3), (5,)]),
    (Conv2d((3, 3), groups=3), [(1, 3, 8, 8), (4, 1, 3, 3)]),
    (Conv2d((3, 3)), [(3, 8, 8), (4, 3, 3, 3)]),
    (Conv2d((9, 9)), [(1, 3, 4, 4), (4, 3, 9, 9)]),
    (Gemm(), [(2, 3), (4, 5)]),
    (Gemm(), [(2, 3), (3, 5), (4,)]),
    (MatMul(), [(2, 3), ()]),
    (BatchNorm(), [(1, 3, 2, 2), (3,), (3,), (3,), (4,)]),
    (BatchNorm(), [(1, 3, 2, 2), (3,)]),
    (Slice(2, 0, 1), [(2, 3)]),
    (Slice(1, 0, 4), [(2, 3)]),
    (Slice(1, 4, 4), [(2, 3)]),
    (Slice(1, 0, 2, 0), [(2, 3)]),
    (Pad((0,), (0,)), [(2, 3)]),
    (Pad((0, -1), (0, 0)), [(2, 3)]),
    (Concat(0), [(2, 3), (2, 4)]),
    (Concat(0), [(2, 3), (2, 3, 1)]),
    (Concat(2), [(2, 3)]),
    (Reshape((7,)), [(2, 3)]),
    (Transpose((0, 0)), [(2, 3)]),
    (GlobalPool("max"), [(2, 3)]),
    (Pool2d("max", (2, 2)), [(2, 3)]),
]


@pytest.mark.parametrize(("op", "inputs"), WRONG, ids=str)
def test_mismatched_operands_are_refused(op: Op, inputs: list[Shape]) -> None:
    with pytest.raises(GraphError):
        infer(op, values(*inputs))


def test_unknown_and_absent_inputs_are_refused() -> None:
    with pytest.raises(GraphError, match="no static shape"):
        infer(Elementwise("Relu"), [Value("x", None)])
    with pytest.raises(GraphError, match="first input"):
        infer(Elementwise("Relu"), [None])
    with pytest.raises(GraphError):
        infer(Concat(0), [Value("x", (2,)), None])
