"""Values of edges in CSR order: the nodes that compute them are rewritten to work on rows gathered in that order."""

from __future__ import annotations

from typing import Any

import numpy as np

from pimflow.frontend.convert.elementwise import ELEMENTWISE
from pimflow.frontend.recovery.scene import Ints, Rows, Scene, Segments
from pimflow.frontend.recovery.softmax import match_softmax
from pimflow.frontend.recovery.typed import match_typed, write_typed
from pimflow.frontend.recovery.within import match_within
from pimflow.ir import GatherRows, Node, Reshape, Sddmm

_BY_ELEMENT = frozenset({*ELEMENTWISE, "Cast", "Clip", "PRelu"})
_BY_ROW = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten"})
_REDUCTIONS = frozenset(
    f"Reduce{kind}" for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp")
)
_ALONG_AN_AXIS = {"Concat": 0, "Softmax": -1, "LogSoftmax": -1, "LayerNormalization": -1}
"""Operators that mix elements along one axis (or from it on), with the default axis."""
_PAIRINGS = {"Add": "add", "Mul": "mul"}


class EdgeValues:
    """Writes values of edges in CSR order, each only once."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._done: dict[tuple[str, str], str] = {}

    def ordered(self, name: str, segments: Segments) -> str:
        """A value with one row per edge in the exporter's order, with its rows brought into CSR order."""
        name = self._scene.peel(name)
        key = (name, segments.key)
        if key not in self._done:
            self._done[key] = self._write(name, segments)
        return self._done[key]

    def _write(self, name: str, segments: Segments) -> str:
        scene = self._scene
        array = scene.known.get(name)
        if array is not None:
            return scene.arranged("edge_values", array, segments)
        rows = scene.rows(name)
        if rows is not None:
            return self._gathered(rows, segments, name)
        node = scene.maker(name)
        if node is None or sum(map(bool, node.outputs)) != 1:
            return self.permuted(name, segments)
        return (
            self._softmax(node, segments)
            or self._within(node, segments)
            or self._typed(node, segments)
            or self._pairing(node, segments)
            or self._dot(node, segments)
            or self._by_element(node, segments)
            or self._by_row(node, segments)
            or self.permuted(name, segments)
        )

    def _gathered(self, rows: Rows, segments: Segments, name: str) -> str:
        return self._scene.write(GatherRows(), rows.x, self._scene.sources(rows.index, segments), like=f"{name}/rows")

    def permuted(self, name: str, segments: Segments) -> str:
        """The rows of a value computed in the exporter's order, permuted to CSR order."""
        if segments.order is None:
            return name
        order = self._scene.constant("order", segments.order)
        return self._scene.write(GatherRows(), name, order, like=f"{name}/by_destination")

    def _softmax(self, node: Node, segments: Segments) -> str | None:
        found = match_softmax(self._scene, node, segments)
        if found is None:
            return None
        logits = self.ordered(found.logits, segments)
        return self._scene.write(found.op, logits, segments.rowptr, like=f"{node.name}/softmax")

    def _within(self, node: Node, segments: Segments) -> str | None:
        """A softmax within every type: computed in the order of its groups, then permuted to that of destinations."""
        scene, found = self._scene, match_within(self._scene, node)
        if found is None:
            return None
        groups = scene.segments(found.groups, found.rows)
        logits = self.ordered(found.softmax.logits, groups)
        made = scene.write(found.softmax.op, logits, groups.rowptr, like=f"{node.name}/softmax")
        if groups.order is None:
            return self.permuted(made, segments)
        places: Ints = np.empty(groups.edges, np.int64)
        places[groups.order] = np.arange(groups.edges)
        index = scene.sources(places, segments)
        return scene.write(GatherRows(), made, index, like=f"{node.name}/by_destination")

    def _typed(self, node: Node, segments: Segments) -> str | None:
        found = match_typed(self._scene, node)
        if found is None:
            return None
        made, pairs = write_typed(self._scene, found, node.name)
        index = self._scene.sources(pairs, segments)
        rows = self._scene.write(GatherRows(), made, index, like=f"{node.name}/of_edges")
        return self._scene.write(Reshape(self._scene.shape(node.output)), rows, like=f"{node.name}/by_destination")

    def _ends(self, one: str, other: str, segments: Segments) -> tuple[Rows, Rows] | None:
        """Two values as gathered rows of sources and of the segments' destinations; None if they are not."""
        first, second = self._scene.rows(one), self._scene.rows(other)
        if first is None or second is None:
            return None
        for source, destination in ((first, second), (second, first)):
            shapes = self._scene.shape(source.x), self._scene.shape(destination.x)
            fits = shapes[0][1:] == shapes[1][1:] and shapes[1][0] == segments.rows
            if fits and self._scene.key(destination.index) == segments.key:
                return source, destination
        return None

    def _paired(self, pairing: str, one: str, other: str, segments: Segments, like: str) -> str | None:
        ends = self._ends(one, other, segments)
        if ends is None:
            return None
        source, destination = ends
        col = self._scene.sources(source.index, segments)
        return self._scene.write(Sddmm(pairing), source.x, destination.x, segments.rowptr, col, like=like)

    def _pairing(self, node: Node, segments: Segments) -> str | None:
        pairing = _PAIRINGS.get(node.kind)
        if pairing is None or len(node.inputs) != 2:
            return None
        one, other = node.inputs
        return self._paired(pairing, one, other, segments, f"{node.name}/ends")

    def _dot(self, node: Node, segments: Segments) -> str | None:
        """A sum over the last dim of a product of two ends."""
        rank = len(self._scene.shape(node.inputs[0])) if node.inputs else 0
        product = self._scene.maker(self._scene.peel(node.inputs[0])) if node.kind == "ReduceSum" else None
        if product is None or product.kind != "Mul" or self._axes(node, rank) != {rank - 1}:
            return None
        if self._scene.node_attributes(node).get("keepdims", 1):
            return None
        one, other = product.inputs
        return self._paired("dot", one, other, segments, f"{node.name}/dot")

    def _axes(self, node: Node, rank: int) -> set[int]:
        """The axes that a reduction removes; all of them if that is not known."""
        given: Any = self._scene.node_attributes(node).get("axes")
        if len(node.inputs) > 1 and node.inputs[1]:
            given = self._scene.known.get(node.inputs[1])
        return set(range(rank)) if given is None else {int(axis) % rank for axis in given}

    def _by_element(self, node: Node, segments: Segments) -> str | None:
        scene = self._scene
        shape = scene.shape(node.output)
        if node.kind not in _BY_ELEMENT or not shape or shape[0] != segments.edges:
            return None
        return scene.copy(node, [self._operand(name, shape, segments) for name in node.inputs])

    def _operand(self, name: str, shape: tuple[int, ...], segments: Segments) -> str:
        """An operand of an elementwise node: in CSR order if it has one row per edge."""
        if not name:
            return ""
        own = self._scene.shape(name)
        if len(own) == len(shape) and own[0] == segments.edges:
            return self.ordered(name, segments)
        return name

    def _by_row(self, node: Node, segments: Segments) -> str | None:
        """A node that computes each row of its result from the same row of its first operand, in CSR order."""
        scene = self._scene
        given, made = scene.shape(node.inputs[0]), scene.shape(node.output)
        if not given or not made or given[0] != segments.edges or made[0] != segments.edges:
            return None
        if node.kind in _BY_ROW and 0 not in made:
            return scene.write(
                Reshape(made), self.ordered(node.inputs[0], segments), like=f"{node.name}/by_destination"
            )
        if not self._keeps_rows(node, len(given), segments):
            return None
        along = [name for name in node.inputs if name and self._has_rows(name, len(given), segments)]
        of_rows = node.kind == "Concat" or (scene.is_product(node) and len(given) > 2)
        if not of_rows and along != [node.inputs[0]]:
            return None  # another operand, such as a bias, also has one row per edge
        return scene.copy(node, [self.ordered(name, segments) if name in along else name for name in node.inputs])

    def _has_rows(self, name: str, rank: int, segments: Segments) -> bool:
        """Whether a value has a given rank and one row per edge."""
        shape = self._scene.shape(name)
        return len(shape) == rank and shape[0] == segments.edges

    def _keeps_rows(self, node: Node, rank: int, segments: Segments) -> bool:
        """Whether a node other than an elementwise one computes each row only from the same row."""
        scene, attributes = self._scene, self._scene.node_attributes(node)
        if node.kind in _REDUCTIONS:
            return 0 not in self._axes(node, rank)
        if node.kind in _ALONG_AN_AXIS:
            axis = attributes.get("axis", _ALONG_AN_AXIS[node.kind])
            return bool(axis % rank)
        if node.kind == "Gather":
            return node.inputs[1] in scene.known and bool(attributes.get("axis", 0) % rank)
        if node.kind == "Transpose":
            return tuple(attributes.get("perm", ()))[:1] == (0,)
        if scene.is_product(node) and rank > 2:
            return all(len(scene.shape(name)) == 2 or self._has_rows(name, rank, segments) for name in node.inputs)
        flat = rank == 2 and all(len(scene.shape(name)) <= 2 for name in node.inputs[1:])
        return scene.is_product(node) and flat and not attributes.get("transA")
