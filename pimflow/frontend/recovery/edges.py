"""Values of edges in CSR order: the nodes that compute them are rewritten to work on rows gathered in that order."""

from __future__ import annotations

from typing import Any

import numpy as np

from pimflow.frontend.convert.elementwise import ELEMENTWISE
from pimflow.frontend.recovery.rewriter import Ints, Rewriter, Rows, Segments
from pimflow.frontend.recovery.softmax import match_softmax
from pimflow.frontend.recovery.softmax_by_type import match_softmax_by_type
from pimflow.frontend.recovery.typed import match_typed, write_typed
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

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self._done: dict[tuple[str, str], str] = {}

    def ordered(self, name: str, segments: Segments) -> str:
        """A value with one row per edge in the exporter's order, with its rows brought into CSR order."""
        name = self._rewriter.peel(name)
        key = (name, segments.key)
        if key not in self._done:
            self._done[key] = self._write(name, segments)
        return self._done[key]

    def _write(self, name: str, segments: Segments) -> str:
        rewriter = self._rewriter
        array = rewriter.known.get(name)
        if array is not None:
            made = rewriter.in_csr_order("edge_values", array, segments)
            rewriter.of_graph.update({made} if name in rewriter.structural else ())
            return made
        rows = rewriter.rows(name)
        if rows is not None:
            return self._gathered(rows, segments, name)
        node = rewriter.producer(name)
        if node is None or sum(map(bool, node.outputs)) != 1:
            return self.permuted(name, segments)
        return (
            self._softmax(node, segments)
            or self._softmax_by_type(node, segments)
            or self._typed(node, segments)
            or self._pairing(node, segments)
            or self._dot(node, segments)
            or self._by_element(node, segments)
            or self._by_row(node, segments)
            or self.permuted(name, segments)
        )

    def _gathered(self, rows: Rows, segments: Segments, name: str) -> str:
        return self._rewriter.write(
            GatherRows(), rows.x, self._rewriter.sources(rows.index, segments), like=f"{name}/rows"
        )

    def permuted(self, name: str, segments: Segments) -> str:
        """The rows of a value computed in the exporter's order, permuted to CSR order."""
        if segments.order is None:
            return name
        order = self._rewriter.constant("order", segments.order)
        return self._rewriter.write(GatherRows(), name, order, like=f"{name}/by_destination")

    def _softmax(self, node: Node, segments: Segments) -> str | None:
        found = match_softmax(self._rewriter, node, segments)
        if found is None:
            return None
        logits = self.ordered(found.logits, segments)
        return self._rewriter.write(found.op, logits, segments.rowptr, like=f"{node.name}/softmax")

    def _softmax_by_type(self, node: Node, segments: Segments) -> str | None:
        """A softmax within every type: computed in the order of its groups, then permuted to that of destinations."""
        rewriter, found = self._rewriter, match_softmax_by_type(self._rewriter, node)
        if found is None:
            return None
        groups = rewriter.segments(found.groups, found.rows)
        logits = self.ordered(found.softmax.logits, groups)
        made = rewriter.write(found.softmax.op, logits, groups.rowptr, like=f"{node.name}/softmax")
        if groups.order is None:
            return self.permuted(made, segments)
        places: Ints = np.empty(groups.edges, np.int64)
        places[groups.order] = np.arange(groups.edges)
        index = rewriter.sources(places, segments)
        return rewriter.write(GatherRows(), made, index, like=f"{node.name}/by_destination")

    def _typed(self, node: Node, segments: Segments) -> str | None:
        found = match_typed(self._rewriter, node)
        if found is None:
            return None
        made, pairs = write_typed(self._rewriter, found, node.name)
        index = self._rewriter.sources(pairs, segments)
        rows = self._rewriter.write(GatherRows(), made, index, like=f"{node.name}/of_edges")
        return self._rewriter.write(
            Reshape(self._rewriter.shape(node.output)), rows, like=f"{node.name}/by_destination"
        )

    def _endpoints(self, one: str, other: str, segments: Segments) -> tuple[Rows, Rows] | None:
        """Two values as gathered rows of sources and of the segments' destinations; None if they are not."""
        first, second = self._rewriter.rows(one), self._rewriter.rows(other)
        if first is None or second is None:
            return None
        for source, destination in ((first, second), (second, first)):
            shapes = self._rewriter.shape(source.x), self._rewriter.shape(destination.x)
            fits = shapes[0][1:] == shapes[1][1:] and shapes[1][0] == segments.rows
            if fits and self._rewriter.key(destination.index) == segments.key:
                return source, destination
        return None

    def _write_sddmm(self, pairing: str, one: str, other: str, segments: Segments, like: str) -> str | None:
        ends = self._endpoints(one, other, segments)
        if ends is None:
            return None
        source, destination = ends
        col = self._rewriter.sources(source.index, segments)
        return self._rewriter.write(Sddmm(pairing), source.x, destination.x, segments.rowptr, col, like=like)

    def _pairing(self, node: Node, segments: Segments) -> str | None:
        pairing = _PAIRINGS.get(node.kind)
        if pairing is None or len(node.inputs) != 2:
            return None
        one, other = node.inputs
        return self._write_sddmm(pairing, one, other, segments, f"{node.name}/ends")

    def _dot(self, node: Node, segments: Segments) -> str | None:
        """A sum over the last dim of a product of two ends."""
        rank = len(self._rewriter.shape(node.inputs[0])) if node.inputs else 0
        product = self._rewriter.producer(self._rewriter.peel(node.inputs[0])) if node.kind == "ReduceSum" else None
        if product is None or product.kind != "Mul" or self._axes(node, rank) != {rank - 1}:
            return None
        if self._rewriter.node_attributes(node).get("keepdims", 1):
            return None
        one, other = product.inputs
        return self._write_sddmm("dot", one, other, segments, f"{node.name}/dot")

    def _axes(self, node: Node, rank: int) -> set[int]:
        """The axes that a reduction removes; all of them if that is not known."""
        given: Any = self._rewriter.node_attributes(node).get("axes")
        if len(node.inputs) > 1 and node.inputs[1]:
            given = self._rewriter.known.get(node.inputs[1])
        return set(range(rank)) if given is None else {int(axis) % rank for axis in given}

    def _by_element(self, node: Node, segments: Segments) -> str | None:
        rewriter = self._rewriter
        shape = rewriter.shape(node.output)
        if node.kind not in _BY_ELEMENT or not shape or shape[0] != segments.edges:
            return None
        return rewriter.copy(node, [self._operand(name, shape, segments) for name in node.inputs])

    def _operand(self, name: str, shape: tuple[int, ...], segments: Segments) -> str:
        """An operand of an elementwise node: in CSR order if it has one row per edge."""
        if not name:
            return ""
        own = self._rewriter.shape(name)
        if len(own) == len(shape) and own[0] == segments.edges:
            return self.ordered(name, segments)
        return name

    def _by_row(self, node: Node, segments: Segments) -> str | None:
        """A node that computes each row of its result from the same row of its first operand, in CSR order."""
        rewriter = self._rewriter
        given, made = rewriter.shape(node.inputs[0]), rewriter.shape(node.output)
        if not given or not made or given[0] != segments.edges or made[0] != segments.edges:
            return None
        if node.kind in _BY_ROW and 0 not in made:
            return rewriter.write(
                Reshape(made), self.ordered(node.inputs[0], segments), like=f"{node.name}/by_destination"
            )
        if not self._keeps_rows(node, len(given), segments):
            return None
        along = [name for name in node.inputs if name and self._has_rows(name, len(given), segments)]
        of_rows = node.kind == "Concat" or (rewriter.is_product(node) and len(given) > 2)
        if not of_rows and along != [node.inputs[0]]:
            return None  # another operand, such as a bias, also has one row per edge
        return rewriter.copy(node, [self.ordered(name, segments) if name in along else name for name in node.inputs])

    def _has_rows(self, name: str, rank: int, segments: Segments) -> bool:
        """Whether a value has a given rank and one row per edge."""
        shape = self._rewriter.shape(name)
        return len(shape) == rank and shape[0] == segments.edges

    def _keeps_rows(self, node: Node, rank: int, segments: Segments) -> bool:
        """Whether a node other than an elementwise one computes each row only from the same row."""
        rewriter, attributes = self._rewriter, self._rewriter.node_attributes(node)
        if node.kind in _REDUCTIONS:
            return 0 not in self._axes(node, rank)
        if node.kind in _ALONG_AN_AXIS:
            axis = attributes.get("axis", _ALONG_AN_AXIS[node.kind])
            return bool(axis % rank)
        if node.kind == "Gather":
            return node.inputs[1] in rewriter.known and bool(attributes.get("axis", 0) % rank)
        if node.kind == "Transpose":
            return tuple(attributes.get("perm", ()))[:1] == (0,)
        if rewriter.is_product(node) and rank > 2:
            return all(len(rewriter.shape(name)) == 2 or self._has_rows(name, rank, segments) for name in node.inputs)
        flat = rank == 2 and all(len(rewriter.shape(name)) <= 2 for name in node.inputs[1:])
        return rewriter.is_product(node) and flat and not attributes.get("transA")
