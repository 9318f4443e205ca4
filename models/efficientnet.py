"""EfficientNet B0 and B6 (Tan and Le, ICML 2019), with torchvision's topology."""

from __future__ import annotations

import math

import onnx

from .blocks import Excite, image_head, inverted_residual, scaled
from .builder import Net

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


def efficientnet_b0(net: Net) -> onnx.ModelProto:
    """EfficientNet-B0 at 224x224."""
    return _efficientnet(net, size=224, width=1.0, depth=1.0, gain=0.35)


def efficientnet_b6(net: Net) -> onnx.ModelProto:
    """EfficientNet-B6 at 528x528."""
    net.epsilon = 1e-3
    return _efficientnet(net, size=528, width=1.8, depth=2.6, gain=0.25)


def _efficientnet(net: Net, size: int, width: float, depth: float, gain: float) -> onnx.ModelProto:
    x = net.conv(net.input(size), "stem", scaled(32, width), kernel=3, stride=2)
    x = net.silu(x, "stem.silu")
    block = 0
    for expansion, kernel, first_stride, base_channels, base_repeats in _STAGES:
        for repeat in range(math.ceil(base_repeats * depth)):
            block += 1
            stride = first_stride if repeat == 0 else 1
            excite = Excite(max(1, x.channels // 4), Net.silu, Net.sigmoid)
            wide, channels = scaled(x.channels, expansion), scaled(base_channels, width)
            x = inverted_residual(net, x, f"block{block}", wide, channels, kernel, stride, Net.silu, excite)
    x = net.silu(net.conv(x, "head", 4 * x.channels), "head.silu")
    return net.classifier(image_head(net, x), "classifier", gain=gain)
