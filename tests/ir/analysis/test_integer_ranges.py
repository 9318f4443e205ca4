"""Ranges of integers that become indices, derived from the tables that they index."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from pimflow.frontend import load_model
from pimflow.ir import Array
from pimflow.ir.analysis.integer_ranges import UNLIMITED, integer_ranges
from support.onnx_models import model_of

TABLE = np.ones((50, 4), np.float32)
TO_FLOAT = helper.make_node("Cast", ["m"], ["y"], to=TensorProto.FLOAT)
NODES = {
    "as it is": ([helper.make_node("Gather", ["t", "x"], ["y"])], (0, 49)),
    "another axis": ([helper.make_node("Gather", ["t", "x"], ["y"], axis=1)], (0, 3)),
    "moved": (
        [
            helper.make_node("Reshape", ["x", "flat"], ["a"]),
            helper.make_node("Cast", ["a"], ["b"], to=TensorProto.INT32),
            helper.make_node("Gather", ["t", "b"], ["y"]),
        ],
        (0, 49),
    ),
    "shifted": (
        [
            helper.make_node("Add", ["x", "two"], ["a"]),
            helper.make_node("Mul", ["a", "two"], ["b"]),
            helper.make_node("Sub", ["b", "two"], ["c"]),
            helper.make_node("Gather", ["t", "c"], ["y"]),
        ],
        (-1, 23),  # 2 (x + 2) - 2 is from 0 to 49
    ),
    "two tables": (
        [
            helper.make_node("Gather", ["t", "x"], ["a"]),
            helper.make_node("Gather", ["short", "x"], ["b"]),
            helper.make_node("Add", ["a", "b"], ["y"]),
        ],
        (0, 6),
    ),
    "a sum": ([helper.make_node("Add", ["x", "x"], ["a"]), helper.make_node("Gather", ["t", "a"], ["y"])], (0, 24)),
    "chosen": (
        [
            helper.make_node("Less", ["x", "two"], ["p"]),
            helper.make_node("Where", ["p", "x", "two"], ["a"]),
            helper.make_node("Gather", ["t", "a"], ["y"]),
        ],
        (0, 49),
    ),
    "elements": ([helper.make_node("GatherElements", ["t", "x"], ["y"], axis=1)], (0, 3)),
    "points": ([helper.make_node("GatherND", ["t", "x"], ["y"])], (0, 3)),
    "a divisor": ([helper.make_node("Mod", ["two", "x"], ["m"]), TO_FLOAT], (1, UNLIMITED)),
    "a divisor that is an index": (
        [
            helper.make_node("Div", ["two", "x"], ["m"]),
            helper.make_node("Add", ["m", "x"], ["a"]),
            helper.make_node("Gather", ["t", "x"], ["y"]),
        ],
        (1, 49),
    ),
    "a sum that divides": (
        [
            helper.make_node("Add", ["x", "two"], ["a"]),
            helper.make_node("Div", ["x", "a"], ["m"]),
            TO_FLOAT,
        ],
        (-1, UNLIMITED - 2),
    ),
    "one of many": ([helper.make_node("OneHot", ["x", "depth", "values"], ["y"])], (0, 8)),
}


@pytest.mark.parametrize("what", list(NODES))
def test_range_of_an_index(what: str) -> None:
    nodes, want = NODES[what]
    constants: dict[str, Array] = {
        "t": TABLE,
        "short": TABLE[:7],
        "two": np.array(2),
        "flat": np.array([6]),
        "depth": np.array(9),
        "values": np.array([0, 1]),
    }
    read = {name for node in nodes for name in node.input}
    model = model_of(nodes, {"x": (3, 2)}, constants={name: constants[name] for name in read & constants.keys()})
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    if what == "one of many":
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    assert integer_ranges(load_model(model))["x"] == want


def test_other_integers_have_no_range() -> None:
    model = model_of([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], {"x": (3, 2)})
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    assert "x" not in integer_ranges(load_model(model))
