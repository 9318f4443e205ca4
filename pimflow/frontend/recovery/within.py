"""Softmax over the edges of one type into a destination: one softmax per type, each written to its edges' rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pimflow.frontend.recovery.scene import Ints, Scene
from pimflow.frontend.recovery.softmax import Softmax, destinations_of, match_softmax
from pimflow.ir import Node


class Within(NamedTuple):
    """A softmax over groups of edges.

    Args:
        softmax: the op, and the logits in the exporter's order.
        groups: int64 [E], the group of every edge; a group is the edges of one type into one destination.
        rows: number of groups.
    """

    softmax: Softmax
    groups: Ints
    rows: int


class _Piece(NamedTuple):
    """The softmax of one type, its edges, and the destination of each of them."""

    softmax: Softmax
    edges: Ints
    into: Ints


def match_within(scene: Scene, node: Node) -> Within | None:
    """One softmax per type, written one after another into a value until each edge has its own; else None.

    The edges of a type are rows of the same logits, selected by a known index. Every edge must have exactly one type.
    """
    pieces: list[_Piece] = []
    edges, *columns = scene.shape(node.output) or (0,)
    if node.kind != "ScatterND" or len(columns) > 1:
        return None
    for write in _writes(scene, node):
        rows = _rows_written(scene, write)
        piece = None if rows is None else _piece(scene, write, rows)
        if piece is None or piece.softmax != (pieces or [piece])[0].softmax:
            return None
        pieces.append(piece)
    picked = np.concatenate([piece.edges for piece in pieces])
    if len(picked) != edges or (np.bincount(picked, minlength=edges) != 1).any():
        return None
    stride = 1 + max(int(piece.into.max(initial=0)) for piece in pieces)
    of_edges: Ints = np.empty(edges, np.int64)
    for index, piece in enumerate(pieces):
        of_edges[piece.edges] = piece.into + index * stride
    occurring, groups = np.unique(of_edges, return_inverse=True)
    return Within(pieces[0].softmax, groups.reshape(-1), len(occurring))


def _writes(scene: Scene, node: Node) -> Iterator[Node]:
    """The writes that make a value, last one first, except those of no rows."""
    last: Node | None = node
    while last is not None and last.kind == "ScatterND":
        if not len(scene.array(last.inputs[1])):
            last = scene.maker(scene.peel(last.inputs[0]))
            continue
        yield last
        last = scene.maker(scene.peel(last.inputs[0]))


def _rows_written(scene: Scene, node: Node) -> Ints | None:
    """The whole rows that a write replaces, in order; None if it writes anything else."""
    index, shape = scene.known.get(node.inputs[1]), scene.shape(node.output)
    if index is None or scene.node_attributes(node).get("reduction", "none") != "none" or index.ndim != 2:
        return None
    if index.shape[1] == 1:
        return index[:, 0]
    if len(shape) != 2 or index.shape[1] != 2 or not shape[1] or len(index) % shape[1]:
        return None
    places = index.reshape(-1, shape[1], 2)
    whole = (places[:, :, 0] == places[:, :1, 0]).all() and (places[:, :, 1] == np.arange(shape[1])).all()
    return places[:, 0, 0] if whole else None


def _piece(scene: Scene, node: Node, rows: Ints) -> _Piece | None:
    made = scene.maker(_as_rows(scene, node.inputs[2], (len(rows), *scene.shape(node.output)[1:])))
    into = None if made is None else destinations_of(scene, made)
    if made is None or into is None:
        return None
    found = match_softmax(scene, made, scene.segments(into.index, scene.shape(into.x)[0]))
    logits = None if found is None else scene.rows(found.logits)
    if found is None or logits is None or not np.array_equal(logits.index, rows):
        return None
    return _Piece(Softmax(found.op, scene.peel(logits.x)), rows, into.index)


def _as_rows(scene: Scene, name: str, shape: tuple[int, ...]) -> str:
    """The value of a given shape that updates are a flat view of; the updates themselves if they are not."""
    flat = scene.peel(name)
    node = scene.maker(flat)
    is_view = node is not None and node.kind == "Reshape" and scene.shape(node.inputs[0]) == shape
    return scene.peel(node.inputs[0]) if node is not None and is_view else flat
