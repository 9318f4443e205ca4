"""Loops and Scans as their iterations, against ONNX Runtime's, and their gradients against differences."""

from __future__ import annotations

from collections.abc import Mapping

import onnx.parser
import pytest

import pimflow
from pimflow.errors import ModelError
from pimflow.frontend import load_with_graph, unrolling
from pimflow.ir import Graph
from pimflow.passes.parameters import parameters
from support.gradients import check_gradients, with_inputs
from support.values import assert_same_values

LOOP = """
    h, ys = Loop (trips, yes, x) <body: graph = recurrence (int64 i, bool on, double[3] a)
            => (bool go, double[3] next, double[3] y) <double[3] inner = {1, -2, 3}> {
        part = Gather <axis: int = 0> (xs, i)
        product = MatMul (a, w)
        bias = Constant <value: tensor = double[3] {0.3, 0.2, 0.1}> ()
        total = Sum (product, part, bias)
        scaled = Mul (total, inner)
        next = Tanh (scaled)
        y = Mul (next, part)
        go = Identity (on)
    }>
"""
SCAN = """
    h, ys = Scan <num_scan_inputs: int = 2, scan_input_directions: ints = [1, 0], scan_input_axes: ints = [0, 1],
        scan_output_directions: ints = [1], scan_output_axes: ints = [1],
        body: graph = recurrence (double[3] a, double[3] part, double[2] other) => (double[3] next, double[3] y) {
            product = MatMul (part, w)
            first = Slice (other, zero, one)
            total = Add (product, first)
            next = Add (a, total)
            y = Sin (next)
        }> (x, xs, others)
"""


def model(text: str, replaced: Mapping[str, str] | None = None, opset: int = 17) -> onnx.ModelProto:
    for old, new in (replaced or {}).items():
        assert old in text
        text = text.replace(old, new)
    shape = "double[3, 5]" if "Scan" in text else "double[5, 3]"
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {opset}]>
        iterated (double[3] x, double[5, 3] xs, double[2, 5] others) => (double[3] h, {shape} ys)
        <double[3, 3] w = {{0.1, 0.2, 0.3, -0.4, 0.5, 0.6, 0.7, -0.8, 0.9}}, int64 trips = {{5}},
         bool yes = {{1}}, bool never = {{0}}, int64[1] zero = {{0}}, int64[1] one = {{1}}>
        {{ {text} }}""")


def unrolled(made: onnx.ModelProto) -> Graph:
    return load_with_graph(made, None, None, unroll=True).graph


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("text", [LOOP, SCAN], ids=["loop", "scan"])
def test_iterations_have_the_same_values_and_gradients(text: str, opset: int) -> None:
    made = model(text, opset=opset)
    graph = unrolled(made)
    assert not any(node.kind in ("Loop", "Scan") for node in graph.nodes)
    assert_same_values(load_with_graph(made, None, None).graph, graph, 1e-12)
    if opset >= 13:
        check_gradients(with_inputs(graph))


def test_constants_of_a_body_are_parameters_once() -> None:
    assert parameters(unrolled(model(LOOP))) == ("w", "Loop_0/inner")


def test_what_is_not_unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No iteration at all, and too many nodes."""
    none = unrolled(model(LOOP, {"trips, yes": "trips, never"}))
    assert [node.kind for node in none.nodes] == ["Loop"]
    monkeypatch.setattr(unrolling, "MAX_NODES", 39)
    assert [node.kind for node in unrolled(model(LOOP)).nodes] == ["Loop"]


def single(text: str) -> onnx.ModelProto:
    """The same in single precision."""
    return onnx.parser.parse_model(onnx.printer.to_text(model(text)).replace("double", "float"))


@pytest.mark.parametrize(("text", "count"), [(LOOP, 15), (SCAN, 9)], ids=["loop", "scan"])
def test_train_unrolls(text: str, count: int) -> None:
    assert pimflow.train(single(text), use_cache=False, activations="keep").parameters == count


def test_loops_of_unknown_length_are_not_trained() -> None:
    until = {
        "go = Identity (on)": "largest = ReduceMax <keepdims: int = 0> (y)\n go = Less (largest, bound)",
        "{1, -2, 3}>": "{1, -2, 3}, double bound = {0.9}>",
    }
    with pytest.raises(ModelError, match="Loop has no gradient rule"):
        pimflow.train(model(LOOP, until), use_cache=False)
