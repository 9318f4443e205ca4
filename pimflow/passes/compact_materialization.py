"""Computes values that depend only on a vertex and an edge type once per pair of them instead of once per edge."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from pimflow.ir import (
    Elementwise,
    GatherPairs,
    GatherRows,
    Gemm,
    Graph,
    Node,
    Op,
    Reshape,
    Sddmm,
    SegmentReduce,
    Spmm,
    Transpose,
    TypedLinear,
)
from pimflow.ir.text.literals import digest
from pimflow.passes.base import Pass, PassResult
from pimflow.passes.relations import (
    Ints,
    Picked,
    RowWriter,
    gathered,
    index_of,
    keeps_rows,
    reduces_within_rows,
    types_of_rows,
    unmarked,
)
from pimflow.records import NamedTuple, dataclass

_COLUMNS: dict[type[Op], dict[int, int]] = {Spmm: {0: 2}, Sddmm: {0: 3}, GatherPairs: {0: 2, 1: 3}}
"""The operands that ops over edges read by an index, and the positions of the indices."""


@dataclass(frozen=True)
class CompactMaterialization(Pass):
    """Computes products of edges' rows once for every pair of a row and an edge type that occurs (Hector, ASPLOS 2024).

    A `TypedLinear` over rows picked by a constant index depends only on the row and the type: it is computed over
    unique pairs, and so are nodes that process its rows one by one (views, functions, products with other weights).
    Nodes that read the results by edges read them by the pair of every edge: `Spmm`, `Sddmm` and `GatherPairs` by their
    own index, all others after a `GatherRows`. Products with constant weights of rows without types are treated in the
    same way.

    Args:
        leave: products that stay as they are, unless their input is already compact.
    """

    name: ClassVar[str] = "compact-materialization"

    leave: tuple[str, ...] = ()

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph; the notes say why products of edges are left as they are."""
        return _Compaction(graph, self.leave).run()


class Pairs(NamedTuple):
    """The pairs that occur: the row of each, the start of every type in these rows, and the pair of every edge."""

    rows: Ints
    pointers: Ints | None
    of_edges: Ints


class _Compaction:
    """One run: values that are stored as fewer rows, and the replacements of the nodes that made them."""

    def __init__(self, graph: Graph, leave: tuple[str, ...]) -> None:
        self._graph = graph
        self._leave = {graph.node(name).name for name in leave}
        self._write = RowWriter(graph)
        self._compact: dict[str, Picked] = {}
        self._replacements: dict[str, list[Node]] = {}
        self._read_by_edge: set[str] = set(graph.outputs)
        self._pairs: dict[tuple[str, str], Pairs] = {}
        self._gathers: dict[tuple[str, str], str] = {}
        self._notes: list[str] = []
        self._sites: list[str] = []

    def run(self) -> PassResult:
        for node in self._graph.nodes:
            if not (self._compact_product(node) or self._compact_rowwise(node) or self._compact_indexed(node)):
                self._read_by_edge.update(name for name in node.inputs if name in self._compact)
        if not self._compact:
            return PassResult(self._graph, False, tuple(self._notes))
        for node in self._graph.nodes:
            if node.name in self._replacements:
                self._write.editor.replace_node(node.name, (*self._replacements[node.name], *self._expand(node)))
        return PassResult(self._write.finish(), True, tuple(self._notes), tuple(self._sites))

    def _expand(self, node: Node) -> tuple[Node, ...]:
        """The rows of every edge, if some node reads them that way."""
        if node.output not in self._compact or node.output not in self._read_by_edge:
            return ()
        rows, picks = self._compact[node.output]
        assert picks is not None
        inputs = (rows, self._write.index("pair_of_edge", picks))
        return (self._write.node(GatherRows(), inputs, f"{node.name}_of_edges", node.output),)

    # ---- where compaction starts

    def _compact_product(self, node: Node) -> bool:
        """Handle a product of rows that repeat."""
        if not self._is_product(node):
            return False
        given = node.inputs[0]
        source = self._compact.get(given) or gathered(self._graph, given)
        if node.name in self._leave and given not in self._compact:
            return False
        if source.picks is None:
            self._notes.append(f"{node.name}: its rows are not picked by a constant index")
            return False
        typed = isinstance(node.op, TypedLinear)
        if typed and node.inputs[2] not in self._graph.constants:
            self._notes.append(f"{node.name}: the types of its rows are only known at run time")
            return False
        pairs = self._unique(source, self._graph.constants[node.inputs[2]] if typed else None)
        if len(pairs.rows) >= len(source.picks):
            what = "pair of a row and a type" if typed else "row"
            self._notes.append(f"{node.name}: no {what} occurs twice in {len(source.picks):,}")
            return False
        self._write_product(node, source.rows, pairs)
        self._sites.append(node.name)
        return True

    def _is_product(self, node: Node) -> bool:
        """Whether a node is a `TypedLinear`, or a product of rows with constant weights."""
        if isinstance(node.op, TypedLinear):
            return not any(node.inputs[3:4])  # one that reads rows by an index reads no rows of edges
        if not node.op.is_matrix_product or len(self._graph.shape(node.inputs[0])) != 2:
            return False
        return self._multiplies_rows(node) and gathered(self._graph, node.inputs[0]).picks is not None

    def _unique(self, source: Picked, pointers: Ints | None) -> Pairs:
        assert source.picks is not None
        key = (digest(source.picks), "" if pointers is None else digest(pointers))
        if key not in self._pairs:
            self._pairs[key] = unique_pairs(source.picks, pointers)
        return self._pairs[key]

    def _write_product(self, node: Node, rows: str, pairs: Pairs) -> None:
        made: list[Node] = []
        given = rows
        if not np.array_equal(pairs.rows, np.arange(self._write.shape(rows)[0])):
            picks = self._write.index("pair_rows", pairs.rows)
            if (rows, picks) not in self._gathers:
                made.append(self._write.node(GatherRows(), (rows, picks), f"{node.name}_pairs"))
                self._gathers[rows, picks] = made[0].output
            given = self._gathers[rows, picks]
        inputs = [given, *node.inputs[1:]]
        if pairs.pointers is not None:
            inputs[2] = self._write.constant("pair_types", pairs.pointers)
        self._write_compact(node, made, inputs, Picked(given, pairs.of_edges))

    def _write_compact(self, node: Node, made: list[Node], inputs: list[str], like: Picked) -> None:
        """Write a node over as few rows as `like` has; its value is then stored as rows of the result."""
        rows, value = self._write.shape(like.rows)[0], self._graph.value(node.output)
        assert value.shape is not None
        shape = (rows, *value.shape[1:])
        op = replace(node.op, shape=shape) if isinstance(node.op, Reshape) else node.op
        output = self._write.editor.new_value(f"{node.output}_compact", shape, value.dtype)
        self._replacements[node.name] = [*made, replace(unmarked(node), op=op, inputs=tuple(inputs), outputs=(output,))]
        self._compact[node.output] = Picked(output, like.picks)

    # ---- how far it propagates

    def _compact_rowwise(self, node: Node) -> bool:
        """Handle a node that makes each row from the same row of compact values, and reads nothing else with rows of
        edges."""
        compact = [name for name in node.inputs if name in self._compact]
        if not compact or len(node.outputs) != 1 or not self._is_rowwise(node):
            return False
        first = self._compact[compact[0]]
        others = [name for name in node.inputs if name and name not in compact]
        same = all(self._same_rows(self._compact[name], first) for name in compact)
        if not same or any(self._has_rows(node, name) for name in others):
            return False
        self._write_compact(
            node, [], [self._compact[name].rows if name in compact else name for name in node.inputs], first
        )
        return True

    def _same_rows(self, one: Picked, other: Picked) -> bool:
        if one.picks is None or other.picks is None:
            return False
        same = self._write.shape(one.rows)[0] == self._write.shape(other.rows)[0]
        return same and (one.picks is other.picks or digest(one.picks) == digest(other.picks))

    def _is_rowwise(self, node: Node) -> bool:
        graph, op = self._graph, node.op
        if isinstance(op, Elementwise):
            return self._keeps_first_dim(node)
        if isinstance(op, Reshape):
            return keeps_rows(graph, node)
        if isinstance(op, Transpose):
            return op.perm[:1] == (0,)
        if op.is_matrix_product:
            return self._multiplies_rows(node)
        return reduces_within_rows(graph, node)

    def _keeps_first_dim(self, node: Node) -> bool:
        """Whether rows of edges stay the first dimension of a broadcast."""
        made = self._graph.shape(node.output)
        given = [self._graph.shape(name) for name in node.inputs if name in self._compact]
        return all(len(shape) == len(made) and shape[0] == made[0] for shape in given)

    def _multiplies_rows(self, node: Node) -> bool:
        """Whether a product makes each row from the same row of its first operand, with one matrix for all."""
        graph, op = self._graph, node.op
        if len(graph.shape(node.inputs[1])) != 2 or node.inputs[0] in node.inputs[1:]:
            return False
        return not (isinstance(op, Gemm) and op.trans_a) and len(graph.shape(node.inputs[0])) > 1

    def _has_rows(self, node: Node, name: str) -> bool:
        """Whether an operand has a row for every edge."""
        own, made = self._graph.value(name).shape, self._graph.shape(node.output)
        return own is None or (len(own) == len(made) and own[0] == made[0] and isinstance(node.op, Elementwise))

    # ---- readers with an index of their own

    def _compact_indexed(self, node: Node) -> bool:
        """Handle sums and pairs over edges, which read compact rows by the pair of every edge."""
        if isinstance(node.op, GatherRows):
            return self._compact_gather(node)
        if isinstance(node.op, SegmentReduce):
            return self._compact_reduction(node, node.op)
        inputs, taken = list(node.inputs), set[int]()
        for position, column in _COLUMNS.get(type(node.op), {}).items():
            compact, own = self._compact.get(node.inputs[position]), self._graph.constants.get(node.inputs[column])
            if compact is None or own is None or compact.picks is None:
                continue
            inputs[position], inputs[column] = compact.rows, self._write.index("pair_of_edge", compact.picks[own])
            taken.add(position)
        if not taken:
            return False
        self._replacements[node.name] = [replace(unmarked(node), inputs=tuple(inputs))]
        self._read_by_edge.update(
            name for position, name in enumerate(node.inputs) if name in self._compact and position not in taken
        )
        return True

    def _compact_gather(self, node: Node) -> bool:
        """Handle a gather of compact rows."""
        compact, own = self._compact.get(node.inputs[0]), index_of(self._graph, node)
        if compact is None or own is None or compact.picks is None:
            return False
        self._compact[node.output] = Picked(compact.rows, compact.picks[own])
        self._replacements[node.name] = []
        return True

    def _compact_reduction(self, node: Node, op: SegmentReduce) -> bool:
        """Handle a reduction of compact rows, which needs no rows of edges."""
        compact = self._compact.get(node.inputs[0])
        if compact is None or compact.picks is None or len(self._graph.shape(node.inputs[0])) < 2:
            return False
        inputs = (compact.rows, node.inputs[1], self._write.index("pair_of_edge", compact.picks))
        fields = Spmm(op.reduce, op.start, op.empty)
        self._replacements[node.name] = [replace(unmarked(node), op=fields, inputs=inputs)]
        return True


def unique_pairs(index: Ints, pointers: Ints | None) -> Pairs:
    """The pairs of a row and a type that occur, by type and then by row, and the pair of every edge.

    Args:
        index: the row of every edge.
        pointers: the start of each type's edges, [types + 1]; None if edges have no types.
    """
    if pointers is None:
        rows, of_edges = np.unique(index, return_inverse=True)
        return Pairs(rows, None, of_edges.reshape(-1))
    span = int(index.max(initial=-1)) + 1
    keys, of_edges = np.unique(types_of_rows(pointers) * span + index, return_inverse=True)
    begins = np.searchsorted(keys, np.arange(len(pointers), dtype=np.int64) * span)
    return Pairs(keys % max(span, 1), begins.astype(np.int64), of_edges.reshape(-1))
