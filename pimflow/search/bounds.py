"""What decisions take at least, by arithmetic on rows: most candidates are out of the running before any is built.

The parts of a decision follow from its layout (`passes/rowwise`). Each part is priced once, however many candidates
have it: on the host exactly; on a unit at first by what its backend says that the work takes at least, and exactly
where that leaves a candidate in the running. No schedule of the parts is shorter than

- for every device, what comes before the first of some of its parts, those parts one after the other, and what has to
  come behind the last of them,
- the longest chain of parts of which each reads the one before.

Movements and copies over links only add to that. So a candidate whose bound exceeds what is known for its nodes is in
no cheapest plan.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from pimflow.codegen.backend import EdgeDivision, Records, Transfer, UnitCost
from pimflow.codegen.work import Work
from pimflow.ir import (
    Concat,
    Decision,
    Graph,
    MovementVerdict,
    Node,
    OnDevice,
    Parallel,
    Pipeline,
    Placement,
    Refusal,
    Slice,
    SplitColumns,
    SplitEdges,
    SplitK,
    SplitRows,
    Value,
)
from pimflow.ir.analysis.content import content_of
from pimflow.ir.analysis.padding import uneven_padding
from pimflow.ir.analysis.regions import cut_subgraph, node_columns, node_k, node_rows, part_finder
from pimflow.ir.expansion import is_expandable
from pimflow.ir.ops.base import RowPart
from pimflow.ir.plan import has_all_channels, singles
from pimflow.ir.readout import Readout
from pimflow.passes import ExplicitPadding
from pimflow.passes.apply_plan import passes_of
from pimflow.passes.decision import device_refusal
from pimflow.passes.k_split import whole_k
from pimflow.passes.rowwise.base import RowwisePass
from pimflow.runtime.timeline import NO_RESOURCE, Job, NodePrice, makespan_us
from pimflow.search.epilogues import members_by_root, own_kernels
from pimflow.search.laid_out import LaidOut, LaidPart, laid_out
from pimflow.search.parts import added_alone, columns_alone, divides_by_columns, k_alone, likeness, rows_alone
from pimflow.search.run_parts import End, RunParts, Where, by_stage
from pimflow.targets import Target


class Unit(Protocol):
    """What is asked of a unit beside the host."""

    @property
    def choices(self) -> tuple[str, ...]:
        """What it may be asked for."""

    @property
    def default_choice(self) -> str:
        """What it does where nothing of that is asked for."""

    def meant_by(self, word: str) -> str:
        """The choice that a policy's word stands for."""

    def least_us(self, work: Any, choice: str) -> float:
        """What work takes at least, by arithmetic alone."""

    @property
    def least_kept(self) -> int:
        """What every program keeps in the unit's memory at least."""

    @property
    def learnt_of(self) -> str:
        """All that what is learnt of work depends on, as text; "" of a unit that learns nothing."""

    def recall(self, records: Records) -> None:
        """Takes what was learnt in other runs."""

    def learnt(self) -> Records:
        """What has been learnt since this was last asked."""


class Costs(Protocol):
    """What is asked of a cost model here."""

    @property
    def target(self) -> Target:
        """The machine."""

    @property
    def units(self) -> Mapping[str, Unit]:
        """The units beside the host, by device."""

    @property
    def readouts(self) -> tuple[Readout, ...]:
        """The units that apply functions as results are read out."""

    @property
    def padding_alike(self) -> tuple[str, ...]:
        """The devices whose convolutions pad opposite sides alike."""

    def node_cost(self, graph: Graph, node: Node) -> NodePrice:
        """The node's time on its device."""

    def avoidable_us(self, graph: Graph, node: Node) -> float:
        """Of that on the host what a plan need not wait for."""

    def work(self, graph: Graph, node: Node, device: str) -> Work | Refusal:
        """What a node asks of a unit, or why it cannot run there."""

    def edge_divisions(self, graph: Graph, node: Node, device: str) -> tuple[EdgeDivision, ...]:
        """Ways to divide the edges of a sparse node with a unit that may pay, most promising first."""

    def unit_cost(self, device: str, work: Work, choice: str) -> UnitCost | Refusal:
        """What a unit's work costs under a choice."""

    def unit_time_us(self, device: str, work: Work, choice: str) -> float | Refusal:
        """The time of that alone."""

    def transfer(self, graph: Graph, node: Node) -> Transfer | None:
        """What the copies of a node cost; None if there are none."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """Work of a unit that has not been priced."""

    device: str
    work: Work
    choice: str


@dataclass(slots=True)
class _Part:
    """What a part takes: at least, as long as there is something pending. What is `priced` tells its energy later.

    `kernels_us` are its kernels, one after the other, where there are several; `whole` is whether nothing else costs.
    """

    us: float
    pending: _Pending | None = None
    priced: _Pending | None = None
    avoidable_us: float = 0.0  # of a part among others
    energy_mj: float = 0.0
    kernels_us: tuple[float, ...] = ()
    whole: bool = True


class _Steps(NamedTuple):
    """The parts of a decision: where each runs, and which of those before it it reads.

    `written` are those that are jobs, in order, each with its node and stage: of a decision whose schedule follows from
    its parts.
    """

    devices: Sequence[str] = ()
    parts: Sequence[_Part] = ()
    reads: Sequence[Sequence[int]] = ()
    written: Sequence[tuple[int, Node, int | None]] = ()


_FREE = _Part(0.0)
_UNTOLD = _Part(0.0, whole=False)
_REFUSED = _Part(math.inf)


class Bounds:
    """Bounds on what decisions over nodes of one graph take.

    `priced` counts the work of units that was priced exactly.
    """

    def __init__(self, graph: Graph, costs: Costs) -> None:
        self._graph = graph
        self._costs = costs
        self._host = costs.target.host
        self._known: dict[tuple[Decision, ...], Sequence[_Steps]] = {}
        self._parts: dict[tuple[str, int, int, str, str], _Part] = {}
        self.runs = RunParts(graph)
        self._own: dict[End, dict[tuple[int, str, str], Sequence[_Part]]] = {}
        self._works: dict[tuple[_Pending, bool], _Part] = {}
        self._kinds: dict[Hashable, int] = {}
        self._likeness: dict[str, int] = {}
        self._alike: dict[Hashable, _Part] = {}
        self._kernels: dict[tuple[str, str], bool] = {}
        self._members = members_by_root(graph)
        self.priced = 0

    def least_us(self, decisions: tuple[Decision, ...]) -> float:
        """What the decisions take at least, by arithmetic alone; infinite if they cannot be carried out."""
        return sum(map(_shortest, self._steps_of(decisions)))

    def split_us(self, split: SplitRows) -> float:
        """What a split takes at least by the parts of its node alone, told before they are laid out."""
        node = self._graph.node(split.node)
        rows = node_rows(self._graph, node)
        if not 0 < split.gpu_rows < rows or node.placement.fused_into is not None:
            return 0.0
        return max(self.shares_us(node, split.gpu_rows, split.device, split.choice))

    def shares_us(self, node: Node, on_host: int, device: str, choice: str) -> tuple[float, float]:
        """What the host takes at least for the first rows of a node, and a unit for the others; 0 where it cannot."""
        rows, found = node_rows(self._graph, node), []
        part_of = part_finder(self._graph)
        for where, start, stop in ((self._host, 0, on_host), (device, on_host, rows)):
            made = part_of(node, start, stop)
            if isinstance(made, Refusal):
                return 0.0, 0.0
            part = self._part(node, (start, stop), made, where, choice)
            found.append(part.us - part.avoidable_us)
        return found[0], found[1]

    def least_mj(self, decisions: tuple[Decision, ...]) -> float:
        """What the decisions spend at least, static power apart; what units spend counts once it is priced."""
        return sum(self._spent_mj(part) for steps in self._steps_of(decisions) for part in steps.parts)

    def _spent_mj(self, part: _Part) -> float:
        if part.priced is not None:
            cost = self._costs.unit_cost(part.priced.device, part.priced.work, part.priced.choice)
            part.energy_mj, part.priced = (0.0 if isinstance(cost, Refusal) else cost.energy_mj), None
        return part.energy_mj

    def least_busy_us(self, decisions: tuple[Decision, ...]) -> dict[str, float]:
        """How long the decisions keep every device busy at least; infinite if they cannot be carried out."""
        busy_us: dict[str, float] = {}
        for steps in self._steps_of(decisions):
            for device, part in zip(steps.devices, steps.parts, strict=True):
                busy_us[device] = busy_us.get(device, 0.0) + part.us - part.avoidable_us
        return busy_us

    def exactly_us(self, decisions: tuple[Decision, ...]) -> float | None:
        """What the decisions take, where that follows from their parts; None where only carrying them out tells.

        It does if what brings rows from part to part is free, so that a timeline has parts alone.
        """
        steps = self._steps_of(decisions)
        follows = all(some.parts and (some.written or len(some.parts) == 1) for some in steps)
        if not follows or not self._places_are_free:
            return None
        for part in (part for some in steps for part in some.parts):
            if part.pending is not None:
                self._price(part)
            if not part.whole or part.avoidable_us:
                return None
        return sum(some.parts[0].us if len(some.parts) == 1 else self._scheduled_us(some) for some in steps)

    @cached_property
    def _places_are_free(self) -> bool:
        """Whether the cost model charges nothing for Slices and Concats that are free."""
        rows, free = (1, 1, 2, 2), MovementVerdict(True, "")
        values = {name: Value(name, rows, "float32") for name in ("x", "part", "all")}
        placement = Placement(self._host, movement=free)
        nodes = (
            Node(Slice(2, 0, 2), ("x",), ("part",), "slice", placement),
            Node(Concat(2), ("part",), ("all",), "concat", placement),
        )
        graph = Graph("places", ("x",), ("all",), nodes, values, {})
        return not any(self._costs.node_cost(graph, node).time_us for node in nodes)

    def _scheduled_us(self, steps: _Steps) -> float:
        """The makespan of parts: the jobs that a timeline has of them."""
        jobs: list[Job] = []
        last: dict[int, int] = {}
        for at, node, stage in steps.written:
            part = steps.parts[at]
            before = {last[source] for source in steps.reads[at]}
            for us in part.kernels_us or (part.us,):
                for source in before:
                    jobs[source].successors.append(len(jobs))
                jobs.append(Job(node, steps.devices[at] if us > 0 else NO_RESOURCE, us, stage, [], len(before)))
                before = {len(jobs) - 1}
            last[at] = len(jobs) - 1
        return makespan_us(jobs)

    def tighten(self, decisions: tuple[Decision, ...]) -> float:
        """Prices work of units exactly, the longest first, until what the decisions take at least has risen.

        It is what `least_us` says from then on. Where it has not risen, nothing is left to price.
        """
        steps = self._steps_of(decisions)
        before = after = sum(map(_shortest, steps))
        while after <= before:
            pending = [part for some in steps for part in some.parts if part.pending is not None]
            if not pending:
                break
            self._price(max(pending, key=lambda part: part.us))
            after = sum(map(_shortest, steps))
        return after

    def _steps_of(self, decisions: tuple[Decision, ...]) -> Sequence[_Steps]:
        """The parts of decisions, told once: what they take is told by the parts themselves as they are priced."""
        if decisions not in self._known:
            where = self._devices(decisions)
            self._known[decisions] = [self._steps(decision, where) for decision in decisions]
        return self._known[decisions]

    def _devices(self, decisions: Sequence[Decision]) -> dict[str, str]:
        """The device of every node that decisions place whole."""
        single = [item for decision in decisions for item in singles(decision)]
        return {item.node: item.device for item in single if isinstance(item, OnDevice)}

    def _steps(self, decision: Decision, where: Mapping[str, str]) -> _Steps:
        """The parts of a decision; none of one whose parts are not told here."""
        if isinstance(decision, OnDevice):
            return _side_by_side([self._whole(decision, where)])
        if isinstance(decision, Parallel):
            return _at_once([self._steps(item, where) for item in decision.decisions])
        if isinstance(decision, Pipeline):
            return self._run_steps(decision)
        if isinstance(decision, SplitRows):
            return self._row_steps(decision)
        if isinstance(decision, SplitColumns):
            return _side_by_side(self._column_parts(decision))
        if isinstance(decision, SplitK):
            return self._k_steps(decision)
        if isinstance(decision, SplitEdges):
            return _side_by_side([(decision.device, _Part(self._dense_us(decision), whole=False))])
        return _Steps()

    def _dense_us(self, split: SplitEdges) -> float:
        """What a unit takes at least for its part of the edges; 0 of a division that nobody offers."""
        offered = self._costs.edge_divisions(self._graph, self._graph.node(split.node), split.device)
        dense = (split.group, split.at_least)
        return next((way.least_us for way in offered if (way.group, way.at_least) == dense), 0.0)

    def _whole(self, placed: OnDevice, where: Mapping[str, str]) -> tuple[str, _Part]:
        node = self._graph.node(placed.node)
        root = node.placement.fused_into
        if root is not None and not self.has_kernel(node, root, where.get(root, self._host)):
            return placed.device, _FREE
        key = (node.name, 0, -1, placed.device, placed.choice)
        if key not in self._parts:
            if has_all_channels(placed):
                node = node.placed(choice=placed.choice)
            whole = RowPart(node.op, (None,) * len(node.inputs))
            self._parts[key] = self._part_of(node, whole, None, placed.device, placed.choice)
        return placed.device, self._parts[key]

    def _row_steps(self, decision: SplitRows | Pipeline) -> _Steps:
        """The parts of a layout, each with those that it reads."""
        layout = self._laid_out(decision)
        if layout is None:
            return _side_by_side([(self._host, _REFUSED)])
        laid = layout.parts
        devices = [part.device for part in laid]
        parts = [
            self._row_part(part, device, "" if part.root is None else devices[part.root], decision.choice)
            for part, device in zip(laid, devices, strict=True)
        ]
        written = [(at, part.node, part.stage) for at, part in enumerate(laid)] if layout.complete else ()
        return _Steps(devices, parts, [part.reads for part in laid], written)

    def _run_steps(self, pipeline: Pipeline) -> _Steps:
        """The parts of a pipeline, as its end tells them, or else its layout."""
        end = self.runs.end(pipeline.run, pipeline.stage_rows, pipeline.bottom_first)
        places = None if end is None else end.places(pipeline, self._host)
        if end is None or places is None:
            return self._row_steps(pipeline)
        grid = end.grid(len(pipeline.run))
        devices = [device for where in places for device in by_stage(where, end.stages)]
        parts = [part for some in self.stage_parts(end, places, pipeline.choice) for part in some]
        return _Steps(devices, parts, grid.reads, grid.written if grid.complete else ())

    def stage_parts(self, end: End, devices: Sequence[Where], choice: str, beyond: int = 0) -> list[Sequence[_Part]]:
        """By node, front to back, and by stage, the parts of the last nodes of a run; not of the last `beyond`."""
        size = len(devices)
        return [self._layer_parts(end, place, devices, choice) for place in range(size - 1, beyond - 1, -1)]

    def _layer_parts(self, end: End, place: int, devices: Sequence[Where], choice: str) -> Sequence[_Part]:
        """By stage, the parts of the node at a place from the end of a run: nothing where it is in another's kernel."""
        node, device = end.layers[place].node, devices[-1 - place]
        root = node.placement.fused_into
        at = None if root is None else end.place.get(root, len(devices))
        if at is None or root is None:
            return self._own_parts(end, place, device, choice)
        if at >= len(devices):
            return [_FREE] * end.stages
        own = self._own_parts(end, place, device, choice)
        roots = [self.has_kernel(node, root, root_device) for root_device in by_stage(devices[-1 - at], end.stages)]
        alike = end.alike(place, at)
        return [part if apart or not same else _FREE for part, apart, same in zip(own, roots, alike, strict=True)]

    def _own_parts(self, end: End, place: int, device: Where, choice: str) -> Sequence[_Part]:
        """By stage, the parts of a node by themselves; what makes nothing is free."""
        if not isinstance(device, str):
            return [self._own_parts(end, place, where, choice)[stage] for stage, where in enumerate(device)]
        key = (place, device, choice if device != self._host else "")
        known = self._own.setdefault(end, {})
        if key not in known:
            layer = end.layers[place]
            if device_refusal(layer.node, device, self._host) is not None:
                known[key] = [_REFUSED] * end.stages
            else:
                known[key] = [
                    _FREE if part is None else self._part(layer.node, rows, part, device, choice)
                    for rows, part in zip(layer.rows, layer.made, strict=True)
                ]
        return known[key]

    def _laid_out(self, decision: SplitRows | Pipeline) -> LaidOut | None:
        """The layout of a decision, None if it has none."""
        (cut,) = passes_of(decision, self._host)
        assert isinstance(cut, RowwisePass)
        layout = cut.layout(self._graph)
        return None if isinstance(layout, Refusal) else laid_out(self._graph, layout.jobs)

    def _row_part(self, laid: LaidPart, device: str, root_device: str, choice: str) -> _Part:
        """What a part takes; `root_device` runs the part that it is fused into, if there is one."""
        node, root = laid.node, laid.node.placement.fused_into
        if laid.spared or (laid.root is not None and root and not self.has_kernel(node, root, root_device)):
            return _FREE
        return self._part(node, (laid.start, laid.stop), laid.part, device, choice)

    def _part(self, node: Node, rows: tuple[int, int], part: RowPart, device: str, choice: str) -> _Part:
        """What some rows of a node take by themselves, whatever they are fused into."""
        key = (node.name, *rows, device, choice if device != self._host else "")
        known = self._parts.get(key)
        if known is None:
            known = self._parts[key] = self._part_alike(node, rows, part, device, choice)
        return known

    def _column_parts(self, split: SplitColumns) -> list[tuple[str, _Part]]:
        """The two parts of a node; what follows them is left out."""
        node, most = self._graph.node(split.node), node_columns(self._graph, self._graph.node(split.node))
        if not divides_by_columns(self._graph, node) or not 0 < split.gpu_columns < most:
            return [(self._host, _REFUSED)]
        counts = ((self._host, split.gpu_columns), (split.device, most - split.gpu_columns))
        return [(device, self._columns_part(node, count, device, split.choice)) for device, count in counts]

    def _columns_part(self, node: Node, count: int, device: str, choice: str) -> _Part:
        key = (node.name, -1, count, device, choice if device != self._host else "")
        if key not in self._parts:
            alone = columns_alone(self._graph, node, count)
            placed = alone.nodes[0].placed(device=device, fused_into=None)
            if device == self._host:
                self._parts[key] = self._padded_part(alone, placed)
            else:
                self._parts[key] = self._unit_part(alone, placed, device, choice)
        return self._parts[key]

    def _k_steps(self, split: SplitK) -> _Steps:
        """The two parts of a sum, and the host's kernel that adds them up."""
        node = self._graph.node(split.node)
        if whole_k(self._graph, node) is not None or not 0 < split.gpu_k < node_k(self._graph, node):
            return _side_by_side([(self._host, _REFUSED)])
        parts = [
            self._k_part(node, 0, split.gpu_k, self._host, ""),
            self._k_part(node, split.gpu_k, node_k(self._graph, node), split.device, split.choice),
            self._added(node),
        ]
        return _Steps([self._host, split.device, self._host], parts, [(), (), (0, 1)])

    def _k_part(self, node: Node, start: int, stop: int, device: str, choice: str) -> _Part:
        key = (self._kind(node), start, stop, device, choice)
        if key not in self._alike:
            alone = k_alone(self._graph, node, start, stop)
            placed = alone.nodes[0].placed(device=device, fused_into=None)
            if device == self._host:
                self._alike[key] = self._host_part(alone, [placed])
            else:
                self._alike[key] = self._unit_part(alone, placed, device, choice)
        return self._alike[key]

    def added_us(self, split: SplitK) -> float:
        """What the host takes at least to add up both parts of a sum."""
        added = self._added(self._graph.node(split.node))
        return added.us - added.avoidable_us

    def _added(self, node: Node) -> _Part:
        key = (self._kind(node), "added")
        if key not in self._alike:
            alone = added_alone(self._graph, node)
            self._alike[key] = self._host_part(alone, [alone.nodes[0].placed(device=self._host)])
        return self._alike[key]

    def _part_alike(self, node: Node, rows: tuple[int, int], part: RowPart, device: str, choice: str) -> _Part:
        """What some rows take; looked at once for all nodes alike, and for all rows that read as many."""
        if any(callable(span) for span in part.spans) or content_of(self._graph, node):
            return self._part_of(node, part, rows, device, choice)
        read = tuple(span[1] - span[0] if isinstance(span, tuple) else None for span in part.spans)
        key = (self._kind(node), part.op, rows[1] - rows[0], read, device, choice)
        if key not in self._alike:
            self._alike[key] = self._part_of(node, part, rows, device, choice)
        return self._alike[key]

    def _kind(self, node: Node) -> int:
        """A number that nodes alike have in common."""
        if node.name not in self._likeness:
            kind = likeness(self._graph, node)
            self._likeness[node.name] = self._kinds.setdefault(kind, len(self._kinds))
        return self._likeness[node.name]

    def has_kernel(self, node: Node, root: str, device: str) -> bool:
        """Whether a node that is fused into another has a kernel of its own where that runs on a device."""
        if device == self._host:
            return False
        if (node.name, device) not in self._kernels:
            members = self._members[root]
            found = own_kernels(self._graph, root, members, device, self._costs.readouts, self._host)
            self._kernels.update({(name, device): own for name, own in found.items()})
        return self._kernels[node.name, device]

    def _part_of(self, node: Node, part: RowPart, rows: tuple[int, int] | None, device: str, choice: str) -> _Part:
        """What some rows of a node take on a device; 0 for a movement of which nothing is decided."""
        if node.op.is_movement and node.placement.movement is None:
            return _UNTOLD
        if rows is None and device == self._host and not any(uneven_padding(node.op)):
            return self._host_part(self._graph, [node.placed(device=device, fused_into=None)])
        alone = self._graph if rows is None else rows_alone(self._graph, node, part, rows)
        placed = (node if rows is None else alone.nodes[0]).placed(device=device, fused_into=None)
        if device != self._host:
            return self._unit_part(alone, placed, device, choice)
        if rows is None:
            alone = cut_subgraph(self._graph, [node.name])
        return self._padded_part(alone, placed)

    def _padded_part(self, alone: Graph, placed: Node) -> _Part:
        """What a node takes on the host with what its padding may need."""
        alone = ExplicitPadding(self._costs.padding_alike).run(alone.replace(nodes=[placed])).graph
        priced = [item for item in alone.nodes if not item.op.is_movement or item.placement.movement is not None]
        return self._host_part(alone, priced, whole=len(priced) == len(alone.nodes))

    def _host_part(self, graph: Graph, nodes: Sequence[Node], whole: bool = True) -> _Part:
        prices = [self._costs.node_cost(graph, node) for node in nodes]
        return _Part(
            sum(price.time_us for price in prices),
            avoidable_us=sum(self._costs.avoidable_us(graph, node) for node in nodes),
            energy_mj=sum(price.energy_mj for price in prices),
            kernels_us=tuple(price.time_us for price in prices) if len(prices) > 1 else (),
            whole=whole,
        )

    def _unit_part(self, graph: Graph, node: Node, device: str, choice: str) -> _Part:
        work = self._costs.work(graph, node, device)
        if isinstance(work, Refusal):
            return _REFUSED
        pending = _Pending(device, work, choice)
        whole = not is_expandable(node.op) and self._costs.transfer(graph, node) is None
        if (pending, whole) not in self._works:
            least_us = self._costs.units[device].least_us(work, choice)
            self._works[pending, whole] = _Part(least_us, pending, whole=whole)
        return self._works[pending, whole]

    def _price(self, part: _Part) -> None:
        assert part.pending is not None
        self.priced += 1
        told = self._costs.unit_time_us(part.pending.device, part.pending.work, part.pending.choice)
        part.us = math.inf if isinstance(told, Refusal) else told
        part.priced, part.pending = part.pending, None


def _side_by_side(parts: Sequence[tuple[str, _Part]]) -> _Steps:
    """Parts of which none reads another, with their devices."""
    return _Steps([device for device, _ in parts], [part for _, part in parts], [()] * len(parts))


def _at_once(several: Sequence[_Steps]) -> _Steps:
    """The parts of decisions that run at once; what one reads of another is left out."""
    devices: list[str] = []
    parts: list[_Part] = []
    reads: list[Sequence[int]] = []
    for steps in several:
        first = len(parts)
        devices += steps.devices
        parts += steps.parts
        reads += [[first + source for source in sources] for sources in steps.reads]
    return _Steps(devices, parts, reads)


def _shortest(steps: _Steps) -> float:
    """What no schedule of the parts is shorter than."""
    devices, parts, reads, _ = steps
    if len(parts) == 1:
        return parts[0].us
    us = [part.us - part.avoidable_us for part in parts]
    release: list[float] = []
    ends: list[float] = []
    for sources, own in zip(reads, us, strict=True):
        start = 0.0
        for source in sources:
            if ends[source] > start:
                start = ends[source]
        release.append(start)
        ends.append(start + own)
    behind = [0.0] * len(parts)
    for index in range(len(parts) - 1, -1, -1):
        sources = reads[index]
        if not sources:
            continue
        after = behind[index] + us[index]
        for source in sources:
            if after > behind[source]:
                behind[source] = after
    best = 0.0
    for device in dict.fromkeys(devices):
        mine = [index for index, where in enumerate(devices) if where == device and us[index] > 0]
        best = max(best, _one_device(mine, us, release, behind))
    return best


def _one_device(mine: list[int], us: Sequence[float], release: Sequence[float], behind: Sequence[float]) -> float:
    """The same of the parts of one device: whichever of them come last by when they can start, none before that."""
    mine.sort(key=release.__getitem__, reverse=True)
    best, total, tail = 0.0, 0.0, math.inf
    for index in mine:
        total += us[index]
        if behind[index] < tail:
            tail = behind[index]
        bound = release[index] + total + tail
        if bound > best:
            best = bound
    return best
