"""Gradients of ops that draw random numbers, given the numbers drawn in the same run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pimflow.ir import Builder, OnnxOp
from pimflow.passes.differentiate import Differentiate, training_step
from support.gradients import Floats
from support.values import run_in_ort

RATIO = np.array(0.25)


def stepped(build: Builder, inputs: dict[str, Any], *seen: str, reads: str = "") -> list[Any]:
    """One run with a random gradient of the result: that gradient, those of x and s, and the values in `seen`."""
    graph = build.graph(reads or seen[0])
    wanted = tuple(name for name in graph.inputs if name in ("x", "s"))
    step = training_step(graph, Differentiate(wrt=wanted)).graph
    (given,) = (name for name in step.inputs if name not in inputs)
    inputs = {**inputs, given: np.random.default_rng(1).standard_normal(step.shape(given))}
    made = run_in_ort(step.replace(outputs=(*step.outputs, *seen)), inputs)
    return [inputs[given], *(made[name] for name in (*step.outputs[1:], *seen))]


def elements(*shape: int) -> Floats:
    return np.random.default_rng(0).uniform(0.5, 2, shape)


@pytest.mark.parametrize("flag", ["constant", "given"])
@pytest.mark.parametrize("ratio", ["default", "constant", "given", "single"])
@pytest.mark.parametrize("mask", [False, True])
def test_dropped_elements_have_no_gradient(flag: str, ratio: str, mask: bool) -> None:
    """y = x times a factor of 0 or 1 / (1 - ratio); the gradient has the same factor in the same run."""
    build = Builder(opset=17)
    inputs: dict[str, Any] = {"x": elements(40, 50)}
    x = build.input(40, 50, dtype="float64")
    share, train = "", build.constant(np.array(True))
    if ratio in ("constant", "single"):
        share = build.constant(RATIO.astype(np.float32))
    if ratio == "given":
        share, inputs["ratio"] = build.input(name="ratio", dtype="float64"), RATIO
    if flag == "given":
        train, inputs["train"] = build.input(name="train", dtype="bool"), np.array(True)
    outputs = [((40, 50), "float64"), ((40, 50), "bool")][: 1 + mask]
    y, *kept = build.node(OnnxOp("Dropout"), (x, share, train), outputs)
    read = build.mul(y, build.onnx("Cast", kept[0], dtype="float64", to=11)) if mask else y
    given, gradient, made = stepped(build, inputs, y, reads=read)
    np.testing.assert_allclose(gradient, given * made / inputs["x"], rtol=1e-12)
    assert 0.2 < np.mean(made == 0) < (0.55 if ratio == "default" else 0.3)


@pytest.mark.parametrize("flag", ["absent", "constant", "given"])
def test_in_inference_nothing_is_dropped(flag: str) -> None:
    build = Builder(opset=17)
    inputs: dict[str, Any] = {"x": elements(4, 5)}
    operands = [build.input(4, 5, dtype="float64"), build.constant(RATIO)]
    if flag == "constant":
        operands.append(build.constant(np.array(False)))
    if flag == "given":
        operands.append(build.input(name="train", dtype="bool"))
        inputs["train"] = np.array(False)
    given, gradient, made = stepped(build, inputs, build.onnx("Dropout", *operands))
    np.testing.assert_array_equal(gradient, given)
    np.testing.assert_array_equal(made, inputs["x"])


@pytest.mark.parametrize("kind", ["RandomNormalLike", "RandomUniformLike"])
def test_noise_is_a_factor_like_any_other(kind: str) -> None:
    """y = x + s noise, as a variational autoencoder samples."""
    build, inputs = Builder(), {"x": elements(4, 5), "s": elements(4, 5)}
    x, s = (build.input(4, 5, name=name, dtype="float64") for name in ("x", "s"))
    noise = build.onnx(kind, x)
    made = stepped(build, inputs, noise, reads=build.add(x, build.mul(s, noise)))
    given, of_x, of_s, drawn = made
    np.testing.assert_array_equal(of_x, given)
    np.testing.assert_allclose(of_s, given * drawn, rtol=1e-12)


def test_what_is_drawn_by_a_probability_has_no_gradient() -> None:
    build, inputs = Builder(opset=15), {"x": np.full((40, 50), 0.5)}
    drawn = build.onnx("Bernoulli", build.input(40, 50, name="x", dtype="float64"))
    made = stepped(build, inputs, drawn)
    assert not made[1].any()
    assert 0.4 < made[2].mean() < 0.6
