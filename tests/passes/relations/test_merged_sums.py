"""Loops over relations as one pass over all edges: random typed graphs, against ONNX Runtime, and loops whose
iterations differ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from pimflow.ir import Builder, Elementwise, Graph, Spmm
from pimflow.passes import PassManager, RemoveDeadCode
from pimflow.passes.differentiate import Differentiate, training_step
from pimflow.passes.fuse_traversal import FuseTraversal
from pimflow.passes.parameters import parameters
from pimflow.passes.segment_gemm import SegmentGemm
from support.relational import TypedEdges, attentions, by_destination, film, largest, loop, random_edges, typed_edges
from support.sparse_graphs import edge_list, rows_of
from support.values import assert_same_values

EDGES = random_edges(20, 4, 90)
GATHERS = ("Spmm", "SegmentReduce", "Sddmm", "EdgeSoftmax", "GatherPairs", "GatherRows")


def over_edges(graph: Graph) -> list[str]:
    return sorted(node.kind for node in graph.nodes if node.kind in GATHERS)


@settings(deadline=None, max_examples=15)
@given(typed_edges())
def test_functions_of_edges_are_computed_for_all_relations_at_once(edges: TypedEdges) -> None:
    graph = film(edges)
    made = SegmentGemm().run(graph)
    assert made.changed == (edges.types > 1)
    assert_same_values(graph, made.graph)
    if made.changed:
        assert over_edges(made.graph)[:2] == ["GatherPairs", "GatherRows"]
        assert over_edges(made.graph)[2:] in (["Spmm"], ["SegmentReduce"]), (
            "without weights, if no mean is over several edges"
        )
        assert len([node for node in made.graph.nodes if node.kind in ("MatMul", "Gemm")]) == 3, "concatenated weights"
    assert_same_values(graph, FuseTraversal().run(made.graph).graph)


@settings(deadline=None, max_examples=15)
@given(typed_edges())
def test_relations_whose_results_are_summed_directly(edges: TypedEdges) -> None:
    graph = film(edges, "max")
    made = SegmentGemm().run(graph).graph
    if edges.types > 1:
        assert over_edges(made) == ["GatherPairs", "GatherRows", "SegmentReduce", "Spmm"]
    assert_same_values(graph, made)


@settings(deadline=None, max_examples=15)
@given(typed_edges())
@pytest.mark.parametrize("stack", ["", "ReduceSum", "ReduceMean"])
@pytest.mark.parametrize("projected", [False, True])
def test_attention_in_relations_of_several_tables(projected: bool, stack: str, edges: TypedEdges) -> None:
    graph = attentions(edges, stack, projected=projected)
    made = SegmentGemm().run(graph).graph
    assert_same_values(graph, made)
    assert_same_values(graph, FuseTraversal().run(made).graph)
    if edges.types > 1:
        assert [over_edges(made).count(kind) for kind in ("EdgeSoftmax", "Spmm")] == [1, 1]


@settings(deadline=None, max_examples=15)
@given(typed_edges())
@pytest.mark.parametrize("pairing", ["Add", "Mul"])
def test_products_of_shared_and_separate_tables_share_one_kernel(pairing: str, edges: TypedEdges) -> None:
    graph = largest(edges, pairing=pairing)
    made = PassManager((SegmentGemm(), FuseTraversal())).run(graph).graph
    assert_same_values(graph, made)
    if edges.types > 1:
        assert over_edges(made) == ["GatherPairs", "Spmm"]
        assert not [node for node in made.nodes if node.kind == pairing]


def test_products_joined_in_another_way_stay() -> None:
    graph = largest(EDGES, pairing="Sub")
    assert not SegmentGemm().run(graph).changed


def test_all_relations_take_the_kernels_of_one() -> None:
    made = PassManager((SegmentGemm(), FuseTraversal())).run(film(EDGES)).graph
    assert over_edges(made) == ["GatherPairs", "GatherPairs", "Spmm"]
    rows = [made.shape(node.output)[0] for node in made.nodes if node.kind == "GatherPairs"]
    assert rows == [90, 90]


def test_weights_that_are_trained_are_all_there() -> None:
    for layer in (film, attentions):
        graph = layer(EDGES)
        made = SegmentGemm(fold=False).run(graph).graph
        counts = [sum(one.constants[name].size for name in parameters(one)) for one in (graph, made)]
        assert counts[0] == counts[1]


def test_gradients_of_the_whole_are_those_of_the_loop() -> None:
    graph = film(EDGES)
    made = SegmentGemm(fold=False).run(graph).graph
    (x,) = graph.inputs
    steps = [training_step(one, Differentiate(wrt=(x,))).graph for one in (graph, made)]
    before, after = (step.replace(outputs=(step.outputs[-1],)) for step in steps)
    assert_same_values(before, after)


def test_values_with_other_readers_stay() -> None:
    graph = film(EDGES)
    seen = graph.node("rows_1").output
    graph = graph.replace(outputs=(*graph.outputs, seen))
    made = SegmentGemm().run(graph).graph
    assert made.node("rows_1").output == seen
    assert over_edges(made) == ["GatherPairs", "GatherRows", "Spmm"]
    assert_same_values(graph, made)


def sums(ops: tuple[Spmm, Spmm] = (Spmm(), Spmm()), factor: int = 0) -> Graph:
    """Two sums over edges, one of them optionally times a factor that the rows do not share."""
    build = Builder("g", opset=18)
    x, terms = build.input(12, 6), []
    for index, op in enumerate(ops):
        edges = rows_of(edge_list(12, 40 + index), 12)
        rows = build.op(Elementwise("Abs"), x) if index else build.relu(x)
        total = build.op(op, rows, build.constant(edges.rowptr, "rowptr"), build.constant(edges.col, "col"))
        terms.append(build.mul(total, build.weights(factor, 6)) if factor and index else total)
    return build.graph(build.op(Elementwise("Add"), *terms, name="add"))


@pytest.mark.parametrize(
    "graph",
    [
        sums((Spmm(), Spmm("max"))),
        sums(factor=12),
        loop(by_destination(3, 2, *(np.zeros(0, np.int64),) * 3)),
        loop(random_edges(5, 1, 9)),
    ],
)
def test_loops_whose_iterations_differ_stay(graph: Graph) -> None:
    assert not SegmentGemm().run(graph).changed


def test_sums_stacked_with_a_learnt_table_stay() -> None:
    build = Builder("g", opset=18)
    x, parts = build.input(12, 6), []
    for seed in range(2):
        edges = rows_of(edge_list(12, 40 + seed), 12)
        summed = build.op(Spmm(), x, build.constant(edges.rowptr, "rowptr"), build.constant(edges.col, "col"))
        parts.append(build.reshape(summed, 1, 12, 6))
    graph = build.graph(build.concat(0, *parts, build.weights(1, 12, 6)))
    assert not SegmentGemm().run(graph).changed


def test_sums_over_edges_of_tables_that_are_not_alike() -> None:
    graph = sums()
    made = SegmentGemm().run(graph).graph
    assert [node.kind for node in made.nodes if node.kind not in ("Relu", "Abs")] == ["Concat", "Spmm"]
    assert_same_values(graph, made)


def test_a_factor_shared_by_all_rows_may_be_distributed() -> None:
    build = Builder("g", opset=18)
    x, bias, terms = build.input(12, 6), build.weights(6), []
    for index in range(2):
        edges = rows_of(edge_list(12, 40 + index), 12)
        rows = build.op(Spmm(), x, build.constant(edges.rowptr, "rowptr"), build.constant(edges.col, "col"))
        terms.append(build.reshape(build.add(rows, bias), 1, 12, 6))
    axes = build.constant(np.array([0]), "axes")
    graph = build.graph(build.onnx("ReduceSum", build.concat(0, *terms), axes, shape=(12, 6), keepdims=0))
    made = SegmentGemm().run(graph).graph
    assert [node.kind for node in made.nodes] == ["Spmm", "Add", "Add"]
    assert_same_values(graph, made)


@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceMean"])
@pytest.mark.parametrize("empty", [1, 2])
@pytest.mark.parametrize("relations", [1, 2])
def test_constant_terms_of_a_stack_are_one_constant_next_to_what_the_others_become(
    relations: int, empty: int, kind: str
) -> None:
    """A relation without edges contributes its bias alone."""
    build = Builder("g", opset=18)
    x, terms = build.input(12, 6), [build.weights(1, 12, 6) for _ in range(empty)]
    for index in range(relations):
        edges = rows_of(edge_list(12, 40 + index), 12)
        rows = build.op(Spmm(), x, build.constant(edges.rowptr, "rowptr"), build.constant(edges.col, "col"))
        terms.append(build.reshape(build.add(rows, build.weights(6)), 1, 12, 6))
    axes = build.constant(np.array([0]), "axes")
    graph = build.graph(build.onnx(kind, build.concat(0, *terms), axes, shape=(12, 6), keepdims=0))
    made = PassManager((SegmentGemm(), RemoveDeadCode())).run(graph).graph
    kinds = [node.kind for node in made.nodes]
    assert (kinds.count("Spmm"), "Concat" in kinds, kind in kinds) == (1, False, False)
    if relations == 1:
        assert kinds == ["Spmm", "Add", *(["Mul"] if kind == "ReduceMean" else [])]
    assert_same_values(graph, made)
    assert not SegmentGemm(fold=False).run(graph).changed or relations > 1
