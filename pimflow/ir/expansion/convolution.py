"""One- and three-dimensional, transposed, 8-bit and fused convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from pimflow.ir.expansion.base import CONTRIB, PackedBy, Writer, expands, stays
from pimflow.ir.graph import Array
from pimflow.ir.ops.contraction import Conv2d
from pimflow.ir.ops.elementwise import Elementwise, fused_activation
from pimflow.ir.ops.movement import Pad, Reshape, Slice, Transpose
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.ops.window import same_pads, window_out
from pimflow.ir.packed import dequantised
from pimflow.ir.refusal import Refusal
from pimflow.records import NamedTuple

_COMPUTED = "weights are computed, PIM needs them in its banks before the run"


class _Window(NamedTuple):
    """A window over any number of dimensions, as in ONNX: pads are those before each one, then those after each."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1

    def out(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The extents of its output over a map of these extents."""
        count = len(self.kernel)
        return tuple(
            window_out(size, self.kernel[i], self.strides[i], self.pads[i], self.pads[count + i], self.dilations[i])
            for i, size in enumerate(sizes)
        )

    def last(self, count: int) -> _Window:
        """The window over only the last `count` dimensions."""
        own = len(self.kernel)
        pads = (*self.pads[own - count : own], *self.pads[2 * own - count :])
        return _Window(self.kernel[-count:], self.strides[-count:], pads, self.dilations[-count:], self.groups)

    def op(self) -> Conv2d:
        """The op of a window over two dimensions."""
        (rows, columns), (top, left, bottom, right) = self.kernel, self.pads
        strides, dilations = (self.strides[0], self.strides[1]), (self.dilations[0], self.dilations[1])
        return Conv2d((rows, columns), strides, (top, left, bottom, right), dilations, self.groups)


class _Weights(NamedTuple):
    """Constant weights, [out channels, in channels of a group, *kernel]: their shape, type, elements, and how the model
    stores them in fewer bits (with scales along the first axis, if several)."""

    shape: tuple[int, ...]
    dtype: str
    make: Callable[[], Array]
    packed: PackedBy | None = None

    def permuted(self, writer: Writer, shape: tuple[int, ...], perm: tuple[int, ...]) -> str:
        """A constant of the same elements with their axes permuted, then reshaped."""

        def permute(array: Array) -> Array:
            return np.ascontiguousarray(array.transpose(perm).reshape(shape))

        packed = self.packed
        if packed is not None and packed[1][0] is not None:
            op, (elements, *scales) = packed
            assert elements is not None
            packed = op, (permute(elements), *scales)
        return writer.constant(shape, self.dtype, lambda: permute(self.make().reshape(self.shape)), packed)


def _window(writer: Writer, weights_at: int) -> _Window | Refusal:
    """The window of a convolution that is not transposed, with `auto_pad` resolved."""
    sizes, kernel = writer.shape(writer.operand(0))[2:], writer.shape(writer.operand(weights_at))[2:]
    if writer.integer("channels_last"):
        sizes = writer.shape(writer.operand(0))[1:-1]
    count = len(kernel)
    strides, dilations = (writer.integers(name, (1,) * count) for name in ("strides", "dilations"))
    if not len(sizes) == count == len(strides) == len(dilations):
        return Refusal("its operands are not supported")
    mode, pads = writer.text("auto_pad", "NOTSET"), writer.integers("pads", (0,) * 2 * count)
    if mode != "NOTSET":
        pads = (0,) * 2 * count if mode == "VALID" else same_pads(mode, sizes, kernel, strides, dilations)
    if len(pads) != 2 * count:
        return Refusal("its operands are not supported")
    window = _Window(kernel, strides, pads, dilations, writer.integer("group", 1))
    return window if min(window.out(sizes), default=0) > 0 else Refusal("output is empty")


def _convolve(writer: Writer, x: str, weights: _Weights, bias: str, window: _Window) -> str | Refusal:
    """A convolution over one to three dimensions, written as one over two: the node's product."""
    count = len(window.kernel)
    biases = [bias] if bias else []
    if count == 2:
        return writer.product(window.op(), x, weights.permuted(writer, weights.shape, (0, 1, 2, 3)), *biases)
    if count == 1:
        return _convolve_1d(writer, x, weights, biases, window)
    if count == 3:
        return _convolve_3d(writer, x, weights, biases, window)
    return Refusal(f"a convolution over {count} dimensions has no mapping")


def _convolve_1d(writer: Writer, x: str, weights: _Weights, bias: list[str], window: _Window) -> str:
    """Convolves over one dimension, as over the rows of a map one column wide."""
    (kernel,), (stride,), (before, after), (dilation,), groups = window
    op = Conv2d((kernel, 1), (stride, 1), (before, 0, after, 0), (dilation, 1), groups)
    wide = writer.add(Reshape((*writer.shape(x), 1)), x)
    made = writer.product(op, wide, weights.permuted(writer, (*weights.shape, 1), (0, 1, 2)), *bias)
    return writer.add(Reshape(writer.shape(made)[:3]), made)


def _convolve_3d(writer: Writer, x: str, weights: _Weights, bias: list[str], window: _Window) -> str:
    """Convolves over three dimensions: one 2-D map per output plane, with the channels of all planes a kernel covers.

    Planes that neighbouring kernels share are copied; the cost includes the Gather and its result.
    """
    (depth, *_), before, after = window.kernel, window.pads[0], window.pads[3]
    if before or after:
        x = writer.add(Pad((0, 0, before, 0, 0), (0, 0, after, 0, 0)), x)
    batch, channels, planes, *sizes = writer.shape(x)
    made_planes = window_out(planes, depth, window.strides[0], 0, 0, window.dilations[0])
    x = writer.add(Transpose((0, 2, 1, 3, 4)), x)
    groups, columns = window.groups, weights.shape[1]
    if (depth, made_planes) != (1, planes):
        starts = np.arange(made_planes)[:, None] * window.strides[0]
        places = (starts + np.arange(depth) * window.dilations[0]).astype(np.int64)
        index = writer.constant(places.shape, "int64", lambda: places)
        shape = (batch, made_planes, depth, channels, *sizes)
        x = writer.opaque("Gather", [x, index], shape, writer.dtype(x), axis=1)
        if groups > 1:
            x = writer.add(Reshape((batch, made_planes, depth, groups, channels // groups, *sizes)), x)
            x = writer.add(Transpose((0, 1, 3, 2, 4, 5, 6)), x)
    x = writer.add(Reshape((batch * made_planes, depth * channels, *sizes)), x)
    shape = (weights.shape[0], depth * columns, *weights.shape[3:])
    made = writer.product(window.last(2).op(), x, weights.permuted(writer, shape, (0, 2, 1, 3, 4)), *bias)
    _, out, *sizes = writer.shape(made)
    made = writer.add(Reshape((batch, made_planes, out, *sizes)), made)
    return writer.add(Transpose((0, 2, 1, 3, 4)), made)


@expands("Conv")
def _plain(writer: Writer) -> Refusal | None:
    """A convolution over one or three dimensions; over two it is a `Conv2d` if possible."""
    made = _of_floats(writer)
    return made if isinstance(made, Refusal) else None


@expands("FusedConv", domain=CONTRIB)
def _fused(writer: Writer) -> Refusal | None:
    """A convolution followed by the addition of a fourth operand and an activation."""
    activation = fused_activation(writer.text("activation"), writer.numbers("activation_params"))
    if activation is None:
        return Refusal(f"its activation {writer.text('activation')!r} is unknown")
    made = _of_floats(writer)
    if isinstance(made, Refusal):
        return made
    if writer.has(3):
        made = writer.add(Elementwise("Add"), made, writer.operand(3))
    for op in activation:
        made = writer.add(op, made)
    return None


def _of_floats(writer: Writer) -> str | Refusal:
    x, weights = writer.operand(0), writer.constant_at(1)
    if weights is None:
        return Refusal(_COMPUTED)
    window = _window(writer, 1)
    if isinstance(window, Refusal):
        return window
    whole = weights
    operand = _Weights(whole.shape, whole.dtype.name, lambda: whole, _packed_along(writer, 1, 0))
    return _convolve(writer, x, operand, writer.operand(2), window)


def _packed_along(writer: Writer, position: int, along: int) -> PackedBy | None:
    """How the model stores an operand in fewer bits, if with a single scale or with one per index of axis `along`."""
    packed = writer.graph.packed_form(writer.operand(position))
    if packed is None:
        return None
    (elements, scale, *_), attributes = packed.operands, dict(packed.op.attributes)
    assert elements is not None
    assert scale is not None
    axis = attributes.get("axis", 1)
    assert isinstance(axis, int)
    fits = scale.size == 1 or axis % elements.ndim == along
    return (packed.op, packed.operands) if fits and not attributes.get("block_size") else None


@expands("ConvTranspose")
def _transposed(writer: Writer) -> Refusal | None:
    """Sub-pixel convolution: one with stride 1 whose channels are multiplied by the product of the strides, after which
    these are interleaved in space.

    Along one axis, y[q s + r] = sum over m of x[q - m] w[m s + r]: each r is a convolution of its own, whose kernel is
    every s-th tap. (Shi et al., Real-Time Single Image and Video Super-Resolution, 2016, and its supplement.)
    """
    x, weights = writer.operand(0), writer.constant_at(1)
    if weights is None:
        return Refusal(_COMPUTED)
    if writer.has(2) and writer.constant_at(2) is None:
        return Refusal("its bias is computed")
    channels, columns, *kernel = weights.shape
    count, groups, sizes = len(kernel), writer.integer("group", 1), writer.shape(x)[2:]
    strides, dilations = (writer.integers(name, (1,) * count) for name in ("strides", "dilations"))
    if not len(sizes) == count == len(strides) == len(dilations):
        return Refusal("its operands are not supported")
    extents = [dilation * (size - 1) + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    wanted = writer.shape(writer.node.output)[2:]
    starts = _crop_starts(writer, extents, strides)
    taps = tuple(
        -(-max(extents[i], starts[i] + wanted[i] - strides[i] * (sizes[i] - 1)) // strides[i]) for i in range(count)
    )
    out, steps = columns * groups, math.prod(strides)

    def sub_pixel(elements: Array, fill: Array) -> Array:
        extent = tuple(tap * stride for tap, stride in zip(taps, strides, strict=True))
        whole = np.empty((channels, columns, *extent), elements.dtype)
        whole[...] = fill.reshape(-1, *(1 for _ in extent))  # per column, or one for all
        whole[tuple(map(slice, [0] * (2 + count), [None, None, *extents], [1, 1, *dilations]))] = elements
        both = [size for pair in zip(taps, strides, strict=True) for size in pair]
        split = whole.reshape(groups, channels // groups, columns, *both)
        flipped = np.flip(split, tuple(range(3, 3 + 2 * count, 2)))
        permuted = flipped.transpose(0, 2, *range(4, 4 + 2 * count, 2), 1, *range(3, 3 + 2 * count, 2))
        return np.asarray(permuted).reshape(out * steps, channels // groups, *taps)

    bias, dtype = writer.constant_at(2), writer.dtype(x)
    repeated = "" if bias is None else writer.constant((out * steps,), dtype, lambda: np.repeat(bias, steps))
    pads = tuple(tap - 1 for tap in taps)
    ones = (1,) * count
    made = _convolve(
        writer,
        x,
        _Weights(
            (out * steps, channels // groups, *taps),
            dtype,
            lambda: sub_pixel(weights, np.zeros(1, weights.dtype)),
            _packed_sub_pixels(writer, sub_pixel, groups, steps),
        ),
        repeated,
        _Window(taps, ones, (*pads, *pads), ones, groups),
    )
    if isinstance(made, Refusal):
        return made
    _depth_to_space(writer, made, out, strides, starts, wanted)
    return None


def _packed_sub_pixels(
    writer: Writer, sub_pixel: Callable[[Array, Array], Array], groups: int, steps: int
) -> PackedBy | None:
    """How the model stores a transposed convolution's weights in fewer bits, with scales along the first axis."""
    packed = _packed_along(writer, 1, 1)
    if packed is None or not writer.elements:
        return None
    op, (elements, scale, *zeros) = packed
    assert elements is not None
    assert scale is not None
    zero = zeros[0] if zeros else None
    fill = np.zeros(1, elements.dtype) if zero is None else zero
    first = tuple((name, value) for name, value in op.attributes if name != "axis")
    per_first = [
        array if array is None or array.size == 1 else np.repeat(np.tile(array, groups), steps)
        for array in (scale, zero)
    ]
    return replace(op, attributes=(*first, ("axis", 0))), (sub_pixel(elements, fill), *per_first)


def _crop_starts(writer: Writer, extents: list[int], strides: tuple[int, ...]) -> tuple[int, ...]:
    """How many leading elements of the full result a transposed convolution drops along each dimension."""
    count = len(extents)
    sizes, wanted = writer.shape(writer.operand(0))[2:], writer.shape(writer.node.output)[2:]
    mode, output_shape = writer.text("auto_pad", "NOTSET"), writer.integers("output_shape", ())
    if mode == "VALID" or (mode == "NOTSET" and not output_shape):
        return (0,) * count if mode == "VALID" else writer.integers("pads", (0,) * 2 * count)[:count]
    extra = writer.integers("output_padding", (0,) * count)
    spare = [max(0, strides[i] * (sizes[i] - 1) + extra[i] + extents[i] - wanted[i]) for i in range(count)]
    return tuple(pads // 2 if mode == "SAME_UPPER" else pads - pads // 2 for pads in spare)


def _depth_to_space(
    writer: Writer, made: str, out: int, strides: tuple[int, ...], starts: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    """Interleaves sub-pixels, which are channels, in space, and takes the wanted part of the map."""
    count = len(strides)
    batch, _, *sizes = writer.shape(made)
    if math.prod(strides) > 1:
        made = writer.add(Reshape((batch, out, *strides, *sizes)), made)
        made = writer.add(Transpose((0, 1, *(axis for i in range(count) for axis in (2 + count + i, 2 + i)))), made)
        interleaved = (size * stride for size, stride in zip(sizes, strides, strict=True))
        made = writer.add(Reshape((batch, out, *interleaved)), made)
    for axis, (start, size) in enumerate(zip(starts, wanted, strict=True), start=2):
        if start or writer.shape(made)[axis] != size:
            made = writer.add(Slice(axis, start, start + size), made)


@expands("QLinearConv")
@expands("QLinearConv", domain=CONTRIB)
def _quantised(writer: Writer) -> Refusal | None:
    """Dequantises, convolves and quantises; channels that come last are moved to the front and back."""
    x, x_scale, x_zero = (writer.operand(place) for place in range(3))
    scales = writer.constant_at(1), writer.constant_at(4)
    weights, bias = writer.constant_at(3), writer.constant_at(8)
    if weights is None or scales[0] is None or scales[1] is None or (writer.has(8) and bias is None):
        return Refusal("its weights or scales are computed, PIM needs them in its banks before the run")
    window = _window(writer, 3)
    if isinstance(window, Refusal):
        return window
    source = writer.opaque("DequantizeLinear", [x, x_scale, x_zero], writer.shape(x), "float32")
    rank, last = len(writer.shape(x)), bool(writer.integer("channels_last"))
    if last:
        source = writer.add(Transpose((0, rank - 1, *range(1, rank - 1))), source)
    operand, bias_name = _dequantised(writer, weights, scales[1], bias, scales[0])
    made = _convolve(writer, source, operand, bias_name, window)
    if isinstance(made, Refusal):
        return made
    if last:
        made = writer.add(Transpose((0, *range(2, rank), 1)), made)
    operands = [made, writer.operand(6), writer.operand(7)]
    writer.opaque("QuantizeLinear", operands, writer.shape(made), writer.dtype(writer.node.output))
    return None


def _dequantised(
    writer: Writer, weights: Array, w_step: Array, bias: Array | None, x_step: Array
) -> tuple[_Weights, str]:
    """8-bit weights and a 32-bit bias in single precision; the model still stores both as integers."""
    axis = OnnxOp("DequantizeLinear", "", (("axis", 0),))
    zero = writer.constant_at(5)
    per_channel = np.broadcast_to(w_step.reshape(-1), (len(weights),)) if w_step.size > 1 else w_step.reshape(())
    least = None if zero is None else zero.reshape(() if zero.size == 1 else -1)
    if least is not None:
        per_channel, least = np.broadcast_arrays(per_channel, least)
    packed = axis, (weights, per_channel, least)
    operand = _Weights(weights.shape, "float32", partial(dequantised, weights, per_channel, least, 0), packed)
    if bias is None:
        return operand, ""
    step = w_step.astype(np.float32) * np.float32(x_step.reshape(-1)[0])
    step = step.reshape(-1) if step.size > 1 else step.reshape(())
    made = partial(dequantised, bias, step, None, 0)
    return operand, writer.constant(bias.shape, "float32", made, (axis, (bias, step)))


@expands("ConvInteger", unscaled=True)
def _integers(writer: Writer) -> Refusal | None:
    """Convolves differences from zero points, exact in single precision and 16 bits; the sums are cast to integers."""
    weights, zero = writer.constant_at(1), writer.constant_at(3)
    if weights is None or (writer.has(3) and zero is None):
        return Refusal(_COMPUTED)
    window = _window(writer, 1)
    if isinstance(window, Refusal):
        return window
    source = differences(writer, 0, 2)
    one = np.array(1, np.float32)
    operand = _Weights(weights.shape, "float32", lambda: dequantised(weights, one, zero, 0))
    made = _convolve(writer, source, operand, "", window)
    if isinstance(made, Refusal):
        return made
    writer.opaque("Cast", [made], writer.shape(made), "int32", to=6)
    return None


def differences(writer: Writer, position: int, zero_at: int) -> str:
    """An 8-bit operand minus its zero point, in single precision."""
    x = writer.operand(position)
    one = writer.constant((), "float32", lambda: np.array(1, np.float32))
    operands = [x, one, writer.operand(zero_at)] if writer.has(zero_at) else [x, one]
    return writer.opaque("DequantizeLinear", operands, writer.shape(x), "float32")


stays("the places of its windows are computed", "DeformConv")
stays("its pads are computed", "ConvTransposeWithDynamicPads", domain=CONTRIB)
stays(
    "its channels are in blocks for ONNX Runtime's kernels of one CPU, and their other readers are unknown",
    "Conv",
    domain="com.microsoft.nchwc",
)
