"""Prices and the tuner's choice compared with whole small machines that are simulated event by event."""

from __future__ import annotations

import numpy as np
import pytest

from pimflow.codegen.upmem.strategy import strategies_of
from pimflow.ir import Refusal
from pimflow.runtime.upmem.edge_parts import EdgeParts
from pimflow.runtime.upmem.pricing import Aggregation, AggregationCost, Pricing
from pimflow.runtime.upmem.tuner import Tuner
from pimflow.sparse import Graph
from support.upmem.graphs import KINDS
from support.upmem.machine import machine
from support.upmem.oracle_machine import stages_us

UNIFORM = KINDS["uniform"](20, 60)
FIRST_ROW = Graph.from_edge_index(np.array([[7], [0]]), 150)
"""One edge: its core is slower than the core that clears most rows, or the reverse."""


@pytest.mark.parametrize(
    ("graph", "features", "cores", "tasklets"),
    [(UNIFORM, 8, 3, 5), (FIRST_ROW, 32, 10, 11), (FIRST_ROW, 4, 3, 2)],
    ids=["uniform", "one edge, ten cores", "one edge, two tasklets"],
)
def test_stages_totals_and_the_winner_match_a_simulation(
    graph: Graph, features: int, cores: int, tasklets: int
) -> None:
    spec, aggregation = machine(cores=cores, ranks=2, tasklets=tasklets, launch_us=0.0), Aggregation(features, "int32")
    pricing = Pricing(spec, aggregation, EdgeParts(graph))
    totals = {}
    for strategy in strategies_of(spec.ranks):
        cost = pricing.cost(strategy)
        if isinstance(cost, Refusal):
            continue
        assert isinstance(cost, AggregationCost)
        stages = stages_us(spec, graph, features, strategy)
        totals[strategy] = sum(stages.values())
        assert cost.kernel_us == pytest.approx(stages["kernel"], rel=0.05)
        assert cost.time_us == pytest.approx(totals[strategy], rel=0.1)
        for stage in ("load", "retrieve", "merge"):
            assert cost.time_parts_us[stage] == pytest.approx(stages[stage])
    pick = Tuner(spec, graph, aggregation).rank().best.strategy
    assert totals[pick] <= 1.05 * min(totals.values())
