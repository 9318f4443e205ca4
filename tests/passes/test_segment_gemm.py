"""Matrices by type as one product of rows by type: random typed graphs, by value, and cases without such a form."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings

from pimflow.ir import Builder, Elementwise, GatherRows, Gemm, Graph, MatMul, Spmm, Transpose, TypedLinear
from pimflow.passes.differentiate import Differentiate
from pimflow.passes.parameters import parameters
from pimflow.passes.segment_gemm import SegmentGemm
from support.relational import LAYERS, TypedEdges, by_destination, loop, matrices, random_edges, typed_edges
from support.sparse_graphs import edge_list, rows_of
from support.values import assert_same_values

EDGES = random_edges(20, 4, 90)


def kinds(graph: Graph) -> list[str]:
    return [node.kind for node in graph.nodes]


@settings(max_examples=30)
@given(typed_edges())
def test_matrices_by_edge_become_matrices_by_type(edges: TypedEdges) -> None:
    graph = matrices(edges)
    made = SegmentGemm().run(graph)
    assert made.changed
    assert "MatMul" not in kinds(made.graph)
    assert graph.node("picked").output not in made.graph.values
    assert max(len(made.graph.shape(node.output)) for node in made.graph.nodes if node.kind != "Reshape") == 2
    assert_same_values(graph, made.graph)


@settings(max_examples=30)
@given(typed_edges())
@pytest.mark.parametrize("reduce", ["sum", "max", "min"])
def test_a_loop_over_types_is_one_product(reduce: str, edges: TypedEdges) -> None:
    graph = loop(edges, (reduce,))
    made = SegmentGemm().run(graph)
    assert made.changed == (edges.types > 1)
    assert_same_values(graph, made.graph)
    if made.changed:
        assert kinds(made.graph).count("Spmm") == 2
        (typed,) = (node for node in made.graph.nodes if node.kind == "TypedLinear")
        reached = len(set(zip(edges.destination.tolist(), edges.kind.tolist(), strict=True)))
        assert made.graph.shape(typed.inputs[0])[0] == reached, "vertices without edges of a type have no row"


def test_types_with_the_most_common_reduction_are_one_product() -> None:
    graph = loop(EDGES, ("sum", "max", "sum", "sum"))
    made = SegmentGemm().run(graph).graph
    (typed,) = (node for node in made.nodes if node.kind == "TypedLinear")
    assert made.shape(typed.inputs[1])[0] == 3
    assert sorted(node.op.reduce for node in made.nodes if isinstance(node.op, Spmm)) == ["max", "sum", "sum"]
    assert_same_values(graph, made)


def test_a_matrix_for_every_edge_and_head() -> None:
    build = Builder("g")
    rows = build.reshape(build.input(9, 2, 4), 9, 2, 1, 4)
    types = build.constant(np.array([2, 0, 2, 1, 1, 0, 2, 2, 0]), "types")
    picked = build.op(GatherRows(), build.weights(3, 2, 4, 5), types)
    graph = build.graph(build.op(MatMul(), rows, picked, name="product"))
    made = SegmentGemm().run(graph).graph
    assert "MatMul" not in kinds(made)
    assert_same_values(graph, made)


def heads_apart(pointers: list[int], heads: int = 2, read: bool = False, folded: bool = True) -> Graph:
    """Rows [5, heads, 3] multiplied head by head, with a matrix for each part of them, as HGTConv is exported."""
    build = Builder("g")
    x = build.input(5, heads, 3)
    rows = build.reshape(build.op(Transpose((1, 0, 2)), x), heads * 5, 3)
    shape = (len(pointers) - 1, 3, 4)
    weights = build.weights(*shape) if folded else build.input(*shape)
    operands = (rows, weights, build.constant(np.array(pointers), "pointers"))
    product = build.op(TypedLinear(), *operands, name="product")
    back = build.op(Transpose((1, 0, 2)), build.reshape(product, heads, 5, 4), name="back")
    return build.graph(back, *([product] if read else []))


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("bounds", [[0, 2, 5], [0, 0, 3, 3, 5], [0, 5]])
def test_heads_one_after_the_other_are_heads_of_one_product(bounds: list[int], folded: bool) -> None:
    graph = heads_apart([*bounds[:-1], *(5 + bound for bound in bounds)], folded=folded)
    made = SegmentGemm().run(graph).graph
    (typed,) = (node for node in made.nodes if node.kind == "TypedLinear")
    assert (typed.inputs[0], made.shape(typed.inputs[1])) == (graph.inputs[0], (len(bounds) - 1, 2, 3, 4))
    assert kinds(made) == ["TypedLinear"] if folded else ["Reshape", "Transpose", "TypedLinear"]
    assert_same_values(graph, made)


@pytest.mark.parametrize(
    "graph",
    [
        heads_apart([0, 2, 5, 8, 10]),  # heads are divided differently
        heads_apart([0, 2, 7, 10]),  # not divided by heads at all
        heads_apart([0, 1, 5, 6, 10], read=True),
    ],
)
def test_heads_that_stay_apart(graph: Graph) -> None:
    assert not SegmentGemm().run(graph).changed


@pytest.mark.parametrize("fold", [True, False])
def test_a_bias_of_zeros_stays_where_it_is_trained(fold: bool) -> None:
    build = Builder("g")
    x, terms = build.input(12, 6), [build.constant(np.zeros((12, 5), np.float32), "zeros")]
    for index in range(2):
        edges = rows_of(edge_list(12, 40 + index), 12)
        total = build.op(Spmm(), x, build.constant(edges.rowptr, "rowptr"), build.constant(edges.col, "col"))
        terms.append(build.op(MatMul(), total, build.weights(6, 5)))
    terms.append(build.constant(np.zeros(5, np.float32), "bias"))
    graph = build.graph(build.op(Elementwise("Sum"), *terms))
    made = SegmentGemm(fold=fold).run(graph).graph
    assert kinds(made) == ["Spmm", "TypedLinear", "Spmm"] + ["Add"] * (not fold), "a sum starts from the other zeros"
    assert_same_values(graph, made)


def test_excluded_nodes_stay() -> None:
    for layer, name in (("loop", "add_3"), ("matrices", "product")):
        graph = LAYERS[layer](EDGES)
        result = SegmentGemm((name,)).run(graph)
        assert not result.changed
        assert result.graph is graph


def by_blocks(equation: str = "abc,bcd->abd", weights: tuple[int, ...] = (2, 3, 4), read: bool = False) -> Graph:
    """A loop over two relations with block-diagonal weights, as RGCNs with `num_blocks` are exported."""
    build = Builder("g")
    x, terms = build.input(12, 6), []
    for index, count in enumerate((40, 55)):
        edges = rows_of(edge_list(12, count), 12)
        structure = [build.constant(edges.rowptr, "rowptr"), build.constant(edges.col, "col")]
        blocks = build.reshape(build.op(Spmm(), x, *structure, name=f"sum_{index}"), 12, 2, 3)
        operands = (blocks, build.weights(*weights))
        made = build.onnx("Einsum", *operands, shape=(12, 2, 4), equation=equation, name=f"product_{index}")
        terms.append(build.reshape(made, 12, 8))
    total = build.op(Elementwise("Add"), *terms, name="add")
    return build.graph(total, *([terms[0]] if read else []))


def test_a_loop_over_types_with_blocks_is_one_product_of_heads() -> None:
    graph = by_blocks()
    made = SegmentGemm().run(graph)
    assert made.changed
    assert "Einsum" not in kinds(made.graph)
    (typed,) = (node for node in made.graph.nodes if node.kind == "TypedLinear")
    assert made.graph.shape(typed.inputs[1]) == (2, 2, 3, 4)
    assert_same_values(graph, made.graph)


def test_blocks_with_other_readers() -> None:
    result = SegmentGemm().run(by_blocks(read=True))
    assert (result.changed, result.notes) == (False, ("add: other nodes also read product_0 or the sum before it",))


def test_an_einsum_that_is_no_product_of_blocks() -> None:
    """The axes of its weights are in another order."""
    assert not SegmentGemm().run(by_blocks("abc,cbd->abd", (3, 2, 4))).changed


def summed(biased: bool = False, reduce: str = "sum", empty: float = 0.0, alpha: float = 1.0, rows: int = 1) -> Graph:
    """The sum of two products, each after a sum over edges."""
    build = Builder("g")
    edges = rows_of(edge_list(12, 40), 12)
    structure = [build.constant(edges.rowptr, "rowptr"), build.constant(edges.col, "col")]
    inputs = [build.input(12, 6, name=f"x{index}") for index in range(rows)]
    products = []
    for index in range(2):
        total = build.op(Spmm(reduce, empty=empty), inputs[index % rows], *structure, name=f"sum_{index}")
        bias = [build.weights(5)] if biased else []
        products.append(build.op(Gemm(alpha=alpha), total, build.weights(6, 5), *bias, name=f"product_{index}"))
    return build.graph(build.op(Elementwise("Add"), *products, name="add"))


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (summed(alpha=2.0), "add: product_0 is scaled, transposed, or adds a bias"),
        (summed(alpha=2.0, rows=2), "add: product_0 is scaled, transposed, or adds a bias"),
        (
            loop(by_destination(3, 2, *(np.zeros(0, np.int64),) * 3)),
            "add_1: it has no edges",
        ),
    ],
)
def test_a_sum_that_is_no_loop_over_types_stays(graph: Graph, reason: str) -> None:
    result = SegmentGemm().run(graph)
    assert (result.changed, result.notes) == (False, (reason,))


def test_a_sum_without_rows_stays() -> None:
    """Values of the edges of a graph that has none."""
    build = Builder("g")
    scaled = build.op(Elementwise("Mul"), build.input(0, 4), build.weights(4))
    graph = build.graph(build.op(Elementwise("Add"), scaled, build.input(0, 4)))
    assert not SegmentGemm().run(graph).changed


@pytest.mark.parametrize(
    "graph",
    [summed(True), summed(reduce="max"), summed(reduce="max", empty=1.0), summed(rows=2), summed(True, rows=2)],
)
def test_products_after_equal_reductions_become_one(graph: Graph) -> None:
    made = SegmentGemm().run(graph).graph
    assert [kinds(made).count(kind) for kind in ("TypedLinear", "Gemm", "Spmm")] == [1, 0, 2]
    assert_same_values(graph, made)


def test_matrices_gathered_at_run_time_stay() -> None:
    build = Builder("g")
    x, types = build.input(6, 1, 4), build.input(6, name="types", dtype="int64")
    picked = build.op(GatherRows(), build.weights(3, 4, 5), types)
    graph = build.graph(build.op(MatMul(), x, picked, name="product"))
    reason = "product: the matrix of each row is only known at run time"
    assert SegmentGemm().run(graph).notes == (reason,)


def of_tables(columns: int = 8, twice: bool = False, read: bool = False) -> Graph:
    """Sums over edges from two tables, times weights, and two products of the vertices themselves, added up."""
    build, rng = Builder("g"), np.random.default_rng(0)
    own, terms = build.input(12, 5, name="own"), list[str]()
    for index, (sources, width) in enumerate(((20, 6), (9, 4))):
        ends = np.sort(rng.integers(0, 12, 40))
        rowptr = build.constant(np.searchsorted(ends, np.arange(13)), "rowptr")
        col = build.constant(rng.integers(0, sources, 40), "col")
        total = build.op(Spmm(), build.input(sources, width, name=f"x{index}"), rowptr, col)
        turned = index == 1
        weights = build.weights(columns, width) if turned else build.weights(width, columns)
        terms.append(build.op(Gemm(trans_b=turned), total, weights, build.weights(columns), name=f"product_{index}"))
        terms.append(build.op(MatMul(), own, build.weights(5, columns), name=f"of_itself_{index}"))
    terms.append(build.input(12, columns, name="other"))
    total = terms[0]
    for term in [*terms[1:], *([terms[0]] if twice else [])]:
        total = build.op(Elementwise("Add"), total, term)
    return build.graph(total, *([terms[0]] if read else []))


def test_sums_over_edges_of_different_tables_are_one_product() -> None:
    """The products of the vertices themselves, all of one table, become one with the sum of their weights."""
    graph = of_tables()
    made = SegmentGemm().run(graph).graph
    assert kinds(made) == ["Spmm", "Spmm", "Concat", "Gemm", "Add"]
    (joined,) = (node for node in made.nodes if isinstance(node.op, Gemm))
    assert made.shape(joined.inputs[1]) == (6 + 5 + 4, 8)
    assert_same_values(graph, made)


def test_trained_weights_are_summed_by_nodes() -> None:
    """Each stays a parameter; the gradient of the sum, which both share, is one product."""
    graph = of_tables()
    made = SegmentGemm(fold=False).run(graph).graph
    assert Counter(kinds(made)) == Counter(
        ["Spmm", "Spmm", "Concat", "Concat", "Gemm"] + ["Add"] * len(("other", "bias", "weights of itself"))
    )
    assert_same_values(graph, made)
    elements = [sum(one.constants[name].size for name in parameters(one)) for one in (graph, made)]
    assert elements[0] == elements[1]
    products = [
        sum(node.op.is_contraction for node in Differentiate(wrt=parameters(one)).run(one).graph.nodes)
        for one in (graph, made)
    ]
    assert products[1] < products[0]
    folded = SegmentGemm().run(graph).graph
    assert sum(folded.constants[name].size for name in parameters(folded)) < elements[0]


def test_narrowing_weights_stay_with_their_sum() -> None:
    """They may be multiplied before the sum, so only the products of the vertices themselves are combined."""
    graph = of_tables(columns=4)
    made = SegmentGemm().run(graph).graph
    assert sorted(kinds(made)) == ["Add", "Add", "Concat", "Gemm", "Gemm", "Spmm", "Spmm"]
    assert_same_values(graph, made)


@pytest.mark.parametrize("graph", [of_tables(columns=3), of_tables(twice=True), of_tables(read=True)])
def test_sums_of_tables_keep_their_values(graph: Graph) -> None:
    """Only shorter rows, with a term that is added twice, and one that is also read by others."""
    assert_same_values(graph, SegmentGemm().run(graph).graph)


def test_a_term_that_is_added_twice_counts_twice() -> None:
    build, edges = Builder("g"), rows_of(edge_list(12, 40), 12)
    structure = [build.constant(edges.rowptr, "rowptr"), build.constant(edges.col, "col")]
    totals = [build.op(Spmm(), build.input(12, 6) if not index else "x", *structure) for index in range(2)]
    first, second = (build.op(MatMul(), total, build.weights(6, 5)) for total in totals)
    twice = build.op(Elementwise("Add"), first, first)
    graph = build.graph(build.op(Elementwise("Add"), twice, second))
    assert_same_values(graph, SegmentGemm().run(graph).graph)
