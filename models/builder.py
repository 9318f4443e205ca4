"""`Net`: builds an inference-form image network layer by layer, with seeded weights and input-dependent outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from . import mean_field
from .writer import Floats, Writer, settled

CLASSES = 1000
# One number for both axes, or (height, width).
Size = int | tuple[int, int]

# Shift and gain of a layer before its activation. The positive shift keeps most units open, so that rounding errors
# do not grow from layer to layer (a centred ReLU amplifies small differences by 1.2 per layer).
_SHIFT = (0.5, 1.3)
_LINEAR_SHIFT = (-0.2, 0.2)
_GAIN = (0.8, 1.2)
# Share of the mean input that dense filters ignore; the rest is left for running means and biases to remove. It keeps
# errors of the statistics (a mean that is off by a few percent) from drowning the part that depends on the input.
_BLIND = 0.75
# Squeeze-and-excitation: spatial means are taken over at most this many independent pixels.
_POOLED_PIXELS = 16
# Elements of a weight matrix that are multiplied at once in double precision: enough to fit a cache.
_BLOCK_ELEMENTS = 1 << 16


@dataclass(frozen=True, eq=False)
class Signal:
    """A tensor [1, channels, height, width] under construction, with the expected mean and variance of each channel.

    `before` holds (function, mean, variance) of the normal pre-activation, if there is one: max pooling needs it.
    """

    name: str
    channels: int
    height: int
    width: int
    mean: Floats
    variance: Floats
    before: tuple[mean_field.Function, Floats, Floats] | None = None


Activation = Callable[["Net", Signal, str], Signal]


class Net(Writer):
    """An image network under construction. Every layer method takes and returns a `Signal`; values are float32.

    `epsilon` is that of the norms, torchvision's default unless a network says otherwise.
    """

    epsilon = 1e-5

    def input(self, size: int, channels: int = 3) -> Signal:
        """The input image [1, channels, size, size]; its pixels are expected to have mean 0 and variance 1."""
        name = self.value_input("input", (1, channels, size, size))
        return Signal(name, channels, size, size, np.zeros(channels), np.ones(channels))

    def conv(
        self,
        x: Signal,
        name: str,
        channels: int,
        kernel: Size = 1,
        stride: int = 1,
        groups: int = 1,
        linear: bool = False,
        pad: int | None = None,
    ) -> Signal:
        """Convolution and batch norm, padded by kernel // 2 or by `pad`. `linear`: no activation follows."""
        out = self._conv(x, name, channels, kernel, stride, groups, pad, bias=None)
        return self.norm(out, f"{name}.bn", linear)

    def conv_bias(
        self,
        x: Signal,
        name: str,
        channels: int,
        kernel: Size = 1,
        stride: int = 1,
        groups: int = 1,
        pad: int | None = None,
        shift: tuple[float, float] = _SHIFT,
        gain: float = 1.0,
    ) -> Signal:
        """Convolution with a bias; its output has the standard deviation `gain`, and means within `shift`."""
        target = self.uniform(shift, channels)
        return self._conv(x, name, channels, kernel, stride, groups, pad, bias=target, gain=gain)

    def conv_plain(self, x: Signal, name: str, channels: int, kernel: Size = 1) -> Signal:
        """Convolution without a bias; a norm, if any, is added separately."""
        return self._conv(x, name, channels, kernel, 1, 1, None, bias=None)

    def norm(self, x: Signal, name: str, linear: bool = False) -> Signal:
        """Batch norm whose running statistics are those of the signal. `linear`: no activation follows."""
        scale = self.uniform(_GAIN, x.channels)
        shift = self.uniform(_LINEAR_SHIFT if linear else _SHIFT, x.channels)
        statistics = {"running_mean": settled(x.mean), "running_var": settled(x.variance)}
        parameters = {"weight": scale, "bias": shift, **statistics}
        names = [self.constant(f"{name}.{key}", array) for key, array in parameters.items()]
        out = self.node("BatchNormalization", name, x.name, *names, epsilon=self.epsilon)
        return replace(x, name=out, mean=shift, variance=scale**2, before=None)

    def relu(self, x: Signal, name: str) -> Signal:
        """Relu."""
        return self._activate(x, "Relu", name, mean_field.relu)

    def relu6(self, x: Signal, name: str) -> Signal:
        """Clip to [0, 6]."""
        return self._activate(x, "Clip", name, mean_field.relu6, self.scalar("zero", 0.0), self.scalar("six", 6.0))

    def sigmoid(self, x: Signal, name: str) -> Signal:
        """Sigmoid."""
        return self._activate(x, "Sigmoid", name, mean_field.sigmoid)

    def hard_sigmoid(self, x: Signal, name: str) -> Signal:
        """x / 6 + 1/2, clipped to [0, 1]."""
        return self._activate(x, "HardSigmoid", name, mean_field.hard_sigmoid, alpha=1 / 6, beta=0.5)

    def silu(self, x: Signal, name: str) -> Signal:
        """x * sigmoid(x), as the two nodes that exporters write."""
        return self._activate(x, "Mul", name, mean_field.silu, self.node("Sigmoid", f"{name}.sigmoid", x.name))

    def hard_swish(self, x: Signal, name: str) -> Signal:
        """x * hard_sigmoid(x)."""
        return self._activate(x, "HardSwish", name, mean_field.hard_swish)

    def add(self, x: Signal, y: Signal, name: str) -> Signal:
        """Residual sum."""
        out = self.node("Add", name, x.name, y.name)
        return replace(x, name=out, mean=x.mean + y.mean, variance=x.variance + y.variance, before=None)

    def concat(self, parts: Sequence[Signal], name: str) -> Signal:
        """Concatenation of signals of the same height and width along the channels."""
        out = self.node("Concat", name, *(part.name for part in parts), axis=1)
        mean, variance = (np.concatenate([getattr(part, key) for part in parts]) for key in ("mean", "variance"))
        return Signal(out, len(mean), parts[0].height, parts[0].width, mean, variance)

    def split(self, x: Signal, name: str) -> tuple[Signal, Signal]:
        """The first and the second half of the channels."""
        half = x.channels // 2
        outputs = [f"{name}.first", f"{name}.second"]
        self.node_of_many("Split", name, (x.name, self.integers(f"{name}.sizes", half, half)), outputs, axis=1)
        means, variances = np.split(x.mean, 2), np.split(x.variance, 2)
        first, second = (
            Signal(output, half, x.height, x.width, mean, variance)
            for output, mean, variance in zip(outputs, means, variances, strict=True)
        )
        return first, second

    def shuffle(self, x: Signal, name: str, groups: int) -> Signal:
        """Interleaves groups of channels: the first of each, then the second of each (ShuffleNet)."""
        grouped = self.integers(f"{name}.grouped", 1, groups, x.channels // groups, x.height, x.width)
        whole = self.integers(f"{name}.whole", 1, x.channels, x.height, x.width)
        apart = self.node("Reshape", f"{name}.apart", x.name, grouped)
        turned = self.node("Transpose", f"{name}.turned", apart, perm=[0, 2, 1, 3, 4])
        out = self.node("Reshape", name, turned, whole)
        mean, variance = (array.reshape(groups, -1).T.ravel() for array in (x.mean, x.variance))
        return replace(x, name=out, mean=mean, variance=variance, before=None)

    def squeeze_excite(
        self, x: Signal, name: str, squeezed: int, inner: Activation = silu, outer: Activation = sigmoid
    ) -> Signal:
        """x times a gate per channel: pool, convolution, `inner`, convolution, `outer` (Hu et al., CVPR 2018)."""
        gate = self.global_average(x, f"{name}.pool")
        gate = inner(self, self.conv_bias(gate, f"{name}.squeeze", squeezed), f"{name}.{inner.__name__}")
        gate = self.conv_bias(gate, f"{name}.excite", x.channels, shift=(0.0, 2.0))
        gate = outer(self, gate, f"{name}.gate")
        out = self.node("Mul", name, x.name, gate.name)
        # Within one image the gate is one number per channel.
        return replace(x, name=out, mean=x.mean * gate.mean, variance=x.variance * gate.mean**2, before=None)

    def max_pool(self, x: Signal, name: str, kernel: int, stride: int, pad: int = 0, ceil: bool = False) -> Signal:
        """Max pooling. `ceil`: the last window may end outside."""
        rounding: dict[str, Any] = {"ceil_mode": 1} if ceil else {}
        window: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
        out = self.node("MaxPool", name, x.name, **window, **rounding)
        spare = stride - 1 if ceil else 0
        height, width = ((size + 2 * pad - kernel + spare) // stride + 1 for size in (x.height, x.width))
        # For a rising activation, the largest output is the output of the largest input.
        function, before_mean, before_variance = x.before or (mean_field.identity, x.mean, x.variance)
        mean, variance = mean_field.moments(function, before_mean, before_variance, largest_of=kernel * kernel)
        return Signal(out, x.channels, height, width, mean, variance)

    def global_average(self, x: Signal, name: str) -> Signal:
        """Mean over height and width."""
        out = self.node("GlobalAveragePool", name, x.name)
        pixels = min(x.height * x.width, _POOLED_PIXELS)
        return Signal(out, x.channels, 1, 1, x.mean, x.variance / pixels)

    def average_pool(self, x: Signal, name: str, kernel: int, stride: int | None = None, pad: int = 0) -> Signal:
        """Average pooling that includes zeros of the padding; windows touch unless a stride is given."""
        stride = stride or kernel
        padding: dict[str, Any] = {"pads": [pad] * 4, "count_include_pad": 1} if pad else {}
        out = self.node("AveragePool", name, x.name, kernel_shape=[kernel] * 2, strides=[stride] * 2, **padding)
        height, width = ((size + 2 * pad - kernel) // stride + 1 for size in (x.height, x.width))
        return Signal(out, x.channels, height, width, x.mean, x.variance / kernel**2)

    def flatten(self, x: Signal, name: str, output: str | None = None) -> Signal:
        """Reshape [1, C, H, W] to [1, C*H*W]: a signal of C*H*W channels."""
        out = self.node("Flatten", name, x.name, output=output, axis=1)
        pixels = x.height * x.width
        mean, variance = (np.repeat(per_channel, pixels) for per_channel in (x.mean, x.variance))
        return Signal(out, x.channels * pixels, 1, 1, mean, variance)

    def linear(
        self,
        x: Signal,
        name: str,
        features: int,
        shift: tuple[float, float] = _SHIFT,
        gain: float = 1.0,
        output: str | None = None,
    ) -> Signal:
        """Fully connected layer of a flat signal. `gain`: the target standard deviation, `shift`: the range of
        means."""
        std = gain / np.sqrt(x.variance.sum())
        weight, seen = self._matrix(x, f"{name}.weight", features, std)
        bias = self.constant(f"{name}.bias", settled(self.uniform(shift, features) - seen))
        out = self.node("Gemm", name, x.name, weight, bias, output=output, alpha=1.0, beta=1.0, transB=1)
        return Signal(out, features, 1, 1, np.full(features, np.mean(shift)), np.full(features, gain**2))

    def classifier(self, x: Signal, name: str, gain: float, classes: int = CLASSES) -> onnx.ModelProto:
        """The last fully connected layer; returns the finished model, whose output is `logits` [1, classes].

        `gain` corrects for what the statistics ignore (pixels of one map are not independent): it is measured once per
        model, so that logits have a standard deviation near 1.
        """
        self.linear(x, name, classes, shift=_LINEAR_SHIFT, gain=gain, output="logits")
        self.value_output("logits", (1, classes))
        return self.finish()

    def _conv(
        self,
        x: Signal,
        name: str,
        channels: int,
        kernel: Size,
        stride: int,
        groups: int,
        pad: int | None,
        bias: Floats | None,
        gain: float = 1.0,
    ) -> Signal:
        """A convolution. `bias`: the desired means of the output, or None; `gain`: its standard deviation, with a
        bias."""
        window = (kernel, kernel) if isinstance(kernel, int) else kernel
        pads = [size // 2 if pad is None else pad for size in window]
        axes = list(zip((x.height, x.width), window, pads, strict=True))
        taps = np.outer(*(mean_field.tap_coverage(size, taps, stride, border) for size, taps, border in axes)).ravel()
        shape = (channels, x.channels // groups, *window)
        fan_in = math.prod(shape[1:])
        std = np.sqrt(2.0 / fan_in) if bias is None else gain / np.sqrt(fan_in * x.variance.mean())
        mean, variance = self._filters(x, f"{name}.weight", shape, std, taps)
        inputs = [x.name, f"{name}.weight"]
        if bias is not None:
            inputs.append(self.constant(f"{name}.bias", settled(bias - mean)))
            mean = bias
        out = self.node(
            "Conv", name, *inputs, kernel_shape=list(window), strides=[stride] * 2, pads=pads * 2, group=groups
        )
        height, width = ((size + 2 * border - taps) // stride + 1 for size, taps, border in axes)
        return Signal(out, channels, height, width, mean, variance)

    def _filters(self, x: Signal, name: str, shape: tuple[int, ...], std: float, taps: Floats) -> tuple[Floats, Floats]:
        """Draw and store filters; return the mean and variance, per output channel, of their response to the signal."""
        if not self.has_weights:
            self.reserve(name, shape)
            return np.zeros(shape[0]), np.ones(shape[0])
        weight = self.draw(shape, std)
        groups = x.channels // shape[1]
        if groups == 1:
            _blind(weight, x.mean)
        self.constant(name, weight)
        mean = _per_group(_over_taps(weight, taps), x.mean, groups)
        return mean, _per_group(_over_taps(np.square(weight), taps), x.variance, groups)

    def _matrix(self, x: Signal, name: str, features: int, std: float) -> tuple[str, Floats]:
        """Draw and store a matrix; return its name, and its product with the mean signal."""
        if not self.has_weights:
            return self.reserve(name, (features, x.channels)), np.zeros(features)
        weight = self.draw((features, x.channels), std)
        rows = max(1, _BLOCK_ELEMENTS // x.channels)
        blocks = (weight[start : start + rows] for start in range(0, features, rows))
        return self.constant(name, weight), np.concatenate([block @ x.mean for block in blocks])

    def _activate(
        self, x: Signal, op_type: str, name: str, function: mean_field.Function, *others: str, **attributes: Any
    ) -> Signal:
        out = self.node(op_type, name, x.name, *others, **attributes)
        mean, variance = mean_field.moments(function, x.mean, x.variance)
        return replace(x, name=out, mean=mean, variance=variance, before=(function, x.mean, x.variance))


def _blind(weight: npt.NDArray[np.float32], mean: Floats) -> None:
    """Remove most of the mean input (of brightness, for the image itself) from dense filters [O, I, kh, kw]."""
    direction = mean if mean.any() else np.ones_like(mean)
    direction = settled(direction / np.linalg.norm(direction))
    seen = settled(np.einsum("oikl,i->o", weight, direction) / weight[0, 0].size)
    weight -= (_BLIND * np.multiply.outer(seen, direction)).astype(np.float32)[:, :, None, None]


def _over_taps(weight: npt.NDArray[np.float32], taps: Floats) -> Floats:
    """Weighted sum of filters [O, I, kh, kw] over their taps; [O, I]."""
    if taps.size == 1:  # the same, without a product per tap
        return np.asarray(weight[:, :, 0, 0] * taps[0])
    return np.asarray(weight.reshape(*weight.shape[:2], -1) @ taps)


def _per_group(weight: Floats, signal: Floats, groups: int) -> Floats:
    """weight [O, I/groups] applied to one number per input channel; one number per output channel."""
    by_group = weight.reshape(groups, -1, weight.shape[1])
    return np.asarray(by_group @ signal.reshape(groups, -1, 1)).reshape(-1)
