"""Gradients of Resize, and of padding that copies from the map itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pimflow.errors import ModelError
from pimflow.ir import Builder, Graph
from pimflow.passes.differentiate import Differentiate, training_step
from support.gradients import check_gradients, check_training_form
from support.values import run_in_ort

SIZE = (2, 3, 4, 5)


def padded(mode: str, dtype: str, widths: tuple[int, ...]) -> Graph:
    build = Builder(opset=19)
    x = build.input(*SIZE, dtype=dtype)
    shape = [size + before + behind for size, before, behind in zip(SIZE, widths[:4], widths[4:], strict=True)]
    return build.graph(build.onnx("Pad", x, build.constant(np.array(widths, np.int64)), shape=shape, mode=mode))


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("widths", [(0, 0, 1, 3, 0, 0, 3, 2), (0, 1, 0, 0, 1, 0, 0, 4)])
def test_borders(mode: str, widths: tuple[int, ...]) -> None:
    check_gradients(padded(mode, "float64", widths))


def test_borders_as_attributes() -> None:
    build = Builder(opset=10)
    x = build.input(1, 2, 4, 5, dtype="float64")
    check_gradients(
        build.graph(build.onnx("Pad", x, shape=(1, 2, 6, 7), mode="reflect", pads=(0, 0, 1, 2, 0, 0, 1, 0)))
    )


@pytest.mark.parametrize("widths", [(0, -1, 0, 2, 0, 0, -2, -3), (1, 0, -2, 0, 0, 2, 1, -1)])
def test_zero_padding_and_cropping(widths: tuple[int, ...]) -> None:
    check_gradients(padded("constant", "float64", widths))


def test_borders_with_cropping() -> None:
    with pytest.raises(ModelError, match="'reflect' with negative widths"):
        training_step(padded("reflect", "float32", (0, 0, 0, -1, 0, 0, 0, 1)), Differentiate(inputs=True))


def resized(dtype: str, sizes: tuple[int, int], by_scales: bool = False, opset: int = 19, **given: Any) -> Graph:
    build = Builder(opset=opset)
    x = build.input(*SIZE, dtype=dtype)
    ratios = [made / size for made, size in zip(sizes, SIZE[2:], strict=True)]
    scales = build.constant(np.array([1, 1, *ratios], np.float32)) if by_scales else ""
    beside = ("", scales) if by_scales else ("", "", build.constant(np.array([*SIZE[:2], *sizes], np.int64)))
    return build.graph(build.onnx("Resize", x, *beside, shape=(*SIZE[:2], *sizes), **given))


MODES: list[dict[str, Any]] = [
    {"mode": "nearest"},
    {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    {"mode": "nearest", "nearest_mode": "ceil"},
    {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
    {"mode": "linear"},
    {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
    {"mode": "cubic"},
    {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
    {"mode": "linear", "antialias": 1},
    {"mode": "linear", "antialias": 1, "exclude_outside": 1},
    {"mode": "cubic", "antialias": 1, "cubic_coeff_a": -0.5},
]


@pytest.mark.parametrize("given", MODES, ids=lambda given: "-".join(map(str, given.values())))
@pytest.mark.parametrize("sizes", [(8, 10), (7, 8), (2, 3)])
def test_sizes(given: dict[str, Any], sizes: tuple[int, int]) -> None:
    """Up and down, by integer and other factors."""
    check_gradients(resized("float64", sizes, **given))


def test_scales_of_a_single_axis() -> None:
    build = Builder(opset=18)
    x = build.input(*SIZE, dtype="float64")
    scales = build.constant(np.array([1.75], np.float32))
    check_gradients(build.graph(build.onnx("Resize", x, "", scales, shape=(2, 3, 7, 5), axes=(2,), mode="linear")))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_opset_10(mode: str) -> None:
    """Opset 10 has no coordinate mode; ONNX Runtime uses asymmetric coordinates, which the gradient must match."""
    build = Builder(opset=10)
    x, scales = build.input(*SIZE), build.constant(np.array([1, 1, 2, 1.6], np.float32))
    graph = build.graph(build.onnx("Resize", x, scales, shape=(2, 3, 8, 8), mode=mode))
    step = check_training_form(graph)
    check_turned(step.graph, step.gradients["x"])


def check_turned(step: Graph, gradient: str) -> None:
    """For a linear function without a constant part, the loss is the input times its gradient."""
    rng = np.random.default_rng(4)
    given = {name: rng.standard_normal(step.shape(name)).astype(np.float32) for name in step.inputs}
    made = run_in_ort(step, given)
    total = float((given["x"] * np.asarray(made[gradient], np.float64)).sum())
    assert total == pytest.approx(float(made["loss"]), rel=1e-4)


@pytest.mark.parametrize("sizes", [(8, 10), (7, 8), (2, 3), (1, 1)])
@pytest.mark.parametrize("given", MODES, ids=lambda given: "-".join(map(str, given.values())))
def test_sizes_match_onnx_runtime(given: dict[str, Any], sizes: tuple[int, int]) -> None:
    step = training_step(resized("float32", sizes, by_scales=True, **given), Differentiate(inputs=True))
    check_turned(step.graph, step.gradients["x"])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"keep_aspect_ratio_policy": "not_larger"}, "a kept aspect ratio"),
        ({"coordinate_transformation_mode": "tf_crop_and_resize"}, "that crops"),
    ],
)
def test_untrainable_operators_have_a_reason(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        training_step(resized("float32", (8, 10), **given), Differentiate(inputs=True))
