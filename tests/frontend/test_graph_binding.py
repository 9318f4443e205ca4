"""A graph as inputs of a model: the assignment of inputs, the sizes that follow, and the order of edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pimflow.errors import ModelError, ShapeError
from pimflow.frontend import bound_inputs, load, load_with_graph
from pimflow.frontend.graph_binding import bind_graph, graph_inputs, random_graph
from pimflow.ir import TypedLinear
from pimflow.runtime.execute.original import run_original
from pimflow.runtime.execute.ort import random_inputs, run_graph
from pimflow.sparse import Graph as Adjacency
from support.onnx_models import model_of
from support.sparse_graphs import edge_list
from support.values import relative_error

FOLDER = Path(__file__).parents[1] / "data" / "gnn"
FLOAT, LONG = TensorProto.FLOAT, TensorProto.INT64
Inputs = Mapping[str, tuple[Any, Sequence[int | str]]]
DYNAMIC: Inputs = {
    "x": (FLOAT, ["N", 8]),
    "edges": (LONG, [2, "E"]),
    "w": (FLOAT, ["E"]),
    "kind": (LONG, ["E", 1]),
    "more": (FLOAT, ["E", 3]),
    "mask": (TensorProto.BOOL, ["N"]),
}
PAIRS = edge_list(20, 60)


def network(inputs: Inputs) -> onnx.GraphProto:
    infos = [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in inputs.items()]
    return helper.make_graph([], "network", infos, [])


def summing(inputs: Inputs, *nodes: onnx.NodeProto, reduction: str = "add") -> onnx.ModelProto:
    """A model that adds rows up by the value `index`, as far as its nodes tell: by default by the edges."""
    scatter = helper.make_node("ScatterElements", ["base", "index", "x"], ["y"], reduction=reduction)
    graph = network(inputs)
    graph.node.extend((*(nodes or [helper.make_node("Gather", ["edges", "zero"], ["index"])]), scatter))
    graph.initializer.append(helper.make_tensor("table", FLOAT, [1, 1], [0.0]))
    return helper.make_model(graph)


def adjacency(*, weighted: bool = True, typed: bool = True) -> Adjacency:
    rng = np.random.default_rng(3)
    weight, kinds = rng.random(60, np.float32), rng.integers(0, 3, 60)
    return Adjacency.from_edge_index(PAIRS, 20, weight if weighted else None, kinds if typed else None)


def names(items: Sequence[Any]) -> list[str]:
    return [item.name for item in items]


def test_inputs_are_identified_by_shared_sizes() -> None:
    found = graph_inputs(network(DYNAMIC))
    assert found is not None
    assert found.weight is not None
    assert found.edge_type is not None
    assert (found.edge_index.name, found.weight.name, found.edge_type.name) == ("edges", "w", "kind")
    assert names(found.edges) == ["more"]
    assert names(found.vertices) == ["x"]
    assert graph_inputs(network({"x": (FLOAT, ["N", 2])})) is None


def test_of_several_edge_lists_one_must_be_named() -> None:
    two: Inputs = {"a": (LONG, [2, "E"]), "b": (LONG, [2, "M"])}
    with pytest.raises(ModelError, match="the inputs a, b may all be edge lists"):
        graph_inputs(network(two))
    found = graph_inputs(network({**two, "edge_index": (LONG, [2, "F"])}))
    assert found is not None
    assert found.edge_index.name == "edge_index"


def test_sizes_follow_and_arrays_are_in_the_order_given() -> None:
    graph = adjacency()
    bound = bind_graph(network(DYNAMIC), graph, {"other": 5})
    assert bound.shapes == {"other": 5, "N": 20, "E": 60}
    arrays = bound.arrays()
    np.testing.assert_array_equal(arrays["edges"], PAIRS)
    assert (arrays["w"].shape, arrays["kind"].shape) == ((60,), (60, 1))
    assert graph.weight is not None
    np.testing.assert_array_equal(arrays["w"][graph.order], graph.weight)
    assert not bound.may_be_sorted, "`more` has a row for every edge, in the order given"


def test_in_rows_every_edge_keeps_its_values() -> None:
    bound = bind_graph(network({name: DYNAMIC[name] for name in ("x", "edges", "w", "kind")}), adjacency(), {})
    assert bound.may_be_sorted
    given, in_rows = bound.arrays(), bound.arrays(in_rows=True)
    assert (np.diff(in_rows["edges"][1]) >= 0).all()
    edges = [
        sorted(zip(*arrays["edges"].tolist(), arrays["w"].tolist(), arrays["kind"][:, 0].tolist(), strict=True))
        for arrays in (given, in_rows)
    ]
    assert edges[0] == edges[1]
    assert {name: array.dtype for name, array in given.items()} == {name: in_rows[name].dtype for name in in_rows}


def test_inputs_that_the_graph_lacks_stay_or_are_refused() -> None:
    bound = bind_graph(network(DYNAMIC), adjacency(weighted=False), {})
    assert bound.notes == ("w: the graph has no weights, so it stays an input",)
    assert set(bound.arrays()) == {"edges", "kind"}
    assert not bound.may_be_sorted
    unread = bind_graph(network({name: DYNAMIC[name] for name in ("x", "edges")}), adjacency(), {})
    assert unread.notes == ("edge_weight: the model does not read the graph's weights",)
    with pytest.raises(ModelError, match=r"the model reads edge types \(kind\), and the graph has none"):
        bind_graph(network(DYNAMIC), adjacency(typed=False), {})
    with pytest.raises(ModelError, match="the model has no edge list"):
        bind_graph(network({"x": (FLOAT, ["N", 2])}), adjacency(), {})


@pytest.mark.parametrize(
    ("inputs", "shapes"),
    [
        ({"x": (FLOAT, [64, 8]), "edge_index": (LONG, [2, 256])}, {}),
        ({"x": (FLOAT, ["N", 8]), "edge_index": (LONG, [2, "E"])}, {"N": 64, "E": 256}),
        ({"x": (FLOAT, ["", 8]), "edge_index": (LONG, [2, ""])}, {"x": (64, 8), "edge_index": (2, 256)}),
        ({"x": (FLOAT, [2, 64, 8]), "edge_index": (LONG, [2, 256])}, {}),
        ({"x": (FLOAT, [2, "N", 8]), "edge_index": (LONG, [2, "E"])}, {"N": 64, "E": 256}),
    ],
)
def test_another_size_is_refused_with_both(inputs: Inputs, shapes: dict[str, Any]) -> None:
    with pytest.raises(ShapeError, match="for 64 vertices and 256 edges, the graph has 20 vertices and 60 edges"):
        bind_graph(network(inputs), adjacency(), shapes)


BATCHES: list[tuple[Inputs, dict[str, Any], dict[str, Any]]] = [
    ({"x": (FLOAT, [2, "rows", 8])}, {}, {"rows": 20}),
    ({"x": (FLOAT, ["B", "num_nodes", 8])}, {}, {"num_nodes": 20}),
    ({"x": (FLOAT, ["B", "rows", 8])}, {"B": 2}, {"B": 2, "rows": 20}),
    ({"x": (FLOAT, ["B", "rows", 8])}, {"rows": 20}, {"rows": 20}),
    ({"x": (FLOAT, ["B", 20, 8])}, {}, {}),
    ({"x": (FLOAT, [3, "", 8])}, {}, {"x": (3, 20, 8)}),
    ({"kind": (LONG, ["atoms"]), "place": (FLOAT, ["atoms", 3])}, {}, {"atoms": 20}),
    ({"token": (LONG, ["atoms"])}, {}, {"atoms": 20}),
]


@pytest.mark.parametrize(("inputs", "given", "expected"), BATCHES)
def test_vertices_are_found_along_another_axis(inputs: Inputs, given: dict[str, Any], expected: dict[str, Any]) -> None:
    bound = bind_graph(network({"edges": (LONG, [2, "E"]), **inputs}), adjacency(weighted=False), given)
    assert bound.shapes == {"E": 60, **expected}


@pytest.mark.parametrize(
    ("dims", "ways"),
    [
        (["B", "M", 8], "B=20 or --shape M=20"),
        (["N", "V", 8], "N=20 or --shape V=20"),
        (["B", 21, 8], "B=20"),
        (["", "", 8], "x:20x1x8 or --shape x:1x20x8"),
    ],
)
def test_an_ambiguous_number_of_vertices_is_reported_with_a_fix(dims: list[Any], ways: str) -> None:
    with pytest.raises(ShapeError) as caught:
        bind_graph(network({"edges": (LONG, [2, "E"]), "x": (FLOAT, dims)}), adjacency(), {})
    spelled = ", ".join(str(dim) or "?" for dim in dims)
    expected = f"it is not clear which size in x [{spelled}] is the number of vertices (20)"
    assert str(caught.value) == f"{expected}; bind it: --shape {ways}"


def test_a_random_graph_has_the_sizes_that_are_known() -> None:
    bound = random_graph(summing(DYNAMIC), {"N": 30, "E": 70})
    assert bound is not None
    assert (bound.adjacency.num_dst, bound.adjacency.num_edges) == (30, 70)
    assert set(bound.arrays()) == {"edges", "w", "kind"}
    assert random_graph(summing(DYNAMIC), {"N": 30}) is None
    assert random_graph(summing(DYNAMIC, reduction="none"), {"N": 30, "E": 70}) is None
    batch = summing({"x": (FLOAT, [2, "N", 8]), "edges": (LONG, [2, "E"])})
    assert random_graph(batch, {"E": 70}) is None
    found = random_graph(batch, {"N": 30, "E": 70})
    assert found is not None
    assert found.adjacency.num_dst == 30


def test_two_texts_are_no_edges() -> None:
    """The gradient of their embedding adds rows up by their tokens, and their mask has the form of an edge list too."""
    texts: Inputs = {"x": (FLOAT, [14, 3]), "ids": (LONG, [2, 7]), "mask": (LONG, [2, 7])}
    index = helper.make_node("Reshape", ["ids", "flat"], ["index"])
    assert random_graph(summing(texts, index, helper.make_node("Gather", ["table", "ids"], ["rows"])), {}) is None
    found = random_graph(summing(texts, index), {})
    assert found is not None
    assert set(found.arrays()) == {"ids"}, "the mask picks no destinations"


@pytest.mark.parametrize("name", ["gcn-weighted-ts", "gat-dynamo", "rgcn-fast-mean-ts", "sage-max-dynamo", "tag-ts"])
def test_edges_in_rows_give_the_same_values_as_edges_as_given(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "SORTED_EDGES", 0)
    model, graph = str(FOLDER / f"{name}.onnx"), adjacency()
    loaded = load_with_graph(model, {}, graph)
    inputs = random_inputs(loaded.graph, 0)
    expected = run_original(model, {**inputs, **bound_inputs(model, graph)})["out"]
    assert relative_error(run_graph(loaded.graph, inputs)["out"], expected) < 1e-5


def test_results_with_a_row_for_every_edge_are_in_the_order_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "SORTED_EDGES", 0)
    nodes = [
        helper.make_node("Gather", ["edge_index", "one"], ["dst"]),
        helper.make_node("Gather", ["x", "dst"], ["y"]),
    ]
    model = model_of(nodes, {"x": ("N", 8), "edge_index": (2, "E")}, ["y"], {"one": np.array(1)}, 18)
    model.graph.input[1].type.tensor_type.elem_type = LONG
    loaded = load_with_graph(model, {}, adjacency(weighted=False, typed=False))
    x = np.random.default_rng(0).standard_normal((20, 8)).astype(np.float32)
    np.testing.assert_array_equal(run_graph(loaded.graph, {"x": x})["y"], x[PAIRS[1]])


def test_a_bipartite_graph_leaves_the_numbers_of_rows_to_the_user() -> None:
    """A layer by type over two tables: sources read one, and destinations have the rows of the other."""
    nodes = [
        helper.make_node("Gather", ["edge_index", "zero"], ["src"]),
        helper.make_node("Gather", ["edge_index", "one"], ["dst"]),
        helper.make_node("Gather", ["x", "src"], ["rows"]),
        helper.make_node("Gather", ["w", "edge_type"], ["each"]),
        helper.make_node("Unsqueeze", ["rows", "axis"], ["row"]),
        helper.make_node("MatMul", ["row", "each"], ["product"]),
        helper.make_node("Squeeze", ["product", "axis"], ["message"]),
        helper.make_node("Unsqueeze", ["dst", "axis"], ["column"]),
        helper.make_node("Shape", ["message"], ["shape"]),
        helper.make_node("Expand", ["column", "shape"], ["index"]),
        helper.make_node("Shape", ["y"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
        helper.make_node("ScatterElements", ["zeros", "index", "message"], ["sums"], axis=0, reduction="add"),
        helper.make_node("Add", ["y", "sums"], ["out"]),
    ]
    weights = np.random.default_rng(0).standard_normal((3, 4, 6)).astype(np.float32)
    constants = {"zero": np.array(0), "one": np.array(1), "axis": np.array([1]), "w": weights}
    inputs: dict[str, tuple[Any, ...]] = {
        "x": ("S", 4),
        "y": ("D", 6),
        "edge_index": (2, "E"),
        "edge_type": ("E",),
    }
    model = model_of(nodes, inputs, ["out"], constants, 18)
    for info in model.graph.input[2:]:
        info.type.tensor_type.elem_type = LONG
    kinds = np.random.default_rng(1).integers(0, 3, 60)
    pairs = np.stack([PAIRS[0], PAIRS[1] % 7])
    graph = Adjacency.from_edge_index(pairs, (20, 9), None, kinds)
    loaded = load_with_graph(model, {"S": 20, "D": 9}, graph)
    assert any(isinstance(node.op, TypedLinear) for node in loaded.graph.nodes)
    given = random_inputs(loaded.graph, 0)
    expected = run_original(model, {**given, "edge_index": pairs, "edge_type": kinds})["out"]
    assert relative_error(run_graph(loaded.graph, given)["out"], expected) < 1e-5
    with pytest.raises(
        ShapeError, match="for 5 and 9 vertices, the edges of the graph go from 20 vertices to 9 others"
    ):
        bind_graph(model.graph, graph, {"S": 5, "D": 9})
    with pytest.raises(ShapeError, match=r"for 20 and 9 vertices, the graph has 20 .* sources and how many destina"):
        bind_graph(model.graph, Adjacency.from_edge_index(pairs, 20, None, kinds), {"S": 20, "D": 9})


@pytest.mark.parametrize("name", ["gcn-ts", "gat-dynamo", "gin-ts", "graphconv-ts", "transformer-ts"])
@pytest.mark.parametrize(("sizes", "rows"), [((20, 9), 9), ((9, 20), 20), ((9, 20), 9), ((20, 9), None)])
def test_a_bipartite_graph_needs_a_model_with_rows_for_its_destinations(
    name: str, sizes: tuple[int, int], rows: int | None
) -> None:
    """ONNX Runtime would name the scatter, of the node's own zeros, that an edge leaves."""
    graph = Adjacency.from_edge_index(np.stack([PAIRS[0] % sizes[0], PAIRS[1] % sizes[1]]), sizes)
    spelled = "" if rows is None else rf" \({rows} rows\)"
    hint = "--shape num_nodes=20" if rows is None else "give a model that also reads a table of destinations"
    with pytest.raises(
        ShapeError,
        match=rf"^the model has one table of vertices, x \[num_nodes, 12\]{spelled}, and the edges of the graph go "
        rf"from {sizes[0]} vertices to {sizes[1]} others; if both are .* make the graph square \(.*\); .*{hint}$",
    ):
        load_with_graph(str(FOLDER / f"{name}.onnx"), {} if rows is None else {"num_nodes": rows}, graph)


@pytest.mark.parametrize("groups", [4, 50])
def test_a_model_with_one_table_may_have_results_for_other_vertices(groups: int) -> None:
    """A readout: edges lead from vertices to the groups that they are added up for."""
    nodes = [
        helper.make_node("Gather", ["edge_index", "zero"], ["src"]),
        helper.make_node("Gather", ["edge_index", "one"], ["dst"]),
        helper.make_node("Gather", ["x", "src"], ["rows"]),
        helper.make_node("Unsqueeze", ["dst", "axis"], ["column"]),
        helper.make_node("Shape", ["rows"], ["shape"]),
        helper.make_node("Expand", ["column", "shape"], ["index"]),
        helper.make_node("ScatterElements", ["zeros", "index", "rows"], ["out"], axis=0, reduction="add"),
    ]
    constants = {"zero": np.array(0), "one": np.array(1), "axis": np.array([1]), "zeros": np.zeros((groups, 4), "f")}
    model = model_of(nodes, {"x": ("N", 4), "edge_index": (2, "E")}, ["out"], constants, 18)
    model.graph.input[1].type.tensor_type.elem_type = LONG
    pairs = np.stack([PAIRS[0], np.arange(60) % groups])
    loaded = load_with_graph(model, {"N": 20}, Adjacency.from_edge_index(pairs, (20, groups)))
    given = random_inputs(loaded.graph, 0)
    expected = run_original(model, {**given, "edge_index": pairs})["out"]
    assert relative_error(run_graph(loaded.graph, given)["out"], expected) < 1e-5
