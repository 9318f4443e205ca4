"""Stages of an aggregation by hand, memory limits, and sums of parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pimflow.codegen.upmem.partition import cores_of
from pimflow.codegen.upmem.strategy import Strategy, strategies_of
from pimflow.ir import Refusal
from pimflow.runtime.upmem.edge_parts import EdgeParts
from pimflow.runtime.upmem.pricing import Aggregation, AggregationCost, Pricing, clusters_of, refusal_of
from pimflow.sparse import Graph
from support.upmem.graphs import uniform
from support.upmem.machine import machine

SPEC = machine(cores=66, ranks=4)


def priced(graph: Graph, features: int, text: str, element: str = "int32") -> AggregationCost:
    strategy = Strategy.parse(text)
    aggregation = Aggregation(features, element)  # type: ignore[arg-type]
    cost = Pricing(SPEC, aggregation, EdgeParts(graph)).cost(strategy)
    assert isinstance(cost, AggregationCost), cost
    return cost


def test_every_core_of_a_cluster_gets_its_part_of_the_features() -> None:
    graph = uniform(1001, 5000)
    cost = priced(graph, 32, "2x2 csr row row")
    # Ranks of 17, 17, 16 and 16 cores; parts of 501 and 500 sources, 16 columns of 4 bytes each.
    assert cost.loaded_bytes == (34 * 501 + 32 * 500) * 16 * 4
    assert cost.load_us == pytest.approx(cost.loaded_bytes / 43.73e3)


def test_every_core_returns_as_many_rows_as_the_fullest() -> None:
    graph = uniform(1001, 5000)
    cost = priced(graph, 32, "1x4 csr row row")
    # 1001 rows on 17 cores: 59 at most; on 16: 63.
    assert cost.retrieved_bytes == (2 * 17 * 59 + 2 * 16 * 63) * 8 * 4
    assert cost.retrieve_us == pytest.approx(cost.retrieved_bytes / 4.839043e3)  # blocks of 2 KB: the smallest entry


def test_the_host_copies_one_edge_part_and_adds_the_others() -> None:
    graph = uniform(1000, 5000)
    one, two = priced(graph, 32, "1x4 csr row row"), priced(graph, 32, "2x2 csr row row")
    assert one.merge_us == pytest.approx(1e3 * 4 * 1000 / 23207.01)  # rows of 8 columns
    assert two.merge_us == pytest.approx(1e3 * 2 * 1000 * (1 / 17066.62667 + 1 / 24902.42))  # of 16


def test_rows_that_straddle_cores_are_added_once_more() -> None:
    graph = Graph.from_csr([0, 4000], np.arange(4000) % 50, 50)
    whole, shared = priced(graph, 32, "1x4 coo nnz nnz"), priced(graph, 32, "1x4 coo nnz-exact nnz")
    straddling = 16 + 16 + 15 + 15
    assert shared.merge_us - whole.merge_us == pytest.approx(1e3 * straddling / 32651.40667)
    assert shared.kernel_us - shared.launch_us < (whole.kernel_us - whole.launch_us) / 5


def test_a_price_is_the_sum_of_its_parts_for_every_strategy() -> None:
    graph = uniform(300, 4000)
    pricing = Pricing(SPEC, Aggregation(24, "int16"), EdgeParts(graph))
    for strategy in strategies_of(SPEC.ranks):
        cost = pricing.cost(strategy)
        assert isinstance(cost, AggregationCost)
        assert sum(cost.time_parts_us.values()) == pytest.approx(cost.time_us)
        assert sum(cost.energy_parts_mj.values()) == pytest.approx(cost.energy_mj)
        assert min(cost.time_parts_us.values()) > 0
        assert cost.kernel_us == pytest.approx(SPEC.launch_us + cost.cycles / SPEC.clock_mhz, rel=1e-3)


def test_modules_and_the_cpu_draw_power_in_every_stage() -> None:
    cost = priced(uniform(1001, 5000), 32, "2x2 csr row row")
    working_us = cost.load_us + cost.retrieve_us + cost.merge_us
    assert cost.idle_mj == pytest.approx(16 * 5.0 * cost.time_us * 1e-3)
    assert cost.kernel_mj == pytest.approx(16 * (23.22 - 5.0) * cost.kernel_us * 1e-3)
    assert cost.host_mj == pytest.approx(60.0 * working_us * 1e-3)
    assert cost.link_mj == pytest.approx((cost.loaded_bytes + cost.retrieved_bytes) * 160e-9)


def test_all_clusters_together_have_all_cores_and_all_columns() -> None:
    for strategy in strategies_of(SPEC.ranks):
        clusters = list(clusters_of(SPEC, Aggregation(30, "int32"), strategy))
        assert sum(cluster.cores for cluster in clusters) == SPEC.cores
        assert sum(cluster.columns for cluster in clusters) == 30 * strategy.edge_parts


def test_strategies_that_do_not_fit_are_refused_with_the_bytes() -> None:
    small = replace(SPEC, mram_bytes=30_000)
    found = refusal_of(small, Aggregation(32, "int32"), 1000, Strategy.parse("1x4 csr row row"))
    assert isinstance(found, Refusal)
    assert (found.demand, found.bound) == (1000 * 8 * 4, 30_000)
    tight = replace(SPEC, mram_bytes=33_000)
    cost = Pricing(tight, Aggregation(32, "int32"), EdgeParts(uniform(1000, 5000))).cost(
        Strategy.parse("1x4 csr row row")
    )
    assert isinstance(cost, Refusal)
    assert cost.reason.startswith("a core needs 3")
    assert cost.gap is not None
    wide = refusal_of(SPEC, Aggregation(1200, "int32"), 10, Strategy.parse("1x1 csr row row"))
    assert wide is not None
    assert "WRAM" in wide.reason


@pytest.mark.parametrize(
    ("features", "sources", "text"),
    [(5, 100, "1x4 csr row row"), (64, 5, "4x1 csr row row"), (8, 9, "3x1 csr row row")],
)
def test_nonexistent_parts_are_refused(features: int, sources: int, text: str) -> None:
    assert refusal_of(SPEC, Aggregation(features, "int32"), sources, Strategy.parse(text)) is not None


def test_more_cores_never_take_longer_on_even_rows() -> None:
    graph = Graph.from_csr(np.arange(0, 4097, 8), np.arange(4096) % 512, 512)
    times = [
        Pricing(machine(cores=cores, ranks=4), Aggregation(32, "int32"), EdgeParts(graph)).cost(
            Strategy.parse("1x4 csr row row")
        )
        for cores in (4, 8, 16, 32)
    ]
    kernels = [cost.kernel_us - cost.launch_us for cost in times if isinstance(cost, AggregationCost)]
    assert len(kernels) == 4
    assert kernels == sorted(kernels, reverse=True)


@pytest.mark.parametrize("element", ["int32", "int8", "fp32"])
@pytest.mark.parametrize("text", ["1x4 csr row nnz", "2x2 coo nnz-exact nnz-exact lock-free", "4x1 csr nnz row"])
def test_weights_of_one_call_are_loaded_to_the_cores_that_hold_the_edges(element: Any, text: str) -> None:
    """Every core gets as many weights as the fullest core of its cluster, for every head of its columns."""
    graph, strategy, spec = uniform(200, 3000), Strategy.parse(text), machine(cores=64, ranks=4)
    aggregation = Aggregation(12, element, heads=3, computed=True)
    kinds = (aggregation, replace(aggregation, computed=False))
    cost, once = (Pricing(spec, kind, EdgeParts(graph)).cost(strategy) for kind in kinds)
    assert isinstance(cost, AggregationCost)
    assert isinstance(once, AggregationCost)
    size, sent = {"int32": 4, "int8": 1, "fp32": 4}[element], 0
    width, columns = -(-200 // strategy.edge_parts), -(-12 // strategy.feature_parts)
    own = spec.cores // strategy.clusters
    for part in range(strategy.edge_parts):
        inside = (graph.col >= part * width) & (graph.col < (part + 1) * width)
        rowptr = np.concatenate([[0], np.cumsum(inside)])[graph.rowptr]
        fullest = int(cores_of(rowptr, own, strategy.cores).nonzeros.max())
        heads = [len({column // 4 for column in range(first, first + columns)}) for first in range(0, 12, columns)]
        sent += own * fullest * sum(heads) * size
    assert cost.loaded_bytes - once.loaded_bytes == sent
    arranged = 3000 * 3 * (4 + size + (0 if element == "fp32" else 4))
    assert cost.weights_us == pytest.approx(sent / 43.73e3 + arranged / 23.1e3)
    assert cost.load_us == pytest.approx(once.load_us + cost.weights_us)
    assert cost.kernel_us == pytest.approx(once.kernel_us)
