"""Recovery of scatters of edge values into rows of destinations as sparse ops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.frontend.recovery.edges import EdgeValues
from pimflow.frontend.recovery.rewriter import OUT_OF_RANGE, Ints, Rewriter, Rows, Segments, is_in_range
from pimflow.frontend.recovery.typed import Typed, TypedRows, match_typed, sizes_of, write_typed
from pimflow.frontend.structure import along_rows, compact, is_uniform
from pimflow.ir import Elementwise, Node, Refusal, Reshape, SegmentReduce, Spmm
from pimflow.ir.ops.sparse import Reduction
from pimflow.records import NamedTuple

REDUCTIONS = {"add": "sum", "max": "max", "min": "min"}
"""Our names of reductions, by ONNX's."""

_COMBINES = {"sum": "Add", "max": "Max", "min": "Min"}
_NEUTRAL = {"sum": 0.0, "max": float("-inf"), "min": float("inf")}
"""The neutral element of each reduction."""
_BOUNDS = {"max": "ReduceMin", "min": "ReduceMax"}
"""By reduction, the reduction over all updates that bounds every result of a scatter."""


class Weight(NamedTuple):
    """A factor of messages, [E] or [E, H]: a known array, or the name of a computed value with these rows."""

    array: npt.NDArray[Any] | None
    name: str
    per_head: bool


class Messages(NamedTuple):
    """weights * x[source] (optionally times matrices selected by type) for every edge, in the exporter's order."""

    rows: Rows
    weights: tuple[Weight, ...] = ()
    typed: Typed | None = None


class Scatter(NamedTuple):
    """The reduction of edges, their segments, and the axis of edges in the scattered values."""

    op: Reduction
    segments: Segments
    axis: int


class Aggregations:
    """Rewrites scatters as sparse ops."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self._edges = EdgeValues(rewriter)

    def recover(self, node: Node) -> Refusal | None:
        """Replaces a scatter by a sparse op, or returns why it cannot."""
        base, updates = self._base(node), node.inputs[2]
        found = self._reduction(node, base)
        if isinstance(found, Refusal):
            return found
        computed = base not in self._rewriter.known
        made = self._aggregate(found, updates, node)
        made = self._rewriter.move_axis(made, 0, found.axis, f"{node.name}/back")
        if computed:
            made = self._rewriter.write(Elementwise(_COMBINES[found.op.reduce]), base, made, like=f"{node.name}/start")
        self._rewriter.finish(node, made)
        return None

    def _base(self, node: Node) -> str:
        """The value that a scatter starts from, skipping a preceding scatter that has no effect.

        For a maximum, PyTorch Geometric's TorchScript export first scatters the smallest of all updates, then the
        updates themselves (`torch_geometric.utils.scatter`): no maximum over edges is smaller. Minima are handled
        likewise. NaN is an exception: it would reach all vertices.
        """
        rewriter, base = self._rewriter, node.inputs[0]
        first = rewriter.producer(rewriter.peel(base))
        if first is None or first.op != node.op or not self._have_equal_indices(first, node):
            return base
        bound = global_extreme(rewriter, first.inputs[2])
        if bound is None or bound.kind != _BOUNDS.get(rewriter.node_attributes(node).get("reduction", "none")):
            return base
        return first.inputs[0] if rewriter.peel(bound.inputs[0]) == rewriter.peel(node.inputs[2]) else base

    def _have_equal_indices(self, one: Node, other: Node) -> bool:
        arrays = [self._rewriter.known.get(node.inputs[1]) for node in (one, other)]
        known = [self._rewriter.key(array) for array in arrays if array is not None]
        return len(known) == 2 and known[0] == known[1]

    def _reduction(self, node: Node, base: str) -> Scatter | Refusal:
        """The reduction of a scatter into a base, or why it cannot be recovered."""
        rewriter, shape = self._rewriter, self._rewriter.shape(node.output)
        reduction = rewriter.node_attributes(node).get("reduction", "none")
        kind, dtype = REDUCTIONS.get(reduction), rewriter.value(node.output).dtype
        if kind is None:
            does = (
                "replaces elements: one of several updates stays" if reduction == "none" else f"reduces by {reduction}"
            )
            return Refusal(f"{node.name}: it {does}")
        if node.inputs[1] not in rewriter.known or not shape:
            return Refusal(f"{node.name}: its index is computed when the model runs")
        where = rewriter.destinations(node)
        if where is None:
            return Refusal(f"{node.name}: its index differs between columns")
        if not is_in_range(where.index, shape[where.axis]):
            return Refusal(f"{node.name}: {OUT_OF_RANGE}")
        if base not in rewriter.known and kind != "sum" and not dtype.startswith("float"):
            return Refusal(f"{node.name}: its {kind} starts from integers that are computed when the model runs")
        segments = rewriter.segments(where.index, shape[where.axis])
        op = self._with_initial_values(kind, base, segments, where.axis)
        if op is None:
            return Refusal(f"{node.name}: its initial values differ between rows")
        return Scatter(op, segments, where.axis)

    def _with_initial_values(self, kind: str, base: str, segments: Segments, axis: int) -> Reduction | None:
        """The reduction with the initial values of its rows; a computed base is combined with its result afterwards."""
        array = self._rewriter.known.get(base)
        if array is None:
            return Reduction(kind, _NEUTRAL[kind], _NEUTRAL[kind])
        small = compact(np.moveaxis(array, axis, 0))
        by_row = len(small) == segments.rows and segments.rows > 1
        touched = small[segments.counts > 0] if by_row else small
        empty = small[segments.counts == 0] if by_row else small
        if (touched.size and not is_uniform(touched)) or (empty.size and not is_uniform(empty)):
            return None
        last = float(empty.reshape(-1)[0]) if empty.size else 0.0
        first = float(touched.reshape(-1)[0]) if touched.size else last
        return Reduction(kind, first, last if empty.size else first)

    def _aggregate(self, found: Scatter, updates: str, node: Node) -> str:
        """Writes the reduction over rows along the first axis; returns its result."""
        op, segments, axis = found
        rewriter, fields = self._rewriter, (op.reduce, op.start, op.empty)
        messages = self._messages(updates, axis)
        if messages is None or len(rewriter.shape(messages.rows.x)) < 2:
            ordered = self._ordered(updates, found, node)
            return rewriter.write(SegmentReduce(*fields), ordered, segments.rowptr, like=node.name)
        x, col = messages.rows.x, messages.rows.index
        if messages.typed is not None:
            x, col = write_typed(rewriter, TypedRows(messages.rows, messages.typed), node.name)
        operands = [
            rewriter.move_axis(x, axis, 0, f"{node.name}/rows"),
            segments.rowptr,
            rewriter.sources(col, segments),
        ]
        if messages.weights:
            operands.append(self._weight(messages.weights, segments, node))
        return rewriter.write(Spmm(*fields), *operands, like=node.name)

    def _ordered(self, updates: str, found: Scatter, node: Node) -> str:
        if not found.axis:
            return self._edges.ordered(updates, found.segments)
        rows = self._rewriter.move_axis(updates, found.axis, 0, f"{node.name}/rows")
        return self._edges.permuted(rows, found.segments)

    # ---- the scattered values

    def _messages(self, name: str, axis: int) -> Messages | None:
        rewriter = self._rewriter
        name = rewriter.peel(name)
        rows = rewriter.rows(name, axis)
        if rows is not None:
            return Messages(rows)
        node = rewriter.producer(name)
        if node is None:
            return None
        if node.kind in ("Squeeze", "Reshape", "Einsum"):
            return None if axis else self._typed(node)
        if node.kind not in ("Mul", "Div") or len(node.inputs) != 2:
            return None
        pairs = [(node.inputs[0], node.inputs[1])] + ([(node.inputs[1], node.inputs[0])] if node.kind == "Mul" else [])
        for messages, weights in pairs:
            weight = self._as_weight(weights, rewriter.shape(name), axis, inverse=node.kind == "Div")
            found = None if weight is None else self._messages(messages, axis)
            if weight is not None and found is not None and rewriter.shape(messages) == rewriter.shape(name):
                return found._replace(weights=(*found.weights, weight))
        return None

    def _as_weight(self, name: str, shape: tuple[int, ...], axis: int, *, inverse: bool) -> Weight | None:
        """A factor of messages of a given shape, if it is one number per edge, or one per edge and head."""
        rewriter = self._rewriter
        own, array = rewriter.shape(name), rewriter.known.get(name)
        if axis:
            return None if array is None else _weight_along(array, shape, axis, inverse)
        if len(own) != len(shape) or own[0] != shape[0]:
            return None
        if array is not None:
            return _known_weight(array, shape, inverse)
        ones = all(size == 1 for size in own[1:])
        per_head = not ones and len(own) == 3 and own[1] == shape[1] and own[2] == 1
        return None if inverse or not (ones or per_head) else Weight(None, name, per_head)

    def _typed(self, node: Node) -> Messages | None:
        """A product with matrices selected by type, squeezed from [E, 1, N], or an Einsum with the result [E, N]."""
        rewriter = self._rewriter
        product = node if node.kind == "Einsum" else rewriter.producer(rewriter.peel(node.inputs[0]))
        found = match_typed(rewriter, product)
        if found is None:
            return None
        heads, _, columns = sizes_of(rewriter, found.typed)
        made = (len(found.rows.index), *heads, columns)
        return Messages(found.rows, (), found.typed) if rewriter.shape(node.output) == made else None

    # ---- operands

    def _weight(self, weights: tuple[Weight, ...], segments: Segments, node: Node) -> str:
        """The product of all weights of each edge as one operand, [E] or [E, H]."""
        rewriter = self._rewriter
        arrays = [weight for weight in weights if weight.array is not None]
        names = [self._computed_weight(weight, segments, node) for weight in weights if weight.array is None]
        if arrays:
            per_head = any(weight.per_head for weight in (*arrays, *(item for item in weights if item.array is None)))
            product = _product([weight.array for weight in arrays if weight.array is not None], per_head)
            names.append(rewriter.in_csr_order("weight", product, segments))
        ranks = {len(rewriter.shape(name)) for name in names}
        if len(ranks) > 1:
            names = [self._column(name, node) if len(rewriter.shape(name)) == 1 else name for name in names]
        total = names[0]
        for name in names[1:]:
            total = rewriter.write(Elementwise("Mul"), total, name, like=f"{node.name}/weight")
        return total

    def _column(self, name: str, node: Node) -> str:
        edges = self._rewriter.shape(name)[0]
        return self._rewriter.write(Reshape((edges, 1)), name, like=f"{node.name}/weight")

    def _computed_weight(self, weight: Weight, segments: Segments, node: Node) -> str:
        rewriter = self._rewriter
        ordered = self._edges.ordered(weight.name, segments)
        shape = rewriter.shape(ordered)
        target = shape[:2] if weight.per_head else shape[:1]
        return ordered if shape == target else rewriter.write(Reshape(target), ordered, like=f"{node.name}/weight")


def global_extreme(rewriter: Rewriter, name: str) -> Node | None:
    """The node that reduces a whole value to one number, if all elements of `name` are that number; else None."""
    node = rewriter.producer(rewriter.peel(name))
    while node is not None and node.kind not in _BOUNDS.values():
        parts = [item for item in node.inputs[: None if node.kind == "Add" else 1] if (rewriter.array(item) != 0).any()]
        passes_on = node.kind in ("Expand", "Reshape", "Identity", "Squeeze", "Unsqueeze", "Add") and len(parts) == 1
        node = rewriter.producer(parts[0]) if passes_on and math.prod(rewriter.shape(parts[0])) == 1 else None
    return node if node is not None and math.prod(rewriter.shape(node.output)) == 1 else None


def _weight_along(array: npt.NDArray[Any], shape: tuple[int, ...], axis: int, inverse: bool) -> Weight | None:
    """A factor that varies along only one axis of messages of a given shape."""
    if len(array.shape) > len(shape) or np.broadcast_shapes(array.shape, shape) != shape:
        return None
    vector: Ints | None = along_rows(np.moveaxis(np.broadcast_to(array, shape), axis, 0))
    return None if vector is None else Weight(1 / vector if inverse else vector, "", per_head=False)


def _known_weight(array: npt.NDArray[Any], shape: tuple[int, ...], inverse: bool) -> Weight | None:
    vector: Ints | None = along_rows(array)
    if vector is not None:
        return Weight(1 / vector if inverse else vector, "", per_head=False)
    by_head = np.broadcast_to(array, shape)[:, :, :1] if len(shape) == 3 and array.shape[2] == 1 else None
    if by_head is None:
        return None
    return Weight(1 / by_head[:, :, 0] if inverse else by_head[:, :, 0], "", per_head=True)


def _product(arrays: list[npt.NDArray[Any]], per_head: bool) -> npt.NDArray[Any]:
    """The product of all factors of every edge: [E, H] if any factor is."""
    if any(array.ndim == 2 for array in arrays):
        arrays = [array[:, None] if array.ndim == 1 else array for array in arrays]
    product = arrays[0]
    for array in arrays[1:]:
        product = product * array
    return product
