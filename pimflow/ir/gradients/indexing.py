"""Gradients of ops that read and write by index."""

from __future__ import annotations

import math

import numpy as np

from pimflow.ir.gradients.tape import (
    SCATTER_OPSET,
    Gradients,
    Tape,
    attributes_of,
    differentiates,
    integer,
    integers,
    no_scatter,
    text,
)
from pimflow.ir.graph import Node
from pimflow.ir.ops.movement import Concat
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.refusal import Refusal


@differentiates("Gather")
def _gather(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """Sums by index, with the indexed axis moved to the front."""
    x, index = node.inputs
    shape, rank = tape.shape(x), len(tape.shape(x))
    axis, places = integer(op, "axis") % rank, len(tape.shape(index))
    indexed = range(axis, axis + places)
    dy = tape.transpose(gradients[0], (*indexed, *range(axis), *range(axis + places, rank + places - 1)))
    rows_first = (shape[axis], *shape[:axis], *shape[axis + 1 :])
    total = tape.scatter_add(index, dy, rows_first)
    if isinstance(total, Refusal):
        return total
    return (tape.transpose(total, (*range(1, axis + 1), 0, *range(axis + 1, rank))), "")


@differentiates("GatherElements")
def _gather_elements(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    if tape.opset < SCATTER_OPSET:
        return no_scatter(tape.opset)
    shape = tape.shape(node.inputs[0])
    inputs = (tape.zeros(shape, gradients[0]), node.inputs[1], gradients[0])
    return (tape.onnx("ScatterElements", inputs, shape, axis=integer(op, "axis"), reduction="add"), "")


@differentiates("GatherND")
def _gather_nd(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    if tape.opset < SCATTER_OPSET:
        return no_scatter(tape.opset)
    shape, index = tape.shape(node.inputs[0]), _with_batch(tape, node.inputs[1], integer(op, "batch_dims"))
    inputs = (tape.zeros(shape, gradients[0]), index, gradients[0])
    return (tape.onnx("ScatterND", inputs, shape, reduction="add"), "")


@differentiates("ReverseSequence")
def _reverse_sequence(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """The gradient, reversed again."""
    inputs = (gradients[0], node.inputs[1])
    return (tape.onnx("ReverseSequence", inputs, tape.shape(node.inputs[0]), attributes=attributes_of(op)), "")


@differentiates("TopK")
def _top(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """The gradient, scattered to the elements that were selected."""
    shape = tape.shape(node.inputs[0])
    inputs = (tape.zeros(shape, gradients[0]), node.outputs[1], gradients[0])
    return (tape.onnx("ScatterElements", inputs, shape, axis=integer(op, "axis", -1)), "")


def _with_batch(tape: Tape, index: str, dims: int) -> str:
    """Indices into the axes after the batch, extended to indices into all axes."""
    batch, places = tape.shape(index)[:dims], tape.shape(index)[:-1]
    if not dims:
        return index
    own = np.moveaxis(np.indices(batch), 0, -1).reshape(*batch, *(1,) * (len(places) - dims), dims)
    return tape.op(Concat(len(places)), tape.broadcast_to(tape.constant(own, "batch"), (*places, dims)), index)


@differentiates("Col2Im")
def _columns_to_image(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """Every element of a column was added to one element of the padded map, and has the gradient of that."""
    (dy,), block = gradients, tape.array(tape.operand(node, 2))
    if block is None:
        return Refusal("Col2Im: its blocks are computed")
    images, channels, *image = tape.shape(dy)
    kernel, axes = tuple(map(int, block)), len(image)
    pads = integers(op, "pads") or (0,) * 2 * axes
    whole = [size + pads[axis] + pads[axis + axes] for axis, size in enumerate(image)]
    starts = np.zeros((1, 1), np.int64)
    for axis, size in enumerate(whole):
        stride, dilation = ((integers(op, name) or (1,) * axes)[axis] for name in ("strides", "dilations"))
        within = np.arange(kernel[axis]) * dilation
        first = np.arange(0, size - within[-1], stride)
        along = np.add.outer(within, first)
        starts = (starts[:, None, :, None] * size + along[None, :, None, :]).reshape(
            len(starts) * kernel[axis], starts.shape[1] * len(first)
        )
    padded = tape.pad(dy, (0, 0, *pads[:axes]), (0, 0, *pads[axes:]))
    flat = tape.reshape(padded, (images, channels, math.prod(whole)))
    made = (images, channels, *starts.shape)
    read = tape.onnx("Gather", (flat, tape.constant(starts, "columns")), made, axis=2)
    return (tape.reshape(read, tape.shape(node.inputs[0])), "", "")


@differentiates("ScatterElements")
def _scatter_elements(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """Updates have the gradient of the elements where they went; overwritten elements have none."""
    (dy,), (_, index, updates), axis = gradients, node.inputs, integer(op, "axis")
    kind = text(op, "reduction", "none")
    if kind not in ("none", "add"):
        return Refusal(f"{op.op_type} with reduction {kind!r} has no gradient rule")
    of_data = dy
    if kind == "none":
        zeros = tape.zeros(tape.shape(updates), dy)
        of_data = tape.onnx("ScatterElements", (dy, index, zeros), tape.shape(dy), axis=axis)
    read = tape.onnx("GatherElements", (dy, index), tape.shape(updates), axis=axis) if tape.wants(updates) else ""
    return (of_data, "", read)


@differentiates("ScatterND")
def _scatter_nd(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    (dy,), (_, index, updates) = gradients, node.inputs
    kind = text(op, "reduction", "none")
    if kind not in ("none", "add"):
        return Refusal(f"{op.op_type} with reduction {kind!r} has no gradient rule")
    of_data = dy
    if kind == "none":
        zeros = tape.zeros(tape.shape(updates), dy)
        of_data = tape.onnx("ScatterND", (dy, index, zeros), tape.shape(dy))
    read = tape.onnx("GatherND", (dy, index), tape.shape(updates)) if tape.wants(updates) else ""
    return (of_data, "", read)
