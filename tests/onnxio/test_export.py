"""Writing ONNX: versions, shapes, and the form that each opset requires."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pimflow.frontend import load_model
from pimflow.frontend.importing import import_node
from pimflow.ir import Concat, Elementwise, Gemm, Graph, GraphEditor, Node, Reshape, Slice, Value
from pimflow.onnxio import to_onnx
from pimflow.runtime.execute.ort import random_inputs, run_graph
from support.light_models import randomised_light_model
from support.onnx_models import OPSETS, model_of, run_plain, single
from support.values import assert_close


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


def rewritten(opset: int) -> Graph:
    """A graph as passes make it: splits with a step, a product without C, new shapes, in an opset with other forms."""
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
def test_rewritten_graphs_are_written_in_every_opset(opset: int) -> None:
    graph = rewritten(opset)
    model = to_onnx(graph)
    onnx.checker.check_model(model, full_check=True)
    inputs = random_inputs(graph, 0)
    x = np.asarray(inputs["x"], np.float32)
    product = x[:, ::2] @ np.arange(9, dtype=np.float32).reshape(3, 3)
    want = np.concatenate([product, np.minimum(x[:, 1::2], 0.5)]).reshape(4, 6)
    assert_close(run_plain(model, inputs)["y"], want, 1e-6)


def test_slices_share_their_constant_operands() -> None:
    model = to_onnx(rewritten(max(OPSETS)))
    numbers = [numpy_helper.to_array(tensor).tolist() for tensor in model.graph.initializer if "int64" in tensor.name]
    assert sorted(numbers) == [[0], [1], [2], [6]]


def test_helper_constants_never_take_a_name_in_use() -> None:
    """A Reshape writes its shape as a constant called <node>_shape; here a value already has that name."""
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


@pytest.mark.parametrize(("size", "followed"), [(1 << 12, [False, True]), (1 << 20, [False])])
def test_elements_of_long_vectors_are_not_followed(
    size: int, followed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX takes a microsecond for each element of any type, which the rank of an output is not worth."""
    asked = []
    infer = onnx.shape_inference.infer_shapes

    def recorded(model: onnx.ModelProto, data_prop: bool = False) -> onnx.ModelProto:
        asked.append(data_prop)
        return infer(model, data_prop=data_prop)

    nodes = [helper.make_node("Add", ["x", "x"], ["a"]), helper.make_node("Unknown", ["a"], ["y"], domain="d")]
    graph = Graph(
        name="g",
        inputs=("x",),
        outputs=("y",),
        nodes=tuple(import_node(node, node.op_type) for node in nodes),
        values={"x": Value("x", (size,)), "a": Value("a", None, ""), "y": Value("y", None)},
        constants={},
        opset={"": 17, "d": 1},
    )
    monkeypatch.setattr("onnx.shape_inference.infer_shapes", recorded)
    assert to_onnx(graph).graph.output[0].name == "y"
    assert asked == followed
