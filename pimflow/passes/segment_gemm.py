"""Turns products whose matrix depends on an edge's type into one product of rows sorted by type."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pimflow.ir import Concat, Elementwise, GatherRows, Gemm, Graph, Node, OnnxOp, Refusal, Reshape, Spmm, TypedLinear
from pimflow.passes.base import Pass, PassResult
from pimflow.passes.relations import Ints, RowWriter, index_of, keeps_rows, picked, rewritten, unmarked
from pimflow.passes.relations.heads import heads_in_rows
from pimflow.passes.relations.joined import joined_products
from pimflow.passes.relations.merged_sums import merged_stack, merged_sums, sum_of_stack
from pimflow.records import NamedTuple, dataclass

Weights = npt.NDArray[Any]


@dataclass(frozen=True)
class SegmentGemm(Pass):
    """Turns matrices that are picked by type into a `TypedLinear`, which copies no matrix (Hector's segment MM).

    - A batch of rows, each times a matrix that a constant picks from those of all types: rows are brought into the
      order of their types, and their products back.
    - A sum over types of (A_r X) W_r, each an `Spmm` and a product, as loops over relations are exported: one `Spmm`
      sums (or takes the maximum of) the rows that each type's edges lead to, one `TypedLinear` multiplies them, and an
      `Spmm` adds up the results of all types for each vertex. Block-diagonal W_r, an Einsum of blocks of each row,
      become matrices of heads.
    - Such a sum over different tables, for example of several kinds of vertices: one product of its terms' rows side by
      side with all weights stacked. The product of a vertex itself for every relation is part of it.
    - A sum over types, or a stack, of anything else that has the same form for all of them and reduces their edges
      (FiLM, attention in each relation): the same over the edges of all types at once, with products of one table side
      by side.
    - A `TypedLinear` over heads that were concatenated: one over rows with all heads, which stay in place.

    Args:
        leave: products, and last Adds of sums, that stay as they are.
        fold: whether weights of the same rows are added up at compile time. If they are trained, each one stays.
    """

    name: ClassVar[str] = "segment-gemm"

    leave: tuple[str, ...] = ()
    fold: bool = True

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph; the notes say why products with matrices of types, and sums, stay."""
        return rewritten(graph, self.leave, partial(_segmented, self.fold))


def _segmented(fold: bool, graph: Graph, node: Node) -> Graph | Refusal | None:
    if node.op.is_matrix_product:
        return _picked_matrices(graph, node)
    summed = sum_of_stack(graph, node)
    if summed is not None:
        made, stack = _loop(fold, summed, summed.node(node.name)), graph.producer(node.inputs[0])
        assert stack is not None
        if isinstance(made, Graph):
            return made
        apart = _constants_apart(summed, summed.node(node.name)) if fold else None
        return merged_stack(graph, stack, fold=fold) or apart or made
    read = graph.users(node.output)
    found = heads_in_rows(graph, node)
    if found is None and node.op == Concat(0) and not any(sum_of_stack(graph, user) for user in read):
        found = merged_stack(graph, node, fold=fold)
    return _loop(fold, graph, node) if found is None else found


# ---- a matrix for every row


def _picked_matrices(graph: Graph, node: Node) -> Graph | Refusal | None:
    """[E, 1, K] @ W[types], W [R, K, N], as a `TypedLinear`; with heads [E, H, 1, K] and W [R, H, K, N]."""
    pick = graph.producer(node.inputs[1])
    if pick is None or not isinstance(pick.op, GatherRows) or len(graph.shape(pick.inputs[0])) not in (3, 4):
        return None
    types, edges = index_of(graph, pick), graph.shape(pick.output)[0]
    kinds, *row, _ = graph.shape(pick.inputs[0])
    if types is None:
        return Refusal("the matrix of each row is only known at run time")
    if graph.shape(node.inputs[0]) != (edges, *row[:-1], 1, row[-1]):
        return Refusal("each matrix multiplies several rows: these are matrix products already")
    write, made = RowWriter(graph), list[Node]()
    order, pointers = _by_type(types, kinds)
    rows, picks = picked(graph, node.inputs[0])
    if picks is None or graph.shape(rows)[1:] != tuple(row):
        made.append(write.node(Reshape((edges, *row)), (node.inputs[0],), f"{node.name}_rows"))
        rows, picks = made[-1].output, np.arange(edges)
    made.append(write.node(GatherRows(), (rows, write.index("by_type", picks[order])), f"{node.name}_by_type"))
    inputs = (made[-1].output, pick.inputs[0], write.constant("types", pointers))
    made.append(write.node(TypedLinear(), inputs, f"{node.name}_typed"))
    places = np.empty_like(order)
    places[order] = np.arange(edges)
    made.append(write.node(GatherRows(), (made[-1].output, write.index("places", places)), f"{node.name}_of_edges"))
    made.append(replace(unmarked(node), op=Reshape(graph.shape(node.output)), inputs=(made[-1].output,)))
    write.editor.replace_node(node.name, made)
    return write.finish()


def _by_type(types: Ints, kinds: int) -> tuple[Ints, Ints]:
    """The order of rows by type, and the start of each type."""
    order = np.argsort(types, kind="stable")
    pointers = np.concatenate([[0], np.cumsum(np.bincount(types, minlength=kinds))])
    return order, pointers.astype(np.int64)


# ---- a loop over types


class Relation(NamedTuple):
    """(A_r X) W_r: the reduction over edges, the product after it, and its weights [K, N], or [H, K, N] by blocks."""

    total: Node
    product: Node
    weights: Weights


def _loop(fold: bool, graph: Graph, node: Node) -> Graph | Refusal | None:
    """A sum of products after sums over edges of the same rows, or of other functions of edges."""
    if not _is_add(node) or any(_is_add(user) for user in _only_users(graph, node)):
        return None
    terms = _terms(graph, node, graph.shape(node.output))
    computed = [term for term in terms if term not in graph.constants]
    if len(set(computed)) < len(computed):
        return None  # a value that is added twice counts twice
    made = _of_products(fold, graph, node, terms)
    return made if isinstance(made, Graph) else merged_sums(graph, node, terms, fold=fold) or made


def _constants_apart(graph: Graph, node: Node) -> Graph | None:
    """A sum whose constant terms, such as those of relations without edges, are one constant; None without any."""
    terms, value = _terms(graph, node, graph.shape(node.output)), graph.value(node.output)
    known = [graph.constants[term] for term in terms if term in graph.constants]
    computed = [term for term in terms if term not in graph.constants]
    if not known or not computed:
        return None
    write = RowWriter(graph)
    total = write.constant("constant_terms", np.sum(np.broadcast_arrays(*known), axis=0, dtype=known[0].dtype))
    op = Elementwise("Add" if len(computed) == 1 else "Sum")
    write.editor.replace_node(node.name, (replace(node, op=op, inputs=(*computed, total), outputs=(value.name,)),))
    return write.finish()


def _of_products(fold: bool, graph: Graph, node: Node, terms: list[str]) -> Graph | Refusal | None:
    shape = graph.shape(node.output)
    found = {term: _relation(graph, term) for term in terms if graph.shape(term) == shape}
    relations = _with_common_reduction(
        {term: relation for term, relation in found.items() if isinstance(relation, Relation)}
    )
    refused = [reason for reason in found.values() if isinstance(reason, Refusal)]
    rows = {relation.total.inputs[0] for relation in relations.values()}
    shapes = {relation.weights.shape for relation in relations.values()}
    if len(relations) < 2 or len(rows) > 1 or len(shapes) > 1:
        joined = joined_products(graph, node, terms, fold=fold)
        if joined is not None:
            return joined
    if len(relations) < 2:
        return refused[0] if len(relations) + len(refused) > 1 else None
    if len(rows) > 1:
        return Refusal("its terms are sums over edges of different rows")
    if len(shapes) > 1:
        return Refusal("its terms are multiplied by weights of different shapes")
    rest = [term for term in terms if term not in relations and not _is_zero(graph, term, shape, fold)]
    return _write_loop(graph, node, list(relations.values()), rest)


def _with_common_reduction(relations: dict[str, Relation]) -> dict[str, Relation]:
    """The relations that reduce their edges like most others: by sums, or by maxima."""
    most = Counter(relation.total.op for relation in relations.values()).most_common(1)
    return {term: relation for term, relation in relations.items() if relation.total.op == most[0][0]}


def _is_add(node: Node) -> bool:
    return isinstance(node.op, Elementwise) and node.op.kind in ("Add", "Sum")


def _only_users(graph: Graph, node: Node) -> Sequence[Node]:
    """The reader of a node's value, if there is only one."""
    users = graph.users(node.output)
    return users if len(users) == 1 and node.output not in graph.outputs else ()


def _terms(graph: Graph, node: Node, shape: tuple[int, ...]) -> list[str]:
    """The terms of a tree of Adds of one shape."""
    terms: list[str] = []
    for name in node.inputs:
        producer = graph.producer(name)
        inner = producer is not None and _is_add(producer) and graph.shape(name) == shape
        if producer is not None and inner and _only_users(graph, producer):
            terms.extend(_terms(graph, producer, shape))
        else:
            terms.append(name)
    return terms


def _relation(graph: Graph, name: str) -> Relation | Refusal | None:
    """A term as a product after a sum over edges; a refusal if it cannot be one of several."""
    view = graph.producer(name)
    if view is not None and isinstance(view.op, Reshape):
        return _by_blocks(graph, view)
    product = view
    if product is None or not product.op.is_matrix_product:
        return None
    total = graph.producer(product.inputs[0])
    if total is None or not isinstance(total.op, Spmm):
        return None
    if isinstance(product.op, Gemm) and (product.op != Gemm(trans_b=product.op.trans_b) or any(product.inputs[2:])):
        return Refusal(f"{product.name} is scaled, transposed, or adds a bias")
    if len(graph.shape(product.inputs[1])) != 2:
        return Refusal(f"{product.name} is not a product with one matrix")
    return _of_sum(graph, total, (product,))


def _by_blocks(graph: Graph, view: Node) -> Relation | Refusal | None:
    """Rows viewed as blocks, each times a matrix of its own, viewed as rows again."""
    product = graph.producer(view.inputs[0])
    if product is None or not isinstance(product.op, OnnxOp) or not _multiplies_blocks(product):
        return None
    inner = graph.producer(product.inputs[0])
    if inner is None or not isinstance(inner.op, Reshape):
        return None
    total = graph.producer(inner.inputs[0])
    if total is None or not isinstance(total.op, Spmm) or not (keeps_rows(graph, view) and keeps_rows(graph, inner)):
        return None
    return _of_sum(graph, total, (inner, product, view))


def _multiplies_blocks(node: Node) -> bool:
    """Whether an Einsum is [M, H, K] times [H, K, N], block by block."""
    assert isinstance(node.op, OnnxOp)
    equation = str(dict(node.op.attributes).get("equation", "")).replace(" ", "")
    found = re.fullmatch(r"(\w)(\w)(\w),\2\3(\w)->\1\2\4", equation)
    return node.op.op_type == "Einsum" and found is not None and len(set(found.groups())) == 4


def _of_sum(graph: Graph, total: Node, behind: tuple[Node, ...]) -> Relation | Refusal:
    """A sum (or another reduction) and the nodes after it as a term: a product, and views around it."""
    (product,) = (node for node in behind if not isinstance(node.op, Reshape))
    if not isinstance(total.op, Spmm) or total.op.empty or len(graph.shape(total.output)) != 2:
        return Refusal(f"{total.name} is not a reduction of rows over edges that gives 0 without edges")
    if any(item and item not in graph.constants for item in (*total.inputs[1:], product.inputs[1])):
        return Refusal(f"{total.name} or the weights of {product.name} are only known at run time")
    if not all(_only_users(graph, node) for node in (total, *behind)):
        return Refusal(f"other nodes also read {product.name} or the sum before it")
    weights = graph.constants[product.inputs[1]]
    turned = isinstance(product.op, Gemm) and product.op.trans_b
    return Relation(total, product, weights.T if turned else weights)


def _is_zero(graph: Graph, name: str, shape: tuple[int, ...], fold: bool) -> bool:
    """Whether a term is all zeros; zeros of one row may be a bias that is still to be trained."""
    array = graph.constants.get(name)
    return array is not None and not array.any() and (fold or array.shape == shape)


def _write_loop(graph: Graph, node: Node, relations: list[Relation], rest: list[str]) -> Graph | Refusal:
    write, made = RowWriter(graph), list[Node]()
    counts = [np.diff(graph.constants[relation.total.inputs[1]]) for relation in relations]
    reached = [np.flatnonzero(count) for count in counts]
    pointers = np.concatenate([[0], np.cumsum([len(rows) for rows in reached])]).astype(np.int64)
    if not pointers[-1]:
        return Refusal("it has no edges")
    first = relations[0].total
    degrees = np.concatenate([count[rows] for count, rows in zip(counts, reached, strict=True)])
    inputs = [
        first.inputs[0],
        write.constant("pair_rowptr", np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)),
        write.index("pair_col", np.concatenate([graph.constants[found.total.inputs[2]] for found in relations])),
        _joined(write, relations, 3, [np.arange(count.sum()) for count in counts]),
        _joined(write, relations, 4, reached),
    ]
    while not inputs[-1]:
        inputs.pop()
    made.append(write.node(first.op, inputs, f"{node.name}_pairs"))
    weights = np.stack([found.weights for found in relations])
    if weights.ndim == 4:
        blocks = Reshape((int(pointers[-1]), *weights.shape[1:3]))
        made.append(write.node(blocks, (made[-1].output,), f"{node.name}_blocks"))
    typed = (made[-1].output, write.constant("weights", weights), write.constant("pair_types", pointers))
    made.append(write.node(TypedLinear(), typed, f"{node.name}_typed"))
    if weights.ndim == 4:
        rows = Reshape((int(pointers[-1]), weights.shape[1] * weights.shape[3]))
        made.append(write.node(rows, (made[-1].output,), f"{node.name}_rows"))
    destinations = np.concatenate(reached)
    order, rowptr = _by_type(destinations, len(counts[0]))
    inputs = [made[-1].output, write.constant("rowptr", rowptr), write.index("col", order)]
    made.append(write.node(Spmm(), inputs, f"{node.name}_sum"))
    for term in rest:
        made.append(write.node(Elementwise("Add"), (made[-1].output, term), node.name))
    made[-1] = replace(made[-1], outputs=node.outputs)
    write.editor.replace_node(node.name, made)
    return write.finish()


def _joined(write: RowWriter, relations: list[Relation], position: int, chosen: list[Ints]) -> str:
    """Weights of edges, or scales of rows, of all types concatenated; "" if none has any."""
    names = [found.total.inputs[position] if position < len(found.total.inputs) else "" for found in relations]
    given = [write.graph.constants[name] for name in names if name]
    if not given:
        return ""
    arrays = [
        write.graph.constants[name][picks] if name else np.ones(len(picks), given[0].dtype)
        for name, picks in zip(names, chosen, strict=True)
    ]
    return write.constant("weight" if position == 3 else "row_scale", np.concatenate(arrays))
