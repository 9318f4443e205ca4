"""Tensors of every element type survive a round trip bit by bit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from pimflow.frontend import load_model
from pimflow.ir import Graph, Node, OnnxOp, Value
from pimflow.onnxio import to_onnx
from pimflow.runtime.execute.ort import random_inputs, run_graph
from support.onnx_models import model_of, run_plain, single
from support.passes import folded, kinds
from support.values import assert_close

WEIGHTS = np.random.default_rng(0).standard_normal((64, 3, 3, 3)).astype(np.float32)


def small_graph() -> Graph:
    return load_model(single("Conv", (1, 3, 8, 8), [WEIGHTS, WEIGHTS[:, 0, 0, 0].copy()]))


CODES = {
    "bfloat16": "BFLOAT16",
    "float16": "FLOAT16",
    "float64": "DOUBLE",
    "uint8": "UINT8",
    "int64": "INT64",
    "bool": "BOOL",
    "float8_e4m3fn": "FLOAT8E4M3FN",
}


@pytest.mark.parametrize("dtype", CODES)
def test_constants_of_every_type(dtype: str) -> None:
    """Constants survive export and import bit by bit."""
    array = np.arange(6).reshape(2, 3).astype(helper.tensor_dtype_to_np_dtype(getattr(onnx.TensorProto, CODES[dtype])))
    graph = small_graph().replace(
        inputs=(),
        outputs=("y",),
        nodes=[Node(OnnxOp("Identity"), ("c",), ("y",), "n")],
        values={"c": Value("c", (2, 3), dtype), "y": Value("y", (2, 3), dtype)},
        constants={"c": array},
        opset={"": 21},
    )
    again = load_model(to_onnx(graph))
    assert again.value("y") == Value("y", (2, 3), dtype)
    (constant,) = again.constants.values()
    assert constant.dtype == array.dtype
    assert constant.tobytes() == array.tobytes()


@pytest.mark.parametrize("code", ["INT8", "UINT8", "INT4", "UINT4", "FLOAT8E4M3FN"])
def test_quantised_weights_become_constants(code: str) -> None:
    """In QDQ models, a product with dequantised weights is a product with constants."""
    dtype = helper.tensor_dtype_to_np_dtype(getattr(onnx.TensorProto, code))
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    constants = {"q": np.arange(8).reshape(2, 4).astype(dtype), "scale": np.array(0.25, np.float32)}
    model = model_of(nodes, {"x": (3, 2)}, ["y"], constants, 21)
    graph = folded(load_model(model))
    assert kinds(graph) == ["MatMul"]
    np.testing.assert_array_equal(graph.constants["w"], np.arange(8).reshape(2, 4) / 4)
    inputs = random_inputs(graph, 0)
    assert_close(run_graph(graph, inputs, fuse_quantised=False)["y"], run_plain(model, inputs)["y"], 1e-6)
