"""The graph during recovery: known values, producers, and the nodes written as replacements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.frontend.structure import along_rows, compact, held_bytes, memory_of
from pimflow.ir import Array, Graph, GraphEditor, Node, OnnxOp, Op, Reshape, Transpose, Value
from pimflow.ir.ops.base import op_of_onnx_name
from pimflow.ir.shapes import infer
from pimflow.ir.text.literals import digest
from pimflow.records import dataclass
from pimflow.sparse import by_id, is_sorted

Ints = npt.NDArray[Any]

SCATTERS = frozenset({"ScatterElements", "ScatterND"})
"""Operators that can reduce rows of edges into rows of destinations."""

OUT_OF_RANGE = "its index is out of range"
"""Why a scatter or gather by a known index stays as it is, and cannot run."""

_SOURCES = "col"

_COPYING = frozenset(
    {"Identity", "Slice", "Reshape", "Expand", "Cast", "Squeeze", "Unsqueeze", "Flatten", "Max", "Min", "Sum", "Concat"}
)
"""Operators that copy their first input if its shape and type stay the same and they read no second tensor."""
_SINGLE_OPERAND = frozenset({"Max", "Min", "Sum", "Concat"})
"""Those of them that do so only with a single operand."""


@dataclass(frozen=True)
class Segments:
    """Edges by destination, from the index of rows that updates are scattered to.

    Args:
        key: identifies the index by its content.
        rows: number of rows.
        edges: number of edges.
        rowptr: name of the constant of row pointers.
        counts: number of edges of each row.
        order: the exporter's position of each edge in CSR order; None if the two orders are the same.
    """

    key: str
    rows: int
    edges: int
    rowptr: str
    counts: Ints
    order: Ints | None


@dataclass(frozen=True)
class Rows:
    """x[index[e]] for every edge e, in the exporter's order; the index may be along a later axis of x."""

    x: str
    index: Ints


@dataclass(frozen=True)
class Destinations:
    """The rows that a scatter writes to, along one axis of its result."""

    axis: int
    index: Ints


class Rewriter:
    """A graph whose nodes are being replaced.

    Args:
        graph: a graph of opaque nodes, with all shapes inferred.
        known: arrays of values that do not depend on run-time inputs, by name.
        structural: names of those of them that depend on the bound graph.

    Attributes:
        of_graph: names of the constants, original or written, that hold values which depend on the bound graph.
        pending: nodes written that have no place in the graph yet.
        typed: products by type that were written: the result of each, and the row of every edge in it.
    """

    def __init__(self, graph: Graph, known: Mapping[str, Array], structural: frozenset[str]) -> None:
        self.graph = graph
        self.known = known
        self.structural = structural
        self.editor = GraphEditor(graph)
        self._segments: dict[tuple[str, int], Segments] = {}
        self._constants: dict[str, str] = {}
        self._keys: dict[tuple[object, ...], tuple[Array, str]] = {}
        self._arranged: dict[tuple[object, ...], tuple[Array, str]] = {}
        self._written: dict[str, Node] = {}
        self.of_graph = set(structural)
        self.pending: list[Node] = []
        self.typed: dict[tuple[str, ...], tuple[str, Ints]] = {}

    # ---- reading

    def value(self, name: str) -> Value:
        """A value of the graph or one written since."""
        return self.editor.value(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """A value's shape; () if it has none."""
        return self.value(name).shape or ()

    def producer(self, name: str) -> Node | None:
        """The original node that computes a value when the model runs; None for known values."""
        return None if name in self.known else self.graph.producer(name)

    def written(self, name: str) -> Node | None:
        """The node that was written to make a value."""
        return self._written.get(name)

    def peel(self, name: str) -> str:
        """The value that `name` is a copy of, through full Slices, Identities, Reshapes to the same shape and so on."""
        node = self.producer(name)
        while node is not None and self._is_copy(node):
            name = node.inputs[0]
            node = self.producer(name)
        return name

    def _is_copy(self, node: Node) -> bool:
        if node.kind not in _COPYING or not isinstance(node.op, OnnxOp) or node.op.domain:
            return False
        if node.kind in _SINGLE_OPERAND and len(node.inputs) != 1:
            return False
        if node.kind == "Slice" and len(node.inputs) > 4 and (self.array(node.inputs[4]) != 1).any():
            return False
        source, made = self.value(node.inputs[0]), self.value(node.output)
        return made.shape is not None and (source.shape, source.dtype) == (made.shape, made.dtype)

    def array(self, name: str) -> npt.NDArray[Any]:
        """A known value's elements; NaN, which equals nothing, for a computed one."""
        return self.known.get(name, np.array(np.nan))

    def key(self, array: Array) -> str:
        """A key for an array's content; linear the first time, then cached."""
        place = memory_of(array)
        if place not in self._keys:
            self._keys[place] = (array, _content(array))
        return self._keys[place][1]

    def rows(self, name: str, along: int = 0) -> Rows | None:
        """The value as rows of another one, selected by a known index (by a Gather or equivalent); else None."""
        name = self.peel(name)
        node = self.producer(name)
        if node is None or not isinstance(node.op, OnnxOp) or node.op.domain or len(node.inputs) < 2:
            return None
        x, index = node.inputs[0], self.known.get(node.inputs[1])
        shape, attributes = self.shape(x), dict(node.op.attributes)
        if index is None or not shape:
            return None
        axis = attributes.get("axis", 0)
        by_rows = node.kind == "Gather" and isinstance(axis, int) and axis % len(shape) == along and index.ndim == 1
        picked = node.kind == "GatherND" and not attributes.get("batch_dims") and index.shape[1:] == (1,)
        if not by_rows and (along or not picked):
            return None
        positions: Ints = index.reshape(len(index))
        return Rows(x, _wrapped(positions, shape[along])) if is_in_range(positions, shape[along]) else None

    def destinations(self, node: Node) -> Destinations | None:
        """The rows that a scatter by a known index writes to; None if the index differs between columns."""
        index, shape, given = self.known[node.inputs[1]], self.shape(node.output), self.shape(node.inputs[1])
        axis: int = self.node_attributes(node).get("axis", 0) % max(len(shape), 1)
        if node.kind == "ScatterND":
            return Destinations(0, index.reshape(len(index))) if given[1:] == (1,) else None
        vector = along_rows(np.moveaxis(index, axis, 0)) if index.ndim > axis else None
        whole = (*given[:axis], *given[axis + 1 :]) == (*shape[:axis], *shape[axis + 1 :])
        return None if vector is None or not whole else Destinations(axis, vector)

    def node_attributes(self, node: Node) -> Mapping[str, Any]:
        """Attributes of an opaque node."""
        return dict(node.op.attributes) if isinstance(node.op, OnnxOp) else {}

    def is_product(self, node: Node) -> bool:
        """Whether a node multiplies matrices."""
        kind = op_of_onnx_name(node.kind)
        return kind is not None and kind.is_matrix_product

    # ---- writing

    def constant(self, what: str, array: Array) -> str:
        """A constant with these elements; equal ones are shared."""
        key = _content(array)
        if key not in self._constants:
            self._constants[key] = self.editor.new_constant(what, np.ascontiguousarray(array))
        return self._constants[key]

    def write(self, op: Op, *inputs: str, like: str) -> str:
        """Adds a typed node, with a name made from `like`; returns its result."""
        ((shape, dtype),) = infer(op, [self.value(name) if name else None for name in inputs])
        return self._add(op, inputs, shape, dtype, like)

    def copy(self, node: Node, inputs: Sequence[str]) -> str:
        """Adds a copy of a node with other inputs of the same shapes; returns its result."""
        value = self.value(node.output)
        return self._add(node.op, tuple(inputs), value.shape, value.dtype, f"{node.name}/by_destination")

    def _add(self, op: Op, inputs: tuple[str, ...], shape: Sequence[int] | None, dtype: str, like: str) -> str:
        name = self.editor.new_node_name(like)
        output = self.editor.new_value(name, shape, dtype)
        self.pending.append(Node(op, inputs, (output,), name))
        self._written[output] = self.pending[-1]
        return output

    def finish(self, node: Node, made: str) -> None:
        """Replaces a node by all pending nodes; `made` takes the place of its output."""
        last = self.pending.pop()
        assert last.output == made
        kept = Node(last.op, last.inputs, node.outputs, node.name, node.placement, node.tags)
        self.editor.replace_node(node.name, (*self.pending, kept))
        self._written[node.output] = kept
        self.pending = []

    def segments(self, index: Ints, rows: int) -> Segments:
        """The segments of an index of destinations."""
        known = (self.key(index), rows)
        if known not in self._segments:
            wrapped = _narrowed(_wrapped(index, rows))
            in_order = is_sorted(wrapped)
            counts = np.bincount(wrapped, minlength=rows)
            order = None if in_order else by_id(wrapped, rows)[1]
            rowptr = self.constant("rowptr", np.concatenate(([0], np.cumsum(counts))).astype(np.int64))
            self._segments[known] = Segments(known[0], rows, len(index), rowptr, counts, order)
        return self._segments[known]

    def in_csr_order(self, what: str, array: Array, segments: Segments) -> str:
        """A constant: an array's rows (one per edge, in the exporter's order) in CSR order; shared by all layers."""
        place = (what, memory_of(array), segments.key)
        if place not in self._arranged:
            small = compact(array)
            if len(small) != segments.edges:  # all rows are equal
                small = np.broadcast_to(small, (segments.edges, *small.shape[1:]))
            elif segments.order is not None:
                small = small[segments.order]
            self._arranged[place] = (array, self.constant(what, _narrowed(small) if what == _SOURCES else small))
        return self._arranged[place][1]

    def sources(self, index: Ints, segments: Segments) -> str:
        """The constant `col`: an index with one element per edge, in CSR order."""
        return self.in_csr_order(_SOURCES, index, segments)

    def picks(self, index: Ints) -> str:
        """A constant for an index of rows, in the exporter's order."""
        return self.constant("rows", _narrowed(index))

    def move_axis(self, name: str, source: int, target: int, like: str) -> str:
        """A value with one axis moved; moving it only past axes of size 1 is a view."""
        if source == target:
            return name
        shape = self.shape(name)
        axes = [axis for axis in range(len(shape)) if axis != source]
        perm = (*axes[:target], source, *axes[target:])
        passed = [axis for axis in range(min(source, target), max(source, target) + 1) if axis != source]
        if all(shape[axis] == 1 for axis in passed) and 0 not in shape:
            return self.write(Reshape(tuple(shape[axis] for axis in perm)), name, like=like)
        return self.write(Transpose(perm), name, like=like)


def _content(array: Array) -> str:
    return f"{array.shape} {digest(compact(array))}"


def _narrowed(index: Ints) -> Ints:
    return index.astype(np.int32) if not len(index) or index.max() < 2**31 else index


def is_in_range(index: Ints, rows: int) -> bool:
    """Whether all elements of an index are valid rows; negative ones count from the end."""
    return not len(index) or (bool(index.max() < rows) and bool(index.min() >= -rows))


def _wrapped(index: Ints, rows: int) -> Ints:
    """An index of rows with negative elements, which count from the end, made positive."""
    return np.where(index < 0, index + rows, index) if len(index) and index.min() < 0 else index


def fold_known_values(rewriter: Rewriter) -> None:
    """Replaces live values that follow from the bound graph by constants, repetitive ones by an Expand."""
    graph, editor = rewriter.graph, rewriter.editor
    for node in graph.nodes:
        names = [name for name in node.outputs if name]
        if not names or not _follows_from_graph(rewriter, node, names):
            continue
        if any(name not in rewriter.known for name in names):
            editor.replace_node(node.name, ())  # released: only structure read it
        elif any(name in graph.outputs for name in names):
            _make_output(rewriter, node)
        elif len(names) == 1 and held_bytes(rewriter.known[names[0]]) < rewriter.known[names[0]].nbytes:
            _make_expanded(rewriter, node)
        else:
            for name in names:
                editor.set_constant(name, rewriter.known[name])
            editor.replace_node(node.name, ())


def _follows_from_graph(rewriter: Rewriter, node: Node, names: Sequence[str]) -> bool:
    """Whether all results of a node follow from a bound graph: from its edges or, as for a Shape, from their number."""
    if all(name in rewriter.structural for name in names):
        return True
    return all(name in rewriter.known for name in names) and not rewriter.structural.isdisjoint(node.inputs)


def _make_output(rewriter: Rewriter, node: Node) -> None:
    """Makes a known graph output an Identity of a constant, because outputs need a producer."""
    array = rewriter.known[node.output]
    name = rewriter.editor.new_constant(f"{node.output}_known", np.ascontiguousarray(array))
    rewriter.of_graph.add(name)
    rewriter.editor.replace_node(node.name, (replace(node, op=OnnxOp("Identity"), inputs=(name,)),))


def _make_expanded(rewriter: Rewriter, node: Node) -> None:
    array = rewriter.known[node.output]
    small = rewriter.constant(f"{node.output}_compact", compact(array))
    rewriter.of_graph.add(small)
    shape = rewriter.constant(f"{node.output}_shape", np.array(array.shape, np.int64))
    rewriter.editor.replace_node(node.name, (replace(node, op=OnnxOp("Expand"), inputs=(small, shape)),))
