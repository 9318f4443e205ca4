"""Convolutions and matrix products: the ops that can run on PIM."""

from __future__ import annotations

from dataclasses import replace

from pimflow.errors import GraphError
from pimflow.ir.analysis.rows import Shape, Shapes, Span, row_count
from pimflow.ir.ops.base import Op, RowPart, register_op
from pimflow.ir.ops.elementwise import broadcast
from pimflow.ir.ops.window import Pads, window_part, windows_out
from pimflow.ir.refusal import Refusal
from pimflow.records import dataclass


class Contraction(Op):
    """A product of activations (the first input) and weights (the second), maybe with a bias as the third."""

    is_contraction = True

    @property
    def channel_axis(self) -> int:
        """The axis of the weights that holds the output's channels (its columns)."""
        return -1

    @property
    def bias_factor(self) -> float:
        """The factor of the bias."""
        return 1.0

    def with_bias(self, rank: int) -> Contraction | None:
        """The same product with a bias per output channel as the third input; None if there is no such op.

        Args:
            rank: rank of the output.
        """
        return None


@register_op
@dataclass(frozen=True)
class Conv2d(Contraction):
    """2-D convolution. Inputs: X [N, C, H, W], W [O, C/groups, kh, kw], optional bias [O]."""

    onnx_names = ("Conv",)
    least_ranks = (4, 4)

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: Pads = (0, 0, 0, 0)  # top, left, bottom, right
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def channel_axis(self) -> int:
        """0, the axis of O in [O, C/groups, kh, kw]."""
        return 0

    def with_bias(self, rank: int) -> Conv2d:
        """The op itself: a convolution may have a bias."""
        return self

    def shape_rule(self, shapes: Shapes) -> Shape:
        """[N, O, H', W']."""
        x, w = shapes[0], shapes[1] if len(shapes) > 1 else None
        if x is None or w is None or len(x) != 4 or len(w) != 4:
            raise GraphError(f"Conv needs input and weights of rank 4, has {x} and {w}")
        if w[2:] != self.kernel:
            self.refuse(f"weights {w} do not have the kernel {self.kernel}")
        if self.groups < 1:
            self.refuse(f"has {self.groups} groups; it needs 1 or more")
        if x[1] != w[1] * self.groups:
            self.refuse(f"{x[1]} input channels, weights {w} and {self.groups} groups do not agree")
        if w[0] % self.groups:
            self.refuse(f"{w[0]} output channels do not divide into {self.groups} groups")
        bias = shapes[2] if len(shapes) > 2 else None
        if bias is not None and bias != (w[0],):
            self.refuse(f"bias {bias} does not have one element for each of {w[0]} channels")
        return (x[0], w[0], *windows_out(self, x))

    def row_rule(self, in_shapes: Shapes, out_shape: Shape, start: int, stop: int) -> RowPart | Refusal:
        """The rows under the windows, with less padding inside the map."""
        part = window_part(self, self, in_shapes[0], start, stop)
        if isinstance(part, Refusal):
            return part
        span, pads = part
        op = self if pads == self.pads else replace(self, pads=pads)
        return RowPart(op, (span, *(None,) * (len(in_shapes) - 1)))


@register_op
@dataclass(frozen=True)
class Gemm(Contraction):
    """alpha * op(A) @ op(B) + beta * C, with op an optional transpose. Inputs: A, B, optional C."""

    onnx_names = ("Gemm",)
    is_matrix_product = True
    least_ranks = (2, 2)

    alpha: float = 1.0
    beta: float = 1.0
    trans_a: bool = False
    trans_b: bool = False

    @property
    def channel_axis(self) -> int:
        """The axis of N in [K, N], or in [N, K] if B is transposed."""
        return 0 if self.trans_b else 1

    @property
    def bias_factor(self) -> float:
        """Beta."""
        return self.beta

    def with_bias(self, rank: int) -> Gemm:
        """The product with beta 1."""
        return replace(self, beta=1.0)

    def shape_rule(self, shapes: Shapes) -> Shape:
        """[M, N]."""
        a, b = shapes[0], shapes[1] if len(shapes) > 1 else None
        if a is None or b is None or len(a) != 2 or len(b) != 2:
            raise GraphError(f"Gemm needs two matrices, has {a} and {b}")
        rows, inner = reversed(a) if self.trans_a else a
        inner_b, columns = reversed(b) if self.trans_b else b
        if inner != inner_b:
            self.refuse(f"the inner sizes {inner} and {inner_b} differ")
        c = shapes[2] if len(shapes) > 2 else None
        if c is not None and broadcast((rows, columns), c) != (rows, columns):
            self.refuse(f"C {c} does not fit {(rows, columns)}")
        return (rows, columns)

    def row_rule(self, in_shapes: Shapes, out_shape: Shape, start: int, stop: int) -> RowPart | Refusal:
        """The same rows of A, and of a C that has rows."""
        if self.trans_a:
            return Refusal("the left-hand side is transposed, its rows are not contiguous")
        spans: list[Span | None] = [(start, stop), None]
        if len(in_shapes) > 2:
            spans.append((start, stop) if row_count(in_shapes[2]) == out_shape[0] > 1 else None)
        return RowPart(self, tuple(spans))


@register_op
@dataclass(frozen=True)
class MatMul(Contraction):
    """numpy.matmul of two inputs, with its batch broadcasting."""

    onnx_names = ("MatMul",)
    is_matrix_product = True
    least_ranks = (1, 1)

    def with_bias(self, rank: int) -> Gemm | None:
        """A Gemm, if both operands are matrices."""
        return Gemm() if rank == 2 else None

    def shape_rule(self, shapes: Shapes) -> Shape:
        """numpy.matmul's."""
        return matmul_shape(shapes[0], shapes[1] if len(shapes) > 1 else None)

    def row_rule(self, in_shapes: Shapes, out_shape: Shape, start: int, stop: int) -> RowPart | Refusal:
        """The same rows of the left-hand side."""
        if any(shape is None or len(shape) < 2 for shape in in_shapes):
            return Refusal("a product with a vector, or with an operand of unknown shape, has no rows")
        return RowPart(self, ((start, stop), None))


PRODUCT = MatMul()
"""The product of two matrices, or of stacks of them: it has no parameters."""

FUSED_PRODUCT = "FusedMatMul"
"""ONNX Runtime's fused form of such a product: operands with their axes in another order, and a factor."""


def fused_order(rank: int, *, transposed: bool, batch_inside: bool) -> tuple[int, ...]:
    """The order of the axes of an operand of a `FUSED_PRODUCT`, as which it is multiplied.

    Args:
        rank: number of its axes.
        transposed: whether the last two axes are swapped.
        batch_inside: whether the first axis is the last one of the batch.
    """
    order = list(range(rank))
    if batch_inside:
        order = [*order[1:-1], order[0], order[-1]]
    return (*order[:-2], *order[:-3:-1]) if transposed and rank > 1 else tuple(order)


def matmul_shape(a: Shape | None, b: Shape | None) -> Shape:
    """The shape of numpy.matmul of two arrays.

    Raises:
        GraphError: the shapes do not fit.
    """
    if not a or not b:
        raise GraphError(f"MatMul needs two tensors of rank 1 or more, has {a} and {b}")
    left = (1, *a) if len(a) == 1 else a
    right = (*b, 1) if len(b) == 1 else b
    if left[-1] != right[-2]:
        raise GraphError(f"MatMul: the inner sizes of {a} and {b} differ")
    rows = left[-2:-1] if len(a) > 1 else ()
    columns = right[-1:] if len(b) > 1 else ()
    return broadcast(left[:-2], right[:-2]) + rows + columns
