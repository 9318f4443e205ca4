"""The time of a part of a node: exact on the host, initially the backend's lower bound on a unit."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

from pimflow.codegen.answers import Copy, EdgeDivision, Records, Transfer, UnitCost
from pimflow.codegen.work import Work
from pimflow.ir import Graph, Node, OnDevice, Refusal
from pimflow.ir.analysis.content import content_of
from pimflow.ir.analysis.padding import uneven_padding
from pimflow.ir.analysis.regions import cut_subgraph
from pimflow.ir.expansion import is_expandable
from pimflow.ir.ops.base import RowPart
from pimflow.ir.plan import has_all_channels
from pimflow.ir.readout import Readout
from pimflow.passes import ExplicitPadding
from pimflow.records import NamedTuple, dataclass
from pimflow.runtime.timeline import NodePrice
from pimflow.search.epilogues import members_by_root, own_kernels
from pimflow.search.parts import extract_addition, extract_columns, extract_k, extract_rows, price_key, rows_read
from pimflow.targets import Target


class Unit(Protocol):
    """The interface that the search needs from a unit other than the host."""

    @property
    def choices(self) -> tuple[str, ...]:
        """The choices that it offers."""

    @property
    def default_choice(self) -> str:
        """The choice that applies if none is requested."""

    def choice_for(self, word: str) -> str:
        """The choice that a policy's word stands for."""

    def lower_bound_us(self, work: Any, choice: str) -> float:
        """A lower bound on the time of work, by arithmetic alone."""

    @property
    def copies_by_work(self) -> bool:
        """Whether operands and results are copied, in a time that depends on how the work is done."""

    @property
    def min_kept(self) -> int:
        """The minimum amount that any program stores in the unit's memory, in the unit of its capacity."""

    @property
    def records_key(self) -> str:
        """Everything that learnt records depend on, as text; "" for a unit that learns nothing."""

    def load_records(self, records: Records) -> None:
        """Load what was learnt in other runs."""

    def new_records(self) -> Records:
        """What has been learnt since the last call."""


class Costs(Protocol):
    """The interface that the prices of parts need from a cost model."""

    @property
    def target(self) -> Target:
        """The machine."""

    @property
    def units(self) -> Mapping[str, Unit]:
        """The units other than the host, by device."""

    @property
    def readouts(self) -> tuple[Readout, ...]:
        """The units that can apply functions to results while they are read out."""

    @property
    def queues_launches(self) -> bool:
        """Whether the host launches a kernel while it waits for the kernel's operands."""

    @property
    def saves_launches(self) -> bool:
        """Whether the later stages of a kernel in a pipeline need no launch."""

    @property
    def symmetric_padding(self) -> tuple[str, ...]:
        """The devices whose convolutions require equal padding on opposite sides."""

    def node_cost(self, graph: Graph, node: Node) -> NodePrice:
        """The node's time on its device."""

    def avoidable_us(self, graph: Graph, node: Node, *, busy: bool = False) -> float:
        """The part of a node's time on the host that a plan can avoid waiting for; of its `busy` time, the part that
        the host can be spared."""

    def work(self, graph: Graph, node: Node, device: str) -> Work | Refusal:
        """The work that a node is for a unit, or why it cannot run there."""

    def edge_divisions(self, graph: Graph, node: Node, device: str) -> tuple[EdgeDivision, ...]:
        """Ways to divide the edges of a sparse node with a unit that may pay off, most promising first."""

    def unit_cost(self, device: str, work: Work, choice: str) -> UnitCost | Refusal:
        """What a unit's work costs under a choice."""

    def unit_time_us(self, device: str, work: Work, choice: str) -> float | Refusal:
        """Only the time of a unit's work under a choice."""

    def transfer(self, graph: Graph, node: Node) -> Transfer | None:
        """The cost of a node's copies; None if there are none."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Work of a unit that has not been priced."""

    device: str
    work: Work
    choice: str


class PlacedPart(NamedTuple):
    """A part and the resource that it occupies."""

    resource: str
    part: Part


@dataclass(slots=True)
class Part:
    """The time of a part: a lower bound while work is `pending`; `priced` is priced work whose energy is still to be
    read.

    `kernels_us` are the times of its consecutive kernels if there are several, and `launches_us` what can be avoided of
    each kernel's time, if anything; `before` and `after` are the copies of operands and results, parts of their own;
    `complete` is whether nothing else adds to its cost.
    """

    us: float
    pending: Pending | None = None
    priced: Pending | None = None
    avoidable_us: float = 0.0  # not waited for, when it is one of several parts
    saved_us: float = 0.0  # of that, what keeps the device free as well
    energy_mj: float = 0.0
    kernels_us: tuple[float, ...] = ()
    launches_us: tuple[float, ...] = ()
    before: tuple[PlacedPart, ...] = ()
    after: tuple[PlacedPart, ...] = ()
    complete: bool = True

    @property
    def copies_us(self) -> float:
        """The time of the copies around it."""
        return sum([copy.us for _, copy in (*self.before, *self.after)])


FREE = Part(0.0)
UNKNOWN = Part(0.0, complete=False)
REFUSED = Part(math.inf)


class PartPrices:
    """The times of parts of one graph's nodes by themselves, each computed once."""

    def __init__(self, graph: Graph, costs: Costs) -> None:
        self._graph = graph
        self._costs = costs
        self._host = costs.target.host
        self._parts: dict[tuple[str, int, int, str, str], Part] = {}
        self._works: dict[tuple[Pending, Transfer | None, bool], Part] = {}
        self._kinds: dict[Hashable, int] = {}
        self._numbers: dict[str, int] = {}
        self._shared: dict[Hashable, Part] = {}
        self._kernels: dict[tuple[str, str], bool] = {}
        self._placed: dict[tuple[str, str], Node] = {}
        self._members = members_by_root(graph)

    def of_node(self, placed: OnDevice) -> Part:
        """A whole node by itself, regardless of fusion."""
        node = self._graph.node(placed.node)
        key = (node.name, 0, -1, placed.device, placed.choice)
        if key not in self._parts:
            if has_all_channels(placed):
                node = node.placed(choice=placed.choice)
            whole = RowPart(node.op, (None,) * len(node.inputs))
            self._parts[key] = self._part_of(node, whole, None, placed.device, placed.choice)
        return self._parts[key]

    def of_rows(self, node: Node, rows: tuple[int, int], part: RowPart, device: str, choice: str) -> Part:
        """Some rows of a node by themselves, regardless of fusion."""
        key = (node.name, *rows, device, choice if device != self._host else "")
        known = self._parts.get(key)
        if known is None:
            known = self._parts[key] = self._shared_part(node, rows, part, device, choice)
        return known

    def has_kernel(self, node: Node, root: str, device: str) -> bool:
        """Whether a node that is fused into `root` has a kernel of its own if `root` runs on a device."""
        if device == self._host:
            return False
        if (node.name, device) not in self._kernels:
            members = self._members[root]
            found = own_kernels(self._graph, root, members, device, self._costs.readouts, self._host)
            self._kernels.update({(name, device): own for name, own in found.items()})
        return self._kernels[node.name, device]

    def of_columns(self, node: Node, count: int, device: str, choice: str) -> Part:
        """Some columns of a node, the first or the last."""
        key = (node.name, -1, count, device, choice if device != self._host else "")
        if key not in self._parts:
            subgraph = extract_columns(self._graph, self._alone(node, device), count)
            self._parts[key] = self._only_part(subgraph, device, choice)
        return self._parts[key]

    def of_k(self, node: Node, start: int, stop: int, device: str, choice: str) -> Part:
        """A sum over some of a node's inner elements or input channels."""
        key = (self._kind(node), start, stop, device, choice)
        if key not in self._shared:
            subgraph = extract_k(self._graph, self._alone(node, device), start, stop)
            self._shared[key] = self._only_part(subgraph, device, choice)
        return self._shared[key]

    def of_addition(self, node: Node) -> Part:
        """The host's kernel that adds up both parts of a split sum."""
        key = (self._kind(node), "added")
        if key not in self._shared:
            subgraph = extract_addition(self._graph, node)
            self._shared[key] = self._host_part(subgraph, [subgraph.nodes[0].placed(device=self._host)])
        return self._shared[key]

    def of_written(self, graph: Graph, node: Node, choice: str) -> Part:
        """A node that an operator is written out as: a node of another graph, placed and by itself."""
        if node.device == self._host:
            return self._host_part(graph, [node])
        return self._unit_part(graph, node, node.device or "", choice)

    def is_fused(self, node: Node) -> bool:
        """Whether the node is fused into another, or another into it."""
        return node.placement.fused_into is not None or node.name in self._members

    def price(self, part: Part) -> None:
        """Price a part's pending work exactly."""
        assert part.pending is not None
        time_us = self._costs.unit_time_us(part.pending.device, part.pending.work, part.pending.choice)
        part.us = math.inf if isinstance(time_us, Refusal) else time_us
        part.priced, part.pending = part.pending, None

    def spent_mj(self, part: Part) -> float:
        """The energy of a part without static power; 0 for a unit's work until it is priced."""
        if part.priced is not None:
            cost = self._costs.unit_cost(part.priced.device, part.priced.work, part.priced.choice)
            part.energy_mj, part.priced = (0.0 if isinstance(cost, Refusal) else cost.energy_mj), None
        return part.energy_mj

    def _shared_part(self, node: Node, rows: tuple[int, int], part: RowPart, device: str, choice: str) -> Part:
        """Some rows of a node, cached for all nodes with the same `price_key` and all rows that read equally many."""
        if any(map(callable, part.spans)) or content_of(self._graph, node):
            return self._part_of(node, part, rows, device, choice)
        op = None if part.op is node.op else part.op
        key = (self._kind(node), op, rows[1] - rows[0], rows_read(part), device, choice)
        known = self._shared.get(key)
        if known is None:
            known = self._shared[key] = self._part_of(node, part, rows, device, choice)
        return known

    def _kind(self, node: Node) -> int:
        """A number shared by all nodes with the same `price_key`."""
        if node.name not in self._numbers:
            kind = price_key(self._graph, node)
            self._numbers[node.name] = self._kinds.setdefault(kind, len(self._kinds))
        return self._numbers[node.name]

    def _part_of(self, node: Node, part: RowPart, rows: tuple[int, int] | None, device: str, choice: str) -> Part:
        """Some rows of a node on a device; free, but not `complete`, for a movement that has not been classified."""
        if node.op.is_movement and node.placement.movement is None:
            return UNKNOWN
        if rows is not None:
            return self._only_part(extract_rows(self._graph, self._alone(node, device), part, rows), device, choice)
        placed = node.placed(device=device, fused_into=None)
        if device != self._host:
            return self._unit_part(self._graph, placed, device, choice)
        if not any(uneven_padding(node.op)):
            return self._host_part(self._graph, [placed])
        return self._padded_part(cut_subgraph(self._graph, [node.name]).replace(nodes=[placed]))

    def _alone(self, node: Node, device: str) -> Node:
        """A node of the graph on a device, regardless of fusion."""
        key = (node.name, device)
        if key not in self._placed:
            self._placed[key] = node.placed(device=device, fused_into=None)
        return self._placed[key]

    def _only_part(self, subgraph: Graph, device: str, choice: str) -> Part:
        """The only node of a graph, on its device."""
        (node,) = subgraph.nodes
        if device != self._host:
            return self._unit_part(subgraph, node, device, choice)
        return self._padded_part(subgraph) if any(uneven_padding(node.op)) else self._host_part(subgraph, [node])

    def _padded_part(self, subgraph: Graph) -> Part:
        """The only node of a graph, on the host, with the movements that its padding may need."""
        subgraph = ExplicitPadding(self._costs.symmetric_padding).run(subgraph).graph
        priced = [item for item in subgraph.nodes if not item.op.is_movement or item.placement.movement is not None]
        return self._host_part(subgraph, priced, complete=len(priced) == len(subgraph.nodes))

    def _host_part(self, graph: Graph, nodes: Sequence[Node], complete: bool = True) -> Part:
        prices = [self._costs.node_cost(graph, node) for node in nodes]
        launches_us = tuple(self._costs.avoidable_us(graph, node) for node in nodes)
        return Part(
            sum(price.time_us for price in prices),
            avoidable_us=sum(launches_us),
            saved_us=sum(self._costs.avoidable_us(graph, node, busy=True) for node in nodes),
            energy_mj=sum(price.energy_mj for price in prices),
            kernels_us=tuple(price.time_us for price in prices) if len(prices) > 1 else (),
            launches_us=launches_us if any(launches_us) else (),
            complete=complete,
        )

    def _unit_part(self, graph: Graph, node: Node, device: str, choice: str) -> Part:
        work = self._costs.work(graph, node, device)
        if isinstance(work, Refusal):
            return REFUSED
        pending = Pending(device, work, choice)
        unit = self._costs.units[device]
        copies = None if unit.copies_by_work else self._costs.transfer(graph, node)
        complete = not unit.copies_by_work and not is_expandable(node.op)
        key = (pending, copies, complete)
        known = self._works.get(key)
        if known is None:
            before = () if copies is None else _moved(copies.before, copies.link)
            after = () if copies is None else _moved(copies.after, copies.link)
            lower_bound_us = unit.lower_bound_us(work, choice)
            known = self._works[key] = Part(lower_bound_us, pending, before=before, after=after, complete=complete)
        return known


def _moved(copies: Sequence[Copy], link: str) -> tuple[PlacedPart, ...]:
    """Copies of a transfer over a link as parts."""
    return tuple([PlacedPart(copy.resource or link, Part(copy.time_us, energy_mj=copy.energy_mj)) for copy in copies])
