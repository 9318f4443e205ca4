"""Parts of a node as graphs of their own, to be priced before anything is rewritten."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from pimflow.ir import Array, Conv2d, Elementwise, Graph, Node, Op, Refusal, RowPart, Value
from pimflow.ir.analysis.content import content_of
from pimflow.ir.analysis.padding import uneven_padding
from pimflow.ir.analysis.regions import column_axis, k_axes, node_columns, node_k, node_part
from pimflow.ir.ops.base import ConstantCut
from pimflow.ir.ops.contraction import Contraction
from pimflow.passes.k_split import k_refusal

FEW_ROWS = 16
"""Convolutions with at least this many rows are divided by rows only: they have enough."""
MIN_K = 32
"""Sums of fewer elements are not divided."""
Range = tuple[int, int, int]
"""An axis, and where a part starts and stops on it."""


def price_key(graph: Graph, node: Node) -> Hashable:
    """A key shared by nodes whose parts take the same time: op, operands, results, and what is decided about them."""
    operands = tuple(
        (None if value is None else (value.shape, value.dtype), name in graph.constants)
        for name, value in zip(node.inputs, graph.in_values(node), strict=True)
    )
    results = tuple((value.shape, value.dtype) for value in graph.out_values(node))
    where = node.placement
    return node.op, operands, results, content_of(graph, node), where.movement, where.padding, where.narrow


def rows_read(part: RowPart) -> tuple[int | ConstantCut | None, ...]:
    """By input, how many rows a part of a node reads: with these, the op determines what as many rows cost."""
    return tuple([span[1] - span[0] if isinstance(span, tuple) else span for span in part.spans])


def extract_rows(graph: Graph, node: Node, part: RowPart, rows: tuple[int, int]) -> Graph:
    """Some output rows of a node as a graph of their own; inputs are named by their position."""
    cuts = [(-2, *span) if isinstance(span, tuple) else span for span in part.spans]
    return _extract(graph, node, part.op, cuts, (-2, *rows))


def extract_row_parts(graph: Graph, node: Node, starts: Iterable[int], count: int) -> list[Graph]:
    """`count` rows of a node from each start on, as graphs of their own: of those that cost the same, one, and none
    that cannot be computed by themselves."""
    parts = [(start, node_part(graph, node, start, start + count)) for start in starts]
    made = [(start, part) for start, part in parts if not isinstance(part, Refusal)]
    if not content_of(graph, node):
        made = list({(part.op, rows_read(part)): (start, part) for start, part in made}.values())
    return [extract_rows(graph, node, part, (start, start + count)) for start, part in made]


def extract_columns(graph: Graph, node: Node, count: int) -> Graph:
    """The first columns of a contraction with constant weights as a graph of their own."""
    assert isinstance(node.op, Contraction), "only contractions are divided by columns"
    columns = node_columns(graph, node)
    cuts: list[Range | None] = []
    for index, name in enumerate(node.inputs):
        shape = graph.value(name).shape if name and index else None
        if not shape:  # also a scalar, which every column reads
            cuts.append(None)
            continue
        axis = node.op.channel_axis % len(shape) if index == 1 else len(shape) - 1
        cuts.append((axis, 0, count) if shape[axis] == columns else None)
    return _extract(graph, node, node.op, cuts, (column_axis(graph, node), 0, count))


def extract_k(graph: Graph, node: Node, start: int, stop: int) -> Graph:
    """The sum of a contraction over inner elements start .. stop-1 as a graph of its own; the first part has the
    bias."""
    over, down = k_axes(graph, node)
    cuts: list[Range | None] = [(over, start, stop), (down, start, stop), *(None,) * len(node.inputs[2:])]
    names = node.inputs if start == 0 else node.inputs[:2]
    part = replace(node, inputs=names)
    return _extract(graph, part, node.op, cuts[: len(names)], (-1, 0, graph.shape(node.output)[-1]))


def extract_addition(graph: Graph, node: Node) -> Graph:
    """The sum of two parts of a node's result as a graph of its own."""
    value = graph.value(node.output)
    values = {name: replace(value, name=name) for name in ("in0", "in1", "out")}
    only = Node(Elementwise("Add"), ("in0", "in1"), ("out",), node.name)
    return Graph(graph.name, ("in0", "in1"), ("out",), (only,), values, {}, graph.opset)


def divides_by_k(graph: Graph, node: Node) -> bool:
    """Whether the search divides the dimension that a node sums over: it can be divided and is not too small."""
    return k_refusal(graph, node) is None and node_k(graph, node) >= MIN_K


def divides_by_columns(graph: Graph, node: Node) -> bool:
    """Whether a contraction has constant weights that can be divided along the output's columns."""
    if not isinstance(node.op, Contraction) or (isinstance(node.op, Conv2d) and node.op.groups > 1):
        return False
    return node.inputs[1] in graph.constants and len(graph.shape(node.inputs[1])) >= 2 <= len(graph.shape(node.output))


def _extract(graph: Graph, node: Node, op: Op, cuts: Sequence[Range | ConstantCut | None], made: Range) -> Graph:
    values: dict[str, Value] = {}
    constants: dict[str, Array] = {}
    names: list[str] = []
    known, arrays = graph.values, [graph.constants.get(name) for name in node.inputs]
    for index, (source, cut) in enumerate(zip(node.inputs, cuts, strict=True)):
        name = f"in{index}" if source else ""
        names.append(name)
        if not source:
            continue
        value, array = known[source], arrays[index]
        shape = value.shape
        if isinstance(cut, tuple):
            shape = _cut_shape(shape, cut)
            array = None if array is None else _cut_array(array, cut)
        elif cut is not None:
            array = cut(arrays)
            shape = array.shape
        values[name] = Value(name, shape, value.dtype)
        if array is not None:
            constants[name] = array
    output = known[node.outputs[0]]
    values["out"] = Value("out", _cut_shape(output.shape, made), output.dtype)
    placement = node.placement
    if placement.padding is not None and not any(uneven_padding(op)):
        placement = node.placed(padding=None).placement
    only = Node(op, tuple(names), ("out",), node.name, placement)
    inputs = [name for name in names if name and name not in constants]
    return Graph(graph.name, tuple(inputs), ("out",), (only,), values, constants, graph.opset)


def _cut_array(array: Array, cut: Range) -> Array:
    """A view: nothing is copied."""
    axis, start, stop = cut
    window = (slice(None),) * (axis % array.ndim) + (slice(start, stop),)
    return array[window]


def _cut_shape(shape: tuple[int, ...] | None, cut: Range) -> tuple[int, ...]:
    assert shape is not None, "values that are cut have known shapes"
    axis, start, stop = cut
    axis %= len(shape)
    return (*shape[:axis], stop - start, *shape[axis + 1 :])
