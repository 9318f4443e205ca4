"""Prices for tests: in closed form for the search, fixed by name for the timeline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pimflow.codegen.answers import Capacity, EdgeDivision, Kept, UnitCost, Way
from pimflow.codegen.backend import Backend
from pimflow.codegen.matrix import MatrixBackend
from pimflow.codegen.work import MatrixProblem, Work, matrix_problem
from pimflow.ir import Array, Concat, Conv2d, Graph, Node, Op, Refusal, Reshape, Slice
from pimflow.ir.placement import ALL_CHANNELS
from pimflow.ir.readout import Readout
from pimflow.targets.overrides import override

PIM_RATE = {"newton+": 0.5e6, "newton++": 1.2e6, "auto": 1.5e6}  # MACs a microsecond
GPU_RATE = 1.0e6


@dataclass(frozen=True)
class FakeCost:
    """The cost of a node; it is its own `detail`, in place of a unit's cost."""

    time_us: float
    energy_mj: float = 0.0
    cycles: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)

    @property
    def detail(self) -> FakeCost:
        return self

    @property
    def energy_parts_mj(self) -> dict[str, float]:
        return {"multiply": self.energy_mj}


class FakeUnit(MatrixBackend[str]):
    """PIM in closed form: 0.5 us plus the MACs at a rate per choice; products deeper than 4096 are refused."""

    title = "Fake"
    choices = tuple(PIM_RATE)
    default_choice = "newton++"
    counters = ("COMP",)

    def __init__(self, slow_down: float = 1.0) -> None:
        super().__init__("pim", None)
        self.slow_down = slow_down

    def cost(self, work: MatrixProblem, choice: str) -> FakeCost | Refusal:
        if work.depth > 4096:
            return Refusal("too deep for the fake")
        time_us = self.slow_down * (0.5 + work.macs / PIM_RATE[choice])
        return FakeCost(time_us, work.macs * 1e-6, work.macs, {"COMP": work.macs})

    def program(self, work: MatrixProblem, choice: str) -> str | Refusal:
        return f"{work} by {choice}"

    def multiply(self, program: str, left: Array, right: Array, operand: str) -> Array:
        raise NotImplementedError

    def encode(self, program: str) -> str:
        return program

    def decode(self, data: str) -> str:
        return data


class FakeCosts:
    """Prices in closed form, so that the search's best choice can be worked out by hand.

    PIM as in `FakeUnit`. GPU: 1 us plus MACs at a rate that falls to 80 % at half the channels (depthwise at a quarter
    of it); 1 us plus 1 us per million elements for all other kernels; fused nodes are free, and pure movements cost
    0.02 us.
    """

    def __init__(
        self,
        channels: int = 16,
        slow_down: float = 1.0,
        symmetric_padding: tuple[str, ...] = (),
        channel_switch_us: float | None = None,
    ) -> None:
        self.target = override("pimflow", {"gpu.splits": [1, 2]})
        self.channels = channels
        self.unit = FakeUnit(slow_down)
        self.units: Mapping[str, Backend[Any, Any]] = {"pim": self.unit}
        self.readouts = (Readout("pim"),)
        self.capacities: dict[str, Capacity] = {}
        self.symmetric_padding = symmetric_padding
        self.channel_switch_us = channel_switch_us
        self.identity = f"fake {channels} {slow_down} {symmetric_padding} {channel_switch_us}"

    def edge_divisions(self, graph: Graph, node: Node, device: str) -> tuple[EdgeDivision, ...]:
        return ()

    def host_only(self) -> FakeCosts:
        return FakeCosts(32, self.unit.slow_down, self.symmetric_padding)

    def kept(self, graph: Graph, node: Node) -> Kept:
        return Kept(0)

    def serving(self, graph: Graph) -> FakeCosts:
        return self if any(node.device == "pim" for node in graph.nodes) else self.host_only()

    def workspaces(self, graph: Graph) -> Mapping[str, int]:
        return {}

    def work(self, graph: Graph, node: Node, device: str) -> MatrixProblem | Refusal:
        return matrix_problem(graph, node)

    def unit_cost(self, device: str, work: Work, choice: str) -> UnitCost | Refusal:
        return self.units[device].cost(work, choice)

    def unit_time_us(self, device: str, work: Work, choice: str) -> float | Refusal:
        return self.units[device].time_us(work, choice)

    def refusal(self, graph: Graph, node: Node, device: str, choice: str) -> Refusal | None:
        work = self.work(graph, node, device)
        cost = work if isinstance(work, Refusal) else self.unit_cost(device, work, choice)
        return cost if isinstance(cost, Refusal) else None

    def static_energy_mj(self, makespan_us: float) -> float:
        return 0.1 * makespan_us

    def ways(self, graph: Graph, node: Node) -> tuple[Way, ...]:
        """All tables are read in the default way."""
        return ()

    def unknown(self, graph: Graph, node: Node) -> str:
        return ""

    def transfer(self, graph: Graph, node: Node) -> None:
        return None

    def measured_us(self, op: Op) -> float:
        return math.inf

    def least_transfers_us(self, graph: Graph) -> dict[str, float]:
        """Zero: all tables are in the GPU's memory."""
        return {}

    @property
    def queues_launches(self) -> bool:
        return False

    @property
    def saves_launches(self) -> bool:
        return False

    def avoidable_us(self, graph: Graph, node: Node, *, busy: bool = False) -> float:
        return 0.0

    def time_parts_us(self, graph: Graph, node: Node) -> dict[str, float]:
        return {"run": self.node_cost(graph, node).time_us}

    def node_cost(self, graph: Graph, node: Node) -> FakeCost:
        work = matrix_problem(graph, node)
        if node.device == "pim":
            assert not isinstance(work, Refusal)
            cost = self.unit.cost(work, node.placement.choice or "")
            assert isinstance(cost, FakeCost)
            return cost
        if isinstance(node.op, (Slice, Concat, Reshape)):
            return FakeCost(0.02)
        if node.placement.fused_into:
            return FakeCost(0.0)
        speed = 1.0 if self.channels == 32 or node.placement.choice == ALL_CHANNELS else 0.8
        if not isinstance(work, Refusal):
            return FakeCost(1.0 + work.macs / (GPU_RATE * speed))
        elements = sum(value.elements for value in graph.out_values(node))
        if isinstance(node.op, Conv2d):
            return FakeCost(1.0 + 4 * 9 * elements / (GPU_RATE * speed))
        return FakeCost(1.0 + elements / (1e6 * speed))


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
