"""Discrete choices that rounding changes: outputs after them pass with the original's choices; wrong ones fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import pimflow
from pimflow.compiled import CompiledModel
from pimflow.frontend import load_model
from pimflow.ir import OnnxOp
from pimflow.verify.picks import dependent_outputs, shared_picks
from support.onnx_models import model_of


def segmentation() -> onnx.ModelProto:
    """The class of every pixel, from scores whose differences fp16 cannot represent."""
    rng = np.random.default_rng(0)
    alike = rng.standard_normal((1, 32, 1, 1)) + 1e-4 * rng.standard_normal((16, 32, 1, 1))
    nodes = [helper.make_node("Conv", ["x", "w"], ["scores"]), helper.make_node("ArgMax", ["scores"], ["y"], axis=1)]
    model = model_of(nodes, {"x": (1, 32, 12, 12)}, ["y"], {"w": alike.astype(np.float32)})
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    return model


@pytest.fixture(scope="module")
def compiled() -> CompiledModel:
    return pimflow.compile(segmentation(), policy="pim", use_cache=False)


@pytest.mark.parametrize("arena", [False, True])
def test_different_choices_within_rounding_pass(compiled: CompiledModel, arena: bool) -> None:
    result = compiled.verify(pim="values", arena=arena)
    assert result.passed, result.text()
    assert sum("depends on picks that rounding changed" in note for note in result.notes) == 1


def thresholds(kind: str, domain: str = "", **attributes: Any) -> onnx.ModelProto:
    """Steps of scores that are as often below one as above."""
    weights = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node(kind, ["scores"], ["y"], domain=domain, **attributes),
    ]
    return model_of(nodes, {"x": (128, 64)}, ["y"], {"w": weights}, domains={"ai.onnx.ml": 1})


@pytest.mark.parametrize(
    "model", [thresholds("Sign"), thresholds("Binarizer", "ai.onnx.ml", threshold=0.5)], ids=["Sign", "Binarizer"]
)
def test_steps_flipped_by_rounding_pass_and_steps_of_wrong_scores_fail(model: onnx.ModelProto) -> None:
    compiled = pimflow.compile(model, policy="pim", use_cache=False)
    result = compiled.verify(pim="values")
    assert result.passed, result.text()
    assert sum("picks that rounding changed" in note for note in result.notes) == 1
    wrong = {name: array + np.float32(0.01) for name, array in compiled.graph.constants.items()}
    assert not replace(compiled, graph=compiled.graph.replace(constants=wrong)).verify(pim="values").passed


def test_choices_from_wrong_scores_do_not_pass(compiled: CompiledModel) -> None:
    wrong = {name: array * np.float32(1.01) for name, array in compiled.graph.constants.items()}
    off = replace(compiled, graph=compiled.graph.replace(constants=wrong))
    assert not off.verify(pim="values").passed


def test_a_wrong_choice_from_right_scores_does_not_pass(compiled: CompiledModel) -> None:
    nodes = [
        replace(node, op=replace(node.op, op_type="ArgMin")) if isinstance(node.op, OnnxOp) else node
        for node in compiled.graph.nodes
    ]
    assert not replace(compiled, graph=compiled.graph.replace(nodes=nodes)).verify(pim="values").passed


def test_choices_and_values_after_them() -> None:
    """Flags and positions are choices, sizes and sums of integers are not."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Greater", ["x", "least"], ["flags"]),
        helper.make_node("NonZero", ["flags"], ["places"]),
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("TopK", ["x", "k"], ["largest", "columns"]),
    ]
    constants = {"least": np.zeros(1, np.float32), "k": np.array([2])}
    model = model_of(nodes, {"x": (4, 3)}, ["sizes", "places", "y", "columns"], constants)
    for info, code in zip(model.graph.output, (7, 7, 1, 7), strict=True):
        info.type.tensor_type.elem_type = code
    graph = load_model(model)
    assert shared_picks(graph, graph) == {"flags", "largest"}
    assert dependent_outputs(graph, shared_picks(graph, graph)) == {"places", "columns"}
