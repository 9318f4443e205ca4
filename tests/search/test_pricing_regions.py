"""The cost of a decision cut out of its graph, against its cost with all others applied as well."""

from __future__ import annotations

import pytest

from pimflow.ir import Decision, OnDevice, Pipeline
from pimflow.ir.analysis.movement import place
from pimflow.passes import CLEANUP, PassManager
from pimflow.runtime.costs import CostModel
from pimflow.runtime.timeline import build_timeline
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import Pricer
from pimflow.targets import load_target
from support.graphs import dense_block
from support.passes import plan_of, rewritten

TARGET = load_target("pimflow")
COSTS = CostModel(TARGET)
GRAPH = PassManager(CLEANUP).run(dense_block()).graph
WIDE = {node.name for node in GRAPH.nodes if node.op.is_contraction and GRAPH.shape(node.output)[1] == 32}


@pytest.mark.parametrize("cut", range(5, 12))
@pytest.mark.parametrize("first", [2, 3])
def test_pipelines_through_one_dense_buffer_cost_the_same_alone(first: int, cut: int) -> None:
    names = [node.name for node in GRAPH.nodes]
    runs = [tuple(names[first:cut]), tuple(names[cut:])]
    pipelines = [Pipeline(run, tuple("pim" if name in WIDE else "gpu" for name in run), (5, 9), "auto") for run in runs]
    decisions: list[Decision] = [*(OnDevice(name, "gpu") for name in names[:first]), *pipelines]
    pricer = Pricer(GRAPH, COSTS, PriceCache(None, ""))
    alone = [pricer.cost((decision,)) for decision in decisions]
    whole = rewritten(GRAPH, plan_of(*decisions), COSTS)
    assert build_timeline(whole, TARGET, COSTS).region_us == pytest.approx(alone)
    assert all(found.free for found in place(whole).actual.values()), "no copy is unpriced"
