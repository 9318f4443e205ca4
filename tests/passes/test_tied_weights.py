"""Weights that a model reads in two orientations are one constant, in training."""

from __future__ import annotations

import numpy as np
import pytest

from pimflow.ir import Builder, GatherRows, Gemm, MatMul, Transpose
from pimflow.passes.tied_weights import with_tied_weights
from support.gradients import check_gradients, doubled, with_inputs
from support.passes import kinds
from support.values import assert_same_values


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("rank", [2, 3])
def test_a_table_that_is_also_a_weight(rank: int, stored: bool) -> None:
    build = Builder()
    words = build.rng.standard_normal((9, 4)).astype(np.float32)
    table = build.constant(words)
    transposed = build.constant(words.T.copy()) if stored else build.op(Transpose((1, 0)), table)
    rows = build.op(GatherRows(), table, build.constant(np.array([3, 0, 3, 8])))
    x = build.add(build.input(*(2, 4, 4)[3 - rank :]), rows)
    graph = build.graph(build.op(MatMul(), x, transposed))
    tied = with_tied_weights(graph)
    assert "Transpose" not in kinds(tied)
    assert Gemm(trans_b=True) in [node.op for node in tied.nodes]
    assert set(tied.constants) & {table, transposed} == {table}
    assert_same_values(graph, tied)
    check_gradients(with_inputs(doubled(tied)))


@pytest.mark.parametrize("trans_b", [False, True])
def test_a_gemm_with_a_bias(trans_b: bool) -> None:
    build = Builder()
    weight = build.weights(4, 4)
    turned = build.op(Transpose((1, 0)), weight)
    graph = build.graph(build.op(Gemm(trans_b=trans_b), build.input(5, 4), turned, build.weights(4)))
    tied = with_tied_weights(graph)
    assert [node.op for node in tied.nodes] == [Gemm(trans_b=not trans_b)]
    assert_same_values(graph, tied)


def test_what_is_not_tied() -> None:
    """Equal layers are not one layer, elements that are all equal are no copy, and no product reads a vector's rows."""
    build = Builder()
    words, ones = build.rng.standard_normal((4, 4)).astype(np.float32), build.constant(np.ones((4, 4), np.float32))
    table, same = build.constant(words), build.constant(words.copy())
    rows = [build.op(GatherRows(), each, build.constant(np.array([0, 1, 2]))) for each in (table, ones)]
    sums = build.add(*rows)
    turned = build.constant(np.ones((4, 4), np.float32))
    graph = build.graph(build.op(MatMul(), build.op(MatMul(), build.add(build.input(3, 4), sums), same), turned))
    assert with_tied_weights(graph) is graph
