"""`CostModel`: the one object that prices any node of a graph with devices, for search and timeline alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pimflow.codegen.work import PimProblem, problem_of
from pimflow.errors import GraphError
from pimflow.ir import Graph, Node, Op, Refusal, Value
from pimflow.ir.analysis.content import Content, content_arrays, content_of
from pimflow.ir.analysis.movement import Movement, movement
from pimflow.ir.analysis.tensor_layout import element_bytes
from pimflow.runtime.gpu.cost import FREE, GpuCost, gpu_cost, movement_cost, scaled, static_energy_mj
from pimflow.runtime.gpu.work import element_width
from pimflow.runtime.timeline import Transfer, TransferModel
from pimflow.targets import Target

if TYPE_CHECKING:
    from pimflow.runtime.gpu.measured import MeasuredTable
    from pimflow.runtime.newton.cost import PimCost

PimPricing = Callable[[PimProblem, str], "PimCost | Refusal"]
"""Prices a problem under a mapping policy ("newton+", "newton++", "auto")."""

_Type = tuple[tuple[int, ...] | None, str]  # a tensor's shape and element type

DEFAULT_MAPPING = "newton++"


@dataclass(frozen=True)
class NodeCost:
    """Time and energy of one node, and the device cost that they come from (None: it runs on the other device).

    `energy_mj` leaves out static power, which is drawn by the whole board for the whole run:
    `CostModel.static_energy_mj(makespan_us)`.
    """

    time_us: float
    energy_mj: float
    gpu: GpuCost | None = None
    pim: PimCost | None = None


@dataclass(frozen=True)
class _Kernel:
    """What a GPU cost depends on: op, operands' shapes and types, the content of those that the op says; no names."""

    op: Op
    inputs: tuple[_Type | None, ...]
    outputs: tuple[_Type | None, ...]
    content: Content


def _type(value: Value | None) -> _Type | None:
    return None if value is None else (value.shape, value.dtype)


class CostModel:
    """Prices nodes of device-annotated graphs. Memoised by what the price depends on; graphs may come and go.

    The GPU has `gpu_channels` memory channels. In PIM mode those are the channels that PIM leaves, for the entire plan,
    as PIM-enabled channels do not switch mode between kernels; `gpu_only()` is the machine with PIM unused, all
    channels serving the GPU: the baseline, and what a plan without a PIM node runs on.

    Movements that the memory planner makes free cost nothing; the others cost a copy kernel. An elementwise node with a
    `fused_into` costs nothing on the GPU, whose libraries apply bias, activation and residual in the kernel's epilogue.
    Behind a PIM node a function of the result costs nothing if the target applies activations as results are read out
    (`pim.readout_activation`), else a kernel of its own; an Add of a second tensor always costs one.

    Args:
        target: the machine.
        pim: prices a PIM problem under a mapping policy.
        gpu_channels: memory channels of the GPU; by default those that PIM leaves.
        measured: times that stand in for the model's, kernel by kernel, where it has them.
    """

    def __init__(
        self,
        target: Target,
        pim: PimPricing,
        *,
        gpu_channels: int | None = None,
        measured: MeasuredTable | None = None,
    ) -> None:
        self.target = target
        self.gpu_channels = target.gpu.memory_channels - target.pim.channels if gpu_channels is None else gpu_channels
        self.measured = measured
        self._pim = pim
        self._gpu_memo: dict[_Kernel, GpuCost] = {}
        self._pim_memo: dict[tuple[PimProblem, str], PimCost | Refusal] = {}
        self._movements: WeakKeyDictionary[Graph, Mapping[str, Movement]] = WeakKeyDictionary()
        self._baseline: CostModel | None = None

    def gpu_only(self) -> CostModel:
        """The same machine with PIM unused: every memory channel serves the GPU."""
        every = self.target.gpu.memory_channels
        if self.gpu_channels == every:
            return self
        if self._baseline is None:
            self._baseline = CostModel(self.target, self._pim, gpu_channels=every, measured=self.measured)
        return self._baseline

    def node_cost(self, graph: Graph, node: Node) -> NodeCost:
        """Time and energy of one node of a graph, on the device that it names (the GPU if it names none).

        Raises:
            GraphError: the node is placed on PIM and cannot run there.
        """
        if node.device == "pim":
            pim = self._pim_cost(graph, node)
            return NodeCost(pim.time_us, pim.energy_mj, pim=pim)
        gpu = self._gpu_cost(graph, node)
        return NodeCost(gpu.time_us, gpu.energy_mj, gpu=gpu)

    @property
    def transfers(self) -> TransferModel | None:
        """Copies of a PIM node's activations over the link to the PIM channels; None on a machine that needs none."""
        return self._transfer if self.target.pim.transfer_gb_per_s else None

    def _transfer(self, graph: Graph, node: Node) -> Transfer:
        pim = self.target.pim
        assert pim.transfer_gb_per_s is not None
        loaded, stored = (
            pim.element_bytes * sum(graph.value(name).elements for name in names)
            for names in (graph.activations(node), (name for name in node.outputs if name))
        )
        per_us = pim.transfer_gb_per_s * 1e3
        energy_mj = (loaded + stored) * pim.energy.strict.transfer_pj_per_byte * 1e-9
        return Transfer(loaded / per_us, stored / per_us, energy_mj)

    def static_energy_mj(self, makespan_us: float) -> float:
        """What the board draws over a run, whatever it does."""
        return static_energy_mj(makespan_us, self.target.gpu)

    def pim_cost(self, problem: PimProblem, mapping: str) -> PimCost | Refusal:
        """A problem under a mapping policy, priced once; or why PIM cannot have it."""
        key = (problem, mapping)
        if key not in self._pim_memo:
            self._pim_memo[key] = self._pim(problem, mapping)
        return self._pim_memo[key]

    def _pim_cost(self, graph: Graph, node: Node) -> PimCost:
        problem = problem_of(graph, node)
        choice = node.placement.choice or DEFAULT_MAPPING
        cost = problem if isinstance(problem, Refusal) else self.pim_cost(problem, choice)
        if isinstance(cost, Refusal):
            raise GraphError(f"{node.name!r} is placed on PIM, but: {cost.reason}")
        return cost

    def _gpu_cost(self, graph: Graph, node: Node) -> GpuCost:
        verdict = self._movement(graph, node)
        if verdict is not None:
            return FREE if verdict.free else self._copy(graph.value(node.output), verdict)
        if self._fused(graph, node):
            return FREE
        content = content_of(graph, node) if node.op.content_operands else ()
        inputs, outputs = graph.in_values(node), graph.out_values(node)
        key = _Kernel(node.op, tuple(map(_type, inputs)), tuple(map(_type, outputs)), content)
        if key not in self._gpu_memo:
            self._gpu_memo[key] = self._price(graph, node, content)
        return self._gpu_memo[key]

    def _copy(self, value: Value, verdict: Movement) -> GpuCost:
        """A copy kernel over the bytes that stay, at the width that the GPU stores floating-point elements in."""
        moved = verdict.bytes * element_width(value.dtype, self.target.gpu.element_bytes)
        moved //= element_bytes(value.dtype) or 1
        return movement_cost(moved, self.target.gpu, self.gpu_channels)

    def _price(self, graph: Graph, node: Node, content: Content) -> GpuCost:
        """The model's cost, or the measured time where the table has this kernel.

        A table is measured on a whole board. With fewer channels its time is scaled by the model's own ratio.
        """
        inputs, outputs, constants = graph.in_values(node), graph.out_values(node), content_arrays(graph, node)
        cost = gpu_cost(node.op, inputs, outputs, self.target, self.gpu_channels, constants=constants)
        time_us = self.measured.time_us(node.op, inputs, content) if self.measured is not None else None
        if time_us is None or cost.time_us == 0:
            return cost
        every = self.target.gpu.memory_channels
        whole = gpu_cost(node.op, inputs, outputs, self.target, every, constants=constants)
        return scaled(cost, time_us * cost.time_us / whole.time_us)

    def _fused(self, graph: Graph, node: Node) -> bool:
        """Whether the node runs inside another's kernel.

        A PIM result on its way out can pass through a function of itself, but not meet a second tensor: a residual Add
        behind PIM is a kernel of its own, and what follows it in the chain is fused into that.
        """
        name = node.placement.fused_into
        into = None if name is None else graph.node_by_name.get(name)
        if name is None or into is None or into.device != "pim":
            return name is not None
        makers = [graph.producer(value) for value in node.inputs if value and not graph.is_constant(value)]
        if any(maker is None or name not in (maker.name, maker.placement.fused_into) for maker in makers):
            return False
        behind_kernel = any(maker is not None and not self._read_out(graph, maker) for maker in makers)
        return behind_kernel or self.target.pim.readout_activation

    def _read_out(self, graph: Graph, node: Node) -> bool:
        """Whether a node of a chain behind PIM hands on what is still on its way out of the banks."""
        return node.device == "pim" or (self.target.pim.readout_activation and self._fused(graph, node))

    def _movement(self, graph: Graph, node: Node) -> Movement | None:
        if not node.op.is_movement:
            return None  # most nodes: the graph need not be looked at as a whole
        if graph not in self._movements:
            self._movements[graph] = movement(graph)
        return self._movements[graph].get(node.name)
