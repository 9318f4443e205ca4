"""The constants whose elements affect a cost, for ops that declare such operands."""

from __future__ import annotations

from collections.abc import Mapping

from pimflow.ir.graph import Array, Graph, Node
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.text.literals import digest

Content = tuple["str | None", ...]
"""Digests of an op's operands at `Op.content_positions`; None for computed ones."""


def content_of(graph: Graph, node: Node) -> Content:
    """What the node's cost depends on in addition to its op and its operands' shapes and types; () for most ops.

    Linear in the size of a constant the first time, then cached.
    """
    operands = _content_operands(node)
    if not operands:
        return ()
    found = content_arrays(graph, node)
    return tuple(digest(found[index]) if index in found else None for index in operands)


def content_arrays(graph: Graph, node: Node) -> Mapping[int, Array]:
    """The constants whose digests `content_of` returns, by input position.

    An index that is an Expand of a constant is represented by that constant.
    """
    operands = _content_operands(node)
    if not operands:
        return {}
    sources = {index: _index_source(graph, node, name) for index, name in operands.items()}
    return {index: graph.constants[name] for index, name in sources.items() if name in graph.constants}


def _index_source(graph: Graph, node: Node, name: str) -> str:
    """The source of an index that is an Expand of the same rank; any other operand itself."""
    producer = graph.producer(name) if isinstance(node.op, OnnxOp) and not node.op.has_bodies else None
    if producer is None or producer.kind != "Expand":
        return name
    source = producer.inputs[0]
    return source if len(graph.values[source].shape or ()) == len(graph.values[name].shape or ()) else name


def _content_operands(node: Node) -> Mapping[int, str]:
    positions = node.op.content_positions(len(node.inputs))
    return {index: node.inputs[index] for index in positions if index < len(node.inputs)}
