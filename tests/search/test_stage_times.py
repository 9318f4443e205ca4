"""Lower bounds on the time of pipelines from the rows of their stages, against their layouts."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise
from zlib import crc32

import numpy as np
import pytest
from onnx import helper

import pimflow
from pimflow.codegen.work import MatrixProblem
from pimflow.ir import Graph, Node, Pipeline
from pimflow.passes import CLEANUP, PassManager
from pimflow.runtime.costs import CostModel
from pimflow.search.bounds import Bounds
from pimflow.search.candidates import Candidate, Candidates
from pimflow.search.chain import Interval
from pimflow.search.policy import find_policy
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import Costs, Pricer
from pimflow.search.run_parts import End
from pimflow.search.stage_times import StageTimes
from pimflow.targets import load_target
from support.costs import FakeCost, FakeCosts, FakeUnit
from support.graphs import dense_block, fire_modules, inverted_residuals, random_net
from support.onnx_models import model_of

COSTS: dict[str, Costs] = {
    "fake": FakeCosts(symmetric_padding=("gpu",)),
    "pimflow": CostModel(load_target("pimflow")),
    "cpu": CostModel(load_target("pimflow-cpu")),
}


@pytest.mark.parametrize("machine", COSTS)
@pytest.mark.parametrize("name", ["inverted", "dense"])
def test_the_bound_is_between_the_busiest_device_and_the_layout(name: str, machine: str) -> None:
    graph = inverted_residuals(1) if name == "inverted" else dense_block(2)
    graph = PassManager(CLEANUP).run(graph).graph
    costs = COSTS[machine]
    pricer, bounds = Pricer(graph, costs, PriceCache(None, "")), Bounds(graph, costs)
    stages = StageTimes(bounds, "gpu")
    tight = changing = shared = 0
    for candidate in Candidates(graph, find_policy("auto"), pricer):
        (only, *others) = candidate.decisions
        if others or not isinstance(only, Pipeline):
            continue
        least, busy_us = stages.lower_bound_us(only), bounds.least_busy_us(candidate.decisions)
        divided = len(only.stage_rows) == 1  # fused nodes are not counted there
        busiest = max(us for device, us in busy_us.items() if not divided or device != "gpu")
        assert busiest * (1 - 1e-9) <= least
        assert least <= bounds.lower_bound_us(candidate.decisions) * (1 + 1e-9) or len(only.stage_rows) == 2
        assert least <= pricer.least(candidate.decisions)
        tight += least > 1.02 * busiest and not divided
        shared += divided
        changing += bool(only.host_rows)
    assert changing > 5, "some are on the host in one stage and on PIM in the other"
    assert shared, "rows of neighbours are on the host and on PIM in one stage"
    assert tight > 5 or machine == "fake", "devices wait for the first parts, and others for the last ones"


def test_after_parts_are_priced_the_bound_is_not_below_the_busiest_device() -> None:
    graph, costs = PassManager(CLEANUP).run(inverted_residuals(2, 28)).graph, COSTS["pimflow"]
    pricer, bounds = Pricer(graph, costs, PriceCache(None, "")), Bounds(graph, costs)
    firsts = (candidate.decisions[0] for candidate in Candidates(graph, find_policy("auto"), pricer))
    runs = [only for only in firsts if isinstance(only, Pipeline) and len(only.stage_rows) == 2]
    stages = StageTimes(bounds, "gpu")
    before = list(map(stages.lower_bound_us, runs))
    for run in runs:
        known = 0.0
        while known < (known := bounds.tighten((run,))):  # until all its parts are priced
            pass
    after = list(map(stages.lower_bound_us, runs))
    for run, least in zip(runs, after, strict=True):
        assert max(bounds.least_busy_us((run,)).values()) * (1 - 1e-9) <= least
    assert sum(late > early for early, late in zip(before, after, strict=True)) > 20
    now = list(map(stages.shortest_us, runs))
    assert now == list(map(StageTimes(bounds, "gpu").shortest_us, runs)), "whatever was known before"
    assert sum(late > early for early, late in zip(after, now, strict=True)) > 20


def test_shares_that_the_chains_lack_count_for_the_busiest_device() -> None:
    graph, costs = PassManager(CLEANUP).run(dense_block(3, 28)).graph, COSTS["pimflow"]
    pricer, bounds = Pricer(graph, costs, PriceCache(None, "")), Bounds(graph, costs)
    stages, divided = StageTimes(bounds, "gpu"), 0
    for candidate in Candidates(graph, find_policy("auto"), pricer):
        (run, *_) = candidate.decisions
        if not isinstance(run, Pipeline) or len(run.stage_rows) != 2 or run.host_rows or "pim" not in run.devices[1:]:
            continue
        place = run.devices.index("pim", 1)
        shared = replace(run, host_rows=tuple((1, 1) if at == place else () for at in range(len(run.run))))
        busiest = max(bounds.least_busy_us((shared,)).values())
        assert busiest * (1 - 1e-9) <= stages.lower_bound_us(shared)
        divided += math.isfinite(busiest)
    assert divided > 20


BRANCHES = [dense_block(3, 28), fire_modules(28), *map(random_net, range(3))]


@pytest.mark.parametrize("machine", ["pimflow", "cpu"])
@pytest.mark.parametrize("graph", [inverted_residuals(2, 28), *BRANCHES], ids=lambda graph: str(graph.name))
def test_two_stages_take_at_least_as_long_as_their_shortest_schedule(graph: Graph, machine: str) -> None:
    graph, costs = PassManager(CLEANUP).run(graph).graph, COSTS[machine]
    pricer, bounds = Pricer(graph, costs, PriceCache(None, "")), Bounds(graph, costs)
    stages = StageTimes(bounds, "gpu")
    beyond = 0
    for candidate in Candidates(graph, find_policy("auto"), pricer):
        (only, *_) = candidate.decisions
        if isinstance(only, Pipeline) and len(only.stage_rows) == 2:
            least = stages.lower_bound_us(only)
            assert least <= (pricer.cost(candidate.decisions) or math.inf) * (1 + 1e-9)
            beyond += least > bounds.lower_bound_us(candidate.decisions) * (1 + 1e-9)
    assert beyond > 50 or graph.name != "inverted", "the layout's bound does not see that they wait for each other"


class DrawnUnit(FakeUnit):
    """A unit whose times are drawn at random, and are the same for the same work."""

    def cost(self, work: MatrixProblem, choice: str) -> FakeCost:
        return FakeCost(_drawn_us(self.slow_down, work, choice))


class DrawnCosts(FakeCosts):
    """Times drawn at random: those of a node's parts have nothing to do with their sizes. Movements are free."""

    def __init__(self, seed: float) -> None:
        super().__init__(slow_down=seed, symmetric_padding=("gpu",))
        self.unit = DrawnUnit(seed)
        self.units = {"pim": self.unit}

    def node_cost(self, graph: Graph, node: Node) -> FakeCost:
        if node.device == "pim":
            return super().node_cost(graph, node)
        if node.op.is_movement or node.placement.fused_into:
            return FakeCost(0.0)
        shapes = [value and value.shape for value in graph.in_values(node)]
        return FakeCost(_drawn_us(self.unit.slow_down, node.op, shapes))


def _drawn_us(*what: object) -> float:
    return 1 + crc32(repr(what).encode()) % 1000 / 20


@pytest.mark.parametrize("graph", [inverted_residuals(2, 28), *BRANCHES[:3]], ids=lambda graph: str(graph.name))
def test_with_any_prices_no_pipeline_is_faster_than_its_bound(graph: Graph) -> None:
    """Of pipelines in three or four stages of any lengths, with any devices and rows divided within stages."""
    graph = PassManager(CLEANUP).run(graph).graph
    draw, near = random.Random(7), 0.0
    for seed in range(2):
        pricer = Pricer(graph, DrawnCosts(seed), PriceCache(None, ""))
        candidates = Candidates(graph, find_policy("auto"), pricer)
        listed = [one for one in candidates if isinstance(one.decisions[0], Pipeline) and len(one.decisions[0].run) > 2]
        candidates.scene.divided_runs = True
        for one in draw.choices(listed, k=60):
            varied = _varied(candidates, one, draw)
            us = pricer.cost(varied.decisions)
            if us is not None:
                least = pricer.least(varied.decisions)
                assert least <= us * (1 + 1e-9)
                near = max(near, least / us)
    assert near > 0.9999, "some are as fast as their bound"


def _varied(candidates: Candidates, listed: Candidate, draw: random.Random) -> Candidate:
    """A listed pipeline in other stages, with devices and shares changed in a few steps."""
    pipeline = listed.decisions[0]
    assert isinstance(pipeline, Pipeline)
    rows = sum(pipeline.stage_rows)
    cuts = sorted(draw.sample(range(1, rows), draw.choice([2, 3])))
    stage_rows = tuple(stop - start for start, stop in pairwise((0, *cuts, rows)))
    some = Candidate(listed.start, listed.stop, (replace(pipeline, stage_rows=stage_rows, host_rows=()),))
    for _ in range(draw.randint(1, 4)):
        near = [*candidates.variations(Interval(some.start, some.stop, 1.0, some.decisions))]
        some = draw.choice(near) if near else some
    return some


@pytest.mark.parametrize("machine", ["pimflow", "cpu"])
def test_lines_have_the_bound_of_other_runs(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, costs = PassManager(CLEANUP).run(inverted_residuals(2, 28)).graph, COSTS[machine]
    pricer, bounds = Pricer(graph, costs, PriceCache(None, "")), Bounds(graph, costs)
    candidates = Candidates(graph, find_policy("auto"), pricer)
    runs = [only for (only, *_) in (entry.decisions for entry in candidates) if isinstance(only, Pipeline)]
    ends = [bounds.runs.end(run.run, run.stage_rows, run.bottom_first) for run in runs]
    lines = [bool(end and end.is_line(len(run.run))) for end, run in zip(ends, runs, strict=True)]
    assert lines.count(True) > 50
    as_lines = list(map(StageTimes(bounds, "gpu").lower_bound_us, runs))
    monkeypatch.setattr(End, "is_line", lambda *_: False)
    assert as_lines == pytest.approx(list(map(StageTimes(bounds, "gpu").lower_bound_us, runs)), rel=1e-12)


def test_prices_change_bounds_that_were_found_before() -> None:
    """Of pipelines in three stages; the chains of two keep what was known when they were made."""
    graph, costs = PassManager(CLEANUP).run(inverted_residuals(2, 28)).graph, COSTS["pimflow"]
    pricer, bounds = Pricer(graph, costs, PriceCache(None, "")), Bounds(graph, costs)
    firsts = (candidate.decisions[0] for candidate in Candidates(graph, find_policy("auto"), pricer))
    runs = [
        replace(only, stage_rows=(1, 1, sum(only.stage_rows) - 2))
        for only in firsts
        if isinstance(only, Pipeline) and not only.host_rows and sum(only.stage_rows) > 2
    ]
    stages = StageTimes(bounds, "gpu")
    before = list(map(stages.lower_bound_us, runs))
    for run in runs:
        least = bounds.lower_bound_us((run,))
        while least < (least := bounds.tighten((run,))):
            pass
    after = list(map(stages.lower_bound_us, runs))
    assert after == list(map(StageTimes(bounds, "gpu").lower_bound_us, runs))
    assert all(late >= early for early, late in zip(before, after, strict=True))
    assert sum(late > early for early, late in zip(before, after, strict=True)) > 20, "a unit is busiest in many"


def test_only_runs_have_a_bound() -> None:
    graph = PassManager(CLEANUP).run(inverted_residuals(1)).graph
    first, second, third = (node.name for node in graph.nodes[:3])
    bounds = Bounds(graph, FakeCosts())
    stages = StageTimes(bounds, "gpu")
    rows = graph.shape(graph.node(third).output)[-2]
    run = Pipeline((first, second, third), ("gpu", "pim", "gpu"), (2, rows - 2), "")
    other_way = Pipeline((second, first, third), ("pim", "gpu", "gpu"), (2, rows - 2), "")
    assert stages.lower_bound_us(run) > 0
    assert stages.lower_bound_us(other_way) == 0


def test_a_result_that_nothing_reads_in_a_pipeline() -> None:
    """It stays if dead code is not removed."""
    convs = [("x", "a"), ("a", "b"), ("b", "y")]
    nodes = [helper.make_node("Conv", [read, "w"], [made], pads=[1] * 4) for read, made in convs]
    nodes.insert(2, helper.make_node("Sigmoid", ["b"], ["dead"]))
    model = model_of(nodes, {"x": (1, 32, 28, 28)}, constants={"w": np.ones((32, 32, 3, 3), np.float32)})
    compiled = pimflow.compile(model, use_cache=False, check=False, disabled_passes=("remove-dead-code",))
    assert any(row["op"] == "Sigmoid" for row in compiled.records())
