"""The tuner's choice compared with the best of all strategies."""

from __future__ import annotations

import numpy as np
import pytest

from pimflow.ir import Refusal
from pimflow.runtime.upmem.baselines import grande, published_tuner, sparsep
from pimflow.runtime.upmem.pricing import Aggregation
from pimflow.runtime.upmem.tuner import LEVELS, TIMED, Tuner
from pimflow.sparse import Graph
from pimflow.targets.schema.upmem import ElementType
from support.upmem.graphs import KINDS, band, skewed, uniform
from support.upmem.machine import machine

SPEC = machine(cores=130, ranks=8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("vertices", "edges", "features"), [(400, 3000, 64), (1500, 18_000, 16)])
def test_its_pick_is_near_the_best(kind: str, vertices: int, edges: int, features: int) -> None:
    tuner = Tuner(SPEC, KINDS[kind](vertices, edges), Aggregation(features, "int32"))
    ranking, all_exact = tuner.rank(), tuner.exhaustive()
    assert ranking.best.exact
    assert sum(row.exact for row in ranking.rows) <= TIMED
    assert {row.strategy for row in ranking.rows} == {row.strategy for row in all_exact.rows}
    assert ranking.best.cost.time_us <= 1.05 * all_exact.best.cost.time_us
    exact = {row.strategy: row.cost.time_us for row in all_exact.rows}
    assert exact[ranking.best.strategy] == ranking.best.cost.time_us
    for level, other in tuner.alternatives(ranking).items():
        assert LEVELS[level](other.strategy) != LEVELS[level](ranking.best.strategy)


@pytest.mark.parametrize(
    ("kind", "vertices", "edges", "features", "element"),
    [("blocks", 101, 995, 8, "int16"), ("blocks", 269, 98, 100, "fp32"), ("band", 1200, 36_000, 41, "int8")],
)
def test_fewer_edges_than_tasklets_and_uneven_columns(
    kind: str, vertices: int, edges: int, features: int, element: ElementType
) -> None:
    for spec in (SPEC, machine(cores=66, ranks=4)):
        tuner = Tuner(spec, KINDS[kind](vertices, edges), Aggregation(features, element))
        assert tuner.rank().best.cost.time_us <= 1.05 * tuner.exhaustive().best.cost.time_us


def test_on_few_cores_the_pick_is_the_best_even_of_one_edge() -> None:
    """Here equal shares promise less for the best strategy than for others; four were timed."""
    graph = Graph.from_edge_index(np.array([[4], [3]]), 10)
    tuner = Tuner(machine(cores=6, ranks=2, launch_us=0.0), graph, Aggregation(4, "int32"))
    ranking = tuner.rank()
    assert all(row.exact for row in ranking.rows)
    assert ranking.best.cost.time_us == tuner.exhaustive().best.cost.time_us


def test_edges_are_counted_by_parts_only_where_that_may_pay() -> None:
    """With few edges per vertex, loading and merging dominate; with many, but shared unevenly by four parts, it does
    not pay."""
    sparse = Tuner(SPEC, band(5000, 10_000), Aggregation(64, "int32"))
    assert sparse.rank().best.strategy.edge_parts == 1
    assert not any(sparse.pricing.parts.counted(count) for count in (2, 4, 8))
    dense = Tuner(SPEC, band(2000, 200_000), Aggregation(41, "int8"))
    dense.rank()
    assert dense.pricing.parts.counted(2)


def test_another_graph_has_another_best_strategy() -> None:
    best = {
        Tuner(SPEC, graph, Aggregation(features, "int32")).rank().best.strategy
        for graph, features in ((uniform(3000, 60_000), 64), (uniform(20_000, 30_000), 64), (band(3000, 400_000), 16))
    }
    assert len(best) > 1


def test_prior_work_and_the_published_tuner_are_no_better() -> None:
    for make in (uniform, skewed):
        graph, aggregation = make(3000, 60_000), Aggregation(256, "int32")
        spec = machine(cores=520, ranks=32)
        best = Tuner(spec, graph, aggregation).rank().best.cost.time_us
        for baseline in (sparsep, grande):
            cost = baseline(spec, graph, aggregation)
            assert not isinstance(cost, Refusal)
            assert cost.time_us > best
        published = published_tuner(spec, graph, aggregation)
        assert not isinstance(published, Refusal)
        assert published.strategy.format == "csr"


def test_the_published_tuner_has_no_rates_of_other_widths() -> None:
    assert isinstance(published_tuner(machine(), uniform(100, 400), Aggregation(300, "int32")), Refusal)
