"""How much of the GPU's memory a graph needs, and whether it fits, before a plan is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pimflow.ir import Graph
from pimflow.ir.analysis.tensor_layout import element_bytes
from pimflow.records import NamedTuple
from pimflow.runtime.costs import CostModel
from pimflow.runtime.memory import ALIGNMENT, MemoryPlan, plan_memory
from pimflow.runtime.memory.tiers import gpu_bytes
from pimflow.search.fastest import Fastest
from pimflow.search.order import execution_order


class Price(NamedTuple):
    """The cost of a form of a graph: first whether it exceeds the GPU's memory, and by how much, if that is counted;
    then its time."""

    is_too_large: bool
    us: float
    missing_bytes: int = 0

    @classmethod
    def of_step(cls, most: int, needed: Callable[[], int], us: float, costs: CostModel) -> Price:
        """The price of a training step.

        Args:
            most: an upper bound on the bytes of the GPU's memory that it needs.
            needed: computes how many these are, in case the bound does not fit.
            us: its time.
            costs: of the machine.
        """
        return cls(not (_has_room(most, costs) or _has_room(needed(), costs)), us)

    @classmethod
    def of(cls, graph: Graph, fastest: Fastest) -> Price:
        """The price with every node on the device that runs it fastest."""
        return cls(not _fits(graph, fastest.costs), fastest.us(graph))

    @property
    def rank(self) -> tuple[bool, int, float]:
        """What prices are compared by: times that differ only because they were added up in another way are equal."""
        return self.is_too_large, self.missing_bytes, float(f"{self.us:.12g}")

    @property
    def text(self) -> str:
        """The time, and a remark if it does not fit."""
        return f"{self.us:.2f} us{' (does not fit into the memory of the GPU)' * self.is_too_large}"


def needed_bytes(graph: Graph, costs: CostModel) -> int:
    """The GPU's peak memory use with the nodes run one after the other, in the order of plans."""
    return gpu_bytes(memory_in_order(graph, costs))


def memory_in_order(graph: Graph, costs: CostModel) -> MemoryPlan:
    """The memory of a graph whose nodes run one after the other, in the order of plans."""
    ordered = graph.replace(nodes=execution_order(graph))
    return plan_memory(ordered, costs.host_only().workspaces(ordered))


def _fits(graph: Graph, costs: CostModel) -> bool:
    """Whether a graph fits into the GPU's memory; always true if the target does not say how large it is."""
    return _has_room(_bytes_of_all(graph, costs), costs) or _has_room(needed_bytes(graph, costs), costs)


def _has_room(needed: int, costs: CostModel) -> bool:
    """Whether this many bytes fit."""
    memory = costs.target.memory
    return memory is None or needed <= memory.gpu.usable_bytes


def _bytes_of_all(graph: Graph, costs: CostModel) -> int:
    """The sum of all values and workspaces: an upper bound on any peak."""
    return bytes_of_values(graph) + _aligned(costs.host_only().workspaces(graph).values())


def bytes_of_values(graph: Graph) -> int:
    """The sum of all values, constants included: an upper bound on any peak without workspaces."""
    return _aligned(value.elements * (element_bytes(value.dtype) or 0) for value in graph.values.values())


def _aligned(sizes: Iterable[int]) -> int:
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)
