"""Edge split: the edges of a sum over a graph are divided between two devices.

    y = spmm(x, edges)   becomes   y_gpu = spmm(x, sparse edges)   on the host
                                   y_pim = spmm(x, dense edges)    on the other device, at the same time
                                   y     = y_gpu + y_pim           on the host

The edges from a group of `group` consecutive sources to one destination are dense if there are many: a unit that
processes a group of sources at once takes as long for a group with one edge as for a full one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pimflow.ir import Array, Elementwise, Graph, Node, Placement, Spmm
from pimflow.ir.refusal import Refusal
from pimflow.passes.decision import DecisionPass, Site, device_refusal
from pimflow.records import dataclass
from pimflow.sparse.groups import Part, split_dense


@dataclass(frozen=True)
class EdgeSplit(DecisionPass):
    """Divides the edges of a sum by how many a destination has from a group of sources.

    Nodes fused into the sum are fused into the node that adds up both parts.

    Args:
        node: a sum over edges that are constants, like their weights.
        group: the number of consecutive sources in a group; groups start at multiples of it.
        at_least: the number of edges from a group to a destination from which they count as dense; at least 1.
        choice: the choice to request from the other device's backend (a mapping policy, a strategy); "" is its default.
        device: takes the dense edges.
        host: takes the rest, and adds up both parts.
    """

    name: ClassVar[str] = "edge-split"

    node: str
    group: int
    at_least: int
    choice: str = ""
    device: str = "pim"
    host: str = "gpu"

    @property
    def covers(self) -> tuple[str, ...]:
        """The node."""
        return (self.node,)

    def refusal(self, graph: Graph) -> Refusal | None:
        """Why the edges cannot be divided this way, or None."""
        node = graph.node(self.node)
        refused = device_refusal(node, self.device, self.host) or self._operand_refusal(graph, node)
        if refused is not None:
            return refused
        dense, rest = self._divided(graph, node)
        if len(dense.col) and len(rest.col):
            return None
        found = f"{len(dense.col)} of {len(dense.col) + len(rest.col)} edges"
        groups = f"groups of {self.group} sources with at least {self.at_least} edges"
        return Refusal(f"{node.name}: {found} are in {groups}, which leaves a part empty")

    def _operand_refusal(self, graph: Graph, node: Node) -> Refusal | None:
        op = node.op
        if not isinstance(op, Spmm):
            return Refusal(f"{node.name}: {node.kind} is not a sum over edges")
        if op.reduce != "sum" or op.start or op.empty:
            return Refusal(f"{node.name}: only a sum that starts from zero can be divided into two")
        if self.group < 1 or self.at_least < 1:
            return Refusal(f"{node.name}: group and at_least must be 1 or more, not {self.group} and {self.at_least}")
        computed = [name for name in node.inputs[1:4] if name and name not in graph.constants]
        if computed:
            return Refusal(f"{node.name}: {computed[0]!r} is computed, and an edge split needs constants")
        return None

    def _divided(self, graph: Graph, node: Node) -> tuple[Part, Part]:
        rowptr, col = (graph.constants[name] for name in node.inputs[1:3])
        return split_dense(rowptr, col, self.group, self.at_least)

    def rewrite(self, site: Site) -> list[Node] | Refusal:
        """Both parts and their sum."""
        refused = self.refusal(site.graph)
        return list(self._nodes(site)) if refused is None else refused

    def _nodes(self, site: Site) -> Iterator[Node]:
        node, editor = site.graph.node(self.node), site.editor
        dense, rest = self._divided(site.graph, node)
        value = site.graph.value(node.output)
        made = []
        for device, part in ((self.host, rest), (self.device, dense)):
            output = editor.new_value(f"{node.output}_{device}", value.shape, value.dtype)
            choice = (self.choice or None) if device == self.device else None
            placement = Placement(device, site.region, choice=choice, origin=node.name)
            name = editor.new_node_name(f"{node.name}_{device}")
            yield Node(node.op, self._operands(site, node, part, device), (output,), name, placement, node.tags)
            made.append(output)
        name = editor.new_node_name(f"{node.name}_added")
        site.first_parts[node.name] = name
        placement = Placement(self.host, site.region, origin=node.name)
        yield Node(Elementwise("Add"), tuple(made), (node.output,), name, placement)

    def _operands(self, site: Site, node: Node, part: Part, device: str) -> tuple[str, ...]:
        """The features and scales unchanged, with one part of the edges."""

        def own(position: int, array: Array) -> str:
            return site.editor.new_constant(f"{node.inputs[position]}_{device}", array)

        features, _, _, *others = node.inputs
        weights = site.graph.constants.get(others[0]) if others else None
        if weights is not None:
            others[0] = own(3, weights[part.positions])
        return (features, own(1, part.rowptr), own(2, part.col), *others)
