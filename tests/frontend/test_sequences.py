"""Elements of sequences, against ONNX Runtime's sequences, and their gradients against differences."""

from __future__ import annotations

import onnx.parser
import pytest

from pimflow.errors import ModelError
from pimflow.frontend import load_with_graph, sequences
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


def collected(body: str, opset: int = 17) -> onnx.ModelProto:
    """What a body computes from x and z, both [3, 7], with some positions and sizes to use."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {opset}]>
        collected (double[3, 7] x, double[3, 7] z, int64 computed) => (double y)
        <int64 first = {{0}}, int64 second = {{1}}, int64 last = {{-1}}, int64 third = {{2}}, int64[2] sizes = {{1, 2}},
         int64[1] one = {{1}}>
        {{ {body} }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


BOTH = "s = SequenceConstruct (x, z)"
BODIES = {
    "constructed": f"{BOTH} y = ConcatFromSequence <axis: int = 1> (s)",
    "stacked": f"{BOTH} y = ConcatFromSequence <axis: int = 1, new_axis: int = 1> (s)",
    "stacked from behind": f"{BOTH} y = ConcatFromSequence <axis: int = -1, new_axis: int = 1> (s)",
    "inserted at the end": f"{BOTH} r = Neg (x) t = SequenceInsert (s, r) y = ConcatFromSequence <axis: int = 0> (t)",
    "inserted at the start": f"{BOTH} r = Neg (x) t = SequenceInsert (s, r, first) y = SequenceAt (t, first)",
    "inserted before the last": f"{BOTH} r = Neg (x) t = SequenceInsert (s, r, last) y = SequenceAt (t, second)",
    "erased at the end": f"{BOTH} t = SequenceErase (s) y = ConcatFromSequence <axis: int = 0> (t)",
    "erased": f"{BOTH} t = SequenceErase (s, first) y = SequenceAt (t, first)",
    "grown from nothing": """e = SequenceEmpty <dtype: int = 11> () s = SequenceInsert (e, x) t = SequenceInsert (s, z)
        y = ConcatFromSequence <axis: int = 0> (t)""",
    "passed on": f"{BOTH} t = Identity (s) y = SequenceAt (t, second)",
    "split and erased": """s = SplitToSequence <axis: int = 0> (x, sizes) t = SequenceErase (s, first)
        r = SequenceInsert (t, z) y = ConcatFromSequence <axis: int = 0> (r)""",
    "split and stacked": """s = SplitToSequence <axis: int = 0, keepdims: int = 0> (x)
        y = ConcatFromSequence <axis: int = 1, new_axis: int = 1> (s)""",
    "counted": f"{BOTH} n = SequenceLength (s) m = Reshape (n, one) t = Concat <axis: int = 0> (m, m) y = Tile (x, t)",
}


@pytest.mark.parametrize("opset", [14, 11])
@pytest.mark.parametrize("what", BODIES)
def test_elements_of_collected_values_are_these(what: str, opset: int) -> None:
    if what == "passed on" and opset < 14:
        pytest.skip("Identity takes no sequences in this opset")
    model = collected(BODIES[what], opset)
    graph = load_with_graph(model, None, None).graph
    assert not any(node.kind in ("SequenceAt", "ConcatFromSequence") for node in graph.nodes)
    inputs = random_inputs(graph, 0)
    expected = run_plain(model, inputs)["y"]
    assert graph.shape("y") == expected.shape
    assert expected.std() > 0.5
    assert_close(run_in_ort(graph, inputs)["y"], expected, 1e-12)


UNKNOWN = {
    "a computed position": f"{BOTH} y = SequenceAt (s, computed)",
    "a computed place to insert": f"{BOTH} t = SequenceInsert (s, x, computed) y = SequenceAt (t, first)",
    "an element that does not exist": f"{BOTH} y = SequenceAt (s, third)",
    "no elements": "s = SequenceEmpty <dtype: int = 11> () y = ConcatFromSequence <axis: int = 0> (s)",
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_other_reads_stay(what: str) -> None:
    graph = load_with_graph(collected(UNKNOWN[what]), None, None).graph
    assert graph.nodes[-1].kind in ("SequenceAt", "ConcatFromSequence")


@pytest.mark.parametrize(
    ("limit", "short", "long"),
    [
        ("MAX_ELEMENTS", "constructed", "inserted at the end"),
        ("MAX_PARTS", "split and erased", "split and stacked"),
    ],
)
def test_long_sequences_stay(limit: str, short: str, long: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take quadratic memory, or a node for every part."""
    monkeypatch.setattr(sequences, limit, 2)
    graphs = [load_with_graph(collected(BODIES[what]), None, None).graph for what in (short, long)]
    assert [graph.nodes[-1].kind for graph in graphs] == ["Concat", "ConcatFromSequence"]
