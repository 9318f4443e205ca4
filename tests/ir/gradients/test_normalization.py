"""Gradients of normalisations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pimflow.errors import ModelError
from pimflow.ir import BatchNorm, Builder, Graph, OnnxOp
from pimflow.passes.differentiate import Differentiate, training_step
from support.gradients import check_gradients, evaluator


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("shift", [False, True])
def test_layer_normalization(axis: int, shift: bool) -> None:
    build = Builder()
    x, shape = build.input(2, 3, 4, dtype="float64"), (2, 3, 4)[axis:]
    operands = [build.input(*shape, name="scale", dtype="float64")]
    operands += [build.input(*shape, name="shift", dtype="float64")] if shift else []
    check_gradients(build.graph(build.onnx("LayerNormalization", x, *operands, axis=axis, epsilon=0.01)), rtol=1e-5)


def test_rms_normalization() -> None:
    build = Builder(opset=23)
    x, scale = build.input(2, 3, 4, dtype="float64"), build.input(4, name="scale", dtype="float64")
    check_gradients(build.graph(build.onnx("RMSNormalization", x, scale, axis=-1, epsilon=0.01)))


def test_instance_normalization() -> None:
    build = Builder()
    x = build.input(2, 3, 4, 2, dtype="float64")
    vectors = [build.input(3, name=name, dtype="float64") for name in ("scale", "shift")]
    check_gradients(build.graph(build.onnx("InstanceNormalization", x, *vectors, epsilon=0.01)))


@pytest.mark.parametrize(("opset", "vector", "given"), [(18, 2, {}), (21, 6, {"stash_type": 11})])
def test_group_normalization(opset: int, vector: int, given: dict[str, int]) -> None:
    build = Builder(opset=opset)
    x = build.input(2, 6, 2, 2, dtype="float64")
    vectors = [build.input(vector, name=name, dtype="float64") for name in ("scale", "shift")]
    op = OnnxOp("GroupNormalization", "", (*sorted({"epsilon": 0.01, "num_groups": 2, **given}.items()),))
    (made,) = build.node(op, (x, *vectors), [((2, 6, 2, 2), "float64")])
    check_gradients(build.graph(made), rtol=1e-5)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("sizes", [(), (3, 2)])
def test_batch_normalization(frozen: bool, sizes: tuple[int, ...]) -> None:
    build = Builder()
    x = build.input(4, 3, *sizes, dtype="float64")
    vectors = [build.input(3, name=name, dtype="float64") for name in ("scale", "shift")]
    mean, variance = (build.constant(np.array([0.3, 0.5, 0.7])) for _ in range(2))
    graph = build.graph(build.op(BatchNorm(0.01), x, *vectors, mean, variance))
    check_gradients(graph, frozen_statistics=frozen)


def in_training_mode(*read: int) -> Graph:
    build = Builder(opset=15)
    x = build.input(4, 3, 2, dtype="float64")
    vectors = [build.input(3, name=name, dtype="float64") for name in ("scale", "shift")]
    statistics = [build.constant(np.array([0.3, 0.5, 0.7])) for _ in range(2)]
    op = OnnxOp("BatchNormalization", "", (("epsilon", 0.01), ("training_mode", 1)))
    made = build.node(op, (x, *vectors, *statistics), [((4, 3, 2), "float64"), *2 * [((3,), "float64")]])
    return build.graph(*[made[place] for place in (0, *read)])


@pytest.mark.parametrize("frozen", [False, True])
def test_batch_normalization_in_training_mode(frozen: bool) -> None:
    check_gradients(in_training_mode(), frozen_statistics=frozen)


def test_statistics_that_are_read_have_no_gradient() -> None:
    with pytest.raises(ModelError, match="BatchNormalization: its statistics are read"):
        training_step(in_training_mode(1), Differentiate(inputs=True))


@pytest.mark.parametrize("given", [{}, {"axes": (1, -1)}, {"axes": (0, 1, 2, 3)}])
def test_mean_and_variance(given: dict[str, Any]) -> None:
    build = Builder(opset=13)
    x = build.input(3, 2, 4, 3, dtype="float64")
    check_gradients(build.graph(build.onnx("MeanVarianceNormalization", x, **given)))


def test_gradient_of_a_constant_channel() -> None:
    """It is divided by epsilon alone; every element's gradient is its own minus the share of the mean."""
    build = Builder(opset=13)
    x = build.input(1, 1, 2, 2, dtype="float64")
    step = training_step(build.graph(build.onnx("MeanVarianceNormalization", x)), Differentiate(wrt=(x,)))
    given = {name: np.zeros(step.graph.shape(name)) for name in step.graph.inputs}
    coming = np.array([[[[1.0, 2.0], [3.0, 6.0]]]])
    given |= {name: coming for name in given if name != x}
    made = evaluator(step.graph)(given)[step.gradients[x]]
    assert made == pytest.approx((coming - 3) * 1e9)
