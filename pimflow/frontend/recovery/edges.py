"""Values of edges in CSR order: what computes them is written again over rows that are picked in that order."""

from __future__ import annotations

from typing import Any

from pimflow.frontend.convert.elementwise import ELEMENTWISE
from pimflow.frontend.recovery.scene import Rows, Scene, Segments
from pimflow.frontend.recovery.softmax import match_softmax
from pimflow.ir import GatherRows, Node, Reshape, Sddmm

_BY_ELEMENT = frozenset({*ELEMENTWISE, "Cast", "Clip", "PRelu"})
_BY_ROW = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten"})
_REDUCTIONS = frozenset({"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"})
_PAIRINGS = {"Add": "add", "Mul": "mul"}


class EdgeValues:
    """Writes values of edges in CSR order, each once."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._done: dict[tuple[str, str], str] = {}

    def ordered(self, name: str, segments: Segments) -> str:
        """A value whose rows are edges in the exporter's order, with its rows in CSR order."""
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
            return self._permuted(name, segments)
        return (
            self._softmax(node, segments)
            or self._pairing(node, segments)
            or self._dot(node, segments)
            or self._by_element(node, segments)
            or self._by_row(node, segments)
            or self._permuted(name, segments)
        )

    def _gathered(self, rows: Rows, segments: Segments, name: str) -> str:
        return self._scene.write(GatherRows(), rows.x, self._scene.sources(rows.index, segments), like=f"{name}/rows")

    def _permuted(self, name: str, segments: Segments) -> str:
        """Rows of a value that is computed in the exporter's order."""
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

    def _ends(self, one: str, other: str, segments: Segments) -> tuple[Rows, Rows] | None:
        """Two values as rows of sources and rows of the destinations of the segments."""
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
        """The axes that a reduction takes away; all of them where that is not known."""
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
        """An operand of an elementwise node: in CSR order if it has a row for every edge."""
        if not name:
            return ""
        own = self._scene.shape(name)
        if len(own) == len(shape) and own[0] == segments.edges:
            return self.ordered(name, segments)
        return name

    def _by_row(self, node: Node, segments: Segments) -> str | None:
        """What makes each row of its result from the same row of its first operand."""
        scene = self._scene
        given, made = scene.shape(node.inputs[0]), scene.shape(node.output)
        if not given or not made or given[0] != segments.edges or made[0] != segments.edges:
            return None
        if node.kind in _BY_ROW and 0 not in made:
            return scene.write(
                Reshape(made), self.ordered(node.inputs[0], segments), like=f"{node.name}/by_destination"
            )
        attributes = scene.node_attributes(node)
        reduces = node.kind in _REDUCTIONS and 0 not in self._axes(node, len(given))
        multiplies = scene.is_product(node) and len(given) == 2 and not attributes.get("transA")
        if not reduces and not multiplies:
            return None
        if multiplies and any(len(scene.shape(name)) > 2 for name in node.inputs[1:]):
            return None
        if any(name and scene.shape(name)[:1] == (segments.edges,) for name in node.inputs[2:]):
            return None  # a bias of its own for every edge
        return scene.copy(node, [self.ordered(node.inputs[0], segments), *node.inputs[1:]])
