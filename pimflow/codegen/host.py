"""What the compiler asks of the host of a machine: the unit that can run every node."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from pimflow.codegen.answers import Cost, Parts, Roof, Way
from pimflow.ir import Array, Graph, Node, Op
from pimflow.sparse import Graph as Edges


class HostCost(Cost, Protocol):
    """What a node costs on the host, with where its time goes."""

    @property
    def time_parts_us(self) -> Parts:
        """Microseconds by what the host waits for: of what overlaps only what takes longest."""

    @property
    def bytes(self) -> int:
        """What passes its memory."""


class HostBackend(ABC):
    """The unit that can run every node; ONNX Runtime computes its values.

    Args:
        device: the unit's name in the target.
        spec: what the target says of it.
    """

    title: ClassVar[str]
    """What the unit is called in traces and charts."""

    def __init__(self, device: str, spec: Any) -> None:
        self.device = device
        self.spec = spec

    @property
    def identity(self) -> str:
        """All that its prices depend on beside the spec, as text: part of the price cache's scope."""
        return ""

    @property
    def asymmetric_padding(self) -> bool:
        """Whether its convolutions can pad one side of their input more than the other."""
        return True

    @property
    def queues_launches(self) -> bool:
        """Whether a kernel is launched while the unit waits for what the kernel reads."""
        return False

    @property
    def persistent_stages(self) -> bool:
        """Whether all stages of a node in a pipeline run in one kernel."""
        return False

    @property
    @abstractmethod
    def element_bytes(self) -> int:
        """Bytes of a floating-point element in its memory, whatever the model says."""

    @property
    @abstractmethod
    def roof(self) -> Roof:
        """Peaks of products of matrices, and of its memory channels, before any efficiency."""

    @abstractmethod
    def left_with(self, taken: int) -> HostBackend:
        """The same unit while `taken` of its memory channels serve others."""

    @abstractmethod
    def cost(self, graph: Graph, node: Node) -> HostCost:
        """What one node of a graph costs."""

    def unknown(self, graph: Graph, node: Node) -> str:
        """What the cost of a node leaves out, and why; "" if nothing."""
        return ""

    def algorithm(self, graph: Graph, node: Node) -> str:
        """Which of several ways to run a node it takes; "" where there is one, or it takes the usual one."""
        return ""

    def ways(self, graph: Graph, node: Node) -> tuple[Way, ...]:
        """The usual way to run a node, and the others that there are; none where there is one."""
        return ()

    def execute(self, graph: Graph, node: Node, inputs: Sequence[Array | None]) -> Array:
        """The result of a node that has an `algorithm`, by value, as that makes it.

        Raises:
            ValueError: it has none.
        """
        raise ValueError(f"{node.name!r} runs in the usual way")

    def workspace_elements(self, graph: Graph, node: Node) -> int:
        """Elements of what a node's kernels put down beside its results, and need no longer when it ends."""
        return 0

    def measured_us(self, op: Op) -> float:
        """The shortest time that was measured of any kernel of an op's name; infinite if none was."""
        return math.inf

    @abstractmethod
    def copy_cost(self, moved_bytes: int, dtype: str) -> HostCost:
        """What a movement that stays costs: `moved_bytes` read and written in all, in the model's element type."""

    def cost_as_exported(self, edges: Edges, width: int, weighted: bool) -> HostCost | None:
        """What an aggregation would cost as exporters write it, operator by operator; None if that is not modelled.

        Args:
            edges: the graph that is aggregated over.
            width: features of a vertex.
            weighted: whether edges have weights.
        """
        return None

    @abstractmethod
    def static_energy_mj(self, time_us: float) -> float:
        """What the board draws over a run, whatever it does."""
