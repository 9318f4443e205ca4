"""Merges nodes that compute the same value: exporters write the norm of a graph once per layer."""

from __future__ import annotations

from dataclasses import replace

from pimflow.ir import Array, Graph, Node, OnnxOp
from pimflow.ir.text.literals import digest
from pimflow.onnxio.captures import capture_count
from pimflow.onnxio.folding import is_random

SMALL_ELEMENTS = 1024
"""Constants up to this size are compared by their elements, larger ones by their names."""


def merge_equal_nodes(graph: Graph) -> Graph:
    """The graph with nodes that apply the same op to the same values merged into the first of them.

    Nodes that make graph outputs, have bodies or draw random numbers are not merged.
    """
    same: dict[str, str] = {}
    first_constant: dict[str, str] = {}
    for name, array in graph.constants.items():
        if array.size <= SMALL_ELEMENTS:
            same[name] = first_constant.setdefault(_content(array), name)
    first_node: dict[tuple[object, ...], Node] = {}
    kept = []
    for original in graph.nodes:
        node = replace(original, inputs=tuple(same.get(name, name) for name in original.inputs))
        key = (node.op, node.inputs, tuple(map(bool, node.outputs)))
        earlier = first_node.setdefault(key, node) if _may_merge(graph, node) else node
        if earlier is node:
            kept.append(node)
        else:
            same.update(zip(node.outputs, earlier.outputs, strict=True))
    return graph.replace(nodes=kept)


def _content(array: Array) -> str:
    return f"{array.dtype.name} {array.shape} {digest(array)}"


def _may_merge(graph: Graph, node: Node) -> bool:
    op = node.op
    if not isinstance(op, OnnxOp) or op.has_bodies or is_random(op) or capture_count(node):
        return False
    return not any(name in graph.outputs for name in node.outputs)
