"""Ops whose fields no operator of ONNX has are refused with the name of the node."""

from __future__ import annotations

import pytest

from pimflow.errors import GraphError
from pimflow.ir.text import parse_graph
from pimflow.ir.verify import verify_graph

IMAGE = "float32[1, 2, 4, 4]"
WEIGHTS = "const %w = float32[2, 2, 1, 1] [0.0, 0.0, 0.0, 0.0]"


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ('Elementwise(%x) {kind = "Clip", attributes = {max = "six"}}', "Clip: the attribute 'max' is 'six'; it"),
        ('Elementwise(%x) {kind = "LeakyRelu", attributes = {alpha = [0.5]}}', "LeakyRelu: the attribute 'alpha' is"),
        ('Elementwise(%x, %x) {kind = "Mod", attributes = {fmod = 0.5}}', "Mod: the attribute 'fmod' is 0.5; it"),
        ('Elementwise(%x) {kind = "Reluu"}', "Elementwise has no kind 'Reluu'; did you mean 'Relu'?"),
        ('Elementwise(%x) {kind = "Conv"}', "Elementwise has no kind 'Conv'"),
        ('Elementwise(%x) {kind = "Add"}', "Add: needs 2 inputs, has 1"),
        ('Elementwise(%x) {kind = "Where"}', "Where: needs 3 inputs, has 1"),
        ('Elementwise(%x, %x) {kind = "Relu"}', "Relu: needs 1 input, has 2"),
        ("Conv2d(%x, %w) {kernel = [1, 1], pads = [-1, 0, 1, 0]}", "a window has pads (-1, 0, 1, 0), below 0"),
        ("Conv2d(%x, %w) {kernel = [1, 1], groups = 0}", "Conv: has 0 groups; it needs 1 or more"),
        ('Pool2d(%x) {kind = "max", kernel = [1, 1], pads = [0, 1, 0, -1]}', "a window has pads (0, 1, 0, -1), "),
    ],
)
def test_fields_that_no_operator_has_are_refused_by_name(op: str, message: str) -> None:
    text = f"graph @g opset {{ai.onnx = 17}} {{ input %x: {IMAGE} {WEIGHTS} %y = {op} : {IMAGE} @odd output %y }}"
    with pytest.raises(GraphError) as caught:
        verify_graph(parse_graph(text.replace("ai.onnx", '""')))
    assert str(caught.value).startswith(f"node 'odd': {message}")
