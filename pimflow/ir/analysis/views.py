"""Chains of views: the strides of a Reshape or Transpose, which readers accept them, and when they save a copy."""

from __future__ import annotations

from collections.abc import Sequence

from pimflow.ir import Graph, Node, OnnxOp, Reshape, Slice, Transpose
from pimflow.ir.analysis.tensor_layout import (
    Index,
    dense_strides,
    element_bytes,
    inverse,
    permuted,
    reshaped_strides,
    same_strides,
)


def strides_for_views(graph: Graph, name: str) -> Index | None:
    """Strides of a value for which the last view after it is in order, if one of the views would otherwise be a copy.

    None if no such strides keep the rows of matrices dense, as products write them.
    """
    value = graph.value(name)
    if value.shape is None or element_bytes(value.dtype) is None:
        return None
    chain = views_after(graph, name)
    if not chain or not _needs_copy(graph, name, chain):
        return None
    strides = dense_strides(graph.shape(chain[-1].output))
    for node in reversed(chain):
        back = _view_strides(graph, node, strides, back=True)
        if back is None:
            return None
        strides = back
    return strides if strides[-1] == 1 else None


def views_after(graph: Graph, name: str) -> list[Node]:
    """The chain of Reshapes and Transposes after a value, each the only reader of the one before it."""
    chain: list[Node] = []
    while name not in graph.outputs and len(graph.users(name)) == 1:
        (reader,) = graph.users(name)
        is_view = isinstance(reader.op, (Reshape, Transpose))
        if not is_view or graph.value(reader.output).shape is None:
            break
        chain.append(reader)
        name = reader.output
    return chain


def _needs_copy(graph: Graph, name: str, chain: Sequence[Node]) -> bool:
    """Whether one of the views has to be a copy if the value is in order."""
    strides = dense_strides(graph.shape(name))
    for node in chain:
        after = _view_strides(graph, node, strides)
        shape = graph.shape(node.output)
        if after is None:
            return True
        strides = after
        if not same_strides(shape, strides, dense_strides(shape)) and not all_accept(graph, node.output, strides):
            return True
    return False


def _view_strides(graph: Graph, node: Node, strides: Index, *, back: bool = False) -> Index | None:
    """Strides of a view's output, given those of its input; with `back`, of its input, given those of its output."""
    before, after = graph.shape(node.inputs[0]), graph.shape(node.output)
    if isinstance(node.op, Transpose):
        return permuted(strides, inverse(node.op.perm) if back else node.op.perm)
    return reshaped_strides(after, strides, before) if back else reshaped_strides(before, strides, after)


def all_accept(graph: Graph, name: str, strides: Index) -> bool:
    """Whether all readers of a value in this graph accept its strides."""
    values = [name]
    while values:
        value = values.pop()
        if value in graph.outputs:
            return False
        for reader in graph.users(value):
            if _forwards_strides(reader):
                values.extend(reader.outputs)
            elif not _accepts_strides(reader, graph.shape(value), strides):
                return False
    return True


def _forwards_strides(node: Node) -> bool:
    """Whether a node passes the strides of its input on to its outputs."""
    return isinstance(node.op, Slice) or (isinstance(node.op, OnnxOp) and node.op.is_movement)


def _accepts_strides(node: Node, shape: Index, strides: Index) -> bool:
    if node.op.is_matrix_product:
        matrix = list(zip(shape, strides, strict=True))[-2:]
        return any(dim == 1 or stride == 1 for dim, stride in matrix) or _is_transposed(shape, strides)
    return node.op.is_movement


def _is_transposed(shape: Index, strides: Index) -> bool:
    """Whether strides are those of a transposed matrix that is in the layout's order, in which products read it too."""
    if len(shape) < 2:
        return False
    swap = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    return same_strides(shape, strides, permuted(dense_strides(permuted(shape, swap)), swap))
