"""The gradient of reading a map at places that are computed (GridSample): between its elements, or at the nearest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pimflow.ir.gradients.tape import Gradients, Tape, differentiates, integer, text
from pimflow.ir.graph import Node
from pimflow.ir.ops.movement import Concat
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.refusal import Refusal

_LINEAR = ("bilinear", "linear")


@dataclass(frozen=True)
class _Axis:
    """Where every place is along one axis of the map, by values of the grid's leading shape.

    Args:
        size: of the map.
        scale: elements of the map for one of the grid's coordinates.
        below: the element before each place.
        beyond: how far each place is behind that.
        moves: how much a place follows the grid, -1 where it is reflected, 0 where it is held; "" if all do.
    """

    size: int
    scale: float
    below: str
    beyond: str
    moves: str


@dataclass(frozen=True)
class _Corner:
    """One of the elements around every place: whether it is in the map, its row of that, its weight by axis (none of
    the nearest, which is all), and whether it is the one behind."""

    inside: str
    row: str
    weights: tuple[str, ...]
    behind: tuple[int, int]


@differentiates("GridSample")
def _grid_sample(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """To the four elements around each place by their weights; to the places by what the elements differ in. The
    nearest has all of it, and is the same wherever the place is."""
    (x, grid), (dy,) = node.inputs, gradients
    mode, nearest = text(op, "mode", _LINEAR[0]), text(op, "mode") == "nearest"
    if not (nearest or mode in _LINEAR) or len(tape.shape(x)) != 4:
        return Refusal(f"{op.op_type} that is cubic, or not in two dimensions, has no gradient rule")
    images, channels, height, width = tape.shape(x)
    axes = [_axis(tape, op, grid, place, size, nearest=nearest) for place, size in enumerate((width, height))]
    ends = (0,) if nearest else (0, 1)
    corners = [_corner(tape, axes, (across, down), nearest=nearest) for across in ends for down in ends]
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
        dgrid = tape.zeros(tape.shape(grid), grid) if nearest else _moved(tape, axes, corners, dy_rows, x_rows, grid)
    return (dx, dgrid)


def _axis(tape: Tape, op: OnnxOp, grid: str, place: int, size: int, *, nearest: bool) -> _Axis:
    images, height, width, _ = tape.shape(grid)
    given = tape.reshape(tape.slice(grid, 3, place, place + 1), (images, height * width))
    align, border = bool(integer(op, "align_corners")), text(op, "padding_mode", "zeros")
    scale = (size - 1) / 2 if align else size / 2
    at, moves = tape.plus(tape.scaled(given, scale), scale if align else scale - 0.5), ""
    if border == "reflection":
        at, moves = _reflected(tape, at, 0.0 if align else -0.5, 2 * scale)
    if border != "zeros":
        inside = tape.cast(tape.elementwise("Equal", at, held := _held(tape, at, size)), tape.dtype(at))
        at, moves = held, tape.mul(moves, inside) if moves else inside
    below = tape.elementwise("Round" if nearest else "Floor", at)
    return _Axis(size, scale, below, tape.sub(at, below), moves)


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


def _corner(tape: Tape, axes: list[_Axis], behind: tuple[int, int], *, nearest: bool) -> _Corner:
    inside, held, weights = [], [], []
    for axis, step in zip(axes, behind, strict=True):
        element = tape.plus(axis.below, 1.0) if step else axis.below
        held.append(_held(tape, element, axis.size))
        inside.append(tape.elementwise("Equal", element, held[-1]))
        if not nearest:
            weights.append(axis.beyond if step else tape.plus(tape.neg(axis.beyond), 1.0))
    across, down = axes
    images = tape.shape(axes[0].below)[0]
    first = tape.constant(np.arange(images, dtype=np.int64).reshape(-1, 1) * across.size * down.size, "images")
    column, line = (tape.cast(one, "int64") for one in held)
    width = tape.constant(np.array(across.size, np.int64), "width")
    row = tape.add(first, tape.add(tape.mul(line, width), column))
    return _Corner(tape.elementwise("And", *inside), row, tuple(weights), behind)


def _added(tape: Tape, corners: list[_Corner], dy_rows: str, rows: tuple[int, int]) -> str | Refusal:
    """The gradient of the map as rows of channels."""
    count = tape.shape(dy_rows)[0]
    whole = tape.number(1.0, dy_rows)
    parts = [tape.masked(corner.inside, tape.mul(*corner.weights) if corner.weights else whole) for corner in corners]
    updates = [tape.mul(dy_rows, tape.reshape(part, (count, 1))) for part in parts]
    index = tape.op(Concat(0), *(tape.reshape(corner.row, (count,)) for corner in corners))
    return tape.scatter_add(index, tape.op(Concat(0), *updates), rows)


def _moved(tape: Tape, axes: list[_Axis], corners: list[_Corner], dy_rows: str, x_rows: str, grid: str) -> str:
    """The gradient of the places."""
    count, channels = tape.shape(dy_rows)
    shape = tape.shape(corners[0].row)
    totals = ["", ""]
    for corner in corners:
        read = tape.onnx("Gather", (x_rows, tape.reshape(corner.row, (count,))), (count, channels), axis=0)
        value = tape.reshape(tape.sum(tape.mul(read, dy_rows), (1,)), shape)
        value = tape.masked(corner.inside, value)
        for place in (0, 1):
            part = tape.mul(value, corner.weights[1 - place])
            if not totals[place]:
                totals[place] = part if corner.behind[place] else tape.neg(part)
            else:
                totals[place] = (tape.add if corner.behind[place] else tape.sub)(totals[place], part)
    made = []
    for axis, total in zip(axes, totals, strict=True):
        along = tape.scaled(total, axis.scale)
        along = tape.mul(axis.moves, along) if axis.moves else along
        made.append(tape.reshape(along, (*tape.shape(grid)[:3], 1)))
    return tape.op(Concat(3), *made)
