"""Products of several tables as one kernel: values against ONNX Runtime, and where grouping pays."""

from __future__ import annotations

import pytest

from pimflow.ir import Builder, Elementwise, Gemm, Graph, MatMul, Spmm
from pimflow.options import Options
from pimflow.passes import PassManager
from pimflow.passes.group_products import GroupProducts
from pimflow.passes.parameters import parameters
from pimflow.runtime.costs import CostModel
from pimflow.search.relational_form import relational_form
from pimflow.targets import load_target
from support.sparse_graphs import edge_list, rows_of
from support.values import assert_same_values


def kinds_of_vertices(rows: tuple[int, ...], columns: int = 6, biased: bool = False, layers: int = 1) -> Graph:
    """For each kind of vertex, a product of its table, summed over its edges; another product of the first table."""
    build = Builder("g", opset=18)
    tables = [build.input(count, columns, name=f"x{index}") for index, count in enumerate(rows)]
    extra = build.op(MatMul(), tables[0], build.weights(columns, columns), name="extra")
    for layer in range(layers):
        for index, count in enumerate(rows):
            bias = [build.weights(columns)] if biased else []
            weights = build.weights(columns, columns)
            made = build.op(Gemm(trans_b=True), tables[index], weights, *bias, name=f"layer_{layer}_{index}")
            edges = rows_of(edge_list(count, 3 * min(count, 100)), count)
            structure = (build.constant(edges.rowptr, "rowptr"), build.constant(edges.col, "col"))
            tables[index] = build.op(Spmm(), made, *structure)
    return build.graph(*tables, extra)


def kinds(graph: Graph) -> list[str]:
    return [node.kind for node in graph.nodes]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [(5, 3, 9), (4, 4), (3,)])
def test_independent_products_are_grouped(rows: tuple[int, ...], biased: bool) -> None:
    graph = kinds_of_vertices(rows, biased=biased)
    made = GroupProducts().run(graph)
    grouped = len(rows) + (not biased)  # the product without a bias is grouped with others that have none
    assert made.changed == (grouped > 1)
    assert len(made.sites) == (grouped if made.changed else 0)
    assert kinds(made.graph).count("TypedLinear") == made.changed
    assert kinds(made.graph).count("Add") == 0, "biases are part of the product"
    assert kinds(made.graph).count("Concat") == (made.changed and len(rows) > 1)
    assert_same_values(graph, made.graph)
    counts = [sum(one.constants[name].size for name in parameters(one)) for one in (graph, made.graph)]
    assert counts[0] == counts[1]


def test_each_layer_is_a_product_of_its_own() -> None:
    graph = kinds_of_vertices((5, 7), layers=2)
    made = GroupProducts().run(graph).graph
    assert kinds(made).count("TypedLinear") == 2
    assert_same_values(graph, made)


def test_excluded_products_stay_separate() -> None:
    graph = kinds_of_vertices((5, 7, 3))
    made = GroupProducts(("layer_0_1",)).run(graph).graph
    assert made.node("layer_0_1") == graph.node("layer_0_1")
    assert made.shape(next(node for node in made.nodes if node.kind == "TypedLinear").output) == (5 + 5 + 3, 6)
    assert not GroupProducts(("layer_0_0", "layer_0_1", "layer_0_2")).run(graph).changed
    assert_same_values(graph, made)


def test_shared_weights_stay_shared() -> None:
    build = Builder("g")
    weights = build.weights(4, 4)
    made = [build.op(MatMul(), build.input(3, 4, name=name), weights) for name in ("x", "y")]
    assert not GroupProducts().run(build.graph(build.op(Elementwise("Add"), *made))).changed


@pytest.mark.parametrize(("rows", "copied"), [(8, True), (200_000, False)])
def test_copying_small_tables_pays(rows: int, copied: bool) -> None:
    graph = kinds_of_vertices((rows,) * 4, 32)
    options = Options.of(target="rtx3090", policy="gpu")
    chosen = relational_form(graph, CostModel(load_target("rtx3090")), options).passes
    assert ("Concat" in kinds(PassManager(chosen).run(graph).graph)) == copied
