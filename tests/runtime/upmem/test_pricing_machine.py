"""Prices and the tuner's pick beside whole small machines that are simulated event by event."""

from __future__ import annotations

import pytest

from pimflow.codegen.upmem.strategy import strategies_of
from pimflow.runtime.upmem.edge_parts import EdgeParts
from pimflow.runtime.upmem.pricing import Aggregation, AggregationCost, Pricing
from pimflow.runtime.upmem.tuner import Tuner
from support.upmem.graphs import KINDS
from support.upmem.machine import machine
from support.upmem.oracle_machine import stages_us

SPEC = machine(cores=3, ranks=2, tasklets=5, launch_us=0.0)


@pytest.mark.parametrize(("kind", "vertices", "edges", "features"), [("uniform", 20, 60, 8)])
def test_stages_totals_and_the_winner_are_those_of_a_simulation(
    kind: str, vertices: int, edges: int, features: int
) -> None:
    graph, asked = KINDS[kind](vertices, edges), Aggregation(features, "int32")
    pricing = Pricing(SPEC, asked, EdgeParts(graph))
    totals = {}
    for strategy in strategies_of(SPEC.ranks):
        cost = pricing.cost(strategy)
        assert isinstance(cost, AggregationCost)
        stages = stages_us(SPEC, graph, features, strategy)
        totals[strategy] = sum(stages.values())
        assert cost.kernel_us == pytest.approx(stages["kernel"], rel=0.05)
        assert cost.time_us == pytest.approx(totals[strategy], rel=0.1)
        for stage in ("load", "retrieve", "merge"):
            assert cost.time_parts_us[stage] == pytest.approx(stages[stage])
    pick = Tuner(SPEC, graph, asked).rank().best.strategy
    assert totals[pick] <= 1.05 * min(totals.values())
