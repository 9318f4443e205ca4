"""Values of sparse ops, against the exporters' pattern run by ONNX Runtime, and against scipy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse

from pimflow.errors import GraphError, ModelError
from pimflow.ir import (
    Array,
    EdgeSoftmax,
    GatherPairs,
    GatherRows,
    Graph,
    Op,
    RowPart,
    Sddmm,
    SegmentReduce,
    Spmm,
    TypedLinear,
    TypedSpmm,
    parse_graph,
    print_graph,
)
from pimflow.ir.analysis.regions import node_part
from pimflow.onnxio import sparse_patterns, to_onnx
from pimflow.onnxio.session import GraphSession
from pimflow.runtime.execute import sparse_values
from pimflow.runtime.execute.ort import NodeKernels, random_inputs, run_graph
from support.sparse_graphs import edge_list, rows_of, single

N, E, F = 30, 90, 6
ROWS = rows_of(edge_list(N, E), N)
RNG = np.random.default_rng(1)
WEIGHT = RNG.random(E, np.float32)
HEADS = RNG.standard_normal((E, 3)).astype(np.float32)
SCALE = RNG.random(N, np.float32)
POINTERS = np.array([0, 12, 12, 40], np.int64)
PICKS = RNG.integers(0, 9, 40)
TYPED = RNG.standard_normal((3, F, 5)).astype(np.float32)
TYPED_WIDE = RNG.standard_normal((3, F, 6)).astype(np.float32)
OTHER = RNG.integers(0, 12, E).astype(np.int32)
TYPED_HEADS = RNG.standard_normal((3, 2, F, 5)).astype(np.float32)
TO_PRODUCTS = RNG.integers(0, 40, E).astype(np.int32)
"""Indices into 40 products: some are read several times, some never, and none of the second type."""
BIAS = RNG.standard_normal((3, 5)).astype(np.float32)
LOWEST = float(np.finfo(np.float32).min)

CASES: dict[str, tuple[Op, list[Any]]] = {
    "sum": (Spmm(), [(N, F), ROWS.rowptr, ROWS.col]),
    "weighted": (Spmm(), [(N, F), ROWS.rowptr, ROWS.col, WEIGHT]),
    "computed weights": (Spmm(), [(N, F), ROWS.rowptr, ROWS.col, (E,)]),
    "heads": (Spmm(), [(N, 3, F), ROWS.rowptr, ROWS.col, HEADS]),
    "one weight for all heads": (Spmm(), [(N, 3, F), ROWS.rowptr, ROWS.col, (E,)]),
    "mean": (Spmm(), [(N, F), ROWS.rowptr, ROWS.col, None, SCALE]),
    "sum from a start": (Spmm(start=2.0, empty=-1.0), [(N, F), ROWS.rowptr, ROWS.col, WEIGHT]),
    "max": (Spmm("max", LOWEST, 0.0), [(N, F), ROWS.rowptr, ROWS.col]),
    "max from zero": (Spmm("max"), [(N, F), ROWS.rowptr, ROWS.col]),
    "weighted max of heads": (Spmm("max", LOWEST), [(N, 3, F), ROWS.rowptr, ROWS.col, HEADS]),
    "segment sum": (SegmentReduce(), [(E, F), ROWS.rowptr]),
    "segment sum of a vector": (SegmentReduce(), [(E,), ROWS.rowptr]),
    "segment min": (SegmentReduce("min", 3.0, 7.0), [(E, F), ROWS.rowptr]),
    "sum of ends": (Sddmm("add"), [(N, F), (N, F), ROWS.rowptr, ROWS.col]),
    "product of ends": (Sddmm("mul"), [(N, 3, F), (N, 3, F), ROWS.rowptr, ROWS.col]),
    "dot of ends": (Sddmm("dot"), [(N, 3, F), (N, 3, F), ROWS.rowptr, ROWS.col]),
    "softmax": (EdgeSoftmax(), [(E, 3), ROWS.rowptr]),
    "softmax from zero": (EdgeSoftmax(floor=0.0, eps=1e-16), [(E,), ROWS.rowptr]),
    "rows": (GatherRows(), [(N, F), ROWS.col]),
    "sum of pairs": (GatherPairs("add"), [(N, F), (12, F), ROWS.col, OTHER]),
    "product of pairs": (GatherPairs("mul"), [(N, 3, F), (12, 3, F), ROWS.col, OTHER]),
    "dot of pairs": (GatherPairs("dot"), [(N, 3, F), (12, 3, F), ROWS.col, OTHER]),
    "typed": (TypedLinear(), [(40, F), TYPED, POINTERS]),
    "typed, heads": (TypedLinear(), [(40, 2, F), TYPED_HEADS, POINTERS]),
    "typed, by index": (TypedLinear(), [(9, F), TYPED, POINTERS, PICKS]),
    "typed, heads, by index": (TypedLinear(), [(9, 2, F), TYPED_HEADS, POINTERS, PICKS]),
    "typed, biased": (TypedLinear(), [(40, F), TYPED, POINTERS, None, BIAS]),
    "typed, heads, by index, biased": (TypedLinear(), [(9, 2, F), TYPED_HEADS, POINTERS, PICKS, (3, 2, 5)]),
    "typed sum": (TypedSpmm(), [(40, F), TYPED, POINTERS, None, ROWS.rowptr, TO_PRODUCTS]),
    "typed mean, by index": (TypedSpmm(), [(9, F), TYPED, POINTERS, PICKS, ROWS.rowptr, TO_PRODUCTS, None, SCALE]),
    "typed sum, weighted": (TypedSpmm(), [(9, F), TYPED, POINTERS, PICKS, ROWS.rowptr, TO_PRODUCTS, (E,)]),
    "typed sum, heads": (
        TypedSpmm(),
        [(40, 2, F), TYPED_HEADS, POINTERS, None, ROWS.rowptr, TO_PRODUCTS, HEADS[:, :2], SCALE],
    ),
    "typed sum, viewed as heads": (
        TypedSpmm((3, 2)),
        [(9, F), TYPED_WIDE, POINTERS, PICKS, ROWS.rowptr, TO_PRODUCTS, (E, 3)],
    ),
    "typed sum of nothing": (
        TypedSpmm(),
        [(9, F), TYPED, np.zeros(4, np.int64), PICKS[:0], ROWS.rowptr * 0, PICKS[:0]],
    ),
}


def result(graph: Graph, inputs: Mapping[str, Array]) -> npt.NDArray[np.float32]:
    """The one output, computed with numpy and scipy."""
    return run_graph(graph, inputs)[graph.outputs[0]].astype(np.float32, copy=False)


def graph_of(name: str) -> Graph:
    return single(*CASES[name])


@pytest.mark.parametrize("block", [1, 64, 1 << 23])
@pytest.mark.parametrize("name", CASES)
def test_values_match_the_exporters_pattern(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_values, "BLOCK_ELEMENTS", block)
    graph = graph_of(name)
    inputs = random_inputs(graph, 0)
    expected: npt.NDArray[np.float32] = GraphSession(graph).run(inputs)[graph.outputs[0]]
    actual = result(graph, inputs)
    assert actual.shape == graph.shape(graph.outputs[0])
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=2e-6)
    (node,) = graph.nodes
    (alone,) = NodeKernels(graph).run(node, [inputs.get(item) for item in node.inputs])
    np.testing.assert_array_equal(alone, actual)


@pytest.mark.parametrize("name", CASES)
def test_the_text_form_is_exact(name: str) -> None:
    text = print_graph(graph_of(name))
    assert print_graph(parse_graph(text, graph_of(name).constants)) == text
    assert f"= {type(CASES[name][0]).__name__}(" in text


def test_a_sum_matches_scipys_product() -> None:
    vertices, edges = 2000, 50_000
    rows = rows_of(edge_list(vertices, edges), vertices)
    weight = RNG.random(edges, np.float32)
    matrix = scipy.sparse.csr_array((weight.astype(np.float64), rows.col, rows.rowptr), shape=(vertices, vertices))
    graph = single(Spmm(), [(vertices, 32), rows.rowptr, rows.col, weight])
    x = random_inputs(graph, 0)["x0"].astype(np.float32)
    np.testing.assert_allclose(result(graph, {"x0": x}), matrix @ x, rtol=1e-4, atol=1e-4)


def test_half_precision_is_added_up_in_single() -> None:
    ones = np.ones((3000, 1), np.float16)
    rowptr, col = np.array([0, 3000]), np.arange(3000, dtype=np.int32)
    (out,) = (sparse_values.SPARSE_VALUES.of(Spmm())(Spmm(), [ones, rowptr, col]),)
    assert out.dtype == np.float16
    assert float(out[0, 0]) == 3000.0, "2048 + 1 is 2048 in half precision"


@pytest.mark.parametrize("name", ["weighted", "mean", "sum from a start", "max"])
def test_an_aggregation_can_be_computed_in_parts(name: str) -> None:
    graph = graph_of(name)
    (node,), inputs = graph.nodes, random_inputs(graph, 0)
    whole = result(graph, inputs)
    given = [graph.constants.get(item) for item in node.inputs]
    for start, stop in ((0, 7), (7, 29), (29, 30)):
        part = node_part(graph, node, start, stop)
        assert isinstance(part, RowPart)
        arrays = [span(given) if callable(span) else array for span, array in zip(part.spans, given, strict=True)]
        arrays[0] = inputs["x0"]
        rows = sparse_values.SPARSE_VALUES.of(part.op)(part.op, arrays)
        np.testing.assert_allclose(rows.astype(np.float32), whole[start:stop], rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        (Spmm("mean"), [(N, F), ROWS.rowptr, ROWS.col], "reduces by sum, max, min, not by 'mean'"),
        (Spmm(), [(N, F), ROWS.rowptr, ROWS.col, (E + 1,)], "fit neither 90 edges nor their heads"),
        (Spmm(), [(N, F), ROWS.rowptr, ROWS.col, None, (N + 1,)], "row scales need the shape"),
        (Spmm(), [(N, F), (N, 2), ROWS.col], "row pointers need the shape"),
        (Sddmm("sub"), [(N, F), (N, F), ROWS.rowptr, ROWS.col], "pairs by add, mul, dot"),
        (Sddmm(), [(N, F), (N, F + 1), ROWS.rowptr, ROWS.col], "do not pair"),
        (TypedLinear(), [(40, F), TYPED, np.array([0, 40])], "do not fit weights"),
        (TypedLinear(), [(40, 3, F), TYPED_HEADS, POINTERS], "do not fit weights"),
        (TypedLinear(), [(9, F), TYPED, POINTERS, PICKS[:, None]], "indices need the shape"),
        (TypedLinear(), [(40, F), TYPED, POINTERS, None, BIAS[:2]], "bias .* does not fit weights"),
        (TypedSpmm((2, 3)), [(40, F), TYPED, POINTERS, None, ROWS.rowptr, TO_PRODUCTS], r"are no rows of \(2, 3\)"),
        (TypedSpmm(), [(40, F), TYPED, POINTERS, None, ROWS.rowptr], "sources need the shape"),
        (TypedSpmm(), [(40, F), TYPED, POINTERS, PICKS[:3, None], ROWS.rowptr, TO_PRODUCTS], "indices need the shape"),
        (TypedSpmm(), [(40, F), TYPED, POINTERS, None, ROWS.rowptr, TO_PRODUCTS, (E + 1,)], "fit neither 90 edges"),
        (GatherPairs("sub"), [(N, F), (N, F), ROWS.col, ROWS.col], "pairs by add, mul, dot"),
        (GatherPairs(), [(N, F), (N, 2), ROWS.col, ROWS.col], "do not pair"),
        (GatherPairs(), [(N, F), (N, F), ROWS.col, (E + 1,)], "second indices need the shape"),
        (GatherRows(), [(N, F), (E, 1)], "indices need the shape"),
    ],
)
def test_operands_that_do_not_fit_are_refused(op: Op, inputs: list[Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        single(op, inputs)


def test_a_pattern_that_would_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_patterns, "EXPANDED_LIMIT_BYTES", E * F * 8 - 1)
    with pytest.raises(ModelError, match="an index of 90 x 6 edge values would take"):
        to_onnx(graph_of("sum"))


def test_a_pattern_is_refused_where_scatters_lose_duplicates() -> None:
    with pytest.raises(ModelError, match="has no form in opset 15"):
        to_onnx(single(Spmm(), CASES["sum"][1], opset=15))
