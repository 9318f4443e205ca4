"""Elements of split values, against ONNX Runtime's sequences, and their gradients against differences."""

from __future__ import annotations

import onnx.parser
import pytest

from pimflow.errors import ModelError
from pimflow.frontend import load_with_graph
from pimflow.runtime.execute.ort import random_inputs
from support.gradients import check_gradients, with_inputs
from support.onnx_models import run_plain
from support.values import assert_close, run_in_ort


def element(split: str, attributes: str = "axis: int = 1", place: int = 1) -> onnx.ModelProto:
    """The sine of the element at `place` of x [3, 7], split along an axis."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        parts (double[3, 7] x, int64[3] computed) => (double[rows, columns] y)
        <double w = {{0.7}}, int64 place = {{{place}}}, int64[3] sizes = {{2, 4, 1}}, int64[2] less = {{2, 4}},
         int64 three = {{3}}>
        {{
            parts = SplitToSequence <{attributes}> (x{split})
            part = SequenceAt (parts, place)
            weighted = Mul (part, w)
            y = Sin (weighted)
        }}""")
    if "keepdims: int = 0" in attributes and not split:
        del model.graph.output[0].type.tensor_type.shape.dim[1]
    if "computed" not in split:
        del model.graph.input[1]
    return model


@pytest.mark.parametrize("place", [0, 1, 2, -1])
@pytest.mark.parametrize(
    ("split", "attributes"),
    [
        (", sizes", "axis: int = 1"),
        (", sizes", "axis: int = -1, keepdims: int = 0"),
        (", three", "axis: int = 1"),
        ("", "axis: int = 0"),
        ("", "axis: int = -1, keepdims: int = 0"),
    ],
)
def test_elements_of_split_values_are_their_parts(split: str, attributes: str, place: int) -> None:
    model = element(split, attributes, place)
    graph = load_with_graph(model, None, None).graph
    assert not any(node.kind == "SequenceAt" for node in graph.nodes)
    inputs = random_inputs(graph, 0)
    expected = run_plain(model, inputs)["y"]
    assert graph.shape("y") == expected.shape
    assert_close(run_in_ort(graph, inputs)["y"], expected, 1e-12)
    check_gradients(with_inputs(graph))


@pytest.mark.parametrize("model", [element(", computed"), element(", sizes", place=3)], ids=["computed", "beyond"])
def test_elements_of_computed_sizes_and_those_that_do_not_exist_stay(model: onnx.ModelProto) -> None:
    graph = load_with_graph(model, None, None).graph
    assert [node.kind for node in graph.nodes] == ["SplitToSequence", "SequenceAt", "Mul", "Sin"]


def test_sizes_that_do_not_add_up_are_an_error() -> None:
    with pytest.raises(ModelError, match="Sum of split values not equal"):
        load_with_graph(element(", less"), None, None)
