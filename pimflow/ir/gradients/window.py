"""Gradients of pools: all of a window's gradient goes to its largest element, or equal shares go to every element, or
shares by an element's contribution to the window's norm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.ir.analysis.rows import Shape
from pimflow.ir.gradients.contraction import Windows, transposed_convolution
from pimflow.ir.gradients.reduction import extreme_gradient
from pimflow.ir.gradients.tape import (
    GRADIENTS,
    ONNX_TRAINING_FORMS,
    SCATTER_OPSET,
    TRAINING_FORMS,
    Gradients,
    Tape,
    differentiates,
    integer,
    integers,
    no_scatter,
    text,
)
from pimflow.ir.graph import Node
from pimflow.ir.ops.opaque import AttributeValue, OnnxOp
from pimflow.ir.ops.window import GlobalPool, Pool2d, pool_pads
from pimflow.ir.refusal import Refusal


@TRAINING_FORMS.register(Pool2d)
def _with_indices(tape: Tape, node: Node, op: Pool2d) -> tuple[Node, ...]:
    """Max pools also output the indices of the maxima."""
    if op.kind != "max":
        return (node,)
    attributes: dict[str, AttributeValue] = {"kernel_shape": op.kernel, "strides": op.strides, "pads": op.pads}
    attributes |= {"dilations": op.dilations, "ceil_mode": int(op.ceil_mode)}
    return (_max_pool(tape, node, OnnxOp("MaxPool", "", tuple(sorted(attributes.items())))),)


@ONNX_TRAINING_FORMS.register(("", "MaxPool"))
def _onnx_with_indices(tape: Tape, node: Node, op: OnnxOp) -> tuple[Node, ...]:
    return (node if integer(op, "storage_order") else _max_pool(tape, node, op),)


def _max_pool(tape: Tape, node: Node, op: OnnxOp) -> Node:
    indices = next(filter(None, node.outputs[1:]), "")
    if not indices:
        indices = tape.new_value(f"{node.name}.places", tape.shape(node.output), "int64")
    tape.save_for_backward(node, indices)
    return replace(node, op=op, outputs=(node.output, indices))


@GRADIENTS.register(Pool2d)
def _pool(tape: Tape, node: Node, op: Pool2d, gradients: tuple[str, ...]) -> Gradients:
    if op.kind == "max":
        disjoint = all(step >= extent for step, extent in zip(op.strides, op.kernel, strict=True))
        return _of_max_pool(tape, node, gradients[0], disjoint and op.dilations == (1, 1))
    windows = Windows(op.kernel, op.strides, op.pads, op.dilations)
    return _of_average_pool(tape, node, windows, gradients[0], bool(op.count_include_pad))


@differentiates("MaxPool")
def _onnx_max_pool(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    if not tape.saved(node):
        return Refusal(f"{op.op_type}: its indices are in column-major order")
    kernel = integers(op, "kernel_shape") or ()
    strides, dilations = (integers(op, name) or (1,) * len(kernel) for name in ("strides", "dilations"))
    disjoint = all(step >= extent for step, extent in zip(strides, kernel, strict=True))
    return _of_max_pool(tape, node, gradients[0], disjoint and set(dilations) == {1})


def _of_max_pool(tape: Tape, node: Node, dy: str, disjoint: bool) -> Gradients:
    """Scatters dy by indices into all elements of the map; if windows do not overlap, no two indices are equal."""
    if tape.opset < SCATTER_OPSET and not disjoint:
        return no_scatter(tape.opset)
    shape, count = tape.shape(node.inputs[0]), tape.value(dy).elements
    (indices,) = tape.saved(node)
    empty = tape.zeros((tape.value(node.inputs[0]).elements,), dy)
    inputs = (empty, tape.reshape(indices, (count,)), tape.reshape(dy, (count,)))
    adding: dict[str, AttributeValue] = {} if disjoint else {"reduction": "add"}
    flat = tape.onnx("ScatterElements", inputs, tape.shape(empty), attributes={"axis": 0, **adding})
    return (tape.reshape(flat, shape),)


@differentiates("MaxUnpool")
def _max_unpool(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """The gradient at the index where each element went; indices are into all elements of the result."""
    x, indices, *sizes = node.inputs
    if sizes:
        return Refusal("MaxUnpool into a given shape has no gradient rule")
    flat = tape.reshape(gradients[0], (tape.value(gradients[0]).elements,))
    return (tape.onnx("Gather", (flat, indices), tape.shape(x), axis=0), "")


@differentiates("AveragePool")
def _onnx_average_pool(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """Average pools that are not `Pool2d`, mostly over one or three axes."""
    windows = _windows(tape, node, op)
    if isinstance(windows, Refusal):
        return windows
    return _of_average_pool(tape, node, windows, gradients[0], bool(integer(op, "count_include_pad")))


def _windows(tape: Tape, node: Node, op: OnnxOp) -> Windows | Refusal:
    sizes, kernel = tape.shape(node.inputs[0])[2:], integers(op, "kernel_shape") or ()
    ones, mode = (1,) * len(kernel), text(op, "auto_pad", "NOTSET")
    strides, dilations = integers(op, "strides") or ones, integers(op, "dilations") or ones
    pads: tuple[int, ...] | None = integers(op, "pads") or (0,) * 2 * len(kernel)
    if mode.startswith("SAME"):
        pads = pool_pads(mode, sizes, kernel, strides, dilations, bool(integer(op, "ceil_mode")))
    if pads is None:
        return Refusal(f"{op.op_type}: its windows start inside the map, {mode} with strides that skip elements")
    return Windows(kernel, strides, pads, dilations)


def _of_average_pool(tape: Tape, node: Node, windows: Windows, dy: str, padding_counts: bool) -> Gradients:
    """Each gradient divided equally over its window, by a transposed convolution with ones."""
    shape = tape.shape(node.inputs[0])
    counts = _counts(shape[2:], tape.shape(dy)[2:], windows, padding_counts)
    each = tape.mul(dy, tape.constant(np.reciprocal(counts).astype(np.dtype(tape.dtype(dy))), "shares"))
    return (_scatter_windows(tape, each, windows, shape),)


def _scatter_windows(tape: Tape, each: str, windows: Windows, shape: Shape) -> str:
    """The values of all windows, each added to every element of its window: [N, C, *sizes]."""
    ones = tape.constant(np.ones((shape[1], 1, *windows.kernel), np.dtype(tape.dtype(each))), "ones")
    return transposed_convolution(tape, each, ones, replace(windows, groups=shape[1]), shape[2:])


def _counts(sizes: Shape, outputs: Shape, windows: Windows, padding_counts: bool) -> npt.NDArray[np.float64]:
    """The number of elements that each window averages, [*outputs]: those in the map, optionally with padding."""
    total: Any = np.ones(())
    for axis, (size, count) in enumerate(zip(sizes, outputs, strict=True)):
        before, after = windows.pads[axis], windows.pads[axis + windows.axes]
        first, last = (-before, size + after) if padding_counts else (0, size)
        starts = np.arange(count)[:, None] * windows.strides[axis] - before
        taps = starts + np.arange(windows.kernel[axis]) * windows.dilations[axis]
        within = ((taps >= first) & (taps < last)).sum(axis=1)
        total = np.multiply.outer(total, within)
    counts: npt.NDArray[np.float64] = total
    return counts


@GRADIENTS.register(GlobalPool)
def _global_pool(tape: Tape, node: Node, op: GlobalPool, gradients: tuple[str, ...]) -> Gradients:
    return _global_gradient(tape, node, op.kind == "max", gradients[0])


@differentiates("GlobalAveragePool", "GlobalMaxPool")
def _onnx_global_pool(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    return _global_gradient(tape, node, op.op_type == "GlobalMaxPool", gradients[0])


def _global_gradient(tape: Tape, node: Node, of_maximum: bool, dy: str) -> Gradients:
    (x,) = node.inputs
    shape = tape.shape(x)
    if of_maximum:
        return (extreme_gradient(tape, x, node.output, dy, tuple(range(2, len(shape)))),)
    places = tape.value(x).elements // max(1, tape.value(dy).elements)
    return (tape.broadcast_to(tape.scaled(dy, 1 / places), shape),)


@differentiates("LpPool")
def _norm_pool(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    (x,), power, windows = node.inputs, integer(op, "p", 2), _windows(tape, node, op)
    if isinstance(windows, Refusal):
        return windows
    each = _of_norm(tape, node.output, gradients[0], power)
    return (_by_size(tape, x, _scatter_windows(tape, each, windows, tape.shape(x)), power),)


@differentiates("GlobalLpPool")
def _global_norm_pool(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    (x,), power = node.inputs, integer(op, "p", 2)
    return (_by_size(tape, x, _of_norm(tape, node.output, gradients[0], power), power),)


def _of_norm(tape: Tape, y: str, dy: str, power: int) -> str:
    """dy y^(1 - p); 0 where all elements are 0."""
    if power == 1:
        return dy
    below = y if power == 2 else tape.elementwise("Pow", y, tape.number(power - 1, y))
    none = tape.elementwise("Equal", y, tape.number(0, y))
    return tape.div(tape.where(none, tape.number(0, dy), dy), tape.where(none, tape.number(1, y), below))


def _by_size(tape: Tape, x: str, each: str, power: int) -> str:
    """`each` times sign(x) |x|^(p - 1)."""
    if power == 2:
        return tape.mul(x, each)
    signed = tape.mul(tape.elementwise("Sign", x), each)
    if power == 1:
        return signed
    return tape.mul(tape.elementwise("Pow", tape.elementwise("Abs", x), tape.number(power - 1, x)), signed)
