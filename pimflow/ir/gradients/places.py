"""Reading a map at computed places between its elements: the elements that each place reads, and the gradients.

A map consists of rows of channels, image by image; axes are ordered from the innermost one, as in grids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import product

import numpy as np

from pimflow.ir.gradients.tape import Tape
from pimflow.ir.ops.movement import Concat
from pimflow.ir.refusal import Refusal
from pimflow.records import dataclass


@dataclass(frozen=True)
class Tap:
    """One of the elements that places read along an axis; the fields are names of values [images, places].

    Args:
        element: its index as a float, clamped to the map.
        inside: whether clamping left it unchanged, that is, whether it lies inside the map.
        weight: its interpolation weight; "" for one.
        slope: the magnitude of the weight's derivative with respect to the place; "" for one.
        rises: whether the weight rises by that, rather than falls.
    """

    element: str
    inside: str
    weight: str = ""
    slope: str = ""
    rises: bool = True


@dataclass(frozen=True)
class Axis:
    """The elements read along one axis of the map.

    Args:
        size: size of the map along the axis.
        taps: the elements that every place reads.
        scale: elements of the map per unit of the given coordinates.
        moves: the derivative of the place with respect to the scaled coordinate: -1 where it is reflected, 0 where it
            is clamped; "" if it is 1 everywhere.
    """

    size: int
    taps: tuple[Tap, ...]
    scale: float = 1.0
    moves: str = ""


@dataclass(frozen=True)
class Corner:
    """One of the elements that places read, with its taps along all axes, whether it is in the map, and its row."""

    taps: tuple[Tap, ...]
    inside: str
    row: str

    def weights(self, without: int | None = None) -> list[str]:
        """The taps' weights that are not one, optionally without those of an axis."""
        return [tap.weight for place, tap in enumerate(self.taps) if tap.weight and place != without]


def clamped(tape: Tape, at: str, size: int) -> str:
    """Positions clamped to the map."""
    return tape.elementwise("Min", tape.elementwise("Max", at, tape.number(0.0, at)), tape.number(size - 1.0, at))


def clamped_element(tape: Tape, element: str, size: int) -> tuple[str, str]:
    """An element clamped to the map, and whether that left it unchanged."""
    position = clamped(tape, element, size)
    return position, tape.elementwise("Equal", element, position)


def linear_taps(tape: Tape, at: str, size: int) -> tuple[Tap, Tap]:
    """The elements before and after every place, weighted by proximity."""
    below = tape.elementwise("Floor", at)
    beyond = tape.sub(at, below)
    first = Tap(*clamped_element(tape, below, size), tape.plus(tape.neg(beyond), 1.0), rises=False)
    return first, Tap(*clamped_element(tape, tape.plus(below, 1.0), size), beyond)


def corners_of(tape: Tape, axes: Sequence[Axis], images: str = "") -> list[Corner]:
    """The elements that every place reads: one corner per combination of taps.

    Args:
        tape: to write to.
        axes: of the map.
        images: the image that each line of places reads, int64 [lines]; by default the first line reads the first
            image, and so on.
    """
    cells = int(np.prod([axis.size for axis in axes]))
    if images:
        first = tape.mul(
            tape.reshape(images, (*tape.shape(images), 1)), tape.constant(np.array(cells, np.int64), "cells")
        )
    else:
        lines = tape.shape(axes[0].taps[0].element)[0]
        first = tape.constant(np.arange(lines, dtype=np.int64).reshape(-1, 1) * cells, "images")
    return [_corner(tape, axes, taps, first) for taps in product(*(axis.taps for axis in axes))]


def _corner(tape: Tape, axes: Sequence[Axis], taps: tuple[Tap, ...], first: str) -> Corner:
    row = tape.cast(taps[-1].element, "int64")
    for axis, tap in reversed(list(zip(axes[:-1], taps[:-1], strict=True))):
        size = tape.constant(np.array(axis.size, np.int64), "size")
        row = tape.add(tape.mul(row, size), tape.cast(tap.element, "int64"))
    inside = reduce(lambda left, right: tape.elementwise("And", left, right), (tap.inside for tap in taps))
    return Corner(taps, inside, tape.add(first, row))


def _corner_weights(tape: Tape, corners: Iterable[Corner], count: int, like: str) -> list[str]:
    """Each corner's weight at every place, 0 for elements outside the map: [places of all images, 1]."""
    whole = tape.number(1.0, like)
    parts = [reduce(tape.mul, corner.weights() or [whole]) for corner in corners]
    masked = [tape.masked(corner.inside, part) for corner, part in zip(corners, parts, strict=True)]
    return [tape.reshape(part, (count, 1)) for part in masked]


def _read(tape: Tape, corner: Corner, rows: str, count: int) -> str:
    index = tape.reshape(corner.row, (count,))
    return tape.onnx("Gather", (rows, index), (count, tape.shape(rows)[1]), axis=0)


def sampled(tape: Tape, corners: Sequence[Corner], rows: str, count: int) -> str:
    """The values that `count` places read from a map: [count, channels]."""
    shares = _corner_weights(tape, corners, count, rows)
    reads = (_read(tape, corner, rows, count) for corner in corners)
    return reduce(tape.add, (tape.mul(read, share) for read, share in zip(reads, shares, strict=True)))


def map_gradient(tape: Tape, corners: Sequence[Corner], d_places: str, rows: tuple[int, int]) -> str | Refusal:
    """The gradient of the map [rows, channels], from that of the values read."""
    count = tape.shape(d_places)[0]
    updates = [tape.mul(d_places, share) for share in _corner_weights(tape, corners, count, d_places)]
    index = tape.op(Concat(0), *(tape.reshape(corner.row, (count,)) for corner in corners))
    return tape.scatter_add(index, tape.op(Concat(0), *updates), rows)


def coordinate_gradients(
    tape: Tape, axes: Sequence[Axis], corners: Sequence[Corner], d_places: str, rows: str
) -> list[str]:
    """The gradient of the coordinates along each axis, [images, places], from that of the values read."""
    count, shape = tape.shape(d_places)[0], tape.shape(corners[0].row)
    totals = [""] * len(axes)
    for corner in corners:
        value = tape.reshape(tape.sum(tape.mul(_read(tape, corner, rows, count), d_places), (1,)), shape)
        value = tape.masked(corner.inside, value)
        for place, tap in enumerate(corner.taps):
            part = reduce(tape.mul, corner.weights(without=place), value)
            part = tape.mul(part, tap.slope) if tap.slope else part
            if not totals[place]:
                totals[place] = part if tap.rises else tape.neg(part)
            else:
                totals[place] = (tape.add if tap.rises else tape.sub)(totals[place], part)
    scaled = [tape.scaled(total, axis.scale) for axis, total in zip(axes, totals, strict=True)]
    return [tape.mul(axis.moves, along) if axis.moves else along for axis, along in zip(axes, scaled, strict=True)]
