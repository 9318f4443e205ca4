"""Gradients of pools."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.errors import ModelError
from pimflow.ir import Builder, GlobalPool, Pool2d, window_out
from pimflow.passes.differentiate import Differentiate, training_step
from support.gradients import check_gradients
from support.values import run_in_ort


@settings(max_examples=25)
@given(
    st.sampled_from(["max", "average"]),
    st.tuples(st.integers(3, 6), st.integers(4, 7)),
    st.tuples(st.integers(1, 3), st.integers(2, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 2)),
    st.tuples(*(st.integers(0, 1),) * 4),
    st.booleans(),
)
def test_pools(
    kind: Literal["max", "average"],
    sizes: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, int, int, int],
    padding_counts: bool,
) -> None:
    """Overlapping windows, and windows with gaps between them."""
    pads = (min(pads[0], kernel[0] - 1), pads[1], min(pads[2], kernel[0] - 1), pads[3])
    build = Builder(opset=18)
    x = build.input(2, 3, *sizes, dtype="float64")
    op = Pool2d(kind, kernel, strides, pads, count_include_pad=padding_counts)
    check_gradients(build.graph(build.op(op, x)))


@pytest.mark.parametrize("padding_counts", [False, True])
def test_windows_beyond_the_end(padding_counts: bool) -> None:
    build = Builder(opset=19)
    x = build.input(1, 2, 6, 7, dtype="float64")
    op = Pool2d("average", (3, 3), (2, 2), (0, 0, 0, 0), ceil_mode=True, count_include_pad=padding_counts)
    assert window_out(6, 3, 2, 0, 0, 1, True) == 3
    check_gradients(build.graph(build.op(op, x)))


@pytest.mark.parametrize("kind", ["max", "average"])
def test_global_pools(kind: Literal["max", "average"]) -> None:
    build = Builder()
    check_gradients(build.graph(build.op(GlobalPool(kind), build.input(2, 3, 4, 5, dtype="float64"))))


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_pools_over_one_axis(kind: str) -> None:
    build = Builder()
    x = build.input(2, 3, 9, dtype="float64")
    check_gradients(build.graph(build.onnx(kind, x, shape=(2, 3, 5), kernel_shape=(3,), strides=(2,), pads=(1, 1))))


def test_existing_index_outputs() -> None:
    build = Builder()
    x = build.input(1, 2, 4, 4, dtype="float64")
    made, _ = build.node(
        build.producer(build.onnx("MaxPool", x, shape=(1, 2, 2, 2), kernel_shape=(2, 2), strides=(2, 2))).op,
        (x,),
        [((1, 2, 2, 2), "float64"), ((1, 2, 2, 2), "int64")],
    )
    check_gradients(build.graph(made))


def test_an_opset_without_accumulating_scatters() -> None:
    build = Builder(opset=13)
    graph = build.graph(build.max_pool(build.input(1, 2, 6, 6), 3, 2, name="pool"))
    with pytest.raises(ModelError, match=r"'pool' has no gradient.*opset 13.*export the model with opset 16"):
        training_step(graph, Differentiate(wrt=("x",)))


def test_disjoint_windows_need_no_sums() -> None:
    build = Builder(opset=13)
    x = build.input(1, 2, 6, 7, dtype="float64")
    check_gradients(build.graph(build.max_pool(build.max_pool(x, 2, 2), 1, 2)))


def test_max_unpool() -> None:
    """Two channels of two images, with positions numbered through."""
    build = Builder()
    x = build.input(2, 2, 2, 3, dtype="float64")
    corners = np.arange(0, 96, 24).reshape(2, 2, 1, 1) + 12 * np.arange(2).reshape(2, 1) + 2 * np.arange(3)
    places = build.constant(corners.astype(np.int64))
    made = build.onnx("MaxUnpool", x, places, shape=(2, 2, 4, 6), kernel_shape=(2, 2), strides=(2, 2))
    check_gradients(build.graph(build.mul(made, made)))


@pytest.mark.parametrize("power", [1, 2, 3])
@pytest.mark.parametrize(
    ("outputs", "given"),
    [
        ((4, 4), {"kernel_shape": (2, 3)}),
        ((3, 3), {"kernel_shape": (3, 2), "strides": (2, 2), "pads": (1, 0, 1, 1)}),
        ((5, 3), {"kernel_shape": (2, 2), "strides": (1, 2), "auto_pad": "SAME_UPPER"}),
        ((3, 3), {"kernel_shape": (2, 2), "dilations": (2, 3)}),
    ],
)
def test_norms_of_windows(power: int, outputs: tuple[int, int], given: dict[str, Any]) -> None:
    build = Builder(opset=18)
    x = build.input(2, 3, 5, 6, dtype="float64")
    check_gradients(build.graph(build.onnx("LpPool", x, shape=(2, 3, *outputs), p=power, **given)))


@pytest.mark.parametrize("kind", ["AveragePool", "LpPool"])
def test_windows_that_start_late_have_no_gradient(kind: str) -> None:
    build = Builder(opset=22)
    x = build.input(1, 1, 9)
    pool = build.onnx(kind, x, shape=(1, 1, 3), kernel_shape=(1,), strides=(3,), auto_pad="SAME_UPPER")
    with pytest.raises(ModelError, match=f"{kind}: its windows start inside the map"):
        training_step(build.graph(pool), Differentiate(wrt=(x,)))


@pytest.mark.parametrize("power", [1, 2, 3])
def test_a_window_of_zeros_has_zero_gradient(power: int) -> None:
    """The norm has no slope there; like PyTorch's vector norm, its gradient is zero."""
    build = Builder(opset=18)
    x = build.input(1, 1, 2, 2)
    graph = build.graph(build.onnx("LpPool", x, shape=(1, 1, 1, 1), p=power, kernel_shape=(2, 2)))
    step = training_step(graph, Differentiate(wrt=(x,)))
    given = {name: np.zeros(step.graph.shape(name), np.float32) for name in step.graph.inputs}
    given |= {name: array + 1 for name, array in given.items() if name != x}
    assert (run_in_ort(step.graph, given)[step.gradients[x]] == 0).all()


@pytest.mark.parametrize("power", [1, 2, 3])
def test_norms_of_maps(power: int) -> None:
    build = Builder()
    x = build.input(2, 3, 4, 5, dtype="float64")
    check_gradients(build.graph(build.onnx("GlobalLpPool", x, shape=(2, 3, 1, 1), p=power)))
