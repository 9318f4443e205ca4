"""Sums whose terms cancel consist of rounding: their bounds follow from their terms, and still detect errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

import pimflow
from pimflow.frontend import load_model
from pimflow.runtime.execute.ort import random_inputs
from pimflow.verify.cancelling import cancelled_sums
from support.onnx_models import model_of

OFFSETS = np.full((1, 16, 1), 2.0, np.float32)


def bias_gradient() -> onnx.ModelProto:
    """Rows that add up to zero, as softmax's gradient does; so do their products, and their sum is a bias' gradient."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1]),
        helper.make_node("Sub", ["x", "mean"], ["rows"]),
        helper.make_node("Mul", ["rows", "scale"], ["scaled"]),
        helper.make_node("MatMul", ["scaled", "w"], ["products"], "product"),
        helper.make_node("ReduceSum", ["products", "axis"], ["sum"], keepdims=0),
        helper.make_node("Reshape", ["sum", "shape"], ["bias"]),
        helper.make_node("ReduceSum", ["scaled", "columns"], ["others"], keepdims=0),
    ]
    constants = {
        "w": np.random.default_rng(1).standard_normal((64, 32)).astype(np.float32),
        "scale": OFFSETS,
        "axis": np.array([1]),
        "columns": np.array([2]),
        "shape": np.array([32]),
    }
    return model_of(nodes, {"x": (1, 16, 64)}, ["products", "bias", "others"], constants, opset=13)


def test_only_cancelled_sums_are_found() -> None:
    graph = load_model(bias_gradient())
    found = cancelled_sums(graph, random_inputs(graph, 0), graph.outputs)
    assert list(found) == ["bias"]
    assert found["bias"] > 10


def test_they_pass_in_the_units_precision_and_wrong_ones_do_not() -> None:
    compiled = pimflow.compile(bias_gradient(), policy="pim", use_cache=False)
    assert compiled.graph.node("product").device == "pim"
    result = compiled.verify(pim="values")
    assert result.passed, result.text()
    assert any(note.startswith("output bias is at most") for note in result.notes), result.notes
    (name,) = [name for name, array in compiled.graph.constants.items() if np.array_equal(array, OFFSETS)]
    one_off = OFFSETS.copy()
    one_off[0, 3] = 2.05
    wrong = compiled.graph.replace(constants={**compiled.graph.constants, name: one_off})
    checks = {check.name: check for check in replace(compiled, graph=wrong).verify(pim="values").outputs}
    assert not checks["bias"].passed
