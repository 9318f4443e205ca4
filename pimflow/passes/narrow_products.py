"""Marks products whose operands are quantised in the model."""

from __future__ import annotations

from typing import ClassVar

from pimflow.ir import Graph, Node, Refusal
from pimflow.ir.analysis.narrow import narrow_operands
from pimflow.ir.expansion import is_expandable
from pimflow.passes.base import Pass, PassResult
from pimflow.records import dataclass


@dataclass(frozen=True)
class NarrowProducts(Pass):
    """Sets `narrow` of products of 8-bit integers (QDQ, QLinearConv, ConvInteger, ...).

    A compilation runs it if a unit of the machine multiplies such operands directly. It looks at the whole graph: the
    parts that are priced, divided and run later do not include the DequantizeLinear before the product.
    """

    name: ClassVar[str] = "narrow-products"

    def run(self, graph: Graph) -> PassResult:
        nodes: list[Node] = []
        notes = []
        for node in graph.nodes:
            found = narrow_operands(graph, node) if node.op.is_contraction or is_expandable(node.op) else None
            if isinstance(found, Refusal):
                notes.append(f"{node.name}: {found.reason}")
            narrow = None if isinstance(found, Refusal) else found
            nodes.append(node if narrow == node.placement.narrow else node.placed(narrow=narrow))
        changed = any(new is not old for new, old in zip(nodes, graph.nodes, strict=True))
        return PassResult(graph.replace(nodes=nodes) if changed else graph, changed, tuple(notes))
