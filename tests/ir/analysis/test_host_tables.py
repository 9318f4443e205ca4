"""Data that need not be in the GPU's memory: tables read row by row, and indices that its threads do not use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pimflow.ir import Builder, GatherRows, Graph
from pimflow.ir.analysis.host_tables import fetches, in_host, is_consecutive, reads_rows


def reading(access: str, index: list[int], *, also: bool = False) -> Graph:
    build = Builder("rows")
    x = build.input(6, 4, name="x")
    rows = build.op(GatherRows(), x, build.constant(np.array(index), "index"), name="fetch")
    graph = build.graph(rows, *([build.relu(x)] if also else []))
    return graph.replace(
        nodes=[
            replace(node, placement=replace(node.placement, access=access)) if node.name == "fetch" else node
            for node in graph.nodes
        ]
    )


@pytest.mark.parametrize(
    ("access", "index", "held"),
    [
        ("gather", [5, 0], {"x", "index"}),
        ("zero-copy", [5, 0], {"x"}),
        ("zero-copy", [2, 3, 4], {"x", "index"}),
        ("zero-copy-plain", [2, 4], {"x"}),
    ],
)
def test_the_gpu_holds_neither_the_table_nor_an_index_used_by_the_host(
    access: str, index: list[int], held: set[str]
) -> None:
    graph = reading(access, index)
    assert [node.name for node in fetches(graph)] == ["fetch"]
    assert in_host(graph) == held


def test_tables_that_the_gpu_also_reads_are_on_the_gpu() -> None:
    assert in_host(reading("gather", [1, 3], also=True)) == {"index"}


@pytest.mark.parametrize(
    ("index", "told"), [([3, 4, 5], True), ([3], True), ([3, 5, 4, 6], False), ([], False), ([3, 3], False)]
)
def test_a_run_is_consecutive_rows(index: list[int], told: bool) -> None:
    assert is_consecutive(np.array(index, np.int64)) is told


def test_a_gather_along_the_first_dim_reads_rows() -> None:
    build = Builder("gathers")
    x, at = build.input(6, 4, name="x"), build.constant(np.array([1, 2]), "at")
    rows = build.onnx("Gather", x, at, shape=(2, 4))
    columns = build.onnx("Gather", x, at, shape=(6, 2), axis=1)
    graph = build.graph(rows, columns)
    assert [reads_rows(node) for node in graph.nodes] == [True, False]
