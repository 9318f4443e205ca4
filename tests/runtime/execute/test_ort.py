"""Running graphs with ONNX Runtime, whole and node by node."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from pimflow.errors import InputDataError, ModelError
from pimflow.frontend import load_model
from pimflow.ir import Elementwise, Graph, Node, OnnxOp, Value
from pimflow.runtime.execute.original import run_original
from pimflow.runtime.execute.ort import NodeKernels, OrtRunner, operands, random_inputs, read_inputs, run_graph
from support.light_models import randomised_light_model
from support.onnx_models import model_of, run_plain, single
from support.values import assert_close, relative_error


def chain() -> Graph:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Add", ["b", "z"], ["y"]),
    ]
    w = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    return load_model(model_of(nodes, {"x": (2, 3), "z": (4,)}, ["y"], {"w": w}))


def test_any_value_can_be_fetched() -> None:
    graph = chain()
    inputs = random_inputs(graph, 0)
    product = np.asarray(inputs["x"], np.float32) @ np.asarray(graph.constants["w"], np.float32)
    got = run_graph(graph, inputs, ["b", "a"])
    assert list(got) == ["b", "a"]
    assert_close(got["a"], product, 1e-6)
    assert_close(got["b"], np.maximum(product, 0), 1e-6)
    assert list(run_graph(graph, inputs)) == ["y"]
    with pytest.raises(ModelError, match="'nothing'"):
        run_graph(graph, inputs, ["nothing"])


def test_a_runner_is_used_again() -> None:
    graph = chain()
    runner = OrtRunner(graph, ["a"], threads=1, optimise=False)
    results = [runner.run(random_inputs(graph, seed)) for seed in (0, 1, 0)]
    assert list(results[0]) == ["y", "a"]
    np.testing.assert_array_equal(results[0]["y"], results[2]["y"])
    assert relative_error(results[0]["y"], results[1]["y"]) > 0.1


def test_inputs_that_do_not_fit() -> None:
    graph = chain()
    good = random_inputs(graph, 0)
    for bad, words in (
        ({"x": good["x"]}, "'z'"),
        ({**good, "q": good["x"]}, "'q'"),
        ({**good, "z": np.zeros(5, np.float32)}, "float32[5]"),
        ({**good, "z": np.zeros(4)}, "float64[4]"),
    ):
        with pytest.raises(InputDataError) as caught:
            run_graph(graph, bad)
        assert words in str(caught.value)


def test_random_inputs() -> None:
    dtypes = ("float32", "float16", "float64", "bfloat16", "int64", "uint8", "bool")
    values = [Value(f"v_{dtype}", (3000,), dtype) for dtype in dtypes]
    graph = chain().replace(inputs=[v.name for v in values], values={v.name: v for v in values}, nodes=(), outputs=())
    one, same, other = random_inputs(graph, 1), random_inputs(graph, 1), random_inputs(graph, 2)
    for value in values:
        array = one[value.name]
        assert (array.shape, array.dtype.name) == (value.shape, value.dtype)
        assert array.tobytes() == same[value.name].tobytes() != other[value.name].tobytes()
        numbers = array.astype(np.float64)
        if "float" in value.dtype:
            assert abs(numbers.mean()) < 0.1
            assert 0.9 < numbers.std() < 1.1
        else:
            assert set(numbers) == (set(range(256)) if value.dtype == "uint8" else {0, 1})
    text = Value("s", (40,), "object")
    drawn = random_inputs(graph.replace(inputs=["s"], values={"s": text}), 0)["s"]
    assert drawn.shape == (40,)
    assert set(drawn) == set("0123456789")
    sequence = Value("q", None, "seq(float32)")
    with pytest.raises(InputDataError, match="q"):
        random_inputs(graph.replace(inputs=["q"], values={"q": sequence}), 0)


def test_random_indices_are_from_the_whole_table() -> None:
    model = model_of([helper.make_node("Gather", ["t", "x"], ["y"])], {"x": (4000,)}, constants={"t": np.ones((90, 2))})
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    assert set(random_inputs(load_model(model), 0)["x"].tolist()) == set(range(90))


@pytest.mark.parametrize("op_type", ["Div", "Mod"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_divisors_are_not_zero(op_type: str, dtype: str) -> None:
    """ONNX Runtime 1.23 ends the process if one is."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [helper.make_node(op_type, ["x", "z"], ["y"])]
    graph = load_model(model_of(nodes, {"x": (4000,), "z": (4000,)}, dtype=kind))
    one, other = (run_graph(graph, random_inputs(graph, seed))["y"] for seed in (0, 1))
    assert len(set(one.tolist())) > 1
    assert not np.array_equal(one, other)


def test_sequences_and_optionals_are_inputs() -> None:
    last = model_of([helper.make_node("SequenceAt", ["s", "i"], ["y"])], {"s": None}, constants={"i": np.array(-1)})
    last.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None))
    graph, arrays = load_model(last), [np.zeros((2, 3), np.float32), np.ones((1, 4), np.float32)]
    np.testing.assert_array_equal(run_graph(graph, {"s": arrays})["y"], arrays[1])
    with pytest.raises(InputDataError, match="'s' is of type ndarray, but the model takes a list"):
        run_graph(graph, {"s": arrays[0]})
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, (2,)))
    asks = model_of([helper.make_node("OptionalHasElement", ["o"], ["y"])], {"o": None}, opset=18)
    asks.graph.input[0].CopyFrom(helper.make_value_info("o", kind))
    asks.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.BOOL
    graph = load_model(asks)
    given: list[dict[str, Any]] = [{"o": np.ones(2, np.float32)}, {"o": None}, {}]
    assert [bool(run_graph(graph, feeds)["y"]) for feeds in given] == [True, False, False]


def test_bf16_runs_in_single_precision() -> None:
    """ONNX Runtime has no bf16 convolution for CPUs."""
    w = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(ml_dtypes.bfloat16)
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    model = model_of(nodes, {"x": (1, 3, 8, 8)}, constants={"w": w}, opset=22, dtype=onnx.TensorProto.BFLOAT16)
    graph = load_model(model)
    inputs = random_inputs(graph, 0)
    got = run_graph(graph, inputs)["y"]
    assert got.dtype == inputs["x"].dtype == ml_dtypes.bfloat16
    wide = model_of(nodes, {"x": (1, 3, 8, 8)}, constants={"w": w.astype(np.float32)}, opset=22)
    want = run_plain(wide, {"x": inputs["x"].astype(np.float32)})["y"].astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
    np.testing.assert_array_equal(run_original(model, inputs)["y"].astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_node_by_node_gives_the_whole_models_values(name: str) -> None:
    graph = load_model(randomised_light_model(name, 0))
    inputs = random_inputs(graph, 0)
    kernels = NodeKernels(graph)
    arrays = dict(inputs)
    for node in graph.nodes:
        results = kernels.run(node, [arrays.get(name) for name in node.inputs])
        arrays |= zip(node.outputs, results, strict=True)
    (output,) = graph.outputs
    want = run_graph(graph, inputs)[output]
    assert_close(arrays[output], want)


def test_equal_nodes_share_a_kernel() -> None:
    graph = load_model(randomised_light_model("squeezenet", 0))
    kernels = NodeKernels(graph)
    relus = [node for node in graph.nodes if node.op == Elementwise("Relu")]
    inputs = [np.zeros(graph.shape(node.inputs[0]), np.float32) for node in relus]
    for node, array in zip(relus, inputs, strict=True):
        kernels.run(node, [array])
    assert kernels.count == len({array.shape for array in inputs}) < len(relus)


def test_absent_inputs_constants_and_unused_outputs() -> None:
    nodes = [
        helper.make_node("Resize", ["x", "", "scales"], ["r"], mode="nearest"),
        helper.make_node("LSTM", ["s", "w", "rec", "", "", "h0"], ["", "h"], hidden_size=2),
    ]
    rng = np.random.default_rng(0)
    constants = {
        "scales": np.array([1, 1, 2, 2], np.float32),
        "w": rng.standard_normal((1, 8, 3)).astype(np.float32),
        "rec": rng.standard_normal((1, 8, 2)).astype(np.float32),
    }
    shapes = {"x": (1, 1, 2, 2), "s": (4, 1, 3), "h0": (1, 1, 2)}
    model = model_of(nodes, shapes, ["r", "h"], constants)
    graph = load_model(model)
    assert graph.shape("r") == (1, 1, 4, 4)
    inputs = random_inputs(graph, 0)
    want = run_plain(model, inputs)
    kernels = NodeKernels(graph)
    resize, lstm = graph.nodes
    (got,) = kernels.run(resize, [inputs["x"], None, None])
    np.testing.assert_array_equal(got, want["r"])
    (got,) = kernels.run(lstm, [inputs["s"], None, None, None, None, inputs["h0"]])
    assert_close(got, want["h"], 1e-6)


def test_types_that_onnx_runtime_cannot_hand_over() -> None:
    """bfloat16 values go in and out, although ONNX Runtime maps them to no numpy type."""
    model = single("Cast", (3,), to=onnx.TensorProto.BFLOAT16)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
    graph = load_model(model)
    x = np.array([1, 2.5, -3.25], np.float32)
    got = run_graph(graph, {"x": x})["y"]
    assert got.dtype.name == "bfloat16"
    np.testing.assert_array_equal(got.astype(np.float32), x)
    back = single("Cast", (3,), to=onnx.TensorProto.FLOAT, dtype=onnx.TensorProto.BFLOAT16)
    back.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    np.testing.assert_array_equal(run_graph(load_model(back), {"x": got})["y"], x)


def test_refusals_by_onnx_runtime_are_model_errors() -> None:
    graph = chain()
    broken = graph.replace(nodes=[*graph.nodes[:-1], Node(OnnxOp("NoSuchOp"), ("b",), ("y",), "odd")])
    with pytest.raises(ModelError) as caught:
        run_graph(broken, random_inputs(graph, 0))
    assert "NoSuchOp" in str(caught.value)
    assert "\n" not in str(caught.value)


def with_a_sequence() -> Graph:
    """A sequence of vectors, a tensor that may be absent, and a tensor whose name is like that of an element."""
    names = {"s": "seq(float32)", "o": "optional(float32)", "s[7]": "float32"}
    values = {name: Value(name, (2,) if name == "s[7]" else None, dtype) for name, dtype in names.items()}
    return Graph("g", tuple(names), (), (), values, {}, {"": 17})


def read(tmp_path: Path, **arrays: Any) -> dict[str, Any]:
    np.savez(tmp_path / "in.npz", **arrays)
    return read_inputs(with_a_sequence(), tmp_path / "in.npz")


def test_sequences_in_files_have_numbered_elements(tmp_path: Path) -> None:
    elements = {f"s[{place}]": np.full(place, place) for place in range(11)}
    del elements["s[7]"]
    with pytest.raises(InputDataError, match=r"in.npz has 's\[10\]', but not 's\[7\]'; number elements from 0"):
        read(tmp_path, **elements)
    given = {f"s[{place}]": np.full(place + 1, place) for place in (2, 0, 1)}
    made = read(tmp_path, **given, **{"s[7]": np.ones(2)})
    assert sorted(made) == ["s", "s[7]"], "what is absent is left out"
    assert [element.tolist() for element in made["s"]] == [[0], [1, 1], [2, 2, 2]]


def test_sequences_in_files_are_rows_of_an_array(tmp_path: Path) -> None:
    assert [element.tolist() for element in read(tmp_path, s=np.eye(2))["s"]] == [[1, 0], [0, 1]]
    assert read(tmp_path, s=np.zeros(0))["s"] == []
    assert read(tmp_path, o=np.ones(3))["o"].tolist() == [1, 1, 1]


def test_sequences_in_files_are_given_once(tmp_path: Path) -> None:
    with pytest.raises(InputDataError, match=r"in.npz has both 's' and 's\[0\]'; leave out one of them"):
        read(tmp_path, **{"s": np.eye(2), "s[0]": np.ones(2)})


@pytest.mark.parametrize("name", ["s[01]", "s[-1]", "s[]", "o[0]", "s[0", f"s[{'1' * 5000}]"])
def test_other_names_in_files_are_no_elements(tmp_path: Path, name: str) -> None:
    made = read(tmp_path, **{name: np.ones(2), "s": np.eye(2), "s[7]": np.ones(2)})
    with pytest.raises(InputDataError, match=f"'{re.escape(name)}' is not an input"):
        operands(with_a_sequence(), made)
