"""Outer values that subgraphs of If, Loop and Scan read: they become inputs of the node, so rewrites keep them.

A subgraph is carried as an opaque attribute, but ONNX lets it name any value of the graph around it. On import each
such name becomes one more input of the node, after the operator's own, and the subgraph names it by position
("@0", "@1", ...). The attribute `CAPTURES` holds the number of these inputs. On export the positions become the inputs'
current names again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx

from pimflow.ir import Array, Node, OnnxOp, OpaqueAttribute
from pimflow.ir.names import FreshNames

CAPTURES = "_captures"
"""Attribute of an `OnnxOp`: the number of trailing inputs that are values read by its subgraphs."""

Rename = Callable[[str], str]


def capture_count(node: Node) -> int:
    """The number of the node's trailing inputs that only its subgraphs read."""
    if isinstance(node.op, OnnxOp):
        for name, value in node.op.attributes:
            if name == CAPTURES and isinstance(value, int):
                return value
    return 0


def subgraphs(attributes: Sequence[onnx.AttributeProto]) -> Iterator[onnx.GraphProto]:
    """The graphs directly inside a node's attributes."""
    for attribute in attributes:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def abstract_captures(attributes: Sequence[onnx.AttributeProto]) -> tuple[str, ...]:
    """Replaces, in place, the outer names that the subgraphs read by positions; returns the names by position."""
    positions: dict[str, str] = {}

    def position(name: str) -> str:
        return positions.setdefault(name, f"@{len(positions)}")

    for graph in subgraphs(attributes):
        rename_names(graph, position, lambda name: name)
    return tuple(positions)


def restore_captures(attributes: Sequence[onnx.AttributeProto], names: Sequence[str], taken: FreshNames) -> None:
    """The inverse, in place. A name defined in a subgraph that is also in `taken` gets a new one (no shadowing)."""
    outer = {f"@{index}": name for index, name in enumerate(names)}

    def inner(name: str) -> str:
        return taken.fresh(f"{name}_inner") if name in taken else name

    for graph in subgraphs(attributes):
        rename_names(graph, lambda name: outer.get(name, name), inner)


def rename_names(graph: onnx.GraphProto, free: Rename, bound: Rename, scope: dict[str, str] | None = None) -> None:
    """Renames in place: names defined in the graph by `bound`, names it reads from outside by `free`."""
    names = dict(scope or {})
    names |= {name: bound(name) for name in _defined(graph)}

    def new(name: str) -> str:
        return names.get(name) or free(name) if name else ""

    for info in (*graph.input, *graph.output):
        info.name = new(info.name)
    for info in graph.value_info:
        info.name = names.get(info.name, info.name)
    for tensor in graph.initializer:
        tensor.name = new(tensor.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = new(sparse.values.name)
    for node in graph.node:
        node.input[:] = [new(name) for name in node.input]
        node.output[:] = [new(name) for name in node.output]
        for inner in subgraphs(node.attribute):
            rename_names(inner, free, bound, names)


def _defined(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (info.name for info in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output if name)


def chosen_branch(node: Node, constants: Mapping[str, Array]) -> onnx.GraphProto | None:
    """The branch that an If with a constant condition takes; None for every other node."""
    if not isinstance(node.op, OnnxOp) or (node.op.domain, node.op.op_type) != ("", "If"):
        return None
    condition = constants.get(node.inputs[0])
    if condition is None:
        return None
    return graph_attribute(node.op, "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch")


def is_counted_loop(node: Node, constants: Mapping[str, Array]) -> bool:
    """Whether the node is a Loop with a constant trip count, whose body passes on the condition that it is given."""
    if not isinstance(node.op, OnnxOp) or (node.op.domain, node.op.op_type) != ("", "Loop"):
        return False
    trips, condition = node.inputs[:2]
    if trips not in constants or (condition and condition not in constants):
        return False
    return passes_condition_on(node.op)


def passes_condition_on(loop: OnnxOp) -> bool:
    """Whether the body of a Loop passes on the condition that it is given, so that it never ends the loop itself."""
    return 1 in passed_on(loop)


def passed_on(loop: OnnxOp) -> list[int]:
    """The inputs of a Loop, from its condition on, that its body passes on as they are, by position."""
    body = graph_attribute(loop, "body")
    source = {info.name: place for place, info in enumerate(body.input)}
    for inner in body.node:
        if inner.op_type == "Identity" and inner.input[0] in source:
            source[inner.output[0]] = source[inner.input[0]]
    results = enumerate((info.name for info in body.output), start=1)
    return [place for place, name in results if place < len(body.input) and source.get(name) == place]


def graph_attribute(op: OnnxOp, name: str) -> onnx.GraphProto:
    """A fresh copy of the graph in an attribute."""
    attribute = dict(op.attributes)[name]
    assert isinstance(attribute, OpaqueAttribute)
    graph: onnx.GraphProto = onnx.AttributeProto.FromString(attribute.serialized).g
    return graph
