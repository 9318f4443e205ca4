"""Shapes that the user binds: fitting ones are bound, others reported, and missing ones listed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import helper

from pimflow.cli.shapes import parse_shapes
from pimflow.errors import ShapeError
from pimflow.frontend import load_model
from pimflow.passes import RemoveDeadCode
from pimflow.runtime.execute.ort import OrtRunner, random_inputs, run_graph
from support.onnx_models import model_of, run_plain
from support.passes import kinds
from support.values import relative_error

Dims = Sequence[int | str | None]


def add_model(**inputs: Dims | None) -> onnx.ModelProto:
    """Sum of the (broadcast) inputs."""
    return model_of([helper.make_node("Sum", list(inputs), ["y"])], inputs)


def refused(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...] | int], *words: str) -> None:
    with pytest.raises(ShapeError) as caught:
        load_model(model, shapes)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_bound_by_input_and_by_symbol() -> None:
    model = add_model(x=("N", 3), z=("N", 1))
    bindings: list[dict[str, tuple[int, ...] | int]] = [{"x": (4, 3)}, {"N": 4}, {"z": (4, 1)}, {"N": 4, "x": (4, 3)}]
    for shapes in bindings:
        graph = load_model(model, shapes)
        assert (graph.shape("x"), graph.shape("z"), graph.shape("y")) == ((4, 3), (4, 1), (4, 3))


@pytest.mark.parametrize("nameless", ["?", "-1", "*"])
def test_unnamed_dims_with_equal_placeholders_are_bound_separately(nameless: str) -> None:
    model = add_model(x=(nameless, 3, nameless, nameless))
    refused(model, {}, "x:?x3x?x?", "3 without a name", "--shape x:1x3x1x1")
    assert load_model(model, {"x": (1, 3, 48, 192)}).shape("y") == (1, 3, 48, 192)


def test_all_unbound_dims_are_listed() -> None:
    model = add_model(x=("batch", 3, "h", "w"), z=(None, 3, 1, "w"), fixed=(3, 1, 1))
    refused(model, {}, "x:batchx3xhxw", "batch", "h", "w", "z:?x3x1xw", "1 without a name", "--shape z:1x3x1x1")
    refused(model, {"h": 5, "w": 6}, "x:batchx3x5x6", "--shape batch=1", "z:?x3x1x6")
    with pytest.raises(ShapeError) as caught:
        load_model(model, {"h": 5, "w": 6})
    assert "fixed" not in str(caught.value)
    graph = load_model(model, {"h": 5, "w": 6, "batch": 2, "z": (2, 3, 1, 6)})
    assert graph.shape("y") == (2, 3, 5, 6)


def test_the_suggestion_in_the_error_works() -> None:
    model = add_model(x=("batch", 3, "h", 2), z=(None, 3, 1, 2))
    with pytest.raises(ShapeError) as caught:
        load_model(model)
    words = caught.value.hint.split()
    typed = [word for before, word in itertools.pairwise(words) if before == "--shape"]
    assert load_model(model, parse_shapes(typed)).shape("y") == (1, 3, 1, 2)


def test_bindings_that_do_not_fit() -> None:
    model = add_model(x=("N", 3), z=("N", "M"))
    refused(model, {"x": (4, 3, 1)}, "3 dims", "x:Nx3")
    refused(model, {"x": (4, 5)}, "dim 1", "fixed to 3")
    refused(model, {"q": (4, 5)}, "'q'", "x:Nx3", "z:NxM")
    refused(model, {"K": 4}, "'K'", "M, N")
    refused(model, {"x": (-1, 3)}, "below 0")
    refused(model, {"N": -1}, "'N'")
    refused(model, {"N": 2, "x": (4, 3)}, "twice")
    refused(model, {"x": (4, 3), "z": (5, 1)}, "twice")
    refused(model, {"x": 5}, "'x'")


def test_sizes_of_zero() -> None:
    model = add_model(x=(0, 3), z=("N", 1))
    assert load_model(model, {"N": 0}).shape("y") == (0, 3)
    assert load_model(model, {"z": (1, 1), "x": (0, 3)}).shape("y") == (0, 3)


def test_input_of_unknown_rank() -> None:
    model = add_model(x=None, z=(3,))
    refused(model, {}, "x", "rank unknown", "--shape x:")
    assert load_model(model, {"x": (2, 3)}).shape("y") == (2, 3)


def test_fixed_input_may_be_bound_to_its_own_shape() -> None:
    assert load_model(add_model(x=(2, 3)), {"x": (2, 3)}).shape("y") == (2, 3)


def test_shape_arithmetic_is_folded() -> None:
    """Once the batch is bound, nothing reads an exporter's Shape/Gather/Unsqueeze/Concat/Reshape chain any more."""
    i = {name: np.array(value, np.int64) for name, value in {"zero": 0, "axes": [0], "rest": [-1], "two": 2}.items()}
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Mul", ["n", "two"], ["m"]),
        helper.make_node("Unsqueeze", ["m", "axes"], ["u"]),
        helper.make_node("Concat", ["u", "rest"], ["t"], axis=0),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Reshape", ["r", "t"], ["y"]),
    ]
    model = model_of(nodes, {"x": ("N", 3, 4)}, ["y"], i)
    loaded = load_model(model, {"N": 5})
    assert len(loaded.nodes) == len(nodes)
    graph = RemoveDeadCode().run(loaded).graph
    assert kinds(graph) == ["Relu", "Reshape"]
    assert graph.shape("y") == (10, 6)
    assert not graph.constants
    inputs = random_inputs(graph, 0)
    np.testing.assert_array_equal(run_graph(graph, inputs)["y"], run_plain(model, inputs)["y"])


def test_only_data_dependent_shapes_are_unknown() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["f"], ["y"], keepdims=0),
        helper.make_node("Relu", ["x"], ["z"]),
    ]
    model = model_of(nodes, {"x": (3, 4)}, ["y", "z", "f"])
    graph = load_model(model)
    assert [graph.value(name).shape for name in ("i", "f", "y", "z")] == [None, None, (), (3, 4)]
    assert graph.value("i").dtype == "int64"
    inputs = random_inputs(graph, 0)
    want = run_plain(model, inputs)
    for name, array in run_graph(graph, inputs).items():
        np.testing.assert_array_equal(array, want[name])


def test_random_numbers_are_not_folded() -> None:
    """They are drawn again in each run, so a constant would change the model."""
    nodes = [
        helper.make_node("RandomNormal", [], ["r"], shape=[3, 4]),
        helper.make_node("RandomUniformLike", ["c"], ["u"]),
        helper.make_node("Sum", ["x", "r", "u"], ["y"]),
    ]
    graph = load_model(model_of(nodes, {"x": (3, 4)}, ["y"], {"c": np.zeros((3, 4), np.float32)}))
    assert [node.kind for node in graph.nodes] == ["RandomNormal", "RandomUniformLike", "Sum"]
    assert graph.shape("u") == (3, 4)
    runner = OrtRunner(graph)
    x = {"x": np.zeros((3, 4), np.float32)}
    assert relative_error(runner.run(x)["y"], runner.run(x)["y"]) > 0
