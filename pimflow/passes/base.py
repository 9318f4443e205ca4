"""What a pass is: a frozen dataclass whose fields are its options, from a graph to a graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from pimflow.ir import Graph


@dataclass(frozen=True)
class PassResult:
    """What a pass made.

    Args:
        graph: the new graph; the given one if nothing changed.
        changed: whether anything did.
        notes: why the pass did not apply where one might expect it to, each "node: reason".
    """

    graph: Graph
    changed: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pass(ABC):
    """One rewrite. Graphs in, graphs out; nothing is changed behind the caller.

    Attributes:
        name: the name by which people call the pass, in kebab-case.
        required: whether what comes after depends on the pass, so that it may not be disabled.
    """

    name: ClassVar[str]
    required: ClassVar[bool] = False

    @abstractmethod
    def run(self, graph: Graph) -> PassResult:
        """Rewrites the graph.

        Raises:
            PimflowError: the options ask for something that this graph does not allow.
        """
