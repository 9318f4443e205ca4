"""Gradients of deformable convolutions: with respect to the map, the weights, the offsets, the masks and the bias."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pimflow.ir import Builder, Graph
from pimflow.passes.differentiate import Differentiate, training_step
from support.gradients import check_gradients


def deformed(masked: bool = True, bias: bool = True, opset: int = 19, **given: Any) -> Graph:
    """Two images of four channels; six filters of 2 x 3."""
    build = Builder(opset=opset)
    parts, groups = given.get("offset_group", 1), given.get("group", 1)
    strides, dilations = given.get("strides", (1, 1)), given.get("dilations", (1, 1))
    pads, kernel, sizes = given.get("pads", (0, 0, 0, 0)), (2, 3), (5, 6)
    outputs = tuple(
        (sizes[axis] + pads[axis] + pads[axis + 2] - (kernel[axis] - 1) * dilations[axis] - 1) // strides[axis] + 1
        for axis in range(2)
    )

    def operand(name: str, *shape: int) -> str:
        return build.input(*shape, name=name, dtype="float64")

    inputs = [operand("x", 2, 4, *sizes), operand("w", 6, 4 // groups, *kernel)]
    inputs += [operand("offsets", 2, parts * 2 * 6, *outputs)]
    inputs += [operand("b", 6) if bias else "", operand("masks", 2, parts * 6, *outputs) if masked else ""]
    return build.graph(build.onnx("DeformConv", *inputs, shape=(2, 6, *outputs), kernel_shape=kernel, **given))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"masked": False, "bias": False},
        {"pads": (1, 2, 0, 1), "strides": (2, 1)},
        {"dilations": (2, 2), "pads": (1, 1, 1, 1), "group": 2},
        {"offset_group": 2, "group": 1},
        {"offset_group": 4, "group": 2, "pads": (1, 1, 1, 1), "opset": 22},
        {"offset_group": 2, "bias": False, "masked": False, "strides": (2, 2)},
    ],
)
def test_small_and_large_offsets(given: dict[str, Any]) -> None:
    """Offsets of less than one element, and offsets so large that some positions are outside."""
    graph = deformed(**given)
    check_gradients(graph)
    offsets = np.random.default_rng(5).uniform(-3.0, 3.0, graph.shape("offsets"))
    check_gradients(graph, {"offsets": offsets})


def test_weight_gradients_need_no_gradient_of_the_map() -> None:
    graph = deformed()
    step = training_step(graph, Differentiate(wrt=("w", "b")))
    assert {"w", "b"} == set(step.gradients)
    assert not any(node.kind == "ScatterND" for node in step.graph.nodes)


def test_a_constant_weight_is_a_parameter_and_offsets_are_not() -> None:
    build = Builder(opset=19)
    x, weights = build.input(1, 2, 4, 4), build.constant(np.ones((3, 2, 1, 1), np.float32), name="w")
    offsets = build.constant(np.zeros((1, 2, 4, 4), np.float32), name="offsets")
    graph = build.graph(build.onnx("DeformConv", x, weights, offsets, shape=(1, 3, 4, 4), kernel_shape=(1, 1)))
    assert set(training_step(graph, Differentiate()).gradients) == {"w"}
