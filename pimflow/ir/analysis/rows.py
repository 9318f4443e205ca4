"""Receptive fields along rows: which rows of its inputs an op needs to make some rows of its output.

The rows of a tensor are its second-last axis: H of NCHW activations, M of matrices and of batches of them.
An op is row-wise if a range of its output rows follows from ranges of its inputs' rows; all others are refused,
with a reason. The arithmetic of windows is that of ONNX's Conv and Pool: output row o reads the input rows
o*stride - pad_top + j*dilation for j < kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pimflow.ir.ops import BatchNorm, Concat, Conv2d, Elementwise, Gemm, MatMul, Op, Pad, Pool2d, Slice, op_name
from pimflow.ir.refusal import Refusal

Shape = tuple[int, ...]
Span = tuple[int, int]


class RowWindow(NamedTuple):
    """Input rows [in_start, in_stop) and the padding rows around them."""

    in_start: int
    in_stop: int
    pad_top: int
    pad_bottom: int


@dataclass(frozen=True, slots=True)
class RowPart:
    """Some output rows of an op: the op that makes just these, and what it reads.

    `spans` has one entry per input: the rows (start, stop) read, or None where the input is read whole because it
    has no such rows (weights, biases, broadcast operands, absent inputs).
    """

    op: Op
    spans: tuple[Span | None, ...]


def row_count(shape: Shape | None) -> int:
    """Rows of a tensor: its second-last dim; 0 for vectors, scalars and unknown shapes."""
    return shape[-2] if shape is not None and len(shape) >= 2 else 0


def rows_needed(op: Conv2d | Pool2d, in_shape: Shape, out_start: int, out_stop: int) -> RowWindow | Refusal:
    """Input rows and paddings with which `op` makes exactly its output rows [out_start, out_stop).

    Args:
        op: a convolution or a pool.
        in_shape: [N, C, H, W].
        out_start, out_stop: output rows, not empty.

    Returns:
        The window: `pad_top` and `pad_bottom` never exceed the op's own. A refusal where the part would read padding
        only (possible where a pad is as large as the dilated kernel).
    """
    size, stride = in_shape[2], op.strides[0]
    first = out_start * stride - op.pads[0]
    end = (out_stop - 1) * stride - op.pads[0] + op.dilations[0] * (op.kernel[0] - 1) + 1
    in_start, in_stop = max(first, 0), min(end, size)
    if in_start >= in_stop:
        return Refusal(f"output rows {out_start} to {out_stop - 1} lie wholly in the padding")
    # In ceil mode the last window may hang over the padding as well; that overhang is not padding (averages do not
    # count it), and ceil mode restores it.
    return RowWindow(in_start, in_stop, in_start - first, min(end - in_stop, op.pads[2]))


def part_rows(
    op: Op, in_shapes: Sequence[Shape | None], out_shape: Shape | None, start: int, stop: int
) -> RowPart | Refusal:
    """How `op` makes its output rows [start, stop).

    Args:
        op: the op.
        in_shapes: shapes of its inputs, None for absent ones.
        out_shape: shape of its (only) output.
        start, stop: output rows, 0 <= start < stop <= rows of the output.

    Returns:
        The part, or why there is none.
    """
    if out_shape is None or len(out_shape) < 2:
        return Refusal(f"{op_name(op)} has no rows: its output has {_rank(out_shape)}")
    if isinstance(op, Conv2d | Pool2d):
        return _window_part(op, in_shapes, start, stop)
    if isinstance(op, Elementwise):
        return _elementwise_part(op, in_shapes, out_shape, start, stop)
    if isinstance(op, Gemm):
        return _gemm_part(op, in_shapes, out_shape, start, stop)
    if isinstance(op, MatMul):
        return _matmul_part(op, in_shapes, start, stop)
    if isinstance(op, Concat | Slice):
        return _other_axis_part(op, in_shapes, out_shape, start, stop)
    if isinstance(op, BatchNorm):
        return _batch_norm_part(op, in_shapes, out_shape, start, stop)
    if isinstance(op, Pad):
        return _pad_part(op, in_shapes, out_shape, start, stop)
    return Refusal(f"{op_name(op)} is not computed row by row")


def _rank(shape: Shape | None) -> str:
    return "no static shape" if shape is None else f"{len(shape)} dims"


def _window_part(op: Conv2d | Pool2d, in_shapes: Sequence[Shape | None], start: int, stop: int) -> RowPart | Refusal:
    in_shape = in_shapes[0]
    if in_shape is None or len(in_shape) != 4:
        return Refusal(f"{op_name(op)} reads {_rank(in_shape)}, not [N, C, H, W]")
    window = rows_needed(op, in_shape, start, stop)
    if isinstance(window, Refusal):
        return window
    pads = (window.pad_top, op.pads[1], window.pad_bottom, op.pads[3])
    part = op if pads == op.pads else replace(op, pads=pads)
    return RowPart(part, ((window.in_start, window.in_stop), *(None,) * (len(in_shapes) - 1)))


def _elementwise_part(
    op: Op, in_shapes: Sequence[Shape | None], out_shape: Shape, start: int, stop: int
) -> RowPart | Refusal:
    spans: list[Span | None] = []
    for shape in in_shapes:
        rows = row_count(shape)
        if rows == out_shape[-2]:
            spans.append((start, stop))
        elif rows <= 1:  # broadcast along the rows, or without such an axis
            spans.append(None)
        else:
            return Refusal(f"{op_name(op)} reads {rows} rows and makes {out_shape[-2]}")
    return RowPart(op, tuple(spans))


def _gemm_part(
    op: Gemm, in_shapes: Sequence[Shape | None], out_shape: Shape, start: int, stop: int
) -> RowPart | Refusal:
    if op.trans_a:
        return Refusal("the left-hand side is transposed, its rows are not contiguous")
    spans: list[Span | None] = [(start, stop), None]
    if len(in_shapes) > 2:
        spans.append((start, stop) if row_count(in_shapes[2]) == out_shape[0] > 1 else None)
    return RowPart(op, tuple(spans))


def _matmul_part(op: MatMul, in_shapes: Sequence[Shape | None], start: int, stop: int) -> RowPart | Refusal:
    if any(shape is None or len(shape) < 2 for shape in in_shapes):
        return Refusal("a product with a vector, or with an operand of unknown shape, has no rows")
    return RowPart(op, ((start, stop), None))


def _other_axis_part(
    op: Concat | Slice, in_shapes: Sequence[Shape | None], out_shape: Shape, start: int, stop: int
) -> RowPart | Refusal:
    if op.axis == len(out_shape) - 2:
        return Refusal(f"{op_name(op)} works along the rows")
    return RowPart(op, ((start, stop),) * len(in_shapes))


def _batch_norm_part(
    op: BatchNorm, in_shapes: Sequence[Shape | None], out_shape: Shape, start: int, stop: int
) -> RowPart | Refusal:
    if len(out_shape) < 4:
        return Refusal("the rows of a batch norm's input are its channels")
    return RowPart(op, ((start, stop), *(None,) * (len(in_shapes) - 1)))


def _pad_part(op: Pad, in_shapes: Sequence[Shape | None], out_shape: Shape, start: int, stop: int) -> RowPart | Refusal:
    axis = len(out_shape) - 2
    size, before = row_count(in_shapes[0]), op.before[axis]
    in_start, in_stop = max(start - before, 0), min(stop - before, size)
    if in_start >= in_stop:
        return Refusal(f"output rows {start} to {stop - 1} lie wholly in the padding")
    top, bottom = in_start - (start - before), stop - before - in_stop
    part = replace(op, before=_with(op.before, axis, top), after=_with(op.after, axis, bottom))
    return RowPart(part, ((in_start, in_stop), *(None,) * (len(in_shapes) - 1)))


def _with(widths: tuple[int, ...], axis: int, width: int) -> tuple[int, ...]:
    return (*widths[:axis], width, *widths[axis + 1 :])
