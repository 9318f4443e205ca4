"""The gradient of reading a map at places that are computed (GridSample): between its elements, or at the nearest.

Cubics read four elements along each axis (Keys, Cubic Convolution Interpolation for Digital Image Processing, 1981), of
which each is held or reflected by itself; else the place is. So ONNX Runtime and PyTorch have it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from pimflow.ir.gradients.tape import Gradients, Tape, differentiates, integer, text
from pimflow.ir.graph import Node
from pimflow.ir.ops.movement import Concat
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.refusal import Refusal
from pimflow.records import dataclass

_LINEAR = ("bilinear", "linear")
_CUBIC = ("bicubic", "cubic")
_TENSION = -0.75
_NEAR = (_TENSION + 2, -(_TENSION + 3), 0.0, 1.0)
_FAR = (_TENSION, -5 * _TENSION, 8 * _TENSION, -4 * _TENSION)
"""Weights of elements less than one, and less than two, from a place: polynomials of how far that is."""


@dataclass(frozen=True)
class _Tap:
    """One of the elements along an axis that places read, by values of the grid's leading shape.

    Args:
        element: its index, as a float, within the map.
        inside: whether that is the one meant, which may lie outside.
        weight: "" of one.
        slope: what the weight gains for one element that the place moves on; "" of one.
        rises: whether it gains that, or loses it.
    """

    element: str
    inside: str
    weight: str = ""
    slope: str = ""
    rises: bool = True


@dataclass(frozen=True)
class _Axis:
    """What is read along one axis of the map.

    Args:
        size: of the map.
        scale: elements of the map for one of the grid's coordinates.
        taps: what every place reads.
        moves: how much a place follows the grid, -1 where it is reflected, 0 where it is held; "" if all do.
    """

    size: int
    scale: float
    taps: tuple[_Tap, ...]
    moves: str


@dataclass(frozen=True)
class _Corner:
    """One of the elements that places read, by its taps across and down: whether it is in the map, its row of that."""

    taps: tuple[_Tap, _Tap]
    inside: str
    row: str

    @property
    def weights(self) -> list[str]:
        """Those that are not one."""
        return [tap.weight for tap in self.taps if tap.weight]


@differentiates("GridSample")
def _grid_sample(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """To the elements around each place by their weights; to the places by what the weights change by. The nearest has
    all of it, and is the same wherever the place is."""
    (x, grid), (dy,) = node.inputs, gradients
    mode = text(op, "mode", _LINEAR[0])
    if mode not in ("nearest", *_LINEAR, *_CUBIC) or len(tape.shape(x)) != 4:
        return Refusal(f"{op.op_type} of mode {mode!r}, or not in two dimensions, has no gradient rule")
    images, channels, height, width = tape.shape(x)
    axes = [_axis(tape, op, grid, place, size, mode) for place, size in enumerate((width, height))]
    corners = [_corner(tape, axes, taps) for taps in product(*(axis.taps for axis in axes))]
    rows = (images * height * width, channels)
    count = math.prod(tape.shape(grid)[:3])
    dy_rows = tape.reshape(tape.transpose(dy, (0, 2, 3, 1)), (count, channels))
    dx = dgrid = ""
    if tape.wants(x):
        total = _added(tape, corners, dy_rows, rows)
        if isinstance(total, Refusal):
            return total
        dx = tape.transpose(tape.reshape(total, (images, height, width, channels)), (0, 3, 1, 2))
    if tape.wants(grid):
        x_rows = tape.reshape(tape.transpose(x, (0, 2, 3, 1)), rows)
        still = mode == "nearest"
        dgrid = tape.zeros(tape.shape(grid), grid) if still else _moved(tape, axes, corners, dy_rows, x_rows, grid)
    return (dx, dgrid)


def _axis(tape: Tape, op: OnnxOp, grid: str, place: int, size: int, mode: str) -> _Axis:
    images, height, width, _ = tape.shape(grid)
    given = tape.reshape(tape.slice(grid, 3, place, place + 1), (images, height * width))
    align, border = bool(integer(op, "align_corners")), text(op, "padding_mode", "zeros")
    scale, low = ((size - 1) / 2, 0.0) if align else (size / 2, -0.5)
    at, moves = tape.plus(tape.scaled(given, scale), scale if align else scale - 0.5), ""
    if mode in _CUBIC:
        return _Axis(size, scale, _cubic_taps(tape, at, size, border, low, 2 * scale), moves)
    if border == "reflection":
        at, moves = _reflected(tape, at, low, 2 * scale)
    if border != "zeros":
        inside = tape.cast(tape.elementwise("Equal", at, held := _held(tape, at, size)), tape.dtype(at))
        at, moves = held, tape.mul(moves, inside) if moves else inside
    below = tape.elementwise("Round" if mode == "nearest" else "Floor", at)
    held, inside = _within(tape, below, size)
    if mode == "nearest":
        return _Axis(size, scale, (_Tap(held, inside),), moves)
    beyond = tape.sub(at, below)
    first = _Tap(held, inside, tape.plus(tape.neg(beyond), 1.0), rises=False)
    return _Axis(size, scale, (first, _Tap(*_within(tape, tape.plus(below, 1.0), size), beyond)), moves)


def _cubic_taps(tape: Tape, at: str, size: int, border: str, low: float, span: float) -> tuple[_Tap, ...]:
    """The elements around every place, two before and two behind; beyond the ends `low` and `low` + `span` they are
    those of the map that the border says."""
    below = tape.elementwise("Floor", at)
    beyond = tape.sub(at, below)
    ahead = tape.plus(tape.neg(beyond), 1.0)
    aparts = (tape.plus(beyond, 1.0), beyond, ahead, tape.plus(ahead, 1.0))
    taps = []
    for place, (polynomial, apart) in enumerate(zip((_FAR, _NEAR, _NEAR, _FAR), aparts, strict=True)):
        element = below if place == 1 else tape.plus(below, place - 1.0)
        if border == "reflection":
            element, _ = _reflected(tape, element, low, span)
        if border != "zeros":
            element = _held(tape, element, size)
        taps.append(_Tap(*_within(tape, element, size), *_weight(tape, polynomial, apart), rises=place < 2))
    return tuple(taps)


def _within(tape: Tape, element: str, size: int) -> tuple[str, str]:
    """The element of the map next to one, and whether it is that."""
    held = _held(tape, element, size)
    return held, tape.elementwise("Equal", element, held)


def _weight(tape: Tape, polynomial: Sequence[float], apart: str) -> tuple[str, str]:
    """The weight of an element so far away, and what it gains as it gets farther."""
    degrees = range(len(polynomial) - 1, 0, -1)
    slope = [degree * coefficient for degree, coefficient in zip(degrees, polynomial[:-1], strict=True)]
    return _polynomial(tape, polynomial, apart), _polynomial(tape, slope, apart)


def _polynomial(tape: Tape, coefficients: Sequence[float], x: str) -> str:
    """By Horner's rule, from the highest power."""
    total = tape.scaled(x, coefficients[0])
    for coefficient in coefficients[1:-1]:
        total = tape.mul(tape.plus(total, coefficient), x)
    return tape.plus(total, coefficients[-1])


def _reflected(tape: Tape, at: str, low: float, span: float) -> tuple[str, str]:
    """Places between two ends that all others are reflected at; whether they move with those (1) or against (-1)."""
    if not span:
        return tape.scaled(at, 0.0), tape.scaled(at, 0.0)
    beyond = tape.plus(at, -low)
    apart = tape.elementwise("Abs", beyond)
    times = tape.elementwise("Floor", tape.scaled(apart, 1 / span))
    odd = tape.sub(times, tape.scaled(tape.elementwise("Floor", tape.scaled(times, 0.5)), 2.0))
    turned = tape.plus(tape.scaled(odd, -2.0), 1.0)
    within = tape.mul(turned, tape.sub(apart, tape.scaled(tape.add(times, odd), span)))
    return tape.plus(within, low), tape.mul(turned, tape.elementwise("Sign", beyond))


def _held(tape: Tape, at: str, size: int) -> str:
    """Within the map."""
    return tape.elementwise("Min", tape.elementwise("Max", at, tape.number(0.0, at)), tape.number(size - 1.0, at))


def _corner(tape: Tape, axes: Sequence[_Axis], taps: tuple[_Tap, ...]) -> _Corner:
    across, down = axes
    column, line = taps
    images = tape.shape(column.element)[0]
    first = tape.constant(np.arange(images, dtype=np.int64).reshape(-1, 1) * across.size * down.size, "images")
    width = tape.constant(np.array(across.size, np.int64), "width")
    above = tape.add(tape.mul(tape.cast(line.element, "int64"), width), tape.cast(column.element, "int64"))
    return _Corner((column, line), tape.elementwise("And", column.inside, line.inside), tape.add(first, above))


def _added(tape: Tape, corners: list[_Corner], dy_rows: str, rows: tuple[int, int]) -> str | Refusal:
    """The gradient of the map as rows of channels."""
    count = tape.shape(dy_rows)[0]
    whole = tape.number(1.0, dy_rows)
    parts = [tape.masked(corner.inside, tape.mul(*corner.weights) if corner.weights else whole) for corner in corners]
    updates = [tape.mul(dy_rows, tape.reshape(part, (count, 1))) for part in parts]
    index = tape.op(Concat(0), *(tape.reshape(corner.row, (count,)) for corner in corners))
    return tape.scatter_add(index, tape.op(Concat(0), *updates), rows)


def _moved(tape: Tape, axes: Sequence[_Axis], corners: list[_Corner], dy_rows: str, x_rows: str, grid: str) -> str:
    """The gradient of the places."""
    count, channels = tape.shape(dy_rows)
    shape = tape.shape(corners[0].row)
    totals = ["", ""]
    for corner in corners:
        read = tape.onnx("Gather", (x_rows, tape.reshape(corner.row, (count,))), (count, channels), axis=0)
        value = tape.reshape(tape.sum(tape.mul(read, dy_rows), (1,)), shape)
        value = tape.masked(corner.inside, value)
        for place, tap in enumerate(corner.taps):
            part = tape.mul(value, corner.taps[1 - place].weight)
            part = tape.mul(part, tap.slope) if tap.slope else part
            if not totals[place]:
                totals[place] = part if tap.rises else tape.neg(part)
            else:
                totals[place] = (tape.add if tap.rises else tape.sub)(totals[place], part)
    made = []
    for axis, total in zip(axes, totals, strict=True):
        along = tape.scaled(total, axis.scale)
        along = tape.mul(axis.moves, along) if axis.moves else along
        made.append(tape.reshape(along, (*tape.shape(grid)[:3], 1)))
    return tape.op(Concat(3), *made)
