"""The cheaper order of product and aggregation is chosen: narrow rows are gathered."""

from __future__ import annotations

import numpy as np
import pytest

import pimflow
from pimflow.compiled import Machine
from pimflow.ir import Builder, Graph, MatMul, Spmm
from pimflow.options import Options
from pimflow.search.aggregation_order import cheapest_order
from support.sparse_graphs import edge_list, rows_of

N, E = 3000, 60_000
ROWS = rows_of(edge_list(N, E), N)


def network(inner: int, outer: int, *, product_first: bool) -> Graph:
    build = Builder("g")
    structure = [build.constant(ROWS.rowptr, "rowptr"), build.constant(ROWS.col, "col")]
    x, weights = build.input(N, inner), build.weights(inner, outer)
    if product_first:
        return build.graph(build.op(Spmm(), build.op(MatMul(), x, weights), *structure))
    return build.graph(build.op(MatMul(), build.op(Spmm(), x, *structure), weights))


@pytest.mark.parametrize("policy", ["gpu", "auto"])
@pytest.mark.parametrize(("inner", "outer", "first"), [(512, 16, "MatMul"), (16, 512, "Spmm")])
@pytest.mark.parametrize("product_first", [True, False])
def test_the_narrow_side_is_aggregated(policy: str, inner: int, outer: int, first: str, product_first: bool) -> None:
    options = Options(policy=policy)
    result = cheapest_order(network(inner, outer, product_first=product_first), Machine.of(options).costs, options)
    assert result.graph.nodes[0].kind == first
    turned = (first == "MatMul") != product_first
    assert result.changed == turned
    assert len(result.notes) == turned


def test_a_compilation_reports_reordered_sums_and_can_be_told_not_to() -> None:
    model = pimflow.opt(network(512, 16, product_first=False), "cleanup").graph
    assert [node.kind for node in model.nodes] == ["Spmm", "MatMul"], "the clean-up knows no prices"
    assert np.diff(ROWS.rowptr).sum() == E
