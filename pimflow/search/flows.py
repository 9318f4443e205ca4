"""How the parts of a node read the outputs of others: what can overlap within a decision, and what cannot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from pimflow.ir import Graph, Node, Op, Refusal, RowPart, Shape
from pimflow.ir.analysis.rows import row_count
from pimflow.records import NamedTuple

_MAX_ROWS = 4096


class Flow(NamedTuple):
    """How the parts of a node read an input: whether every part reads some of it, and whether all of it is read."""

    every_part_reads: bool
    all_is_read: bool


def flow_in(graph: Graph, node: Node) -> Sequence[Flow | None]:
    """How a node that is computed row by row reads its inputs; None for inputs that it reads whole."""
    shapes = tuple(None if value is None else value.shape for value in graph.in_values(node))
    return _rows_read(node.op, shapes, graph.value(node.outputs[0]).shape)


@lru_cache(maxsize=1024)
def _rows_read(op: Op, shapes: tuple[Shape | None, ...], out_shape: Shape | None) -> Sequence[Flow | None]:
    rows = row_count(out_shape)
    whole = op.part_rows(shapes, out_shape, 0, max(rows, 1))
    if isinstance(whole, Refusal):
        return [None] * len(shapes)
    by_rows = [isinstance(span, tuple) for span in whole.spans]
    if op.is_elementwise or op.is_matrix_product:  # each output row reads one row
        return [Flow(every_part_reads=True, all_is_read=True) if by_row else None for by_row in by_rows]
    if rows > _MAX_ROWS:
        return [Flow(every_part_reads=False, all_is_read=False) if by_row else None for by_row in by_rows]
    parts = [op.part_rows(shapes, out_shape, row, row + 1) for row in range(rows)]
    return [
        _flow_of([_span(part, index) for part in parts], row_count(shape)) if by_row else None
        for index, (shape, by_row) in enumerate(zip(shapes, by_rows, strict=True))
    ]


def _flow_of(spans: Sequence[tuple[int, int]], rows: int) -> Flow:
    """The flow of an input, given its number of rows and the rows that each output row reads."""
    reached = 0
    for start, stop in spans:
        reached = max(reached, stop) if start <= reached else reached
    return Flow(every_part_reads=all(start < stop for start, stop in spans), all_is_read=reached >= rows)


def _span(part: RowPart | Refusal, index: int) -> tuple[int, int]:
    """The rows of an input that a part reads; none if it reads no rows of its own."""
    span = (0, 0) if isinstance(part, Refusal) else part.spans[index]
    return span if isinstance(span, tuple) else (0, 0)
