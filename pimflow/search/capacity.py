"""What plans store in the memories of units, and where."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol

from pimflow.codegen.answers import Capacity, Kept
from pimflow.ir import Graph, Node
from pimflow.ir.plan import Storage


class Memories(Protocol):
    """The interface that this module needs from a cost model."""

    @property
    def capacities(self) -> Mapping[str, Capacity]:
        """The capacities of the units' memories, by device; units without a limit are left out."""

    def kept(self, graph: Graph, node: Node) -> Kept:
        """What a node that is placed on a unit stores in the unit's memory."""


class Places:
    """The addresses in the units' memories at which the nodes of a placed graph store their data, one after the other.

    Parts of one node share their weights if they arrange them in the same way. Nodes that read the same constants do
    not: one may read them transposed.

    Attributes:
        used: by device, how much is stored so far, in the unit of its capacity.
    """

    def __init__(self, graph: Graph, costs: Memories) -> None:
        self._graph = graph
        self._costs = costs
        self._first: dict[Hashable, int] = {}
        self.used = dict.fromkeys(costs.capacities, 0)

    def of(self, node: Node) -> int:
        """The start of a node's data; 0 on a unit whose memory has no limit."""
        device = node.device or ""
        if device not in self.used:
            return 0
        kept = self._costs.kept(self._graph, node)
        what = (device, node.placement.origin or node.name, self._constants(node), kept.arrangement)
        if what not in self._first:
            self._first[what] = self.used[device]
            self.used[device] += kept.amount
        return self._first[what]

    def _constants(self, node: Node) -> tuple[str, ...]:
        """What a node stores: constants, or a second operand of its own."""
        return tuple(filter(self._graph.is_constant, node.inputs)) or (node.name,)


def kept_by(graph: Graph, costs: Memories) -> dict[str, int]:
    """How much the nodes of a placed graph store in the units' memories, by device, in the unit of its capacity."""
    places = Places(graph, costs)
    for node in graph.nodes:
        places.of(node)
    return places.used


def stored_of(kept: Mapping[str, int], costs: Memories) -> tuple[Storage, ...]:
    """How full a plan makes the units' memories; memories that it does not use are left out."""
    return tuple(
        Storage(device, kept[device], capacity.amount, capacity.unit)
        for device, capacity in costs.capacities.items()
        if kept.get(device)
    )
