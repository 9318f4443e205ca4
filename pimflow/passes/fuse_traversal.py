"""Fuses chains of kernels over the edges of a graph: no intermediate result is written for every edge."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np

from pimflow.ir import Elementwise, GatherPairs, Graph, Node, OnnxOp, Refusal, Reshape, SegmentReduce, Spmm, TypedLinear
from pimflow.passes.base import Pass, PassResult
from pimflow.passes.relations import (
    Ints,
    RowWriter,
    index_of,
    keeps_rows,
    reduced_axes,
    rewritten,
    types_of_rows,
    unmarked,
)
from pimflow.records import NamedTuple, dataclass

_PAIRINGS = {"Add": "add", "Mul": "mul"}


@dataclass(frozen=True)
class FuseTraversal(Pass):
    """Rewrites chains over edges as single kernels (Hector's traversal template).

    - A reduction of rows picked by an index, or of such rows times a number (per edge or head): an `Spmm`.
    - A sum or product of two rows, one or both of them picked by indices, and the sum of such a product over the last
      dimension: a `GatherPairs`.
    - A `TypedLinear` of rows picked by an index: one that reads them by the index itself (the template's products).
    - A row added to each row of a `TypedLinear` by its type: its bias.

    Functions of their results are epilogues already (`FuseEpilogues`).

    Args:
        leave: reductions, sums and products that stay as they are.
    """

    name: ClassVar[str] = "fuse-traversal"

    leave: tuple[str, ...] = ()

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph, node by node; the notes say why a reduction over edges still reads materialised rows."""
        return rewritten(graph, self.leave, _fused)


def _fused(graph: Graph, node: Node) -> Graph | Refusal | None:
    rule = _rule(node)
    return None if rule is None else rule(graph, node)


Rule = Callable[[Graph, Node], "Graph | Refusal | None"]


def _rule(node: Node) -> Rule | None:
    if isinstance(node.op, SegmentReduce):
        return _sum
    if isinstance(node.op, OnnxOp) and node.op.op_type == "ReduceSum" and not node.op.domain:
        return _dot
    if isinstance(node.op, TypedLinear):
        return _by_index
    return _pair if isinstance(node.op, Elementwise) and node.op.kind in _PAIRINGS else None


class Rows(NamedTuple):
    """x[picks], viewed as rows of another shape."""

    x: str
    picks: Ints
    shape: tuple[int, ...]


def _rows(graph: Graph, name: str) -> Rows | None:
    """A value as rows picked by a constant index, through views of whole rows."""
    shape = graph.shape(name)
    node = graph.producer(name)
    while node is not None and isinstance(node.op, Reshape) and keeps_rows(graph, node):
        node = graph.producer(node.inputs[0])
    index = index_of(graph, node)
    return None if node is None or index is None else Rows(node.inputs[0], index, shape[1:])


def _viewed(write: RowWriter, made: list[Node], name: str, shape: tuple[int, ...], like: str) -> str:
    """A value with another shape; the value itself if it has that shape."""
    if write.shape(name) == shape:
        return name
    known = write.graph.constants.get(name)
    if known is not None:
        return write.constant(f"{like}_view", known.reshape(shape))
    made.append(write.node(Reshape(shape), (name,), f"{like}_view"))
    return made[-1].output


def _table(write: RowWriter, made: list[Node], rows: Rows, like: str) -> str:
    """The table that rows are picked from, in the shape that the rows are viewed in."""
    return _viewed(write, made, rows.x, (write.shape(rows.x)[0], *rows.shape), like)


# ---- reductions


def _sum(graph: Graph, node: Node) -> Graph | Refusal:
    """SegmentReduce([weight *] x[index]) as an Spmm."""
    assert isinstance(node.op, SegmentReduce)
    given = node.inputs[0]
    if len(graph.shape(given)) < 2:
        return Refusal("the rows that it reduces have no columns")
    if node.inputs[1] not in graph.constants:
        return Refusal("the edges into each vertex are only known at run time")
    plain = _rows(graph, given)
    if plain is not None:
        return _as_spmm(graph, node, plain, "", graph.shape(given))
    found = _product(graph, given)
    return found if isinstance(found, Refusal) else _as_spmm(graph, node, *found)


def _product(graph: Graph, name: str) -> tuple[Rows, str, tuple[int, ...]] | Refusal:
    """weight * x[index] through views: the rows, the weights, and the shape of the product."""
    producer = graph.producer(name)
    while producer is not None and isinstance(producer.op, Reshape) and keeps_rows(graph, producer):
        producer = _only_maker(graph, producer)
    if producer is None or not isinstance(producer.op, Elementwise) or producer.op.kind != "Mul":
        return Refusal("its operand is neither rows picked by a constant index nor such rows times weights")
    if len(producer.inputs) != 2 or len(graph.users(producer.output)) != 1:
        return Refusal("other nodes also read its messages")
    shape = graph.shape(producer.output)
    for one, weight in (producer.inputs, producer.inputs[::-1]):
        rows = _rows(graph, one)
        if rows is not None and graph.shape(one) == shape and _is_weight(graph.shape(weight), shape):
            return rows, weight, shape
    return Refusal("its messages are not rows picked by a constant index times one number per edge or head")


def _only_maker(graph: Graph, view: Node) -> Node | None:
    """The producer of a view's input, if nothing else reads that input."""
    return graph.producer(view.inputs[0]) if len(graph.users(view.inputs[0])) == 1 else None


def _is_weight(own: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a shape is one number per edge, or one per head of rows [E, H, C]."""
    if len(own) != len(shape) or own[0] != shape[0]:
        return False
    return math.prod(own[1:]) == 1 or (len(own) == 3 and own[1:] == (shape[1], 1))


def _as_spmm(graph: Graph, node: Node, rows: Rows, weight: str, shape: tuple[int, ...]) -> Graph:
    assert isinstance(node.op, SegmentReduce)
    write, made = RowWriter(graph), list[Node]()
    whole = graph.shape(node.output)
    inputs = [_table(write, made, Rows(rows.x, rows.picks, shape[1:]), node.name), node.inputs[1]]
    inputs.append(write.index("col", rows.picks))
    if weight:
        per_head = math.prod(write.shape(weight)[1:]) > 1
        inputs.append(_viewed(write, made, weight, shape[: 2 if per_head else 1], f"{node.name}_weight"))
    op = Spmm(node.op.reduce, node.op.start, node.op.empty)
    if (whole[0], *shape[1:]) == whole:
        write.editor.replace_node(node.name, (*made, replace(unmarked(node), op=op, inputs=tuple(inputs))))
        return write.finish()
    summed = write.editor.new_value(f"{node.output}_rows", (whole[0], *shape[1:]), graph.value(node.output).dtype)
    made.append(replace(unmarked(node), op=op, inputs=tuple(inputs), outputs=(summed,)))
    made.append(write.node(Reshape(whole), (summed,), f"{node.name}_view", node.output))
    write.editor.replace_node(node.name, made)
    return write.finish()


# ---- products


def _by_index(graph: Graph, node: Node) -> Graph | None:
    """x[index] W_r for rows that only products read, without writing the rows."""
    read = node.inputs[0]
    rows = None if any(node.inputs[3:4]) else _rows(graph, read)
    alone = read not in graph.outputs and all(isinstance(user.op, TypedLinear) for user in graph.users(read))
    if rows is None or not alone:
        return None
    write, made = RowWriter(graph), list[Node]()
    inputs = (_table(write, made, rows, node.name), *node.inputs[1:3], write.index("rows", rows.picks))
    write.editor.replace_node(node.name, (*made, replace(unmarked(node), inputs=(*inputs, *node.inputs[4:]))))
    return write.finish()


def _biased(graph: Graph, node: Node) -> Graph | None:
    """A `TypedLinear` and a row added to each of its rows by its type, as one."""
    for product, added in (node.inputs, node.inputs[::-1]) if len(node.inputs) == 2 else ():
        typed, bias = graph.producer(product), graph.producer(added)
        if typed is None or not isinstance(typed.op, TypedLinear) or len(typed.inputs) > 4:
            continue
        types, pointers = index_of(graph, bias), graph.constants.get(typed.inputs[2])
        alone = len(graph.users(product)) == 1 and product not in graph.outputs
        if bias is None or types is None or pointers is None or not alone:
            continue
        weights, shape = graph.shape(typed.inputs[1]), graph.shape(bias.inputs[0])
        if shape != (*weights[:-2], weights[-1]) or not np.array_equal(types, types_of_rows(pointers)):
            continue
        write = RowWriter(graph)
        index = typed.inputs[3] if len(typed.inputs) > 3 else ""
        inputs = (*typed.inputs[:3], index, bias.inputs[0])
        write.editor.replace_node(typed.name, ())
        write.editor.replace_node(node.name, (replace(unmarked(node), op=TypedLinear(), inputs=inputs),))
        return write.finish()
    return None


# ---- pairs


def _pair(graph: Graph, node: Node) -> Graph | None:
    """x[i] + y[j], or their product, in one kernel."""
    assert isinstance(node.op, Elementwise)
    biased = _biased(graph, node) if node.op == Elementwise("Add") else None
    if biased is not None:
        return biased
    ends = _ends(graph, node)
    if ends is None or _is_multiplied_and_summed(graph, node):
        return None
    return _as_pairs(graph, node, _PAIRINGS[node.op.kind], ends, graph.shape(node.output))


def _is_multiplied_and_summed(graph: Graph, node: Node) -> bool:
    """Whether a product is read only by a reduction that absorbs it."""
    users = graph.users(node.output)
    is_absorbed = len(users) == 1 and (_rule(users[0]) is _dot or isinstance(users[0].op, SegmentReduce))
    return is_absorbed and node.op == Elementwise("Mul")


def _dot(graph: Graph, node: Node) -> Graph | None:
    """A product of two rows, summed over its last dimension."""
    product = graph.producer(node.inputs[0])
    if product is None or not isinstance(product.op, Elementwise) or product.op.kind != "Mul":
        return None
    ends, shape = _ends(graph, product), graph.shape(product.output)
    if ends is None or len(graph.users(product.output)) != 1 or not _sums_last(graph, node, len(shape)):
        return None
    return _as_pairs(graph, node, "dot", ends, shape[:-1])


def _sums_last(graph: Graph, node: Node, rank: int) -> bool:
    return reduced_axes(graph, node) == (rank - 1,)


def _ends(graph: Graph, node: Node) -> tuple[Rows, Rows] | None:
    """Both operands as rows of the same shape, at least one of them picked by a constant index and read by nothing
    else."""
    if len(node.inputs) != 2 or node.inputs[0] == node.inputs[1]:
        return None
    shape = graph.shape(node.output)
    if any(graph.shape(name) != shape or name in graph.constants for name in node.inputs) or len(shape) < 2:
        return None
    first, second = (_picked_alone(graph, name) for name in node.inputs)
    if first is None and second is None:
        return None
    every = np.arange(shape[0])
    return first or Rows(node.inputs[0], every, shape[1:]), second or Rows(node.inputs[1], every, shape[1:])


def _picked_alone(graph: Graph, name: str) -> Rows | None:
    """Rows picked by a constant index, if only one node reads them."""
    return _rows(graph, name) if len(graph.users(name)) == 1 else None


def _as_pairs(graph: Graph, node: Node, pairing: str, ends: tuple[Rows, Rows], shape: tuple[int, ...]) -> Graph:
    write, made = RowWriter(graph), list[Node]()
    tables = [_table(write, made, rows, node.name) for rows in ends]
    picks = [write.index(what, rows.picks) for what, rows in zip(("first", "second"), ends, strict=True)]
    inputs, whole = (*tables, *picks), graph.shape(node.output)
    if shape == whole:
        write.editor.replace_node(node.name, (*made, replace(unmarked(node), op=GatherPairs(pairing), inputs=inputs)))
        return write.finish()
    made.append(write.node(GatherPairs(pairing), inputs, f"{node.name}_pairs"))
    made.append(replace(unmarked(node), op=Reshape(whole), inputs=(made[-1].output,)))
    write.editor.replace_node(node.name, made)
    return write.finish()
