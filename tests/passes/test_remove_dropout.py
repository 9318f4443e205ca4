"""Dropout goes where it does nothing."""

from __future__ import annotations

import numpy as np
import pytest

from pimflow.ir import Builder, OnnxOp
from pimflow.passes import RemoveDropout
from support.passes import kinds, run_pass
from support.values import assert_same_values


@pytest.mark.parametrize(
    ("inputs", "mask_is_read"),
    [((), True), (("", "training"), False), (("", "on"), False)],
    ids=["mask", "may be training", "is training"],
)
def test_dropout_stays_where_it_may_do_something(inputs: tuple[str, ...], mask_is_read: bool) -> None:
    build = Builder()
    x = build.input(2, 3)
    build.constant(np.array(True), "on")
    build.input(name="training", dtype="bool")
    types = [((2, 3), "float32"), ((2, 3), "bool")]
    y, *mask = build.node(OnnxOp("Dropout"), (x, *inputs), types if mask_is_read else types[:1], name="d")
    graph = build.graph(build.relu(y), *mask)
    result = RemoveDropout().run(graph)
    assert not result.changed
    assert result.notes[0].startswith("d: it")


def test_dropout_that_is_off_goes() -> None:
    build = Builder()
    x = build.input(2, 3)
    off = build.constant(np.array(False))
    y = build.onnx("Dropout", x, build.weights(), off)
    graph = build.graph(build.relu(y))
    result = run_pass(RemoveDropout(), graph)
    assert kinds(result.graph) == ["Relu"]
    assert_same_values(graph, result.graph)
