"""Writing ONNX: versions, metadata, determinism, weights in a data file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from pimflow.errors import OutputError
from pimflow.frontend import load_model
from pimflow.ir import Concat, Elementwise, Gemm, Graph, GraphEditor, Node, OnnxOp, Reshape, Slice, Value
from pimflow.ir.placement import Placement
from pimflow.onnxio import save_onnx, to_onnx
from pimflow.runtime.execute.ort import random_inputs, run_graph
from support.light_models import randomised_light_model
from support.onnx_models import OPSETS, model_of, run_plain, single
from support.values import assert_close

WEIGHTS = np.random.default_rng(0).standard_normal((64, 3, 3, 3)).astype(np.float32)


def small_graph() -> Graph:
    return load_model(single("Conv", (1, 3, 8, 8), [WEIGHTS, WEIGHTS[:, 0, 0, 0].copy()]))


@pytest.mark.parametrize(("opset", "ir"), [(7, 10), (17, 10), (22, 10), (23, 11), (26, 13)])
def test_versions(opset: int, ir: int) -> None:
    if opset not in OPSETS:
        pytest.skip("ONNX Runtime is older")
    model = to_onnx(load_model(single("Relu", (2, 3), (), opset)))
    assert (model.ir_version, model.opset_import[0].version) == (ir, opset)


def test_shapes_of_all_values_are_written() -> None:
    graph = load_model(randomised_light_model("squeezenet", 0))
    model = to_onnx(graph)
    written = {info.name: info for info in model.graph.value_info}
    made = {name for node in graph.nodes for name in node.outputs} - set(graph.outputs)
    assert set(written) == made
    for name in made:
        dims = tuple(dim.dim_value for dim in written[name].type.tensor_type.shape.dim)
        assert dims == graph.shape(name)


def test_saved_bytes_are_reproducible(tmp_path: Path) -> None:
    graph = small_graph()
    node = replace(graph.nodes[0], placement=Placement("pim"), tags=(("b", "2"), ("a", "1")))
    graph = graph.replace(nodes=[node])
    for name in ("one.onnx", "two.onnx"):
        save_onnx(graph, tmp_path / name)
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"one.onnx", "two.onnx"}


def test_large_weights_go_to_a_data_file(tmp_path: Path) -> None:
    graph = small_graph()
    path = tmp_path / "model.onnx"
    save_onnx(graph, path, single_file_limit_bytes=1000)
    assert {item.name for item in tmp_path.iterdir()} == {"model.onnx", "model.onnx.data"}
    assert path.stat().st_size < 2000
    onnx.checker.check_model(str(path), full_check=True)
    inputs = random_inputs(graph, 0)
    want = run_graph(graph, inputs)["y"]
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, inputs)[0], want)
    again = load_model(path)
    assert isinstance(again.constants["c0"], np.memmap)
    assert again.nodes == graph.nodes
    np.testing.assert_array_equal(run_graph(again, inputs)["y"], want)


def test_an_unwritable_path_is_told(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="nowhere"):
        save_onnx(small_graph(), tmp_path / "nowhere" / "model.onnx")


def rewritten(opset: int) -> Graph:
    """What passes make: splits with a step, a product without C, new shapes, in an opset whose spelling differs."""
    graph = load_model(single("Relu", (4, 6), (), opset))
    edit = GraphEditor(graph)
    even = edit.new_value("even", (4, 3), "float32")
    odd = edit.new_value("odd", (4, 3), "float32")
    weights = edit.new_constant("w", np.arange(9, dtype=np.float32).reshape(3, 3))
    product = edit.new_value("product", (4, 3), "float32")
    clipped = edit.new_value("clipped", (4, 3), "float32")
    both = edit.new_value("both", (8, 3), "float32")
    edit.replace_node(
        graph.nodes[0].name,
        [
            Node(Slice(1, 0, 6, 2), ("x",), (even,), "even"),
            Node(Slice(1, 1, 6, 2), ("x",), (odd,), "odd"),
            Node(Gemm(), (even, weights), (product,), "product"),
            Node(Elementwise("Clip", (("max", 0.5),)), (odd,), (clipped,), "clip"),
            Node(Concat(0), (product, clipped), (both,), "both"),
            Node(Reshape((4, 6)), (both,), ("y",), "y"),
        ],
    )
    return edit.finish()


@pytest.mark.parametrize("opset", OPSETS)
def test_what_passes_make_is_written_in_every_opset(opset: int) -> None:
    graph = rewritten(opset)
    model = to_onnx(graph)
    onnx.checker.check_model(model, full_check=True)
    inputs = random_inputs(graph, 0)
    x = np.asarray(inputs["x"], np.float32)
    product = x[:, ::2] @ np.arange(9, dtype=np.float32).reshape(3, 3)
    want = np.concatenate([product, np.minimum(x[:, 1::2], 0.5)]).reshape(4, 6)
    assert_close(run_plain(model, inputs)["y"], want, 1e-6)


def test_helper_constants_never_take_a_name_in_use() -> None:
    """A Reshape writes its shape as a constant called <node>_shape; here that name is a value already."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r_shape"], name="a"),
        helper.make_node("Flatten", ["r_shape"], ["r_shape_"], name="r"),
        helper.make_node("Flatten", ["r_shape_"], ["y"], name="r_"),
    ]
    model = model_of(nodes, {"x": (2, 3, 4)})
    graph = load_model(model)
    inputs = random_inputs(graph, 0)
    onnx.checker.check_model(to_onnx(graph))
    np.testing.assert_array_equal(run_graph(graph, inputs)["y"], run_plain(model, inputs)["y"])


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
    """Constants survive the way out and in again bit by bit."""
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
    """QDQ models: a product of dequantised weights is a product of constants."""
    dtype = helper.tensor_dtype_to_np_dtype(getattr(onnx.TensorProto, code))
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    constants = {"q": np.arange(8).reshape(2, 4).astype(dtype), "scale": np.array(0.25, np.float32)}
    model = model_of(nodes, {"x": (3, 2)}, ["y"], constants, 21)
    graph = load_model(model)
    assert [node.kind for node in graph.nodes] == ["MatMul"]
    np.testing.assert_array_equal(graph.constants["w"], np.arange(8).reshape(2, 4) / 4)
    inputs = random_inputs(graph, 0)
    assert_close(run_graph(graph, inputs)["y"], run_plain(model, inputs)["y"], 1e-6)
