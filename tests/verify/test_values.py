"""Values of 16-bit models, one by one: what rounding explains passes, and a percent more does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import pimflow
from pimflow.ir import Array
from support.onnx_models import model_of


def halves(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).uniform(0.5, 1.5, shape).astype(np.float16)


def normed(groups: int) -> onnx.ModelProto:
    """A convolution and a batch norm: what they fold into is rounded once more."""
    constants = {"w": halves(8, 8 // groups, 3, 3) - np.float16(1), **{name: halves(8) for name in "sbmv"}}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], group=groups),
        helper.make_node("BatchNormalization", ["c", *"sbmv"], ["y"]),
    ]
    return model_of(nodes, {"x": (1, 8, 9, 9)}, ["y"], constants, dtype=TensorProto.FLOAT16)


def queried() -> onnx.ModelProto:
    """What is made of constants alone is rounded at every step, in the original as well."""
    nodes = [
        helper.make_node("Exp", ["q"], ["e"]),
        helper.make_node("Mul", ["e", "e"], ["c"]),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    return model_of(nodes, {"x": (4, 48)}, ["y"], {"q": halves(4, 48)}, dtype=TensorProto.FLOAT16)


@pytest.mark.parametrize("model", [normed(1), normed(8), queried()], ids=["conv", "depthwise", "constants"])
def test_constants_that_are_rounded_when_they_are_made(model: onnx.ModelProto) -> None:
    compiled = pimflow.compile(model, policy="gpu", use_cache=False)
    assert len(compiled.graph.nodes) == 1
    result = compiled.verify()
    assert result.passed, result.text()
    ((name, array),) = ((name, array) for name, array in compiled.graph.constants.items() if array.ndim > 1)
    wrong = {**compiled.graph.constants, name: array * np.float16(1.01)}
    off = replace(compiled, graph=compiled.graph.replace(constants=wrong)).verify().values
    assert off is not None
    assert off.wrong
