"""Gradients of Fourier transforms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pimflow.errors import ModelError
from pimflow.ir import Builder, Graph
from pimflow.passes.differentiate import Differentiate, training_step
from support.gradients import check_gradients
from support.versions import OLDER_RUNTIME


def transformed(parts: int, length: int | None, opset: int, **given: Any) -> Graph:
    """[2, 6, parts], transformed along its middle axis, which opsets before 20 name as an attribute."""
    build = Builder(opset=opset)
    x = build.input(2, 6, parts, dtype="float64")
    count = length or 6
    made = count // 2 + 1 if given.get("onesided") else count
    axis = [build.constant(np.array(1))] if opset >= 20 else []
    inputs = [x, build.constant(np.array(count)) if length else "", *axis] if axis or length else [x]
    if opset < 20:
        given["axis"] = 1
    return build.graph(build.onnx("DFT", *inputs, shape=(2, made, 2), **given))


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
def test_both_transforms(parts: int, inverse: int, opset: int) -> None:
    check_gradients(transformed(parts, None, opset, inverse=inverse))


@pytest.mark.parametrize("length", [None, 4, 9])
@pytest.mark.parametrize("onesided", [0, 1])
def test_one_side_and_other_lengths(length: int | None, onesided: int) -> None:
    check_gradients(transformed(1, length, 20, onesided=onesided))


def to_reals(axis: int, made: int, opset: int) -> Graph:
    """One side of spectra, transformed back along an axis."""
    build = Builder(opset=opset)
    shape = [2, 3, 4]
    x = build.input(*shape[:axis], 5, *shape[axis:], 2, dtype="float64")
    given: dict[str, Any] = {"axis": axis} if opset < 20 else {}
    inputs = [x, build.constant(np.array(made)), *([] if given else [build.constant(np.array(axis))])]
    result = (*shape[:axis], made, *shape[axis:], 1)
    return build.graph(build.onnx("DFT", *inputs, shape=result, inverse=1, onesided=1, **given))


@pytest.mark.skipif(
    OLDER_RUNTIME,
    reason="older versions of ONNX Runtime refuse transforms that are inverse and one-sided",
)
@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("axis", [1, 3])
def test_one_side_back_to_reals(axis: int, opset: int) -> None:
    check_gradients(to_reals(axis, 8, opset))


@pytest.mark.parametrize("made", [6, 9])
def test_other_lengths_of_reals_have_no_gradient(made: int) -> None:
    with pytest.raises(ModelError, match="whose length its operand does not imply"):
        training_step(to_reals(1, made, 20), Differentiate(inputs=True))


def framed(parts: int, step: int, opset: int, *, windowed: bool = True, onesided: int = 1) -> Graph:
    """Two signals of eleven elements, in frames of four."""
    build = Builder(opset=opset)
    inputs = [build.input(2, 11, parts, dtype="float64"), build.constant(np.array(step))]
    inputs += [build.input(4, dtype="float64")] if windowed else ["", build.constant(np.array(4))]
    shape = (2, 7 // step + 1, 3 if onesided else 4, 2)
    return build.graph(build.onnx("STFT", *inputs, shape=shape, onesided=onesided))


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("step", [1, 3, 4, 6])
def test_overlapping_and_separate_frames(step: int, opset: int) -> None:
    for onesided in (0, 1):
        check_gradients(framed(1, step, opset, onesided=onesided))
        check_gradients(framed(1, step, opset, windowed=False, onesided=onesided))
    check_gradients(framed(2, step, opset, onesided=0))


def test_frames_with_data_dependent_starts() -> None:
    build = Builder(opset=17)
    signal, step, window = build.input(1, 8, 1), build.input(dtype="int64"), build.constant(np.ones(4, np.float32))
    graph = build.graph(build.onnx("STFT", signal, step, window, shape=(1, 5, 3, 2), onesided=1))
    with pytest.raises(ModelError, match="STFT: the step or the length of its frames"):
        training_step(graph, Differentiate(inputs=True))


def test_missing_rules() -> None:
    build = Builder(opset=20)
    x, axis = build.input(2, 6, 2), build.input(dtype="int64")
    graph = build.graph(build.onnx("DFT", x, "", axis, shape=(2, 6, 2)))
    with pytest.raises(ModelError, match="DFT: its axis is computed"):
        training_step(graph, Differentiate(inputs=True))
