"""Reductions of no edges are constants."""

from __future__ import annotations

import numpy as np

from pimflow.ir import Builder, GatherRows, SegmentReduce, Spmm
from pimflow.passes import FoldNoEdges, PassManager, RemoveDeadCode
from support.passes import run_pass
from support.relational import attention, random_edges
from support.values import assert_same_values


def test_reductions_of_no_edges_are_folded() -> None:
    build = Builder()
    x, rowptr, col = build.input(5, 4), build.constant(np.zeros(4, np.int64)), build.constant(np.zeros(0, np.int32))
    scale = build.constant(np.array([1, 2, 0.5], np.float32))
    edges = build.op(GatherRows(), x, col)
    made = [
        build.op(Spmm(), x, rowptr, col, "", scale),
        build.op(Spmm("max", float("-inf"), 3.0), x, rowptr, col),
        build.op(SegmentReduce("sum", 0.0, 2.0), edges, rowptr),
    ]
    graph = build.graph(*(build.add(build.input(3, 4, name="y"), one) for one in made))
    result = run_pass(PassManager((FoldNoEdges(), RemoveDeadCode())), graph)
    assert not any(node.op.is_sparse for node in result.graph.nodes)
    assert_same_values(graph, result.graph, rtol=0)
    assert not FoldNoEdges(max_bytes=47).run(graph).changed


def test_reductions_of_edges_and_results_of_the_graph_stay() -> None:
    assert not FoldNoEdges().run(attention(random_edges(9, 2, 30))).changed
    build = Builder()
    rowptr, col = build.constant(np.zeros(4, np.int64)), build.constant(np.zeros(0, np.int32))
    assert not FoldNoEdges().run(build.graph(build.op(Spmm(), build.input(5, 4), rowptr, col))).changed
