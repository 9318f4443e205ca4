"""CostModel: devices, modes, fusion, movements, measured times, memo."""

from __future__ import annotations

import re

import pytest

from pimflow.codegen.work import ConvProblem, MatrixProblem
from pimflow.errors import GraphError
from pimflow.ir import Builder, Elementwise, Graph, Refusal
from pimflow.ir.analysis.movement import movement
from pimflow.ir.readout import Functions, Readout
from pimflow.runtime.costs import CostModel
from pimflow.runtime.gpu.backend import GpuHost
from pimflow.runtime.gpu.cost import GpuCost
from pimflow.runtime.gpu.measured import MeasuredRow, MeasuredTable
from pimflow.targets import load_target, parse_target, to_toml
from support.costs import FakeCost, FakeUnit

PIMFLOW = load_target("pimflow")


class CountingUnit(FakeUnit):
    """A PIM that counts queries, with half of the channels left to the GPU."""

    choices = (*FakeUnit.choices, "none")

    def __init__(self, functions: Functions = "any") -> None:
        super().__init__()
        self.asked: list[tuple[MatrixProblem, str]] = []
        self.functions = functions

    @property
    def memory_channels(self) -> int:
        return PIMFLOW.pim.channels

    @property
    def readout_functions(self) -> Functions:
        return self.functions

    def cost(self, work: MatrixProblem, choice: str) -> FakeCost | Refusal:
        self.asked.append((work, choice))
        return Refusal("no such mapping") if choice == "none" else super().cost(work, choice)


def costs_with(unit: CountingUnit | None = None, measured: MeasuredTable | None = None) -> CostModel:
    return CostModel(PIMFLOW, measured=measured, units={"pim": unit or CountingUnit()})


def chain(device: str | None = "gpu", mapping: str = "newton++", channels: int = 32) -> Graph:
    """x -> conv -> sigmoid -> mul(conv, sigmoid) -> add(mul, y) -> relu, all followers fused into the convolution."""
    build = Builder("chain")
    x, y = (build.input(1, channels, 28, 28, name=name) for name in "xy")

    def fused(value: str) -> str:
        return build.place(value, device="gpu", fused_into="conv")

    conv = build.place(build.conv(x, channels, bias=False, name="conv"), device=device, choice=mapping)
    gated = fused(build.mul(conv, fused(build.sigmoid(conv, name="sigmoid")), name="mul"))
    return build.graph(fused(build.relu(fused(build.add(gated, y, name="add")), name="relu")))


def channels(costs: CostModel) -> int:
    assert isinstance(costs.host, GpuHost)
    return costs.host.channels


def times(costs: CostModel, graph: Graph) -> dict[str, float]:
    return {node.name: costs.node_cost(graph, node).time_us for node in graph.nodes}


def test_pim_mode_leaves_the_gpu_fewer_channels() -> None:
    costs = costs_with()
    graph = chain(channels=512)
    assert channels(costs) == PIMFLOW.gpu.memory_channels - PIMFLOW.pim.channels
    assert channels(costs.host_only()) == PIMFLOW.gpu.memory_channels
    assert costs.host_only().host_only() is costs.host_only()
    add = graph.node("add").placed(fused_into=None)
    assert costs.node_cost(graph, add).time_us > costs.host_only().node_cost(graph, add).time_us


def test_a_node_without_device_runs_on_the_gpu() -> None:
    costs = costs_with()
    placed, free = chain("gpu"), chain(None)
    assert times(costs, placed) == times(costs, free)
    cost = costs.node_cost(free, free.node("conv"))
    assert isinstance(cost.detail, GpuCost)


@pytest.mark.parametrize("device", ["gpu", "pim"])
def test_fused_nodes_are_free(device: str) -> None:
    found = times(costs_with(), chain(device))
    assert found.pop("conv") > 0
    assert set(found.values()) == {0.0}


def test_units_say_which_functions_they_apply() -> None:
    assert costs_with().readouts == (Readout("pim"),)
    assert costs_with(CountingUnit(("Relu",))).readouts == (Readout("pim", ("Relu",)),)
    assert costs_with(CountingUnit(())).readouts == ()


def test_unit_costs_come_from_the_backend() -> None:
    pim = CountingUnit()
    costs = costs_with(pim)
    graph = chain("pim", "auto")
    cost = costs.node_cost(graph, graph.node("conv"))
    assert cost.detail == FakeUnit().cost(ConvProblem(1, 32, 32, 28, 28, (1, 1)), "auto")
    assert cost.energy_mj > 0
    assert pim.asked == [(ConvProblem(1, 32, 32, 28, 28, (1, 1)), "auto")]


def test_a_refused_placement_is_a_bug() -> None:
    costs = costs_with()
    refused = chain("pim", "none")
    with pytest.raises(GraphError, match="no such mapping"):
        costs.node_cost(refused, refused.node("conv"))
    graph = chain("gpu")
    with pytest.raises(GraphError, match="not a matrix product"):
        costs.node_cost(graph, graph.node("add").placed(device="pim"))


def joined(other: str) -> Graph:
    """A Concat of a convolution's result and another value."""
    build = Builder()
    made = {name: build.conv(build.input(1, 32, 28, 28), 32, 1, name=name) for name in ("first", "second")}
    whole = build.concat(1, made["first"], made[other], name="joined")
    return build.graph(*[build.place(value, device="gpu") for value in (*made.values(), whole)])


def test_remaining_movements_cost_their_bytes_and_free_ones_nothing() -> None:
    costs = costs_with()
    for other, free in (("second", True), ("first", False)):  # a value is written into one place
        graph = joined(other)
        verdict, cost = movement(graph)["joined"], costs.node_cost(graph, graph.node("joined"))
        assert verdict.free == free
        if free:
            assert cost.time_us == 0.0
        else:
            assert isinstance(cost.detail, GpuCost)
            assert cost.detail.bytes == verdict.bytes // 2 > 0  # the graph is fp32, the GPU stores fp16
            assert cost.time_us > 0


def test_measured_times_replace_the_model() -> None:
    graph = chain("gpu", channels=512)
    add = graph.node("add").placed(fused_into=None)
    shape = (1, 512, 28, 28)
    table = MeasuredTable([MeasuredRow(Elementwise("Add"), (shape, shape), (shape,), "float16", 123.0)])
    plain, costs = costs_with(), costs_with(measured=table)
    assert costs.host_only().node_cost(graph, add).time_us == pytest.approx(123.0)
    ratio = plain.node_cost(graph, add).time_us / plain.host_only().node_cost(graph, add).time_us
    assert ratio > 1.1  # memory-bound, so that channels matter
    assert costs.node_cost(graph, add).time_us == pytest.approx(123.0 * ratio)
    assert costs.node_cost(graph, graph.node("conv")) == plain.node_cost(graph, graph.node("conv"))


def test_static_energy_is_left_to_the_makespan() -> None:
    costs = costs_with()
    assert costs.static_energy_mj(2000.0) == pytest.approx(2 * PIMFLOW.gpu.energy.static_w)


def test_costs_depend_on_shapes_and_not_on_names() -> None:
    costs = costs_with()
    assert times(costs, chain("gpu"))["conv"] == times(costs, chain("gpu"))["conv"]
    assert times(costs, chain("gpu", channels=512))["conv"] > times(costs, chain("gpu"))["conv"]


def identity_with(key: str, value: str) -> str:
    """The identity of the shipped machine with one value of its file changed; its summary is the same."""
    text = to_toml(load_target("pimflow"))
    changed, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text, count=1)
    assert count == 1
    return CostModel(parse_target(changed, "machine.toml")).identity


def test_prices_are_cached_by_exactly_what_times_depend_on() -> None:
    as_shipped = identity_with("name", '"pimflow"')
    for key, value in (("launch_cycles", "7777"), ("t_faw", "33"), ("buffer_columns", "16"), ("default", '"artifact"')):
        assert identity_with(key, value) != as_shipped, key
    for key in ("name", "description", "basis"):
        assert identity_with(key, '"other"') == as_shipped, key
    for key, value in (("static_w", "9.5"), ("mac_pj", "7.5")):
        assert identity_with(key, value) == as_shipped, key
