"""Executes the nodes of units by value, through the units' programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pimflow.codegen.backend import Backend
from pimflow.errors import GraphError
from pimflow.ir import Array, Graph, Node


class UnitExecutor:
    """Runs nodes placed on units through the units' programs; an argument of `run_in_arena`.

    Args:
        graph: the graph whose nodes are run.
        programs: the units' programs, by node name.
        units: backends by device.
        operand: the element type that operands are rounded to; None for each unit's own.
        progress: receives a line of text per node.
    """

    def __init__(
        self,
        graph: Graph,
        programs: Mapping[str, Any],
        units: Mapping[str, Backend[Any, Any]],
        operand: str | None,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.graph = graph
        self.programs = programs
        self.units = units
        self.operand = operand
        self.progress = progress

    def runs(self, node: Node) -> bool:
        """Whether the node is placed on one of the units."""
        return node.device in self.units

    def __call__(self, node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        """The node's one result, from its dense operands.

        Raises:
            GraphError: the node has no program.
        """
        if node.name not in self.programs:
            raise GraphError(f"node {node.name!r} has no program for {node.device}")
        unit = self.units[node.device or ""]
        self.progress(f"executing {node.name} on {unit.device.upper()}")
        return [unit.execute(self.programs[node.name], self.graph, node, inputs, unit.operand_of(node, self.operand))]
