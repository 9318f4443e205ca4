"""Gradients of ops that read and write by an index."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pimflow.ir import Builder, OnnxOp
from pimflow.passes.differentiate import Differentiate, training_step
from support.gradients import check_gradients
from support.values import run_in_ort


@pytest.mark.parametrize(("axis", "index"), [(0, [[2, 0], [2, -1]]), (1, [1, 1, 0]), (-1, [[3], [0]]), (0, 1)])
def test_gather(axis: int, index: object) -> None:
    """Rows that are read twice receive both gradients."""
    build, places = Builder(), np.array(index, np.int64)
    x = build.input(4, 3, 5, dtype="float64")
    shape = np.take(np.empty((4, 3, 5)), np.maximum(places, 0), axis=axis).shape
    made = build.onnx("Gather", x, build.constant(places), shape=shape, axis=axis)
    check_gradients(build.graph(build.mul(made, made)))


def test_gather_by_int32() -> None:
    build, places = Builder(), np.array([2, 0, 2], np.int32)
    x = build.input(4, 3)
    graph = build.graph(build.onnx("Gather", x, build.constant(places), shape=(3, 3), axis=0))
    step = training_step(graph, Differentiate(inputs=True)).graph
    dy = np.arange(9, dtype=np.float32).reshape(3, 3)
    made = run_in_ort(step, {"x": np.zeros((4, 3), np.float32), f"{graph.outputs[0]}.gradient": dy})
    assert made["x.gradient"].tolist() == [dy[1].tolist(), [0] * 3, (dy[0] + dy[2]).tolist(), [0] * 3]


def test_gather_elements() -> None:
    build = Builder()
    x, index = build.input(3, 4, dtype="float64"), build.constant(np.array([[0, 0, 3], [1, 1, 1]], np.int64))
    check_gradients(build.graph(build.onnx("GatherElements", x, index, shape=(2, 3), axis=1)))


def test_gather_nd() -> None:
    build = Builder()
    x, index = build.input(3, 4, dtype="float64"), build.constant(np.array([[0, 1], [0, 1], [2, 3]], np.int64))
    check_gradients(build.graph(build.onnx("GatherND", x, index, shape=(3,))))


@pytest.mark.parametrize(("dims", "shape"), [(1, (2, 3, 2)), (2, (2, 3))])
def test_gather_nd_within_a_batch(dims: int, shape: tuple[int, ...]) -> None:
    """Gradients of repeated reads within one image add up; the same indices of another image are different elements."""
    build = Builder()
    x = build.input(2, 3, 4, 2, dtype="float64") if dims == 1 else build.input(2, 3, 4, dtype="float64")
    index = np.array([[[0, 1], [0, 1], [2, 3]], [[0, 1], [1, 1], [2, 0]]], np.int64)
    if dims == 2:
        index = index[..., :1]
    made = build.onnx("GatherND", x, build.constant(index), shape=shape, batch_dims=dims)
    check_gradients(build.graph(build.mul(made, made)))


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_scatters(reduction: str) -> None:
    build = Builder(opset=18)
    x, updates = build.input(4, 3, name="x", dtype="float64"), build.input(2, 3, name="u", dtype="float64")
    index = build.constant(np.array([[0, 1, 2], [2, 3, 1]], np.int64))
    made = build.onnx("ScatterElements", x, index, updates, axis=0, reduction=reduction)
    check_gradients(build.graph(build.mul(made, made)))
    build = Builder(opset=18)
    x, updates = build.input(4, 3, name="x", dtype="float64"), build.input(2, 3, name="u", dtype="float64")
    rows = build.constant(np.array([[3], [1]], np.int64))
    made = build.onnx("ScatterND", x, rows, updates, reduction=reduction)
    check_gradients(build.graph(build.mul(made, made)))


@pytest.mark.parametrize("reduction", ["mul", "max", "min"])
@pytest.mark.parametrize("op_type", ["ScatterElements", "ScatterND"])
def test_scatters_that_reduce(op_type: str, reduction: str) -> None:
    """Elements with no, one and several updates; one and two of the factors of an element are zero."""
    build = Builder(opset=18)
    x, updates = build.input(4, 3, name="x", dtype="float64"), build.input(3, 3, name="u", dtype="float64")
    index = [[3], [1], [3]] if op_type == "ScatterND" else [[0, 1, 2], [2, 3, 1], [0, 3, 2]]
    given: dict[str, Any] = {"axis": 0} if op_type == "ScatterElements" else {}
    made = build.onnx(op_type, x, build.constant(np.array(index, np.int64)), updates, reduction=reduction, **given)
    graph = build.graph(made)
    check_gradients(graph)
    if reduction == "mul":
        factors = np.random.default_rng(0).uniform(0.5, 1, (3, 3))
        factors[0, :2] = factors[2, 1:] = 0
        check_gradients(graph, {"u": factors})


def test_equal_maxima_of_a_scatter() -> None:
    """The old element and two updates that equal it have a third each, as in PyTorch's scatter_reduce."""
    build = Builder(opset=18)
    x, updates = build.input(2, name="x", dtype="float64"), build.input(2, name="u", dtype="float64")
    index = build.constant(np.array([[1], [1]], np.int64))
    graph = build.graph(build.onnx("ScatterND", x, index, updates, reduction="max"))
    step = training_step(graph, Differentiate(inputs=True)).graph
    ones = np.ones(2)
    made = run_in_ort(step, {"x": ones, "u": ones, f"{graph.outputs[0]}.gradient": np.array([1.0, 6.0])})
    assert made["x.gradient"].tolist() == [1, 2]
    assert made["u.gradient"].tolist() == [2, 2]


@pytest.mark.parametrize(("mode", "begins"), [("linear", [1, 0]), ("circular", [3, 2]), ("linear", None)])
def test_updates_of_a_cache(mode: str, begins: list[int] | None) -> None:
    build = Builder(opset=24)
    cache, update = (
        build.input(2, 3, 4, 5, name="c", dtype="float64"),
        build.input(2, 3, 2, 5, name="u", dtype="float64"),
    )
    operands = (cache, update) if begins is None else (cache, update, build.constant(np.array(begins, np.int64)))
    check_gradients(build.graph(build.onnx("TensorScatter", *operands, mode=mode, shape=(2, 3, 4, 5))))


@pytest.mark.parametrize(("axis", "kept"), [(0, [0, 1, 1]), (-1, [1, 0, 1]), (None, [1, 0, 0, 1, 1])])
def test_compressed_axes(axis: int | None, kept: list[int]) -> None:
    """A condition may be shorter than the axis."""
    build, count = Builder(opset=13), sum(kept)
    x, condition = build.input(3, 4, dtype="float64"), build.constant(np.array(kept, bool))
    shape = {0: (count, 4), -1: (3, count), None: (count,)}[axis]
    given: dict[str, Any] = {} if axis is None else {"axis": axis}
    check_gradients(build.graph(build.onnx("Compress", x, condition, shape=shape, **given)))


@pytest.mark.parametrize("axis", [-1, 0])
def test_values_of_one_hot_rows(axis: int) -> None:
    build = Builder(opset=13)
    index, depth = build.constant(np.array([2, 0, 2], np.int64)), build.constant(np.array(4, np.int64))
    values = build.input(2, dtype="float64")
    shape = (3, 4) if axis else (4, 3)
    check_gradients(build.graph(build.onnx("OneHot", index, depth, values, shape=shape, dtype="float64", axis=axis)))


def test_rows_read_once_need_no_sums() -> None:
    build = Builder(opset=13)
    x, index = build.input(4, 3, dtype="float64"), build.constant(np.array([3, 1], np.int64))
    check_gradients(build.graph(build.onnx("Gather", x, index, shape=(2, 3))))


@pytest.mark.parametrize(("axis", "largest"), [(-1, 1), (0, 0)])
def test_top_k(axis: int, largest: int) -> None:
    """Two outputs are used, with weights; the rest has no gradient."""
    build = Builder()
    x = build.input(3, 4, dtype="float64")
    shape = (3, 2) if axis == -1 else (2, 4)
    two = build.constant(np.array([2], np.int64))
    op = OnnxOp("TopK", "", (("axis", axis), ("largest", largest)))
    top, _ = build.node(op, (x, two), [(shape, "float64"), (shape, "int64")])
    check_gradients(build.graph(build.mul(top, top)))


@pytest.mark.parametrize(
    ("image", "kernel", "given"),
    [
        ((4, 5), (2, 3), {}),
        ((5, 5), (3, 2), {"strides": (2, 1), "pads": (1, 0, 1, 1)}),
        ((6, 5), (2, 2), {"dilations": (2, 3)}),
        ((7,), (3,), {"strides": (2,), "pads": (1, 1)}),
    ],
)
def test_columns_back_into_an_image(image: tuple[int, ...], kernel: tuple[int, ...], given: dict[str, Any]) -> None:
    axes = len(image)
    pads = given.get("pads", (0,) * 2 * axes)
    strides, dilations = (given.get(name, (1,) * axes) for name in ("strides", "dilations"))
    counts = [
        (image[i] + pads[i] + pads[i + axes] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for i in range(axes)
    ]
    build = Builder(opset=18)
    x = build.input(2, 3 * math.prod(kernel), math.prod(counts), dtype="float64")
    sizes = (build.constant(np.array(image, np.int64)), build.constant(np.array(kernel, np.int64)))
    check_gradients(build.graph(build.onnx("Col2Im", x, *sizes, shape=(2, 3, *image), **given)))


def test_reversed_sequences() -> None:
    """Each sequence up to its own length."""
    build = Builder()
    x, lengths = build.input(3, 5, 2, dtype="float64"), build.constant(np.array([5, 1, 3], np.int64))
    turned = build.onnx("ReverseSequence", x, lengths, shape=(3, 5, 2), batch_axis=0, time_axis=1)
    check_gradients(build.graph(build.mul(turned, x)))
