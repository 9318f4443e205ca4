"""The gradient of averages over cells of regions (RoiAlign; He et al., Mask R-CNN, 2017), which read a map between its
elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np

from pimflow.ir.gradients.places import Axis, clamped, corners_of, linear_taps, map_gradient
from pimflow.ir.gradients.tape import Gradients, Tape, differentiates, integer, number, text
from pimflow.ir.graph import Node
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.refusal import Refusal

_HALF_PIXEL_OPSET = 16
"""The first opset in which regions are half an element before the given coordinates, unless an attribute says
otherwise."""


@differentiates("RoiAlign")
def _region_averages(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """The gradient passes to the elements around each sampled place; regions have none, as in PyTorch."""
    (x, regions, images), (dy,) = node.inputs, gradients
    samples = integer(op, "sampling_ratio")
    if text(op, "mode", "avg") != "avg":
        return Refusal("RoiAlign of maxima has no gradient rule")
    if samples < 1:
        return Refusal(
            "RoiAlign: the number of samples depends on the regions", remedy="export it with a sampling_ratio"
        )
    batch, channels, *sizes = tape.shape(x)
    count, _, *cells = tape.shape(dy)
    shape = (count, *(size * samples for size in cells))
    at = [_places(tape, op, regions, axis, shape) for axis in (0, 1)]
    axes = [
        Axis(size, linear_taps(tape, clamped(tape, every, size), size)) for every, size in zip(at, sizes, strict=True)
    ]
    corners = corners_of(tape, axes[::-1], images)
    rows = tape.masked(_is_near(tape, at, sizes), _spread(tape, dy, samples))
    total = map_gradient(tape, corners, rows, (batch * math.prod(sizes), channels))
    if isinstance(total, Refusal):
        return total
    return (tape.transpose(tape.reshape(total, (batch, *sizes, channels)), (0, 3, 1, 2)), "", "")


def _is_near(tape: Tape, at: Sequence[str], sizes: Sequence[int]) -> str:
    """Whether places lie at most one element outside the map, [places, 1]; all others read zeros."""
    tests = []
    for every, size in zip(at, sizes, strict=True):
        tests.append(tape.elementwise("GreaterOrEqual", every, tape.number(-1.0, every)))
        tests.append(tape.elementwise("LessOrEqual", every, tape.number(size, every)))
    near = reduce(lambda left, right: tape.elementwise("And", left, right), tests)
    return tape.reshape(near, (math.prod(tape.shape(near)), 1))


def _spread(tape: Tape, dy: str, samples: int) -> str:
    """Every cell's gradient, in equal shares for its samples: [samples of all regions, channels]."""
    regions, channels, down, across = tape.shape(dy)
    shares = tape.transpose(tape.scaled(dy, 1 / samples**2), (0, 2, 3, 1))
    single = tape.reshape(shares, (regions, down, 1, across, 1, channels))
    return tape.rows_of(tape.broadcast_to(single, (regions, down, samples, across, samples, channels)))


def _places(tape: Tape, op: OnnxOp, regions: str, axis: int, shape: tuple[int, ...]) -> str:
    """The coordinates along an axis at which regions [x1, y1, x2, y2] are sampled, [regions, samples], from the shape
    [regions, samples down, samples across]."""
    default = "half_pixel" if tape.opset >= _HALF_PIXEL_OPSET else "output_half_pixel"
    scale = number(op.attributes, "spatial_scale", 1.0)
    begin, end = (tape.scaled(tape.slice(regions, 1, place, place + 1), scale) for place in (1 - axis, 3 - axis))
    extent = tape.sub(end, begin)
    if text(op, "coordinate_transformation_mode", default) == "half_pixel":
        begin = tape.plus(begin, -0.5)
    else:
        extent = tape.elementwise("Max", extent, tape.number(1.0, extent))
    count = shape[1 + axis]
    shares = tape.constant(((np.arange(count) + 0.5) / count).astype(np.dtype(tape.dtype(regions))), "shares")
    along = tape.add(begin, tape.mul(extent, shares))
    single = tape.reshape(along, (shape[0], count, 1) if axis == 0 else (shape[0], 1, count))
    return tape.reshape(tape.broadcast_to(single, shape), (shape[0], math.prod(shape[1:])))
