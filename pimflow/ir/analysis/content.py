"""What of a graph's constants decides a price: their elements, for ops that say so."""

from __future__ import annotations

from collections.abc import Mapping

from pimflow.ir.graph import Array, Graph, Node
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.text.literals import digest

Content = tuple["str | None", ...]
"""Digests of an op's operands at `Op.content_positions`, None for one that is computed."""


def content_of(graph: Graph, node: Node) -> Content:
    """What the node's cost depends on beside its op and its operands' shapes and types; () for most ops.

    Linear in a constant once, then free.
    """
    operands = _content_operands(node)
    if not operands:
        return ()
    found = content_arrays(graph, node)
    return tuple(digest(found[index]) if index in found else None for index in operands)


def content_arrays(graph: Graph, node: Node) -> Mapping[int, Array]:
    """The constants that `content_of` gives the digests of, by the position of the input.

    An index that is a constant, expanded, is given as that constant.
    """
    operands = _content_operands(node)
    behind = {index: _behind(graph, node, name) for index, name in operands.items()}
    return {index: graph.constants[name] for index, name in behind.items() if name in graph.constants}


def _behind(graph: Graph, node: Node, name: str) -> str:
    """What an index is an Expand of, of as many dims; other operands are themselves."""
    maker = graph.producer(name) if isinstance(node.op, OnnxOp) and not node.op.has_bodies else None
    if maker is None or maker.kind != "Expand":
        return name
    source = maker.inputs[0]
    return source if len(graph.values[source].shape or ()) == len(graph.values[name].shape or ()) else name


def _content_operands(node: Node) -> Mapping[int, str]:
    positions = node.op.content_positions(len(node.inputs))
    return {index: node.inputs[index] for index in positions if index < len(node.inputs)}
