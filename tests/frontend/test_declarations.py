"""Contradictory shapes and types: an error names the node, the value, and both declarations."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import pimflow
from pimflow.errors import ModelError
from pimflow.frontend import load_model
from pimflow.ir import Array
from support.onnx_models import model_of, run_plain, single

INFO = helper.make_tensor_value_info
X = np.ones((2, 3), np.float32)


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def chain(info: onnx.ValueInfoProto) -> onnx.ModelProto:
    """y = Neg(Relu(x)), x float32[2, 3], with a declaration of the value in between."""
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="r"), helper.make_node("Neg", ["a"], ["y"], name="n")]
    model = model_of(nodes, {"x": (2, 3)})
    model.graph.value_info.append(info)
    return with_result(model)


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (INFO("a", TensorProto.INT64, (2, 3)), "int64[2, 3]"),
        (INFO("a", TensorProto.UNDEFINED, (2, 3)), "no element type[2, 3]"),
    ],
)
def test_a_contradictory_declaration_is_refused(info: onnx.ValueInfoProto, words: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(chain(info))
    assert f"the value 'a' is declared as {words}, node 'r' (Relu) makes float32[2, 3]" in str(caught.value)


@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 1)])
def test_a_wrong_shape_that_onnx_runtime_ignores_is_ignored(shape: tuple[int, ...]) -> None:
    model = chain(INFO("a", TensorProto.FLOAT, shape))
    np.testing.assert_array_equal(run_plain(model, {"x": X})["y"], -X)
    assert load_model(model).shape("a") == (2, 3)


def test_an_initialiser_that_contradicts_its_input() -> None:
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], {"x": (2, 3), "w": (3, 3)})
    model.graph.initializer.append(numpy_helper.from_array(ones(3), "w"))
    with pytest.raises(ModelError) as caught:
        load_model(with_result(model))
    assert "the input 'w' is declared as float32[3, 3], its initialiser is float32[3]" in str(caught.value)


UNFIT: dict[str, tuple[str, tuple[int, ...], list[Array | None], dict[str, Any]]] = {
    "channels": ("Conv", (1, 3, 8, 8), [ones(4, 5, 3, 3)], {}),
    "bias": ("Conv", (1, 3, 8, 8), [ones(8, 3, 3, 3), ones(9)], {}),
    "bias of a sequence": ("Conv", (1, 3, 8), [ones(8, 3, 3), ones(7)], {}),
    "transposed bias": ("ConvTranspose", (1, 4, 8, 8), [ones(4, 3, 3, 3), ones(3)], {"group": 2}),
    "kernel": ("Conv", (1, 3, 8, 8), [ones(8, 3, 3, 3)], {"kernel_shape": [3, 2]}),
    "kernel's count": ("Conv", (1, 3, 8, 8), [ones(8, 3, 3, 3)], {"kernel_shape": [3]}),
    "strides' count": ("Conv", (1, 3, 8, 8), [ones(8, 3, 3, 3)], {"strides": [1, 1, 1]}),
    "pads' count": ("Conv", (1, 3, 8, 8), [ones(8, 3, 3, 3)], {"pads": [1, 1]}),
    "ranks": ("Conv", (1, 3, 8, 8), [ones(8, 3, 3)], {}),
    "groups": ("Conv", (1, 4, 8, 8), [ones(3, 2, 3, 3)], {"group": 2}),
    "no window fits": ("Conv", (1, 3, 2, 2), [ones(8, 3, 5, 5)], {}),
    "pool's strides": ("MaxPool", (1, 3, 4, 4), [], {"kernel_shape": [2, 2], "strides": [1]}),
    "gemm's inner size": ("Gemm", (2, 4), [ones(5, 3)], {}),
    "gemm's bias": ("Gemm", (2, 4), [ones(4, 3), ones(7)], {}),
    "matmul": ("MatMul", (2, 4), [ones(5, 3)], {}),
    "broadcast": ("Add", (2, 4), [ones(2, 3)], {}),
    "statistics": ("BatchNormalization", (1, 3, 4, 4), [ones(4)] * 4, {}),
    "elements": ("Reshape", (2, 4), [np.array([3, 3])], {}),
    "permutation": ("Transpose", (1, 3, 4, 4), [], {"perm": [0, 1, 2]}),
    "slice's axis": ("Slice", (2, 4), [np.array([0]), np.array([1]), np.array([9])], {}),
    "widths": ("Pad", (2, 4), [np.array([0, 1, 1])], {}),
    "flatten's axis": ("Flatten", (2, 4), [], {"axis": 7}),
    "gather's axis": ("Gather", (2, 4), [np.array([0])], {"axis": 3}),
    "expand": ("Expand", (2, 4), [np.array([3, 4])], {}),
    "split": ("Split", (2, 4), [np.array([1, 2])], {}),
    "concat": ("Concat", (2, 4), [ones(2, 5)], {"axis": 0}),
    "concat's axis": ("Concat", (2, 4), [ones(2, 4)], {"axis": 5}),
}


@pytest.mark.parametrize("what", list(UNFIT))
def test_operands_that_do_not_fit(what: str) -> None:
    kind, shape, constants, attributes = UNFIT[what]
    model = with_result(single(kind, shape, constants, **attributes))
    model.graph.node[0].name = "n"
    with pytest.raises(ModelError) as caught:
        load_model(model)
    message = str(caught.value)
    reads = [
        f"'x' float32{list(shape)}",
        *(f"'c{i}' {c.dtype}{list(c.shape)}" for i, c in enumerate(constants) if c is not None),
    ]
    assert message.startswith(f"node 'n' ({kind}) cannot run: ")
    assert message.endswith(f"; it reads {', '.join(reads)}")


def with_result(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a rank for the output: otherwise the checker fails first, with ONNX Runtime's own message."""
    for dim in ("rows", "columns"):
        model.graph.output[0].type.tensor_type.shape.dim.add(dim_param=dim)
    return model


def test_contradictions_that_need_known_shapes_are_found() -> None:
    """ONNX Runtime does not compute the Reshape's sizes when it loads the model, so it finds nothing wrong."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Reshape", ["w", "s"], ["v"]),
        helper.make_node("Gemm", ["v", "m"], ["y"], name="n"),
    ]
    model = model_of(nodes, {"x": (2, 4)}, constants={"w": ones(8), "m": ones(5, 3)})
    with pytest.raises(ModelError, match=r"node 'n' \(Gemm\) cannot run: .*4 and 5 differ"):
        load_model(with_result(model))


def test_a_branch_that_is_never_taken_may_be_invalid() -> None:
    convolve = helper.make_node("Conv", ["x", "w", "b"], ["a"])
    wrong = helper.make_graph([convolve], "then", [], [INFO("a", 1, None)])
    right = helper.make_graph([helper.make_node("Relu", ["x"], ["r"])], "else", [], [INFO("r", 1, None)])
    nodes = [helper.make_node("If", ["p"], ["y"], then_branch=wrong, else_branch=right)]
    model = model_of(nodes, {"x": (1, 3, 8, 8), "p": ()}, constants={"w": ones(8, 3, 3, 3), "b": ones(9)})
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.BOOL
    assert [node.kind for node in load_model(model).nodes] == ["If"]
    assert pimflow.compile(model, policy="gpu", use_cache=False).graph.nodes


def test_a_range_of_one_element_tensors_is_folded() -> None:
    """ONNX Runtime accepts one-dimensional operands if they are computed, but not if they are constants."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], end=1),
        helper.make_node("Mul", ["s", "zero"], ["start"]),
        helper.make_node("Add", ["start", "one"], ["step"]),
        helper.make_node("Range", ["start", "s", "step"], ["r"]),
        helper.make_node("Cast", ["r"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["f", "x"], ["y"]),
    ]
    model = model_of(nodes, {"x": ("N", 3)}, constants={"zero": np.array([0]), "one": np.array([1])})
    np.testing.assert_array_equal(run_plain(model, {"x": X})["y"], X[1])
    assert load_model(model, {"N": 2}).shape("y") == (3,)
    assert pimflow.compile(model, shapes={"N": 2}, policy="gpu", use_cache=False).run({"x": X})["y"].shape == (3,)


def test_shapes_of_trees_follow_from_running_them_not_from_declarations() -> None:
    """LightGBM's converter declares one label, whatever the batch."""
    trees: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [1, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "class_treeids": [0, 0],
        "class_nodeids": [1, 2],
        "class_ids": [0, 1],
        "class_weights": [1.0, 1.0],
        "classlabels_int64s": [0, 1],
    }
    nodes = [
        helper.make_node("TreeEnsembleClassifier", ["x"], ["picked", "p"], domain="ai.onnx.ml", **trees),
        helper.make_node("Cast", ["picked"], ["label"], to=TensorProto.INT64),
    ]
    model = model_of(nodes, {"x": (8, 3)}, ["p"], opset=9, domains={"ai.onnx.ml": 1})
    model.graph.output.append(INFO("label", TensorProto.INT64, (1,)))
    compiled = pimflow.compile(model, use_cache=False)
    assert (compiled.graph.shape("label"), compiled.graph.shape("p")) == ((8,), (8, 2))
    assert compiled.verify(pim="values").passed
