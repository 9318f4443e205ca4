"""Gradients of movements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pimflow.ir import Builder, OnnxOp
from support.gradients import check_gradients


def integers(build: Builder, *values: int) -> str:
    return build.constant(np.array(values, np.int64))


MOVEMENTS: dict[str, Callable[[Builder, str], str]] = {
    "slice": lambda build, x: build.slice(x, 1, 1, 5),
    "a slice with a step": lambda build, x: build.slice(x, 1, 1, 6, 2),
    "a slice with a step that ends early": lambda build, x: build.slice(x, 1, 0, 5, 3),
    "pad": lambda build, x: build.pad(x, (1, 0), (0, 2), 0.5),
    "reshape": lambda build, x: build.reshape(x, 2, 3, 4),
    "transpose": lambda build, x: build.transpose(x, 1, 0),
    "concat": lambda build, x: build.concat(0, x, build.tanh(x), x),
    "split": lambda build, x: build.mul(*build.split(x, 1, 3, 3)),
    "a split of which one part is read": lambda build, x: build.split(x, 1, 2, 4)[1],
    "identity": lambda build, x: build.onnx("Identity", x),
    "expand": lambda build, x: build.onnx("Expand", x, integers(build, 3, 4, 6), shape=(3, 4, 6)),
    "tile": lambda build, x: build.onnx("Tile", x, integers(build, 2, 3), shape=(8, 18)),
    "squeeze": lambda build, x: build.onnx("Squeeze", build.reshape(x, 4, 1, 6), shape=(4, 6)),
    "upper": lambda build, x: build.onnx("Trilu", x, upper=1),
    "lower": lambda build, x: build.onnx("Trilu", x, upper=0),
    "cast": lambda build, x: build.onnx("Cast", build.onnx("Cast", x, dtype="float64", to=11), dtype="float64", to=11),
}


@pytest.mark.parametrize("name", MOVEMENTS)
def test_movements(name: str) -> None:
    build = Builder()
    moved = MOVEMENTS[name](build, build.input(4, 6, dtype="float64"))
    check_gradients(build.graph(build.mul(moved, moved)))


def test_the_three_transposed_axes() -> None:
    build = Builder()
    x = build.input(2, 3, 4, dtype="float64")
    check_gradients(build.graph(build.tanh(build.transpose(x, 1, 2, 0))))


@pytest.mark.parametrize(("start", "stop", "step"), [(-1, -(1 << 62), -1), (5, 0, -2), (3, 1, -1)])
def test_a_slice_from_the_end(start: int, stop: int, step: int) -> None:
    """Along the second axis, together with every second element of the first."""
    build = Builder()
    x = build.input(4, 6, dtype="float64")
    given = [build.constant(np.array(pair, np.int64)) for pair in ((1, start), (4, stop), (0, 1), (2, step))]
    made = build.onnx("Slice", x, *given, shape=np.empty((4, 6))[1:4:2, start : max(stop, -7) : step].shape)
    check_gradients(build.graph(build.mul(made, made)))


@pytest.mark.parametrize(("kind", "mode"), [("DepthToSpace", "DCR"), ("DepthToSpace", "CRD"), ("SpaceToDepth", "")])
def test_blocks_of_pixels_and_channels(kind: str, mode: str) -> None:
    build = Builder()
    x = build.input(2, 8, 4, 2, dtype="float64")
    shape = (2, 2, 8, 4) if mode else (2, 32, 2, 1)
    op = OnnxOp(kind, "", (("blocksize", 2), *((("mode", mode),) if mode else ())))
    (made,) = build.node(op, (x,), [(shape, "float64")])
    check_gradients(build.graph(build.mul(made, made)))


@pytest.mark.parametrize(("sizes", "axes"), [((5, 3), (0, 2)), ((2, 8, 3), None), ((7,), (-1,))])
def test_crops_and_pads_around_the_centre(sizes: tuple[int, ...], axes: tuple[int, ...] | None) -> None:
    """Sizes that differ by an odd number have their centre half an element off."""
    made = [3, 6, 4]
    for axis, size in zip(axes or range(3), sizes, strict=True):
        made[axis] = size
    build = Builder(opset=18)
    x, shape = build.input(3, 6, 4, dtype="float64"), build.constant(np.array(sizes, np.int64))
    given: dict[str, Any] = {} if axes is None else {"axes": axes}
    check_gradients(build.graph(build.onnx("CenterCropPad", x, shape, shape=tuple(made), **given)))
