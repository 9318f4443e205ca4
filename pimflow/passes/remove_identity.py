"""Removes operations that give back their input: y = Identity(x), and movements that move nothing."""

from __future__ import annotations

from dataclasses import dataclass

from pimflow.ir import Concat, Elementwise, Graph, GraphEditor, Node, OnnxOp, Pad, Reshape, Slice, Transpose
from pimflow.passes.base import Pass, PassResult


@dataclass(frozen=True)
class RemoveIdentity(Pass):
    """Readers of an identity's output read its input instead.

    Identities are Identity itself, a Cast to the same type, a Concat of one input, and a Reshape, Transpose, Slice or
    Pad that changes nothing. Initializers shared through Identity (as TorchScript exports them) are shared directly.
    One that only gives a graph input, a constant or another output the name of a graph output stays.
    """

    def run(self, graph: Graph) -> PassResult:
        """Rewrites the graph."""
        editor = GraphEditor(graph)
        named = set(graph.inputs) | set(graph.outputs) | set(graph.constants)  # values that must keep their names
        source: dict[str, str] = {}
        notes = []
        for node in graph.nodes:
            if not _is_identity(graph, node):
                continue
            origin = source.get(node.inputs[0], node.inputs[0])
            if node.output in graph.outputs and origin in named:
                notes.append(f"{node.name}: names {origin!r} as the graph output {node.output!r}")
                continue
            if node.output in graph.outputs:
                named.add(origin)  # it takes the output's name
            source[node.output] = origin
            editor.rename_uses(node.output, node.inputs[0])
            editor.replace_node(node.name, ())
        if not editor.changed:
            return PassResult(graph, False, tuple(notes))
        return PassResult(editor.finish(), True, tuple(notes))


def _is_identity(graph: Graph, node: Node) -> bool:
    op = node.op
    if isinstance(op, OnnxOp | Elementwise):
        kind = op.op_type if isinstance(op, OnnxOp) else op.kind
        default_domain = isinstance(op, Elementwise) or not op.domain
        return default_domain and (kind == "Identity" or (kind == "Cast" and _same_type(graph, node)))
    if isinstance(op, Concat):
        return len(node.inputs) == 1
    if isinstance(op, Transpose):
        return op.perm == tuple(range(len(op.perm)))
    if isinstance(op, Pad):
        return not any(op.before + op.after)
    return isinstance(op, Reshape | Slice) and (not isinstance(op, Slice) or op.step == 1) and _same_type(graph, node)


def _same_type(graph: Graph, node: Node) -> bool:
    before, after = graph.value(node.inputs[0]), graph.value(node.output)
    return (
        bool(before.dtype) and before.dtype == after.dtype and before.shape is not None and before.shape == after.shape
    )
