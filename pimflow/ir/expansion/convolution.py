"""Transposed convolutions, and convolutions of 8 bits."""

from __future__ import annotations

import numpy as np

from pimflow.ir.expansion.base import CONTRIB, PackedBy, Writer, dequantised, expands
from pimflow.ir.graph import Array
from pimflow.ir.ops.contraction import Conv2d
from pimflow.ir.ops.movement import Reshape, Slice, Transpose
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.ops.window import window_out
from pimflow.ir.refusal import Refusal

_FLOATS = frozenset({"float32", "float16", "bfloat16"})
_NOT_2D = "a convolution over {} dimensions, which has no mapping"
PER_AXIS_OPSET = 13
"""DequantizeLinear takes a scale per channel from this opset on."""


@expands("Conv")
def _along_one_axis(writer: Writer) -> Refusal | None:
    """A convolution over one dimension as one over the rows of a map one column wide."""
    x, weights, shape = writer.operand(0), writer.constant_at(1), writer.shape(writer.operand(0))
    if writer.dtype(x) not in _FLOATS:
        return Refusal(f"its operands are {writer.dtype(x)}, units multiply floats of 32 bits and fewer")
    if len(shape) != 3:
        return Refusal(_NOT_2D.format(len(shape) - 2))
    if weights is None:
        return Refusal("weights are computed, PIM needs them in its banks before the run")
    if writer.text("auto_pad", "NOTSET") != "NOTSET":
        return Refusal("its padding follows from the shape of its result")
    pads = writer.integers("pads", (0, 0))
    (stride,), (dilation,) = (writer.integers(name, (1,)) for name in ("strides", "dilations"))
    groups = writer.integer("group", 1)
    op = Conv2d((weights.shape[2], 1), (stride, 1), (pads[0], 0, pads[1], 0), (dilation, 1), groups)
    whole = weights
    operands = [
        writer.add(Reshape((*shape, 1)), x),
        writer.constant((*whole.shape, 1), whole.dtype.name, lambda: whole.reshape(*whole.shape, 1)),
    ]
    made = writer.product(op, *operands, *([writer.operand(2)] if writer.has(2) else []))
    writer.add(Reshape(writer.shape(made)[:3]), made)
    return None


@expands("ConvTranspose")
def _transposed(writer: Writer) -> Refusal | None:
    """A convolution with stride 1 to stride^2 times the channels, which are then put side by side ("sub-pixel").

    Along one axis, y[q s + r] = sum over m of x[q - m] w[m s + r]: for every r a convolution of its own, whose kernel
    is every s-th tap. (Shi et al., Real-Time Single Image and Video Super-Resolution, 2016, and its supplement.)
    """
    x, w = writer.operand(0), writer.operand(1)
    shape, weights = writer.shape(x), writer.constant_at(1)
    if writer.dtype(x) not in _FLOATS or len(shape) != 4:
        return Refusal(_NOT_2D.format(len(shape) - 2))
    if weights is None:
        return Refusal("weights are computed, PIM needs them in its banks before the run")
    if writer.text("auto_pad", "NOTSET") != "NOTSET" or writer.integers("output_shape", ()):
        return Refusal("its padding follows from the shape of its result")
    channels, columns, *kernel = writer.shape(w)
    groups = writer.integer("group", 1)
    strides, dilations = (writer.integers(name, (1, 1)) for name in ("strides", "dilations"))
    pads = writer.integers("pads", (0, 0, 0, 0))
    extra = writer.integers("output_padding", (0, 0))
    extents = [dilation * (size - 1) + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    taps = [-(-(extents[i] + max(extra[i] - pads[2 + i], 0)) // strides[i]) for i in range(2)]
    out = columns * groups
    steps = strides[0] * strides[1]

    def sub_pixel() -> Array:
        whole = np.zeros((channels, columns, taps[0] * strides[0], taps[1] * strides[1]), weights.dtype)
        whole[:, :, : extents[0] : dilations[0], : extents[1] : dilations[1]] = weights
        apart = whole.reshape(groups, channels // groups, columns, taps[0], strides[0], taps[1], strides[1])
        turned = apart[:, :, :, ::-1, :, ::-1, :].transpose(0, 2, 4, 6, 1, 3, 5)
        return np.asarray(turned).reshape(out * steps, channels // groups, taps[0], taps[1])

    dtype = writer.dtype(x)
    operands = [x, writer.constant((out * steps, channels // groups, taps[0], taps[1]), dtype, sub_pixel)]
    if writer.has(2):
        bias = writer.constant_at(2)
        if bias is None:
            return Refusal("its bias is computed")
        operands.append(writer.constant((out * steps,), dtype, lambda: np.repeat(bias, steps)))
    around = (taps[0] - 1, taps[1] - 1)
    made = writer.product(Conv2d((taps[0], taps[1]), (1, 1), (*around, *around), (1, 1), groups), *operands)
    batch, _, height, width = writer.shape(made)
    if steps > 1:
        made = writer.add(Reshape((batch, out, strides[0], strides[1], height, width)), made)
        made = writer.add(Transpose((0, 1, 4, 2, 5, 3)), made)
        made = writer.add(Reshape((batch, out, height * strides[0], width * strides[1])), made)
    wanted = writer.shape(writer.node.output)
    for axis in (2, 3):
        start, have = pads[axis - 2], writer.shape(made)[axis]
        if start or have != wanted[axis]:
            made = writer.add(Slice(axis, start, start + wanted[axis]), made)
    return None


@expands("QLinearConv")
@expands("QLinearConv", domain=CONTRIB)
def _quantised(writer: Writer) -> Refusal | None:
    """Dequantised, convolved, quantised."""
    if writer.integer("channels_last"):
        return Refusal("its channels come last")
    x, x_scale, x_zero = (writer.operand(place) for place in range(3))
    scales = writer.constant_at(1), writer.constant_at(4)
    weights, bias = writer.constant_at(3), writer.constant_at(8)
    if weights is None or scales[0] is None or scales[1] is None or (writer.has(8) and bias is None):
        return Refusal("its weights or scales are computed, PIM needs them in its banks before the run")
    op = _conv(writer, 3)
    if isinstance(op, Refusal):
        return op
    source = writer.opaque("DequantizeLinear", [x, x_scale, x_zero], writer.shape(x), "float32")
    x_step, w_step = scales[0], scales[1]
    keeps = writer.opset >= PER_AXIS_OPSET
    axis = OnnxOp("DequantizeLinear", "", (("axis", 0),))
    zero = writer.constant_at(5)
    per_channel = np.broadcast_to(w_step.reshape(-1), (len(weights),)) if w_step.size > 1 else w_step.reshape(())
    flat_zero = None if zero is None else (zero.reshape(-1) if w_step.size > 1 and zero.size > 1 else zero)
    kept: PackedBy | None = (
        (axis, (weights, per_channel, flat_zero)) if keeps and _alike(per_channel, flat_zero) else None
    )
    operands = [source, writer.constant(weights.shape, "float32", lambda: dequantised(weights, w_step, zero, 0), kept)]
    if bias is not None:
        step = w_step.astype(np.float32) * np.float32(x_step.reshape(-1)[0])
        step = step.reshape(-1) if step.size > 1 else step.reshape(())
        form: PackedBy | None = (axis, (bias, step)) if keeps else None
        operands.append(writer.constant(bias.shape, "float32", lambda: dequantised(bias, step, None, 0), form))
    made = writer.product(op, *operands)
    _requantise(writer, made, 6)
    return None


@expands("ConvInteger")
def _integers(writer: Writer) -> Refusal | None:
    """Differences from the zero points, which single precision and 16 bits hold exactly, and their sums as integers."""
    weights, zero = writer.constant_at(1), writer.constant_at(3)
    if weights is None or (writer.has(3) and zero is None):
        return Refusal("weights are computed, PIM needs them in its banks before the run")
    op = _conv(writer, 1)
    if isinstance(op, Refusal):
        return op
    source = differences(writer, 0, 2)
    one = np.array(1, np.float32)
    operand = writer.constant(weights.shape, "float32", lambda: dequantised(weights, one, zero, 0))
    made = writer.product(op, source, operand)
    writer.opaque("Cast", [made], writer.shape(made), "int32", to=6)
    return None


def differences(writer: Writer, position: int, zero_at: int) -> str:
    """An operand of 8 bits less its zero point, in single precision."""
    x = writer.operand(position)
    one = writer.constant((), "float32", lambda: np.array(1, np.float32))
    operands = [x, one, writer.operand(zero_at)] if writer.has(zero_at) else [x, one]
    return writer.opaque("DequantizeLinear", operands, writer.shape(x), "float32")


def _requantise(writer: Writer, made: str, scale_at: int) -> None:
    scale, zero = writer.operand(scale_at), writer.operand(scale_at + 1)
    writer.opaque("QuantizeLinear", [made, scale, zero], writer.shape(made), writer.dtype(writer.node.output))


def _alike(scale: Array, zero: Array | None) -> bool:
    return zero is None or zero.shape == scale.shape


def _conv(writer: Writer, weights_at: int) -> Conv2d | Refusal:
    shape, kernel = writer.shape(writer.operand(0)), writer.shape(writer.operand(weights_at))[2:]
    if len(shape) != 4 or len(kernel) != 2:
        return Refusal(_NOT_2D.format(len(shape) - 2))
    if writer.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return Refusal("its padding follows from the shape of its result")
    strides, dilations = (writer.integers(name, (1, 1)) for name in ("strides", "dilations"))
    pads = writer.integers("pads", (0, 0, 0, 0)) if writer.text("auto_pad", "NOTSET") == "NOTSET" else (0, 0, 0, 0)
    op = Conv2d(
        (kernel[0], kernel[1]),
        (strides[0], strides[1]),
        (pads[0], pads[1], pads[2], pads[3]),
        (dilations[0], dilations[1]),
        writer.integer("group", 1),
    )
    sizes = [window_out(shape[2 + i], kernel[i], strides[i], pads[i], pads[2 + i], dilations[i]) for i in range(2)]
    return op if min(sizes) > 0 else Refusal("output is empty")
