"""EfficientNet B0 and B6 (Tan and Le, ICML 2019), with torchvision's topology."""

from __future__ import annotations

import math

import onnx

from .builder import Net, Signal

# Expansion, kernel, stride of the first, output channels, repeats: table 1 of the paper (B0).
_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


def efficientnet_b0() -> onnx.ModelProto:
    """Builds EfficientNet-B0 at 224x224."""
    net = Net("efficientnet-b0", seed=3)
    return _efficientnet(net, size=224, width=1.0, depth=1.0, gain=0.35)


def efficientnet_b6() -> onnx.ModelProto:
    """Builds EfficientNet-B6 at 528x528."""
    net = Net("efficientnet-b6", seed=4, epsilon=1e-3)
    return _efficientnet(net, size=528, width=1.8, depth=2.6, gain=0.25)


def _efficientnet(net: Net, size: int, width: float, depth: float, gain: float) -> onnx.ModelProto:
    x = net.conv(net.input(size), "stem", _scaled(32, width), kernel=3, stride=2)
    x = net.silu(x, "stem.silu")
    block = 0
    for expansion, kernel, first_stride, base_channels, base_repeats in _STAGES:
        for repeat in range(math.ceil(base_repeats * depth)):
            block += 1
            stride = first_stride if repeat == 0 else 1
            x = _mbconv(net, x, f"block{block}", expansion, kernel, stride, _scaled(base_channels, width))
    x = net.silu(net.conv(x, "head", 4 * x.channels), "head.silu")
    x = net.flatten(net.global_average(x, "pool"), "flatten")
    return net.classifier(x, "classifier", gain=gain)


def _mbconv(net: Net, x: Signal, name: str, expansion: int, kernel: int, stride: int, channels: int) -> Signal:
    y = x
    wide = _scaled(x.channels, expansion)
    if wide != x.channels:
        y = net.silu(net.conv(y, f"{name}.expand", wide), f"{name}.expand.silu")
    y = net.conv(y, f"{name}.depthwise", wide, kernel=kernel, stride=stride, groups=wide)
    y = net.silu(y, f"{name}.depthwise.silu")
    y = net.squeeze_excite(y, f"{name}.se", max(1, x.channels // 4))
    y = net.conv(y, f"{name}.project", channels, linear=True)
    if stride == 1 and channels == x.channels:
        y = net.add(x, y, f"{name}.add")
    return y


def _scaled(channels: int, factor: float, divisor: int = 8) -> int:
    """Channels times factor, rounded to a multiple of 8 that is at least 90 % of it (MobileNet's rounding rule)."""
    scaled = channels * factor
    rounded = max(divisor, int(scaled + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * scaled else rounded
