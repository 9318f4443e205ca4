"""Gradients of convolutions and matrix products: products of the other operand with the result's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from pimflow.ir.analysis.rows import Shape
from pimflow.ir.gradients.tape import (
    GRADIENTS,
    ONNX_TRAINING_FORMS,
    TRAINED_INPUTS,
    Gradients,
    Tape,
    differentiates,
    integer,
    integers,
    number,
    text,
)
from pimflow.ir.graph import Node
from pimflow.ir.ops.contraction import PRODUCT, Conv2d, Gemm
from pimflow.ir.ops.opaque import AttributeValue, OnnxOp
from pimflow.ir.ops.window import Pads, same_pads
from pimflow.ir.refusal import Refusal
from pimflow.records import dataclass


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution over any number of axes; `pads` are those before each, then those after each."""

    kernel: Shape
    strides: Shape
    pads: Shape
    dilations: Shape
    groups: int = 1

    @property
    def axes(self) -> int:
        """The number of spatial axes."""
        return len(self.kernel)

    def reach(self, axis: int, outputs: int) -> int:
        """The extent of the padded map that `outputs` windows cover along an axis."""
        return (outputs - 1) * self.strides[axis] + (self.kernel[axis] - 1) * self.dilations[axis] + 1


def convolve(tape: Tape, x: str, weights: str, windows: Windows) -> str:
    """The convolution of [N, C, ...] by [O, C/groups, *kernel]."""
    if windows.axes == 2:
        kernel, strides, dilations = (
            cast(tuple[int, int], sizes) for sizes in (windows.kernel, windows.strides, windows.dilations)
        )
        return tape.op(Conv2d(kernel, strides, cast(Pads, windows.pads), dilations, windows.groups), x, weights)
    pads, axes = windows.pads, windows.axes
    sizes = tuple(
        (size + pads[axis] + pads[axis + axes] - windows.reach(axis, 1)) // windows.strides[axis] + 1
        for axis, size in enumerate(tape.shape(x)[2:])
    )
    shape = (tape.shape(x)[0], tape.shape(weights)[0], *sizes)
    return tape.onnx("Conv", (x, weights), shape, attributes=_attributes(windows))


def transposed_convolution(tape: Tape, y: str, weights: str, windows: Windows, sizes: Shape) -> str:
    """The transposed convolution: every element of `y` [N, O, ...] times all weights [O, C/groups, *kernel], summed
    where its window lies in a map [N, C, *sizes]."""
    before, axes = windows.pads[: windows.axes], windows.axes
    beyond = [
        windows.reach(axis, tape.shape(y)[2 + axis]) - before[axis] - sizes[axis] for axis in range(axes)
    ]  # elements of the last window beyond the end of the map; if negative, elements that no window covers
    fitted = Windows(
        windows.kernel,
        windows.strides,
        (*before, *(max(0, over) for over in beyond)),
        windows.dilations,
        windows.groups,
    )
    missing = tuple(max(0, -over) for over in beyond)
    shape = (tape.shape(y)[0], tape.shape(weights)[1] * windows.groups, *sizes)
    return tape.onnx(
        "ConvTranspose", (y, weights), shape, attributes={**_attributes(fitted), "output_padding": missing}
    )


def weight_gradient(tape: Tape, x: str, dy: str, windows: Windows) -> str:
    """dW[o, c, k] = sum over images n and outputs i of dy[n, o, i] x[n, c, i stride + k dilation - pad].

    That is a convolution of x by dy with strides and dilations swapped, and images and channels swapped: [C/groups
    images, groups N channels] by [O, N], in the same number of groups.
    """
    (images, channels, *sizes), outputs = tape.shape(x), tape.shape(dy)
    groups, axes = windows.groups, windows.axes
    after = []
    for axis in range(axes):
        touched = windows.reach(axis, outputs[2 + axis])
        over = touched - windows.pads[axis] - sizes[axis]
        after.append(max(0, over))
        x = tape.slice(x, 2 + axis, 0, sizes[axis] + min(0, over))
    inner = tape.shape(x)[2:]
    places = tuple(range(3, 3 + axes))
    x = tape.transpose(tape.reshape(x, (images, groups, channels // groups, *inner)), (2, 1, 0, *places))
    x = tape.reshape(x, (channels // groups, groups * images, *inner))
    filters = tape.transpose(dy, (1, 0, *range(2, 2 + axes)))
    swapped = Windows(outputs[2:], windows.dilations, (*windows.pads[:axes], *after), windows.strides, groups)
    return tape.transpose(convolve(tape, x, filters, swapped), (1, 0, *range(2, 2 + axes)))


def _attributes(windows: Windows) -> dict[str, AttributeValue]:
    return {
        "kernel_shape": windows.kernel,
        "strides": windows.strides,
        "pads": windows.pads,
        "dilations": windows.dilations,
        "group": windows.groups,
    }


def _convolution(tape: Tape, node: Node, windows: Windows, dy: str) -> Gradients:
    x, weights = node.inputs[:2]
    bias = tape.operand(node, 2)
    sizes = tape.shape(x)[2:]
    return (
        transposed_convolution(tape, dy, weights, windows, sizes) if tape.wants(x) else "",
        weight_gradient(tape, x, dy, windows) if tape.wants(weights) else "",
        bias_gradient(tape, dy) if tape.wants(bias) else "",
    )[: len(node.inputs)]


def bias_gradient(tape: Tape, dy: str) -> str:
    """The gradient of a bias per channel."""
    axes = (0, *range(2, len(tape.shape(dy))))
    return tape.sum(dy, axes, keepdims=False)


@GRADIENTS.register(Conv2d)
def _conv(tape: Tape, node: Node, op: Conv2d, gradients: tuple[str, ...]) -> Gradients:
    return _convolution(tape, node, Windows(op.kernel, op.strides, op.pads, op.dilations, op.groups), gradients[0])


def windows_of(op: OnnxOp, kernel: Shape) -> Windows:
    """The windows of an ONNX convolution, with the pads of its attribute `pads`."""
    ones = (1,) * len(kernel)
    return Windows(
        kernel,
        integers(op, "strides") or ones,
        integers(op, "pads") or (0,) * 2 * len(kernel),
        integers(op, "dilations") or ones,
        integer(op, "group", 1),
    )


def _with_pads(windows: Windows, pads: Shape) -> Windows:
    return Windows(windows.kernel, windows.strides, pads, windows.dilations, windows.groups)


@differentiates("Conv")
def _onnx_conv(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """Convolutions that are not `Conv2d`, mostly over one or three axes."""
    sizes, kernel = tape.shape(node.inputs[0])[2:], tape.shape(node.inputs[1])[2:]
    windows, mode = windows_of(op, kernel), text(op, "auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        windows = _with_pads(windows, same_pads(mode, sizes, kernel, windows.strides, windows.dilations))
    return _convolution(tape, node, windows, gradients[0])


@differentiates("ConvTranspose")
def _transposed(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """A ConvTranspose is a convolution's gradient: dx is that convolution, and dW that of it with x and dy swapped."""
    (x, weights), dy = node.inputs[:2], gradients[0]
    bias, sizes, outputs = tape.operand(node, 2), tape.shape(x)[2:], tape.shape(dy)[2:]
    windows = windows_of(op, tape.shape(weights)[2:])
    axes = windows.axes
    if text(op, "auto_pad", "NOTSET") != "NOTSET" or integers(op, "output_shape"):
        return Refusal(
            f"{op.op_type}: its padding depends on the shape of its result", remedy="export it with explicit pads"
        )
    for axis in range(axes):  # no window covers what output_padding added
        dy = tape.slice(dy, 2 + axis, 0, min(outputs[axis], windows.reach(axis, sizes[axis]) - windows.pads[axis]))
    after = tuple(max(0, windows.reach(axis, sizes[axis]) - windows.pads[axis] - outputs[axis]) for axis in range(axes))
    windows = _with_pads(windows, (*windows.pads[:axes], *after))
    return (
        convolve(tape, dy, weights, windows) if tape.wants(x) else "",
        weight_gradient(tape, dy, x, windows) if tape.wants(weights) else "",
        bias_gradient(tape, gradients[0]) if tape.wants(bias) else "",
    )[: len(node.inputs)]


@GRADIENTS.register(Gemm)
def _gemm(tape: Tape, node: Node, op: Gemm, gradients: tuple[str, ...]) -> Gradients:
    (a, b), c, dy = node.inputs[:2], tape.operand(node, 2), gradients[0]
    return (
        _left_gradient(tape, op, b, dy) if tape.wants(a) else "",
        _right_gradient(tape, op, a, dy) if tape.wants(b) else "",
        tape.scaled(tape.sum_to(dy, tape.shape(c)), op.beta) if c and tape.wants(c) else "",
    )[: len(node.inputs)]


def _left_gradient(tape: Tape, op: Gemm, b: str, dy: str) -> str:
    if op.trans_a:
        return tape.op(Gemm(op.alpha, trans_a=op.trans_b, trans_b=True), b, dy)
    return tape.op(Gemm(op.alpha, trans_b=not op.trans_b), dy, b)


def _right_gradient(tape: Tape, op: Gemm, a: str, dy: str) -> str:
    if op.trans_b:
        return tape.op(Gemm(op.alpha, trans_a=True, trans_b=op.trans_a), dy, a)
    return tape.op(Gemm(op.alpha, trans_a=not op.trans_a), a, dy)


# ---- products of doubles, which no unit supports, so that they are kept as operators

_PRODUCTS = tuple(("", op.onnx_name) for op in (Gemm(), PRODUCT))
TRAINED_INPUTS.register(*_PRODUCTS)((0, 1, 2))


@ONNX_TRAINING_FORMS.register(*_PRODUCTS)
def _typed_product(tape: Tape, node: Node, op: OnnxOp) -> tuple[Node, ...]:
    if op.op_type == PRODUCT.onnx_name:
        return (replace(node, op=PRODUCT),)
    alpha, beta = (number(op.attributes, name, 1.0) for name in ("alpha", "beta"))
    return (replace(node, op=Gemm(alpha, beta, bool(integer(op, "transA")), bool(integer(op, "transB")))),)


@GRADIENTS.register(type(PRODUCT))
def _matmul(tape: Tape, node: Node, op: object, gradients: tuple[str, ...]) -> Gradients:
    (a, b), dy = node.inputs, gradients[0]
    if len(tape.shape(b)) == 2 and len(tape.shape(a)) > 1:
        return _by_matrix(tape, a, b, dy)
    left = (1, *tape.shape(a)) if len(tape.shape(a)) == 1 else tape.shape(a)
    right = (*tape.shape(b), 1) if len(tape.shape(b)) == 1 else tape.shape(b)
    batch = tape.shape(dy)[: max(len(left), len(right)) - 2]
    dy = tape.reshape(dy, (*batch, left[-2], right[-1]))

    def reduced(gradient: str, shape: Shape, name: str) -> str:
        return tape.reshape(tape.sum_to(gradient, shape), tape.shape(name))

    return (
        reduced(tape.product(dy, tape.matrix_transpose(tape.reshape(b, right))), left, a) if tape.wants(a) else "",
        reduced(tape.product(tape.matrix_transpose(tape.reshape(a, left)), dy), right, b) if tape.wants(b) else "",
    )


def _by_matrix(tape: Tape, a: str, b: str, dy: str) -> Sequence[str]:
    """The gradients with all rows of all matrices on the left merged into one matrix."""
    rows = tape.rows_of(dy)
    return (
        tape.reshape(tape.op(Gemm(trans_b=True), rows, b), tape.shape(a)) if tape.wants(a) else "",
        tape.op(Gemm(trans_a=True), tape.rows_of(a), rows) if tape.wants(b) else "",
    )
