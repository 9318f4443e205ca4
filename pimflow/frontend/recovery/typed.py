"""Rows times a matrix that is picked by the type of every edge, without a matrix for every edge."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pimflow.frontend.recovery.scene import Ints, Rows, Scene
from pimflow.frontend.structure import along_rows
from pimflow.ir import GatherRows, Node, Reshape, TypedLinear
from pimflow.sparse import by_id


class Typed(NamedTuple):
    """Weights picked by the type of every edge: w[types[e]]."""

    weights: str
    types: Ints


class TypedRows(NamedTuple):
    """x[index[e]] @ w[types[e]] for every row e, an edge's as a rule, in the exporter's order."""

    rows: Rows
    typed: Typed


def match_typed(scene: Scene, product: Node | None) -> TypedRows | None:
    """A batch of vectors times matrices picked by type, [E, 1, K] @ [E, K, N]; with heads [E, H, 1, K] @ [E, H, K, N].

    None if that is not what a node does.
    """
    if product is None or not scene.is_product(product) or len(product.inputs) != 2:
        return None
    vectors, picked = (scene.maker(scene.peel(name)) for name in product.inputs)
    if vectors is None or vectors.kind not in ("Unsqueeze", "Reshape") or picked is None:
        return None
    typed = _pick(scene, picked)
    if typed is None:
        return None
    rows = scene.rows(vectors.inputs[0]) or Rows(vectors.inputs[0], np.arange(len(typed.types)))
    edges, (_, *heads, depth, columns) = len(rows.index), scene.shape(typed.weights)
    fits = scene.shape(rows.x)[1:] == (*heads, depth) and scene.shape(vectors.output) == (edges, *heads, 1, depth)
    return TypedRows(rows, typed) if fits and scene.shape(product.output) == (edges, *heads, 1, columns) else None


def _pick(scene: Scene, node: Node) -> Typed | None:
    if node.kind not in ("Gather", "GatherND") or len(scene.shape(node.inputs[0])) not in (3, 4):
        return None
    index, attributes = scene.known.get(node.inputs[1]), scene.node_attributes(node)
    first_axis = attributes.get("axis", 0) in (0, -len(scene.shape(node.inputs[0])))
    if index is None or not first_axis or attributes.get("batch_dims", 0):
        return None
    column = node.kind == "GatherND" and index.shape[1:] == (1,)
    types = along_rows(index) if column or (node.kind == "Gather" and index.ndim == 1) else None
    if types is None or (types.size and (types.min() < 0 or types.max() >= scene.shape(node.inputs[0])[0])):
        return None
    return Typed(node.inputs[0], types)


def write_typed(scene: Scene, found: TypedRows, like: str) -> tuple[str, Ints]:
    """x W_r for every edge, type after type, and the row of every edge in the exporter's order.

    No matrix is copied for an edge. Whether rows that repeat are multiplied once is the business of passes. A product
    that is read in several orders is written once.
    """
    x, index, (weights, kinds) = found.rows.x, found.rows.index, found.typed
    key = (x, scene.key(index), weights, scene.key(kinds))
    if key not in scene.typed:
        scene.typed[key] = _written(scene, found, like)
    return scene.typed[key]


def _written(scene: Scene, found: TypedRows, like: str) -> tuple[str, Ints]:
    x, index, (weights, kinds) = found.rows.x, found.rows.index, found.typed
    begins, order = by_id(kinds, scene.shape(weights)[0])
    pointers = scene.constant("types", begins)
    rows = _picked(scene, x, index[order], "typed_sources", f"{like}/by_type")
    places: Ints = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return scene.write(TypedLinear(), rows, weights, pointers, like=f"{like}/typed"), places


def _picked(scene: Scene, x: str, index: Ints, what: str, like: str) -> str:
    """x[index], which is x itself where that is all its rows in order."""
    if len(index) == scene.shape(x)[0] and np.array_equal(index, np.arange(len(index))):
        return x
    return scene.write(GatherRows(), x, scene.constant(what, index.astype(np.int32)), like=like)


def write_product(scene: Scene, product: Node) -> None:
    """A product with a matrix for every row, of which no aggregation takes anything in, by type."""
    found = match_typed(scene, product)
    if found is None:
        return
    made, places = write_typed(scene, found, product.name)
    rows = _picked(scene, made, places, "rows", f"{product.name}/of_edges")
    scene.finish(product, scene.write(Reshape(scene.shape(product.output)), rows, like=product.name))
