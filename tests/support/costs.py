"""Prices for tests: in closed form for the search, fixed by name for the timeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from pimflow.codegen.newton.commands import CommandCounts
from pimflow.codegen.work import PimProblem, problem_of
from pimflow.ir import Concat, Conv2d, Graph, Node, Refusal, Reshape, Slice
from pimflow.runtime.costs import CostModel
from pimflow.targets import load_target

PIM_RATE = {"newton+": 0.5e6, "newton++": 1.2e6, "auto": 1.5e6}  # MACs a microsecond
GPU_RATE = 1.0e6


@dataclass(frozen=True)
class FakeCost:
    time_us: float
    energy_mj: float = 0.0
    pim: FakePimCost | None = None


@dataclass(frozen=True)
class FakePimCost:
    time_us: float
    cycles: int
    commands: CommandCounts


class FakeCosts:
    """Prices in closed form, so that what the search should choose can be told by hand.

    PIM: 0.5 us and the MACs at a rate per mapping; products deeper than 4096 are refused. GPU: 1 us and MACs at a rate
    that falls to 0.8 of itself at half the channels (depthwise at a quarter of it), 1 us and 1 us per million elements
    for all other kernels; what is fused is free, what only moves costs 0.02 us.
    """

    def __init__(self, channels: int = 16, slow_down: float = 1.0) -> None:
        self.target = load_target("pimflow")
        self.gpu_channels = channels
        self.measured = None
        self._slow_down = slow_down

    def gpu_only(self) -> FakeCosts:
        return FakeCosts(32, self._slow_down)

    def pim_cost(self, problem: PimProblem, mapping: str) -> FakePimCost | Refusal:
        if problem.depth > 4096:
            return Refusal("too deep for the fake")
        time_us = self._slow_down * (0.5 + problem.macs / PIM_RATE[mapping])
        return FakePimCost(time_us, problem.macs, CommandCounts(comp=problem.macs))

    def static_energy_mj(self, makespan_us: float) -> float:
        return 0.1 * makespan_us

    def node_cost(self, graph: Graph, node: Node) -> FakeCost:
        problem = problem_of(graph, node)
        if node.device == "pim":
            assert not isinstance(problem, Refusal)
            cost = self.pim_cost(problem, node.placement.choice or "")
            assert isinstance(cost, FakePimCost)
            return FakeCost(cost.time_us, problem.macs * 1e-6, cost)
        if isinstance(node.op, (Slice, Concat, Reshape)):
            return FakeCost(0.02)
        if node.placement.fused_into:
            return FakeCost(0.0)
        speed = 1.0 if self.gpu_channels == 32 else 0.8
        if not isinstance(problem, Refusal):
            return FakeCost(1.0 + problem.macs / (GPU_RATE * speed))
        elements = sum(value.elements for value in graph.out_values(node))
        if isinstance(node.op, Conv2d):
            return FakeCost(1.0 + 4 * 9 * elements / (GPU_RATE * speed))
        return FakeCost(1.0 + elements / (1e6 * speed))


def fake_costs(slow_down: float = 1.0) -> CostModel:
    """The fake, with PIM so many times slower, as the search takes it: by what it calls, not by its class."""
    return cast(CostModel, FakeCosts(slow_down=slow_down))


@dataclass(frozen=True)
class Price:
    time_us: float
    energy_mj: float


@dataclass(frozen=True)
class FixedCosts:
    """Prices by node name; a microsecond costs 2 mJ on the GPU and 1 mJ on PIM."""

    times: Mapping[str, float]

    def node_cost(self, graph: Graph, node: Node) -> Price:
        time_us = self.times[node.name]
        return Price(time_us, time_us * (1 if node.device == "pim" else 2))


@dataclass(frozen=True)
class PoweredCosts(FixedCosts):
    """The same on a machine that draws 10 W."""

    def static_energy_mj(self, makespan_us: float) -> float:
        return 10 * makespan_us * 1e-3
