"""Turns sums and stacks over relations whose terms are equivalent reductions over edges into one reduction over all
edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pimflow.ir import Concat, Elementwise, Graph, Node, OnnxOp, Reshape, SegmentReduce, Spmm
from pimflow.passes.relations.all_edges import Rows, concatenated_rows
from pimflow.passes.relations.chain_writer import ChainWriter, is_rowwise
from pimflow.passes.relations.rows import Ints, RowWriter, keeps_rows, reduced_axes, unmarked
from pimflow.records import NamedTuple


class _Term(NamedTuple):
    """scale[d] * total[d] + biases, in another view; total is a sum over the edges into d."""

    total: Node
    scale: Ints
    biases: tuple[str, ...]


def merged_sums(graph: Graph, node: Node, terms: Sequence[str], *, fold: bool = True) -> Graph | None:
    """A sum over relations of equivalent sums over edges, as one sum over the edges of all relations.

    FiLM and attention in relations are exported that way: for each relation its own products, functions of its edges,
    and a sum or mean over them. None if no two terms are equivalent.

    Args:
        graph: the graph that it is part of.
        node: the last Add.
        terms: the terms of this and the previous Adds.
        fold: whether equal weights become one, and biases are added up at compile time. If they are trained, nodes have
            to.
    """
    shape = graph.shape(node.output)
    full = [name for name in terms if graph.shape(name) == shape and len(shape) > 1]
    linear = {name: term for name in full if (term := _term(graph, name)) is not None}
    groups = _groups({name: _form(graph, term) for name, term in linear.items()})
    others = _groups({name: _producer(graph, name) for name in full if name not in linear})
    if not groups and not others:
        return None
    chains = ChainWriter(graph, _read_only_by(graph, node), fold=fold)
    made: dict[tuple[str, ...], list[str]] = {}
    for group in groups:
        own = [linear[name] for name in group]
        total = chains.reduced([term.total for term in own], summed=True, scales=[term.scale for term in own])
        if total is not None:
            made[group] = [_viewed(chains, total.name, shape, node.name), *_biases(graph, chains, own, fold)]
    for group in others:
        rows = chains.merged(group) if _is_over_edges(graph, group[0]) else None
        if rows is not None:
            made[group] = [_sum_of_rows(chains, rows, shape[0], node.name)]
    if not made:
        return None
    left = [name for name in terms if not any(name in group for group in made)]
    summed, *rest = [*(name for names in made.values() for name in names), *left]
    for name in rest:
        summed = chains.emit(Elementwise("Add"), (summed, name), node.name)
    return _replace_node(chains, node)


def _viewed(chains: ChainWriter, name: str, shape: tuple[int, ...], like: str) -> str:
    """Rows in another shape."""
    return name if chains.writer.shape(name) == shape else chains.emit(Reshape(shape), (name,), like)


def _sum_of_rows(chains: ChainWriter, rows: Rows, count: int, like: str) -> str:
    """The sum over relations of `count` rows of each."""
    kinds = len(rows.begins)
    places = np.stack([rows.of(kind, np.arange(count)) for kind in range(kinds)], axis=1).reshape(-1)
    pointers = chains.writer.constant("rowptr", np.arange(count + 1, dtype=np.int64) * kinds)
    return chains.emit(Spmm(), (rows.name, pointers, chains.writer.index("alike", places)), like)


def _is_over_edges(graph: Graph, name: str) -> bool:
    """Whether a function of rows is one of reductions over edges."""
    node = graph.producer(name)
    while node is not None and (node.op.is_matrix_product or is_rowwise(graph, node)):
        computed = [item for item in node.inputs if item and item not in graph.constants]
        node = graph.producer(computed[0]) if computed else None
    return node is not None and isinstance(node.op, Spmm | SegmentReduce)


def _biases(graph: Graph, chains: ChainWriter, terms: Sequence[_Term], fold: bool) -> list[str]:
    """The values that are added to all rows of the sums."""
    names = [name for term in terms for name in term.biases]
    if not fold or not names:
        return names
    total = np.sum([graph.constants[name] for name in names], axis=0)
    return [chains.writer.constant("bias", total)] if total.any() else []


def merged_stack(graph: Graph, node: Node, *, fold: bool = True) -> Graph | None:
    """A concatenation of reductions over the edges of several relations, as one reduction.

    Attention over relations (HAN), and their maximum or mean, are exported that way. None for any other node.
    """
    if node.op != Concat(0) or len(node.inputs) < 2:
        return None
    names = tuple(_table(graph, name) for name in node.inputs)
    if len({graph.shape(name)[1:] for name in names}) > 1:  # one is no view of a table, such as a learnt one
        return None
    chains = ChainWriter(graph, _read_only_by(graph, node), fold=fold)
    rows = chains.merged(names) if len(set(names)) == len(names) and _is_over_edges(graph, names[0]) else None
    if rows is None or rows != concatenated_rows(rows.name, [graph.shape(name)[0] for name in names]):
        return None
    chains.emit(Reshape(graph.shape(node.output)), (rows.name,), node.name)
    return _replace_node(chains, node)


def _table(graph: Graph, name: str) -> str:
    """The source [N, ...] of which a part of a stack is the view [1, N, ...]; the part itself if it is no such view."""
    view = graph.producer(name)
    is_view = view is not None and isinstance(view.op, Reshape)
    return (
        view.inputs[0]
        if view is not None and is_view and graph.shape(name) == (1, *graph.shape(view.inputs[0]))
        else name
    )


def sum_of_stack(graph: Graph, node: Node) -> Graph | None:
    """The sum (or mean) over the first dimension of values stacked there, as a sum of these (times a number).

    This is how `HeteroConv` adds up the results of relations for a vertex. The sum has the node's name. None for any
    other node.
    """
    parts = _stacked(graph, node)
    if not parts:
        return None
    write, value = RowWriter(graph), graph.value(node.output)
    terms = tuple(
        write.constant("term", graph.constants[part][0]) if graph.shape(part) != value.shape else part for part in parts
    )
    made = [replace(unmarked(node), op=Elementwise("Sum"), inputs=terms)]
    if node.kind == "ReduceMean":
        total = write.editor.new_value(f"{node.output}_sum", value.shape, value.dtype)
        share = write.constant("share", np.array(1 / len(parts), value.dtype))
        made[0] = replace(made[0], outputs=(total,))
        made.append(write.node(Elementwise("Mul"), (total, share), node.name, node.output))
    write.editor.replace_node(node.name, made)
    return write.finish()


def _stacked(graph: Graph, node: Node) -> list[str]:
    """The values that a node adds up over the first dimension, if nothing else reads the stack; empty for any other
    node. Constants are still parts of the stack, with that dimension."""
    if not isinstance(node.op, OnnxOp) or node.op.domain or node.kind not in ("ReduceSum", "ReduceMean"):
        return []
    stack = graph.producer(node.inputs[0])
    if stack is None or stack.op != Concat(0) or len(graph.users(stack.output)) > 1 or stack.output in graph.outputs:
        return []
    parts = [_table(graph, name) for name in stack.inputs]
    shape = graph.shape(node.output)
    fits = all(graph.shape(name) == ((1, *shape) if name in graph.constants else shape) for name in parts)
    return parts if fits and reduced_axes(graph, node) == (0,) else []


def _replace_node(chains: ChainWriter, node: Node) -> Graph:
    """The graph with the written nodes in place of a node."""
    chains.made[-1] = replace(chains.made[-1], outputs=node.outputs)
    chains.writer.editor.replace_node(node.name, chains.made)
    return chains.writer.finish()


def _read_only_by(graph: Graph, node: Node) -> frozenset[str]:
    """The names of nodes whose values only a given node reads, directly or indirectly."""
    inner = {node.name}
    for other in reversed(graph.nodes):
        users = [user.name for name in other.outputs for user in graph.users(name)]
        if users and inner.issuperset(users) and not any(name in graph.outputs for name in other.outputs):
            inner.add(other.name)
    return frozenset(inner)


def _groups(forms: dict[str, object]) -> list[tuple[str, ...]]:
    """Groups of two or more terms of the same form."""
    groups: dict[object, tuple[str, ...]] = {}
    for name, form in forms.items():
        groups[form] = (*groups.get(form, ()), name)
    return [group for group in groups.values() if len(group) > 1]


def _form(graph: Graph, term: _Term) -> object:
    """What sums over edges must have in common."""
    total = term.total
    values = _producer(graph, total.inputs[0]) if isinstance(total.op, SegmentReduce) else None
    return total.op, len(total.inputs), graph.shape(total.output), values


def _producer(graph: Graph, name: str) -> str:
    node = graph.producer(name)
    return "" if node is None else node.kind


def _term(graph: Graph, name: str) -> _Term | None:
    """A term as a sum over edges, times one number per row, plus a bias for all rows."""
    rows = graph.shape(name)[0]
    scale: Ints = np.ones(rows)
    biases: list[str] = []
    while (node := graph.producer(name)) is not None and len(graph.users(name)) == 1 and name not in graph.outputs:
        if node.op in (Spmm(), SegmentReduce()):
            return _Term(node, scale, tuple(biases))
        if isinstance(node.op, Reshape) and keeps_rows(graph, node):
            name = node.inputs[0]
            continue
        parts = _with_constant(graph, node)
        if parts is None:
            return None
        name, constant = parts
        factor = _factor(graph.constants[constant], graph.shape(node.output))
        if (
            node.op == Elementwise("Add")
            and (scale == 1).all()
            and graph.constants[constant].size == graph.shape(node.output)[-1]
        ):
            biases.append(constant)
        elif factor is None or graph.shape(name) != graph.shape(node.output):
            return None
        elif node.op == Elementwise("Mul"):
            scale = scale * factor
        elif node.op == Elementwise("Div") and node.inputs[1] == constant:
            scale = scale / factor
        else:
            return None
    return None


def _with_constant(graph: Graph, node: Node) -> tuple[str, str] | None:
    """The operands of a node with two, a computed value and a constant."""
    if not isinstance(node.op, Elementwise) or len(node.inputs) != 2:
        return None
    names = sorted(node.inputs, key=graph.constants.__contains__)
    return (names[0], names[1]) if [name in graph.constants for name in names] == [False, True] else None


def _factor(array: Ints, shape: tuple[int, ...]) -> Ints | None:
    """A constant with one number for every row, as [rows]; None for any other, and where there are no numbers."""
    if 0 in shape:
        return None
    whole = np.broadcast_to(array, shape).reshape(shape[0], -1)
    first = whole[:, 0]
    return first.astype(np.float64) if np.array_equal(whole, np.broadcast_to(first[:, None], whole.shape)) else None
