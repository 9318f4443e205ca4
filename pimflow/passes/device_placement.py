"""Device placement: nodes run whole on one device."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pimflow.ir import Graph, Node, Placement
from pimflow.ir.expansion import Expansion, expand, is_expandable
from pimflow.ir.refusal import Refusal
from pimflow.passes.decision import DecisionPass, Site, device_refusal
from pimflow.passes.writing_out import write_out
from pimflow.records import dataclass


@dataclass(frozen=True)
class DevicePlacement(DecisionPass):
    """Places nodes on a device. Branches that one placement puts on several devices run concurrently.

    If an operator stays ONNX's own, only the product in it leaves the host: the operator is written out, and the nodes
    before and after the product run on the host.

    Args:
        nodes: names of the nodes.
        device: where they run.
        choice: the choice to request from the device's backend (a mapping policy, a strategy); "" is its default.
        host: the device that can run any node.
    """

    name: ClassVar[str] = "device-placement"

    nodes: tuple[str, ...]
    device: str
    choice: str = ""
    host: str = "gpu"

    @property
    def covers(self) -> tuple[str, ...]:
        """The nodes that are placed."""
        return self.nodes

    def refusal(self, graph: Graph) -> Refusal | None:
        """Why a node cannot run on the device, or None."""
        return next(filter(None, (self._why_not(graph, graph.node(name)) for name in self.nodes)), None)

    def _why_not(self, graph: Graph, node: Node) -> Refusal | None:
        refused = device_refusal(node, self.device, self.host)
        if refused is not None or not self._is_expanded(node):
            return refused
        expansion = expand(graph, node, elements=False)
        return Refusal(f"{node.name}: {expansion.reason}") if isinstance(expansion, Refusal) else None

    def _is_expanded(self, node: Node) -> bool:
        """Whether only the product in a node runs on the device."""
        return self.device != self.host and is_expandable(node.op)

    def rewrite(self, site: Site) -> list[Node] | Refusal:
        """The same nodes, placed; an operator whose product leaves the host is replaced by the nodes that it consists
        of."""
        refused = self.refusal(site.graph)
        if refused is not None:
            return refused
        nodes = [site.graph.node(name) for name in self.nodes]
        return [
            new for node in nodes for new in (self._expanded if self._is_expanded(node) else self._placed)(node, site)
        ]

    def _placed(self, node: Node, site: Site) -> list[Node]:
        choice, into = self.choice or None, site.fused_into(node)
        return [node.placed(device=self.device, region=site.region, choice=choice, fused_into=into)]

    def _expanded(self, node: Node, site: Site) -> list[Node]:
        """The nodes that the operator consists of: the product on the device, the others on the host."""
        expansion = expand(site.graph, node)
        assert isinstance(expansion, Expansion), "refused already"
        made = []
        for new in write_out(site.editor, expansion):
            on_device = new.name == expansion.product
            device, choice = (self.device, self.choice or None) if on_device else (self.host, None)
            origin, narrow = node.placement.origin or node.name, node.placement.narrow if on_device else None
            placement = Placement(device, site.region, choice=choice, origin=origin, narrow=narrow)
            name = site.editor.new_node_name(new.name)
            made.append(replace(new, name=name, placement=placement, tags=node.tags))
        site.first_parts[node.name] = made[-1].name
        return made
