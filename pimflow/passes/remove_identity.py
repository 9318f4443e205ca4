"""Removes operations that return their input: Identity, Dropout in inference, movements that move nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from pimflow.ir import (
    Concat,
    Elementwise,
    Graph,
    GraphEditor,
    Node,
    OnnxOp,
    OpRules,
    Pad,
    Refusal,
    Reshape,
    Slice,
    Transpose,
)
from pimflow.ir.ops.movement import MovementOp
from pimflow.passes.base import Pass, PassResult
from pimflow.records import dataclass


@dataclass(frozen=True)
class RemoveIdentity(Pass):
    """Removes nodes that return their input: readers of their output read the input instead.

    Identities are Identity itself, a Dropout that is not training and whose mask nobody reads, a Cast to the same type,
    a Concat of one input, and a Reshape, Transpose, Slice or Pad that changes nothing. Initializers shared through
    Identity (as TorchScript exports them) are shared directly. An Identity stays if it only gives a graph input, a
    constant or another output the name of a graph output.
    """

    name: ClassVar[str] = "remove-identity"

    def run(self, graph: Graph) -> PassResult:
        editor = GraphEditor(graph)
        named = set(graph.inputs) | set(graph.outputs) | set(graph.constants)  # values that must keep their names
        source: dict[str, str] = {}
        notes = []
        for node in graph.nodes:
            verdict = _is_identity(graph, node)
            if isinstance(verdict, Refusal):
                notes.append(f"{node.name}: {verdict.reason}")
            if verdict is not True:
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


IDENTITY: OpRules[Callable[[Graph, Node, Any], bool | Refusal]] = OpRules(
    "identity test", asks=lambda kind: issubclass(kind, (MovementOp, OnnxOp))
)
"""Whether a node whose op may move elements just returns its input; a refusal where one might expect it to."""


def _is_identity(graph: Graph, node: Node) -> bool | Refusal:
    rule = IDENTITY.find(node.op)
    return rule is not None and rule(graph, node, node.op)


@IDENTITY.register(OnnxOp, Elementwise)
def _named(graph: Graph, node: Node, op: OnnxOp | Elementwise) -> bool | Refusal:
    if isinstance(op, OnnxOp) and op.domain:
        return False
    if op.onnx_name == "Dropout":
        return _dropout(graph, node)
    return op.onnx_name == "Identity" or (op.onnx_name == "Cast" and _same_type(graph, node))


def _dropout(graph: Graph, node: Node) -> bool | Refusal:
    mask = node.outputs[1] if len(node.outputs) > 1 else ""
    if mask and (graph.users(mask) or mask in graph.outputs):
        return Refusal("its mask is read")
    training = node.inputs[2] if len(node.inputs) > 2 else ""
    if training and (training not in graph.constants or bool(graph.constants[training])):
        return Refusal("it is, or may be, in training mode")
    return True


@IDENTITY.register(Concat)
def _concat(graph: Graph, node: Node, op: Concat) -> bool:
    return len(node.inputs) == 1


@IDENTITY.register(Transpose)
def _transpose(graph: Graph, node: Node, op: Transpose) -> bool:
    return op.perm == tuple(range(len(op.perm)))


@IDENTITY.register(Pad)
def _pad(graph: Graph, node: Node, op: Pad) -> bool:
    return not any(op.before + op.after)


@IDENTITY.register(Reshape)
def _reshape(graph: Graph, node: Node, op: Reshape) -> bool:
    return _same_type(graph, node)


@IDENTITY.register(Slice)
def _slice(graph: Graph, node: Node, op: Slice) -> bool:
    return op.step == 1 and _same_type(graph, node)


def _same_type(graph: Graph, node: Node) -> bool:
    before, after = graph.value(node.inputs[0]), graph.value(node.output)
    return (
        bool(before.dtype) and before.dtype == after.dtype and before.shape is not None and before.shape == after.shape
    )
