"""Products of rows with a matrix selected by the type of every edge, without a copy of a matrix per edge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pimflow.frontend.recovery.scene import Ints, Rows, Scene
from pimflow.frontend.structure import along_rows
from pimflow.ir import GatherRows, Node, Reshape, Transpose, TypedLinear
from pimflow.sparse import by_id


class Typed(NamedTuple):
    """Weights selected by the type of every edge: w[types[e]], or the transposes of these if `turned`."""

    weights: str
    types: Ints
    turned: bool = False


class TypedRows(NamedTuple):
    """x[index[e]] @ w[types[e]] for every row e (usually an edge), in the exporter's order."""

    rows: Rows
    typed: Typed


class _Factors(NamedTuple):
    """A vector for every row, [E, *heads, K], and a matrix for every row, [E, *heads, K, N] or, `turned`, [.., N, K].

    `ones` is the number of dims of 1 before and after K in the product's operand, and before and after N in its result.
    """

    vectors: str
    matrices: str
    turned: bool
    ones: tuple[int, int]

    def viewed(self, rows: Sequence[int], width: int) -> tuple[int, ...]:
        """The shape of vectors of a given width in the product."""
        before, behind = self.ones
        return (*rows, *(1,) * before, width, *(1,) * behind)


_EINSUMS = {"ab,abc->ac": False, "ab,acb->ac": True, "abc,abcd->abd": False, "abc,abdc->abd": True}
"""Equations of vectors times matrices row by row, letters in order of appearance; True for transposed matrices."""


def match_typed(scene: Scene, product: Node | None) -> TypedRows | None:
    """A batch of vectors times matrices selected by type: [E, 1, K] @ [E, K, N], [E, N, K] @ [E, K, 1] or "ek,ekn->en".

    With heads, [E, H, 1, K] @ [E, H, K, N] and so on, or a view of [E H, 1, K] @ [E H, K, N], where rows of H K are
    viewed as blocks. None for any other node.
    """
    if product is None or len(product.inputs) != 2:
        return None
    if product.kind == "Reshape":
        return _of_blocks(scene, product)
    for factors in _of_einsum(scene, product) if product.kind == "Einsum" else _of_product(scene, product):
        typed = _pick(scene, scene.maker(scene.peel(factors.matrices)), turned=factors.turned)
        if typed is None:
            continue
        rows = scene.rows(factors.vectors) or Rows(factors.vectors, np.arange(len(typed.types)))
        heads, depth, columns = sizes_of(scene, typed)
        each = (len(typed.types), *heads)
        fits = scene.shape(rows.x)[1:] == (*heads, depth) and scene.shape(factors.vectors) == (*each, depth)
        if fits and scene.shape(product.output) == factors.viewed(each, columns):
            return TypedRows(rows, typed)
    return None


def _of_blocks(scene: Scene, view: Node) -> TypedRows | None:
    """Rows viewed as blocks, [E, H K] as [E H, 1, K], times matrices selected by type, [E H, K, N], viewed as rows."""
    product = scene.maker(scene.peel(view.inputs[0]))
    if product is None or not scene.is_product(product):
        return None
    blocks, matrices = (scene.maker(scene.peel(name)) for name in product.inputs[:2])
    if blocks is None or matrices is None or (blocks.kind, matrices.kind) != ("Reshape", "Reshape"):
        return None
    typed = _pick(scene, scene.maker(scene.peel(matrices.inputs[0])), turned=False)
    if typed is None or len(scene.shape(typed.weights)) != 4:
        return None
    heads, depth, columns = scene.shape(typed.weights)[1:]
    edges = len(typed.types)
    each = edges * heads
    shapes = [scene.shape(name) for name in (blocks.inputs[0], *product.inputs[:2], view.output)]
    if shapes != [(edges, heads * depth), (each, 1, depth), (each, depth, columns), (edges, heads * columns)]:
        return None
    return TypedRows(scene.rows(blocks.inputs[0]) or Rows(blocks.inputs[0], np.arange(edges)), typed)


def sizes_of(scene: Scene, typed: Typed) -> tuple[list[int], int, int]:
    """The head dims of the weights, and the rows and columns of each matrix (transposed if `turned`)."""
    _, *heads, depth, columns = scene.shape(typed.weights)
    return (heads, columns, depth) if typed.turned else (heads, depth, columns)


def _of_product(scene: Scene, product: Node) -> Iterator[_Factors]:
    """Vectors as rows to the left of matrices, or as columns to the right of them."""
    if not scene.is_product(product):
        return
    first, second = product.inputs
    for vectors, matrices, ones in ((first, second, (1, 0)), (second, first, (0, 1))):
        view = scene.maker(scene.peel(vectors))
        if view is None or view.kind not in ("Unsqueeze", "Reshape"):
            continue
        factors = _Factors(view.inputs[0], matrices, ones == (0, 1), ones)
        given = scene.shape(view.inputs[0])
        if given and scene.shape(view.output) == factors.viewed(given[:-1], given[-1]):
            yield factors


def _of_einsum(scene: Scene, product: Node) -> Iterator[_Factors]:
    """The factors of an Einsum; either operand may be the vectors."""
    equation = str(scene.node_attributes(product).get("equation", "")).replace(" ", "")
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


def _pick(scene: Scene, node: Node | None, *, turned: bool) -> Typed | None:
    if node is None or node.kind not in ("Gather", "GatherND") or len(scene.shape(node.inputs[0])) not in (3, 4):
        return None
    index, attributes = scene.known.get(node.inputs[1]), scene.node_attributes(node)
    first_axis = attributes.get("axis", 0) in (0, -len(scene.shape(node.inputs[0])))
    if index is None or not first_axis or attributes.get("batch_dims", 0):
        return None
    column = node.kind == "GatherND" and index.shape[1:] == (1,)
    types = along_rows(index) if column or (node.kind == "Gather" and index.ndim == 1) else None
    if types is None or (types.size and (types.min() < 0 or types.max() >= scene.shape(node.inputs[0])[0])):
        return None
    return Typed(node.inputs[0], types, turned)


def write_typed(scene: Scene, found: TypedRows, like: str) -> tuple[str, Ints]:
    """x W_r for every edge, type by type, and the row of every edge (in the exporter's order) in that result.

    No matrix is copied per edge. Passes decide whether repeated rows are multiplied only once. A product that is read
    in several orders is written once.
    """
    (x, index), (weights, kinds, turned) = (found.rows.x, found.rows.index), found.typed
    key = (x, scene.key(index), weights, scene.key(kinds), str(turned))
    if key not in scene.typed:
        scene.typed[key] = _written(scene, found, like)
    return scene.typed[key]


def _written(scene: Scene, found: TypedRows, like: str) -> tuple[str, Ints]:
    (x, index), (weights, kinds, turned) = (found.rows.x, found.rows.index), found.typed
    if turned:
        rank = len(scene.shape(weights))
        turn = Transpose((*range(rank - 2), rank - 1, rank - 2))
        weights = scene.write(turn, weights, like=f"{like}/weights")
    begins, order = by_id(kinds, scene.shape(weights)[0])
    pointers = scene.constant("types", begins)
    rows = _picked(scene, x, index[order], "typed_sources", f"{like}/by_type")
    heads, depth, _ = sizes_of(scene, Typed(weights, kinds))
    if scene.shape(rows)[1:] != (*heads, depth):
        rows = scene.write(Reshape((len(order), *heads, depth)), rows, like=f"{like}/blocks")
    places: Ints = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return scene.write(TypedLinear(), rows, weights, pointers, like=f"{like}/typed"), places


def _picked(scene: Scene, x: str, index: Ints, what: str, like: str) -> str:
    """x[index]; x itself if the index is all its rows in order."""
    if len(index) == scene.shape(x)[0] and np.array_equal(index, np.arange(len(index))):
        return x
    return scene.write(GatherRows(), x, scene.constant(what, index.astype(np.int32)), like=like)


def write_product(scene: Scene, product: Node, found: TypedRows) -> None:
    """Replaces a product with a matrix per row by products by type."""
    made, places = write_typed(scene, found, product.name)
    rows = _picked(scene, made, places, "rows", f"{product.name}/of_edges")
    scene.finish(product, scene.write(Reshape(scene.shape(product.output)), rows, like=product.name))
