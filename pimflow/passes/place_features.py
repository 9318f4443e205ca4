"""Leaves a table in the host's memory; the GPU's memory has only the rows that are read next (PyTorch-Direct, 2021)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from pimflow.ir import Concat, GatherPairs, GatherRows, Graph, Node, Refusal, Sddmm, Slice, Spmm, TypedLinear, TypedSpmm
from pimflow.ir.analysis.host_tables import reads_rows
from pimflow.ir.analysis.regions import leaving_values, node_part, node_rows
from pimflow.ir.ops.base import RowPart
from pimflow.passes.base import Pass, PassResult
from pimflow.passes.relations import Ints, RowWriter
from pimflow.records import dataclass

_INDICES = {Spmm: {0: 2}, Sddmm: {0: 3}, GatherPairs: {0: 2, 1: 3}, TypedLinear: {0: 3}, TypedSpmm: {0: 3}}
"""By op that reads rows by an index: the position of the index of each operand."""


@dataclass(frozen=True)
class PlaceFeatures(Pass):
    """Leaves a table in the host's memory: nodes that read rows of it read a copy of just these rows.

    A node that picks rows by an index fetches them itself. Any other node gets a `GatherRows` before it that fetches
    what it reads: the distinct rows that its edges start from, or a range of rows. Nodes that are computed row by row
    are cut into parts, each right after the rows that it reads, so that these need little memory; so are the nodes
    after them as long as their values are as large as the table.

    Args:
        table: an input or a constant of the graph, whose rows are along its first dimension.
        access: how rows are fetched: "gather", "gather-pageable", "zero-copy" or "zero-copy-plain".
        parts: into how many parts the rows of readers are cut.
    """

    name: ClassVar[str] = "place-features"

    table: str
    access: str = "zero-copy"
    parts: int = 1

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph; the notes say which readers could not be cut, and why."""
        notes: list[str] = []
        write, taken = RowWriter(graph), set[str]()
        for reader in graph.users(self.table):
            if reader.name in taken:
                continue
            if reads_rows(reader) and reader.inputs[0] == self.table:
                write.editor.replace_node(reader.name, [self._with_access(reader)])
                continue
            chain = [reader, *self._followers(graph, reader, taken)] if self.parts > 1 else [reader]
            made = self._cut(write, chain)
            if isinstance(made, Refusal):
                notes.append(f"{reader.name}: {made.reason}")
                chain, made = [reader], list(self._uncut(write, reader))
            taken.update(node.name for node in chain)
            for node in chain:
                write.editor.replace_node(node.name, made if node is chain[-1] else ())
        return PassResult(write.finish(), bool(graph.users(self.table)), tuple(notes))

    def _with_access(self, node: Node) -> Node:
        return replace(node, placement=replace(node.placement, access=self.access, fused_into=None))

    def _followers(self, graph: Graph, reader: Node, taken: Collection[str]) -> Iterator[Node]:
        """The nodes that are cut together with a reader: those fused into it, and the sole readers of values as large
        as the table.

        Nodes that are already cut with another reader are left out.
        """
        node, inside = reader, {reader.name}
        while len(graph.users(node.output)) == 1 and node.output not in graph.outputs:
            (user,) = graph.users(node.output)
            large = graph.value(node.output).elements >= graph.value(self.table).elements
            if not (large or user.placement.fused_into in inside) or node_rows(graph, user) != node_rows(graph, reader):
                return
            if user.name in taken or len(user.outputs) != 1 or not _by_row(graph, user, node.output):
                return
            inside.add(user.name)
            yield user
            node = user

    def _uncut(self, write: RowWriter, node: Node) -> Iterator[Node]:
        """A node, after the nodes that fetch the rows that it reads."""
        inputs = list(node.inputs)
        for position, name in enumerate(node.inputs):
            if name == self.table:
                yield from self._fetch_rows(write, node, inputs, position, None)
        yield replace(node, inputs=tuple(inputs))

    def _fetch_rows(
        self, write: RowWriter, node: Node, inputs: list[str], position: int, span: tuple[int, int] | None
    ) -> Iterator[Node]:
        """The node that fetches the rows of one operand; puts its result, and the index into it, into `inputs`."""
        place = _INDICES.get(type(node.op), {}).get(position)
        rows = None if place is None or place >= len(inputs) else write.array(inputs[place])
        if rows is None:
            start, stop = span or (0, write.shape(self.table)[0])
            index: Ints = np.arange(start, stop)
        else:
            index, inverse = np.unique(rows, return_inverse=True)
            inputs[place or 0] = write.index(f"{node.name}_rows", inverse.reshape(-1))
        fetch = write.node(
            GatherRows(), (self.table, write.index(f"{self.table}_rows", index)), f"{node.name}_features"
        )
        inputs[position] = fetch.output
        yield self._with_access(fetch)

    def _cut(self, write: RowWriter, chain: Sequence[Node]) -> list[Node] | Refusal:
        """Nodes in parts of their rows, each after what it reads, and the concatenation of the parts."""
        graph, rows = write.graph, node_rows(write.graph, chain[0])
        leaving = leaving_values(graph, chain)
        if self.parts == 1 or leaving != (chain[-1].output,):
            return Refusal("an inner value is read elsewhere") if self.parts > 1 else Refusal("it stays in one part")
        if any(len(graph.shape(name)) != 2 for node in chain for name in (self.table, node.output)):
            return Refusal("its rows are not the first dimension of a matrix")
        bounds = [rows * part // self.parts for part in range(self.parts + 1)]
        made: list[Node] = []
        ends: list[str] = []
        for start, stop in pairwise(bounds):
            if start == stop:
                continue
            parts = [node_part(graph, node, start, stop) for node in chain]
            for part in parts:
                if isinstance(part, Refusal):
                    return part
            known: dict[str, str] = {}
            for node, part in zip(chain, parts, strict=True):
                assert isinstance(part, RowPart)
                made.extend(self._part(write, node, part, known))
                known[node.output] = made[-1].output
            ends.append(made[-1].output)
        made.append(write.node(Concat(0), ends, f"{chain[-1].name}_all", output=chain[-1].output))
        return made

    def _part(self, write: RowWriter, node: Node, part: RowPart, known: dict[str, str]) -> Iterator[Node]:
        """One part of a node; `known` are its operands that are made within the same part."""
        given = [write.graph.constants.get(name) for name in node.inputs]
        inputs = [known.get(name, name) for name in node.inputs]
        spans = [*part.spans, *(None,) * (len(inputs) - len(part.spans))]
        for position, (name, span) in enumerate(zip(node.inputs, spans, strict=True)):
            if callable(span) and name:
                inputs[position] = write.constant(f"{name}_part", span(given))
        for position, (name, span) in enumerate(zip(node.inputs, spans, strict=True)):
            cut = span if isinstance(span, tuple) else None
            if name == self.table:
                yield from self._fetch_rows(write, node, inputs, position, cut)
            elif name and name not in known and cut is not None and cut != (0, write.shape(name)[0]):
                piece = write.node(Slice(0, *cut), (name,), f"{node.name}_operand")
                inputs[position] = piece.output
                yield piece
        yield write.node(part.op, inputs, f"{node.name}_part")


def _by_row(graph: Graph, node: Node, value: str) -> bool:
    """Whether a row of a node's output depends only on the same row of a value."""
    part = node_part(graph, node, 0, 1)
    if isinstance(part, Refusal):
        return False
    return all(span == (0, 1) for name, span in zip(node.inputs, part.spans, strict=False) if name == value)
