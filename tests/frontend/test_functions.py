"""Local functions, of the model's opset and of others: inlined, with the same values as in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper

from pimflow.errors import ModelError
from pimflow.frontend import load_model
from pimflow.ir import Graph
from pimflow.runtime.execute.ort import run_graph
from support.onnx_models import model_of, run_plain

X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
INFO = helper.make_tensor_value_info


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def function(
    name: str, nodes: Sequence[onnx.NodeProto], opset: int, inputs: str = "x", outputs: str = "y", **more: Any
) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("d", 1)]
    return helper.make_function("d", name, inputs.split(), outputs.split(), nodes, opsets, **more)


def model_with(
    nodes: Sequence[onnx.NodeProto], functions: Sequence[onnx.FunctionProto], opset: int = 17, outputs: str = "y"
) -> onnx.ModelProto:
    model = model_of(nodes, {"x": X.shape}, outputs.split(), opset=opset, domains={"d": 1})
    model.ir_version = 10
    model.functions.extend(functions)
    return model


def same(model: onnx.ModelProto) -> Graph:
    graph = load_model(model)
    want = run_plain(model, {"x": X})
    got = run_graph(graph, {"x": X})
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])
    return graph


BODIES = {
    "activations": [node("Relu", "x", "a"), node("Sigmoid", "a", "y")],
    "movement": [
        node("Transpose", "x", "a", perm=[1, 0]),
        node("Concat", "a a", "b", axis=0),
        node("Transpose", "b", "y"),
    ],
    "products": [node("Transpose", "x", "t"), node("MatMul", "x t", "a"), node("MatMul", "a x", "y")],
    "windows": [
        node("Reshape", "x s", "a"),
        node("MaxPool", "a", "b", kernel_shape=[2, 2]),
        node("AveragePool", "b", "y", kernel_shape=[1, 2]),
    ],
}


@pytest.mark.parametrize(("own", "models"), [(17, 20), (17, 13), (13, 17), (20, 17), (18, 21), (9, 17), (12, 13)])
@pytest.mark.parametrize("what", list(BODIES))
def test_a_function_of_another_opset(what: str, own: int, models: int) -> None:
    shape = node("Constant", "", "s", value=helper.make_tensor("s", TensorProto.INT64, (4,), [1, 1, 4, 3]))
    body = [shape, *BODIES[what]] if what == "windows" else BODIES[what]
    calls = [node("Abs", "x", "p"), node("f", "p", "q", domain="d"), node("Add", "q q", "y")]
    assert same(model_with(calls, [function("f", body, own)], models)).opset[""] == models


def test_operators_whose_meaning_differs_between_opsets_are_refused() -> None:
    """ONNX Runtime uses the meaning in the model's opset, which differs from that in the function's."""
    made = function("f", [node("Softmax", "x", "y")], 12)
    with pytest.raises(ModelError, match=r"the function 'f' is of opset 12 and the model of 13: Softmax has"):
        load_model(model_with([node("f", "x", "y", domain="d")], [made], 13))
    same(model_with([node("f", "x", "y", domain="d")], [function("f", [node("Softmax", "x", "y")], 17)], 13))


def test_a_function_in_a_function_of_a_third_opset() -> None:
    inner = function("inner", [node("Neg", "x", "a"), node("Sub", "x a", "y")], 13)
    outer = function("outer", [node("inner", "x", "a", domain="d"), node("inner", "a", "y", domain="d")], 20)
    calls = [node("outer", "x", "z", domain="d", name="call"), node("Softmax", "z", "y")]
    graph = same(model_with(calls, [inner, outer], 9))
    assert len(set(graph.node_by_name)) == len(graph.nodes) == 5


def test_a_function_whose_body_has_branches() -> None:
    then = helper.make_graph([node("Neg", "t", "m")], "then", [], [INFO("m", 1, None)])
    other = helper.make_graph([node("Exp", "x", "m2")], "else", [], [INFO("m2", 1, None)])
    body = [
        node("Abs", "x", "t"),
        node("ReduceSum", "x", "s", keepdims=0),
        node("Constant", "", "zero", value_float=0.0),
        node("Greater", "s zero", "p"),
        node("If", "p", "y", then_branch=then, else_branch=other),
    ]
    same(model_with([node("f", "x", "a", domain="d"), node("Abs", "a", "y")], [function("f", body, 17)], 13))


def test_omitted_operands_of_a_call() -> None:
    clip = function("clip", [node("Clip", "x low high", "y")], 17, "x low high")
    call = helper.make_node("clip", ["x", "", "top"], ["a"], domain="d")
    same(model_with([node("Constant", "", "top", value_float=0.5), call, node("Abs", "a", "y")], [clip]))


def test_attributes_of_a_call_and_their_defaults() -> None:
    def leaky(name: str) -> onnx.NodeProto:
        made = node("LeakyRelu", "x", "y")
        made.attribute.append(AttributeProto(name="alpha", ref_attr_name=name, type=AttributeProto.FLOAT))
        return made

    given = function("given", [leaky("slope")], 17, attributes=["slope"])
    default = function("default", [leaky("slope")], 17, attribute_protos=[helper.make_attribute("slope", 0.25)])
    calls = [
        node("given", "x", "a", domain="d", slope=0.5),
        node("default", "a", "c", domain="d"),
        node("default", "c", "y", domain="d", slope=0.125),
    ]
    graph = same(model_with(calls, [given, default]))
    slopes = [dict(getattr(n.op, "attributes", ())).get("alpha") for n in graph.nodes]
    assert slopes == [0.5, 0.25, 0.125]


def test_recursive_functions_are_refused() -> None:
    loop = [function("f", [node("g", "x", "y", domain="d")], 17), function("g", [node("f", "x", "y", domain="d")], 17)]
    with pytest.raises(ModelError, match="the function 'f' calls itself"):
        load_model(model_with([node("f", "x", "y", domain="d")], loop))
    with pytest.raises(ModelError, match="the function 'f' calls itself"):
        load_model(model_with([node("Relu", "x", "y")], loop))  # never called
    twice = [function("f0", [node("Relu", "x", "y")], 17)]
    for level in range(1, 40):
        calls = [node(f"f{level - 1}", "x", "a", domain="d"), node(f"f{level - 1}", "a", "y", domain="d")]
        twice.append(function(f"f{level}", calls, 17))
    with pytest.raises(ModelError, match="nodes; the limit is 200000"):
        load_model(model_with([node("f39", "x", "y", domain="d")], twice))
    chain = [function("f0", [node("Relu", "x", "y")], 17)]
    chain += [function(f"f{n}", [node(f"f{n - 1}", "x", "y", domain="d")], 17) for n in range(1, 200)]
    with pytest.raises(ModelError, match="nested deeper than 100"):
        load_model(model_with([node("f199", "x", "y", domain="d")], chain))


def test_a_call_with_too_many_operands() -> None:
    one = function("f", [node("Relu", "x", "y")], 17)
    with pytest.raises(ModelError, match=r"node 'y' \(f\) has 2 inputs, the function 'f' has 1"):
        load_model(model_with([node("f", "x x", "y", domain="d")], [one]))
    with pytest.raises(ModelError, match=r"node 'y' \(f\) has 2 outputs, the function 'f' has 1"):
        load_model(model_with([node("f", "x", "y z", domain="d")], [one]))
    outer = function("g", [node("f", "x x", "y", domain="d")], 17)
    with pytest.raises(ModelError, match="has 2 inputs, the function 'f' has 1"):
        load_model(model_with([node("g", "x", "y", domain="d")], [one, outer]))


def test_errors_of_the_inliner_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(model: onnx.ModelProto) -> onnx.ModelProto:
        raise onnx.checker.ValidationError("no, never")

    monkeypatch.setattr("onnx.inliner.inline_local_functions", fails)
    with pytest.raises(ModelError, match="functions cannot be inlined: no, never"):
        load_model(model_with([node("f", "x", "y", domain="d")], [function("f", [node("Relu", "x", "y")], 17)]))


def test_inlined_names_do_not_collide() -> None:
    made = function("f", [node("Abs", "x", "t"), node("Neg", "t", "y")], 17)
    calls = [node("Relu", "x", "call/t"), node("f", "call/t", "y", domain="d", name="call")]
    model = model_with(calls, [made])
    model.graph.output[0].type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, X.shape))
    assert len(same(model).nodes) == 3
