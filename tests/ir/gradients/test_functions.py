"""Gradients of expanded operators: float64 against differences, float32 against the operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pimflow.ir import Array, Builder, Graph, OnnxOp
from support.gradients import check_gradients, check_training_form, evaluator, run_by_reference
from support.values import run_in_ort

ANGLES = np.random.default_rng(4).uniform(0, 3, (7, 3))


def rotated(build: Builder, dtype: str, shape: tuple[int, ...], **given: Any) -> str:
    cosines, sines = (build.constant(made(ANGLES).astype(dtype)) for made in (np.cos, np.sin))
    places = build.constant(np.array([[0, 3, 6, 1, 2], [5, 5, 4, 0, 1]], np.int64))
    x = build.input(*shape, dtype=dtype)
    return build.onnx("RotaryEmbedding", x, cosines, sines, places, shape=shape, **given)


def rotated_in_order(build: Builder, dtype: str) -> str:
    """One row of angles per position of x in order, one head after the other."""
    angles = ANGLES[:6].reshape(2, 3, 3)
    cosines, sines = (build.constant(made(angles).astype(dtype)) for made in (np.cos, np.sin))
    return build.onnx("RotaryEmbedding", build.input(2, 4, 3, 6, dtype=dtype), cosines, sines, shape=(2, 4, 3, 6))


def grid(build: Builder, dtype: str, sizes: tuple[int, ...], align: int) -> str:
    axes = len(sizes)
    theta, size = build.input(2, axes, axes + 1, dtype=dtype), build.constant(np.array([2, 3, *sizes], np.int64))
    return build.onnx("AffineGrid", theta, size, shape=(2, *sizes, axes), align_corners=align)


def local_norm(build: Builder, dtype: str) -> str:
    shape = (2, 7, 3, 2)
    return build.onnx("LRN", build.input(*shape, dtype=dtype), shape=shape, size=5, alpha=0.5, bias=1.5)


Made = Callable[[Builder, str], str]
FUNCTIONS: dict[str, tuple[Made, int]] = {
    "LRN": (local_norm, 17),
    "one": (lambda b, t: b.onnx("LpNormalization", b.input(3, 5, dtype=t), shape=(3, 5), p=1, axis=0), 17),
    "two": (lambda b, t: b.onnx("LpNormalization", b.input(3, 5, dtype=t), shape=(3, 5)), 17),
    "Shrink": (lambda b, t: b.onnx("Shrink", b.input(4, 9, dtype=t), shape=(4, 9), lambd=0.5, bias=0.25), 17),
    "rotated": (lambda b, t: rotated(b, t, (2, 4, 5, 6)), 23),
    "rotated in order": (rotated_in_order, 23),
    "rotated in part": (lambda b, t: rotated(b, t, (2, 4, 5, 8), rotary_embedding_dim=6), 23),
    "rotated side by side": (lambda b, t: rotated(b, t, (2, 5, 24), num_heads=4, interleaved=1), 23),
    "grid": (lambda b, t: grid(b, t, (4, 5), 0), 20),
    "grid to the corners": (lambda b, t: grid(b, t, (2, 3, 4), 1), 20),
}


def graph(name: str, dtype: str) -> Graph:
    make, opset = FUNCTIONS[name]
    build = Builder(opset=opset)
    return build.graph(make(build, dtype))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_defined_by_others(name: str) -> None:
    check_gradients(graph(name, "float64"))
    check_training_form(graph(name, "float32"), run=run_by_reference if "rotated" in name else run_in_ort)


def test_an_all_zero_input_is_not_divided_by_its_norm() -> None:
    """Its gradient is not divided by it either."""
    zeros: dict[str, Array] = {"x": np.zeros((3, 5), np.float32)}
    step = check_training_form(graph("two", "float32"), zeros)
    dy = {name: np.ones((3, 5), np.float32) for name in step.graph.inputs if name != "x"}
    assert np.isfinite(run_in_ort(step.graph, {**zeros, **dy})[step.gradients["x"]]).all()


Floats = npt.NDArray[np.float64]


def check_formula(graph: Graph, values: Callable[..., Floats]) -> None:
    """Assert that gradients equal differences, and the loss that of a formula of the inputs: not every version of ONNX
    Runtime has these operators."""
    step = check_gradients(graph).graph
    rng = np.random.default_rng(6)
    given: dict[str, Any] = {name: rng.standard_normal(step.shape(name)) for name in step.inputs}
    *inputs, dy = given.values()
    assert evaluator(step)(given)["loss"] == pytest.approx((values(*inputs) * dy).sum(), rel=1e-12)


def test_gates() -> None:
    build = Builder(opset=28)
    a, b = (build.input(3, 4, name=name, dtype="float64") for name in "ab")
    check_formula(build.graph(build.onnx("SwiGLU", a, b, alpha=1.5)), lambda a, b: a / (1 + np.exp(-1.5 * a)) * b)


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("past", [True, False])
def test_causal_convolutions(activation: str, past: bool) -> None:
    """Each channel by itself; the state after the last element is read as well."""

    def values(x: Floats, weights: Floats, bias: Floats, before: Floats | None = None) -> Floats:
        whole = np.concatenate([np.zeros((2, 3, 2)) if before is None else before, x], 2)
        made = bias[:, None] + sum(whole[:, :, tap : tap + 5] * weights[:, 0, tap, None] for tap in range(3))
        made = made / (1 + np.exp(-made)) if activation == "silu" else made
        return np.concatenate([made, whole[:, :, 5:] ** 2], 2)

    build = Builder(opset=27)
    shapes = {"x": (2, 3, 5), "w": (3, 1, 3), "b": (3,), "past": (2, 3, 2)}
    inputs = [
        build.input(*shape, name=name, dtype="float64") for name, shape in shapes.items() if past or name != "past"
    ]
    op = OnnxOp("CausalConvWithState", "", (("activation", activation),))
    y, state = build.node(op, inputs, [((2, 3, 5), "float64"), ((2, 3, 2), "float64")])
    check_formula(build.graph(build.concat(2, y, build.mul(state, state))), values)
