"""The interface between the compiler and the host of a machine: the unit that can run every node."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from pimflow.codegen.answers import Cost, Parts, Roof, Way
from pimflow.ir import Array, Graph, Node, Op
from pimflow.sparse import Graph as Edges


class HostCost(Cost, Protocol):
    """The cost of a node on the host, with a breakdown of its time."""

    @property
    def time_parts_us(self) -> Parts:
        """Microseconds by what the host waits for: of overlapping activities, only the longest one."""

    @property
    def bytes(self) -> int:
        """Bytes of memory traffic."""


class HostBackend(ABC):
    """The unit that can run every node; ONNX Runtime computes its values.

    Args:
        device: the unit's name in the target.
        spec: the unit's description in the target.
    """

    title: ClassVar[str]
    """The name of the unit in traces and charts."""

    def __init__(self, device: str, spec: Any) -> None:
        self.device = device
        self.spec = spec

    @property
    def identity(self) -> str:
        """Everything that its prices depend on apart from the spec, as text: part of the price cache's scope."""
        return ""

    @property
    def asymmetric_padding(self) -> bool:
        """Whether its convolutions can pad one side of their input more than the other."""
        return True

    @property
    def queues_launches(self) -> bool:
        """Whether a kernel can be launched while the unit still waits for the kernel's input."""
        return False

    @property
    def persistent_stages(self) -> bool:
        """Whether all stages of a node in a pipeline run in one kernel."""
        return False

    @property
    @abstractmethod
    def element_bytes(self) -> int:
        """Bytes of a floating-point element in its memory, regardless of the model's type."""

    @property
    @abstractmethod
    def roof(self) -> Roof:
        """Peak throughput of matrix products, and bandwidth of its memory channels, before any efficiency factor."""

    @abstractmethod
    def without_channels(self, taken: int) -> HostBackend:
        """The same unit without `taken` of its memory channels, which serve others."""

    @abstractmethod
    def cost(self, graph: Graph, node: Node) -> HostCost:
        """The cost of one node of a graph."""

    def unknown(self, graph: Graph, node: Node) -> str:
        """The part that is missing from the cost of a node, and why; "" if none is."""
        return ""

    def algorithm(self, graph: Graph, node: Node) -> str:
        """The algorithm that it chooses for a node; "" if there is only one, or it is the usual one."""
        return ""

    def ways(self, graph: Graph, node: Node) -> tuple[Way, ...]:
        """The ways to run a node, the usual one first; empty if there is only one."""
        return ()

    def execute(self, graph: Graph, node: Node, inputs: Sequence[Array | None]) -> Array:
        """The result of a node that has an `algorithm`, computed by that algorithm.

        Raises:
            ValueError: the node has none.
        """
        raise ValueError(f"{node.name!r} runs in the usual way")

    def workspace_elements(self, graph: Graph, node: Node) -> int:
        """Elements of temporary memory for a node's kernels, apart from its results; freed when the node ends."""
        return 0

    def measured_us(self, op: Op) -> float:
        """The shortest measured time of any kernel with the name of this op; infinite if none was measured."""
        return math.inf

    @abstractmethod
    def copy_cost(self, moved_bytes: int, dtype: str) -> HostCost:
        """The cost of a movement that remains: `moved_bytes` read and written in total, in the model's element type."""

    def cost_as_exported(self, edges: Edges, width: int, weighted: bool) -> HostCost | None:
        """The cost of an aggregation as exporters write it, operator by operator; None if that is not modelled.

        Args:
            edges: the graph of the aggregation.
            width: features per vertex.
            weighted: whether edges have weights.
        """
        return None

    @abstractmethod
    def static_energy_mj(self, time_us: float) -> float:
        """The energy that the board draws over a run in any case."""
