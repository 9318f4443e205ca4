"""16-bit graphs in single precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from pimflow.frontend import load_model
from pimflow.onnxio.widening import is_narrow, single_precision, widened
from pimflow.runtime.execute.ort import random_inputs, run_graph
from support.onnx_models import model_of
from support.values import relative_error

HALF = Path(__file__).parent.parent / "data" / "exported" / "half.onnx"


def test_the_same_network_with_more_digits() -> None:
    graph = load_model(HALF)
    assert is_narrow(graph)
    wide = widened(graph)
    assert not is_narrow(wide)
    feeds = random_inputs(graph, 0)
    expected = run_graph(graph, feeds)
    found = run_graph(wide, {name: single_precision(array) for name, array in feeds.items()})
    for name, array in expected.items():
        assert found[name].dtype == np.float32
        assert 0 < relative_error(array, found[name]) < 2e-3


def half_tensor(elements: object) -> TensorProto:
    return numpy_helper.from_array(np.array(elements, np.float16))


def test_types_in_attributes_and_subgraphs() -> None:
    """A Cast and a ConstantOfShape to float16, one of them inside a branch, and tensors of that type."""
    half = TensorProto.FLOAT16
    branches = [
        helper.make_graph(
            [
                helper.make_node(
                    "Constant", [], [f"k{part}"], value=numpy_helper.from_array(np.array(part, np.float16))
                ),
                helper.make_node("Add", ["h", f"k{part}"], [f"r{part}"]),
            ],
            f"branch{part}",
            [],
            [helper.make_tensor_value_info(f"r{part}", half, None)],
        )
        for part in (1, 2)
    ]
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=half),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["f"], value=half_tensor([0.1])),
        helper.make_node("Mul", ["c", "f"], ["h"]),
        helper.make_node("ReduceSum", ["x"], ["t"], keepdims=0),
        helper.make_node("Greater", ["t", "zero"], ["above"]),
        helper.make_node("If", ["above"], ["b"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    model = model_of(nodes, {"x": (5, 7)}, ["y"], {"zero": np.zeros((), np.float32)})
    wide = widened(load_model(model))
    assert not is_narrow(wide)
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    expected = x * np.float32(np.float16(0.1)) + (1 if x.sum() > 0 else 2)
    assert relative_error(run_graph(wide, {"x": x})["y"], expected) < 1e-6
