"""The gradient of reading a map at places that are computed (GridSample), between its elements."""

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
        moves: whether a place follows the grid; "" if all do.
    """

    size: int
    scale: float
    below: str
    beyond: str
    moves: str


@dataclass(frozen=True)
class _Corner:
    """One of the four elements around every place: whether it is in the map, its row of that, its weight by axis, and
    whether it is the one behind."""

    inside: str
    row: str
    weights: tuple[str, str]
    behind: tuple[int, int]


@differentiates("GridSample")
def _grid_sample(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """To the four elements around each place by their weights; to the places by what the elements differ in."""
    (x, grid), (dy,) = node.inputs, gradients
    border = text(op, "padding_mode", "zeros")
    if text(op, "mode", _LINEAR[0]) not in _LINEAR or len(tape.shape(x)) != 4 or border == "reflection":
        return Refusal(f"{op.op_type} that is not linear in two dimensions, or reflects, has no gradient rule")
    images, channels, height, width = tape.shape(x)
    axes = [
        _axis(tape, grid, place, size, align=bool(integer(op, "align_corners")), border=border == "border")
        for place, size in enumerate((width, height))
    ]
    corners = [_corner(tape, axes, (across, down)) for across in (0, 1) for down in (0, 1)]
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
        dgrid = _moved(tape, axes, corners, dy_rows, x_rows, grid)
    return (dx, dgrid)


def _axis(tape: Tape, grid: str, place: int, size: int, *, align: bool, border: bool) -> _Axis:
    images, height, width, _ = tape.shape(grid)
    given = tape.reshape(tape.slice(grid, 3, place, place + 1), (images, height * width))
    scale = (size - 1) / 2 if align else size / 2
    at = tape.plus(tape.scaled(given, scale), scale if align else scale - 0.5)
    moves = ""
    if border:
        moves = tape.elementwise("Equal", at, held := _held(tape, at, size))
        at = held
    below = tape.elementwise("Floor", at)
    return _Axis(size, scale, below, tape.sub(at, below), moves)


def _held(tape: Tape, at: str, size: int) -> str:
    """Within the map."""
    return tape.elementwise("Min", tape.elementwise("Max", at, tape.number(0.0, at)), tape.number(size - 1.0, at))


def _corner(tape: Tape, axes: list[_Axis], behind: tuple[int, int]) -> _Corner:
    inside, held, weights = [], [], []
    for axis, step in zip(axes, behind, strict=True):
        element = tape.plus(axis.below, 1.0) if step else axis.below
        held.append(_held(tape, element, axis.size))
        inside.append(tape.elementwise("Equal", element, held[-1]))
        weights.append(axis.beyond if step else tape.plus(tape.neg(axis.beyond), 1.0))
    across, down = axes
    images = tape.shape(axes[0].below)[0]
    first = tape.constant(np.arange(images, dtype=np.int64).reshape(-1, 1) * across.size * down.size, "images")
    column, line = (tape.cast(one, "int64") for one in held)
    width = tape.constant(np.array(across.size, np.int64), "width")
    row = tape.add(first, tape.add(tape.mul(line, width), column))
    return _Corner(tape.elementwise("And", *inside), row, (weights[0], weights[1]), behind)


def _added(tape: Tape, corners: list[_Corner], dy_rows: str, rows: tuple[int, int]) -> str | Refusal:
    """The gradient of the map as rows of channels."""
    count = tape.shape(dy_rows)[0]
    parts = [tape.masked(corner.inside, tape.mul(*corner.weights)) for corner in corners]
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
        along = tape.masked(axis.moves, along) if axis.moves else along
        made.append(tape.reshape(along, (*tape.shape(grid)[:3], 1)))
    return tape.op(Concat(3), *made)
