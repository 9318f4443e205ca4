"""Ops over the edges of a graph, with one matrix row per vertex or per edge.

Edges are stored in compressed rows (CSR), one row per destination: `rowptr[d]` to `rowptr[d + 1] - 1` are those into
vertex d, and `col` holds their sources. Edge values are in the same order. Ns is the number of sources, Nd of
destinations, E of edges, H of heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pimflow.ir.analysis.rows import Shape, Shapes
from pimflow.ir.ops.base import ConstantCut, Op, RowPart, register_op
from pimflow.ir.refusal import Refusal
from pimflow.records import dataclass

REDUCTIONS = ("sum", "max", "min")
"""The reductions over the edges of a row."""

PAIRINGS = ("add", "mul", "dot")
"""How `Sddmm` and `GatherPairs` combine two rows."""


class SparseOp(Op):
    """An op that reads the structure of a graph; its ONNX form is a pattern of several operators."""

    is_sparse = True

    @property
    def onnx_name(self) -> str:
        """The class's name: no ONNX operator is this op."""
        return type(self).__name__

    def _rows(self, shapes: Shapes, position: int) -> int:
        """The number of rows that an operand of row pointers describes."""
        pointers = shapes[position] if position < len(shapes) else None
        if pointers is None or len(pointers) != 1 or pointers[0] < 1:
            self.refuse(f"row pointers need the shape [rows + 1], have {pointers}")
        return pointers[0] - 1

    def _vector(self, shapes: Shapes, position: int, what: str, size: int | None = None) -> int:
        """The number of elements of a one-dimensional operand."""
        vector = shapes[position] if position < len(shapes) else None
        if vector is None or len(vector) != 1 or size not in (None, vector[0]):
            self.refuse(f"{what} need the shape [{'E' if size is None else size}], have {vector}")
        return vector[0]

    def _matrix(self, shapes: Shapes, position: int, what: str) -> Shape:
        """The shape of an operand that has rows."""
        shape = shapes[position] if position < len(shapes) else None
        if shape is None or not shape:
            self.refuse(f"{what} need rows, have the shape {shape}")
        return shape


@dataclass(frozen=True)
class Reduction(SparseOp):
    """Rows of edges, each reduced to one value per column.

    Args:
        reduce: "sum", "max" or "min".
        start: initial value of a row with edges (ONNX's scatter reduces into an existing tensor).
        empty: value of a row without edges.
    """

    reduce: str = "sum"
    start: float = 0.0
    empty: float = 0.0

    def _check_reduction(self) -> None:
        if self.reduce not in REDUCTIONS:
            self.refuse(f"reduces by {', '.join(REDUCTIONS)}, not by {self.reduce!r}")


@register_op
@dataclass(frozen=True)
class Spmm(Reduction):
    """out[d] = row_scale[d] * sum (or max, min) over the edges e into d of weight[e] * x[col[e]].

    Inputs: x [Ns, ...], rowptr [Nd + 1], col [E], optional weight [E], or [E, H] for x [Ns, H, C], optional row_scale
    [Nd]. An edge that occurs twice counts twice.
    """

    content_operands = (1, 2)
    cut_operands = (1, 2, 3, 4)

    def shape_rule(self, shapes: Shapes) -> Shape:
        """[Nd, ...]."""
        self._check_reduction()
        x, rows, edges = self._matrix(shapes, 0, "features"), self._rows(shapes, 1), self._vector(shapes, 2, "sources")
        weight = shapes[3] if len(shapes) > 3 else None
        per_head = len(x) == 3 and weight == (edges, x[1])
        if weight is not None and weight != (edges,) and not per_head:
            self.refuse(f"weights {weight} fit neither {edges} edges nor their heads")
        if len(shapes) > 4 and shapes[4] is not None:
            self._vector(shapes, 4, "row scales", rows)
        return (rows, *x[1:])

    def row_rule(self, in_shapes: Shapes, out_shape: Shape, start: int, stop: int) -> RowPart | Refusal:
        """The edges into those destinations; features are read whole."""
        if len(out_shape) != 2:
            return Refusal("its destinations are not the rows of its output")
        cuts: tuple[ConstantCut, ...] = (
            lambda given: _pointers(given, 1)[start : stop + 1] - _pointers(given, 1)[start],
            *(_edges_of(position, start, stop) for position in (2, 3)),
            lambda given: _array(given, 4)[start:stop],
        )
        spans = (None, *(cut if shape is not None else None for cut, shape in zip(cuts, in_shapes[1:], strict=False)))
        return RowPart(self, spans)


def _edges_of(position: int, start: int, stop: int) -> ConstantCut:
    """The part of a constant of edges that belongs to some destinations."""

    def cut(given: Sequence[npt.NDArray[np.generic] | None]) -> npt.NDArray[np.generic]:
        first, last = _pointers(given, 1)[[start, stop]]
        return _array(given, position)[first:last]

    return cut


def _array(given: Sequence[npt.NDArray[np.generic] | None], position: int) -> npt.NDArray[np.generic]:
    array = given[position]
    assert array is not None
    return array


def _pointers(given: Sequence[npt.NDArray[np.generic] | None], position: int) -> npt.NDArray[np.int64]:
    return _array(given, position).astype(np.int64, copy=False)


@dataclass(frozen=True)
class Pairing(SparseOp):
    """Combines two rows into one for every edge, or for every pair of indices.

    Args:
        pairing: "add", "mul" or "dot" (over the last dim, which is removed).
    """

    pairing: str = "add"

    def _paired(self, x: Shape, y: Shape, pairs: int) -> Shape:
        """[pairs, ...], from rows of x and rows of y."""
        if self.pairing not in PAIRINGS:
            self.refuse(f"pairs by {', '.join(PAIRINGS)}, not by {self.pairing!r}")
        if x[1:] != y[1:] or (self.pairing == "dot" and len(x) < 2):
            self.refuse(f"rows of {x} and of {y} do not pair")
        return (pairs, *(x[1:-1] if self.pairing == "dot" else x[1:]))


@register_op
@dataclass(frozen=True)
class SegmentReduce(Reduction):
    """The values of the edges into each destination, reduced. Inputs: updates [E, ...], rowptr [Nd + 1]."""

    content_operands = (1,)

    def shape_rule(self, shapes: Shapes) -> Shape:
        """[Nd, ...]."""
        self._check_reduction()
        return (self._rows(shapes, 1), *self._matrix(shapes, 0, "updates")[1:])


@register_op
@dataclass(frozen=True)
class Sddmm(Pairing):
    """A value for every edge from its two ends: x[col[e]] + y[d], their product, or their dot product.

    Inputs: x [Ns, ...], y [Nd, ...], rowptr [Nd + 1], col [E].
    """

    content_operands = (2, 3)

    def shape_rule(self, shapes: Shapes) -> Shape:
        """[E, ...]."""
        x, y = self._matrix(shapes, 0, "sources"), self._matrix(shapes, 1, "destinations")
        rows, edges = self._rows(shapes, 2), self._vector(shapes, 3, "sources")
        if y[0] != rows:
            self.refuse(f"{y[0]} rows of destinations are not the {rows} that the pointers describe")
        return self._paired(x, y, edges)


@register_op
@dataclass(frozen=True)
class EdgeSoftmax(SparseOp):
    """Softmax over the edges into each destination: exp(e - m) / (sum of exp(e - m) + eps).

    m is the largest logit of the row, but at least `floor`. Inputs: logits [E] or [E, H], rowptr [Nd + 1].

    Args:
        floor: lower bound of m; exporters start the maximum from zeros.
        eps: added to the sum.
    """

    content_operands = (1,)

    floor: float = float("-inf")
    eps: float = 0.0

    def shape_rule(self, shapes: Shapes) -> Shape:
        """The shape of the logits."""
        self._rows(shapes, 1)
        return self._matrix(shapes, 0, "logits")


@register_op
@dataclass(frozen=True)
class GatherRows(SparseOp):
    """x[index[i]]: a row per edge, or per pair of a source and an edge type. Inputs: x [N, ...], index [M]."""

    content_operands = (1,)

    def shape_rule(self, shapes: Shapes) -> Shape:
        """[M, ...]."""
        x = self._matrix(shapes, 0, "features")
        return (self._vector(shapes, 1, "indices"), *x[1:])


@register_op
@dataclass(frozen=True)
class GatherPairs(Pairing):
    """x[first[i]] + y[second[i]], their product, or their dot product, for any pairs of rows.

    Inputs: x [N, ...], y [M, ...], first [P], second [P].
    """

    content_operands = (2, 3)

    def shape_rule(self, shapes: Shapes) -> Shape:
        """[P, ...]."""
        x, y = self._matrix(shapes, 0, "first rows"), self._matrix(shapes, 1, "second rows")
        pairs = self._vector(shapes, 2, "first indices")
        self._vector(shapes, 3, "second indices", pairs)
        return self._paired(x, y, pairs)


@register_op
@dataclass(frozen=True)
class TypedLinear(SparseOp):
    """Rows of type r times the weights of type r. Inputs: x [M, K], w [R, K, N], pointers [R + 1] into rows by type.

    With heads x is [M, H, K] and w [R, H, K, N]: one matrix per head. With a fourth input, index [M], the rows are
    x[index], and x may have any number of them. A fifth, bias [R, N] or [R, H, N], is added to each type's products.
    """

    content_operands = (2, 3)

    def shape_rule(self, shapes: Shapes) -> Shape:
        """[M, N], or [M, H, N]."""
        x, w = self._matrix(shapes, 0, "features"), self._matrix(shapes, 1, "weights")
        rows = self._vector(shapes, 3, "indices") if len(shapes) > 3 and shapes[3] is not None else x[0]
        fits = len(x) in (2, 3) and len(w) == len(x) + 1 and x[1:] == w[1:-1]
        if not fits or self._rows(shapes, 2) != w[0]:
            self.refuse(f"rows {x} in {self._rows(shapes, 2)} types do not fit weights {w}")
        bias = shapes[4] if len(shapes) > 4 else None
        if bias is not None and bias != (w[0], *w[1:-2], w[-1]):
            self.refuse(f"a bias {bias} does not fit weights {w}")
        return (rows, *x[1:-1], w[-1])


@register_op
@dataclass(frozen=True)
class TypedSpmm(SparseOp):
    """An `Spmm` fused with the `TypedLinear` that makes its rows, which are summed at once and never written to memory.

    Inputs: x, w [R, K, N], pointers [R + 1] and optional index [M] as for a `TypedLinear` of M rows; rowptr [Nd + 1],
        col [E] into these rows, optional weight [E] or [E, H], and optional row_scale [Nd] as for an `Spmm`.

    Args:
        row_shape: the shape that each product is viewed as for the sum, [H, C]; () leaves it as it is.
    """

    content_operands = (2, 3, 4, 5)

    row_shape: tuple[int, ...] = ()

    def shape_rule(self, shapes: Shapes) -> Shape:
        """[Nd, N], or [Nd, H, N]."""
        return Spmm().shape_rule((self.viewed(TypedLinear().shape_rule(shapes[:4])), *shapes[4:]))

    def viewed(self, products: Shape) -> Shape:
        """The shape of the products as they are added up."""
        if self.row_shape and math.prod(products[1:]) != math.prod(self.row_shape):
            self.refuse(f"products {products} are no rows of {self.row_shape}")
        return (products[0], *(self.row_shape or products[1:]))
