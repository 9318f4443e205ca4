"""Inputs fixed to a value: constants of the declared type, and the same values as the model fed with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import pimflow
from pimflow.bundle.source import model_source
from pimflow.data import Number
from pimflow.errors import OptionError
from pimflow.frontend import bound_inputs, load_model
from pimflow.frontend.fixing import FixedValues, fixed_arrays
from pimflow.ir import Value
from pimflow.runtime.execute.ort import random_inputs, run_graph
from support.onnx_models import run_plain
from support.passes import kinds
from support.schemas import check


def gated_model() -> onnx.ModelProto:
    """relu(x w) where the rate is 16000, else sigmoid(x w) for every row of two scales."""

    def branch(op: str) -> onnx.GraphProto:
        nodes = [helper.make_node("MatMul", ["x", "w"], [f"{op}_m"]), helper.make_node(op, [f"{op}_m"], [f"{op}_y"])]
        return helper.make_graph(nodes, op, [], [helper.make_tensor_value_info(f"{op}_y", TensorProto.FLOAT, [2, 4])])

    nodes = [
        helper.make_node("Equal", ["rate", "limit"], ["fast"]),
        helper.make_node("If", ["fast"], ["picked"], then_branch=branch("Relu"), else_branch=branch("Sigmoid")),
        helper.make_node("Mul", ["picked", "scales"], ["y"]),
    ]
    arrays = {"w": np.random.default_rng(3).standard_normal((3, 4)).astype(np.float32), "limit": np.array(16000)}
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    declared = {
        "x": (TensorProto.FLOAT, [2, 3]),
        "rate": (TensorProto.INT64, []),
        "scales": (TensorProto.FLOAT, [2, 1]),
    }
    inputs = [helper.make_tensor_value_info(name, *what) for name, what in declared.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])]
    graph = helper.make_graph(nodes, "gated", inputs, outputs, tensors)
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(("rate", "op"), [(16000, "Relu"), (8000, "Sigmoid")])
def test_a_branch_is_chosen_and_values_are_those_of_the_model_that_is_fed_them(rate: int, op: str) -> None:
    model = gated_model()
    graph = load_model(model, fixed={"rate": rate, "scales": (2.0, -0.5)})
    assert graph.inputs == ("x",)
    assert op in kinds(graph)
    assert "If" not in kinds(graph)
    inputs = random_inputs(graph, 5)
    fed = {"rate": np.array(rate), "scales": np.array([[2.0], [-0.5]], np.float32)}
    (expected,) = run_plain(model, inputs | fed).values()
    (found,) = run_graph(graph, inputs).values()
    assert found.std() > 0.1
    assert np.allclose(found, expected, rtol=1e-5)


def test_a_compiled_model_is_verified_against_the_original_with_these_values(tmp_path: Path) -> None:
    compiled = pimflow.compile(gated_model(), fixed={"rate": 16000, "scales": 0.25}, use_cache=False)
    compiled.save(tmp_path / "out")
    again = pimflow.load(tmp_path / "out")
    assert again.options.fixed == {"rate": 16000, "scales": 0.25}
    assert again.verify().passed
    wrong = bound_inputs(model_source(gated_model()).content, None, {}, {"rate": 8000, "scales": 0.25})
    object.__setattr__(again, "_bound", wrong)  # another original, as the model must not be compared with itself
    assert not again.verify().passed


@pytest.mark.parametrize(("floor", "word"), [((0.5, float("-inf")), (0.5, "-inf")), (float("nan"), "nan")])
def test_numbers_that_json_lacks_are_stored_as_words(
    floor: Number | tuple[Number, ...], word: object, tmp_path: Path
) -> None:
    declared = {"x": [3, 2], "floor": [2], "y": [3, 2]}
    x, given, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in declared.items())
    graph = helper.make_graph([helper.make_node("Max", ["x", "floor"], ["y"])], "floored", [x, given], [y])
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
    compiled = pimflow.compile(model, fixed={"floor": floor}, use_cache=False)
    folder = compiled.save(tmp_path / "out")
    check(json.loads((folder / "config.json").read_text()), "config")
    again = pimflow.load(folder)
    assert again.options.fixed == {"floor": word}
    assert again.verify().passed
    assert pimflow.diff(compiled, again).as_json()["options"] == []


@pytest.mark.parametrize(
    ("dtype", "shape", "given", "expected"),
    [
        ("bool", (1,), True, [True]),
        ("bool", (2,), (1, 0), [True, False]),
        ("int64", (), 2**62 + 1, 2**62 + 1),
        ("uint8", (2, 2), 255, [[255, 255], [255, 255]]),
        ("float32", (2, 2), (1, 2, 3, 4.5), [[1, 2], [3, 4.5]]),
        ("float16", (), float("-inf"), -np.inf),
        ("float32", (2,), ("inf", 1), [np.inf, 1]),
        ("int32", (0,), 7, []),
    ],
)
def test_numbers_take_the_declared_shape_and_type(
    dtype: str, shape: tuple[int, ...], given: Number | tuple[Number, ...], expected: Any
) -> None:
    array = fixed_arrays([Value("x", shape, dtype)], {"x": given})["x"]
    assert (array.shape, array.dtype.name) == (shape, dtype)
    np.testing.assert_array_equal(array, np.array(expected, dtype))


@pytest.mark.parametrize(
    ("dtype", "shape", "fixed", "words"),
    [
        ("int64", (), {"rat": 1}, "no input 'rat' that could be fixed; did you mean 'rate'?"),
        ("int64", (), {"rate": 0.5}, "'rate' is int64, which cannot hold 0.5"),
        ("int64", (), {"rate": 2**63}, "is int64, which cannot hold 9223372036854775808"),
        ("int64", (), {"rate": float("nan")}, "which cannot hold nan"),
        ("int64", (), {"rate": float("inf")}, "which cannot hold inf"),
        ("uint8", (), {"rate": -1}, "is uint8, which cannot hold -1"),
        ("bool", (), {"rate": 2}, "is bool, which cannot hold 2"),
        ("float16", (), {"rate": 1e6}, "is float16, which cannot hold 1000000.0"),
        ("float32", (2, 3), {"rate": (1, 2)}, "(2x3) is fixed to 2 numbers, but has 6 elements"),
        ("str", (1,), {"rate": 1}, "only bools, integers and floats can be fixed"),
        ("seq(float32)", None, {"rate": 1}, "only bools, integers and floats can be fixed"),
    ],
)
def test_values_that_an_input_cannot_hold_are_refused(
    dtype: str, shape: tuple[int, ...] | None, fixed: FixedValues, words: str
) -> None:
    with pytest.raises(OptionError) as caught:
        fixed_arrays([Value("rate", shape, dtype)], fixed)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
