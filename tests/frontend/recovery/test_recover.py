"""Exports of PyTorch Geometric (benchmarks/export_gnn_models.py), read for graphs with all edge cases.

The oracle is ONNX Runtime on the unmodified export, with the edges in the given order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper

from pimflow.errors import ModelError
from pimflow.frontend import Loaded, bound_inputs, load_with_graph, structure_values
from pimflow.ir import EdgeSoftmax, Graph, Spmm
from pimflow.onnxio import folding, to_onnx
from pimflow.passes import CLEANUP, PassManager
from pimflow.runtime.execute.original import run_original
from pimflow.runtime.execute.ort import random_inputs, run_graph
from pimflow.sparse import Graph as Adjacency
from support.onnx_models import model_of
from support.sparse_graphs import edge_list

FOLDER = Path(__file__).parents[2] / "data" / "gnn"
KEPT = {"pool-mean-ts": ["/ScatterElements", "/ScatterElements_1"]}  # nodes that are not recovered: they read an input
EXPORTS = sorted({path.stem for path in FOLDER.glob("*.onnx")} - set(KEPT))
RELATIONS = 3
Pairs = npt.NDArray[np.int64]
NO_EDGES = np.zeros((2, 0), np.int64)
GRAPHS: dict[str, tuple[Pairs, int]] = {
    "many edges": (edge_list(50, 300), 50),
    "few edges": (edge_list(40, 12), 40),
    "one edge": (np.array([[2], [0]]), 4),
    "one vertex with loops": (np.array([[0, 0], [0, 0]]), 1),
}
EXPORTED_SIZE = (edge_list(64, 256), 64)
NORMALISED = ("gcn", "tag", "sgc")  # with a normalisation that is a constant of the graph


def adjacency(pairs: Pairs, vertices: int) -> Adjacency:
    rng = np.random.default_rng(5)
    edges = pairs.shape[1]
    weight, kinds = rng.random(edges, np.float32), rng.integers(0, RELATIONS, edges)
    return Adjacency.from_edge_index(pairs, vertices, weight, kinds)


def read(name: str, pairs: Pairs, vertices: int) -> Loaded:
    return load_with_graph(FOLDER / f"{name}.onnx", {}, adjacency(pairs, vertices))


def cleaned(loaded: Loaded) -> Graph:
    return PassManager(CLEANUP).run(loaded.graph).graph


def largest_error(expected: Any, actual: Any) -> float:
    """The largest error over the largest magnitude."""
    assert expected.shape == actual.shape
    return float(np.abs(expected - actual).max(initial=0) / np.abs(expected).max(initial=1e-30))


def errors_of(name: str, loaded: Loaded) -> list[float]:
    assert loaded.adjacency is not None
    model, inputs = str(FOLDER / f"{name}.onnx"), random_inputs(loaded.graph, 0)
    expected = run_original(model, {**inputs, **bound_inputs(model, loaded.adjacency)})
    graph = cleaned(loaded)
    results = (run_graph(graph, inputs), run_original(to_onnx(graph), inputs))
    return [largest_error(expected[key], found[key]) for found in results for key in expected]


@pytest.mark.parametrize("name", EXPORTS)
def test_every_export_is_recovered_with_the_same_values(name: str) -> None:
    for pairs, vertices in [EXPORTED_SIZE] if "static" in name else GRAPHS.values():
        loaded = read(name, pairs, vertices)
        assert not [node.name for node in cleaned(loaded).nodes if node.kind in ("ScatterElements", "Gather")]
        assert not [note for note in loaded.notes if ": the model does not read" not in note]
        assert loaded.graph.inputs == (("x", "edge_attr") if "edges" in name else ("x",))
        assert max(errors_of(name, loaded)) < 1e-5


@pytest.mark.parametrize("name", KEPT)
def test_nodes_that_read_a_run_time_index_stay_and_the_rest_is_recovered(name: str) -> None:
    loaded = read(name, *GRAPHS["many edges"])
    assert list(loaded.notes)[-2:] == [f"{node}: its index is computed when the model runs" for node in KEPT[name]]
    assert ops(loaded.graph)["Spmm"] == 1
    assert loaded.graph.inputs == ("x", "batch")
    rng = np.random.default_rng(0)
    features, graphs = rng.standard_normal((50, 12)).astype(np.float32), np.sort(rng.integers(0, 4, 50))
    inputs: dict[str, npt.NDArray[Any]] = {"x": features, "batch": graphs}
    assert loaded.adjacency is not None
    model = str(FOLDER / f"{name}.onnx")
    expected = run_original(model, {**inputs, **bound_inputs(model, loaded.adjacency)})["out"]
    assert largest_error(expected, run_graph(cleaned(loaded), inputs)["out"]) < 1e-6


@pytest.mark.parametrize(
    "name",
    ["gcn-ts", "gin-dynamo", "sage-mean-ts", "sage-max-dynamo", "rgcn-ts", "tag-dynamo", "arma-ts", "added-dynamo"],
)
def test_a_graph_may_have_no_edges(name: str) -> None:
    assert max(errors_of(name, read(name, NO_EDGES, 3))) < 1e-5


def ops(graph: Graph) -> dict[str, int]:
    kinds = [node.kind for node in graph.nodes]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gcn-ts", {"Add": 2, "MatMul": 2, "Relu": 1, "Spmm": 2}),
        ("gcn-weighted-dynamo", {"Add": 2, "Gemm": 2, "Relu": 1, "Spmm": 2}),
        ("sage-mean-ts", {"Add": 2, "Gemm": 2, "MatMul": 2, "Relu": 1, "Spmm": 2}),
        ("sage-min-ts", {"Add": 1, "Gemm": 1, "MatMul": 1, "Spmm": 1}),
        ("sgc-dynamo", {"Gemm": 1, "Spmm": 2}),
        ("added-dynamo", {"Gemm": 2, "Relu": 1, "Spmm": 1}),
        ("edgeconv-ts", {"Concat": 1, "Gemm": 2, "GatherRows": 2, "Relu": 1, "SegmentReduce": 1, "Div": 1, "Sub": 1}),
        (
            "rgcn-fast-blocks-ts",
            {"Add": 2, "GatherRows": 2, "MatMul": 1, "Mul": 1, "Reshape": 2, "SegmentReduce": 1, "TypedLinear": 1},
        ),
        ("rgcn-fast-mean-ts", {"Add": 4, "GatherRows": 2, "MatMul": 2, "Relu": 1, "Spmm": 2, "TypedLinear": 2}),
    ],
)
def test_nothing_of_the_exporters_pattern_is_left(name: str, expected: dict[str, int]) -> None:
    assert ops(cleaned(read(name, *GRAPHS["many edges"]))) == expected


@pytest.mark.parametrize("name", [*EXPORTS, *KEPT])
def test_a_large_graph_is_recovered_like_a_small_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all limits lowered, edge lists are dropped, and ONNX Runtime gets nothing of their size."""
    pairs, vertices = EXPORTED_SIZE if "static" in name else GRAPHS["many edges"]
    expected = ops(cleaned(read(name, pairs, vertices)))
    for module, limit, least in ((structure_values, "LARGE_BYTES", 0), (structure_values, "FOLD_LIMIT_BYTES", 1000)):
        monkeypatch.setattr(module, limit, least)
    monkeypatch.setattr(folding, "GROWTH_LIMIT", 0)
    monkeypatch.setattr(folding.evaluate, "__defaults__", (1000,))
    loaded = read(name, pairs, vertices)
    assert ops(cleaned(loaded)) == expected
    if name not in KEPT:
        assert max(errors_of(name, loaded)) < 1e-5


def test_the_shape_of_a_dropped_edge_list_is_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        helper.make_node("Transpose", ["edge_index"], ["pairs"]),
        helper.make_node("Shape", ["pairs"], ["sizes"]),
        helper.make_node("Expand", ["x", "sizes"], ["y"]),
    ]
    model = model_of(nodes, {"x": (5, 1), "edge_index": (2, 5)}, ["y"], {}, 18)
    model.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    monkeypatch.setattr(structure_values, "LARGE_BYTES", 0)
    loaded = load_with_graph(model, {}, Adjacency.from_edge_index(FIVE, 5))
    x = np.arange(5, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(run_graph(loaded.graph, {"x": x})["y"], x.repeat(2, 1))


def test_layers_share_the_constants_of_a_graph() -> None:
    graph = cleaned(read("gcn-ts", *GRAPHS["many edges"]))
    first, second = (node.inputs[1:] for node in graph.nodes if isinstance(node.op, Spmm))
    assert first == second
    assert len(first) == 3, "pointers, sources and the norm"


def test_attention_is_one_softmax_over_edges_a_layer() -> None:
    graph = cleaned(read("gat-ts", *GRAPHS["many edges"]))
    softmax = [node.op for node in graph.nodes if isinstance(node.op, EdgeSoftmax)]
    assert softmax == [EdgeSoftmax(0.0, float(np.float32(1e-16)))] * 2, "maxima start from zeros, as exported"
    graph = cleaned(read("gat-dynamo", *GRAPHS["many edges"]))
    assert [node.op for node in graph.nodes if isinstance(node.op, EdgeSoftmax)] == [EdgeSoftmax()] * 2
    assert ops(graph)["Sddmm"] == 2
    assert ops(graph)["Spmm"] == 2


def test_attention_by_type_is_one_softmax_unless_an_edge_has_two_types(tmp_path: Path) -> None:
    pairs, vertices = GRAPHS["many edges"]
    found = ops(read("rgat-within-ts", pairs, vertices).graph)
    assert (found["EdgeSoftmax"], found["TypedLinear"], found.get("ScatterND", 0)) == (1, 2, 0), (
        "a product of sources and one of destinations"
    )
    model = onnx.load(FOLDER / "rgat-within-ts.onnx")
    *_, last = (node for node in model.graph.node if node.op_type == "Equal" and "edge_type" in node.input)
    second = next(node for node in model.graph.node if last.input[1] in node.output)
    second.attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.array(1)))
    onnx.save(model, tmp_path / "twice.onnx")
    loaded = load_with_graph(tmp_path / "twice.onnx", {}, adjacency(pairs, vertices))
    assert "EdgeSoftmax" not in ops(loaded.graph), "the second type is written twice, the third not at all"
    inputs = random_inputs(loaded.graph, 0)
    assert loaded.adjacency is not None
    expected = run_original(str(tmp_path / "twice.onnx"), {**inputs, **bound_inputs(model, loaded.adjacency)})
    assert largest_error(expected["out"], run_graph(cleaned(loaded), inputs)["out"]) < 1e-5


def test_matrices_by_type_are_not_expanded_to_edges() -> None:
    loaded = read("typed-attention-ts", *GRAPHS["many edges"])
    graph = cleaned(loaded)
    assert ops(graph)["TypedLinear"] == 2, "keys and values"
    adjacency = loaded.adjacency
    assert adjacency is not None
    assert adjacency.edge_type is not None
    assert {graph.values[node.output].shape for node in graph.nodes if node.kind == "TypedLinear"} == {(300, 16)}
    edges = [value.elements for value in graph.values.values() if (value.shape or ())[:1] == (300,)]
    assert max(edges) == 300 * 16


def by_type(kinds: list[int], product: onnx.NodeProto, rows: str = "rows", turned: bool = False) -> onnx.ModelProto:
    """A matrix gathered for every row of edges or vertices: `product` multiplies `rows` or `vectors` by `matrices`."""
    weights = np.random.default_rng(0).standard_normal((3, 4, 2) if turned else (3, 2, 4)).astype(np.float32)
    constants = {"zero": np.array(0), "axis": np.array([2 if turned else 1]), "w": weights, "kinds": np.array(kinds)}
    nodes = [
        helper.make_node("Gather", ["edge_index", "zero"], ["src"], axis=0),
        helper.make_node("Gather", ["x", "src"], ["rows"], axis=0),
        helper.make_node("Unsqueeze", [rows, "axis"], ["vectors"]),
        helper.make_node("Gather", ["w", "kinds"], ["matrices"], axis=0),
    ]
    model = model_of([*nodes, product], {"x": (5, 2), "edge_index": (2, 5)}, ["y"], constants, 18)
    model.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    return model


@pytest.mark.parametrize(
    ("rows", "kinds", "gathers"),
    [("rows", [2, 0, 2, 1, 0], 2), ("rows", [0, 0, 1, 2, 2], 1), ("x", [1, 0, 2, 0, 0], 2), ("x", [0, 1, 1, 2, 2], 0)],
)
def test_matrices_gathered_by_row_become_matrices_by_type(rows: str, kinds: list[int], gathers: int) -> None:
    """Rows of edges or vertices whose types do not depend on edges; if already sorted by type, they are not moved."""
    model = by_type(kinds, helper.make_node("MatMul", ["vectors", "matrices"], ["y"], "product"), rows)
    assert_by_type(model, gathers)


def assert_by_type(model: onnx.ModelProto, gathers: int) -> None:
    graph = cleaned(load_with_graph(model, {}, Adjacency.from_edge_index(FIVE, 5)))
    found = ops(graph)
    assert (found["TypedLinear"], found.get("GatherRows", 0)) == (1, gathers)
    assert not {"MatMul", "Einsum"} & set(found)
    assert all(value.elements <= 24 for value in graph.values.values()), "no matrix is copied"
    x = np.random.default_rng(1).standard_normal((5, 2)).astype(np.float32)
    expected = run_original(model, {"x": x, "edge_index": FIVE})["y"]
    assert largest_error(expected, run_graph(graph, {"x": x})["y"]) < 1e-6


@pytest.mark.parametrize(
    ("kind", "inputs", "equation", "turned"),
    [
        ("MatMul", ["matrices", "vectors"], "", True),
        ("Einsum", ["rows", "matrices"], "ek,ekn->en", False),
        ("Einsum", ["matrices", "rows"], "i j k, i k -> i j", True),
    ],
)
def test_products_of_rows_with_their_own_matrices_in_all_forms(
    kind: str, inputs: list[str], equation: str, turned: bool
) -> None:
    attributes = {"equation": equation} if equation else {}
    assert_by_type(by_type([2, 0, 2, 1, 0], helper.make_node(kind, inputs, ["y"], **attributes), turned=turned), 2)


def test_edge_values_are_computed_in_the_order_of_destinations() -> None:
    graph = cleaned(read("edgeconv-ts", *GRAPHS["many edges"]))
    (reduced,) = (node for node in graph.nodes if node.kind == "SegmentReduce")
    producer = graph.producer(reduced.inputs[0])
    assert producer is not None
    assert producer.kind == "Gemm", "not sorted after the MLP"


def test_sums_along_another_axis_are_transposed() -> None:
    graph = cleaned(read("arma-ts", *GRAPHS["many edges"]))
    sums = [node for node in graph.nodes if node.kind == "Spmm"]
    assert [graph.values[node.output].shape for node in sums] == [(50, 2, 5)] * 2, "two stacks, as two heads"
    assert {len(node.inputs) for node in sums} == {4}, "with the norm as weights"


def scatter_model(opset: int = 18, *, index_by_column: bool = False, reduction: str | None = "add") -> onnx.ModelProto:
    """y = scatter of x[edge_index[0]] by edge_index[1], features of width 2."""
    constants = {name: np.array(value, np.int64) for name, value in {"zero": 0, "one": 1, "column": [-1, 1]}.items()}
    constants |= {"width": np.array([5, 2], np.int64), "base": np.zeros((4, 2), np.float32)}
    nodes = [
        helper.make_node("Gather", ["edge_index", "zero"], ["src"], axis=0),
        helper.make_node("Gather", ["edge_index", "one"], ["dst"], axis=0),
        helper.make_node("Gather", ["x", "src"], ["rows"], axis=0),
        helper.make_node("Reshape", ["dst", "column"], ["index"]),
        helper.make_node("Reshape", ["src", "column"], ["other"]),
        helper.make_node("Expand", ["index", "width"], ["expanded"]),
        helper.make_node("Concat", ["index", "other"], ["by_column"], axis=1),
    ]
    inputs = ["base", "by_column" if index_by_column else "expanded", "rows"]
    scatter = helper.make_node("ScatterElements", inputs, ["y"], "scatter", axis=0)
    if reduction:
        scatter.attribute.append(helper.make_attribute("reduction", reduction))
    model = model_of([*nodes, scatter], {"x": (4, 2), "edge_index": (2, 5)}, ["y"], constants, opset)
    model.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    return model


FIVE = np.array([[0, 1, 2, 3, 3], [1, 1, 0, 2, 2]])


@pytest.mark.parametrize(
    ("bound", "of", "index", "spmms"),
    [
        ("ReduceMin", "rows", "expanded", 1),
        ("ReduceMax", "rows", "expanded", 2),
        ("ReduceMin", "doubled", "expanded", 2),
        ("ReduceMin", "rows", "turned", 2),
    ],
)
def test_scattering_the_minimum_first_changes_no_maximum(bound: str, of: str, index: str, spmms: int) -> None:
    """PyTorch Geometric's TorchScript export scatters this minimum first; any other value scattered first matters."""
    model = scatter_model(reduction="max")
    nodes = list(model.graph.node)
    before = [
        helper.make_node("Add", ["rows", "rows"], ["doubled"]),
        helper.make_node("Reshape", ["src", "column"], ["of_sources"]),
        helper.make_node("Expand", ["of_sources", "width"], ["turned"]),
        helper.make_node(bound, [of], ["bound"], keepdims=0),
        helper.make_node("Expand", ["bound", "width"], ["fill"]),
        helper.make_node("ScatterElements", ["base", index, "fill"], ["first"], "first", axis=0, reduction="max"),
    ]
    nodes[-1].input[0] = "first"
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:-1], *before, nodes[-1]])
    graph = cleaned(load_with_graph(model, {}, Adjacency.from_edge_index(FIVE, 4)))
    found = ops(graph)
    assert found.get("Spmm", 0) + found.get("SegmentReduce", 0) == spmms
    assert (bound in found) == (spmms == 2)
    for shift in (-5, 0, 5):
        x = (np.random.default_rng(0).standard_normal((4, 2)) + shift).astype(np.float32)
        expected = run_original(model, {"x": x, "edge_index": FIVE})["y"]
        np.testing.assert_array_equal(run_graph(graph, {"x": x})["y"], expected)


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({"index_by_column": True}, "scatter: its index differs between columns"),
        ({"reduction": "mul"}, "scatter: it reduces by mul"),
    ],
)
def test_unrecovered_nodes_stay_with_a_reason(options: dict[str, Any], note: str) -> None:
    model = scatter_model(**options)
    loaded = load_with_graph(model, {}, Adjacency.from_edge_index(FIVE, 4))
    assert note in loaded.notes
    assert "ScatterElements" in ops(loaded.graph)
    assert all(value.shape is not None for value in loaded.graph.values.values()), "everything can be priced"
    x = np.random.default_rng(0).standard_normal((4, 2)).astype(np.float32)
    expected = run_original(model, {"x": x, "edge_index": FIVE})["y"]
    assert largest_error(expected, run_graph(cleaned(loaded), {"x": x})["y"]) < 1e-6


@pytest.mark.parametrize(
    ("kind", "index", "attributes", "reason"),
    [
        ("Gather", 1, {"axis": 1}, "it picks along axis 1, not rows of vertices or edges"),
        ("Gather", 1, {"axis": 0}, "its index has 0 dims, so it is not a list of rows"),
        ("GatherND", [[0, 1], [2, 0]], {}, "it picks by 2 indices at a time, not rows"),
        ("GatherElements", [[0, 1], [2, 0]], {}, "its index differs between columns"),
        ("Gather", None, {}, "its index is computed when the model runs"),
        ("Gather", [0, 7], {"axis": 0}, "its index is out of range"),
        ("GatherND", [[0], [-6]], {}, "its index is out of range"),
    ],
)
def test_unrecovered_gathers_have_a_reason(kind: str, index: Any, attributes: dict[str, Any], reason: str) -> None:
    constants = {} if index is None else {"index": np.array(index, np.int64)}
    nodes = [
        helper.make_node("Gather", ["edge_index", "zero"], ["src"], axis=0),
        helper.make_node("Gather", ["x", "src"], ["rows"], axis=0),
        helper.make_node(kind, ["rows", "index"], ["y"], "pick", **attributes),
    ]
    inputs = {"x": (4, 2), "edge_index": (2, 5)} | ({"index": (3,)} if index is None else {})
    model = model_of(nodes, inputs, ["y"], {"zero": np.array(0), **constants}, 18)
    for item in model.graph.input[1:]:
        item.type.tensor_type.elem_type = onnx.TensorProto.INT64
    loaded = load_with_graph(model, {}, Adjacency.from_edge_index(FIVE, 4))
    assert loaded.notes == (f"pick: {reason}",)
    assert ops(loaded.graph) == {"GatherRows": 1, kind: 1}


@pytest.mark.parametrize(("offset", "rows", "note"), [(9, 4, "rows"), (0, 2, "scatter")])
def test_an_index_out_of_range_is_left_to_onnx_runtime_which_refuses_it(offset: int, rows: int, note: str) -> None:
    """A sparse product would read out of bounds."""
    model = scatter_model()
    add = helper.make_node("Add", ["src", "offset"], ["moved"], "moved")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(offset), "offset"))
    model.graph.node.insert(2, add)
    gather = next(node for node in model.graph.node if node.output[0] == "rows")
    gather.input[1], gather.name = "moved", "rows"
    base = next(tensor for tensor in model.graph.initializer if tensor.name == "base")
    base.CopyFrom(onnx.numpy_helper.from_array(np.zeros((rows, 2), np.float32), "base"))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    loaded = load_with_graph(model, {}, Adjacency.from_edge_index(FIVE, 4))
    assert f"{note}: its index is out of range" in loaded.notes
    with pytest.raises(ModelError, match=r"out (of|within|data)"):
        run_graph(loaded.graph, {"x": np.ones((4, 2), np.float32)})


@pytest.mark.parametrize(
    ("kind", "operand", "attributes"),
    [("Gather", [0, 77], {"axis": 1}), ("Reshape", [3, 7], {}), ("Tile", [1, -2], {})],
)
def test_models_that_cannot_run_on_the_edges_are_refused_with_the_node(
    kind: str, operand: Any, attributes: Any
) -> None:
    nodes = [helper.make_node(kind, ["edge_index", "operand"], ["made"], "wrong", **attributes)]
    nodes.append(helper.make_node("Cast", ["made"], ["y"], to=1))
    constants = {"operand": np.array(operand, np.int64)}
    model = model_of(nodes, {"x": (4, 2), "edge_index": (2, 5)}, ["y"], constants, 18)
    model.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    with pytest.raises(ModelError, match=rf"node 'wrong' \({kind}\) cannot run|Node \(wrong\) Op \({kind}\)"):
        load_with_graph(model, {}, Adjacency.from_edge_index(FIVE, 4))


def test_an_opset_that_loses_duplicates_is_refused() -> None:
    with pytest.raises(ModelError, match=r"the model is in opset 13, where 'scatter' keeps one of several edges"):
        load_with_graph(scatter_model(13, reduction=None), {}, Adjacency.from_edge_index(FIVE, 4))
