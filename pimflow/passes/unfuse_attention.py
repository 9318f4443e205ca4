"""Separates the projection from ONNX Runtime's Attention."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pimflow.ir import Graph, GraphEditor, Node, OnnxOp
from pimflow.ir.expansion import Expansion, expand
from pimflow.ir.expansion.base import CONTRIB
from pimflow.passes.base import Pass, PassResult
from pimflow.passes.writing_out import write_out
from pimflow.records import dataclass


@dataclass(frozen=True)
class UnfuseAttention(Pass):
    """Turns an Attention into the product that makes queries, keys and values, and a MultiHeadAttention of these.

    Libraries run it like that, at the same price: the Slices between them cost nothing, and the second node adds the
    bias. The product can be divided, placed and pipelined like any other.
    """

    name: ClassVar[str] = "unfuse-attention"

    def run(self, graph: Graph) -> PassResult:
        """Rewrite every Attention whose projection can be separated."""
        editor, notes = GraphEditor(graph), []
        for node in graph.nodes:
            if not isinstance(node.op, OnnxOp) or (node.op.domain, node.op.op_type) != (CONTRIB, "Attention"):
                continue
            expansion = expand(graph, node)
            if isinstance(expansion, Expansion):
                editor.replace_node(node.name, _named(write_out(editor, expansion), node, editor))
            else:
                notes.append(f"{node.name}: {expansion.reason}")
        return PassResult(editor.finish() if editor.changed else graph, editor.changed, tuple(notes))


def _named(made: list[Node], node: Node, editor: GraphEditor) -> list[Node]:
    """The new nodes; the last one gets the name of the original node."""
    *before, last = (replace(new, placement=node.placement, tags=node.tags) for new in made)
    return [*(replace(new, name=editor.new_node_name(new.name)) for new in before), replace(last, name=node.name)]
