"""Gradients of convolutions and products."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.ir import Builder, Conv2d, Gemm, MatMul
from support.gradients import check_gradients


def operand(build: Builder, *shape: int) -> str:
    return build.input(*shape, dtype="float64")


@settings(max_examples=25)
@given(
    st.tuples(st.integers(1, 2), st.integers(4, 7), st.integers(3, 6)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 2)),
    st.tuples(*(st.integers(0, 2),) * 4),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.sampled_from([(1, 2, 3), (2, 2, 1), (3, 1, 1), (1, 1, 2)]),
    st.booleans(),
)
def test_convolutions(
    sizes: tuple[int, int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, int, int, int],
    dilations: tuple[int, int],
    grouped: tuple[int, int, int],
    bias: bool,
) -> None:
    """Including strides with a remainder at the end, and padding that no window reaches."""
    (images, height, width), (groups, inner, outer) = sizes, grouped
    reach = [(extent - 1) * dilation + 1 for extent, dilation in zip(kernel, dilations, strict=True)]
    if height + pads[0] + pads[2] < reach[0] or width + pads[1] + pads[3] < reach[1]:
        return
    build = Builder()
    operands = [operand(build, images, groups * inner, height, width), operand(build, groups * outer, inner, *kernel)]
    operands += [operand(build, groups * outer)] if bias else []
    check_gradients(build.graph(build.op(Conv2d(kernel, strides, pads, dilations, groups), *operands)))


@pytest.mark.parametrize(("groups", "strides", "pads"), [(1, (2,), (1, 0)), (2, (1,), (0, 2)), (4, (3,), (0, 0))])
def test_a_convolution_over_one_axis(groups: int, strides: tuple[int, ...], pads: tuple[int, ...]) -> None:
    build = Builder()
    x, w, b = operand(build, 2, 4, 9), operand(build, 8, 4 // groups, 3), operand(build, 8)
    size = (9 + sum(pads) - 3) // strides[0] + 1
    check_gradients(
        build.graph(build.onnx("Conv", x, w, b, shape=(2, 8, size), group=groups, strides=strides, pads=pads))
    )


def test_padding_derived_from_the_output_shape() -> None:
    build = Builder()
    x, w = operand(build, 1, 2, 8), operand(build, 3, 2, 4)
    check_gradients(build.graph(build.onnx("Conv", x, w, shape=(1, 3, 3), auto_pad="SAME_UPPER", strides=(3,))))


@pytest.mark.parametrize(
    ("strides", "pads", "extra", "dilation", "size"),
    [
        ((2, 2), (0, 0, 0, 0), (0, 0), 1, (9, 11)),
        ((2, 3), (1, 0, 1, 1), (1, 2), 1, (8, 16)),
        ((1, 1), (1, 1, 0, 0), (0, 0), 2, (7, 8)),
        ((3, 2), (0, 1, 0, 0), (2, 1), 1, (14, 11)),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_transposed_convolutions(
    strides: tuple[int, int],
    pads: tuple[int, ...],
    extra: tuple[int, int],
    dilation: int,
    size: tuple[int, int],
    bias: bool,
) -> None:
    build = Builder()
    operands = [operand(build, 2, 2, 4, 5), operand(build, 2, 3, 3, 3), *([operand(build, 3)] if bias else [])]
    made = build.onnx(
        "ConvTranspose",
        *operands,
        shape=(2, 3, *size),
        strides=strides,
        pads=pads,
        output_padding=extra,
        dilations=(dilation, dilation),
    )
    check_gradients(build.graph(made))


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("bias", [None, (4,), (3, 4), (3, 1), ()])
def test_gemm(trans_a: bool, trans_b: bool, bias: tuple[int, ...] | None) -> None:
    build = Builder()
    operands = [operand(build, *((5, 3) if trans_a else (3, 5))), operand(build, *((4, 5) if trans_b else (5, 4)))]
    operands += [] if bias is None else [operand(build, *bias)]
    check_gradients(build.graph(build.op(Gemm(0.5, 2.0, trans_a, trans_b), *operands)))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 5), (5, 4)),
        ((2, 3, 5), (5, 4)),
        ((2, 3, 5), (2, 5, 4)),
        ((2, 1, 3, 5), (4, 5, 2)),
        ((3, 5), (2, 5, 4)),
        ((5,), (5, 4)),
        ((5,), (2, 5, 4)),
        ((2, 3, 5), (5,)),
        ((5,), (5,)),
    ],
)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    build = Builder()
    check_gradients(build.graph(build.op(MatMul(), operand(build, *left), operand(build, *right))))


def test_no_transposed_weights_are_stored() -> None:
    """Products read their operands transposed, without a copy."""
    build = Builder()
    x = build.input(2, 3, 8, dtype="float64")
    weights = build.input(8, 4, name="w", dtype="float64")
    step = check_gradients(build.graph(build.op(MatMul(), x, weights)))
    assert "Transpose" not in {node.kind for node in step.graph.nodes}
    assert [node.op.trans_b for node in step.graph.nodes if isinstance(node.op, Gemm)] == [True, False]
