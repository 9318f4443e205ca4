"""What a graph's values take of the memory tiers that a target states."""

from __future__ import annotations

from dataclasses import asdict
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from pimflow.ir import Graph, Node
from pimflow.ir.analysis.host_tables import fetches
from pimflow.ir.analysis.tensor_layout import element_bytes
from pimflow.records import dataclass
from pimflow.runtime.features import Access
from pimflow.runtime.memory.plan import MemoryPlan
from pimflow.targets.schema import GpuMemory

if TYPE_CHECKING:
    from pimflow.runtime.memory.in_flight import MemoryInFlight
    from pimflow.runtime.steady_state import SteadyState

_LARGEST = 3
"""So many of what a memory has no room for are named."""


def gpu_bytes(plan: MemoryPlan) -> int:
    """What weights, and activations at their peak, take of the GPU's memory, in the model's element types."""
    return plan.arena_bytes + plan.weight_bytes


def gpu_memory_text(
    memory: GpuMemory, plan: MemoryPlan, in_flight: tuple[SteadyState, MemoryInFlight] | None = None
) -> str:
    """How much of the GPU's memory a plan takes, and by how much it passes it; with all that is in flight."""
    needed, usable = gpu_bytes(plan), memory.usable_bytes
    what, when = "weights and activations", " at their peak"
    if in_flight is not None:
        steady, arena = in_flight
        needed = arena.arena_bytes + plan.weight_bytes
        what, when = f"weights and activations of {steady.in_flight} in flight", ""
    if needed <= usable:
        return f"{gigabytes(needed)} of {gigabytes(usable)} taken, {what}{when}"
    short = f"{gigabytes(usable)} for them, {gigabytes(needed - usable)} short"
    largest = ", ".join(f"{name} {gigabytes(size)}" for name, size in largest_at_peak(plan))
    return f"DOES NOT FIT: {what} take {gigabytes(needed)}{when}, the GPU has {short}; largest there: {largest}"


def largest_at_peak(plan: MemoryPlan) -> list[tuple[str, int]]:
    """The weights, if there are any, and the largest pieces of the arena at the step with most: three at most.

    A piece is called by the first value in it, or by the node whose workspace it is.
    """
    change = [0] * (plan.steps + 1)
    for region in plan.regions:
        change[region.first] += region.bytes
        change[region.last + 1] -= region.bytes
    alive = list(accumulate(change))
    peak = alive.index(max(alive))
    names = {index: name for name, index in reversed(list(plan.workspaces.items()))}
    names |= {place.region: name for name, place in reversed(list(plan.places.items()))}
    found = [
        (names.get(index, "a workspace"), region.bytes)
        for index, region in enumerate(plan.regions)
        if region.first <= peak <= region.last
    ]
    found += [("weights", plan.weight_bytes)] * bool(plan.weight_bytes)
    return sorted(found, key=lambda item: -item[1])[:_LARGEST]


class _PricesAccesses(Protocol):
    def access(self, graph: Graph, node: Node) -> Access:
        """What a node takes to bring rows of a table."""


@dataclass(frozen=True)
class HostTable:
    """A table that lies in the host's memory.

    Args:
        table: its value.
        bytes: of the table.
        access: how rows of it come.
        reads: by how many nodes.
        bytes_read: of the rows that come, at every run.
        requests: of the GPU's threads for them, over the link.
        time_us: of all these.
    """

    table: str
    bytes: int
    access: str
    reads: int
    bytes_read: int
    requests: int
    time_us: float

    @property
    def text(self) -> str:
        """One line."""
        reads = f"{gigabytes(self.bytes_read)} in {self.reads} read{'s' if self.reads > 1 else ''}"
        lies = f"{self.table}: {gigabytes(self.bytes)} in the host's memory"
        return f"{lies}, {self.access}: {reads}, {self.time_us:,.1f} us"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def host_tables(graph: Graph, costs: _PricesAccesses) -> tuple[HostTable, ...]:
    """The tables of a graph that lie in the host's memory, by the order in which they are first read."""
    readers: dict[tuple[str, str], list[Node]] = {}
    for node in fetches(graph):
        readers.setdefault((node.inputs[0], node.placement.access or ""), []).append(node)
    found = []
    for (name, access), nodes in readers.items():
        value, accesses = graph.value(name), [costs.access(graph, node) for node in nodes]
        size = value.elements * (element_bytes(value.dtype) or 0)
        amounts = (sum(one.bytes for one in accesses), sum(one.requests for one in accesses))
        found.append(HostTable(name, size, access, len(nodes), *amounts, sum(one.time_us for one in accesses)))
    return tuple(found)


def gigabytes(amount: int) -> str:
    """Bytes as text, in GB; small amounts in MB."""
    return f"{amount / 1e9:,.2f} GB" if amount >= 1e8 else f"{amount / 1e6:,.2f} MB"
