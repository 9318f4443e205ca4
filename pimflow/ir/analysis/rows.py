"""Receptive fields along rows: which rows of its inputs an op needs to make some rows of its output.

The rows of a tensor are its second-last axis: H of NCHW activations, M of matrices and of batches of them.
An op is row-wise if a range of its output rows follows from ranges of its inputs' rows; all others are refused, with a
reason. Window arithmetic follows ONNX's Conv and Pool: output row o reads the input rows o*stride - pad_top +
j*dilation for j < kernel.

Each op's own rule is a method of the op; this module has the arithmetic that the rules share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pimflow.ir.refusal import Refusal
from pimflow.records import NamedTuple

Shape = tuple[int, ...]
Shapes = Sequence["Shape | None"]
"""Shapes of an op's inputs; None for absent ones."""
Span = tuple[int, int]


class Window(Protocol):
    """The parameters of a 2-D sliding window: a convolution's or a pool's."""

    @property
    def kernel(self) -> tuple[int, int]:
        """Height and width."""

    @property
    def strides(self) -> tuple[int, int]:
        """Along H and W."""

    @property
    def pads(self) -> tuple[int, int, int, int]:
        """Top, left, bottom, right."""

    @property
    def dilations(self) -> tuple[int, int]:
        """Along H and W."""


class RowWindow(NamedTuple):
    """Input rows [in_start, in_stop) and the padding rows around them."""

    in_start: int
    in_stop: int
    pad_top: int
    pad_bottom: int


def row_count(shape: Shape | None) -> int:
    """Rows of a tensor: its second-last dim; 0 for vectors, scalars and unknown shapes."""
    return shape[-2] if shape is not None and len(shape) >= 2 else 0


def rank_text(shape: Shape | None) -> str:
    """The number of dims of a shape, as text."""
    return "no static shape" if shape is None else f"{len(shape)} dims"


def rows_needed(window: Window, in_shape: Shape, out_start: int, out_stop: int) -> RowWindow | Refusal:
    """The input rows and padding from which a windowed op computes exactly its output rows [out_start, out_stop).

    Args:
        window: a convolution or a pool.
        in_shape: [N, C, H, W].
        out_start, out_stop: output rows, not empty.

    Returns:
        The window: `pad_top` and `pad_bottom` never exceed the op's own. A refusal if the part would read only padding
        (possible if a pad is as large as the dilated kernel).
    """
    size, stride, pads = in_shape[2], window.strides[0], window.pads
    first = out_start * stride - pads[0]
    end = (out_stop - 1) * stride - pads[0] + window.dilations[0] * (window.kernel[0] - 1) + 1
    in_start, in_stop = max(first, 0), min(end, size)
    if in_start >= in_stop:
        return Refusal(f"output rows {out_start} to {out_stop - 1} lie wholly in the padding")
    # In ceil mode the last window may extend beyond the padding; that overhang is not padding (averages do not count
    # it), and ceil mode restores it.
    return RowWindow(in_start, in_stop, in_start - first, min(end - in_stop, pads[2]))
