"""Softmax over the edges of one type into a destination: one softmax per type, each written to its edges' rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pimflow.frontend.recovery.rewriter import Ints, Rewriter
from pimflow.frontend.recovery.softmax import Softmax, destinations_of, match_softmax
from pimflow.ir import Node
from pimflow.records import NamedTuple


class SoftmaxByType(NamedTuple):
    """A softmax over groups of edges.

    Args:
        softmax: the op, and the logits in the exporter's order.
        groups: int64 [E], the group of every edge; a group is the edges of one type into one destination.
        rows: number of groups.
    """

    softmax: Softmax
    groups: Ints
    rows: int


class _TypeSoftmax(NamedTuple):
    """The softmax of one type, its edges, and the destination of each of them."""

    softmax: Softmax
    edges: Ints
    destinations: Ints


def match_softmax_by_type(rewriter: Rewriter, node: Node) -> SoftmaxByType | None:
    """One softmax per type, written one after another into a value until each edge has its own; else None.

    The edges of a type are rows of the same logits, selected by a known index. Every edge must have exactly one type.
    """
    parts: list[_TypeSoftmax] = []
    edges, *columns = rewriter.shape(node.output) or (0,)
    if node.kind != "ScatterND" or len(columns) > 1:
        return None
    for write in _writes(rewriter, node):
        rows = _rows_written(rewriter, write)
        part = None if rows is None else _match_type(rewriter, write, rows)
        if part is None or part.softmax != (parts or [part])[0].softmax:
            return None
        parts.append(part)
    picked = np.concatenate([part.edges for part in parts])
    if len(picked) != edges or (np.bincount(picked, minlength=edges) != 1).any():
        return None
    stride = 1 + max(int(part.destinations.max(initial=0)) for part in parts)
    of_edges: Ints = np.empty(edges, np.int64)
    for index, part in enumerate(parts):
        of_edges[part.edges] = part.destinations + index * stride
    occurring, groups = np.unique(of_edges, return_inverse=True)
    return SoftmaxByType(parts[0].softmax, groups.reshape(-1), len(occurring))


def _writes(rewriter: Rewriter, node: Node) -> Iterator[Node]:
    """The writes that make a value, last one first, except those of no rows."""
    last: Node | None = node
    while last is not None and last.kind == "ScatterND":
        if not len(rewriter.array(last.inputs[1])):
            last = rewriter.producer(rewriter.peel(last.inputs[0]))
            continue
        yield last
        last = rewriter.producer(rewriter.peel(last.inputs[0]))


def _rows_written(rewriter: Rewriter, node: Node) -> Ints | None:
    """The whole rows that a write replaces, in order; None if it writes anything else."""
    index, shape = rewriter.known.get(node.inputs[1]), rewriter.shape(node.output)
    if index is None or rewriter.node_attributes(node).get("reduction", "none") != "none" or index.ndim != 2:
        return None
    if index.shape[1] == 1:
        return index[:, 0]
    if len(shape) != 2 or index.shape[1] != 2 or not shape[1] or len(index) % shape[1]:
        return None
    places = index.reshape(-1, shape[1], 2)
    whole = (places[:, :, 0] == places[:, :1, 0]).all() and (places[:, :, 1] == np.arange(shape[1])).all()
    return places[:, 0, 0] if whole else None


def _match_type(rewriter: Rewriter, node: Node, rows: Ints) -> _TypeSoftmax | None:
    made = rewriter.producer(_as_rows(rewriter, node.inputs[2], (len(rows), *rewriter.shape(node.output)[1:])))
    destinations = None if made is None else destinations_of(rewriter, made)
    if made is None or destinations is None:
        return None
    found = match_softmax(rewriter, made, rewriter.segments(destinations.index, rewriter.shape(destinations.x)[0]))
    logits = None if found is None else rewriter.rows(found.logits)
    if found is None or logits is None or not np.array_equal(logits.index, rows):
        return None
    return _TypeSoftmax(Softmax(found.op, rewriter.peel(logits.x)), rows, destinations.index)


def _as_rows(rewriter: Rewriter, name: str, shape: tuple[int, ...]) -> str:
    """The value of a given shape that updates are a flat view of; the updates themselves if they are not."""
    flat = rewriter.peel(name)
    node = rewriter.producer(flat)
    is_view = node is not None and node.kind == "Reshape" and rewriter.shape(node.inputs[0]) == shape
    return rewriter.peel(node.inputs[0]) if node is not None and is_view else flat
