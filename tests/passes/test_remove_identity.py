"""Nodes that return their input are removed; those that only look like it stay."""

from __future__ import annotations

import numpy as np
import pytest

from pimflow.ir import Builder, Concat, Conv2d, OnnxOp, Pad, Reshape, Slice, Transpose
from pimflow.passes import RemoveIdentity
from support.passes import kinds, run_pass
from support.values import assert_same_values


def test_every_kind_of_identity_is_removed() -> None:
    build = Builder()
    x = build.relu(build.input(2, 3, 4, 5))
    x = build.onnx("Identity", x)
    x = build.op(Reshape((2, 3, 4, 5)), x)
    x = build.op(Transpose((0, 1, 2, 3)), x)
    x = build.op(Slice(2, 0, 4), x)
    x = build.op(Pad((0,) * 4, (0,) * 4), x)
    x = build.op(Concat(1), x)
    x = build.onnx("Cast", x, to=1)
    graph = build.graph(build.sigmoid(x))
    result = run_pass(RemoveIdentity(), graph)
    assert kinds(result.graph) == ["Relu", "Sigmoid"]
    assert_same_values(graph, result.graph)


def test_lookalikes_of_identities_stay() -> None:
    build = Builder()
    x = build.input(2, 2, 4, 4)
    x = build.op(Transpose((0, 1, 3, 2)), x)
    x = build.op(Slice(2, 0, 3), x)
    x = build.op(Reshape((4, 3, 4)), x)
    x = build.op(Pad((0, 0, 0), (0, 0, 1)), x)
    x = build.onnx("Identity", x, domain="elsewhere")
    graph = build.graph(x)
    assert not run_pass(RemoveIdentity(), graph).changed


def test_identities_that_only_name_outputs() -> None:
    build = Builder()
    x = build.input(2, 3)
    same = build.onnx("Identity", x, name="same")
    made = build.relu(build.add(x, build.weights(3)))
    one = build.onnx("Identity", made, name="one")
    two = build.onnx("Identity", one, name="two")
    graph = build.graph(same, one, two, build.sigmoid(two))
    result = run_pass(RemoveIdentity(), graph)
    assert kinds(result.graph) == ["Identity", "Add", "Relu", "Identity", "Sigmoid"]
    assert_same_values(graph, result.graph)
    again = RemoveIdentity().run(result.graph)
    assert not again.changed
    assert len(again.notes) == 2


def test_shared_initializers_are_shared_directly() -> None:
    build = Builder()
    bias = build.onnx("Identity", build.weights(4))
    x = build.input(1, 4, 6, 5)
    graph = build.graph(build.op(Conv2d((1, 1)), x, build.weights(4, 4, 1, 1), bias, name="conv"))
    result = run_pass(RemoveIdentity(), graph)
    assert result.graph.node("conv").inputs[2] in result.graph.constants
    assert_same_values(graph, result.graph)


@pytest.mark.parametrize(
    ("inputs", "mask_is_read", "reason"),
    [
        ((), True, "its mask is read"),
        (("", "training"), False, "it is, or may be, in training mode"),
        (("", "on"), False, "it is, or may be, in training mode"),
    ],
    ids=["mask", "may be training", "is training"],
)
def test_dropout_that_may_have_an_effect_stays(inputs: tuple[str, ...], mask_is_read: bool, reason: str) -> None:
    build = Builder()
    x = build.input(2, 3)
    build.constant(np.array(True), "on")
    build.input(name="training", dtype="bool")
    types = [((2, 3), "float32"), ((2, 3), "bool")]
    y, *mask = build.node(OnnxOp("Dropout"), (x, *inputs), types if mask_is_read else types[:1], name="d")
    graph = build.graph(build.relu(y), *mask)
    result = RemoveIdentity().run(graph)
    assert not result.changed
    assert result.notes == (f"d: {reason}",)


def test_inactive_dropout_is_removed() -> None:
    build = Builder()
    x = build.input(2, 3)
    off = build.constant(np.array(False))
    y = build.onnx("Dropout", x, build.weights(), off)
    graph = build.graph(build.relu(y))
    result = run_pass(RemoveIdentity(), graph)
    assert kinds(result.graph) == ["Relu"]
    assert_same_values(graph, result.graph)
