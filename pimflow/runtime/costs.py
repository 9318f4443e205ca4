"""`CostModel`: prices the nodes of placed graphs, for both the search and the timeline."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from pimflow.codegen.answers import (
    NO_PARTS,
    Capacity,
    Copy,
    Cost,
    EdgeDivision,
    Kept,
    Merged,
    Parts,
    Transfer,
    UnitCost,
    Way,
)
from pimflow.codegen.backend import Backend
from pimflow.codegen.host import HostBackend, HostCost
from pimflow.codegen.work import Work
from pimflow.errors import GraphError, choice
from pimflow.ir import Graph, Node, Op, Refusal
from pimflow.ir.analysis.host_tables import fetches, is_consecutive
from pimflow.ir.analysis.movement import movement_of
from pimflow.ir.analysis.placing import bound_to_host
from pimflow.ir.analysis.tensor_layout import element_bytes
from pimflow.ir.placement import ALL_CHANNELS
from pimflow.ir.readout import Readout
from pimflow.records import dataclass
from pimflow.runtime.backends import host_of, units_of
from pimflow.runtime.features import PLACEMENTS, Access, FeatureAccess, Fetch, TableRead
from pimflow.targets import Target
from pimflow.targets.schema.origin import matters_to_time

if TYPE_CHECKING:
    from pimflow.runtime.gpu.measured import MeasuredTable
    from pimflow.sparse.checks import Ids


@dataclass(frozen=True, slots=True)
class NodeCost:
    """Time and energy of one node, and the cost they are derived from (None: the node costs nothing).

    `energy_mj` does not include static power, which the whole board draws for the whole run:
    `CostModel.static_energy_mj(makespan_us)`.
    """

    time_us: float
    energy_mj: float
    detail: Cost | None = None

    @property
    def energy_parts_mj(self) -> Parts:
        """The node's energy by part."""
        return NO_PARTS if self.detail is None else self.detail.energy_parts_mj


_FREE = NodeCost(0.0, 0.0)
_SUM_BYTES = 4


class CostModel:
    """Prices nodes of placed graphs. Backends cache prices by everything they depend on, not by graph.

    If any unit is in use, the host lacks the memory channels that units take, for the entire plan. Nodes placed with
    `ALL_CHANNELS` are an exception, if the target can switch channels between units and host. `host_only()` is the
    same machine with no unit in use: the baseline, and the machine for plans that never leave the host.

    Movements that the memory planner makes free cost nothing; the others cost a copy. A node that is `fused_into`
    another costs nothing: it runs in the other's kernel. (`UnfuseEpilogues` undoes fusions that a unit cannot run.)

    Args:
        target: the machine.
        measured: times that replace those of the host's model for the kernels it contains.
        units: backends by device, instead of those of the target's kinds.
    """

    def __init__(
        self,
        target: Target,
        *,
        measured: MeasuredTable | None = None,
        units: Mapping[str, Backend[Any, Any]] | None = None,
    ) -> None:
        alone = host_of(target, measured)
        self.target = target
        self.units: Mapping[str, Backend[Any, Any]] = units_of(target) if units is None else units
        self.host: HostBackend = alone.without_channels(sum(unit.memory_channels for unit in self.units.values()))
        self._works: WeakKeyDictionary[Graph, dict[tuple[str, str], tuple[Node, Work | Refusal]]] = WeakKeyDictionary()
        self._host_only = self if alone is self.host else _with_host(self, alone)

    def host_only(self) -> CostModel:
        """The cost model of the same machine with no unit in use: every memory channel serves the host."""
        return self._host_only

    @cached_property
    def channel_switch_us(self) -> float | None:
        """The time to hand all memory channels to the host, or to return them to the units; None if units keep their
        channels for the whole run or take none."""
        if self._host_only is self:
            return None
        times = [unit.channel_switch_us for unit in self.units.values() if unit.memory_channels]
        known = [time_us for time_us in times if time_us is not None]
        return max(known) if len(known) == len(times) else None

    @property
    def queues_launches(self) -> bool:
        """Whether the host launches a kernel while it waits for the kernel's operands."""
        return self.host.queues_launches

    @property
    def saves_launches(self) -> bool:
        """Whether the later stages of a kernel in a pipeline need no launch, because it is still running."""
        return self.host.persistent_stages

    def serving(self, graph: Graph) -> CostModel:
        """The cost model that applies to a placed graph: `host_only()` if no node leaves the host."""
        return self if any(node.device in self.units for node in graph.nodes) else self.host_only()

    def node_cost(self, graph: Graph, node: Node) -> NodeCost:
        """Time and energy of one node of a graph, on the device it is placed on (by default the host).

        Raises:
            GraphError: the node is placed on a unit and cannot run there.
        """
        if node.device in self.units:
            unit_cost = self._unit_cost(graph, node)
            return NodeCost(unit_cost.time_us, unit_cost.energy_mj, unit_cost)
        cost = self._host_cost(graph, node)
        if cost is None:
            return _FREE
        saved_us = _launch_us(cost) if self._runs_already(graph, node) else 0.0
        return NodeCost(cost.time_us - saved_us, cost.energy_mj, cost)

    def launch_ahead_us(self, graph: Graph, node: Node) -> float:
        """The part of a node's time that may overlap with waiting for its operands: its launch, if that is queued."""
        if not self.host.queues_launches or self._runs_already(graph, node):
            return 0.0
        return self._host_launch_us(graph, node)

    def avoidable_us(self, graph: Graph, node: Node, *, busy: bool = False) -> float:
        """The part of a node's time on the host that a plan may avoid: its launch, if it can be queued or saved.

        A queued launch still keeps the host busy, so only one that can be saved is part of the `busy` time.
        """
        spared = self.host.persistent_stages or (self.host.queues_launches and not busy)
        return self._host_launch_us(graph, node) if spared else 0.0

    def _host_launch_us(self, graph: Graph, node: Node) -> float:
        elsewhere = node.device in self.units or node.placement.access is not None
        cost = None if elsewhere else self._host_cost(graph, node)
        return 0.0 if cost is None else _launch_us(cost)

    def _runs_already(self, graph: Graph, node: Node) -> bool:
        """Whether a node of the host is a later stage of a kernel that is already running. The host may have no part in
        the first stages, so its own first stage counts."""
        stage = node.placement.stage
        if not self.host.persistent_stages or not stage or node.op.is_movement:
            return False
        return _first_stages(graph, self.target.host).get(_origin(node), stage) < stage

    def algorithms(self, graph: Graph) -> dict[str, str]:
        """The algorithms of the nodes of a placed graph that the host does not run in the default way, by node name."""
        found = {node.name: self._host_of(node).algorithm(graph, node) for node in self._kernels(graph)}
        return {name: algorithm for name, algorithm in found.items() if algorithm}

    def ways(self, graph: Graph, node: Node) -> tuple[Way, ...]:
        """The alternative ways to run a contraction of a placed graph on its device; empty if there is only one."""
        if node.device in self.units:
            unit, work, choice = self._on_unit(graph, node)
            return unit.ways(work, choice)
        return () if node.placement.fused_into is not None else self._host_of(node).ways(graph, node)

    def workspaces(self, graph: Graph) -> dict[str, int]:
        """Workspace bytes of the nodes of a placed graph, by node name, in the model's element types."""
        found = {
            node.name: self._host_of(node).workspace_elements(graph, node)
            * (element_bytes(graph.value(node.output).dtype) or 0)
            for node in self._kernels(graph)
        }
        return {name: size for name, size in found.items() if size}

    def _kernels(self, graph: Graph) -> Iterator[Node]:
        """The contractions that run as kernels of the host."""
        for node in graph.nodes:
            if node.op.is_contraction and node.device not in self.units and node.placement.fused_into is None:
                yield node

    def unknown(self, graph: Graph, node: Node) -> str:
        """What the host's price of a node does not account for, and why; "" if nothing."""
        return "" if node.op.is_movement else self.host.unknown(graph, node)

    def measured_us(self, op: Op) -> float:
        """The shortest measured time of any host kernel for an op of this name; infinite if none was measured."""
        return self.host.measured_us(op)

    def work(self, graph: Graph, node: Node, device: str) -> Work | Refusal:
        """The work that a node would be for a unit, or why it cannot run there.

        For a sparse node that is not placed there yet, also why it would not pay off, judging by graph statistics.
        """
        known, key = self._works.setdefault(graph, {}), (node.name, device)
        found = known.get(key)
        if found is None or found[0] is not node:
            found = known[key] = node, self._work(graph, node, device)
        return found[1]

    def _work(self, graph: Graph, node: Node, device: str) -> Work | Refusal:
        work: Work | Refusal = self.units[device].work(graph, node)
        refusal = work if isinstance(work, Refusal) else bound_to_host(node)
        if refusal is None and node.op.is_sparse and node.device != device:
            alone, beside = (costs.host.cost(graph, node).time_us for costs in (self.host_only(), self))
            refused = self.units[device].in_vain(work, alone, beside, self._adding_us(graph, node))
            refusal = None if refused is None else replace(refused, in_vain=True)
        return refusal or work

    def _adding_us(self, graph: Graph, node: Node) -> float:
        """The time for the host to add up two parts of a node's result: it reads both and writes the sum."""
        result = graph.value(node.output)
        moved = 3 * result.elements * (element_bytes(result.dtype) or 0)
        return self.host.copy_cost(moved, result.dtype).time_us

    def edge_divisions(self, graph: Graph, node: Node, device: str) -> tuple[EdgeDivision, ...]:
        """The divisions of a sparse node's edges between host and unit that may pay off, according to the unit."""
        work = self.work(graph, node, device)
        if isinstance(work, Refusal):
            return ()
        return self.units[device].edge_divisions(work, self.host.cost(graph, node).time_us)

    def time_parts_us(self, graph: Graph, node: Node) -> Parts:
        """A node's time by part; this may take longer to compute than the cost.

        Raises:
            GraphError: the node is placed on a unit and cannot run there.
        """
        if node.device in self.units:
            unit, work, choice = self._on_unit(graph, node)
            return unit.time_parts_us(work, choice)
        cost = self._host_cost(graph, node)
        if cost is None:
            return NO_PARTS
        parts = cost.time_parts_us
        return {**parts, "launch": 0.0} if self._runs_already(graph, node) and "launch" in parts else parts

    def unit_cost(self, device: str, work: Work, choice: str) -> UnitCost | Refusal:
        """The cost of work on a unit under a choice, or why it cannot run there."""
        return self.units[device].cost(work, choice)

    def unit_time_us(self, device: str, work: Work, choice: str) -> float | Refusal:
        """Like `unit_cost`, but only the time."""
        return self.units[device].time_us(work, choice)

    def refusal(self, graph: Graph, node: Node, device: str, choice: str) -> Refusal | None:
        """Why a node cannot run on a unit under a choice, or None."""
        work = self.work(graph, node, device)
        return work if isinstance(work, Refusal) else self.units[device].refusal(work, choice)

    def transfer(self, graph: Graph, node: Node) -> Transfer | None:
        """Copies of a unit's operands and results over its link; None if the unit accesses the host's memory directly.

        For a node that fetches rows from the host's memory, these copies are its whole cost.
        """
        if node.placement.access is not None:
            return Fetch.of(self.access(graph, node))
        unit = self.units.get(node.device or "")
        if unit is None:
            return None
        if unit.copies_by_work:
            return unit.copies(*self._on_unit(graph, node)[1:])
        loaded = sum(graph.value(name).elements for name in graph.activations(node))
        stored = sum(graph.value(name).elements for name in node.outputs if name)
        return self._merged(graph, node, loaded, stored) if node.op.is_sparse else unit.transfer(loaded, stored)

    def _merged(self, graph: Graph, node: Node, loaded: int, stored: int) -> Transfer | None:
        """Copies, followed by a host kernel that adds up partial results in single precision, if there are any."""
        unit, work, choice = self._on_unit(graph, node)
        partial = unit.partial_bytes(work, choice)
        copies = unit.transfer(loaded, stored, partial)
        if not partial:
            return copies
        adding = self.host.copy_cost(partial + _SUM_BYTES * stored, "int32")  # bytes do not depend on the host's type
        return Merged.after_copies(copies, Copy("merge", adding.time_us, adding.energy_mj, self.target.host))

    def access(self, graph: Graph, node: Node) -> Access:
        """The cost of fetching rows of a table from the host's memory; rows known only at run time are taken at random.

        Raises:
            TargetError: the target does not describe its memory tiers.
        """
        table, index = graph.value(node.inputs[0]), cast("Ids | None", graph.constants.get(node.inputs[1]))
        rows, *row = table.shape or (0,)
        width = element_bytes(table.dtype) or 0
        read = self._rows_read(graph, node)
        key: Hashable = (len(read), table.shape) if index is None else id(index)
        key = (key, width, rows, *row, node.placement.access)
        if key not in self._accesses:
            row_bytes = width * math.prod(row)
            fetched = TableRead(read, row_bytes, width, is_consecutive(read), rows * row_bytes)
            placement = choice("access", node.placement.access or "", PLACEMENTS)
            self._accesses[key] = (read if index is None else index, self._features.cost(placement, fetched))
        return self._accesses[key][1]

    def _rows_read(self, graph: Graph, node: Node) -> Ids:
        """The rows of a table that a node fetches; random ones if they are known only at run time."""
        index = cast("Ids | None", graph.constants.get(node.inputs[1]))
        if index is not None:
            return index.reshape(-1)
        rows = (graph.value(node.inputs[0]).shape or (0,))[0]
        return np.random.default_rng(0).integers(0, max(rows, 1), graph.value(node.inputs[1]).elements)

    def least_transfers_us(self, graph: Graph) -> dict[str, float]:
        """Lower bounds on the time of fetching rows of tables from the host's memory, by the name of the fetching node.

        Every row of a table that any node reads crosses the link once, whatever the method, the order and the number of
        nodes. Rows that several nodes read count for the first of them.
        """
        fetched_rows: dict[str, npt.NDArray[np.bool_]] = {}
        found = {}
        for node in fetches(graph):
            rows, *row = graph.shape(node.inputs[0])
            fetched = fetched_rows.setdefault(node.inputs[0], np.zeros(rows, np.bool_))
            before = int(fetched.sum())
            fetched[self._rows_read(graph, node)] = True
            width = math.prod(row) * (element_bytes(graph.value(node.inputs[0]).dtype) or 0)
            found[node.name] = self._features.lower_bound_us((int(fetched.sum()) - before) * width)
        return found

    @cached_property
    def _features(self) -> FeatureAccess:
        return FeatureAccess(self.target, self.host)

    @cached_property
    def _accesses(self) -> dict[Hashable, tuple[Ids, Access]]:
        """Cached accesses; each entry holds its index array, so that the array's id is not reused."""
        return {}

    @property
    def identity(self) -> str:
        """Everything that times depend on apart from the code, as text: without the machine's name, sources and
        energies."""
        kinds = [(device, self.target.kind(device)) for device in self.target.devices]
        values = {key: value for key, value in self.target.values.items() if matters_to_time(key)}
        return f"{kinds} {values} {self.host.identity}"

    @property
    def readouts(self) -> tuple[Readout, ...]:
        """The units that apply functions as results are read out."""
        found = (Readout(device, unit.readout_functions) for device, unit in self.units.items())
        return tuple(readout for readout in found if readout.functions)

    def kept(self, graph: Graph, node: Node) -> Kept:
        """The amount of a unit's memory that a node placed on the unit occupies."""
        return self.units[node.device or ""].kept(self._unit_cost(graph, node))

    @property
    def capacities(self) -> dict[str, Capacity]:
        """The capacity of the units' memories by device, for units that have a limit."""
        found = ((device, unit.capacity) for device, unit in self.units.items())
        return {device: capacity for device, capacity in found if capacity is not None}

    @property
    def symmetric_padding(self) -> tuple[str, ...]:
        """The devices whose convolutions need equal padding on opposite sides."""
        return () if self.host.asymmetric_padding else (self.target.host,)

    @property
    def titles(self) -> dict[str, str]:
        """The name of each device in traces and charts, the host first."""
        return {self.host.device: self.host.title, **{device: unit.title for device, unit in self.units.items()}}

    def static_energy_mj(self, makespan_us: float) -> float:
        """The static energy of the board and its units over a run, independent of the work."""
        units = sum(unit.static_energy_mj(makespan_us) for unit in self.units.values())
        return self.host.static_energy_mj(makespan_us) + units

    def _unit_cost(self, graph: Graph, node: Node) -> UnitCost:
        unit, work, choice = self._on_unit(graph, node)
        cost = unit.cost(work, choice)
        if isinstance(cost, Refusal):
            raise _misplaced(node, unit, cost)
        return cost

    def _on_unit(self, graph: Graph, node: Node) -> tuple[Backend[Any, Any], Work, str]:
        """The unit that a node is placed on, its work there, and its choice."""
        unit = self.units[node.device or ""]
        work = self.work(graph, node, unit.device)
        if isinstance(work, Refusal):
            raise _misplaced(node, unit, work)
        return unit, work, unit.resolve(node.placement.choice or "")

    def _host_cost(self, graph: Graph, node: Node) -> HostCost | None:
        if node.placement.access is not None:
            return self.access(graph, node)
        if node.op.is_movement:
            verdict = movement_of(graph, node)
            dtype = graph.value(node.output).dtype
            return None if verdict.free else self._host_of(node).copy_cost(verdict.bytes, dtype)
        return None if node.placement.fused_into is not None else self._host_of(node).cost(graph, node)

    def _host_of(self, node: Node) -> HostBackend:
        """The host with the memory channels that are available to it while a node runs there."""
        if node.placement.choice != ALL_CHANNELS:
            return self.host
        if self.channel_switch_us is None and self._host_only is not self:
            raise GraphError(f"{node.name!r} is placed with all memory channels, but this machine's units keep theirs")
        return self._host_only.host


_FIRST_STAGES: WeakKeyDictionary[Graph, dict[tuple[int | None, str], int]] = WeakKeyDictionary()


def _first_stages(graph: Graph, host: str) -> Mapping[tuple[int | None, str], int]:
    """The first stage in which the host has a kernel, by region and origin of the pipelined nodes."""
    if graph not in _FIRST_STAGES:
        found = _FIRST_STAGES[graph] = {}
        for node in graph.nodes:
            stage, fused = node.placement.stage, node.placement.fused_into is not None
            if stage is not None and node.device in (None, host) and not fused and not node.op.is_movement:
                found[_origin(node)] = min(stage, found.get(_origin(node), stage))
    return _FIRST_STAGES[graph]


def _origin(node: Node) -> tuple[int | None, str]:
    return node.placement.region, node.placement.origin or node.name


def _launch_us(cost: HostCost) -> float:
    return cost.time_parts_us.get("launch", 0.0)


def _misplaced(node: Node, unit: Backend[Any, Any], refusal: Refusal) -> GraphError:
    return GraphError(f"{node.name!r} is placed on {unit.device.upper()}, but: {refusal.reason}")


def _with_host(costs: CostModel, host: HostBackend) -> CostModel:
    """A copy of a cost model with another host; it is its own baseline."""
    model = CostModel.__new__(CostModel)
    model.target, model.units, model.host = costs.target, costs.units, host
    model._works = WeakKeyDictionary()
    model._host_only = model
    return model
