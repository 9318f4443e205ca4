"""The verifier: the invariants of every graph between passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from weakref import WeakSet

from pimflow.errors import GraphError
from pimflow.ir.graph import Graph, Node
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.shapes import infer

_RIGHT: WeakSet[Graph] = WeakSet()
"""Graphs that passed."""


def verify_graph(graph: Graph, before: Graph | None = None) -> None:
    """Checks names, order, constants, and the shapes and element types of typed ops.

    Args:
        graph: the graph.
        before: the graph that it was made from; if that one passed, the types of nodes and constants that both have are
            not checked again.

    Raises:
        GraphError: the graph breaks a rule; the message names the first offending node or value.
    """
    if graph in _RIGHT:
        return
    known = before if before is not None and before in _RIGHT else None
    _check_names(graph)
    _check_constants(graph, known)
    _check_order(graph)
    for node in graph.nodes:
        if known is None or not _is_known(graph, node, known):
            _check_types(graph, node)
    _RIGHT.add(graph)


def _is_known(graph: Graph, node: Node, known: Graph) -> bool:
    """Whether another graph also has the node, with the same op and values (the placement may differ)."""
    twin = known.node_by_name.get(node.name)
    if twin is None or twin.op is not node.op or twin.inputs != node.inputs or twin.outputs != node.outputs:
        return False
    return all(graph.values[name] is known.values.get(name) for name in (*node.inputs, *node.outputs) if name)


def _duplicates(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _check_names(graph: Graph) -> None:
    for what, names in (
        ("node name", (node.name for node in graph.nodes)),
        ("graph input", graph.inputs),
        ("value produced", (name for node in graph.nodes for name in node.outputs if name)),
    ):
        twice = _duplicates(names)
        if twice:
            raise GraphError(f"graph {graph.name!r}: {what} {twice[0]!r} occurs more than once")
    for node in graph.nodes:
        if not node.name or not any(node.outputs):
            raise GraphError(f"{node.kind} node {node.name!r} has no name or no output")
    for name in graph.inputs:
        if name not in graph.values:
            raise GraphError(f"graph input {name!r} has no value")
    for name, value in graph.values.items():
        if name != value.name:
            raise GraphError(f"value {value.name!r} is filed under {name!r}")


def _check_constants(graph: Graph, known: Graph | None) -> None:
    for name, array in graph.constants.items():
        value = graph.values.get(name)
        if value is None:
            raise GraphError(f"constant {name!r} has no value")
        if name in graph.inputs:
            raise GraphError(f"{name!r} is both a constant and a graph input")
        if known is not None and known.constants.get(name) is array and known.values[name] is value:
            continue
        if value.shape != array.shape or value.dtype != array.dtype.name:
            raise GraphError(
                f"constant {name!r} is {array.dtype.name}{list(array.shape)}, its value says {value.dtype}{value.shape}"
            )


def _check_order(graph: Graph) -> None:
    defined = set(graph.inputs) | set(graph.constants)
    made = {name for node in graph.nodes for name in node.outputs}
    for node in graph.nodes:
        for name in filter(None, node.inputs):
            if name not in defined:
                why = "before it is made" if name in made else "which no node makes"
                raise GraphError(f"node {node.name!r} reads {name!r}, {why}")
        for name in filter(None, node.outputs):
            if name in defined:
                raise GraphError(f"node {node.name!r} makes {name!r}, which is a graph input or constant")
            if name not in graph.values:
                raise GraphError(f"node {node.name!r} makes {name!r}, which has no value")
            defined.add(name)
    for name in graph.outputs:
        if name not in defined:
            raise GraphError(f"graph output {name!r} is not made by any node")


def _check_types(graph: Graph, node: Node) -> None:
    if isinstance(node.op, OnnxOp):
        return
    if len(node.outputs) != 1:
        raise GraphError(f"node {node.name!r}: {node.kind} has one output, not {len(node.outputs)}")
    try:
        inferred = infer(node.op, graph.in_values(node))[0]
    except GraphError as error:
        raise GraphError(f"node {node.name!r}: {error}") from error
    value = graph.value(node.output)
    if (value.shape, value.dtype) != (inferred.shape, inferred.dtype):
        raise GraphError(
            f"node {node.name!r}: {node.kind} makes {inferred.dtype}{list(inferred.shape)}, "
            f"but value {value.name!r} says {value.dtype}{value.shape}"
        )
