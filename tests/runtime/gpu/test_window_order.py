"""Convolutions of tensors in column and window order equal ONNX Runtime's; the tensors have the predicted contents."""

from __future__ import annotations

import itertools
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.ir import Array, Builder, Conv2d
from pimflow.runtime.execute.ort import run_graph
from pimflow.runtime.gpu.convolutions import Sizes
from pimflow.runtime.gpu.window_order import convolve, in_columns, in_window_order
from pimflow.targets.schema.gpu import Algorithm

WAYS: tuple[Algorithm, ...] = tuple(way for way in get_args(Algorithm) if way != "library")


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Conv2d, tuple[int, int, int, int], int]:
    """An op, the shape of its input, and its output channels: any small case that ONNX allows."""
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, strides, dilations = draw(st.tuples(st.integers(1, 4), st.integers(1, 4))), draw(pair), draw(pair)
    pads = draw(st.tuples(*(st.integers(0, 2) for _ in range(4))))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    least = [dilation * (size - 1) + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    height, width = (draw(st.integers(size, size + 6)) for size in least)
    shape = (draw(st.integers(1, 3)), groups * draw(st.integers(1, 3)), height, width)
    return Conv2d(kernel, strides, pads, dilations, groups), shape, groups * draw(st.integers(1, 3))


def operands(op: Conv2d, shape: tuple[int, int, int, int], out: int, dtype: str = "float32") -> list[Array]:
    random = np.random.default_rng(0)
    sizes = (shape, (out, shape[1] // op.groups, *op.kernel), (out,))
    return [random.standard_normal(size).astype(dtype) for size in sizes]


def by_onnx_runtime(op: Conv2d, given: list[Array]) -> Array:
    build = Builder("one")
    x = build.input(*given[0].shape, name="x")
    graph = build.graph(build.op(op, x, build.constant(given[1]), build.constant(given[2])))
    return run_graph(graph, {"x": given[0]})[graph.outputs[0]]


@settings(max_examples=60)
@given(convolutions())
def test_every_order_matches_onnx_runtime(made: tuple[Conv2d, tuple[int, int, int, int], int]) -> None:
    op, shape, out = made
    arrays = operands(op, shape, out)
    expected = by_onnx_runtime(op, arrays)
    for way in WAYS:
        found = convolve(op, arrays, way)
        assert found.shape == expected.shape
        assert np.allclose(found, expected, rtol=1e-5, atol=1e-5), way


@settings(max_examples=60)
@given(convolutions())
def test_the_tensors_match_the_predicted_sizes(made: tuple[Conv2d, tuple[int, int, int, int], int]) -> None:
    """Counted cell by cell: the distinct (channel, row of results, column, tap), and the windows."""
    op, shape, out = made
    x = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
    windows, columns = in_window_order(x, op), in_columns(x, op)
    images, rows, width = columns.shape[:3]
    sizes = Sizes(op, shape, (images, out, rows, width))
    assert windows.size == shape[0] * sizes.windows()
    assert columns.size == shape[0] * sizes.columns()
    top, left, bottom, right = op.pads
    high, wide = shape[2] + top + bottom, shape[3] + left + right
    cells = 0
    for n, c, ho, w, i in itertools.product(*map(range, (*shape[:2], rows, wide, op.kernel[0]))):
        y, x_at = ho * op.strides[0] + i * op.dilations[0] - top, w - left
        inside = 0 <= y < shape[2] and 0 <= x_at < shape[3]
        assert windows[n, c, ho, w, i] == (x[n, c, y, x_at] if inside else 0)
        cells += 1
    assert cells == windows.size
    assert rows == len(range(0, high - op.dilations[0] * (op.kernel[0] - 1), op.strides[0]))
    assert width == len(range(0, wide - op.dilations[1] * (op.kernel[1] - 1), op.strides[1]))


def test_windows_are_contiguous_and_a_stride_apart() -> None:
    op = Conv2d((3, 4), (2, 3))
    x = np.random.default_rng(1).standard_normal((1, 2, 9, 16)).astype(np.float32)
    flat, columns = in_window_order(x, op).reshape(2, 4, -1), in_columns(x, op)
    for channel, row, place in itertools.product(range(2), range(4), range(5)):
        run = flat[channel, row, place * 3 * 3 : place * 3 * 3 + 12]
        np.testing.assert_array_equal(run.reshape(4, 3).T, columns[0, row, place, channel])


@pytest.mark.parametrize("way", WAYS)
def test_half_precision_is_summed_in_single(way: Algorithm) -> None:
    op = Conv2d((3, 3))
    arrays = operands(op, (1, 64, 6, 6), 8, "float16")
    wide = [array.astype(np.float64) for array in arrays]
    found = convolve(op, arrays, way)
    assert found.dtype == np.float16
    assert np.allclose(found, convolve(op, wide, "im2col"), rtol=1e-3, atol=1e-3)
