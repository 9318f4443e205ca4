"""The base of passes that cut nodes up by rows: they carry out a layout."""

from __future__ import annotations

from abc import abstractmethod

from pimflow.ir import Graph, Node
from pimflow.ir.refusal import Refusal
from pimflow.passes.decision import DecisionPass, Site
from pimflow.passes.rowwise.parts import Layout
from pimflow.passes.rowwise.writer import PartWriter
from pimflow.records import dataclass


@dataclass(frozen=True)
class RowwisePass(DecisionPass):
    """A decision about which rows of which node are computed where: a layout, which determines the nodes."""

    @abstractmethod
    def layout(self, graph: Graph) -> Layout | Refusal:
        """The parts of the covered nodes, or why they cannot be cut this way."""

    @abstractmethod
    def writer(self, site: Site) -> PartWriter:
        """The writer of the parts."""

    def refusal(self, graph: Graph) -> Refusal | None:
        """Why the nodes cannot be cut this way, or None."""
        layout = self.layout(graph)
        return layout if isinstance(layout, Refusal) else None

    def rewrite(self, site: Site) -> list[Node] | Refusal:
        """The parts, and the Slices and Concats around them."""
        layout = self.layout(site.graph)
        return layout if isinstance(layout, Refusal) else self.writer(site).write(layout)
