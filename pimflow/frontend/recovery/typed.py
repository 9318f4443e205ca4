"""Rows times a matrix that is picked by the type of every edge, without a matrix for every edge."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pimflow.frontend.recovery.scene import Ints, Rows, Scene
from pimflow.frontend.structure import along_rows
from pimflow.ir import GatherRows, Node, TypedLinear


class Typed(NamedTuple):
    """Weights picked by the type of every edge: w[types[e]]."""

    weights: str
    types: Ints


class TypedRows(NamedTuple):
    """x[index[e]] @ w[types[e]] for every edge e, in the exporter's order."""

    rows: Rows
    typed: Typed


def match_typed(scene: Scene, product: Node | None) -> TypedRows | None:
    """A batch of vectors times matrices picked by type: [E, 1, K] @ [E, K, N]; None if that is not what a node does."""
    if product is None or not scene.is_product(product) or len(product.inputs) != 2:
        return None
    vectors, picked = (scene.maker(scene.peel(name)) for name in product.inputs)
    if vectors is None or vectors.kind not in ("Unsqueeze", "Reshape") or picked is None:
        return None
    rows, typed = scene.rows(vectors.inputs[0]), _pick(scene, picked)
    if rows is None or typed is None or len(scene.shape(rows.x)) != 2:
        return None
    edges, depth, columns = len(rows.index), scene.shape(rows.x)[1], scene.shape(typed.weights)[2]
    fits = scene.shape(vectors.output) == (edges, 1, depth) and scene.shape(product.output) == (edges, 1, columns)
    return TypedRows(rows, typed) if fits else None


def _pick(scene: Scene, node: Node) -> Typed | None:
    if node.kind not in ("Gather", "GatherND") or len(scene.shape(node.inputs[0])) != 3:
        return None
    index, attributes = scene.known.get(node.inputs[1]), scene.node_attributes(node)
    if index is None or attributes.get("axis", 0) not in (0, -3) or attributes.get("batch_dims", 0):
        return None
    column = node.kind == "GatherND" and index.shape[1:] == (1,)
    types = along_rows(index) if column or (node.kind == "Gather" and index.ndim == 1) else None
    return None if types is None or (types.size and types.min() < 0) else Typed(node.inputs[0], types)


def write_typed(scene: Scene, found: TypedRows, like: str) -> tuple[str, Ints]:
    """x W_r once for every pair of a row and a type that occurs, and the pair of every edge in the exporter's order.

    That is as few rows as there are (compact materialisation, as in Hector).
    """
    x, index, (weights, kinds) = found.rows.x, found.rows.index, found.typed
    sources, types = scene.shape(x)[0], scene.shape(weights)[0]
    unique, pair_of_edge = np.unique(kinds.astype(np.int64) * sources + index, return_inverse=True)
    picked = scene.constant("pair_sources", (unique % sources).astype(np.int32))
    bounds = np.searchsorted(unique, np.arange(types + 1, dtype=np.int64) * sources)
    pointers = scene.constant("pair_types", bounds.astype(np.int64))
    rows = scene.write(GatherRows(), x, picked, like=f"{like}/pairs")
    return scene.write(TypedLinear(), rows, weights, pointers, like=f"{like}/typed"), pair_of_edge.reshape(-1)
