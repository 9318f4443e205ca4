"""Tables that stay in host memory: the same values, with only the rows that are read next on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

import pimflow
from pimflow.ir import Builder, Concat, GatherRows, Gemm, Graph, Spmm
from pimflow.ir.analysis.host_tables import fetches, in_host
from pimflow.ir.verify import verify_graph
from pimflow.passes import PlaceFeatures
from pimflow.runtime.execute.ort import OrtRunner
from pimflow.sparse.generate import power_law

EDGES = power_law(300, 2500, 60)


def clean(model: str) -> Graph:
    compiled = pimflow.compile(model, graph=EDGES, target="rtx3090", policy="gpu", use_cache=False, check=False)
    return compiled.graph


@pytest.mark.parametrize("model", ["zoo:gcn", "zoo:sage", "zoo:gat"])
@pytest.mark.parametrize("parts", [1, 3])
def test_values_are_the_same(model: str, parts: int) -> None:
    graph = clean(model)
    placed = PlaceFeatures("x", "gather", parts).run(graph).graph
    assert "x" in in_host(placed)
    assert len(fetches(placed)) == parts * len(graph.users("x"))
    x = {"x": np.random.default_rng(0).standard_normal(graph.shape("x")).astype(np.float32)}
    (before, *_), (after, *_) = (tuple(OrtRunner(one).run(x).values()) for one in (graph, placed))
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("export", ["gin-ts", "sage-mean-ts", "graphconv-ts", "gatv2-ts", "appnp-ts", "sgc-dynamo"])
def test_exports_of_every_kind_have_the_same_values(export: str) -> None:
    """Sums for two readers, tables that are added to sums, and all other uses of features in networks."""
    graph = clean(f"tests/data/gnn/{export}.onnx")
    table = next(name for name in graph.inputs if len(graph.shape(name)) == 2)
    values = {table: np.random.default_rng(0).standard_normal(graph.shape(table)).astype(np.float32)}
    before = OrtRunner(graph).run(values)
    for parts in (1, 2, 5):
        placed = PlaceFeatures(table, "gather", parts).run(graph).graph
        verify_graph(placed)
        assert table in in_host(placed)
        for name, array in OrtRunner(placed).run(values).items():
            np.testing.assert_allclose(array, before[name], rtol=1e-4, atol=1e-5)


def summed(columns: int = 8) -> Graph:
    build = Builder("sum")
    x = build.input(300, columns, name="x")
    edges = (build.constant(EDGES.rowptr, "rowptr"), build.constant(EDGES.col, "col"))
    return build.graph(build.relu(build.op(Spmm(), x, *edges, name="sum")))


def test_a_sum_over_edges_transfers_each_row_once_per_part() -> None:
    placed = PlaceFeatures("x", "zero-copy", 4).run(summed()).graph
    bounds = [300 * part // 4 for part in range(5)]
    for node, start, stop in zip(fetches(placed), bounds, bounds[1:], strict=False):
        sources = EDGES.col[EDGES.rowptr[start] : EDGES.rowptr[stop]]
        np.testing.assert_array_equal(placed.constants[node.inputs[1]], np.unique(sources))
        assert node.placement.access == "zero-copy"
    assert [type(node.op) for node in placed.nodes].count(Concat) == 1


def test_a_gather_transfers_its_own_rows() -> None:
    build = Builder("picks")
    x, at = build.input(9, 4, name="x"), build.constant(np.array([3, 1]), "at")
    graph = build.graph(build.op(GatherRows(), x, at, name="pick"))
    (node,) = PlaceFeatures("x", "gather").run(graph).graph.nodes
    assert (node.name, node.placement.access) == ("pick", "gather")


def test_values_as_large_as_the_table_are_split_with_their_readers() -> None:
    build = Builder("scaled")
    x = build.input(300, 40, name="x")
    scaled = build.mul(x, build.constant(np.full((300, 1), 0.5, np.float32), "scale"))
    narrow = build.op(Gemm(), scaled, build.constant(np.ones((40, 3), np.float32), "w"))
    edges = (build.constant(EDGES.rowptr, "rowptr"), build.constant(EDGES.col, "col"))
    graph = build.graph(build.op(Spmm(), narrow, *edges, name="sum"))
    placed = PlaceFeatures("x", "gather", 2).run(graph).graph
    kinds = [node.kind for node in placed.nodes]
    assert (kinds.count("Mul"), kinds.count("Gemm"), kinds.count("Spmm")) == (2, 2, 1)
    values = {"x": np.random.default_rng(0).standard_normal((300, 40)).astype(np.float32)}
    (before,), (after,) = (tuple(OrtRunner(one).run(values).values()) for one in (graph, placed))
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


def test_a_sum_over_all_rows_is_not_split_with_its_producers() -> None:
    build = Builder("scaled")
    x = build.input(300, 40, name="x")
    scaled = build.mul(x, build.constant(np.full((300, 1), 0.5, np.float32), "scale"))
    edges = (build.constant(EDGES.rowptr, "rowptr"), build.constant(EDGES.col, "col"))
    graph = build.graph(build.op(Spmm(), scaled, *edges, name="sum"))
    placed = PlaceFeatures("x", "gather", 2).run(graph).graph
    assert [node.kind for node in placed.nodes].count("Spmm") == 1
    values = {"x": np.random.default_rng(0).standard_normal((300, 40)).astype(np.float32)}
    (before,), (after,) = (tuple(OrtRunner(one).run(values).values()) for one in (graph, placed))
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


def test_tables_that_cannot_be_split_are_transferred_whole_with_a_note() -> None:
    build = Builder("columns")
    x = build.input(6, 4, name="x")
    graph = build.graph(build.onnx("Softmax", x, shape=(6, 4), axis=0))
    result = PlaceFeatures("x", "gather", 2).run(graph)
    assert [node.kind for node in result.graph.nodes] == ["GatherRows", "Softmax"]
    assert result.notes
