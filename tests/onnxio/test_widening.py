"""16-bit graphs in single precision."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import tensor_dtype_to_np_dtype as numpy_type

import pimflow
from pimflow.frontend import load_model
from pimflow.ir import Graph, Node, OnnxOp, OpaqueAttribute, Value
from pimflow.onnxio.widening import is_narrow, single_precision, widened
from pimflow.runtime.execute.ort import random_inputs, run_graph
from support.onnx_models import model_of
from support.values import relative_error

HALF = Path(__file__).parent.parent / "data" / "exported" / "half.onnx"


def test_the_same_network_with_more_digits() -> None:
    graph = load_model(HALF)
    assert is_narrow(graph)
    wide = widened(graph)
    assert not is_narrow(wide)
    feeds = random_inputs(graph, 0)
    expected = run_graph(graph, feeds)
    found = run_graph(wide, {name: single_precision(array) for name, array in feeds.items()})
    for name, array in expected.items():
        assert found[name].dtype == np.float32
        assert 0 < relative_error(array, found[name]) < 2e-3


def half_tensor(elements: object) -> TensorProto:
    return numpy_helper.from_array(np.array(elements, np.float16))


def test_types_in_attributes_and_subgraphs() -> None:
    """A Cast and a ConstantOfShape to float16, one of them inside a branch, and tensors of that type."""
    half = TensorProto.FLOAT16
    branches = [
        helper.make_graph(
            [
                helper.make_node(
                    "Constant", [], [f"k{part}"], value=numpy_helper.from_array(np.array(part, np.float16))
                ),
                helper.make_node("Add", ["h", f"k{part}"], [f"r{part}"]),
            ],
            f"branch{part}",
            [],
            [helper.make_tensor_value_info(f"r{part}", half, None)],
        )
        for part in (1, 2)
    ]
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=half),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["f"], value=half_tensor([0.1])),
        helper.make_node("Mul", ["c", "f"], ["h"]),
        helper.make_node("ReduceSum", ["x"], ["t"], keepdims=0),
        helper.make_node("Greater", ["t", "zero"], ["above"]),
        helper.make_node("If", ["above"], ["b"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    model = model_of(nodes, {"x": (5, 7)}, ["y"], {"zero": np.zeros((), np.float32)})
    wide = widened(load_model(model))
    assert not is_narrow(wide)
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    expected = x * np.float32(np.float16(0.1)) + (1 if x.sum() > 0 else 2)
    assert relative_error(run_graph(wide, {"x": x})["y"], expected) < 1e-6


WEIGHTS = np.random.default_rng(1).standard_normal((8, 3, 3, 3)).astype(np.float32)


def autocast(code: int) -> onnx.ModelProto:
    """A convolution and an activation as exported under autocast: Casts of inputs and weights, no types of results."""
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=code),
        helper.make_node("Cast", ["w"], ["b"], to=code),
        helper.make_node("Conv", ["a", "b"], ["c"]),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT),
    ]
    return model_of(nodes, {"x": (1, 3, 10, 10)}, ["y"], {"w": WEIGHTS}, opset=22)


@pytest.mark.parametrize("code", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_a_model_that_names_its_precision_in_casts_alone(code: int) -> None:
    """ONNX Runtime has no kernel for these in bf16, and only the Casts show that the graph may be widened."""
    graph = load_model(autocast(code))
    untyped = {name: replace(value, dtype="") for name, value in graph.values.items()}
    assert is_narrow(graph.replace(values=untyped))
    compiled = pimflow.compile(autocast(code), policy="pim")
    products = [node for node in compiled.graph.nodes if node.op.is_contraction]
    assert [node.device for node in products] == ["pim"], "its weights are constant"
    folded, expected = compiled.graph.constants[products[0].inputs[1]], WEIGHTS.astype(numpy_type(code))
    assert folded.dtype == expected.dtype
    np.testing.assert_array_equal(folded, expected)
    found = compiled.verify(pim="values")
    assert found.passed
    assert 0 < found.rtol < 0.05


def test_a_type_in_a_branch_makes_a_graph_narrow() -> None:
    values = {name: Value(name, (5,), "float32") for name in "xy"} | {"flag": Value("flag", (), "bool")}
    result = helper.make_tensor_value_info("r", TensorProto.FLOAT, [5])

    def graph_through(code: int) -> Graph:
        there, back = (helper.make_node("Cast", [a], [b], to=to) for a, b, to in (("x", "c", code), ("c", "r", 1)))
        body = helper.make_attribute("then_branch", helper.make_graph([there, back], "body", [], [result]))
        op = OnnxOp("If", "", (("then_branch", OpaqueAttribute(body.SerializeToString())),))
        return Graph("test", ("flag", "x"), ("y",), (Node(op, ("flag",), ("y",), "if"),), values, {})

    assert is_narrow(graph_through(TensorProto.BFLOAT16))
    assert not is_narrow(graph_through(TensorProto.DOUBLE))
