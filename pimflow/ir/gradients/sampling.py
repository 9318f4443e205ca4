"""Gradients of ops that sample a map along its axes: resizing, and padding with elements of the map itself.

Along each axis such an op is a product with a constant matrix; its gradient is the product with the transposed matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.ir.gradients.tape import Gradients, Tape, differentiates, integer, integers, number, text
from pimflow.ir.graph import Node
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.refusal import Refusal

Floats = npt.NDArray[Any]
Places = npt.NDArray[np.int64]

_CUBIC = -0.75
_SAMPLED_WITH_ATTRIBUTES = 11
"""The first opset in which Resize has attributes for how to sample; before, like Upsample, it is asymmetric."""


def _product_along(tape: Tape, x: str, axis: int, matrix: Floats) -> str:
    """[.., n, ..] to [.., m, ..], the product with a matrix [m, n] along one axis."""
    shape = tape.shape(x)
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    weights = tape.constant(matrix.astype(np.dtype(tape.dtype(x))), "weights")
    made = tape.product(weights, tape.reshape(x, (before, shape[axis], after)))
    return tape.reshape(made, (*shape[:axis], len(matrix), *shape[axis + 1 :]))


# ---- borders

_SOURCES: dict[str, Callable[[Places, int], Places]] = {
    "edge": lambda places, size: places.clip(0, size - 1),
    "reflect": lambda places, size: size - 1 - np.abs(size - 1 - np.abs(places)),
    "wrap": lambda places, size: places % size,
}
"""By ONNX's names of modes, the positions that elements outside an axis are taken from."""


@differentiates("Pad")
def _pad(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """The gradient of the middle, plus those of borders at the elements that they copy; zeros where it crops."""
    (dx,), shape, mode = gradients, tape.shape(node.inputs[0]), text(op, "mode", "constant")
    widths = _widths(tape, node, op)
    if widths is None:
        return Refusal("Pad: its widths are computed")
    if mode == "constant":
        return (_crop(tape, dx, shape, widths),)
    sources = _SOURCES.get(mode)
    if sources is None or widths.min(initial=0) < 0:
        return Refusal(f"Pad: {mode!r} with negative widths has no gradient rule")
    for axis, (before, size) in enumerate(zip(widths[0], shape, strict=True)):
        dy, total = dx, tape.shape(dx)[axis]
        dx = tape.slice(dy, axis, int(before), int(before) + size)
        for start, stop in ((0, int(before)), (int(before) + size, total)):
            if start < stop:
                copied = sources(np.arange(start, stop) - before, size)
                border = tape.slice(dy, axis, start, stop)
                dx = tape.add(dx, _product_along(tape, border, axis, np.equal.outer(np.arange(size), copied)))
    return (dx,)


def _crop(tape: Tape, dy: str, shape: tuple[int, ...], widths: Places) -> str:
    """The gradient of the middle, cropped where the Pad padded, and padded with zeros where it cropped."""
    for axis, (before, size) in enumerate(zip(widths[0].tolist(), shape, strict=True)):
        dy = tape.slice(dy, axis, max(0, before), min(before + size, tape.shape(dy)[axis]))
    cut = (-widths).clip(0)
    return tape.pad(dy, cut[0].tolist(), cut[1].tolist())


def _widths(tape: Tape, node: Node, op: OnnxOp) -> Places | None:
    """The widths before and after each axis, [2, rank], negative where it crops; None if they are computed."""
    rank, axes = len(tape.shape(node.inputs[0])), tape.operand(node, 3)
    given = tape.array(tape.operand(node, 1)) if len(node.inputs) > 1 else np.array(integers(op, "pads") or ())
    places = tape.array(axes) if axes else np.arange(rank)
    if given is None or places is None:
        return None
    widths = np.zeros((2, rank), np.int64)
    widths[:, places % rank] = given.reshape(2, -1)
    return widths


# ---- sizes


@differentiates("Resize", "Upsample")
def _resize(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    dx, shape = gradients[0], tape.shape(node.inputs[0])
    if text(op, "coordinate_transformation_mode") == "tf_crop_and_resize":
        return Refusal(f"{op.op_type} that crops has no gradient rule")
    if text(op, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return Refusal(f"{op.op_type} with a kept aspect ratio has no gradient rule")
    scales = _scales(tape, node, op)
    if scales is None:
        return Refusal(f"{op.op_type}: its scales are computed")
    for axis, (size, scale) in enumerate(zip(shape, scales, strict=True)):
        if (tape.shape(dx)[axis], scale) != (size, 1):
            dx = _sampling_gradient(tape, op, dx, axis, _sampling_matrix(tape, op, size, tape.shape(dx)[axis], scale))
    return (dx,)


def _sampling_gradient(tape: Tape, op: OnnxOp, dy: str, axis: int, matrix: Floats) -> str:
    """The product with the transposed matrix; a sum if each element was just repeated."""
    (made, size), shape = matrix.shape, tape.shape(dy)
    if made % size == 0 and np.array_equal(matrix, np.repeat(np.eye(size), made // size, axis=0)):
        repeats = tape.reshape(dy, (*shape[:axis], size, made // size, *shape[axis + 1 :]))
        return tape.sum(repeats, (axis + 1,), keepdims=False)
    return _product_along(tape, dy, axis, matrix.T)


def _scales(tape: Tape, node: Node, op: OnnxOp) -> list[float] | None:
    """The scale of every axis, derived from the sizes if those are given; None if it is computed."""
    x, y = tape.shape(node.inputs[0]), tape.shape(node.output)
    places = integers(op, "axes") or tuple(range(len(x)))
    name = tape.operand(node, 1 if len(node.inputs) < 3 else 2)
    given = tape.array(name)
    if name and given is None:
        return None
    scales = [made / max(1, size) for made, size in zip(y, x, strict=True)]
    if given is None or not given.size:
        given = np.array(attribute) if isinstance(attribute := dict(op.attributes).get("scales"), tuple) else None
    for place, scale in zip(places, [] if given is None else given.tolist(), strict=False):
        scales[place] = scale
    return scales


def _sampling_matrix(tape: Tape, op: OnnxOp, size: int, made: int, scale: float) -> Floats:
    """The weights of `size` input elements in `made` output elements, [made, size], as in ONNX's Resize."""
    places = _coordinates(tape, op, size, made, np.float32(scale))
    mode = text(op, "mode", "nearest")
    if mode == "nearest":
        return np.asarray(np.eye(size)[_nearest(tape, op, places).clip(0, size - 1)])
    squeezed = min(1.0, scale) if integer(op, "antialias") else 1.0
    reach = math.ceil((2 if mode == "cubic" else 1) / squeezed)
    coefficient = number(op.attributes, "cubic_coeff_a", _CUBIC)
    matrix = np.zeros((made, size))
    for tap in range(1 - reach, reach + 1):
        read = np.floor(places).astype(np.int64) + tap
        distances = np.abs(read - places.astype(np.float64)) * squeezed
        weights = _cubic(distances, coefficient) if mode == "cubic" else 1 - distances.clip(0, 1)
        valid = ((read >= 0) & (read < size)) | (not integer(op, "exclude_outside"))
        np.add.at(matrix, (np.arange(made), read.clip(0, size - 1)), weights * valid)
    matrix /= matrix.sum(axis=1, keepdims=True)
    return matrix


def _coordinates(tape: Tape, op: OnnxOp, size: int, made: int, scale: Any) -> Floats:
    """The input coordinate of each element of the result, in single precision like ONNX Runtime's."""
    steps: Floats = np.arange(made, dtype=np.float32)
    half: Any = np.float32(0.5)
    default = "half_pixel" if tape.opset >= _SAMPLED_WITH_ATTRIBUTES and op.op_type == "Resize" else "asymmetric"
    mode = text(op, "coordinate_transformation_mode", default)
    if mode == "asymmetric":
        return np.asarray(steps / scale)
    if mode == "align_corners":
        return np.asarray(steps * np.float32((size - 1) / max(1, made - 1)))
    if mode == "tf_half_pixel_for_nn":
        return np.asarray((steps + half) / scale)
    if mode == "pytorch_half_pixel" and made == 1:
        return np.zeros(1, np.float32)
    places = (steps + half) / scale - half
    if mode == "half_pixel_symmetric":
        places = places + np.float32(size / 2) * (1 - np.float32(made) / (scale * np.float32(size)))
    return np.asarray(places)


def _nearest(tape: Tape, op: OnnxOp, places: Floats) -> Places:
    default = "round_prefer_floor" if tape.opset >= _SAMPLED_WITH_ATTRIBUTES and op.op_type == "Resize" else "floor"
    mode = text(op, "nearest_mode", default)
    half = np.float32(0.5)
    shifted = {"round_prefer_floor": places - half, "round_prefer_ceil": places + half}.get(mode, places)
    rounded = np.ceil(shifted) if mode in ("ceil", "round_prefer_floor") else np.floor(shifted)
    return np.asarray(rounded, np.int64)


def _cubic(distances: Floats, a: float) -> Floats:
    """Weights of elements by their distance from a place (Keys, "Cubic convolution interpolation", 1981)."""
    near = ((a + 2) * distances - (a + 3)) * distances * distances + 1
    far = ((a * distances - 5 * a) * distances + 8 * a) * distances - 4 * a
    return np.asarray(np.where(distances <= 1, near, np.where(distances < 2, far, 0)))
