"""`Net`: builds an inference-form ONNX classifier layer by layer, with seeded weights that do not forget the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from . import mean_field
from .mean_field import Floats

OPSET = 17
IR_VERSION = 8
CLASSES = 1000

# Shift and gain of a layer before its activation. The positive shift keeps most units open, so that rounding errors
# do not grow from layer to layer (a centred ReLU amplifies small differences by 1.2 per layer).
_SHIFT = (0.5, 1.3)
_LINEAR_SHIFT = (-0.2, 0.2)
_GAIN = (0.8, 1.2)
# Share of the mean input that dense filters are blind to; the rest is left for running means and biases to take away.
# It keeps what the statistics get wrong (a mean a few percent off) from drowning what depends on the input.
_BLIND = 0.75
# Squeeze-and-excitation: spatial means are taken over at most this many independent pixels.
_POOLED_PIXELS = 16


@dataclass(frozen=True, eq=False)
class Signal:
    """A tensor [1, channels, height, width] in the making, with the mean and variance expected of each channel.

    `before` holds (function, mean, variance) of the normal pre-activation, where there is one: max pooling needs it.
    """

    name: str
    channels: int
    height: int
    width: int
    mean: Floats
    variance: Floats
    before: tuple[mean_field.Function, Floats, Floats] | None = None


class Net:
    """An ONNX graph under construction. Every layer method takes and returns a `Signal`; values are float32.

    Args:
        name: the graph's name.
        seed: seed of all weights; the same seed gives the same bytes.
        epsilon: epsilon of the batch norms.
    """

    def __init__(self, name: str, seed: int, epsilon: float = 1e-5) -> None:
        self._model = onnx.ModelProto(ir_version=IR_VERSION, producer_name="pimflow-zoo")
        self._model.opset_import.add(version=OPSET)
        self._graph = self._model.graph
        self._graph.name = name
        self._rng = np.random.default_rng(seed)
        self._epsilon = epsilon
        self._constants: set[str] = set()

    def input(self, size: int, channels: int = 3) -> Signal:
        """The input image [1, channels, size, size]; meant for pixels of mean 0 and variance 1."""
        shape = (1, channels, size, size)
        self._graph.input.append(helper.make_tensor_value_info("input", TensorProto.FLOAT, shape))
        return Signal("input", channels, size, size, np.zeros(channels), np.ones(channels))

    def conv(
        self,
        x: Signal,
        name: str,
        channels: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        linear: bool = False,
    ) -> Signal:
        """Convolution and batch norm, padded by kernel // 2. `linear`: no activation follows."""
        out = self._conv(x, name, channels, kernel, stride, groups, bias=None)
        return self._batch_norm(out, f"{name}.bn", linear)

    def conv_bias(
        self, x: Signal, name: str, channels: int, kernel: int = 1, groups: int = 1, shift: tuple[float, float] = _SHIFT
    ) -> Signal:
        """Convolution with a bias, scaled to unit variance; its output's mean lies in `shift`."""
        target = self._uniform(shift, channels)
        return self._conv(x, name, channels, kernel, 1, groups, bias=target)

    def relu(self, x: Signal, name: str) -> Signal:
        """Relu."""
        return self._activate(x, "Relu", name, [x.name], mean_field.relu)

    def relu6(self, x: Signal, name: str) -> Signal:
        """Clip to [0, 6]."""
        bounds = [self._scalar("zero", 0.0), self._scalar("six", 6.0)]
        return self._activate(x, "Clip", name, [x.name, *bounds], mean_field.relu6)

    def sigmoid(self, x: Signal, name: str) -> Signal:
        """Sigmoid."""
        return self._activate(x, "Sigmoid", name, [x.name], mean_field.sigmoid)

    def silu(self, x: Signal, name: str) -> Signal:
        """x * sigmoid(x), as the two nodes that exporters write."""
        gate = self._node("Sigmoid", f"{name}.sigmoid", [x.name])
        return self._activate(x, "Mul", name, [x.name, gate], mean_field.silu)

    def add(self, x: Signal, y: Signal, name: str) -> Signal:
        """Residual sum."""
        out = self._node("Add", name, [x.name, y.name])
        return Signal(out, x.channels, x.height, x.width, x.mean + y.mean, x.variance + y.variance)

    def squeeze_excite(self, x: Signal, name: str, squeezed: int) -> Signal:
        """x times a gate per channel: pool, 1x1 convolution, SiLU, 1x1 convolution, sigmoid (Hu et al., CVPR 2018)."""
        gate = self.global_average(x, f"{name}.pool")
        gate = self.silu(self.conv_bias(gate, f"{name}.squeeze", squeezed), f"{name}.silu")
        gate = self.conv_bias(gate, f"{name}.excite", x.channels, shift=(0.0, 2.0))
        gate = self.sigmoid(gate, f"{name}.gate")
        out = self._node("Mul", name, [x.name, gate.name])
        # Within one image the gate is one number per channel.
        return Signal(out, x.channels, x.height, x.width, x.mean * gate.mean, x.variance * gate.mean**2)

    def max_pool(self, x: Signal, name: str, kernel: int, stride: int, pad: int = 0) -> Signal:
        """Max pooling of an activation's output."""
        if x.before is None:
            raise ValueError(f"{name}: max pooling must follow an activation")
        attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
        out = self._node("MaxPool", name, [x.name], attributes)
        height, width = ((size + 2 * pad - kernel) // stride + 1 for size in (x.height, x.width))
        mean, variance = mean_field.moments(*x.before, largest_of=kernel * kernel)
        return Signal(out, x.channels, height, width, mean, variance)

    def global_average(self, x: Signal, name: str) -> Signal:
        """Mean over height and width."""
        out = self._node("GlobalAveragePool", name, [x.name])
        pixels = min(x.height * x.width, _POOLED_PIXELS)
        return Signal(out, x.channels, 1, 1, x.mean, x.variance / pixels)

    def average_pool(self, x: Signal, name: str, kernel: int) -> Signal:
        """Average pooling over windows that touch but do not overlap."""
        out = self._node("AveragePool", name, [x.name], {"kernel_shape": [kernel] * 2, "strides": [kernel] * 2})
        return Signal(out, x.channels, x.height // kernel, x.width // kernel, x.mean, x.variance / kernel**2)

    def flatten(self, x: Signal, name: str) -> Signal:
        """[1, C, H, W] to [1, C*H*W]; a signal of C*H*W channels."""
        out = self._node("Flatten", name, [x.name], {"axis": 1})
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
        """Fully connected layer of a flat signal. `gain` is the standard deviation aimed at, `shift` the means."""
        std = gain / np.sqrt(x.variance.sum())
        weight = self._weight((features, x.channels), std)
        bias = self._uniform(shift, features) - weight @ x.mean.astype(np.float32)
        names = [self._constant(f"{name}.weight", weight), self._constant(f"{name}.bias", bias)]
        del weight
        out = self._node("Gemm", name, [x.name, *names], {"alpha": 1.0, "beta": 1.0, "transB": 1}, output)
        return Signal(out, features, 1, 1, np.full(features, np.mean(shift)), np.full(features, gain**2))

    def classifier(self, x: Signal, name: str, gain: float, classes: int = CLASSES) -> onnx.ModelProto:
        """The last fully connected layer; returns the finished model, whose output is `logits` [1, classes].

        `gain` makes up for what the statistics do not see (pixels of one map are not independent): it is measured
        once per model, so that logits have a standard deviation near 1.
        """
        self.linear(x, name, classes, shift=_LINEAR_SHIFT, gain=gain, output="logits")
        self._graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, (1, classes)))
        return self._model

    def _conv(
        self, x: Signal, name: str, channels: int, kernel: int, stride: int, groups: int, bias: Floats | None
    ) -> Signal:
        """`bias`: means that the output is to have, None for no bias."""
        pad = kernel // 2
        fan_in = x.channels // groups * kernel * kernel
        std = np.sqrt(2.0 / fan_in) if bias is None else 1.0 / np.sqrt(fan_in * x.variance.mean())
        weight = self._weight((channels, x.channels // groups, kernel, kernel), std)
        if groups == 1:
            _blind(weight, x.mean)
        coverage = [mean_field.tap_coverage(size, kernel, stride, pad) for size in (x.height, x.width)]
        taps = np.outer(*coverage).astype(np.float32).ravel()
        mean = _per_group(weight.reshape(channels, -1, kernel * kernel) @ taps, x.mean, groups)
        variance = _per_group(np.square(weight).reshape(channels, -1, kernel * kernel) @ taps, x.variance, groups)
        inputs = [x.name, self._constant(f"{name}.weight", weight)]
        if bias is not None:
            inputs.append(self._constant(f"{name}.bias", bias - mean))
            mean = bias
        attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4, "group": groups}
        out = self._node("Conv", name, inputs, attributes)
        height, width = ((size + 2 * pad - kernel) // stride + 1 for size in (x.height, x.width))
        return Signal(out, channels, height, width, mean, variance)

    def _batch_norm(self, x: Signal, name: str, linear: bool) -> Signal:
        scale = self._uniform(_GAIN, x.channels)
        shift = self._uniform(_LINEAR_SHIFT if linear else _SHIFT, x.channels)
        parameters = {"weight": scale, "bias": shift, "running_mean": x.mean, "running_var": x.variance}
        names = [self._constant(f"{name}.{key}", array) for key, array in parameters.items()]
        out = self._node("BatchNormalization", name, [x.name, *names], {"epsilon": self._epsilon})
        return Signal(out, x.channels, x.height, x.width, shift, scale**2)

    def _activate(
        self, x: Signal, op_type: str, name: str, inputs: Sequence[str], function: mean_field.Function
    ) -> Signal:
        out = self._node(op_type, name, inputs)
        mean, variance = mean_field.moments(function, x.mean, x.variance)
        return Signal(out, x.channels, x.height, x.width, mean, variance, (function, x.mean, x.variance))

    def _node(
        self,
        op_type: str,
        name: str,
        inputs: Sequence[str],
        attributes: Mapping[str, object] = MappingProxyType({}),
        output: str | None = None,
    ) -> str:
        """Adds a node; its output has its name, unless told otherwise."""
        output = name if output is None else output
        node = self._graph.node.add(op_type=op_type, name=name, input=inputs, output=[output])
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        return output

    def _scalar(self, name: str, value: float) -> str:
        if name not in self._constants:
            self._constant(name, np.float32(value))
        return name

    def _constant(self, name: str, array: npt.NDArray[np.floating] | np.floating) -> str:
        """Adds a float32 initializer, filled in place: appending a finished one would copy it."""
        self._constants.add(name)
        tensor = self._graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=array.shape)
        tensor.raw_data = np.ascontiguousarray(array, dtype="<f4").tobytes()
        return name

    def _weight(self, shape: tuple[int, ...], std: float) -> npt.NDArray[np.float32]:
        """Uniform weights of mean 0 and standard deviation `std`."""
        weight = self._rng.random(shape, dtype=np.float32)
        weight -= np.float32(0.5)
        weight *= np.float32(std * np.sqrt(12.0))
        return weight

    def _uniform(self, bounds: tuple[float, float], count: int) -> Floats:
        return self._rng.uniform(*bounds, count)


def _blind(weight: npt.NDArray[np.float32], mean: Floats) -> None:
    """Takes most of the mean input (of brightness, for the image itself) out of dense filters [O, I, kh, kw]."""
    direction = mean if mean.any() else np.ones_like(mean)
    direction = (direction / np.linalg.norm(direction)).astype(np.float32)
    seen = np.einsum("oikl,i->o", weight, direction) / np.float32(weight[0, 0].size)
    weight -= np.float32(_BLIND) * np.multiply.outer(seen, direction)[:, :, None, None]


def _per_group(weight: npt.NDArray[np.float32], signal: Floats, groups: int) -> Floats:
    """weight [O, I/groups] applied to one number per input channel; one number per output channel."""
    by_group = weight.astype(np.float64).reshape(groups, -1, weight.shape[1])
    return np.asarray(by_group @ signal.reshape(groups, -1, 1)).reshape(-1)
