"""One product per pair of a row and a type: random typed graphs by value, with the pairs counted by a set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from pimflow.errors import GraphError
from pimflow.ir import Builder, Elementwise, GatherRows, Graph, MatMul, Sddmm, TypedLinear
from pimflow.passes.compact_materialization import CompactMaterialization
from pimflow.passes.fuse_traversal import FuseTraversal
from support.relational import LAYERS, Longs, TypedEdges, attention, random_edges, typed_edges
from support.values import assert_same_values

EDGES = random_edges(20, 4, 90)


def pairs(edges: TypedEdges, ends: Longs) -> int:
    return len(set(zip(ends.tolist(), edges.kind.tolist(), strict=True)))


def rows_of_products(graph: Graph) -> dict[str, int]:
    return {node.name: graph.shape(node.output)[0] for node in graph.nodes if node.kind == "TypedLinear"}


@pytest.mark.parametrize("name", ["convolution", "attention", "transformer", "heads"])
@settings(max_examples=25)
@given(edges=typed_edges())
def test_rows_are_pairs_that_occur(name: str, edges: TypedEdges) -> None:
    graph = LAYERS[name](edges)
    made = CompactMaterialization().run(graph)
    assert_same_values(graph, made.graph)
    assert_same_values(graph, FuseTraversal().run(made.graph).graph)
    for node, rows in rows_of_products(made.graph).items():
        assert rows == pairs(edges, edges.destination if node == "typed_i" else edges.source)
    left = [node for node, rows in rows_of_products(graph).items() if rows == rows_of_products(made.graph)[node]]
    notes = tuple(note for note in made.notes if "pair of a row and a type" in note)
    assert notes == tuple(f"{node}: no pair of a row and a type occurs twice in {len(edges.kind):,}" for node in left)


def test_followers_use_pairs_and_edge_values_are_expanded_where_read() -> None:
    made = CompactMaterialization().run(attention(EDGES)).graph
    assert made.shape(made.node("logit_i").output) == (pairs(EDGES, EDGES.destination), 2)
    assert made.shape(made.node("logit_j").output) == (pairs(EDGES, EDGES.source), 2)
    assert [made.shape(node.output) for node in made.nodes if node.name.endswith("_of_edges")] == [
        (90, 2),
        (90, 2),
        (90, 2, 4),
    ]


def test_two_products_of_the_same_pairs_read_them_once() -> None:
    made = CompactMaterialization().run(LAYERS["transformer"](EDGES)).graph
    key, value = (made.node(name).inputs for name in ("key", "value"))
    assert key[0] == value[0]
    assert key[2] == value[2]


def test_excluded_products_stay_and_must_exist() -> None:
    graph = attention(EDGES)
    made = CompactMaterialization(("typed_j",)).run(graph).graph
    assert rows_of_products(made) == {"typed_i": pairs(EDGES, EDGES.destination), "typed_j": 90}
    assert_same_values(graph, made)
    with pytest.raises(GraphError, match="no node 'typed'"):
        CompactMaterialization(("typed",)).run(graph)


def test_rows_without_types_are_multiplied_once_each() -> None:
    build = Builder("g")
    x = build.input(8, 6)
    index = build.constant(np.array([1, 5, 1, 5, 5, -7], np.int32), "index")
    rows = build.op(MatMul(), build.op(GatherRows(), x, index), build.weights(6, 3), name="product")
    graph = build.graph(build.op(Elementwise("Relu"), rows))
    made = CompactMaterialization().run(graph).graph
    assert made.shape(made.node("product").output) == (2, 3), "rows 1 and 5; -7 is 1"
    assert made.outputs == graph.outputs
    assert_same_values(graph, made)


def test_edge_ops_read_pairs_and_others_get_expanded_values() -> None:
    """`Sddmm` reads sources by an index, but not destinations; an Add does not read other rows that way either."""
    build = Builder("g")
    x = build.input(4, 6)
    index = build.constant(np.array([0, 1, 0, 1], np.int32), "index")
    rowptr = build.constant(np.array([0, 2, 3, 3, 4]), "rowptr")
    col = build.constant(np.array([3, 0, 2, 1], np.int32), "col")
    pointers = build.constant(np.array([0, 2, 4]), "types")
    rows = build.op(TypedLinear(), build.op(GatherRows(), x, index), build.weights(2, 6, 3), pointers, name="distinct")
    twice = build.op(GatherRows(), rows, build.constant(np.array([0, 0, 1, 3]), "twice"))
    typed = build.op(
        TypedLinear(), twice, build.weights(1, 3, 3), build.constant(np.array([0, 4]), "one"), name="typed"
    )
    paired = build.op(Sddmm(), typed, typed, rowptr, col, name="ends")
    graph = build.graph(build.op(Elementwise("Add"), paired, build.weights(4, 3)), typed)
    result = CompactMaterialization().run(graph)
    made = result.graph
    assert result.notes == ("distinct: no pair of a row and a type occurs twice in 4",)
    assert made.shape(made.node("ends").inputs[0]) == (3, 3)
    assert made.shape(made.node("ends").inputs[1]) == (4, 3)
    assert_same_values(graph, made)


def test_why_a_product_stays() -> None:
    build = Builder("g")
    x, types = build.input(8, 6), build.input(3, name="types", dtype="int64")
    plain = build.op(TypedLinear(), x, build.weights(1, 6, 3), build.constant(np.array([0, 8]), "all"), name="plain")
    rows = build.op(GatherRows(), x, build.constant(np.zeros(4, np.int32), "index"))
    computed = build.op(TypedLinear(), rows, build.weights(2, 6, 3), types, name="computed")
    result = CompactMaterialization().run(build.graph(plain, computed))
    assert not result.changed
    assert result.notes == (
        "plain: its rows are not picked by a constant index",
        "computed: the types of its rows are only known at run time",
    )
