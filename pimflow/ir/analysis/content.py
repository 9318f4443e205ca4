"""What of a graph's constants decides a price: their elements, for ops that say so."""

from __future__ import annotations

from collections.abc import Mapping

from pimflow.ir.graph import Array, Graph, Node
from pimflow.ir.text.literals import digest

Content = tuple["str | None", ...]
"""Digests of an op's operands at `Op.content_positions`, None for one that is computed."""


def content_of(graph: Graph, node: Node) -> Content:
    """What the node's cost depends on beside its op and its operands' shapes and types; () for most ops.

    Linear in a constant once, then free.
    """
    return tuple(
        digest(graph.constants[name]) if name in graph.constants else None for name in _content_operands(node).values()
    )


def content_arrays(graph: Graph, node: Node) -> Mapping[int, Array]:
    """The constants that `content_of` gives the digests of, by the position of the input."""
    operands = _content_operands(node)
    return {index: graph.constants[name] for index, name in operands.items() if name in graph.constants}


def _content_operands(node: Node) -> Mapping[int, str]:
    positions = node.op.content_positions(len(node.inputs))
    return {index: node.inputs[index] for index in positions if index < len(node.inputs)}
