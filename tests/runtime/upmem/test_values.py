"""Sums through every strategy's partition against scipy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse

from pimflow.codegen.upmem.strategy import Strategy, strategies_of
from pimflow.ir import Refusal
from pimflow.runtime.upmem.pricing import Aggregation
from pimflow.runtime.upmem.quantize import BITS, bits_for, bits_for_any_weights, largest_sum, overflow, quantized
from pimflow.runtime.upmem.values import aggregated
from pimflow.sparse import Graph
from support.upmem.machine import machine

SPEC = machine(cores=22, ranks=4, tasklets=5)


def graph_of(weighted: bool, num_src: int = 61, num_dst: int = 47, edges: int = 400) -> Graph:
    """Rows of all sizes: duplicates, rows without edges, one with many."""
    draw = np.random.default_rng(3)
    src = draw.integers(0, num_src, edges)
    dst = np.where(draw.random(edges) < 0.3, 5, draw.integers(0, num_dst - 6, edges))
    weight = draw.normal(size=edges).astype(np.float32) if weighted else None
    return Graph.from_edges(src, dst, num_src, num_dst, weight)


def reference(graph: Graph, features: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    weight = np.ones(graph.num_edges) if graph.weight is None else graph.weight.astype(np.float64)
    matrix = scipy.sparse.csr_matrix((weight, graph.col, graph.rowptr), (graph.num_dst, graph.num_src))
    sums: npt.NDArray[np.float64] = matrix @ features.astype(np.float64)
    return sums


@pytest.mark.parametrize("strategy", list(strategies_of(SPEC.ranks)), ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_every_strategy_sums_every_edge_once(strategy: Strategy, weighted: bool) -> None:
    graph = graph_of(weighted)
    features = np.random.default_rng(1).normal(size=(graph.num_src, 9)).astype(np.float32)
    expected = reference(graph, features)
    found = aggregated(SPEC, graph, features, strategy, Aggregation(9, "fp32"))
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    assert np.abs(found).min(axis=1).max() > 0


@pytest.mark.parametrize("element", BITS)
@pytest.mark.parametrize("weighted", [False, True])
def test_quantised_sums_are_those_of_whole_numbers(element: Any, weighted: bool) -> None:
    graph = graph_of(weighted)
    features = np.random.default_rng(1).normal(size=(graph.num_src, 6)).astype(np.float32)
    x = quantized(features, element)
    assert np.abs(x.values * x.scale - features).max() <= x.scale / 2 * 1.001
    whole = graph
    scale = x.scale
    if graph.weight is not None:
        weight = quantized(graph.weight, element)
        whole = Graph.from_csr(graph.rowptr, graph.col, graph.num_src, weight.values.astype(np.float32))
        scale *= weight.scale
    expected = reference(whole, x.values.astype(np.float64)) * scale
    strategy = Strategy.parse("2x2 coo nnz-exact nnz-exact lock")
    found = aggregated(SPEC, graph, features, strategy, Aggregation(6, element, widened=True))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    error = np.abs(found - reference(graph, features)).max() / np.abs(found).max()
    assert 0 < error < {"int8": 0.3, "int16": 0.01, "int32": 1e-4}[element]


@pytest.mark.parametrize("strategy", ["1x4 csr row nnz", "2x2 coo nnz-exact nnz-exact lock", "4x1 csr nnz nnz"])
@pytest.mark.parametrize("element", ["int32", "fp32"])
def test_every_head_has_its_own_weights(strategy: str, element: Any) -> None:
    """Three heads of four columns over four, two or one feature parts: parts have columns of one or several heads."""
    graph = graph_of(weighted=False)
    draw = np.random.default_rng(7)
    features = draw.normal(size=(graph.num_src, 12)).astype(np.float32)
    weights = draw.normal(size=(graph.num_edges, 3)).astype(np.float32)
    aggregation = Aggregation(12, element, heads=3, computed=True)
    found = aggregated(SPEC, graph, features, Strategy.parse(strategy), aggregation, weights)
    for head in range(3):
        own = slice(4 * head, 4 * head + 4)
        alone = Graph.from_csr(graph.rowptr, graph.col, graph.num_src, weights[:, head])
        expected = reference(alone, features[:, own])
        assert np.abs(found[:, own] - expected).max() < (1e-6 if element == "fp32" else 1e-3) * np.abs(expected).max()


def test_unknown_weights_have_the_bits_that_never_overflow() -> None:
    graph = graph_of(weighted=False)
    bits = bits_for_any_weights(graph, "int32", widened=False)
    assert isinstance(bits, int)
    longest = int(np.diff(graph.rowptr).max())
    assert longest * 4 ** (bits - 1) <= 2**31 - 1 < longest * 4**bits
    for weights in (np.ones(graph.num_edges), np.random.default_rng(2).normal(size=(graph.num_edges, 2))):
        found = bits_for(graph, "int32", False, weights)
        assert isinstance(found, int)
        assert found >= bits
    assert isinstance(bits_for_any_weights(graph, "int8", widened=False), Refusal)


def test_sums_that_may_not_fit_are_found() -> None:
    """A row of n features of 2**19 fits int32 up to n = 4095."""
    for degree, fits in ((4095, True), (4096, False)):
        star = Graph.from_csr([0, degree], np.zeros(degree, np.int32), 1)
        assert largest_sum(star, "int32", 20) == degree * 2**19
        assert (overflow(star, "int32", widened=False) is None) == fits
        assert overflow(star, "int32", widened=True) is None
        assert overflow(star, "fp32", widened=False) is None


@pytest.mark.parametrize(("element", "least"), [("int32", 12), ("int16", 4)])
def test_weights_and_features_share_the_bits_that_never_overflow(element: Any, least: int) -> None:
    graph = graph_of(weighted=True)
    bits = bits_for(graph, element, widened=False)
    assert isinstance(bits, int)
    assert least <= bits < BITS[element]
    room = 2 ** ({"int32": 31, "int16": 15}[element]) - 1
    assert largest_sum(graph, element, bits) <= room < largest_sum(graph, element, bits + 1)
    features = np.random.default_rng(1).normal(size=(graph.num_src, 6)).astype(np.float32)
    strategy = Strategy.parse("2x2 coo nnz-exact nnz-exact lock")
    found = aggregated(SPEC, graph, features, strategy, Aggregation(6, element))
    expected = reference(graph, features)
    assert 0 < np.abs(found - expected).max() < 8 * 2.0**-bits * np.abs(expected).max()


def test_refused_sums_really_overflow() -> None:
    degree = 4097
    star = Graph.from_csr([0, degree], np.zeros(degree, np.int32), 1)
    features = np.ones((1, 2), np.float32)
    strategy = Strategy(1, 1, "csr", "row", "row")
    narrow = aggregated(SPEC, star, features, strategy, Aggregation(2, "int32"))
    wide = aggregated(SPEC, star, features, strategy, Aggregation(2, "int32", widened=True))
    assert wide == pytest.approx(degree)
    assert np.all(narrow < 0)
