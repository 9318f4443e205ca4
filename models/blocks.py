"""Blocks that several image networks share, each with torchvision's topology."""

from __future__ import annotations

from typing import NamedTuple

from .builder import Activation, Net, Signal, Size


class Excite(NamedTuple):
    """Squeeze-and-excitation within a block: the squeezed channels, and the functions after the two convolutions."""

    squeezed: int
    inner: Activation
    outer: Activation


def conv_relu(
    net: Net, x: Signal, name: str, channels: int, kernel: Size = 1, stride: int = 1, pad: int | None = None
) -> Signal:
    """Convolution, batch norm and Relu."""
    return net.relu(net.conv(x, name, channels, kernel, stride, pad=pad), f"{name}.relu")


def inverted_residual(
    net: Net,
    x: Signal,
    name: str,
    wide: int,
    channels: int,
    kernel: int,
    stride: int,
    act: Activation,
    excite: Excite | None = None,
) -> Signal:
    """Expansion to `wide` channels (unless x has that many), depthwise, projection (Sandler et al., CVPR 2018)."""
    y = x
    if wide != x.channels:
        y = act(net, net.conv(y, f"{name}.expand", wide), f"{name}.expand.{act.__name__}")
    y = net.conv(y, f"{name}.depthwise", wide, kernel, stride, groups=wide)
    y = act(net, y, f"{name}.depthwise.{act.__name__}")
    if excite is not None:
        y = net.squeeze_excite(y, f"{name}.se", *excite)
    y = net.conv(y, f"{name}.project", channels, linear=True)
    return net.add(x, y, f"{name}.add") if stride == 1 and channels == x.channels else y


def bottleneck(
    net: Net,
    x: Signal,
    name: str,
    width: int,
    channels: int,
    stride: int,
    groups: int = 1,
    excite: Excite | None = None,
) -> Signal:
    """1x1, 3x3 with the stride, 1x1, and the residual sum (He et al., CVPR 2016; groups: Xie et al., CVPR 2017)."""
    y = conv_relu(net, x, f"{name}.conv1", width)
    y = net.relu(net.conv(y, f"{name}.conv2", width, 3, stride, groups), f"{name}.conv2.relu")
    if excite is not None:
        y = net.squeeze_excite(y, f"{name}.se", *excite)
    return _residual(net, x, net.conv(y, f"{name}.conv3", channels, linear=True), name, stride)


def basic_block(net: Net, x: Signal, name: str, channels: int, stride: int) -> Signal:
    """Two 3x3 convolutions and the residual sum (He et al., CVPR 2016)."""
    y = conv_relu(net, x, f"{name}.conv1", channels, 3, stride)
    return _residual(net, x, net.conv(y, f"{name}.conv2", channels, 3, linear=True), name, stride)


def image_head(net: Net, x: Signal) -> Signal:
    """Global average pooling, flattened."""
    return net.flatten(net.global_average(x, "pool"), "flatten")


def scaled(channels: float, factor: float = 1.0, divisor: int = 8) -> int:
    """Channels times factor, rounded to a multiple of 8 that is at least 90 % of it (MobileNet's rounding rule)."""
    wanted = channels * factor
    rounded = max(divisor, int(wanted + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * wanted else rounded


def _residual(net: Net, x: Signal, y: Signal, name: str, stride: int) -> Signal:
    """The sum of a block and its shortcut, and a Relu."""
    if stride != 1 or x.channels != y.channels:
        x = net.conv(x, f"{name}.downsample", y.channels, stride=stride, linear=True)
    return net.relu(net.add(x, y, f"{name}.add"), f"{name}.relu")
