"""Convolutions of other ranks and element types, and transposed convolutions, as implicit GEMMs."""

from __future__ import annotations

import math

from pimflow.ir import OnnxOp, Shape
from pimflow.runtime.gpu.kept.rules import BLOCKED, CONTRIB, asks, bytes_at, elements_at, integer, integers, shape_of
from pimflow.runtime.gpu.work import DepthwiseWork, GpuWork, MatrixWork, Operands, StreamWork, Window


@asks("Conv", "ConvInteger", "DeformConv")
@asks("FusedConv", domain=CONTRIB)
@asks("Conv", domain=BLOCKED)
def _convolution(op: OnnxOp, operands: Operands) -> GpuWork:
    return _windows(op, operands, weights_at=1)


@asks("QLinearConv")
@asks("QLinearConv", domain=CONTRIB)
def _quantised(op: OnnxOp, operands: Operands) -> GpuWork:
    return _windows(op, operands, weights_at=3)


@asks("ConvTranspose")
@asks("ConvTransposeWithDynamicPads", domain=CONTRIB)
def _transposed(op: OnnxOp, operands: Operands) -> GpuWork:
    """A transposed convolution, the gradient of a convolution: a product of each input pixel with all its weights."""
    entering, weights = elements_at(operands, 0), shape_of(operands, 1) or ()
    if not _is_whole(weights, entering, operands.output.elements):
        return StreamWork(0, operands.bytes)
    groups, window = integer(op, "group", 1), math.prod(weights[1:])
    if groups > 1 and weights[1] == 1:
        return DepthwiseWork(entering * window, operands.bytes)
    pixels = entering // weights[0]
    return MatrixWork(pixels, window, weights[0] // groups, groups, operands.bytes, convolution=True)


def _windows(op: OnnxOp, operands: Operands, weights_at: int) -> GpuWork:
    """Each output pixel is a row of the product; weights are [out channels, in channels of a group, kernel...]."""
    output, weights = operands.output, shape_of(operands, weights_at) or ()
    if not _is_whole(weights, elements_at(operands, 0), output.elements):
        return StreamWork(0, operands.bytes)
    groups, depth = integer(op, "group", 1), math.prod(weights[1:])
    if groups > 1 and weights[1] == 1:
        return DepthwiseWork(output.elements * depth, operands.bytes)
    pixels, columns = output.elements // weights[0], weights[0] // groups
    window = _window(op, operands, weights)
    return MatrixWork(pixels, columns, depth, groups, operands.bytes, convolution=True, window=window)


def _is_whole(weights: Shape, *elements: int) -> bool:
    """Whether the operands can be those of a convolution, and none is empty."""
    return len(weights) > 2 and all((*elements, *weights))


def _window(op: OnnxOp, operands: Operands, weights: Shape) -> Window | None:
    """The window of a convolution over one or two dimensions; with one, its maps have one row."""
    shape, kernel = operands.output.shape or (), weights[2:]
    if len(kernel) > 2 or len(shape) != len(weights):
        return None
    spatial = shape[1:-1] if integer(op, "channels_last") else shape[2:]
    strides, dilations = (integers(op, name) or (1,) * len(kernel) for name in ("strides", "dilations"))
    touched = math.prod(min(1.0, size / step) for size, step in zip(kernel, strides, strict=True))
    skipped = round(bytes_at(operands, 0) * (1 - touched))
    return Window((shape[0], *_pair(spatial)), weights[1], _pair(kernel), _pair(strides), _pair(dilations), skipped)


def _pair(sizes: tuple[int, ...]) -> tuple[int, int]:
    return (1, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])
