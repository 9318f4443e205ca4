"""Models whose outputs are not plain float tensors: exotic element types, text, sequences, constants, inputs."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from support.onnx_models import model_of

W = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)


def cast_behind_product(code: int) -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Cast", ["a"], ["y"], to=code)]
    return typed(model_of(nodes, {"x": (4, 16)}, ["y"], {"w": W}, opset=21), code)


def typed(model: onnx.ModelProto, code: int) -> onnx.ModelProto:
    for info in model.graph.output:
        info.type.tensor_type.elem_type = code
    return model


def text_model() -> onnx.ModelProto:
    model = typed(model_of([helper.make_node("Identity", ["x"], ["y"])], {"x": (5,)}), TensorProto.STRING)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    return model


def sequence_model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("SequenceConstruct", ["a", "x"], ["s"]),
    ]
    model = model_of(nodes, {"x": (4, 16)}, ["a"], {"w": W})
    model.graph.output.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None))
    return model


def map_model() -> onnx.ModelProto:
    """The form that scikit-learn's classifiers end with: a sequence of maps from labels to probabilities."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["p"]),
        helper.make_node("ZipMap", ["p"], ["y"], domain="ai.onnx.ml", classlabels_int64s=list(range(8))),
    ]
    model = model_of(nodes, {"x": (4, 16)}, ["p", "y"], {"w": W}, domains={"ai.onnx.ml": 1})
    entries = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, ()))
    model.graph.output[1].type.CopyFrom(helper.make_sequence_type_proto(entries))
    return model


def constants_as_outputs() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Identity", ["w"], ["copy"]),
        helper.make_node("Reshape", ["w", "shape"], ["flat"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    shape = np.array([2, -1])
    return model_of(nodes, {"x": (4, 16)}, ["copy", "flat", "y"], {"w": W, "shape": shape})


def input_as_output() -> onnx.ModelProto:
    return model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (4, 16)}, ["x", "y", "y"], {"w": W})


MODELS = {
    "bfloat16": lambda: cast_behind_product(TensorProto.BFLOAT16),
    "float8": lambda: cast_behind_product(TensorProto.FLOAT8E4M3FN),
    "int4": lambda: cast_behind_product(TensorProto.INT4),
    "text": text_model,
    "sequence": sequence_model,
    "maps": map_model,
    "constants": constants_as_outputs,
    "input": input_as_output,
}
