"""Where to place large tables, by price: in the GPU's memory or in the host's, and how to fetch rows from there.

A model that fits into the GPU's memory is left alone: rows are nearest there. Otherwise tables are moved to the host's
memory, the largest first, until the rest fits; their readers are cut into as few parts as that requires. Numbers of
tables that cannot free as much as is missing are not tried. Each way of fetching rows is tried, and the cheapest one is
used. This is decided before plans are made, with every node on the device that runs it fastest.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from pimflow.errors import OptionError, TargetError
from pimflow.ir import Graph, Node, Plan, Refusal
from pimflow.ir.analysis.host_tables import reads_rows
from pimflow.ir.analysis.tensor_layout import element_bytes
from pimflow.options import Options
from pimflow.passes import FuseEpilogues, MovementElimination, Pass, PassRecord, PlaceFeatures
from pimflow.records import NamedTuple, dataclass
from pimflow.runtime.costs import CostModel
from pimflow.runtime.features import tiers_of
from pimflow.runtime.memory import ALIGNMENT, MemoryPlan, plan_memory
from pimflow.runtime.memory.tiers import gigabytes, gpu_bytes
from pimflow.search.fastest import Fastest
from pimflow.search.pricing import Costs, rewrites
from pimflow.search.room import memory_in_order, needed_bytes

ACCESSES: Mapping[str, tuple[str, ...]] = {
    "auto": ("gather", "zero-copy", "zero-copy-plain"),
    "host": ("gather",),
    "zero-copy": ("zero-copy-plain",),
    "aligned": ("zero-copy",),
}
"""The ways in which rows may be fetched, by the value of the option."""

MARKS: tuple[Pass, ...] = (FuseEpilogues(residual=True), MovementElimination())
"""The marking passes of the clean-up, which are run again."""

_MAX_PARTS = 1 << 10
_WORTH_CUTTING = 0.99  # of the memory with half as many parts: above that, more parts hardly help


class ChosenPasses(NamedTuple):
    """The passes that place tables in the host's memory (none if everything stays on the GPU), and their records."""

    passes: tuple[Pass, ...] = ()
    records: tuple[PassRecord, ...] = ()


@dataclass(frozen=True)
class Form:
    """A placement of tables in the host's memory with its costs.

    Args:
        passes: the passes that produce it.
        access: how the rows of all its tables are fetched.
        parts: into how many parts the readers are cut.
        needed_bytes: the peak use of the GPU's memory.
        live_bytes: a lower bound on it, however the arena is packed.
        time_us: the total time of all nodes, each on the device that runs it fastest.
    """

    passes: tuple[Pass, ...]
    access: str
    parts: int
    needed_bytes: int
    live_bytes: int
    time_us: float


def feature_places(graph: Graph, costs: CostModel, options: Options) -> ChosenPasses:
    """The passes that place tables in the host's memory if the options ask for it or the GPU's memory is too small.

    Args:
        graph: cleaned up.
        costs: the cost model of the machine.
        options: `tables` says where tables may be placed.

    Raises:
        OptionError: a table has to be in the host's memory, and the model reads none by rows.
        TargetError: a table has to be there, and the target does not define its memory tiers, or nothing fits.
    """
    memory, requested = costs.target.memory, options.tables
    if requested == "gpu" or (requested == "auto" and (memory is None or memory.host is None)):
        return ChosenPasses()
    tiers, host, _ = tiers_of(costs.target)
    room = tiers.gpu.usable_bytes
    needed = needed_bytes(graph, costs)
    if requested == "auto" and needed <= room:
        return ChosenPasses()
    tables = tuple(_tables(graph))
    if not tables:
        if requested != "auto":
            raise OptionError("the model reads no table by rows, neither an input nor a constant", "leave out --tables")
        return ChosenPasses(
            (), (_record(graph, f"everything: {gigabytes(needed)} do not fit; no table is read by rows"),)
        )
    found = _Forms(graph, costs, options, room, host.capacity_bytes).found(tables)
    if isinstance(found, Refusal):
        if requested != "auto":
            raise TargetError(found.reason, "choose a larger machine, or another value of --tables")
        return ChosenPasses((), (_record(graph, f"everything: {found.reason}"),))
    best = min(found, key=lambda form: form.time_us)
    prices = ", ".join(f"{form.access} {form.time_us:,.1f} us" for form in found)
    parts = f" in {best.parts} parts" if best.parts > 1 else ""
    text = f"{best.access}{parts}: {gigabytes(best.needed_bytes)} of {gigabytes(room)} at the peak; {prices}"
    names = ", ".join(step.table for step in best.passes if isinstance(step, PlaceFeatures))
    return ChosenPasses(best.passes, (_record(graph, f"{names}: {text}"),))


def has_room(plan: Plan, graph: Graph, costs: Costs) -> bool:
    """Whether the graph as rewritten by a plan fits into the GPU's memory, if the target says how large that is.

    Concurrent nodes need their memory at the same time: a plan may need more than the nodes one after the other.
    """
    memory = costs.target.memory
    if memory is None:
        return True
    return gpu_bytes(plan_memory(_run(rewrites(plan, costs), graph))) <= memory.gpu.usable_bytes


def _record(graph: Graph, note: str) -> PassRecord:
    return PassRecord(PlaceFeatures.name, 0.0, False, len(graph.nodes), (note,))


def _tables(graph: Graph) -> Iterator[str]:
    """Inputs and constants that are read by rows, the largest first; in a graph network also any matrix that is an
    input."""
    given = [*(name for name in graph.inputs if graph.users(name)), *graph.constants]
    sparse = any(node.op.is_sparse for node in graph.nodes)
    for name in sorted(given, key=lambda name: -_bytes(graph, name)):
        rank, users = len(graph.value(name).shape or ()), graph.users(name)
        by_rows = all((node.op.is_sparse or reads_rows(node)) and node.inputs.index(name) == 0 for node in users)
        of_vertices = name in graph.inputs and rank == 2 and sparse
        if rank >= 2 and name not in graph.outputs and (by_rows or of_vertices):
            yield name


def _bytes(graph: Graph, name: str) -> int:
    value = graph.value(name)
    return value.elements * (element_bytes(value.dtype) or 0)


def _cut_readers(graph: Graph, table: str) -> list[Node]:
    """The readers of a table that may be cut into parts: all that do not just read rows of it."""
    return [node for node in graph.users(table) if not (reads_rows(node) and node.inputs[0] == table)]


def _most_freed(graph: Graph, table: str) -> int:
    """An upper bound on the bytes of the GPU's memory that a table frees if it leaves: its own, those of indices and
    other constants of its readers, and those of values that are cut with these."""
    names = {table: None}
    for reader in graph.users(table):
        names.update((name, None) for name in reader.inputs if graph.is_constant(name))
    for reader in _cut_readers(graph, table):
        names.update(dict.fromkeys(_chained(graph, reader)))
    return sum(graph.stored_bytes(name) if graph.is_constant(name) else _aligned(graph, name) for name in names)


def _chained(graph: Graph, node: Node) -> Iterator[str]:
    """The values that may be cut together with a node: its outputs, and what the sole readers of these make of them."""
    yield from filter(None, node.outputs)
    while len(node.outputs) == 1 and len(graph.users(node.output)) == 1:
        (node,) = graph.users(node.output)
        yield from filter(None, node.outputs)


def _aligned(graph: Graph, name: str) -> int:
    return -(-_bytes(graph, name) // ALIGNMENT) * ALIGNMENT


def _live_bytes(memory: MemoryPlan) -> int:
    """What is alive at the peak, and the weights: a lower bound on the bytes needed, however the arena is packed."""
    return memory.live_bytes + memory.weight_bytes


class _Forms:
    """Tries placements for one graph."""

    def __init__(self, graph: Graph, costs: CostModel, options: Options, room: int, host_room: int) -> None:
        self._graph, self._costs, self._room, self._host_room = graph, costs, room, host_room
        self._accesses = ACCESSES[options.tables]
        self._fastest = Fastest.of(costs, options)
        self._made: dict[int, tuple[int, Graph]] = {}  # by parts: the number of tables placed, and the graph

    def found(self, tables: Sequence[str]) -> list[Form] | Refusal:
        """Placements that fit, one per access, with as few tables in the host's memory as possible; or why there are
        none."""
        sizes = [*accumulate(_bytes(self._graph, name) for name in tables)]
        freed = [*accumulate((_most_freed(self._graph, name) for name in tables), initial=0)]
        most, needed = bisect_right(sizes, self._host_room), []
        live = _live_bytes(memory_in_order(self._graph, self._costs))
        count = max(self._next(0, live, freed), self._fewest(tables))
        while count <= most:
            tried = self._of(tables[:count])
            fitting = [form for form in tried if form.needed_bytes <= self._room]
            if fitting:
                return fitting
            needed += [form.needed_bytes for form in tried]
            count = self._next(count, min(form.live_bytes for form in tried), freed)
        if most < len(tables):
            reason = f"tables of {gigabytes(sizes[most])} do not fit into the host's {gigabytes(self._host_room)}"
            return Refusal(reason, sizes[most], self._host_room, "bytes of the host's memory")
        least = min(needed)
        reason = f"with tables in the host's memory the GPU needs {gigabytes(least)}, {gigabytes(least - self._room)}"
        return Refusal(f"{reason} more than it has", least, self._room, "bytes of the GPU's memory")

    def _fewest(self, tables: Sequence[str]) -> int:
        """The fewest tables beside which the other constants fit; all if they never do."""
        graph = self._graph
        stored = (graph.stored_bytes(name) if graph.is_constant(name) else 0 for name in tables)
        missing = graph.constant_bytes - self._room
        return min(bisect_left([*accumulate(stored, initial=0)], missing), len(tables))

    def _next(self, count: int, live_bytes: int, freed: Sequence[int]) -> int:
        """The next number of tables to try after one that does not fit: the least that may free what is missing. If
        none does, all tables, for the sake of the message, and then one more than there are.

        Args:
            count: the number that does not fit.
            live_bytes: what is alive at the peak with that number of tables in the host's memory.
            freed: by number of tables, the most bytes that they free.
        """
        every = len(freed) - 1
        enough = max(count + 1, bisect_left(freed, freed[count] + live_bytes - self._room))
        return min(enough, every if count < every else every + 1)

    def _of(self, tables: Sequence[str]) -> list[Form]:
        """Placements with ever more parts, until some fit or more parts hardly help."""
        tried: list[Form] = []
        parts, least = 1, math.inf
        while True:
            forms = self._in_parts(tables, parts)
            tried += forms
            needed = min(form.needed_bytes for form in forms)
            is_last = parts >= _MAX_PARTS or not any(_cut_readers(self._graph, name) for name in tables)
            if needed <= self._room or needed > _WORTH_CUTTING * least or is_last:
                return tried
            least, parts = needed, 2 * parts

    def _in_parts(self, tables: Sequence[str], parts: int) -> list[Form]:
        """A placement for every access: the graphs differ only in that."""
        made = _run(MARKS, self._placed(tables, parts))
        return [self._form(_passes(tables, access, parts), made, access, parts) for access in self._accesses]

    def _placed(self, tables: Sequence[str], parts: int) -> Graph:
        """The graph with some tables in the host's memory, before marking; it continues from fewer of them."""
        count, graph = self._made.get(parts, (0, self._graph))
        graph = _run([PlaceFeatures(name, self._accesses[0], parts) for name in tables[count:]], graph)
        self._made[parts] = (len(tables), graph)
        return graph

    def _form(self, passes: tuple[Pass, ...], made: Graph, access: str, parts: int) -> Form:
        graph = made.replace(nodes=[_fetching(node, access) for node in made.nodes])
        memory = memory_in_order(graph, self._costs)
        needed = gpu_bytes(memory)
        time_us = self._fastest.us(graph) if needed <= self._room else 0.0
        return Form(passes, access, parts, needed, _live_bytes(memory), time_us)


def _passes(tables: Sequence[str], access: str, parts: int) -> tuple[Pass, ...]:
    return (*(PlaceFeatures(name, access, parts) for name in tables), *MARKS)


def _run(passes: Sequence[Pass], graph: Graph) -> Graph:
    for step in passes:
        graph = step.run(graph).graph
    return graph


def _fetching(node: Node, access: str) -> Node:
    if node.placement.access is None:
        return node
    return replace(node, placement=replace(node.placement, access=access))
