"""Loops that end after a number of iterations that does not depend on inputs: converted to loops of that length.

TensorFlow's recurrent layers are exported as `while i < n`: the body counts, and computes the condition from the count.
The length is found by running only that part of the body; it becomes the Loop's limit, and the body passes the
condition on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from pimflow.errors import ModelError
from pimflow.frontend.importing import import_node
from pimflow.ir import Array, Graph, Node, OnnxOp, Value
from pimflow.ir.names import FreshNames
from pimflow.onnxio.captures import (
    CAPTURES,
    abstract_captures,
    capture_count,
    graph_attribute,
    passes_condition_on,
    rename_names,
    subgraphs,
)
from pimflow.onnxio.folding import is_random, node_session
from pimflow.onnxio.tensors import attribute_value

MAX_ITERATIONS = 10_000
"""The maximum number of iterations of a Loop that is converted; a time limit would make results machine-dependent."""


def length_of(node: Node, graph: Graph, known: Mapping[str, Array]) -> int | None:
    """The number of iterations of a Loop, if its body ends it and everything that determines this is known; else None.

    Args:
        node: any node.
        graph: the node's graph (for the opset).
        known: arrays of the known values that it reads.
    """
    op = node.op
    if not isinstance(op, OnnxOp) or (op.domain, op.op_type) != ("", "Loop") or passes_condition_on(op):
        return None
    if is_random(op) or any(name and name not in known for name in node.inputs[:2]):
        return None
    counting = _counting_loop(node, op, known)
    if counting is None:
        return None
    limit = FreshNames(known).fresh("limit")
    counting = replace(counting, inputs=(limit, *counting.inputs[1:]))
    requested = int(known[node.inputs[0]].reshape(-1)[0]) if node.inputs[0] else MAX_ITERATIONS + 1
    known = {**known, limit: np.array(min(requested, MAX_ITERATIONS + 1))}
    values = {name: Value(name, known[name].shape, known[name].dtype.name) for name in counting.inputs if name}
    try:
        length = len(node_session(counting, graph, values, known).run({})[counting.outputs[-1]])
    except ModelError:
        return None
    return None if length > MAX_ITERATIONS else length


def with_length(node: Node, limit: str) -> Node:
    """The Loop with a constant number of iterations, whose body does not compute the condition."""
    assert isinstance(node.op, OnnxOp)
    body = graph_attribute(node.op, "body")
    on = FreshNames(_names(body)).fresh("on")
    body.node.append(helper.make_node("Identity", [body.input[1].name], [on]))
    body.output[0].CopyFrom(helper.make_tensor_value_info(on, TensorProto.BOOL, ()))
    _eliminate_dead_nodes(body)
    own, outer = _inputs(node)
    attribute = helper.make_attribute("body", body)
    captured = abstract_captures([attribute])  # only removed nodes may have read some of them
    attributes = {name: value for name, value in node.op.attributes if name != CAPTURES}
    attributes |= {"body": attribute_value(attribute)} | ({CAPTURES: len(captured)} if captured else {})
    op = OnnxOp("Loop", "", tuple(sorted(attributes.items())))
    return replace(node, op=op, inputs=(limit, "", *own[2:], *(outer[name] for name in captured)))


def _counting_loop(node: Node, op: OnnxOp, known: Mapping[str, Array]) -> Node | None:
    """A Loop with only the nodes that determine a Loop's length; its last result has one element per iteration. None if
    not everything is known."""
    body = graph_attribute(op, "body")
    own, outer = _inputs(node)
    found = _condition_nodes(body, outer)
    if found is None:
        return None
    nodes, carried = found
    read = {name for inner in nodes for name in inner.input}
    started = [own[place] for place in carried]
    if any(name not in known for name in (*started, *(outer[name] for name in outer.keys() & read))):
        return None
    run = FreshNames(_names(body)).fresh("run")
    part = helper.make_graph(
        [*nodes, helper.make_node("Identity", [body.input[0].name], [run])],
        "counting",
        [body.input[place] for place in (0, 1, *carried)],
        [
            *(body.output[place - 1] for place in (1, *carried)),
            helper.make_tensor_value_info(run, TensorProto.INT64, ()),
        ],
        body.initializer,
        sparse_initializer=body.sparse_initializer,
    )
    rename_names(part, outer.__getitem__, FreshNames(outer.values()).fresh)
    results = [f"{node.name}/{place}" for place in (*carried, "runs")]  # states may start from the same value
    return import_node(helper.make_node("Loop", [*own[:2], *started], results, body=part), node.name)


def _inputs(node: Node) -> tuple[tuple[str, ...], dict[str, str]]:
    """A Loop's own inputs, and the values that its body captures, by their names in the body."""
    count = len(node.inputs) - capture_count(node)
    return node.inputs[:count], {f"@{place}": name for place, name in enumerate(node.inputs[count:])}


def _condition_nodes(body: onnx.GraphProto, outer: Mapping[str, str]) -> tuple[list[onnx.NodeProto], list[int]] | None:
    """The nodes that compute the condition, and the inputs that carry the values they read between iterations.

    None if that takes nodes with subgraphs.
    """
    producers = {name: place for place, inner in enumerate(body.node) for name in inner.output if name}
    inputs = {info.name: place for place, info in enumerate(body.input)}
    constants = {tensor.name for tensor in body.initializer} | {one.values.name for one in body.sparse_initializer}
    nodes: set[int] = set()
    carried: set[int] = set()
    worklist, visited = [body.output[0].name], {*constants, *outer, ""}
    while worklist:
        name = worklist.pop()
        if name in visited:
            continue
        visited.add(name)
        if name in inputs:
            place = inputs[name]
            if place > 1:
                carried.add(place)
                worklist.append(body.output[place - 1].name)
        elif name in producers and not list(subgraphs(body.node[producers[name]].attribute)):
            nodes.add(producers[name])
            worklist += body.node[producers[name]].input
        else:
            return None
    return [body.node[place] for place in sorted(nodes)], sorted(carried)


def _eliminate_dead_nodes(body: onnx.GraphProto) -> None:
    """Removes, in place, the nodes whose results are not read."""
    read = {info.name for info in body.output}
    kept: list[onnx.NodeProto] = []
    for inner in reversed(body.node):
        if read.intersection(inner.output):
            kept.append(inner)
            read.update(inner.input)
            read.update(name for graph in subgraphs(inner.attribute) for name in _names(graph))
    del body.node[:]
    body.node.extend(reversed(kept))


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """All names in a graph and its nested graphs."""
    yield from (info.name for info in (*graph.input, *graph.output))
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    for inner in graph.node:
        yield from (*inner.input, *inner.output)
        for nested in subgraphs(inner.attribute):
            yield from _names(nested)
