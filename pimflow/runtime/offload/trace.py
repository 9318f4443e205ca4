"""`Trace`: the kernels of a training step in order, and the memory planner's buffers that they access."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

from pimflow.errors import ModelError
from pimflow.ir import Graph, Node
from pimflow.onnxio.folding import is_random
from pimflow.records import dataclass
from pimflow.runtime.costs import CostModel
from pimflow.runtime.memory.plan import MemoryPlan, plan_memory
from pimflow.runtime.timeline import build_timeline


@dataclass(frozen=True)
class Kernel:
    """A node of the step: its run time, and the buffers (by number) that it reads and writes.

    Views, and other movements that do nothing, read their source and write nothing. A node that is fused into another's
    kernel takes no time; that kernel reads and writes in its place. A kernel that draws random numbers would draw
    different ones in a rerun, so no plan runs it again.
    """

    name: str
    time_us: float
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    draws: bool = False


@dataclass(frozen=True)
class Buffer:
    """A region of the arena with all values that share it, including views and values computed in place.

    Args:
        name: its first value.
        bytes: its size.
        elements: number of elements of its largest value.
        fixed: whether it is an input or a result of the step: it is in memory throughout, and is not an activation.
    """

    name: str
    bytes: int
    elements: int
    fixed: bool = False


@dataclass(frozen=True)
class Trace:
    """A training step as a machine executes it.

    Args:
        kernels: in the order in which they run, one after the other.
        turn: number of kernels in the forward pass.
        buffers: the buffers that they access.
        modules: kernels of the forward pass at which a module begins: the contractions.
        input_kernels: number of kernels at the start that provide inputs: they do not run again.
    """

    kernels: tuple[Kernel, ...]
    turn: int
    buffers: tuple[Buffer, ...]
    modules: tuple[int, ...] = ()
    input_kernels: int = 0

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """For each buffer, the kernels that access it, in order."""
        uses: list[list[int]] = [[] for _ in self.buffers]
        for place, kernel in enumerate(self.kernels):
            for buffer in {*kernel.reads, *kernel.writes}:
                uses[buffer].append(place)
        return tuple(map(tuple, uses))

    @cached_property
    def accessed(self) -> tuple[tuple[int, ...], ...]:
        """For each kernel, the buffers that it accesses, without the fixed ones."""
        return tuple(
            tuple(buffer for buffer in {*kernel.reads, *kernel.writes} if not self.buffers[buffer].fixed)
            for kernel in self.kernels
        )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each buffer."""
        return tuple(buffer.bytes for buffer in self.buffers)

    @cached_property
    def working_set_bytes(self) -> int:
        """The most bytes that any kernel accesses: a lower bound on the memory of every plan."""
        return max((sum(self.buffers[buffer].bytes for buffer in touched) for touched in self.accessed), default=0)

    @cached_property
    def ends(self) -> tuple[tuple[int, ...], ...]:
        """For each kernel, the buffers that it is the last to access, without the fixed ones."""
        ends: list[list[int]] = [[] for _ in self.kernels]
        for buffer, places in enumerate(self.uses):
            if places and not self.buffers[buffer].fixed:
                ends[places[-1]].append(buffer)
        return tuple(map(tuple, ends))

    @cached_property
    def begins(self) -> tuple[tuple[int, ...], ...]:
        """For each kernel, the buffers that it is the first to access, without the fixed ones."""
        return tuple(
            tuple(buffer for buffer in touched if self.uses[buffer][0] == place)
            for place, touched in enumerate(self.accessed)
        )

    @cached_property
    def live_before_bytes(self) -> tuple[int, ...]:
        """Live bytes before each kernel, and after the last one, if everything is kept."""
        begun, ended = ([sum(self.sizes[b] for b in buffers) for buffers in each] for each in (self.begins, self.ends))
        return tuple(accumulate((more - less for more, less in zip(begun, ended, strict=True)), initial=0))

    @cached_property
    def live_with_bytes(self) -> tuple[int, ...]:
        """Live bytes once each kernel's buffers are allocated, if everything is kept."""
        begun = (sum(self.sizes[buffer] for buffer in buffers) for buffers in self.begins)
        return tuple(before + more for before, more in zip(self.live_before_bytes, begun, strict=False))

    @cached_property
    def live_during_bytes(self) -> tuple[int, ...]:
        """Live bytes during each kernel if everything is kept; a negative number for kernels that take no time."""
        return tuple(
            live if time_us > 0 else -sys.maxsize
            for live, time_us in zip(self.live_with_bytes, self.times_us, strict=True)
        )

    @cached_property
    def times_us(self) -> tuple[float, ...]:
        """The time of each kernel."""
        return tuple(kernel.time_us for kernel in self.kernels)

    @cached_property
    def ends_us(self) -> tuple[float, ...]:
        """The end of each kernel if none waits and none runs again."""
        return tuple(accumulate(self.times_us))

    @cached_property
    def saved(self) -> tuple[int, ...]:
        """Buffers that the forward pass writes and the backward pass reads, in the order of their first use."""
        found = [
            buffer
            for buffer, places in enumerate(self.uses)
            if places and not self.buffers[buffer].fixed and places[0] < self.turn <= places[-1]
        ]
        return tuple(sorted(found, key=lambda buffer: (self.uses[buffer][0], buffer)))

    def last_write(self, buffer: int) -> int:
        """The last kernel of the forward pass that writes a saved buffer: from then on it may be stored."""
        return self._stay[buffer][0]

    def last_forward_use(self, buffer: int) -> int:
        """The last kernel of the forward pass that accesses a saved buffer."""
        return self._stay[buffer][1]

    def first_backward_use(self, buffer: int) -> int:
        """The first kernel of the backward pass that accesses a saved buffer."""
        return self._stay[buffer][2]

    @cached_property
    def _stay(self) -> dict[int, tuple[int, int, int]]:
        stay = {}
        for buffer in self.saved:
            places = self.uses[buffer]
            ahead = [place for place in places if place < self.turn]
            made = [place for place in ahead if buffer in self.kernels[place].writes]
            stay[buffer] = (max(made, default=ahead[0]), ahead[-1], places[len(ahead)])
        return stay

    @property
    def saved_bytes(self) -> int:
        """The total bytes of the saved buffers."""
        return sum(self.buffers[buffer].bytes for buffer in self.saved)

    @cached_property
    def time_us(self) -> float:
        """The time of all kernels."""
        return sum(self.times_us)

    @cached_property
    def forward_us(self) -> float:
        """The time of the forward pass."""
        return sum(self.times_us[: self.turn])


def trace_of(graph: Graph, forward: Sequence[str] | frozenset[str], costs: CostModel) -> Trace:
    """The trace of a training step on the host.

    Args:
        graph: the step, cleaned up like every graph that is priced.
        forward: names of the nodes of its forward pass.
        costs: prices its nodes.

    Raises:
        ModelError: the size of a value depends on data.
    """
    plan = plan_memory(graph)
    unknown = [name for name in plan.outside if graph.value(name).shape is None]
    if unknown:
        raise ModelError(f"the size of {unknown[0]!r} depends on data, so its activations cannot be planned")
    host = costs.host_only()
    times = build_timeline(graph, costs.target, host).region_us
    fixed = plan.regions_of((*graph.inputs, *graph.outputs))
    names: dict[int, str] = {}
    elements: dict[int, int] = {}
    for name, spot in plan.places.items():
        names.setdefault(spot.region, name)
        elements[spot.region] = max(elements.get(spot.region, 0), graph.value(name).elements)
    buffers = tuple(
        Buffer(names[index], region.bytes, elements[index], index in fixed) for index, region in enumerate(plan.regions)
    )

    accesses = _accesses(graph, plan)
    kernels = tuple(
        Kernel(node.name, time_us, *accesses[node.name], is_random(node.op))
        for node, time_us in zip(graph.nodes, times, strict=True)
    )
    turn = max((place + 1 for place, kernel in enumerate(kernels) if kernel.name in forward), default=0)
    modules = tuple(place for place, node in enumerate(graph.nodes[:turn]) if node.op.is_contraction)
    return Trace(kernels, turn, buffers, modules)


def _accesses(graph: Graph, plan: MemoryPlan) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """By node, the regions that its kernel reads and those that it writes.

    A kernel accesses what the nodes fused into it do, except for values that only these nodes compute and read: they
    stay in registers. If a fused node reads something that is computed later than the kernel's first node, as sums with
    a second tensor may, each node accesses its own values.
    """
    reads = {node.name: plan.regions_of(node.inputs) for node in graph.nodes}
    writes = {node.name: plan.regions_of(written(node, plan)) for node in graph.nodes}
    kernels: dict[str, list[Node]] = {}
    users: dict[int, set[str]] = {}
    for node in graph.nodes:
        root = node.placement.fused_into or node.name
        kernels.setdefault(root, []).append(node)
        for region in (*reads[node.name], *writes[node.name]):
            users.setdefault(region, set()).add(root)
    fixed = plan.regions_of((*graph.inputs, *graph.outputs))
    for root, nodes in kernels.items():
        if len(nodes) == 1 or not _reads_what_is_there(graph, nodes):
            continue
        made = {name for node in nodes for name in node.outputs}
        given = dict.fromkeys(name for node in nodes for name in node.inputs if name not in made)
        inside = {region for node in nodes for region in writes[node.name] if users[region] == {root}} - fixed.keys()
        left = dict.fromkeys(region for node in nodes for region in writes[node.name] if region not in inside)
        for node in nodes:
            reads[node.name], writes[node.name] = {}, {}
        reads[root], writes[root] = plan.regions_of(given), left
    return {name: (tuple(reads[name]), tuple(writes[name])) for name in reads}


def _reads_what_is_there(graph: Graph, nodes: Sequence[Node]) -> bool:
    """Whether all that the nodes of a kernel read from others is computed before the first of them."""
    names, first = {node.name for node in nodes}, graph.position[nodes[0].name]
    producers = (graph.producer(name) for node in nodes for name in node.inputs if name)
    return all(made is None or made.name in names or graph.position[made.name] < first for made in producers)


def written(node: Node, plan: MemoryPlan) -> tuple[str, ...]:
    """The values that a node writes when it runs in an arena."""
    movement = plan.movements.get(node.name)
    return () if movement is not None and movement.free else node.outputs
