"""A product with weights before or after an aggregation: the same values in either order, and back again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pimflow.ir import Builder, Elementwise, Gemm, Graph, MatMul, Spmm
from pimflow.passes import OrderAggregation
from pimflow.runtime.execute.ort import random_inputs, run_graph
from pimflow.verify.outputs import compare_outputs
from support.sparse_graphs import edge_list, rows_of

N, K, M = 40, 12, 5
ROWS = rows_of(edge_list(N, 150), N)


def network(write: Callable[[Builder, str, list[str]], str]) -> Graph:
    build = Builder("g", opset=17)
    x = build.input(N, K)
    structure = [build.constant(ROWS.rowptr, "rowptr"), build.constant(ROWS.col, "col")]
    return build.graph(write(build, x, structure))


def product_first(build: Builder, x: str, structure: list[str]) -> str:
    made = build.op(MatMul(), x, build.weights(K, M), name="product")
    return build.op(Spmm(), made, *structure, "", build.constant(np.arange(N, dtype=np.float32)), name="sum")


def sum_first(build: Builder, x: str, structure: list[str]) -> str:
    weight = build.constant(np.linspace(0, 1, 150, dtype=np.float32))
    summed = build.op(Spmm(), x, *structure, weight, name="sum")
    return build.op(Gemm(trans_b=True), summed, build.weights(M, K), build.weights(M), name="product")


@pytest.mark.parametrize("write", [product_first, sum_first])
def test_both_orders_are_equal_and_reversible(write: Callable[[Builder, str, list[str]], str]) -> None:
    graph = network(write)
    turned = OrderAggregation("product").run(graph)
    assert turned.changed
    kinds = [node.kind for node in turned.graph.nodes]
    assert kinds == (["Spmm", "MatMul"] if write is product_first else ["Gemm", "Spmm", "Add"])
    inputs = random_inputs(graph, 0)
    (check,) = compare_outputs(
        run_graph(graph, inputs), {graph.outputs[0]: run_graph(turned.graph, inputs)[graph.outputs[0]]}, 1e-5
    )
    assert check.passed
    back = OrderAggregation("product").run(turned.graph).graph
    assert [node.kind for node in back.nodes][:2] == [node.kind for node in graph.nodes]
    assert compare_outputs(run_graph(graph, inputs), run_graph(back, inputs), 1e-5)[0].passed


def biased_product(build: Builder, x: str, structure: list[str]) -> str:
    made = build.op(Gemm(), x, build.weights(K, M), build.weights(M), name="product")
    return build.op(Spmm(), made, *structure)


def maximum(build: Builder, x: str, structure: list[str]) -> str:
    return build.op(Spmm("max"), build.op(MatMul(), x, build.weights(K, M), name="product"), *structure)


def between(build: Builder, x: str, structure: list[str]) -> str:
    made = build.op(MatMul(), x, build.weights(K, M), name="product")
    return build.op(Spmm(), build.op(Elementwise("Relu"), made), *structure)


def read_twice(build: Builder, x: str, structure: list[str]) -> str:
    made = build.op(MatMul(), x, build.weights(K, M), name="product")
    return build.op(Elementwise("Add"), build.op(Spmm(), made, *structure), made)


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (biased_product, "product: its bias is added before the sum"),
        (maximum, "product: no sum over edges is next to it, or other nodes read the value between them"),
        (between, "product: no sum over edges is next to it, or other nodes read the value between them"),
        (read_twice, "product: no sum over edges is next to it, or other nodes read the value between them"),
    ],
)
def test_ops_that_do_not_commute_stay(write: Callable[[Builder, str, list[str]], str], reason: str) -> None:
    result = OrderAggregation("product").run(network(write))
    assert not result.changed
    assert result.notes == (reason,)
