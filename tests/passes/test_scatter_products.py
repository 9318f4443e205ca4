"""Products by type that are summed at their destinations: random typed graphs by value, and unchanged cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from pimflow.ir import Builder, Graph, Spmm, TypedLinear, TypedSpmm
from pimflow.passes import FuseEpilogues, PassManager
from pimflow.passes.fuse_traversal import FuseTraversal
from pimflow.passes.scatter_products import ScatterProducts
from pimflow.passes.segment_gemm import SegmentGemm
from support.relational import LAYERS, TypedEdges, typed_edges
from support.values import assert_same_values

FUSED = PassManager((SegmentGemm(), FuseTraversal()))
EXPECTED = {"convolution": 1, "matrices": 1, "heads": 1, "loop": 1, "transformer": 1, "attention": 0}
"""Number of sums of products by type; those of attention are also read by its logits."""


@pytest.mark.parametrize("name", EXPECTED)
@settings(max_examples=20)
@given(edges=typed_edges())
def test_summed_products_by_type_are_not_written(name: str, edges: TypedEdges) -> None:
    graph = FUSED.run(LAYERS[name](edges)).graph
    result = ScatterProducts().run(graph)
    kinds = [node.kind for node in result.graph.nodes]
    sums = EXPECTED[name] if name != "loop" or edges.types > 1 else 0
    assert kinds.count("TypedSpmm") == len(result.sites) == sums
    assert kinds.count("TypedLinear") + sums == sum(isinstance(node.op, TypedLinear) for node in graph.nodes)
    assert_same_values(LAYERS[name](edges), result.graph)


def summed(
    op: Spmm | None = None, shared: str = "", weight: tuple[int, ...] = (), view: bool = False, computed: bool = False
) -> Graph:
    """Five products of two types, added up in three rows; the second row has no edges."""
    build = Builder("g", opset=18)
    pointers = build.constant(np.array([0, 2, 5]), "pointers")
    made = build.op(TypedLinear(), build.input(5, 3), build.weights(2, 3, 4), pointers, name="product")
    rows = build.reshape(made, 5, 2, 2) if view else made
    rowptr = np.array([0, 2, 2, 6])
    structure = build.input(4, name="rowptr", dtype="int64") if computed else build.constant(rowptr, "rowptr")
    weights = [build.input(*weight, name="weight")] if weight else []
    col = build.constant(np.array([4, 0, 0, 1, 3, 2], np.int32), "col")
    total = build.op(op or Spmm(), rows, structure, col, *weights, name="sum")
    result = build.relu(total, name="relu")
    extra = [build.relu(made)] if shared == "product" else [rows] if shared == "output" else []
    return build.graph(result, *extra)


@pytest.mark.parametrize(("weight", "view"), [((), False), ((), True), ((6,), False), ((6,), True), ((6, 2), True)])
def test_weights_of_edges_and_heads_go_with_the_sum(weight: tuple[int, ...], view: bool) -> None:
    graph = summed(weight=weight, view=view)
    made = ScatterProducts().run(graph).graph
    assert [node.kind for node in made.nodes] == ["TypedSpmm", "Relu"]
    assert made.nodes[0].op == TypedSpmm((2, 2) if view else ())
    assert_same_values(graph, made)


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (summed(Spmm("max")), "sum: it is not a plain sum"),
        (summed(Spmm(start=1.0)), "sum: it is not a plain sum"),
        (summed(shared="product"), "sum: other nodes also read its products"),
        (summed(shared="output", view=True), "sum: other nodes also read its products"),
        (summed(computed=True), "sum: its edges are only known at run time"),
    ],
)
def test_why_a_sum_stays(graph: Graph, reason: str) -> None:
    result = ScatterProducts().run(graph)
    assert not result.changed
    assert result.notes == (reason,)


def test_products_with_a_bias_stay() -> None:
    """A bias would be added once per edge."""
    build = Builder("g", opset=18)
    structure = [build.constant(np.array(ids), name) for ids, name in (([0, 2, 4], "rowptr"), ([1, 0, 0, 2], "col"))]
    operands = (build.weights(1, 3, 4), build.constant(np.array([0, 3])), "", build.weights(1, 4))
    made = build.op(TypedLinear(), build.input(3, 3), *operands)
    result = ScatterProducts().run(build.graph(build.op(Spmm(), made, *structure, name="sum")))
    assert result.notes == ("sum: its products have a bias",)


def test_an_excluded_sum_stays_without_a_note() -> None:
    result = ScatterProducts(("sum",)).run(summed())
    assert (result.changed, result.notes) == (False, ())


def test_accumulating_kernels_have_no_epilogue() -> None:
    graph = FuseEpilogues(residual=True).run(summed()).graph
    assert graph.node("relu").placement.fused_into == "sum"
    made = ScatterProducts().run(graph).graph
    assert made.node("relu").placement.fused_into is None
    assert not FuseEpilogues(residual=True).run(made).changed
