"""Gradients of ops that read and write by index."""

from __future__ import annotations

import math

import numpy as np

from pimflow.ir.analysis.rows import Shape
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
from pimflow.ir.ops.opaque import Attributes, OnnxOp
from pimflow.ir.refusal import Refusal
from pimflow.records import dataclass


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


@differentiates("Compress")
def _compress(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """The gradient of what was kept, back in its place along the axis; without an axis, of all elements in order."""
    condition, shape, axis = tape.array(node.inputs[1]), tape.shape(node.inputs[0]), attributes_of(op).get("axis")
    if condition is None:
        return Refusal("Compress: its condition is computed")
    place = integer(op, "axis") % max(1, len(shape))
    lines = shape if axis is not None else (math.prod(shape),)
    first = (place, *(other for other in range(len(lines)) if other != place))
    rows = tuple(lines[other] for other in first)
    kept = tape.constant(np.flatnonzero(condition).astype(np.int64), "kept")
    total = tape.scatter_add(kept, tape.transpose(gradients[0], first), rows)
    if isinstance(total, Refusal):
        return total
    return (tape.reshape(tape.transpose(total, [first.index(other) for other in range(len(lines))]), shape), "")


@differentiates("OneHot")
def _one_hot(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """The two values, for elements that are off and on, have the sums of the gradients of those elements."""
    (index, depth, values), (dy,) = node.inputs, gradients
    zero_one = tape.constant(np.array([0, 1], np.dtype(tape.dtype(dy))), "zero_one")
    shape = tape.shape(dy)
    hot = tape.onnx("OneHot", (index, depth, zero_one), shape, tape.dtype(dy), axis=integer(op, "axis", -1))
    axes = tuple(range(len(shape)))
    of_on, of_all = (tape.reshape(tape.sum(part, axes), (1,)) for part in (tape.mul(dy, hot), dy))
    return ("", "", tape.op(Concat(0), tape.sub(of_all, of_on), of_on) if tape.wants(values) else "")


@differentiates("TensorScatter")
def _tensor_scatter(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """Updates have the gradient of the positions where they went; overwritten ones have none."""
    (dy,), (cache, update), begins = gradients, node.inputs[:2], tape.operand(node, 2)
    shape = tape.shape(update)
    axis = integer(op, "axis", -2) % len(shape)
    along = tape.constant(np.arange(shape[axis]).reshape(-1, *(1,) * (len(shape) - axis - 1)), "positions")
    if begins:
        along = tape.add(along, tape.reshape(begins, (shape[0], *(1,) * (len(shape) - 1))))
    if text(op, "mode") == "circular":
        along = tape.elementwise("Mod", along, tape.constant(np.array(tape.shape(cache)[axis]), "size"))
    index = tape.broadcast_to(along, shape)
    overwritten = tape.onnx("ScatterElements", (dy, index, tape.zeros(shape, dy)), tape.shape(dy), axis=axis)
    return (overwritten, tape.onnx("GatherElements", (dy, index), shape, axis=axis), "")


@differentiates("ScatterElements")
def _scatter_elements(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    return _scatter_gradient(_Scatter(tape, node, "GatherElements", (("axis", integer(op, "axis")),)), op, gradients[0])


@differentiates("ScatterND")
def _scatter_nd(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    return _scatter_gradient(_Scatter(tape, node, "GatherND", ()), op, gradients[0])


@dataclass(frozen=True)
class _Scatter:
    """A node that scatters, and the operator that reads where it writes, with the attributes of both."""

    tape: Tape
    node: Node
    reader: str
    attributes: Attributes

    @property
    def updates_shape(self) -> Shape:
        return self.tape.shape(self.node.inputs[2])

    def read(self, values: str) -> str:
        """The elements of a value of the result's shape that the updates went to."""
        return self.tape.onnx(
            self.reader, (values, self.node.inputs[1]), self.updates_shape, attributes=dict(self.attributes)
        )

    def write(self, values: str, updates: str, reduction: str = "none") -> str:
        """The same scatter of other updates into other values."""
        given = dict(self.attributes) if reduction == "none" else {**dict(self.attributes), "reduction": reduction}
        inputs = (values, self.node.inputs[1], updates)
        return self.tape.onnx(self.node.kind, inputs, self.tape.shape(values), attributes=given)


def _scatter_gradient(scatter: _Scatter, op: OnnxOp, dy: str) -> Gradients:
    """Updates have the gradient of the elements where they went; overwritten elements have none. If a scatter
    multiplies, each factor's gradient is dy times the others; of a maximum or minimum, all that attain it have equal
    shares (as in PyTorch)."""
    tape, (data, _, updates) = scatter.tape, scatter.node.inputs
    kind = text(op, "reduction", "none")
    if kind == "mul":
        return _of_products(scatter, dy)
    if kind in ("max", "min"):
        return _of_extremes(scatter, dy)
    of_data = scatter.write(dy, tape.zeros(scatter.updates_shape, dy)) if kind == "none" and tape.wants(data) else dy
    return (of_data, "", scatter.read(dy) if tape.wants(updates) else "")


def _of_products(scatter: _Scatter, dy: str) -> Gradients:
    """The product of all other factors of an element, correct even if factors are zero."""
    tape, (data, _, updates) = scatter.tape, scatter.node.inputs
    none, one = tape.number(0.0, dy), tape.number(1.0, dy)
    is_zero = tape.elementwise("Equal", updates, none)
    filled, zeros = tape.where(is_zero, one, updates), tape.where(is_zero, one, none)
    whole = tape.shape(data)
    product = scatter.write(tape.broadcast_to(one, whole), filled, "mul")
    count = scatter.write(tape.zeros(whole, dy), zeros, "add")
    of_data = tape.mul(dy, tape.where(tape.above(count, 0.5), none, product))
    elsewhere = tape.sub(scatter.read(count), zeros)
    others = tape.where(tape.above(elsewhere, 0.5), none, tape.div(scatter.read(product), filled))
    return (of_data, "", tape.mul(scatter.read(tape.mul(dy, data)), others) if tape.wants(updates) else "")


def _of_extremes(scatter: _Scatter, dy: str) -> Gradients:
    """Equal shares for the old element and the updates that equal the result."""
    tape, (data, _, updates), y = scatter.tape, scatter.node.inputs, scatter.node.output
    dtype = tape.dtype(dy)
    kept = tape.cast(tape.elementwise("Equal", data, y), dtype)
    hits = tape.cast(tape.elementwise("Equal", updates, scatter.read(y)), dtype)
    share = tape.div(dy, scatter.write(kept, hits, "add"))
    return (tape.mul(share, kept), "", tape.mul(scatter.read(share), hits) if tape.wants(updates) else "")
