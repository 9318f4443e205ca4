"""Sliding windows over [N, C, H, W]: their arithmetic, and pooling."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from pimflow.errors import GraphError
from pimflow.ir.analysis.rows import Shape, Shapes, Span, Window, rank_text, rows_needed
from pimflow.ir.ops.base import Op, RowPart, register_op
from pimflow.ir.refusal import Refusal
from pimflow.records import dataclass

Pads = tuple[int, int, int, int]


def window_out(size: int, kernel: int, stride: int, before: int, after: int, dilation: int, ceil: bool = False) -> int:
    """Output extent of a sliding window along one axis (ONNX Conv and Pool formula).

    floor or ceil of (size + before + after - dilation*(kernel-1) - 1) / stride, plus 1. With `ceil`, a window that
    would start beyond the input and its leading padding is dropped, as ONNX Runtime does.
    """
    span = size + before + after - dilation * (kernel - 1) - 1
    if not ceil:
        return span // stride + 1
    out = math.ceil(span / stride) + 1
    return out - 1 if (out - 1) * stride >= size + before else out


def same_pads(mode: str, sizes: Shape, kernel: Shape, strides: Shape, dilations: Shape) -> tuple[int, ...]:
    """The pads of `auto_pad` "SAME_UPPER" or "SAME_LOWER": those before each axis, then those after each. There are as
    many windows as strides fit into the map (rounded up); an odd element goes after it (upper) or before it (lower)."""
    totals = [
        max(0, (math.ceil(size / stride) - 1) * stride + dilation * (extent - 1) + 1 - size)
        for size, extent, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return (*less, *more) if mode == "SAME_UPPER" else (*more, *less)


def pool_pads(
    mode: str, sizes: Shape, kernel: Shape, strides: Shape, dilations: Shape, ceil: bool = False
) -> tuple[int, ...] | None:
    """The pads of a pool with `auto_pad` "SAME_UPPER" or "SAME_LOWER", as ONNX Runtime computes them: for a kernel
    without dilation, and negative where strides skip elements. None if no pads of 0 or more give the same windows."""
    pads: list[tuple[int, int]] = []
    for size, extent, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = (math.ceil(size / stride) - 1) * stride + extent - size
        before = math.trunc((total if mode == "SAME_UPPER" else total + 1) / 2)
        after = max(0, total - before)
        counts = {window_out(size, extent, stride, before, end, dilation, ceil) for end in (total - before, after)}
        if before < 0 or len(counts) > 1:
            return None
        pads.append((before, after))
    return (*[before for before, _ in pads], *[after for _, after in pads])


def windows_out(window: Window, shape: Shape, ceil: bool = False) -> Shape:
    """[H, W] of the output of a window over [N, C, H, W]."""
    kernel, strides, pads, dilations = window.kernel, window.strides, window.pads, window.dilations
    if min(*kernel, *strides, *dilations) < 1:
        raise GraphError(f"a window has kernel {kernel}, strides {strides} and dilations {dilations}, below 1")
    if min(pads) < 0:
        raise GraphError(f"a window has pads {pads}, below 0")
    return tuple(
        window_out(shape[2 + i], kernel[i], strides[i], pads[i], pads[2 + i], dilations[i], ceil) for i in range(2)
    )


def window_part(op: Op, window: Window, in_shape: Shape | None, start: int, stop: int) -> tuple[Span, Pads] | Refusal:
    """The input rows and the pads with which a windowed op makes its output rows [start, stop)."""
    if in_shape is None or len(in_shape) != 4:
        return Refusal(f"{op.onnx_name} reads {rank_text(in_shape)}, not [N, C, H, W]")
    rows = rows_needed(window, in_shape, start, stop)
    if isinstance(rows, Refusal):
        return rows
    pads = window.pads
    return (rows.in_start, rows.in_stop), (rows.pad_top, pads[1], rows.pad_bottom, pads[3])


@register_op
@dataclass(frozen=True)
class Pool2d(Op):
    """Max or average pooling over [N, C, H, W], with one output."""

    onnx_names = ("MaxPool", "AveragePool")

    kind: Literal["max", "average"]
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: Pads = (0, 0, 0, 0)  # top, left, bottom, right
    dilations: tuple[int, int] = (1, 1)
    ceil_mode: bool = False
    count_include_pad: bool = False

    @property
    def onnx_name(self) -> str:
        """MaxPool or AveragePool."""
        return "MaxPool" if self.kind == "max" else "AveragePool"

    def shape_rule(self, shapes: Shapes) -> Shape:
        """[N, C, H', W']."""
        x = _image(self, shapes)
        return (*x[:2], *windows_out(self, x, self.ceil_mode))

    def row_rule(self, in_shapes: Shapes, out_shape: Shape, start: int, stop: int) -> RowPart | Refusal:
        """The rows under the windows, with less padding inside the map."""
        part = window_part(self, self, in_shapes[0], start, stop)
        if isinstance(part, Refusal):
            return part
        span, pads = part
        return RowPart(self if pads == self.pads else replace(self, pads=pads), (span,))


@register_op
@dataclass(frozen=True)
class GlobalPool(Op):
    """Mean or max over H and W, which are kept as dims of 1."""

    onnx_names = ("GlobalMaxPool", "GlobalAveragePool")

    kind: Literal["max", "average"]

    @property
    def onnx_name(self) -> str:
        """GlobalMaxPool or GlobalAveragePool."""
        return "GlobalMaxPool" if self.kind == "max" else "GlobalAveragePool"

    def shape_rule(self, shapes: Shapes) -> Shape:
        """[N, C, 1, 1]."""
        return (*_image(self, shapes)[:2], 1, 1)


def _image(op: Op, shapes: Shapes) -> Shape:
    x = shapes[0]
    if x is None or len(x) != 4:
        raise GraphError(f"{op.onnx_name} needs an input of rank 4, has {x}")
    return x
