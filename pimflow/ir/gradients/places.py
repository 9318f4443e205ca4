"""Reading a map at places that are computed, between its elements: what each place reads, and what that passes back.

A map is rows of channels, of one image after the other; axes are named from the innermost one, as grids name them.
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
    """One of the elements along an axis that places read, by values [images, places].

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
class Axis:
    """What is read along one axis of the map.

    Args:
        size: of the map.
        taps: what every place reads.
        scale: elements of the map for one of the coordinates that places are given by.
        moves: how much a place follows these, -1 where it is reflected, 0 where it is held; "" if all do.
    """

    size: int
    taps: tuple[Tap, ...]
    scale: float = 1.0
    moves: str = ""


@dataclass(frozen=True)
class Corner:
    """One of the elements that places read, by its taps along all axes: whether it is in the map, its row of that."""

    taps: tuple[Tap, ...]
    inside: str
    row: str

    def weights(self, without: int | None = None) -> list[str]:
        """Those that are not one, but for an axis's."""
        return [tap.weight for place, tap in enumerate(self.taps) if tap.weight and place != without]


def held(tape: Tape, at: str, size: int) -> str:
    """Within the map."""
    return tape.elementwise("Min", tape.elementwise("Max", at, tape.number(0.0, at)), tape.number(size - 1.0, at))


def within(tape: Tape, element: str, size: int) -> tuple[str, str]:
    """The element of the map next to one, and whether it is that."""
    there = held(tape, element, size)
    return there, tape.elementwise("Equal", element, there)


def linear_taps(tape: Tape, at: str, size: int) -> tuple[Tap, Tap]:
    """The elements before and behind every place, each by how near it is."""
    below = tape.elementwise("Floor", at)
    beyond = tape.sub(at, below)
    first = Tap(*within(tape, below, size), tape.plus(tape.neg(beyond), 1.0), rises=False)
    return first, Tap(*within(tape, tape.plus(below, 1.0), size), beyond)


def corners_of(tape: Tape, axes: Sequence[Axis]) -> list[Corner]:
    """All that every place reads."""
    return [_corner(tape, axes, taps) for taps in product(*(axis.taps for axis in axes))]


def _corner(tape: Tape, axes: Sequence[Axis], taps: tuple[Tap, ...]) -> Corner:
    images, cells = tape.shape(taps[0].element)[0], int(np.prod([axis.size for axis in axes]))
    first = tape.constant(np.arange(images, dtype=np.int64).reshape(-1, 1) * cells, "images")
    row = tape.cast(taps[-1].element, "int64")
    for axis, tap in reversed(list(zip(axes[:-1], taps[:-1], strict=True))):
        size = tape.constant(np.array(axis.size, np.int64), "size")
        row = tape.add(tape.mul(row, size), tape.cast(tap.element, "int64"))
    inside = reduce(lambda left, right: tape.elementwise("And", left, right), (tap.inside for tap in taps))
    return Corner(taps, inside, tape.add(first, row))


def _shares(tape: Tape, corners: Iterable[Corner], count: int, like: str) -> list[str]:
    """Of what is read at every place each corner's part, nothing of what is outside: [places of all images, 1]."""
    whole = tape.number(1.0, like)
    parts = [reduce(tape.mul, corner.weights() or [whole]) for corner in corners]
    masked = [tape.masked(corner.inside, part) for corner, part in zip(corners, parts, strict=True)]
    return [tape.reshape(part, (count, 1)) for part in masked]


def _read(tape: Tape, corner: Corner, rows: str, count: int) -> str:
    index = tape.reshape(corner.row, (count,))
    return tape.onnx("Gather", (rows, index), (count, tape.shape(rows)[1]), axis=0)


def sampled(tape: Tape, corners: Sequence[Corner], rows: str, count: int) -> str:
    """What `count` places read of a map: [count, channels]."""
    shares = _shares(tape, corners, count, rows)
    reads = (_read(tape, corner, rows, count) for corner in corners)
    return reduce(tape.add, (tape.mul(read, share) for read, share in zip(reads, shares, strict=True)))


def passed_back(tape: Tape, corners: Sequence[Corner], d_places: str, rows: tuple[int, int]) -> str | Refusal:
    """The gradient of the map [rows, channels], from that of what the places read."""
    count = tape.shape(d_places)[0]
    updates = [tape.mul(d_places, share) for share in _shares(tape, corners, count, d_places)]
    index = tape.op(Concat(0), *(tape.reshape(corner.row, (count,)) for corner in corners))
    return tape.scatter_add(index, tape.op(Concat(0), *updates), rows)


def moved(tape: Tape, axes: Sequence[Axis], corners: Sequence[Corner], d_places: str, rows: str) -> list[str]:
    """The gradient of the coordinates along each axis, [images, places], from that of what the places read."""
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
