"""What the passes that carry out decisions share: where they write, and how to run them individually."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import MutableMapping, Sequence
from dataclasses import field

from pimflow.errors import PlanError, did_you_mean
from pimflow.ir import Graph, GraphEditor, Node
from pimflow.ir.analysis.placing import bound_to_host
from pimflow.ir.refusal import Refusal
from pimflow.passes.base import Pass, PassResult
from pimflow.records import dataclass


@dataclass(frozen=True, slots=True)
class Site:
    """Where decisions are carried out.

    Args:
        editor: the graph's editor; receives new values, constants and node names.
        region: the region of the written nodes: the decision's index in its plan, None outside a plan.
        first_parts: receives, for every node that is cut up, the name of its first part.
        cuts: receives, by (value, first row, stop), the name of the value with these rows of one from outside the
            region. Later decisions read it, too: a dense block has the same rows of a value read by many layers.
    """

    editor: GraphEditor
    region: int | None = None
    first_parts: MutableMapping[str, str] = field(default_factory=dict)
    cuts: MutableMapping[tuple[str, int, int], str] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """The graph as it was before any decision was carried out."""
        return self.editor.graph

    def fused_into(self, node: Node) -> str | None:
        """The node that an undivided node is currently fused into: the first part if that node has been cut up."""
        into = node.placement.fused_into
        return None if into is None else self.first_parts.get(into, into)


@dataclass(frozen=True)
class DecisionPass(Pass):
    """A pass that carries out one decision: it rewrites the nodes that its options name and leaves all others.

    Run by itself, it writes nodes without a region; `ApplyPlan` carries out whole plans, with a region for every
    decision.
    """

    @property
    @abstractmethod
    def covers(self) -> tuple[str, ...]:
        """The nodes that are rewritten, in order."""

    @abstractmethod
    def refusal(self, graph: Graph) -> Refusal | None:
        """Why these nodes, all of them in the graph, cannot be rewritten this way, or None."""

    @abstractmethod
    def rewrite(self, site: Site) -> Sequence[Node] | Refusal:
        """The nodes that replace those covered, in an order in which they can be computed; or why there are none."""

    def why_not(self, graph: Graph) -> Refusal | None:
        """Why the decision cannot be carried out on a graph, or None. Costs about as much as carrying it out."""
        for name in self.covers:
            if name not in graph.node_by_name:
                return Refusal(unknown_node(graph, name))
        return self.refusal(graph)

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the nodes; the new nodes take the position of the last of them.

        Raises:
            PlanError: they are not in the graph, or cannot be rewritten this way.
        """
        site = Site(GraphEditor(graph))
        unknown = [name for name in self.covers if name not in graph.node_by_name]
        made = Refusal(unknown_node(graph, unknown[0])) if unknown else self.rewrite(site)
        if isinstance(made, Refusal):
            raise PlanError(f"pass {self.name!r}: {made.reason}", made.remedy)
        for node in graph.nodes:
            if site.fused_into(node) != node.placement.fused_into:
                site.editor.replace_node(node.name, [node.placed(fused_into=site.fused_into(node))])
        last = max(self.covers, key=graph.position.__getitem__)
        for name in self.covers:
            site.editor.replace_node(name, made if name == last else ())
        return PassResult(site.editor.finish(), changed=True)


def unknown_node(graph: Graph, name: str) -> str:
    """A message that a graph has no such node, with a suggestion."""
    hint = did_you_mean(name, graph.node_by_name)
    return f"no node {name!r} in graph {graph.name!r}" + (f" ({hint})" if hint else "")


def device_refusal(node: Node, device: str, host: str) -> Refusal | None:
    """Why a node cannot run on a device, judging by the graph alone: the host runs any node."""
    refusal = None if device == host else bound_to_host(node)
    return refusal and Refusal(f"{node.name}: {refusal.reason} and cannot run on {device.upper()}")
