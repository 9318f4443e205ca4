"""Gradients of ops over the edges of a graph."""

from __future__ import annotations

import numpy as np
import pytest

from pimflow.errors import ModelError
from pimflow.ir import (
    Array,
    Builder,
    EdgeSoftmax,
    GatherPairs,
    GatherRows,
    Sddmm,
    SegmentReduce,
    Spmm,
    TypedLinear,
    TypedSpmm,
)
from support.gradients import check_gradients

POINTERS: Array = np.array([0, 3, 3, 5, 9], np.int64)
SOURCES: Array = np.array([0, 4, 2, 1, 1, 4, 3, 0, 2], np.int64)
"""Four destinations, one without edges; five sources; nine edges, one of which occurs twice."""


def structure(build: Builder) -> tuple[str, str]:
    return build.constant(POINTERS, "rowptr"), build.constant(SOURCES, "col")


def floats(build: Builder, name: str, *shape: int) -> str:
    return build.input(*shape, name=name, dtype="float64")


@pytest.mark.parametrize("reduce", ["sum", "max", "min"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_spmm(reduce: str, weighted: bool, scaled: bool) -> None:
    build = Builder(opset=18)
    x = floats(build, "x", 5, 3)
    start = {"sum": 0.0, "max": -9.0, "min": 9.0}[reduce]
    weight = floats(build, "weight", 9) if weighted else ""
    scale = floats(build, "scale", 4) if scaled else ""
    inputs = [x, *structure(build), weight, scale]
    check_gradients(build.graph(build.op(Spmm(reduce, start), *inputs)))


def test_spmm_of_heads() -> None:
    build = Builder(opset=18)
    x = floats(build, "x", 5, 2, 3)
    made = build.op(Spmm(), x, *structure(build), floats(build, "weight", 9, 2))
    check_gradients(build.graph(made))


def test_spmm_of_heads_with_one_weight_for_all() -> None:
    build = Builder(opset=18)
    made = build.op(Spmm(), floats(build, "x", 5, 2, 3), *structure(build), floats(build, "weight", 9))
    check_gradients(build.graph(made))


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_segments(reduce: str) -> None:
    build = Builder(opset=18)
    made = build.op(
        SegmentReduce(reduce, -9.0 if reduce == "max" else 0.0), floats(build, "x", 9, 3), structure(build)[0]
    )
    check_gradients(build.graph(made))


@pytest.mark.parametrize("pairing", ["add", "mul", "dot"])
@pytest.mark.parametrize("heads", [(3,), (2, 3), (2, 2, 3)])
def test_sddmm(pairing: str, heads: tuple[int, ...]) -> None:
    build = Builder(opset=18)
    x, y = floats(build, "x", 5, *heads), floats(build, "y", 4, *heads)
    check_gradients(build.graph(build.tanh(build.op(Sddmm(pairing), x, y, *structure(build)))))


@pytest.mark.parametrize("pairing", ["add", "mul", "dot"])
@pytest.mark.parametrize("heads", [(3,), (2, 3), (2, 2, 3)])
def test_pairs_of_rows(pairing: str, heads: tuple[int, ...]) -> None:
    build = Builder(opset=18)
    x, y = floats(build, "x", 5, *heads), floats(build, "y", 4, *heads)
    picks = build.constant(SOURCES, "first"), build.constant(np.array([3, 3, 0, 1, 0, 1, 1, 3, 0]), "second")
    check_gradients(build.graph(build.tanh(build.op(GatherPairs(pairing), x, y, *picks))))


@pytest.mark.parametrize("shape", [(9,), (9, 2)])
def test_edge_softmax(shape: tuple[int, ...]) -> None:
    build = Builder(opset=18)
    check_gradients(build.graph(build.op(EdgeSoftmax(), floats(build, "x", *shape), structure(build)[0])))


@pytest.mark.parametrize("index", [[0, 0, 1, 3], [3, 0, 3, 1]])
def test_rows_by_index(index: list[int]) -> None:
    build = Builder(opset=18)
    ids = build.constant(np.array(index, np.int64))
    made = build.op(GatherRows(), floats(build, "x", 5, 3), ids)
    check_gradients(build.graph(build.mul(made, made)))


def test_rows_by_a_computed_index() -> None:
    build = Builder(opset=18)
    ids = build.input(4, name="ids", dtype="int64")
    made = build.op(GatherRows(), floats(build, "x", 5, 3), ids)
    check_gradients(build.graph(build.mul(made, made)), {"ids": np.array([3, 0, 3, 1])})


def test_rows_by_type() -> None:
    build = Builder(opset=18)
    pointers = build.constant(np.array([0, 2, 2, 5], np.int64))
    made = build.op(TypedLinear(), floats(build, "x", 5, 3), floats(build, "w", 3, 3, 2), pointers)
    check_gradients(build.graph(made))


def test_rows_by_type_and_head() -> None:
    build = Builder(opset=18)
    pointers = build.constant(np.array([0, 2, 2, 5], np.int64))
    made = build.op(TypedLinear(), floats(build, "x", 5, 2, 3), floats(build, "w", 3, 2, 3, 4), pointers)
    check_gradients(build.graph(made))


@pytest.mark.parametrize("heads", [(), (2,)])
def test_rows_by_type_read_by_index(heads: tuple[int, ...]) -> None:
    """One row is read twice, one by two types, one not at all."""
    build = Builder(opset=18)
    pointers, index = (build.constant(np.array(ids, np.int64)) for ids in ([0, 2, 2, 5], [3, 0, 1, 3, 1]))
    operands = (floats(build, "x", 4, *heads, 3), floats(build, "w", 3, *heads, 3, 2), pointers, index)
    check_gradients(build.graph(build.op(TypedLinear(), *operands)))


@pytest.mark.parametrize("heads", [(), (2,)])
@pytest.mark.parametrize("read", [[], [3, 0, 1, 3, 1]])
def test_rows_by_type_with_a_bias(heads: tuple[int, ...], read: list[int]) -> None:
    build = Builder(opset=18)
    bounds, index = build.constant(np.array([0, 2, 2, 5], np.int64)), build.constant(np.array(read, np.int64), "index")
    operands = (floats(build, "x", 5, *heads, 3), floats(build, "w", 3, *heads, 3, 2), bounds, index if read else "")
    check_gradients(build.graph(build.op(TypedLinear(), *operands, floats(build, "b", 3, *heads, 2))))


@pytest.mark.parametrize("heads", [(), (2,)])
@pytest.mark.parametrize("read_by", ["order", "index"])
@pytest.mark.parametrize("beside", ["", "weight", "scale", "both"])
def test_summed_products_by_type(heads: tuple[int, ...], read_by: str, beside: str) -> None:
    """One product is added twice, one not at all."""
    build = Builder(opset=18)
    bounds, index = (build.constant(np.array(ids, np.int64)) for ids in ([0, 2, 2, 5], [3, 0, 1, 3, 1]))
    x = floats(build, "x", 5 if read_by == "order" else 4, *heads, 3)
    weight = floats(build, "weight", 9, *heads) if beside in ("weight", "both") else ""
    scale = floats(build, "scale", 4) if beside in ("scale", "both") else ""
    operands = (x, floats(build, "w", 3, *heads, 3, 2), bounds, index if read_by == "index" else "")
    check_gradients(build.graph(build.op(TypedSpmm(), *operands, *structure(build), weight, scale)))


def test_summed_products_by_type_and_head() -> None:
    build = Builder(opset=18)
    bounds, weight = build.constant(np.array([0, 2, 2, 5], np.int64)), floats(build, "weight", 9, 2)
    operands = (floats(build, "x", 5, 3), floats(build, "w", 3, 3, 6), bounds, "", *structure(build), weight)
    check_gradients(build.graph(build.op(TypedSpmm((2, 3)), *operands)))


def test_weight_gradients_of_summed_products() -> None:
    """Neither rows nor edges need gradients, so no product is computed again."""
    build = Builder(opset=18)
    bounds, x = build.constant(np.array([0, 5], np.int64)), build.constant(np.ones((5, 3)), "x")
    weight = build.constant(np.arange(9.0), "weight")
    made = build.op(TypedSpmm(), x, floats(build, "w", 1, 3, 2), bounds, "", *structure(build), weight)
    step = check_gradients(build.graph(made))
    assert "TypedLinear" not in {node.kind for node in step.graph.nodes}


def test_a_computed_graph_has_no_gradient() -> None:
    build = Builder(opset=18)
    pointers = build.input(5, name="rowptr", dtype="int64")
    made = build.op(SegmentReduce(), floats(build, "x", 9, 3), pointers)
    with pytest.raises(ModelError, match="SegmentReduce: its graph is computed"):
        check_gradients(build.graph(made))
