"""Gradients of ops that read and write by an index."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pimflow.errors import ModelError
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


def test_scatters_that_keep_the_maximum() -> None:
    build = Builder(opset=18)
    x = build.input(4, 3, dtype="float64")
    made = build.onnx(
        "ScatterND", x, build.constant(np.array([[3]], np.int64)), build.slice(x, 0, 0, 1), reduction="max"
    )
    with pytest.raises(ModelError, match="ScatterND with reduction 'max'"):
        check_gradients(build.graph(made))


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
