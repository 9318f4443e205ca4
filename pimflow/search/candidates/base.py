"""What all kinds of candidates share: the order, its units, and which device can run what."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property

from pimflow.codegen.answers import EdgeDivision
from pimflow.ir import Decision, Graph, Node, OnDevice, Parallel, Refusal
from pimflow.ir.analysis.regions import OperandReads, operand_reads
from pimflow.ir.plan import renamed, singles
from pimflow.passes.rowwise.stages import Spans
from pimflow.records import dataclass
from pimflow.search.epilogues import own_kernels
from pimflow.search.equivalents import Equivalents, NoEquivalents
from pimflow.search.joined_ways import Changes, Joined, Numbers, UnitWays, Way
from pimflow.search.order import ForkJoin, Unit, execution_order, fork_joins, units_of, unordered
from pimflow.search.parts import price_key
from pimflow.search.pricing import Pricer

MAX_REGION_NODES = 24
"""The maximum number of nodes in concurrent branches or joined decisions."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Decisions that cover the positions start .. stop-1 of the order.

    The `certain` ones alone are enough for a plan: they are priced whatever the time budget.
    """

    start: int
    stop: int
    decisions: tuple[Decision, ...]
    certain: bool = False


class Varied(Candidate):
    """A variation of joined decisions as a candidate, whose decisions are put together when they are first asked for.

    It equals the `Candidate` of the same decisions.
    """

    joined: Joined
    changes: Changes

    def __init__(self, start: int, stop: int, joined: Joined, changes: Changes) -> None:
        for name, value in (("start", start), ("stop", stop), ("certain", False)):
            object.__setattr__(self, name, value)
        vars(self).update(joined=joined, changes=changes)

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """The variation put together."""
        return (self.joined.with_ways(self.changes),)

    def put_together(self) -> tuple[Decision, ...]:
        """The decisions."""
        return self.decisions

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Candidate):
            return NotImplemented
        return (self.start, self.stop, self.decisions) == (other.start, other.stop, other.decisions)

    def __hash__(self) -> int:
        return hash((self.start, self.stop, self.decisions, self.certain))


class Scene:
    """A graph in its execution order, and which of its nodes devices other than the host can run.

    `exhaustive` is whether every version of a decision is a candidate because the graph is small; `every_division` is
    the same for rows divided within runs. `sums` is whether variations may divide the dimension that products sum over:
    never if the host's cost model does not, so that a plan gains nothing from it that the host alone could gain too.
    `divided_runs` is whether variations may divide rows within stages. Candidates are listed where the `firsts` of
    `equivalents` begin.
    """

    def __init__(self, graph: Graph, pricer: Pricer) -> None:
        self.graph = graph
        self.exhaustive = False
        self.every_division = False
        self.host = pricer.costs.target.host
        self.divides_sums = pricer.costs.target.units[self.host].divides_sums
        self.sums = self.divides_sums
        self.divided_runs = False
        self.devices = tuple(pricer.costs.units)
        self.order = execution_order(graph)
        self.units = units_of(self.order)
        self.equivalents: Equivalents | NoEquivalents = NoEquivalents(self.units)
        self.numbers = Numbers()
        self.ways: dict[tuple[tuple[int, ...], bool], UnitWays] = {}
        """By the numbers of decisions about a unit, and whether sums are divided, the other ways to decide it."""
        self._moved: tuple[Joined, int, Joined] | None = None
        """Joined decisions whose variations were moved last, the distance, and these decisions there."""
        self._moved_ways: dict[tuple[Way, int], Way] = {}
        self._starts = [unit.start for unit in self.units]
        self._made_by = {
            name: unit.start for unit in self.units for node in unit.nodes for name in node.outputs if name
        }
        self._pricer = pricer
        self._leaving: dict[tuple[int, str], bool] = {}
        self._destinations: dict[str, Sequence[Destination]] = {}

    @cached_property
    def place(self) -> Mapping[str, int]:
        """The position of every node in the order."""
        return {node.name: index for index, node in enumerate(self.order)}

    @cached_property
    def fork_joins(self) -> tuple[ForkJoin, ...]:
        """The regions with branches that may run concurrently, except where rows are fetched from the host's memory:
        those fit into memory only one after the other."""
        found = fork_joins(self.graph, self.order)
        return tuple(region for region in found if not self.fetches_rows(region.start, region.stop))

    @cached_property
    def operand_reads(self) -> Callable[[str], OperandReads]:
        """By name, what a node reads of its operands."""
        return operand_reads(self.graph)

    def fetches_rows(self, start: int, stop: int) -> bool:
        """Whether rows are fetched from the host's memory at some positions."""
        return any(node.placement.access is not None for node in self.order[start:stop])

    @cached_property
    def unordered(self) -> Sequence[tuple[int, int]]:
        """The starts of pairs of nearby units in which the later one does not depend on the earlier one, and at least
        one of them can leave the host; ordered by the later one."""
        kernels = {unit.start: unit.anchor for unit in self.units if not unit.anchor.op.is_movement}
        able = {
            start
            for start, node in kernels.items()
            if any(self.can_run(node, destination) for destination in self.destinations("auto"))
        }
        return [
            (before, behind)
            for before, behind in unordered(self.graph, self.order, MAX_REGION_NODES)
            if before in kernels and behind in kernels and not able.isdisjoint((before, behind))
        ]

    def find_equivalents(self, reach: int, *, concurrently: bool) -> None:
        """From now on, list candidates only once for equivalent stretches of at most `reach` units.

        `concurrently` is whether branches may run concurrently, so that their place matters.
        """
        found = self.fork_joins if concurrently else ()
        regions = [region for region in found if region.stop - region.start <= reach]
        self.equivalents = Equivalents(self.graph, self.order, self.units, regions, reach)

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """By position, a number for everything that the price of the node depends on."""
        numbers: dict[Hashable, int] = {}
        return tuple([numbers.setdefault(price_key(self.graph, node), len(numbers)) for node in self.order])

    @cached_property
    def firsts_of_kind(self) -> Mapping[int, Sequence[int]]:
        """By kind of node, where the `firsts` of `equivalents` begin that start with one."""
        found: dict[int, list[int]] = {}
        for unit in self.equivalents.firsts:
            found.setdefault(self.kinds[unit.start], []).append(unit.start)
        return found

    def key(self, candidate: Candidate) -> Hashable:
        """What tells candidates apart: for joined decisions without putting them together."""
        if isinstance(candidate, Varied):
            return candidate.start, candidate.stop, candidate.joined.numbers_with(candidate.changes)
        only = candidate.decisions[0]
        if isinstance(only, Parallel):
            return candidate.start, candidate.stop, Joined(only, self.numbers).numbers
        return candidate

    def content_text(self, decisions: tuple[Decision, ...]) -> str:
        """What the cost of decisions depends on."""
        return self._pricer.content_text(decisions)

    def moved(self, decisions: tuple[Decision, ...], shift: int) -> tuple[Decision, ...]:
        """The same decisions about the nodes at a distance of `shift` positions."""
        return decisions if not shift else tuple([renamed(decision, self._behind(shift)) for decision in decisions])

    def moved_variation(self, varied: Varied, shift: int) -> Varied:
        """The same variation of the same decisions about the nodes at a distance of `shift` positions."""
        if self._moved is None or self._moved[:2] != (varied.joined, shift):  # variations of the same are adjacent
            (parallel,) = self.moved((varied.joined.parallel,), shift)
            assert isinstance(parallel, Parallel)
            self._moved = varied.joined, shift, Joined(parallel, self.numbers)
        changes = tuple([(first, last, self._moved_way(way, shift)) for first, last, way in varied.changes])
        return Varied(varied.start + shift, varied.stop + shift, self._moved[2], changes)

    def _moved_way(self, way: Way, shift: int) -> Way:
        found = self._moved_ways.get((way, shift))
        if found is None:
            items = [item for decision in self.moved(way.items, shift) for item in singles(decision)]
            found = self._moved_ways[way, shift] = Way(tuple(items), self.numbers)
        return found

    def _behind(self, shift: int) -> Callable[[str], str]:
        return lambda name: self.order[self.place[name] + shift].name

    def destinations(self, choice: str) -> Sequence[Destination]:
        """Every device other than the host, with the meaning of a policy's choice for it."""
        found = self._destinations.get(choice)
        if found is None:
            units = self._pricer.costs.units
            found = [Destination(device, unit.choice_for(choice)) for device, unit in units.items()]
            self._destinations[choice] = found
        return found

    def can_run(self, node: Node, destination: Destination) -> bool:
        """Whether the whole node can run there."""
        return self._pricer.can_run(node, destination.device, destination.choice)

    def rows_made(self, run: tuple[str, ...], stage_rows: tuple[int, ...]) -> Mapping[str, Spans] | Refusal:
        """By node of a run, the rows that every stage makes of it, top ones first."""
        return self._pricer.rows_made(run, stage_rows)

    def balanced_rows(self, node: Node, destination: Destination) -> int:
        """The number of rows on the host for which the host and a unit take about the same time for their parts of a
        node."""
        return self._pricer.balanced_rows(node, destination.device, destination.choice)

    def edge_divisions(self, node: Node, device: str) -> tuple[EdgeDivision, ...]:
        """Ways to divide the edges of a sparse node that may pay off, most promising first."""
        return self._pricer.costs.edge_divisions(self.graph, node, device)

    def runnable_units(self, destination: Destination) -> Iterator[Unit]:
        """The units whose anchor can run there, only the first of each class of equivalent ones."""
        return (unit for unit in self.equivalents.firsts if self.can_run(unit.anchor, destination))

    def leaves_kernels(self, unit: Unit, destination: Destination) -> bool:
        """Whether a unit whose anchor runs there leaves kernels to the host, for nodes that cannot be fused there."""
        key = (unit.start, destination.device)
        if key not in self._leaving:
            members = [node.name for node in unit.nodes[1:]]
            readouts = self._pricer.costs.readouts
            own = own_kernels(self.graph, unit.anchor.name, members, destination.device, readouts, self.host)
            self._leaving[key] = any(own[name] for name in members)
        return self._leaving[key]

    def units_from(self, unit: Unit) -> Iterator[Unit]:
        """The unit and all after it."""
        for index in range(bisect_left(self._starts, unit.start), len(self.units)):
            yield self.units[index]

    def units_within(self, start: int, stop: int) -> tuple[Unit, ...]:
        """The units that lie completely within some positions."""
        found = self.units[bisect_left(self._starts, start) : bisect_left(self._starts, stop)]
        return found if not found or found[-1].stop <= stop else found[:-1]

    def read_by(self, start: int) -> set[int]:
        """The starts of the units that the unit starting at a position reads."""
        unit, made_by = self.units[bisect_left(self._starts, start)], self._made_by
        return {made_by[name] for node in unit.nodes for name in node.inputs if name in made_by}

    def on_host(self, nodes: Sequence[Node]) -> tuple[Decision, ...]:
        """Every node on the host."""
        return tuple(OnDevice(node.name, self.host) for node in nodes)


@dataclass(frozen=True)
class Destination:
    """A device other than the host, and the choice that a space requests from its backend."""

    device: str
    choice: str


def is_heavy(unit: Unit) -> bool:
    """Whether a unit is more than an elementwise node."""
    return not unit.anchor.op.is_elementwise
