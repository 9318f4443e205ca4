"""How a graph's values fit into the memory tiers that a target describes."""

from __future__ import annotations

from dataclasses import asdict
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from pimflow.errors import counted
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
"""How many of the largest values to name if a memory has no room for all."""


def gpu_bytes(plan: MemoryPlan) -> int:
    """GPU memory for the weights, and for the activations at their peak, in the model's element types."""
    return plan.arena_bytes + plan.weight_bytes


def gpu_memory_text(
    memory: GpuMemory, plan: MemoryPlan, in_flight: tuple[SteadyState, MemoryInFlight] | None = None
) -> str:
    """A line on the GPU memory that a plan takes, for all inferences in flight if given, and on any shortage."""
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
    """The three largest among the weights and the pieces of the arena that are alive at the peak.

    A piece is named after its first value, or after the node whose workspace it is.
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
        """The cost of fetching the rows of a table that a node reads."""


@dataclass(frozen=True)
class HostTable:
    """A table in the host's memory.

    Args:
        table: name of its value.
        bytes: size of the table.
        access: how its rows are fetched.
        reads: number of nodes that read it.
        bytes_read: bytes of the rows fetched per run.
        requests: requests of the GPU's threads for them over the link.
        time_us: total time of the reads.
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
        reads = f"{gigabytes(self.bytes_read)} in {counted(self.reads, 'read')}"
        lies = f"{self.table}: {gigabytes(self.bytes)} in the host's memory"
        return f"{lies}, {self.access}: {reads}, {self.time_us:,.1f} us"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def host_tables(graph: Graph, costs: _PricesAccesses) -> tuple[HostTable, ...]:
    """The tables of a graph in the host's memory, in the order of their first reads."""
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
    """An amount of bytes as text, in GB; small amounts in MB."""
    return f"{amount / 1e9:,.2f} GB" if amount >= 1e8 else f"{amount / 1e6:,.2f} MB"
