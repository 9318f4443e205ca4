"""Which Slice, Pad, Concat, Reshape, Transpose, Split and Identity move bytes, and which are mere views of memory.

The algebra of places: a value is a box in a space, and a node places its output relative to its inputs:

    Slice      out = in + start                      always possible
    Split      out_k = in + offset_k                 always possible
    Identity   out = in                              always possible
    Concat     in_k = out + offset_k                 unless an operand is already elsewhere, or a cell has two writers
    Pad        out = in - before, margins filled     unless a margin has a writer or another constant
    Reshape    out views the bytes of in             if strides can express the view
    Transpose  out views the bytes of in             if strides can express the view

A view by Reshape or Transpose that is not in the layout's order is free only if every reader accepts it: a matrix
product (transposed or pitched operands), or another movement, which then copies once for both. A matrix product whose
result is read only through such views writes it in the order of the last of them, if its rows stay dense (heads of an
attention side by side: strided batches with a pitch).

A copy whose result is read only by copies is eliminated: they read its inputs instead, each element once (a roll in two
Concats before it is cut into windows, a Concat before channels are shuffled). It is *composed* with them, and its
result has no place.

Kernels read and write strided boxes, so a box of a larger space needs no copy; only the innermost axis of the layout
has to be dense.

Rules are local: a node with a region places only values written by its own region, so its verdict depends on nothing
else; a graph without regions is decided as a whole. The pass `MovementElimination` writes the verdicts for the whole
graph into the nodes' placements; rewrites keep them, and they apply wherever the node occurs again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from weakref import WeakKeyDictionary

from pimflow.ir import Concat, Graph, Node, Pad
from pimflow.ir.analysis import movement_joins, movement_views  # noqa: F401 -- rules of `PLACING`
from pimflow.ir.analysis.movement_walk import Movement, Places, Walk, movement_from
from pimflow.ir.analysis.views import strides_for_views

__all__ = ["Movement", "Places", "movement", "movement_of", "place"]

_ROUNDS = 4
"""The maximum number of consecutive copies composed into one: each round finds one more."""

_CACHE: WeakKeyDictionary[Graph, Places] = WeakKeyDictionary()


def place(graph: Graph) -> Places:
    """Places all values of a graph (linear in its nodes; cached as long as the graph lives)."""
    known = _CACHE.get(graph)
    if known is None:
        known = _CACHE[graph] = Walk(graph).run() if _is_decided(graph) else _place_undecided(graph)
    return known


def _is_decided(graph: Graph) -> bool:
    """Whether a graph has regions, or a node with a movement verdict."""
    return any(node.placement.movement is not None or node.placement.region is not None for node in graph.nodes)


def _place_undecided(graph: Graph) -> Places:
    """Places without prior verdicts: matrix products write in the order of the views after them, if that saves a copy,
    and copies read only by copies are composed."""
    products = (node.output for node in graph.nodes if node.op.is_matrix_product)
    reordered = frozenset(name for name in products if strides_for_views(graph, name) is not None)
    places = Walk(graph, reordered=reordered).run()
    composed: frozenset[str] = frozenset()
    for _ in range(_ROUNDS):
        more = frozenset(_composable(graph, places.movements))
        if more == composed:
            break
        found = Walk(graph, more, reordered).run()
        if not more <= set(_composable(graph, found.movements)):
            break
        composed, places = more, found
    return places


def _composable(graph: Graph, movements: Mapping[str, Movement]) -> Iterator[str]:
    """Names of the movement nodes that are copies or composed and whose results are read only by copies."""
    for node in graph.nodes:
        found = movements.get(node.name)
        if found is None or (found.free and not found.composed) or len(node.outputs) != 1:
            continue
        if graph.value(node.output).shape is not None and _only_copies_read(graph, node.output, movements):
            yield node.name


def _only_copies_read(graph: Graph, name: str, movements: Mapping[str, Movement]) -> bool:
    """Whether a value, and every view of it, is read only by copies."""
    values = [name]
    while values:
        value = values.pop()
        readers = graph.users(value)
        if value in graph.outputs or not readers:
            return False
        for reader in readers:
            found = movements.get(reader.name)
            if found is None or _relies_on_place(reader, value, found):
                return False
            if found.free and not found.composed:
                values.extend(reader.outputs)
    return True


def _relies_on_place(reader: Node, value: str, found: Movement) -> bool:
    """Whether a movement relies on the place of a value: to grow around it, or to use it in place in its own result."""
    if found.composed or not isinstance(reader.op, (Concat, Pad)):
        return False
    left = [index for index, name in enumerate(reader.inputs) if name == value and index not in found.copied]
    return found.free or (bool(found.copied) and bool(left))


def movement(graph: Graph) -> Mapping[str, Movement]:
    """The verdict on every movement node, by node name."""
    return place(graph).movements


def movement_of(graph: Graph, node: Node) -> Movement:
    """The verdict on one movement node; the whole graph is analysed only if the node's placement has none."""
    verdict = node.placement.movement
    return movement(graph)[node.name] if verdict is None else movement_from(graph, node, verdict)
