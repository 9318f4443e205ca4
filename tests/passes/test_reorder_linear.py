"""Products of weights computed before rows are multiplied: random typed graphs by value, and impossible cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from pimflow.ir import Builder, Elementwise, GatherRows, Gemm, Graph, MatMul, TypedLinear
from pimflow.passes.compact_materialization import CompactMaterialization
from pimflow.passes.reorder_linear import ReorderLinear
from support.relational import TypedEdges, attention, heads, random_edges, typed_edges
from support.values import assert_same_values

EDGES = random_edges(20, 4, 90)
BY_TYPE = np.array([0, 3, 3, 8])
PICKS = np.array([7, 0, 0, 4, 2], np.int32)


@settings(max_examples=30)
@given(typed_edges())
def test_logits_are_products_with_products_of_weights(edges: TypedEdges) -> None:
    graph = attention(edges)
    made = ReorderLinear().run(graph).graph
    widths = {node.name: made.shape(node.output)[1] for node in made.nodes if node.kind == "TypedLinear"}
    assert widths == {"typed_j": 8, "logit_i_reordered": 2, "logit_j_reordered": 2}, (
        "messages are read, queries are not"
    )
    assert_same_values(graph, made, 2e-5)
    assert_same_values(graph, CompactMaterialization().run(made).graph, 2e-5)


@settings(max_examples=15)
@given(typed_edges())
def test_heads_have_products_of_their_own(edges: TypedEdges) -> None:
    graph = heads(edges)
    made = ReorderLinear().run(graph).graph
    (product,) = (node for node in made.nodes if node.kind == "TypedLinear")
    assert made.shape(product.inputs[1]) == (edges.types, 6, 8)
    assert_same_values(graph, made, 2e-5)


def typed(build: Builder, x: str, columns: int = 4, pointers: list[int] | None = None, name: str = "first") -> str:
    begins = np.array(BY_TYPE if pointers is None else pointers)
    inner = build.shape(x)[1]
    weights = build.weights(len(begins) - 1, inner, columns)
    return build.op(TypedLinear(), x, weights, build.constant(begins, "types"), name=name)


def picked(build: Builder, x: str) -> str:
    return build.op(GatherRows(), x, build.constant(PICKS, "picks"))


def dot_of_heads(build: Builder, x: str) -> str:
    heads = build.reshape(typed(build, x), 8, 2, 2)
    product = build.op(Elementwise("Mul"), heads, build.weights(1, 2, 2))
    return build.onnx("ReduceSum", product, build.constant(np.array([-1]), "axes"), shape=(8, 2), keepdims=0)


def behind_rows(build: Builder, x: str) -> str:
    return build.op(MatMul(), picked(build, typed(build, x)), build.weights(4, 3), name="second")


def transposed(build: Builder, x: str) -> str:
    return build.op(Gemm(trans_b=True), typed(build, x), build.weights(3, 4), build.weights(3), name="second")


def typed_behind_matrix(build: Builder, x: str) -> str:
    first = build.op(Gemm(trans_b=True), x, build.weights(4, 6), name="first")
    return typed(build, picked(build, first), 3, [0, 2, 2, 5], "second")


def typed_behind_typed(build: Builder, x: str) -> str:
    """Rows 7 and 4 have the first product's last type, rows 0, 0 and 2 its first."""
    rows = build.op(GatherRows(), typed(build, x), build.constant(np.array([7, 4, 0, 0, 2]), "picks"))
    return typed(build, rows, 3, [0, 0, 1, 2, 5], "second")


@pytest.mark.parametrize("write", [dot_of_heads, behind_rows, transposed, typed_behind_matrix, typed_behind_typed])
def test_forms_of_two_products(write: object) -> None:
    assert callable(write)
    build = Builder("g")
    graph = build.graph(write(build, build.input(8, 6)))
    made = ReorderLinear().run(graph)
    assert made.changed
    kinds = [node.kind for node in made.graph.nodes]
    assert kinds.count("TypedLinear") == 1
    assert not {"MatMul", "Gemm", "ReduceSum"} & set(kinds)
    assert_same_values(graph, made.graph)


def test_computed_weights_are_multiplied_at_run_time() -> None:
    build = Builder("g")
    x, weights = build.input(8, 6), build.input(4, 3, name="weights")
    graph = build.graph(build.op(MatMul(), typed(build, x), weights, name="second"))
    made = ReorderLinear().run(graph).graph
    assert [(node.kind, made.shape(node.output)) for node in made.nodes] == [
        ("MatMul", (3, 6, 3)),
        ("TypedLinear", (8, 3)),
    ]
    assert_same_values(graph, made)


def test_trained_weights_are_not_multiplied_in_advance() -> None:
    graph = attention(EDGES)
    made = ReorderLinear(fold=False).run(graph).graph
    assert [node.kind for node in made.nodes].count("MatMul") == 2
    assert set(made.constants) >= {name for name in graph.constants if len(graph.shape(name)) == 3}
    assert_same_values(graph, made, 2e-5)


def biased(build: Builder, x: str, bias: str = "") -> str:
    first = build.op(Gemm(), x, build.weights(6, 4), bias or build.weights(4), name="first")
    return typed(build, picked(build, first), 3, [0, 2, 2, 5], "second")


def scaled(build: Builder, x: str) -> str:
    first = build.op(Gemm(beta=0.5), x, build.weights(6, 4), build.weights(4), name="first")
    return typed(build, first, 3, name="second")


def biased_by_rows(build: Builder, x: str) -> str:
    return biased(build, x, build.weights(8, 4))


def test_biases_are_multiplied_by_each_types_weights() -> None:
    """One row per type; if weights are trained, nothing is multiplied in advance."""
    build = Builder("g")
    graph = build.graph(biased(build, build.input(8, 6)))
    made = ReorderLinear().run(graph).graph
    assert [node.kind for node in made.nodes] == ["GatherRows", "TypedLinear", "GatherRows", "Add"]
    assert_same_values(graph, made)
    kept = ReorderLinear(fold=False).run(graph)
    assert not kept.changed
    assert "computed" in kept.notes[-1]


def test_biases_of_heads() -> None:
    build = Builder("g")
    first = build.op(Gemm(), build.input(8, 6), build.weights(6, 4), build.weights(4), name="first")
    rows, weights = build.reshape(first, 8, 2, 2), build.weights(3, 2, 2, 5)
    graph = build.graph(build.op(TypedLinear(), rows, weights, build.constant(BY_TYPE), name="second"))
    made = ReorderLinear().run(graph)
    assert made.changed
    assert_same_values(graph, made.graph)


def other_types(build: Builder, x: str) -> str:
    return typed(build, typed(build, x), 3, [0, 4, 8], "second")


def alone(build: Builder, x: str) -> str:
    return typed(build, build.relu(x), 3, name="second")


def computed_heads(build: Builder, x: str) -> str:
    weights = build.input(3, 4, name="weights")
    return build.op(Gemm(trans_b=True), typed(build, x), weights, name="second")


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (scaled, "second: first, before it, is scaled or transposed"),
        (biased_by_rows, "second: first, before it, adds a value that is computed, trained, or not a vector"),
        (other_types, "second: its types do not determine those of first, before it"),
        (alone, "second: no product is before it"),
        (computed_heads, "second: its weights are computed, and are laid out for another product"),
    ],
)
def test_why_products_stay(write: object, reason: str) -> None:
    assert callable(write)
    build = Builder("g")
    graph: Graph = build.graph(write(build, build.input(8, 6)))
    result = ReorderLinear().run(graph)
    assert not result.changed
    assert reason in result.notes
