"""Device placement: nodes run whole on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pimflow.ir import Graph, Node
from pimflow.ir.refusal import Refusal
from pimflow.passes.decision import DecisionPass, Site, device_refusal


@dataclass(frozen=True)
class DevicePlacement(DecisionPass):
    """Places nodes on a device. Branches that one placement puts on several devices run at once.

    Args:
        nodes: names of the nodes.
        device: where they run.
        choice: what the device's backend is asked for (a mapping policy, a strategy); "" is its default.
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
        refusals = (device_refusal(graph.node(name), self.device, self.host) for name in self.nodes)
        return next((refusal for refusal in refusals if refusal is not None), None)

    def rewrite(self, site: Site) -> list[Node] | Refusal:
        """The same nodes, placed."""
        return self.refusal(site.graph) or [self._placed(site.graph.node(name), site) for name in self.nodes]

    def _placed(self, node: Node, site: Site) -> Node:
        return node.placed(
            device=self.device, region=site.region, choice=self.choice or None, fused_into=site.fused_into(node)
        )
