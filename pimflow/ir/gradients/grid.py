"""The gradient of reading a map at computed places (GridSample): interpolated, or from the nearest element.

Cubic interpolation reads four elements along each axis (Keys, Cubic Convolution Interpolation for Digital Image
Processing, 1981), each of which is clamped or reflected separately; in other modes the place is. ONNX Runtime and
PyTorch do the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pimflow.ir.gradients.places import (
    Axis,
    Tap,
    clamped,
    clamped_element,
    coordinate_gradients,
    corners_of,
    linear_taps,
    map_gradient,
)
from pimflow.ir.gradients.tape import CONTRIB, Gradients, Tape, differentiates, integer, text
from pimflow.ir.graph import Node
from pimflow.ir.ops.movement import Concat
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.refusal import Refusal

_LINEAR = ("bilinear", "linear")
_CUBIC = ("bicubic", "cubic")
_TENSION = -0.75
_NEAR = (_TENSION + 2, -(_TENSION + 3), 0.0, 1.0)
_FAR = (_TENSION, -5 * _TENSION, 8 * _TENSION, -4 * _TENSION)
"""Weights of elements at a distance below one, and below two: polynomials of the distance."""


@differentiates("GridSample", domain=CONTRIB)
@differentiates("GridSample")
def _grid_sample(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """The gradient passes to the elements around each place by their weights, and to the places by the derivatives of
    the weights. In mode "nearest" one element gets all of it, and places have a zero gradient."""
    (x, grid), (dy,) = node.inputs, gradients
    mode = text(op, "mode", _LINEAR[0])
    images, channels, *sizes = tape.shape(x)
    if mode not in ("nearest", *_LINEAR, *_CUBIC):
        return Refusal(f"{op.op_type} of mode {mode!r} has no gradient rule")
    axes = [_axis(tape, op, grid, place, size, mode) for place, size in enumerate(reversed(sizes))]
    corners = corners_of(tape, axes)
    rows = (images * math.prod(sizes), channels)
    count = math.prod(tape.shape(grid)[:-1])
    last = (0, *range(2, len(sizes) + 2), 1)
    dy_rows = tape.reshape(tape.transpose(dy, last), (count, channels))
    dx = dgrid = ""
    if tape.wants(x):
        total = map_gradient(tape, corners, dy_rows, rows)
        if isinstance(total, Refusal):
            return total
        first = (0, len(sizes) + 1, *range(1, len(sizes) + 1))
        dx = tape.transpose(tape.reshape(total, (images, *sizes, channels)), first)
    if tape.wants(grid) and mode == "nearest":
        dgrid = tape.zeros(tape.shape(grid), grid)
    elif tape.wants(grid):
        along = coordinate_gradients(tape, axes, corners, dy_rows, tape.reshape(tape.transpose(x, last), rows))
        parts = (tape.reshape(part, (*tape.shape(grid)[:-1], 1)) for part in along)
        dgrid = tape.op(Concat(len(sizes) + 1), *parts)
    return (dx, dgrid)


def _axis(tape: Tape, op: OnnxOp, grid: str, place: int, size: int, mode: str) -> Axis:
    images, *places, axes = tape.shape(grid)
    given = tape.reshape(tape.slice(grid, axes + 1, place, place + 1), (images, math.prod(places)))
    align, border = bool(integer(op, "align_corners")), text(op, "padding_mode", "zeros")
    scale, low = ((size - 1) / 2, 0.0) if align else (size / 2, -0.5)
    at, moves = tape.plus(tape.scaled(given, scale), scale if align else scale - 0.5), ""
    if mode in _CUBIC:
        return Axis(size, _cubic_taps(tape, at, size, border, low, 2 * scale), scale)
    if border == "reflection":
        at, moves = _reflected(tape, at, low, 2 * scale)
    if border != "zeros":
        inside = tape.cast(tape.elementwise("Equal", at, clamped_at := clamped(tape, at, size)), tape.dtype(at))
        at, moves = clamped_at, tape.mul(moves, inside) if moves else inside
    if mode == "nearest":
        return Axis(size, (Tap(*clamped_element(tape, tape.elementwise("Round", at), size)),), scale, moves)
    return Axis(size, linear_taps(tape, at, size), scale, moves)


def _cubic_taps(tape: Tape, at: str, size: int, border: str, low: float, span: float) -> tuple[Tap, ...]:
    """The four elements around every place, two before and two after; beyond the ends `low` and `low` + `span`, the
    border mode decides which elements of the map replace them."""
    below = tape.elementwise("Floor", at)
    beyond = tape.sub(at, below)
    ahead = tape.plus(tape.neg(beyond), 1.0)
    distances = (tape.plus(beyond, 1.0), beyond, ahead, tape.plus(ahead, 1.0))
    taps = []
    for place, (polynomial, distance) in enumerate(zip((_FAR, _NEAR, _NEAR, _FAR), distances, strict=True)):
        element = below if place == 1 else tape.plus(below, place - 1.0)
        if border == "reflection":
            element, _ = _reflected(tape, element, low, span)
        if border != "zeros":
            element = clamped(tape, element, size)
        taps.append(Tap(*clamped_element(tape, element, size), *_weight(tape, polynomial, distance), rises=place < 2))
    return tuple(taps)


def _weight(tape: Tape, polynomial: Sequence[float], distance: str) -> tuple[str, str]:
    """The weight of an element at a given distance, and its derivative."""
    degrees = range(len(polynomial) - 1, 0, -1)
    slope = [degree * coefficient for degree, coefficient in zip(degrees, polynomial[:-1], strict=True)]
    return _polynomial(tape, polynomial, distance), _polynomial(tape, slope, distance)


def _polynomial(tape: Tape, coefficients: Sequence[float], x: str) -> str:
    """A polynomial by Horner's rule, from the highest power down."""
    total = tape.scaled(x, coefficients[0])
    for coefficient in coefficients[1:-1]:
        total = tape.mul(tape.plus(total, coefficient), x)
    return tape.plus(total, coefficients[-1])


def _reflected(tape: Tape, at: str, low: float, span: float) -> tuple[str, str]:
    """Places reflected into the range from `low` to `low` + `span`, and their derivative: 1, or -1 where mirrored."""
    if not span:
        return tape.scaled(at, 0.0), tape.scaled(at, 0.0)
    beyond = tape.plus(at, -low)
    distance = tape.elementwise("Abs", beyond)
    times = tape.elementwise("Floor", tape.scaled(distance, 1 / span))
    odd = tape.sub(times, tape.scaled(tape.elementwise("Floor", tape.scaled(times, 0.5)), 2.0))
    sign = tape.plus(tape.scaled(odd, -2.0), 1.0)
    folded = tape.mul(sign, tape.sub(distance, tape.scaled(tape.add(times, odd), span)))
    return tape.plus(folded, low), tape.mul(sign, tape.elementwise("Sign", beyond))
