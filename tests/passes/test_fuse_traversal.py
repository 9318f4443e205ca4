"""Chains over edges as one kernel: random typed graphs by value, and values that are also read outside the chain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from pimflow.ir import Builder, Elementwise, GatherRows, Graph, SegmentReduce, TypedLinear
from pimflow.passes.fuse_traversal import FuseTraversal
from pimflow.passes.segment_gemm import SegmentGemm
from support.relational import LAYERS, TypedEdges, matrices, random_edges, typed_edges
from support.values import assert_same_values

EXPECTED = {
    "convolution": {"Spmm": 1},
    "attention": {"Spmm": 1, "EdgeSoftmax": 1},
    "transformer": {"Spmm": 1, "EdgeSoftmax": 1, "GatherPairs": 1},
}


@pytest.mark.parametrize("name", EXPECTED)
@settings(max_examples=25)
@given(edges=typed_edges())
def test_nothing_is_written_for_every_edge_that_the_next_kernel_reads(name: str, edges: TypedEdges) -> None:
    graph = LAYERS[name](edges)
    made = FuseTraversal().run(graph).graph
    kinds = [node.kind for node in made.nodes]
    assert {kind: kinds.count(kind) for kind in EXPECTED[name]} == EXPECTED[name]
    assert not {"SegmentReduce", "ReduceSum"} & set(kinds)
    assert_same_values(graph, made)


@settings(max_examples=25)
@given(edges=typed_edges())
def test_a_product_by_type_reads_rows_by_index(edges: TypedEdges) -> None:
    graph = SegmentGemm().run(matrices(edges)).graph
    made = FuseTraversal().run(graph).graph
    (typed,) = (node for node in made.nodes if isinstance(node.op, TypedLinear))
    assert (typed.inputs[0], len(typed.inputs)) == (graph.inputs[0], 4)
    np.testing.assert_array_equal(made.constants[typed.inputs[3]], edges.source[edges.by_type])
    assert_same_values(graph, made)


def products(reader: str = "", heads: bool = False) -> Graph:
    """Two products by type of the same rows, which others may also read."""
    build = Builder("g", opset=18)
    index, pointers = build.constant(np.array([4, 0, 0, 1]), "index"), build.constant(np.array([0, 1, 4]), "pointers")
    rows = build.op(GatherRows(), build.input(5, 6), index, name="rows")
    viewed = build.reshape(rows, 4, 2, 3) if heads else rows
    weights = [build.weights(2, 2, 3, 4) if heads else build.weights(2, 6, 4) for _ in range(2)]
    made = [build.op(TypedLinear(), viewed, weight, pointers) for weight in weights]
    extra = [build.relu(rows)] if reader == "other" else [rows] if reader == "output" else []
    return build.graph(*made, *extra)


@pytest.mark.parametrize("heads", [False, True])
def test_products_that_share_rows_all_read_them_by_index(heads: bool) -> None:
    graph = products(heads=heads)
    made = FuseTraversal().run(graph).graph
    assert [len(node.inputs) for node in made.nodes if node.kind != "Reshape"] == [4, 4], "both products, no gather"
    assert_same_values(graph, made)


@pytest.mark.parametrize("reader", ["output", "other"])
def test_rows_that_others_read_too_are_written_once(reader: str) -> None:
    assert not FuseTraversal().run(products(reader)).changed


def biased(read: str = "", bias: str = "by type", index: bool = False) -> Graph:
    """A row for every type added to a product by type."""
    build = Builder("g", opset=18)
    given = [build.constant(np.array([3, 0, 0, 1, 2]), "index")] if index else []
    pointers = build.constant(np.array([0, 2, 2, 5]), "pointers")
    made = build.op(TypedLinear(), build.input(5, 3), build.weights(3, 3, 4), pointers, *given, name="product")
    picks = {"by type": [0, 0, 2, 2, 2], "others": [0, 1, 2, 2, 2]}[bias]
    rows = build.op(GatherRows(), build.weights(3, 4), build.constant(np.array(picks), "types"), name="biases")
    total = build.op(Elementwise("Add"), *((rows, made) if index else (made, rows)), name="add")
    return build.graph(build.relu(total), *([made] if read else []))


@pytest.mark.parametrize("index", [False, True])
def test_a_term_by_type_is_a_bias(index: bool) -> None:
    graph = biased(index=index)
    made = FuseTraversal().run(graph).graph
    assert [(node.kind, len(node.inputs)) for node in made.nodes] == [("TypedLinear", 5), ("Relu", 1)]
    assert_same_values(graph, made)
    picked = Builder("g", opset=18)
    rows = picked.op(GatherRows(), picked.input(5, 3), picked.constant(np.array([4, 0, 0, 1]), "index"))
    operands = (picked.weights(2, 3, 4), picked.constant(np.array([0, 1, 4])), "", picked.weights(2, 4))
    whole = picked.graph(picked.op(TypedLinear(), rows, *operands))
    read = FuseTraversal().run(whole).graph
    assert [(node.kind, len(node.inputs)) for node in read.nodes] == [("TypedLinear", 5)]
    assert_same_values(whole, read)


@pytest.mark.parametrize(("read", "bias"), [("too", "by type"), ("", "others")])
def test_other_terms_are_not_a_bias(read: str, bias: str) -> None:
    graph = biased(read, bias)
    made = FuseTraversal().run(graph).graph
    assert [node.kind for node in made.nodes][:2] == ["TypedLinear", "GatherPairs"]
    assert_same_values(graph, made)


def reduced(messages: str, reduce: str = "sum") -> Graph:
    """Rows of edges in several forms, reduced."""
    build = Builder("g", opset=18)
    x, weight = build.input(5, 2, 3), build.input(6, 2, 3, name="weight")
    rowptr = build.constant(np.array([0, 2, 2, 6]), "rowptr")
    rows = build.op(GatherRows(), x, build.constant(np.array([4, 0, 0, 1, 3, 2], np.int32), "col"))
    factors = {"plain": None, "full": weight, "edges": build.weights(6, 1, 1), "heads": build.weights(6, 2, 1)}
    made = rows if factors.get(messages) is None else build.op(Elementwise("Mul"), rows, str(factors[messages]))
    made = build.relu(rows) if messages == "computed" else made
    total = build.op(SegmentReduce(reduce, 0.5, -1.0), build.reshape(made, 6, 6), rowptr, name="sum")
    return build.graph(total, *([made] if messages == "read" else []))


@pytest.mark.parametrize("reduce", ["sum", "max"])
@pytest.mark.parametrize("messages", ["plain", "edges", "heads"])
def test_reductions_of_gathered_rows(messages: str, reduce: str) -> None:
    graph = reduced(messages, reduce)
    made = FuseTraversal().run(graph).graph
    assert [node.kind for node in made.nodes if node.kind != "Reshape"] == ["Spmm"]
    assert_same_values(graph, made)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ("computed", "sum: its operand is neither rows picked by a constant index nor such rows times weights"),
    ],
)
def test_why_a_reduction_stays(messages: str, reason: str) -> None:
    result = FuseTraversal().run(reduced(messages))
    assert not result.changed
    assert result.notes == (reason,)


def test_messages_that_others_read_are_written() -> None:
    build = Builder("g")
    x = build.input(5, 3)
    rows = build.op(GatherRows(), x, build.constant(np.array([4, 0, 0], np.int32), "col"))
    messages = build.op(Elementwise("Mul"), rows, build.weights(3, 1))
    total = build.op(SegmentReduce(), messages, build.constant(np.array([0, 2, 3]), "rowptr"), name="sum")
    graph = build.graph(total, build.relu(messages))
    assert FuseTraversal().run(graph).notes == ("sum: other nodes also read its messages",)


@pytest.mark.parametrize("kind", ["Add", "Mul", "Sub"])
def test_two_rows_of_every_edge_are_one_kernel(kind: str) -> None:
    edges = random_edges(9, 1, 30)
    build = Builder("g", opset=18)
    x, y = build.input(9, 4), build.input(9, 2, 2, name="y")
    one = build.op(GatherRows(), x, build.constant(edges.source, "source"))
    other = build.reshape(build.op(GatherRows(), y, build.constant(edges.destination, "destination")), 30, 4)
    graph = build.graph(build.op(Elementwise(kind), one, other, name="pair"))
    result = FuseTraversal().run(graph)
    assert result.changed == (kind != "Sub")
    assert_same_values(graph, result.graph)
    assert not FuseTraversal(("pair",)).run(graph).changed
