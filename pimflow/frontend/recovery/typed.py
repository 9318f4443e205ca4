"""Products of rows with a matrix selected by the type of every edge, without a copy of a matrix per edge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pimflow.frontend.recovery.rewriter import Ints, Rewriter, Rows
from pimflow.frontend.structure import along_rows
from pimflow.ir import GatherRows, Node, Reshape, Transpose, TypedLinear
from pimflow.records import NamedTuple
from pimflow.sparse import by_id


class Typed(NamedTuple):
    """Weights selected by the type of every edge: w[types[e]], or the transposes of these if `transposed`."""

    weights: str
    types: Ints
    transposed: bool = False


class TypedRows(NamedTuple):
    """x[index[e]] @ w[types[e]] for every row e (usually an edge), in the exporter's order."""

    rows: Rows
    typed: Typed


class _Factors(NamedTuple):
    """A vector, [E, *heads, K], and a matrix, [E, *heads, K, N] or, if `transposed`, [.., N, K], for every row.

    `ones` is the number of dims of 1 before and after K in the product's operand, and before and after N in its result.
    """

    vectors: str
    matrices: str
    transposed: bool
    ones: tuple[int, int]

    def viewed(self, rows: Sequence[int], width: int) -> tuple[int, ...]:
        """The shape of vectors of a given width in the product."""
        before, after = self.ones
        return (*rows, *(1,) * before, width, *(1,) * after)


_EINSUMS = {"ab,abc->ac": False, "ab,acb->ac": True, "abc,abcd->abd": False, "abc,abdc->abd": True}
"""Equations of vectors times matrices row by row, letters in order of appearance; True for transposed matrices."""


def match_typed(rewriter: Rewriter, product: Node | None) -> TypedRows | None:
    """A batch of vectors times matrices selected by type: [E, 1, K] @ [E, K, N], [E, N, K] @ [E, K, 1] or "ek,ekn->en".

    With heads, [E, H, 1, K] @ [E, H, K, N] and so on, or a view of [E H, 1, K] @ [E H, K, N], where rows of H K are
    viewed as blocks. None for any other node.
    """
    if product is None or len(product.inputs) != 2:
        return None
    if product.kind == "Reshape":
        return _of_blocks(rewriter, product)
    for factors in _of_einsum(rewriter, product) if product.kind == "Einsum" else _of_product(rewriter, product):
        gather = rewriter.producer(rewriter.peel(factors.matrices))
        typed = _match_gather(rewriter, gather, transposed=factors.transposed)
        if typed is None:
            continue
        rows = rewriter.rows(factors.vectors) or Rows(factors.vectors, np.arange(len(typed.types)))
        heads, depth, columns = sizes_of(rewriter, typed)
        each = (len(typed.types), *heads)
        fits = rewriter.shape(rows.x)[1:] == (*heads, depth) and rewriter.shape(factors.vectors) == (*each, depth)
        if fits and rewriter.shape(product.output) == factors.viewed(each, columns):
            return TypedRows(rows, typed)
    return None


def _of_blocks(rewriter: Rewriter, view: Node) -> TypedRows | None:
    """Rows viewed as blocks, [E, H K] as [E H, 1, K], times matrices selected by type, [E H, K, N], viewed as rows."""
    product = rewriter.producer(rewriter.peel(view.inputs[0]))
    if product is None or not rewriter.is_product(product):
        return None
    blocks, matrices = (rewriter.producer(rewriter.peel(name)) for name in product.inputs[:2])
    if blocks is None or matrices is None or (blocks.kind, matrices.kind) != ("Reshape", "Reshape"):
        return None
    typed = _match_gather(rewriter, rewriter.producer(rewriter.peel(matrices.inputs[0])), transposed=False)
    if typed is None or len(rewriter.shape(typed.weights)) != 4:
        return None
    heads, depth, columns = rewriter.shape(typed.weights)[1:]
    edges = len(typed.types)
    each = edges * heads
    shapes = [rewriter.shape(name) for name in (blocks.inputs[0], *product.inputs[:2], view.output)]
    if shapes != [(edges, heads * depth), (each, 1, depth), (each, depth, columns), (edges, heads * columns)]:
        return None
    return TypedRows(rewriter.rows(blocks.inputs[0]) or Rows(blocks.inputs[0], np.arange(edges)), typed)


def sizes_of(rewriter: Rewriter, typed: Typed) -> tuple[list[int], int, int]:
    """The head dims of the weights, and the rows and columns of each matrix (transposed if `transposed`)."""
    _, *heads, depth, columns = rewriter.shape(typed.weights)
    return (heads, columns, depth) if typed.transposed else (heads, depth, columns)


def _of_product(rewriter: Rewriter, product: Node) -> Iterator[_Factors]:
    """Vectors as rows to the left of matrices, or as columns to the right of them."""
    if not rewriter.is_product(product):
        return
    first, second = product.inputs
    for vectors, matrices, ones in ((first, second, (1, 0)), (second, first, (0, 1))):
        view = rewriter.producer(rewriter.peel(vectors))
        if view is None or view.kind not in ("Unsqueeze", "Reshape"):
            continue
        factors = _Factors(view.inputs[0], matrices, ones == (0, 1), ones)
        given = rewriter.shape(view.inputs[0])
        if given and rewriter.shape(view.output) == factors.viewed(given[:-1], given[-1]):
            yield factors


def _of_einsum(rewriter: Rewriter, product: Node) -> Iterator[_Factors]:
    """The factors of an Einsum; either operand may be the vectors."""
    equation = str(rewriter.node_attributes(product).get("equation", "")).replace(" ", "")
    operands, _, made = equation.partition("->")
    terms = operands.split(",")
    for vectors, matrices in ((0, 1), (1, 0)) if len(terms) == 2 else ():
        found = _EINSUMS.get(_renamed(f"{terms[vectors]},{terms[matrices]}->{made}"))
        if found is not None:
            yield _Factors(product.inputs[vectors], product.inputs[matrices], found, (0, 0))


def _renamed(equation: str) -> str:
    """An Einsum's equation with its letters renamed to a, b, .. in order of appearance."""
    letters = dict.fromkeys(letter for letter in equation if letter.isalpha())
    return equation.translate({ord(letter): chr(ord("a") + index) for index, letter in enumerate(letters)})


def _match_gather(rewriter: Rewriter, node: Node | None, *, transposed: bool) -> Typed | None:
    if node is None or node.kind not in ("Gather", "GatherND") or len(rewriter.shape(node.inputs[0])) not in (3, 4):
        return None
    index, attributes = rewriter.known.get(node.inputs[1]), rewriter.node_attributes(node)
    first_axis = attributes.get("axis", 0) in (0, -len(rewriter.shape(node.inputs[0])))
    if index is None or not first_axis or attributes.get("batch_dims", 0):
        return None
    column = node.kind == "GatherND" and index.shape[1:] == (1,)
    types = along_rows(index) if column or (node.kind == "Gather" and index.ndim == 1) else None
    if types is None or (types.size and (types.min() < 0 or types.max() >= rewriter.shape(node.inputs[0])[0])):
        return None
    return Typed(node.inputs[0], types, transposed)


def write_typed(rewriter: Rewriter, found: TypedRows, like: str) -> tuple[str, Ints]:
    """x W_r for every edge, type by type, and the row of every edge (in the exporter's order) in that result.

    No matrix is copied per edge. Passes decide whether repeated rows are multiplied only once. A product that is read
    in several orders is written once.
    """
    (x, index), (weights, kinds, transposed) = (found.rows.x, found.rows.index), found.typed
    key = (x, rewriter.key(index), weights, rewriter.key(kinds), str(transposed))
    if key not in rewriter.typed:
        rewriter.typed[key] = _write_typed(rewriter, found, like)
    return rewriter.typed[key]


def _write_typed(rewriter: Rewriter, found: TypedRows, like: str) -> tuple[str, Ints]:
    (x, index), (weights, kinds, transposed) = (found.rows.x, found.rows.index), found.typed
    if transposed:
        rank = len(rewriter.shape(weights))
        transpose = Transpose((*range(rank - 2), rank - 1, rank - 2))
        weights = rewriter.write(transpose, weights, like=f"{like}/weights")
    begins, order = by_id(kinds, rewriter.shape(weights)[0])
    pointers = rewriter.constant("types", begins)
    rows = _gathered_rows(rewriter, x, index[order], "typed_sources", f"{like}/by_type")
    heads, depth, _ = sizes_of(rewriter, Typed(weights, kinds))
    if rewriter.shape(rows)[1:] != (*heads, depth):
        rows = rewriter.write(Reshape((len(order), *heads, depth)), rows, like=f"{like}/blocks")
    places: Ints = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return rewriter.write(TypedLinear(), rows, weights, pointers, like=f"{like}/typed"), places


def _gathered_rows(rewriter: Rewriter, x: str, index: Ints, what: str, like: str) -> str:
    """x[index]; x itself if the index is all its rows in order."""
    if len(index) == rewriter.shape(x)[0] and np.array_equal(index, np.arange(len(index))):
        return x
    return rewriter.write(GatherRows(), x, rewriter.constant(what, index.astype(np.int32)), like=like)


def write_product(rewriter: Rewriter, product: Node, found: TypedRows) -> None:
    """Replaces a product with a matrix per row by products by type."""
    made, places = write_typed(rewriter, found, product.name)
    rows = _gathered_rows(rewriter, made, places, "rows", f"{product.name}/of_edges")
    rewriter.finish(product, rewriter.write(Reshape(rewriter.shape(product.output)), rows, like=product.name))
