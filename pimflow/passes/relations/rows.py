"""Rows over edges as rows of something smaller, and helpers that write nodes and constants in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.ir import Array, GatherRows, Graph, GraphEditor, Node, OnnxOp, Op, Refusal, Reshape, Value
from pimflow.ir.shapes import infer
from pimflow.ir.text.literals import digest
from pimflow.passes.base import PassResult
from pimflow.passes.remove_dead_code import RemoveDeadCode
from pimflow.records import NamedTuple

Ints = npt.NDArray[Any]

_REDUCTIONS = frozenset({"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"})

Rule = Callable[[Graph, Node], "Graph | Refusal | None"]
"""A rewrite at a node: the new graph, a reason why there is none, or None if it does not apply at all."""


class Picked(NamedTuple):
    """Rows of a value: rows[picks[i]] for every i; without picks the rows themselves."""

    rows: str
    picks: Ints | None


def index_of(graph: Graph, node: Node | None) -> Ints | None:
    """The constant index of a gather of rows, without negative entries; None of any other node."""
    if node is None or not isinstance(node.op, GatherRows) or node.inputs[1] not in graph.constants:
        return None
    index: Ints = graph.constants[node.inputs[1]]
    rows = graph.shape(node.inputs[0])[0]
    return np.where(index < 0, index + rows, index) if len(index) and index.min() < 0 else index


def gathered(graph: Graph, name: str) -> Picked:
    """The value whose rows a value has, tracing back only gathers by constants."""
    return _back(graph, name, views=False)


def picked(graph: Graph, name: str) -> Picked:
    """The value whose rows a value has, tracing back gathers by constants, and views that keep rows."""
    return _back(graph, name, views=True)


def _back(graph: Graph, name: str, *, views: bool) -> Picked:
    index: Ints | None = None
    node = graph.producer(name)
    while node is not None:
        own = index_of(graph, node)
        if own is not None:
            index = own if index is None else own[index]
        elif not (views and isinstance(node.op, Reshape) and keeps_rows(graph, node)):
            break
        name = node.inputs[0]
        node = graph.producer(name)
    return Picked(name, index)


def keeps_rows(graph: Graph, view: Node) -> bool:
    """Whether a view keeps each row of its first dimension intact."""
    given, made = graph.shape(view.inputs[0]), graph.shape(view.output)
    return bool(given) and bool(made) and given[0] == made[0] and 0 not in made


def reduces_within_rows(graph: Graph, node: Node) -> bool:
    """Whether a node is a reduction that computes each row of its first dimension from the same row."""
    op = node.op
    is_reduction = isinstance(op, OnnxOp) and not op.domain and op.op_type in _REDUCTIONS
    axes = reduced_axes(graph, node) if is_reduction else ()
    return bool(axes) and 0 not in axes


def reduced_axes(graph: Graph, node: Node) -> tuple[int, ...]:
    """The axes that a reduction of ONNX reduces, counted from the first; () if they are unknown."""
    assert isinstance(node.op, OnnxOp)
    axes = dict(node.op.attributes).get("axes")
    if len(node.inputs) > 1 and node.inputs[1]:
        known = graph.constants.get(node.inputs[1])
        axes = None if known is None else tuple(known.tolist())
    rank = len(graph.shape(node.inputs[0]))
    return tuple(int(axis) % rank for axis in axes) if isinstance(axes, tuple) else ()


def types_of_rows(pointers: Ints) -> Ints:
    """The type of every row, for rows sorted by type."""
    return np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))


class RowWriter:
    """Writes nodes and constants for one edit of a graph; equal constants become one."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.editor = GraphEditor(graph)
        self._constants: dict[str, str] = {}

    def constant(self, what: str, array: Array) -> str:
        """The name of a constant with these elements."""
        key = digest(array)
        if key not in self._constants:
            self._constants[key] = self._own_constant(array) or self.editor.new_constant(
                what, np.ascontiguousarray(array)
            )
        return self._constants[key]

    def _own_constant(self, array: Array) -> str:
        """The graph's own constant with these elements; "" if it has none."""
        candidates = ((name, known) for name, known in self.graph.constants.items() if _same_type(known, array))
        return next((name for name, known in candidates if digest(known) == digest(array)), "")

    def index(self, what: str, index: Ints) -> str:
        """The name of a constant with an index, in 32 bits if they are enough."""
        narrow = not len(index) or index.max() < 2**31
        return self.constant(what, index.astype(np.int32 if narrow else np.int64, copy=False))

    def array(self, name: str) -> Array | None:
        """A constant of the graph, or one that was written; None for any other value."""
        return self.editor.constant(name)

    def value(self, name: str) -> Value:
        """A value of the graph, or one that was written."""
        return self.editor.value(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """A value's shape; () if it has none."""
        return self.value(name).shape or ()

    def node(self, op: Op, inputs: Sequence[str], like: str, output: str = "") -> Node:
        """A typed node with a fresh name; its result is `output`, or a new value."""
        name = self.editor.new_node_name(like)
        ((shape, dtype),) = infer(op, [self.value(item) if item else None for item in inputs])
        return Node(op, tuple(inputs), (output or self.editor.new_value(name, shape, dtype),), name)

    def finish(self) -> Graph:
        """The edited graph, without nodes and values that are no longer read."""
        graph = RemoveDeadCode().run(self.editor.finish()).graph
        return graph.replace(
            nodes=(node.placed(fused_into=None) if _reads_lost_kernel(graph, node) else node for node in graph.nodes)
        )


def rewritten(graph: Graph, leave: Sequence[str], rule: Rule) -> PassResult:
    """The graph with a rule applied node by node, and why it did not apply where one might expect it to.

    Raises:
        GraphError: a name in `leave` is not a node of the graph.
    """
    left = {graph.node(name).name for name in leave}
    notes: list[str] = []
    sites: list[str] = []
    for name in [node.name for node in graph.nodes if node.name not in left]:
        node = graph.node_by_name.get(name)
        found = None if node is None else rule(graph, node)  # None: an earlier rewrite removed it
        if isinstance(found, Graph):
            graph = found
            sites.append(name)
        elif isinstance(found, Refusal):
            notes.append(f"{name}: {found.reason}")
    return PassResult(graph, bool(sites), tuple(notes), tuple(sites))


def _reads_lost_kernel(graph: Graph, node: Node) -> bool:
    return node.placement.fused_into is not None and node.placement.fused_into not in graph.node_by_name


def _same_type(one: Array, other: Array) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape)


def unmarked(node: Node) -> Node:
    """A node without the marks of other passes about its place in kernels and memory."""
    return replace(node, placement=replace(node.placement, fused_into=None, movement=None, padding=None))
