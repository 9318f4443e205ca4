"""What a pass is: a frozen dataclass whose fields are its options, from a graph to a graph."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass

from pimflow.ir import Graph

_WORD_START = re.compile(r"(?<!^)(?=[A-Z])")


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
    """One rewrite. Graphs in, graphs out; nothing is changed behind the caller."""

    @property
    def name(self) -> str:
        """The pass's name on the command line: its class name in kebab-case."""
        return _WORD_START.sub("-", type(self).__name__).lower()

    @abstractmethod
    def run(self, graph: Graph) -> PassResult:
        """Rewrites the graph."""
