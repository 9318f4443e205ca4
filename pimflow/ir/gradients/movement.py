"""Gradients of movements: each is the movement back, with zeros where nothing came from."""

from __future__ import annotations

import math

from pimflow.ir.gradients.tape import GRADIENTS, Gradients, Tape, differentiates, integer, is_float
from pimflow.ir.graph import Node
from pimflow.ir.ops.movement import Concat, Pad, Reshape, Slice, Transpose
from pimflow.ir.ops.opaque import OnnxOp


@GRADIENTS.register(Slice)
def _slice(tape: Tape, node: Node, op: Slice, gradients: tuple[str, ...]) -> Gradients:
    (dy,), shape, axis = gradients, tape.shape(node.inputs[0]), op.axis
    length, stop = tape.shape(dy)[axis], op.stop
    if op.step > 1 and length:
        wide = tape.reshape(dy, (*shape[:axis], length, 1, *shape[axis + 1 :]))
        wide = tape.pad(wide, (0,) * (len(shape) + 1), _along(len(shape) + 1, axis + 1, op.step - 1))
        wide = tape.reshape(wide, (*shape[:axis], length * op.step, *shape[axis + 1 :]))
        stop = op.start + (length - 1) * op.step + 1
        dy = tape.slice(wide, axis, 0, stop - op.start)
    before, after = _along(len(shape), axis, op.start), _along(len(shape), axis, shape[axis] - stop)
    return (tape.pad(dy, before, after),)


def _along(rank: int, axis: int, width: int) -> tuple[int, ...]:
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
def _kept_reshape(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    return (tape.reshape(gradients[0], tape.shape(node.inputs[0])),)


@GRADIENTS.register(Transpose)
def _transpose(tape: Tape, node: Node, op: Transpose, gradients: tuple[str, ...]) -> Gradients:
    return (tape.transpose(gradients[0], [op.perm.index(axis) for axis in range(len(op.perm))]),)


@differentiates("Identity", "Dropout")
def _identity(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """Of a Dropout in inference, which drops nothing."""
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
    """Every axis as (copies, size): summed over the copies."""
    shape, made = tape.shape(node.inputs[0]), tape.shape(node.output)
    if not math.prod(shape):
        return ("",)
    apart = tuple(size for dim, out in zip(shape, made, strict=True) for size in (out // dim, dim))
    total = tape.sum(tape.reshape(gradients[0], apart), tuple(range(0, 2 * len(shape), 2)))
    return (tape.reshape(total, shape),)


@differentiates("Trilu")
def _trilu(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    inputs = (gradients[0], *node.inputs[1:])
    return (tape.onnx("Trilu", inputs, tape.shape(gradients[0]), upper=integer(op, "upper", 1)),)
