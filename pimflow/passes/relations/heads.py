"""Turns products by type over concatenated heads into one whose rows have all heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pimflow.ir import Graph, Node, Reshape, Transpose, TypedLinear
from pimflow.passes.relations.rows import Ints, RowWriter, unmarked

_SWAPPED = Transpose((1, 0, 2))


def heads_in_rows(graph: Graph, node: Node) -> Graph | None:
    """Rows [N, H, K] transposed to [H N, K], times a matrix by head and type, transposed back: one product of [N, H,
    K].

    PyTorch Geometric's HGTConv multiplies keys and values that way. Both transposes, each a copy of all rows, are
    removed.
    """
    if not isinstance(node.op, TypedLinear) or len(node.inputs) > 3 or len(graph.shape(node.inputs[0])) != 2:
        return None
    before, after = _transpose_before(graph, node), _transpose_after(graph, node)
    pointers = graph.constants.get(node.inputs[2])
    if before is None or after is None or pointers is None:
        return None
    rows, heads, _ = graph.shape(before.inputs[0])
    of_one = _of_one_head(pointers, rows, heads)
    if of_one is None or graph.shape(after.output)[:2] != (rows, heads):
        return None
    write = RowWriter(graph)
    made, weights = _by_type(write, node, heads)
    inputs = (before.inputs[0], weights, write.constant("types", of_one))
    write.editor.replace_node(after.name, (*made, replace(unmarked(after), op=node.op, inputs=inputs)))
    return write.finish()


def _by_type(write: RowWriter, node: Node, heads: int) -> tuple[tuple[Node, ...], str]:
    """The weights [H R, K, N] as [R, H, K, N]: the nodes that rearrange them, and their name."""
    name = node.inputs[1]
    matrices, *matrix = write.shape(name)
    shape, order = (heads, matrices // heads, *matrix), (1, 0, 2, 3)
    weights = write.array(name)
    if weights is not None:
        return (), write.constant("weights", weights.reshape(shape).transpose(order))
    by_head = write.node(Reshape(shape), (name,), f"{node.name}_by_head")
    by_type = write.node(Transpose(order), (by_head.output,), f"{node.name}_by_type")
    return (by_head, by_type), by_type.output


def _transpose_before(graph: Graph, node: Node) -> Node | None:
    """The transpose that orders the rows head by head, through views."""
    producer = graph.producer(node.inputs[0])
    while producer is not None and isinstance(producer.op, Reshape):
        producer = graph.producer(producer.inputs[0])
    if producer is None or producer.op != _SWAPPED:
        return None
    return producer if graph.shape(producer.output)[2] == graph.shape(node.inputs[0])[1] else None


def _transpose_after(graph: Graph, node: Node) -> Node | None:
    """The transpose that is the only reader of the results, through views."""
    width, reader = graph.shape(node.output)[1], node
    while reader is node or isinstance(reader.op, Reshape):
        users = graph.users(reader.output)
        if len(users) != 1 or reader.output in graph.outputs:
            return None
        (reader,) = users
    return reader if reader.op == _SWAPPED and graph.shape(reader.output)[2] == width else None


def _of_one_head(pointers: Ints, rows: int, heads: int) -> Ints | None:
    """The start of each type in the rows of one head; None if heads have different types, or rows are not grouped by
    head."""
    types, rest = divmod(len(pointers) - 1, heads)
    first = pointers[: types + 1]
    if rest or first[-1] != rows:
        return None
    expected = np.concatenate([first[:-1] + head * rows for head in range(heads)])
    return first if np.array_equal(pointers[:-1], expected) else None
