"""Removes Dropout, which gives back its input when a model is run rather than trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pimflow.ir import Graph, GraphEditor, Node, OnnxOp
from pimflow.passes.base import Pass, PassResult


@dataclass(frozen=True)
class RemoveDropout(Pass):
    """Readers of a Dropout's output read its input instead.

    It stays if its mask is read, or if it is in training mode (a third input that is not a constant false).
    """

    name: ClassVar[str] = "remove-dropout"

    def run(self, graph: Graph) -> PassResult:
        editor = GraphEditor(graph)
        notes = []
        for node in graph.nodes:
            if not isinstance(node.op, OnnxOp) or node.op.op_type != "Dropout" or node.op.domain:
                continue
            reason = _keeps(graph, node)
            if reason is not None:
                notes.append(f"{node.name}: {reason}")
                continue
            editor.rename_uses(node.output, node.inputs[0])
            editor.replace_node(node.name, ())
        if not editor.changed:
            return PassResult(graph, False, tuple(notes))
        return PassResult(editor.finish(), True, tuple(notes))


def _keeps(graph: Graph, node: Node) -> str | None:
    mask = node.outputs[1] if len(node.outputs) > 1 else ""
    if mask and (graph.users(mask) or mask in graph.outputs):
        return "its mask is read"
    training = node.inputs[2] if len(node.inputs) > 2 else ""
    if training and (training not in graph.constants or bool(graph.constants[training])):
        return "it is, or may be, in training mode"
    return None
