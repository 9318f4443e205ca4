"""Column split: the output columns of one product, or channels of one convolution, are divided between two devices.

    y = x @ w   becomes   y_gpu = x @ w[:, :b]          on the host
                          y_pim = x @ w[:, b:]          on the other device, at the same time
                          y     = concat(y_gpu, y_pim)  over the columns

This is MD-DP along the other axis: both parts read the whole input and a part of the weights, so only x is read twice.
It is for nodes with few rows: a product with one row cannot be divided by rows at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pimflow.ir import Concat, Conv2d, Graph, Node, Placement, Slice
from pimflow.ir.analysis.regions import column_axis, leaving_values, node_columns
from pimflow.ir.ops.contraction import Contraction
from pimflow.ir.refusal import Refusal
from pimflow.passes.decision import DecisionPass, Site
from pimflow.records import dataclass


@dataclass(frozen=True)
class ColumnSplit(DecisionPass):
    """Splits a node by columns: the first on the host, the rest on another device.

    Columns are N of a matrix product's output (the last axis), or the channels of a convolution's output.

    Args:
        node: a convolution or matrix product with constant weights.
        gpu_columns: output columns that the host computes; neither none nor all.
        choice: the choice to request from the other device's backend (a mapping policy, a strategy); "" is its default.
        followers: elementwise nodes, in order, that the host applies to the two parts before the one Concat.
        device: computes the remaining columns.
        host: computes the first columns and all movements.
    """

    name: ClassVar[str] = "column-split"

    node: str
    gpu_columns: int
    choice: str = ""
    followers: tuple[str, ...] = ()
    device: str = "pim"
    host: str = "gpu"

    @property
    def covers(self) -> tuple[str, ...]:
        """The node and its followers."""
        return (self.node, *self.followers)

    def refusal(self, graph: Graph) -> Refusal | None:
        """Why the node cannot be split this way, or None."""
        nodes = [graph.node(name) for name in self.covers]
        first = nodes[0]
        refusal = _anchor_refusal(graph, first)
        if refusal is not None:
            return refusal
        columns = node_columns(graph, first)
        if not 0 < self.gpu_columns < columns:
            return Refusal(f"{first.name}: {self.gpu_columns} of {columns} columns on the host leave a part empty")
        made = {first.output}
        for node in nodes[1:]:
            refusal = _follower_refusal(graph, node, first, made)
            if refusal is not None:
                return refusal
            made.add(node.output)
        return None

    def rewrite(self, site: Site) -> list[Node] | Refusal:
        """The parts, the Slices of what they read from outside, and the Concats of values that leave."""
        refusal = self.refusal(site.graph)
        return refusal if refusal is not None else list(_Writer(site, self).nodes())


def _anchor_refusal(graph: Graph, node: Node) -> Refusal | None:
    if not isinstance(node.op, Contraction):
        return Refusal(f"{node.name}: {node.kind} is not a convolution or matrix product")
    if isinstance(node.op, Conv2d) and node.op.groups > 1:
        return Refusal(f"{node.name}: its {node.op.groups} groups read different channels")
    shapes = [graph.value(name).shape for name in (node.inputs[1], node.output)]
    if node.inputs[1] not in graph.constants:
        return Refusal(f"{node.name}: {node.inputs[1]!r} is computed, and a column split needs constant weights")
    if any(shape is None or len(shape) < 2 for shape in shapes):
        return Refusal(f"{node.name}: its weights or its output have no columns")
    return None


def _follower_refusal(graph: Graph, node: Node, first: Node, made: set[str]) -> Refusal | None:
    if not node.op.is_elementwise:
        return Refusal(f"{node.name}: {node.kind} is not elementwise and cannot follow the parts")
    if made.isdisjoint(node.inputs):
        return Refusal(f"{node.name}: does not read a result of the parts")
    if graph.value(node.output).shape != graph.value(first.output).shape:
        return Refusal(f"{node.name}: its output shape differs from that of {first.name}")
    return None


@dataclass(frozen=True)
class _Part:
    """The columns [start, stop) of one device."""

    device: str
    start: int
    stop: int


class _Writer:
    """Writes the nodes of one split."""

    def __init__(self, site: Site, split: ColumnSplit) -> None:
        self._site = site
        self._split = split
        self._graph = site.graph
        self._covered = [self._graph.node(name) for name in split.covers]
        first = self._covered[0]
        self._columns = node_columns(self._graph, first)
        self._axis = column_axis(self._graph, first)
        self._parts = (
            _Part(split.host, 0, split.gpu_columns),
            _Part(split.device, split.gpu_columns, self._columns),
        )

    def nodes(self) -> Iterator[Node]:
        """All nodes, in an order in which they can be computed."""
        made: dict[str, list[str]] = {node.output: [] for node in self._covered}
        for part in self._parts:
            names: dict[str, str] = {}
            fused: dict[str, str] = {}
            for node in self._covered:
                yield from self._write(node, part, names, fused)
                made[node.output].append(names[node.output])
        for value in leaving_values(self._graph, self._covered):
            name = self._site.editor.new_node_name(f"concat_{value}")
            yield Node(Concat(self._axis), tuple(made[value]), (value,), name, self._moved(value))

    def _write(self, node: Node, part: _Part, names: dict[str, str], fused: dict[str, str]) -> Iterator[Node]:
        """Write one node's columns of one part, after the Slices that it needs.

        Args:
            node: the node.
            part: the columns.
            names: by value, the name of its columns in this part; extended.
            fused: by node, the name of its part here; extended.
        """
        first = node is self._covered[0]
        sources = []
        for index, name in enumerate(node.inputs):
            cut = self._cut_axis(node, index)
            if name and name not in names and cut is not None:
                yield from self._cut(name, cut, part, names, node)
            sources.append(names.get(name, name))
        output = self._part_value(node.output, part)
        names[node.output] = output
        device = part.device if first else self._split.host
        written = self._site.editor.new_node_name(f"{node.name}_{part.device}")
        into = node.placement.fused_into
        placement = Placement(
            device=device,
            region=self._site.region,
            choice=(self._split.choice or None) if device != self._split.host else None,
            origin=node.name,
            fused_into=None if into is None else fused.get(into, self._site.first_parts.get(into, into)),
            movement=node.placement.movement,
            padding=node.placement.padding,
            narrow=node.placement.narrow,
        )
        fused[node.name] = written
        self._site.first_parts.setdefault(node.name, written)
        yield Node(node.op, tuple(sources), (output,), written, placement, node.tags)

    def _cut_axis(self, node: Node, index: int) -> int | None:
        """The axis along which an input is divided with the output's columns; None if all of it is read."""
        shape = self._site.editor.value(node.inputs[index]).shape if node.inputs[index] else None
        if shape is None:
            return None
        if isinstance(node.op, Contraction):
            if index == 0:
                return None
            axis = node.op.channel_axis % len(shape) if index == 1 else len(shape) - 1
        else:
            axis = self._axis - len(self._graph.shape(self._covered[0].output)) + len(shape)
        return axis if 0 <= axis < len(shape) and shape[axis] == self._columns else None

    def _cut(self, name: str, axis: int, part: _Part, names: dict[str, str], reader: Node) -> Iterator[Node]:
        """Cut the part's columns out of a value from outside, and add the name of the result to `names`."""
        editor = self._site.editor
        array = self._graph.constants.get(name)
        if array is not None:  # a view: nothing is copied or moved
            window = (slice(None),) * axis + (slice(part.start, part.stop),)
            cut_out, whole = array[window], self._graph.packed_form(name)
            packed = None if whole is None else whole.cut(cut_out, axis, part.start, part.stop)
            names[name] = editor.new_constant(f"{name}_{part.device}", cut_out, packed)
            return
        shape = list(self._graph.shape(name))
        shape[axis] = part.stop - part.start
        cut = names[name] = editor.new_value(f"{name}_{part.device}", shape, editor.value(name).dtype)
        op = Slice(axis, part.start, part.stop)
        yield Node(op, (name,), (cut,), editor.new_node_name(f"slice_{cut}"), self._moved(reader.output))

    def _part_value(self, value: str, part: _Part) -> str:
        shape = list(self._graph.shape(value))
        shape[self._axis] = part.stop - part.start
        return self._site.editor.new_value(f"{value}_{part.device}", shape, self._site.editor.value(value).dtype)

    def _moved(self, value: str) -> Placement:
        """The placement of a movement that is needed for a covered node's value."""
        producer = self._graph.producer(value)
        assert producer is not None, "covered nodes make the values"
        return Placement(self._split.host, self._site.region, origin=producer.name)
