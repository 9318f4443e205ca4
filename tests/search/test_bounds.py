"""Lower bounds on the time of decisions: never above the price, and tight enough to avoid most rewrites."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pimflow.codegen.work import MatrixProblem
from pimflow.ir import Builder, Decision, Graph, OnDevice, Parallel, Pipeline, Refusal, SplitColumns, SplitRows
from pimflow.ir.expansion.base import CONTRIB
from pimflow.passes import CLEANUP, PassManager
from pimflow.runtime.costs import CostModel
from pimflow.search.bounds import Bounds
from pimflow.search.candidates import Candidate, Candidates
from pimflow.search.candidates.base import Varied
from pimflow.search.chain import Interval, solve_chain
from pimflow.search.joined_parts import JoinedItem, JoinedTimes
from pimflow.search.joined_ways import Joined, Numbers, Way
from pimflow.search.part_steps import Steps
from pimflow.search.policy import find_policy
from pimflow.search.price_cache import PriceCache
from pimflow.search.priced_space import price_space
from pimflow.search.pricing import Costs, Pricer
from pimflow.targets import load_target, override
from support.costs import FakeCost, FakeCosts, FakeUnit
from support.graphs import ConvNet, attention, dense_block, fire_modules, inverted_residuals, random_net

GRAPHS = {
    "inverted": inverted_residuals(1),
    "fire": fire_modules(14),
    "random": random_net(2),
}
COSTS: dict[str, tuple[Costs, str]] = {
    "fake": (FakeCosts(symmetric_padding=("gpu",)), "auto"),
    "slow": (FakeCosts(slow_down=20.0), "auto"),
    "pimflow": (CostModel(load_target("pimflow")), "pimflow"),
    "cpu": (CostModel(load_target("pimflow-cpu")), "pimflow"),
    "link": (CostModel(load_target("rtx3090")), "auto"),
}
LAUNCHES: dict[str, Costs] = {
    mode: CostModel(override("pimflow", {"gpu.launches": launches, "gpu.persistent_stages": persistent}))
    for mode, launches, persistent in (
        ("queued", "queued", False),
        ("persistent", "exposed", True),
        ("both", "queued", True),
    )
}


@pytest.mark.parametrize("machine", COSTS)
@pytest.mark.parametrize("name", GRAPHS)
def test_no_bound_is_above_the_price(name: str, machine: str) -> None:
    costs, policy = COSTS[machine]
    graph = PassManager(CLEANUP).run(GRAPHS[name]).graph
    pricer, bounds = Pricer(graph, costs, PriceCache(None, "")), Bounds(graph, costs)
    tight = 0
    for candidate in Candidates(graph, find_policy(policy), pricer):
        cost = pricer.cost(candidate.decisions)
        by_arithmetic = bounds.lower_bound_us(candidate.decisions)
        if cost is None:
            continue
        before = pricer.least(candidate.decisions)
        assert before <= cost * (1 + 1e-9), candidate
        tight += min(by_arithmetic, before) > 0.5 * cost
        by_parts = bounds.tighten(candidate.decisions)
        while by_parts > by_arithmetic:
            by_arithmetic, by_parts = by_parts, bounds.tighten(candidate.decisions)
        assert by_parts <= cost * (1 + 1e-9), candidate
        assert by_parts == bounds.lower_bound_us(candidate.decisions)
    assert tight, "the bound is too weak"


@pytest.mark.parametrize("name", GRAPHS)
def test_the_parts_of_its_node_are_a_bound_on_a_split(name: str) -> None:
    costs, _ = COSTS["pimflow"]
    graph = PassManager(CLEANUP).run(GRAPHS[name]).graph
    pricer, bounds = Pricer(graph, costs, PriceCache(None, "")), Bounds(graph, costs)
    near = listed = 0
    for candidate in Candidates(graph, find_policy("auto"), pricer):
        (only, *others) = candidate.decisions
        if others or not isinstance(only, SplitRows):
            continue
        by_parts, laid_out = bounds.split_us(only), bounds.lower_bound_us(candidate.decisions)
        assert 0 < pricer.least(candidate.decisions) <= by_parts * (1 + 1e-9) <= laid_out * (1 + 2e-9), only
        near += by_parts > 0.5 * laid_out
        listed += pricer.least(candidate.decisions) > 0.9 * by_parts
    assert near, "the bound is too weak"
    assert listed > 0.6 * near, "few rows take a launch, too"


@pytest.mark.parametrize("name", ["inverted", "fire"])
def test_as_many_columns_are_a_bound_on_a_split(name: str) -> None:
    costs, _ = COSTS["pimflow"]
    graph = PassManager(CLEANUP).run(GRAPHS[name]).graph
    pricer, bounds = Pricer(graph, costs, PriceCache(None, "")), Bounds(graph, costs)
    splits = [
        candidate.decisions
        for candidate in Candidates(graph, find_policy("auto"), pricer)
        if isinstance(candidate.decisions[0], SplitColumns)
    ]
    ratios = [pricer.least(split) / bounds.lower_bound_us(split) for split in splits]
    assert max(ratios) <= 1 + 1e-9
    assert sum(ratio > 0.9 for ratio in ratios) > 0.6 * len(ratios), "few columns take a launch, too"


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        *product([*GRAPHS, "dense", "series", "quantised"], ["pimflow", "cpu", "link"]),
        *product(["inverted", "random"], LAUNCHES),
    ],
)
def test_exact_times_from_parts_match_the_price(name: str, machine: str) -> None:
    costs = LAUNCHES[machine] if machine in LAUNCHES else COSTS[machine][0]
    others = {"dense": dense_block(3), "series": series(), "quantised": quantised()}
    graph = PassManager(CLEANUP).run((GRAPHS | others)[name]).graph
    pricer, bounds = CarryingOut(graph, costs, PriceCache(None, "")), Bounds(graph, costs)
    exact: Counter[str] = Counter()
    for candidate in Candidates(graph, find_policy("auto"), pricer):
        by_parts = bounds.time_from_parts_us(candidate.decisions)
        if by_parts is None:
            continue
        cost = pricer.cost(candidate.decisions)
        assert by_parts == (math.inf if cost is None else cost), candidate
        exact[type(candidate.decisions[0]).__name__] += 1
    assert exact["OnDevice"] >= 3
    divided = exact["Pipeline"] + exact["SplitRows"]
    assert divided > 3 or name in ("series", "quantised")


@pytest.mark.parametrize(
    ("stages", "machine"),
    [
        ((14,), "pimflow"),
        ((5, 9), "pimflow"),
        ((4, 6, 4), "pimflow"),
        ((5, 9), "queued"),
        ((4, 6, 4), "both"),
        ((5, 9), "cpu"),
    ],
)
def test_rows_split_within_stages_match_their_timeline(stages: tuple[int, ...], machine: str) -> None:
    costs = LAUNCHES[machine] if machine in LAUNCHES else COSTS[machine][0]
    graph = PassManager(CLEANUP).run(residual_block()).graph
    pricer, bounds = CarryingOut(graph, costs, PriceCache(None, "")), Bounds(graph, costs)
    candidates = Candidates(graph, find_policy("auto"), pricer)
    list(candidates)
    run = tuple(node.name for node in graph.nodes)
    able = [node.op.is_contraction for node in graph.nodes]
    devices = tuple("pim" if is_able else "gpu" for is_able in able)
    host_rows = tuple((2,) * len(stages) if is_able else () for is_able in able)
    start = Pipeline(run, devices, stages, "auto", host_rows=host_rows)
    around = [start, *(one.decisions[0] for one in candidates.variations(Interval(0, len(run), 0.0, (start,))))]
    exact = 0
    for pipeline in around:
        assert isinstance(pipeline, Pipeline)
        by_stages, laid_out = pricer.least((pipeline,)), bounds.lower_bound_us((pipeline,))
        assert bounds.least_busy_us((pipeline,))["pim"] * (1 - 1e-9) <= by_stages <= laid_out * (1 + 1e-9), pipeline
        cost, by_parts = pricer.cost((pipeline,)), bounds.time_from_parts_us((pipeline,))
        assert by_parts == (math.inf if cost is None else cost), pipeline
        if cost is not None:
            exact += 1
            assert laid_out <= cost * (1 + 1e-9)
    assert exact > 10
    assert math.isinf(bounds.lower_bound_us((replace(start, stage_rows=(14,), host_rows=()),))), (
        "one stage is no pipeline"
    )


def residual_block() -> Graph:
    """Two 3x3 convolutions, and the sum of their result and their input."""
    net = ConvNet("block")
    x = net.layer(net.input(1, 32, 14, 14), 64, 1)
    return net.graph(net.relu(net.add(x, net.layer(net.relu(net.layer(x, 64, 3)), 64, 3))))


def series() -> Graph:
    """One-dimensional convolutions, of which a unit computes only the product inside."""
    build = Builder("series")
    x = build.input(1, 8, 64)
    for _ in range(3):
        weights = build.constant(np.ones((8, 8, 5), np.float32), "w")
        x = build.relu(build.onnx("Conv", x, weights, kernel_shape=(5,), pads=(2, 2)))
    return build.graph(x)


class CarryingOut(Pricer):
    """Prices every decision by applying it."""

    def _price(self, key: str, decisions: tuple[Decision, ...]) -> float | None:
        return self._carried_out_us(decisions)


def test_no_exact_times_where_free_movements_cost_something() -> None:
    graph = PassManager(CLEANUP).run(inverted_residuals(1)).graph
    candidates = list(Candidates(graph, find_policy("auto"), Pricer(graph, FakeCosts(), PriceCache(None, ""))))
    bounds = Bounds(graph, FakeCosts())
    assert all(bounds.time_from_parts_us(candidate.decisions) is None for candidate in candidates)


def test_bounds_of_divided_branches_are_below_their_price() -> None:
    """Concurrent branches take at least the longest branch, and at least the total work of each device."""
    graph, costs = GRAPHS["fire"], FakeCosts()
    pricer, bounds = Pricer(graph, costs, PriceCache(None, "")), Bounds(graph, costs)
    candidates = Candidates(graph, find_policy("auto"), pricer)
    branches = [one for one in candidates if isinstance(one.decisions[0], Parallel)]
    tight = 0
    for one in branches:
        for other in candidates.variations(Interval(one.start, one.stop, 1.0, one.decisions)):
            cost = pricer.cost(other.decisions)
            assert cost is not None
            by_arithmetic, by_parts = pricer.least(other.decisions), bounds.tighten(other.decisions)
            while by_parts > by_arithmetic:
                by_arithmetic, by_parts = by_parts, bounds.tighten(other.decisions)
            assert 0 < by_parts <= cost * (1 + 1e-9), other
            tight += by_parts > 0.8 * cost
    assert tight > 10, "the bound is too weak"


def modules(*, dealt: bool) -> Graph:
    """Two branches with concatenated channels, twice; with `dealt`, the channels are interleaved in between."""
    net = ConvNet("modules")
    x = net.input(1, 32, 14, 14)
    for _ in range(2):
        x = net.concat(1, net.layer(x, 32), net.fused_relu(net.layer(net.fused_relu(net.layer(x, 16)), 32, 3)))
        if dealt:
            x = net.reshape(net.transpose(net.reshape(x, 1, 2, 32, 14, 14), 0, 2, 1, 3, 4), 1, 64, 14, 14)
    return net.graph(net.layer(x, 32))


def quantised() -> Graph:
    """Two branches of convolutions of bytes, twice, and products of bytes: operators with products inside."""
    build = Builder("quantised")
    scale, zero = build.constant(np.array(0.02, np.float32), "scale"), build.constant(np.array(128, np.uint8), "zero")
    none = build.constant(np.array(0, np.int8), "none")
    rng = np.random.default_rng(3)

    def bytes_of(*shape: int) -> str:
        return build.constant(rng.integers(-127, 128, shape).astype(np.int8), "weights")

    def conv(x: str, kernel: int) -> str:
        weights = bytes_of(32, 32, kernel, kernel)
        others = (scale, zero, weights, scale, none, scale, zero)
        return build.onnx("QLinearConv", x, *others, kernel_shape=(kernel, kernel), pads=(kernel // 2,) * 4)

    def single(x: str) -> str:
        return build.onnx("DequantizeLinear", x, scale, zero, dtype="float32")

    x = build.onnx("QuantizeLinear", build.input(1, 32, 14, 14), scale, zero, dtype="uint8")
    for _ in range(2):
        both = build.add(single(conv(conv(x, 1), 3)), single(conv(conv(x, 3), 1)))
        x = build.onnx("QuantizeLinear", both, scale, zero, dtype="uint8")
    sums = build.onnx("MatMulInteger", x, bytes_of(14, 64), zero, none, shape=(1, 32, 14, 64), dtype="int32")
    return build.graph(build.onnx("DynamicQuantizeMatMul", single(x), bytes_of(14, 14), scale, domain=CONTRIB), sums)


JOINED = {
    "quantised": quantised(),
    "fire": fire_modules(14),
    "modules": modules(dealt=False),
    "dealt": modules(dealt=True),
    "random": random_net(13),
    "attention": attention(),
}


@pytest.mark.parametrize("machine", ["pimflow", "cpu", "link"])
@pytest.mark.parametrize("name", JOINED)
def test_joined_decisions_match_the_times_of_their_parts(name: str, machine: str) -> None:
    """Joined decisions in randomly drawn covers take, to the last bit, the time that they have when applied."""
    costs, _ = COSTS[machine]
    graph = PassManager(CLEANUP).run(JOINED[name]).graph
    pricer, bounds = CarryingOut(graph, costs, PriceCache(None, "")), Bounds(graph, costs)
    candidates = Candidates(graph, find_policy("auto"), pricer)
    starting: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        starting.setdefault(candidate.start, []).append(candidate)
    rng = random.Random(7)
    drawn: list[tuple[Decision, ...]] = []
    for _ in range(20):
        chosen: list[Interval[tuple[Decision, ...]]] = []
        while (place := chosen[-1].stop if chosen else 0) < len(candidates.order):
            one = rng.choice(starting[place])
            chosen.append(Interval(one.start, one.stop, 1.0, one.decisions))
        found = [joined.decisions for joined, _ in candidates.joins(chosen)]
        drawn += rng.sample(found, min(8, len(found)))
    exact = 0
    for decisions in drawn:
        cost, least, by_parts = (
            pricer.cost(decisions),
            bounds.lower_bound_us(decisions),
            bounds.time_from_parts_us(decisions),
        )
        assert cost is None or max(least, pricer.least(decisions)) <= cost * (1 + 1e-9), decisions
        assert by_parts in (None, math.inf if cost is None else cost), decisions
        exact += by_parts is not None
    assert exact > 10


@pytest.mark.parametrize("machine", ["pimflow", "link"])
@pytest.mark.parametrize("name", JOINED)
def test_variations_are_bounded_as_if_they_were_put_together(name: str, machine: str) -> None:
    """Their bounds and keys are those of the same decisions put together."""
    costs, _ = COSTS[machine]
    graph = PassManager(CLEANUP).run(JOINED[name]).graph
    pricer = Pricer(graph, costs, PriceCache(None, ""))
    candidates = Candidates(graph, find_policy("auto"), pricer)
    starting: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        starting.setdefault(candidate.start, []).append(candidate)
    rng, varied = random.Random(11), 0
    keys: dict[Hashable, Candidate] = {}
    for _ in range(6):
        chosen: list[Interval[tuple[Decision, ...]]] = []
        while (place := chosen[-1].stop if chosen else 0) < len(candidates.order):
            one = rng.choice(starting[place])
            chosen.append(Interval(one.start, one.stop, 1.0, one.decisions))
        for joined, _ in candidates.joins(chosen):
            key = candidates.scene.key(joined)
            assert keys.setdefault(key, joined) is joined, "each once"
            together = Candidate(joined.start, joined.stop, joined.decisions)
            assert joined == together
            assert hash(joined) == hash(together)
            assert key == candidates.scene.key(together)
            if isinstance(joined, Varied):
                varied += 1
                assert pricer.least_varied(joined) == pytest.approx(pricer.least(joined.decisions), rel=1e-12)
    assert varied > 20
    assert len(set(keys.values())) == len(keys)


def test_a_node_fused_outside_its_unit_is_bounded_where_the_variation_puts_its_root() -> None:
    costs, _ = COSTS["pimflow"]
    build = Builder("fused")
    x = build.input(1, 512, 7, 7)
    graph = PassManager(CLEANUP).run(build.graph(build.add(build.conv(x, 512), x), build.conv(x, 1024, 3))).graph
    act = next(node for node in graph.nodes if node.placement.fused_into)
    conv, other = (node.name for node in graph.nodes if node is not act)
    host, (device, *_) = costs.target.host, costs.units
    numbers = Numbers()
    apart = Joined(Parallel(((*(OnDevice(name, host) for name in (conv, other, act.name)),),)), numbers)
    way = Way((OnDevice(conv, device, costs.units[device].choice_for("auto")),), numbers)
    pricer = Pricer(graph, costs, PriceCache(None, ""))
    varied = Varied(0, 3, apart, ((0, 1, way),))
    assert pricer.least_varied(varied) == pricer.least(varied.decisions)
    assert pricer.least_varied(varied) > pricer.least((Parallel(((*way.items, OnDevice(other, host)),)),))


def test_variations_of_decisions_that_make_no_known_value_are_bounded_by_devices() -> None:
    """The parts of a node that is divided by columns are not known to make its value."""
    item = JoinedItem((), Steps(), (), {}, (2.0, 3.0), (), frozenset(), None)
    dearer = item._replace(busy_us=(4.0, 1.0))
    times = JoinedTimes([item, None, item, None])
    assert times.least_us([(0, 1, [dearer])]) == 6.0
    assert times.least_us([(0, 1, [dearer]), (2, 3, [dearer, dearer])]) == 12.0


@pytest.mark.parametrize("machine", ["pimflow", "cpu", "link"])
def test_joined_decisions_take_as_long_as_their_longest_chain(machine: str) -> None:
    """Two nodes side by side between two others, on different devices: known before any parts are put together."""
    costs, _ = COSTS[machine]
    net = ConvNet("chain")
    first = net.layer(net.input(1, 32, 28, 28), 64)
    graph = net.graph(net.layer(net.add(net.layer(first, 64, 3), net.layer(first, 64)), 128, 3))
    device, host = list(costs.units)[-1], costs.target.host
    choice = costs.units[device].choice_for("auto")
    placed = [
        OnDevice(node.name, *((host, "") if node.name in ("conv1", "add3") else (device, choice)))
        for node in graph.nodes
    ]
    pricer = Pricer(graph, costs, PriceCache(None, ""))
    first_us, left_us, right_us, *behind_us = [
        pricer.least((decision,)) - ahead_us(costs, graph, decision) for decision in placed
    ]
    assert left_us != right_us
    longest_us = first_us + max(left_us, right_us) + sum(behind_us)
    assert pricer.least((Parallel((tuple(placed),)),)) == pytest.approx(longest_us, rel=1e-9)


def ahead_us(costs: Costs, graph: Graph, placed: OnDevice) -> float:
    """What a node on the host does not wait for: its launch, if that is queued."""
    node = graph.node(placed.node).placed(device=placed.device)
    return costs.avoidable_us(graph, node) if placed.device == costs.target.host else 0.0


class CountingUnit(FakeUnit):
    """A unit that gives a lower bound on its time, and counts how often it is asked for the price."""

    def __init__(self, tightness: float) -> None:
        super().__init__(slow_down=8.0)
        self.tightness = tightness
        self.priced: set[MatrixProblem] = set()

    def lower_bound_us(self, work: MatrixProblem, choice: str) -> float:
        cost = super().cost(work, choice)
        return 0.0 if isinstance(cost, Refusal) else self.tightness * cost.time_us

    def cost(self, work: MatrixProblem, choice: str) -> FakeCost | Refusal:
        self.priced.add(work)
        return super().cost(work, choice)


def test_few_candidates_are_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = inverted_residuals(2)
    monkeypatch.setattr(Candidates, "in_fewest_stages", lambda _: iter(()))  # listed only if candidates are pruned
    pruned, whole = (
        price_space(graph, find_policy("auto"), FakeCosts(), PriceCache(None, ""), prune=prune)
        for prune in (True, False)
    )
    assert 0.5 * whole.priced < pruned.priced < whole.priced, "pipelines get more stages where fewer were worth a look"
    assert pruned.pricer.built < 0.25 * whole.pricer.built


@pytest.mark.parametrize("machine", ["pimflow", "link"])
def test_operators_with_products_inside_are_not_rewritten(machine: str) -> None:
    """Joined decisions about quantised convolutions are priced from the nodes that these are written out as."""
    space = price_space(quantised(), find_policy("auto"), COSTS[machine][0], PriceCache(None, ""))
    assert space.priced > 200
    assert space.pricer.built == 0


def test_a_warm_cache_rewrites_nothing(tmp_path: Path) -> None:
    graph = inverted_residuals(2)
    spaces, priced = [], []
    for _ in ("cold", "warm"):
        costs = FakeCosts()
        costs.unit = CountingUnit(0.5)
        costs.units = {"pim": costs.unit}
        spaces.append(price_space(graph, find_policy("auto"), costs, PriceCache(tmp_path, "scope")))
        priced.append(len(costs.unit.priced))
    cold, warm = (solve_chain(space.positions, space.intervals) for space in spaces)
    assert cold == warm
    assert spaces[0].pricer.built > 0 == spaces[1].pricer.built
    assert priced[1] == priced[0], "the search goes the same way; units remember what they have priced"


@pytest.mark.parametrize("machine", COSTS)
@pytest.mark.parametrize("name", GRAPHS)
def test_cached_prices_do_not_change_how_candidates_are_refined(name: str, machine: str) -> None:
    """Otherwise the search goes another way, and may find another plan, after searches with other options."""
    costs, policy = COSTS[machine]
    graph, prices = PassManager(CLEANUP).run(GRAPHS[name]).graph, PriceCache(None, "")

    def refined() -> list[tuple[float | None, bool]]:
        pricer, found = Pricer(graph, costs, prices), []
        for candidate in Candidates(graph, find_policy(policy), pricer):
            us: float | None = pricer.least(candidate.decisions)
            priced = False
            while not priced and us is not None and math.isfinite(us):
                us, priced = pricer.refine(candidate.decisions, us)
                found.append((us, priced))
        return found

    first = refined()
    assert {priced for _, priced in first} == {False, True}
    assert refined() == first


def test_a_units_lower_bounds_save_prices_and_change_no_plan() -> None:
    priced, best = [], []
    for tightness in (0.0, 0.9):
        costs = FakeCosts()
        unit = CountingUnit(tightness)
        costs.unit, costs.units = unit, {"pim": unit}
        space = price_space(inverted_residuals(1), find_policy("auto"), costs, PriceCache(None, ""))
        priced.append(len(unit.priced))
        best.append(solve_chain(space.positions, space.intervals)[0])
    assert best[0] == best[1]
    assert priced[1] < 0.7 * priced[0]
