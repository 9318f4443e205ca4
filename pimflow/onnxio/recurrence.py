"""Reads recurrences over precomputed products (`PREPARED`) back from the form in which `export.py` writes them."""

from __future__ import annotations

from dataclasses import replace

from pimflow.ir import Graph, Node, OnnxOp
from pimflow.ir.ops.opaque import PREPARED

OPERATORS = frozenset({"LSTM", "GRU", "RNN"})
_MADE_BY = ("Reshape", "Cast", "EyeLike", "ConstantOfShape")
"""The operators that make the selection matrix, last step first; single precision needs no Cast."""


def prepared(graph: Graph) -> Graph:
    """The graph with ONNX recurrences that read a selection matrix replaced by the `PREPARED` ones they came from.

    Nodes that only make the selection are removed.
    """
    nodes: dict[str, Node] = {node.name: node for node in graph.nodes}
    for node in graph.nodes:
        chain = _selection(graph, node)
        if not chain:
            continue
        assert isinstance(node.op, OnnxOp)
        inputs = (node.inputs[0], "", *node.inputs[2:])
        nodes[node.name] = replace(node, op=replace(node.op, domain=PREPARED), inputs=inputs)
        for step in chain:
            del nodes[step.name]
    return graph.replace(nodes=tuple(nodes.values()))


def _selection(graph: Graph, node: Node) -> list[Node]:
    """The nodes that were written to make W of a node; empty if W is something else, or read by others."""
    if not _is(node, OPERATORS) or len(node.inputs) < 2:
        return []
    chain: list[Node] = []
    name = node.inputs[1]
    for op_type in _MADE_BY:
        step = graph.producer(name)
        if op_type == "Cast" and (step is None or not _is(step, {"Cast"})):
            continue
        if step is None or not _is(step, {op_type}) or len(graph.users(name)) != 1 or name in graph.outputs:
            return []
        chain.append(step)
        name = step.inputs[0]
    identity = chain[-2]
    shape, eye = graph.value(chain[0].output).shape, graph.value(identity.output).shape
    fits = shape is not None and eye == (shape[2], shape[2]) and shape[0] * shape[1] == shape[2]
    assert isinstance(identity.op, OnnxOp)
    return chain if fits and dict(identity.op.attributes).keys() <= {"dtype"} else []


def _is(node: Node, op_types: frozenset[str] | set[str]) -> bool:
    return isinstance(node.op, OnnxOp) and not node.op.domain and node.op.op_type in op_types
