"""Gradients of movements: the inverse movement, with zeros for elements that were not read."""

from __future__ import annotations

import math

from pimflow.ir.analysis.tensor_layout import is_float
from pimflow.ir.gradients.tape import GRADIENTS, Gradients, Tape, differentiates, integer, text
from pimflow.ir.graph import Node
from pimflow.ir.ops.movement import Concat, Pad, Reshape, Slice, Transpose
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.refusal import Refusal


@GRADIENTS.register(Slice)
def _slice(tape: Tape, node: Node, op: Slice, gradients: tuple[str, ...]) -> Gradients:
    return (_slice_gradient(tape, gradients[0], op.axis, op.start, op.step, tape.shape(node.inputs[0])[op.axis]),)


def _slice_gradient(tape: Tape, dy: str, axis: int, start: int, step: int, size: int) -> str:
    """Elements along one axis back in their old positions: every `step`-th of `size`, from `start` on."""
    shape, length = tape.shape(dy), tape.shape(dy)[axis]
    if step > 1 and length:
        wide = tape.reshape(dy, (*shape[:axis], length, 1, *shape[axis + 1 :]))
        wide = tape.pad(wide, (0,) * (len(shape) + 1), _axis_widths(len(shape) + 1, axis + 1, step - 1))
        wide = tape.reshape(wide, (*shape[:axis], length * step, *shape[axis + 1 :]))
        length = (length - 1) * step + 1
        dy = tape.slice(wide, axis, 0, length)
    return tape.pad(dy, _axis_widths(len(shape), axis, start), _axis_widths(len(shape), axis, size - start - length))


@differentiates("Slice")
def _onnx_slice(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """Slices of several axes, or with negative steps; the gradient along the latter is reversed first."""
    given = [tape.array(name) for name in node.inputs[1:] if name]
    if len(given) < 2 or any(array is None for array in given) or "" in node.inputs:
        return Refusal(f"{op.op_type}: its starts and ends are computed, or an operand is absent")
    shape, dx = tape.shape(node.inputs[0]), gradients[0]
    starts, ends, *others = ([int(place) for place in array] for array in given if array is not None)
    axes, steps = (*others, *(list(range(len(starts))), [1] * len(starts))[len(others) :])
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        place = axis % len(shape)
        indices = range(shape[place])[start:end:step]
        if step < 0:
            dx, indices = _reversed(tape, dx, place), indices[::-1]
        dx = _slice_gradient(tape, dx, place, indices.start if indices else 0, abs(step), shape[place])
    return (dx, *("",) * (len(node.inputs) - 1))


def _reversed(tape: Tape, x: str, axis: int) -> str:
    """`x` reversed along an axis."""
    before_all = -(1 << 62)
    operands = (x, *(tape.integers(value) for value in (-1, before_all, axis, -1)))
    return tape.onnx("Slice", operands, tape.shape(x))


@differentiates("DepthToSpace")
def _depth_to_space(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """Blocks of rows and columns become channels again, before or after the others."""
    shape, side = tape.shape(node.inputs[0]), integer(op, "blocksize", 1)
    images, channels, rows, columns = shape
    blocks = tape.reshape(gradients[0], (images, channels // side**2, rows, side, columns, side))
    first = text(op, "mode", "DCR") == "DCR"
    return (tape.reshape(tape.transpose(blocks, (0, 3, 5, 1, 2, 4) if first else (0, 1, 3, 5, 2, 4)), shape),)


@differentiates("SpaceToDepth")
def _space_to_depth(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    shape, side = tape.shape(node.inputs[0]), integer(op, "blocksize", 1)
    images, channels, rows, columns = shape
    blocks = tape.reshape(gradients[0], (images, side, side, channels, rows // side, columns // side))
    return (tape.reshape(tape.transpose(blocks, (0, 3, 4, 1, 5, 2)), shape),)


@differentiates("CenterCropPad")
def _centre(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """The gradient cropped where the map was padded, and padded with zeros where it was cropped."""
    (dx,), shape = gradients, tape.shape(node.inputs[0])
    for axis, (size, made) in enumerate(zip(shape, tape.shape(node.output), strict=True)):
        padded, cut = max(0, made - size) // 2, max(0, size - made) // 2
        dx = tape.slice(dx, axis, padded, padded + min(size, made))
        dx = _slice_gradient(tape, dx, axis, cut, 1, size)
    return (dx, "")


def _axis_widths(rank: int, axis: int, width: int) -> tuple[int, ...]:
    return tuple(width if place == axis else 0 for place in range(rank))


@GRADIENTS.register(Pad)
def _pad(tape: Tape, node: Node, op: Pad, gradients: tuple[str, ...]) -> Gradients:
    dx = gradients[0]
    for axis, size in enumerate(tape.shape(node.inputs[0])):
        dx = tape.slice(dx, axis, op.before[axis], op.before[axis] + size)
    return (dx,)


@GRADIENTS.register(Concat)
def _concat(tape: Tape, node: Node, op: Concat, gradients: tuple[str, ...]) -> Gradients:
    parts, start = [], 0
    for name in node.inputs:
        stop = start + tape.shape(name)[op.axis]
        parts.append(tape.slice(gradients[0], op.axis, start, stop) if tape.wants(name) else "")
        start = stop
    return parts


@differentiates("Split")
def _split(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    axis = integer(op, "axis") % len(tape.shape(node.inputs[0]))
    like = next(filter(None, gradients))
    parts = [
        gradient or tape.zeros(tape.shape(name), like)
        for name, gradient in zip(node.outputs, gradients, strict=True)
        if name
    ]
    return (parts[0] if len(parts) == 1 else tape.op(Concat(axis), *parts),)


@GRADIENTS.register(Reshape)
def _reshape(tape: Tape, node: Node, op: Reshape, gradients: tuple[str, ...]) -> Gradients:
    return (tape.reshape(gradients[0], tape.shape(node.inputs[0])),)


@differentiates("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _onnx_reshape(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    return (tape.reshape(gradients[0], tape.shape(node.inputs[0])),)


@GRADIENTS.register(Transpose)
def _transpose(tape: Tape, node: Node, op: Transpose, gradients: tuple[str, ...]) -> Gradients:
    return (tape.transpose(gradients[0], [op.perm.index(axis) for axis in range(len(op.perm))]),)


@differentiates("Identity")
def _identity(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    return (gradients[0],)


@differentiates("Cast")
def _cast(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    dtype = tape.dtype(node.inputs[0])
    return (tape.cast(gradients[0], dtype) if gradients[0] and is_float(dtype) else "",)


@differentiates("Expand")
def _expand(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    return (tape.sum_to(gradients[0], tape.shape(node.inputs[0])),)


@differentiates("Tile")
def _tile(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """The sum over the copies of every axis, reshaped as (copies, size)."""
    shape, made = tape.shape(node.inputs[0]), tape.shape(node.output)
    if not math.prod(shape):
        return ("",)
    split_shape = tuple(size for dim, out in zip(shape, made, strict=True) for size in (out // dim, dim))
    total = tape.sum(tape.reshape(gradients[0], split_shape), tuple(range(0, 2 * len(shape), 2)))
    return (tape.reshape(total, shape),)


@differentiates("Trilu")
def _trilu(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    inputs = (gradients[0], *node.inputs[1:])
    return (tape.onnx("Trilu", inputs, tape.shape(gradients[0]), upper=integer(op, "upper", 1)),)
