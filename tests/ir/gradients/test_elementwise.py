"""Gradients of elementwise ops."""

from __future__ import annotations

import numpy as np
import pytest

from pimflow.frontend.convert.elementwise import ELEMENTWISE
from pimflow.ir import AttributeValue, Builder, Elementwise
from pimflow.ir.gradients.elementwise import SEVERAL, STEPS, UNARY
from support.gradients import check_gradients

OTHERS = {"BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"}
"""Ops on integers, or whose gradient nobody trains with."""
ATTRIBUTES: dict[str, dict[str, AttributeValue]] = {
    "LeakyRelu": {"alpha": 0.3},
    "ThresholdedRelu": {"alpha": 0.4},
    "Elu": {"alpha": 1.5},
    "Celu": {"alpha": 1.5},
    "Swish": {"alpha": 1.5},
    "HardSigmoid": {"alpha": 0.9, "beta": 0.4},
    "Clip": {"min": -0.5, "max": 0.4},
}
POSITIVE = {"Log", "Sqrt", "Acosh"}


def test_every_elementwise_operator_has_a_rule_or_is_known_to_have_none() -> None:
    known = {*UNARY, *SEVERAL, *STEPS}
    assert {*ELEMENTWISE, "Clip", "Sum"} - known == OTHERS
    assert not known & OTHERS


@pytest.mark.parametrize("kind", sorted(UNARY))
def test_functions_of_one_input(kind: str) -> None:
    build = Builder(opset=24 if kind == "Swish" else 20)
    x = build.input(3, 5, dtype="float64")
    graph = build.graph(build.op(Elementwise(kind, tuple(sorted(ATTRIBUTES.get(kind, {}).items()))), x))
    values = np.random.default_rng(1).uniform(0.1, 0.9, (3, 5)) * (1 if kind in POSITIVE else 1.0)
    signs = 1 if kind in POSITIVE else np.random.default_rng(2).choice((-1, 1), (3, 5))
    shift = 1.0 if kind == "Acosh" else 0.0
    check_gradients(graph, {"x": values * signs + shift})


@pytest.mark.parametrize("computed", [(1,), (2,), (1, 2)])
def test_a_clip_between_bounds_that_are_computed(computed: tuple[int, ...]) -> None:
    """As for decibels limited to 80 below the maximum."""
    build = Builder(opset=20)
    x = build.input(3, 5, dtype="float64")
    mean = build.onnx("ReduceMean", x, shape=(), keepdims=0)
    bounds = {1: build.elementwise("Neg", mean), 2: mean}
    inputs = [x, *(bounds[position] if position in computed else "" for position in (1, 2))]
    graph = build.graph(build.onnx("Clip", *inputs, shape=(3, 5)))
    check_gradients(graph, {"x": np.random.default_rng(3).standard_normal((3, 5)) + 0.7})


@pytest.mark.parametrize("kind", ["HardSwish", "Relu", "Softplus"])
def test_far_from_zero(kind: str) -> None:
    build = Builder(opset=20)
    graph = build.graph(build.elementwise(kind, build.input(4, dtype="float64")))
    check_gradients(graph, {"x": np.array([-4.0, -2.0, 2.0, 4.0])})


def test_the_other_gelu() -> None:
    build = Builder(opset=20)
    graph = build.graph(build.elementwise("Gelu", build.input(3, 5, dtype="float64"), approximate="tanh"))
    check_gradients(graph)


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div", "Pow", "PRelu", "Min", "Max", "Mean", "Sum"])
@pytest.mark.parametrize(("left", "right"), [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (3, 1)), ((2, 3, 4), ())])
def test_two_inputs_that_broadcast(kind: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    build = Builder()
    a, b = build.input(*left, name="a", dtype="float64"), build.input(*right, name="b", dtype="float64")
    graph = build.graph(build.elementwise(kind, a, b))
    rng = np.random.default_rng(3)
    check_gradients(graph, {"a": rng.uniform(0.3, 2, left)} if kind == "Pow" else None)


@pytest.mark.parametrize(("left", "right"), [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 3), ())])
def test_remainders_of_floats(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """With either sign, between two jumps."""
    build, rng = Builder(), np.random.default_rng(3)
    a, b = build.input(*left, name="a", dtype="float64"), build.input(*right, name="b", dtype="float64")
    divisor = rng.uniform(0.5, 2, right)
    dividend = divisor * (rng.integers(-3, 4, left) + rng.uniform(0.2, 0.8, left))
    check_gradients(build.graph(build.elementwise("Mod", a, b, fmod=1)), {"a": dividend, "b": np.asarray(divisor)})


def test_broadcasting_on_the_left() -> None:
    build = Builder()
    a, b = build.input(3, 1, name="a", dtype="float64"), build.input(2, 1, 4, name="b", dtype="float64")
    check_gradients(build.graph(build.mul(a, b)))


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0, 0.5])
def test_a_constant_power(power: float) -> None:
    build = Builder()
    x = build.input(3, 4, dtype="float64")
    graph = build.graph(build.elementwise("Pow", x, build.constant(np.array(power))))
    check_gradients(graph, {"x": np.random.default_rng(0).uniform(0.3, 2, (3, 4))})


def test_three_inputs() -> None:
    build = Builder()
    names = [build.input(2, 3, name=name, dtype="float64") for name in "abc"]
    check_gradients(build.graph(build.elementwise("Max", *names)))


def test_a_choice() -> None:
    build = Builder()
    a, b = build.input(2, 3, name="a", dtype="float64"), build.input(3, name="b", dtype="float64")
    check_gradients(build.graph(build.elementwise("Where", build.elementwise("Greater", a, b), a, b)))


def test_step_functions_have_zero_gradient() -> None:
    build = Builder()
    x = build.input(3, 5, dtype="float64")
    check_gradients(build.graph(build.add(build.elementwise("Sign", x), build.tanh(x))))
