"""What a graph takes of the GPU's memory, and whether it has room there, before a plan is made."""

from __future__ import annotations

from typing import NamedTuple

from pimflow.ir import Graph
from pimflow.ir.analysis.tensor_layout import element_bytes
from pimflow.runtime.costs import CostModel
from pimflow.runtime.memory import ALIGNMENT, plan_memory
from pimflow.runtime.memory.tiers import gpu_bytes
from pimflow.search.fastest import Fastest
from pimflow.search.order import execution_order


class Price(NamedTuple):
    """What a form of a graph costs: first whether the GPU's memory has no room for it, then its time."""

    is_too_large: bool
    us: float

    @classmethod
    def of_step(cls, needed: int, us: float, costs: CostModel) -> Price:
        """Of a training step that needs so many bytes of that memory."""
        return cls(not _has(needed, costs), us)

    @classmethod
    def of(cls, graph: Graph, fastest: Fastest) -> Price:
        """With every node on the device that runs it fastest."""
        return cls(not _fits(graph, fastest.costs), fastest.us(graph))

    @property
    def text(self) -> str:
        """The time, and whether it does not fit."""
        return f"{self.us:.2f} us{' (more than the memory of the GPU holds)' * self.is_too_large}"


def needed_bytes(graph: Graph, costs: CostModel) -> int:
    """What the GPU holds at the peak, nodes one after the other in the order in which plans run them."""
    ordered = graph.replace(nodes=execution_order(graph))
    return gpu_bytes(plan_memory(ordered, costs.host_only().workspaces(ordered)))


def _fits(graph: Graph, costs: CostModel) -> bool:
    """Whether that fits into the GPU's memory; always where the target does not say how large it is."""
    return _has(_bytes_of_all(graph, costs), costs) or _has(needed_bytes(graph, costs), costs)


def _has(needed: int, costs: CostModel) -> bool:
    """Whether so many bytes fit."""
    memory = costs.target.memory
    return memory is None or needed <= memory.gpu.usable_bytes


def _bytes_of_all(graph: Graph, costs: CostModel) -> int:
    """Of all values and workspaces side by side, which no peak is above."""
    values = [value.elements * (element_bytes(value.dtype) or 0) for value in graph.values.values()]
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in (*values, *costs.host_only().workspaces(graph).values()))
