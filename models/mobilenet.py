"""MobileNetV2 (Sandler et al., CVPR 2018) and MobileNetV3 (Howard et al., ICCV 2019), with torchvision's topology."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import onnx

from .blocks import Excite, image_head, inverted_residual, scaled
from .builder import Activation, Net, Signal

# Expansion, output channels, repeats, stride of the first: table 2 of the MobileNetV2 paper.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def mobilenet_v2(net: Net) -> onnx.ModelProto:
    """MobileNetV2 at 224x224, width 1.0."""
    x = net.relu6(net.conv(net.input(224), "stem", 32, kernel=3, stride=2), "stem.relu6")
    block = 0
    for expansion, channels, repeats, first_stride in _STAGES:
        for repeat in range(repeats):
            block += 1
            stride = first_stride if repeat == 0 else 1
            x = inverted_residual(net, x, f"block{block}", x.channels * expansion, channels, 3, stride, Net.relu6)
    x = net.relu6(net.conv(x, "head", 1280), "head.relu6")
    return net.classifier(image_head(net, x), "classifier", gain=1.0)


class Row(NamedTuple):
    """A row of the tables in the MobileNetV3 paper."""

    kernel: int
    wide: int
    channels: int
    excited: bool
    act: Activation
    stride: int


_R, _H = Net.relu, Net.hard_swish
# Tables 1 and 2 of the MobileNetV3 paper.
LARGE = (
    Row(3, 16, 16, False, _R, 1),
    Row(3, 64, 24, False, _R, 2),
    Row(3, 72, 24, False, _R, 1),
    Row(5, 72, 40, True, _R, 2),
    *[Row(5, 120, 40, True, _R, 1)] * 2,
    Row(3, 240, 80, False, _H, 2),
    Row(3, 200, 80, False, _H, 1),
    *[Row(3, 184, 80, False, _H, 1)] * 2,
    Row(3, 480, 112, True, _H, 1),
    Row(3, 672, 112, True, _H, 1),
    Row(5, 672, 160, True, _H, 2),
    *[Row(5, 960, 160, True, _H, 1)] * 2,
)
_SMALL = (
    Row(3, 16, 16, True, _R, 2),
    Row(3, 72, 24, False, _R, 2),
    Row(3, 88, 24, False, _R, 1),
    Row(5, 96, 40, True, _H, 2),
    *[Row(5, 240, 40, True, _H, 1)] * 2,
    Row(5, 120, 48, True, _H, 1),
    Row(5, 144, 48, True, _H, 1),
    Row(5, 288, 96, True, _H, 2),
    *[Row(5, 576, 96, True, _H, 1)] * 2,
)


def mobilenet_v3_large(net: Net) -> onnx.ModelProto:
    """MobileNetV3-Large at 224x224."""
    return _mobilenet_v3(net, LARGE, hidden=1280, gain=0.4)


def mobilenet_v3_small(net: Net) -> onnx.ModelProto:
    """MobileNetV3-Small at 224x224."""
    return _mobilenet_v3(net, _SMALL, hidden=1024, gain=0.4)


def mobilenet_v3_stem(net: Net, size: int) -> Signal:
    """Input and first convolution of MobileNetV3."""
    net.epsilon = 1e-3
    return net.hard_swish(net.conv(net.input(size), "stem", 16, kernel=3, stride=2), "stem.hard_swish")


def mobilenet_v3_blocks(net: Net, x: Signal, rows: Iterable[Row], first: int = 1) -> Signal:
    """Blocks of MobileNetV3, numbered from `first`."""
    for block, row in enumerate(rows, start=first):
        excite = Excite(scaled(row.wide // 4), Net.relu, Net.hard_sigmoid) if row.excited else None
        x = inverted_residual(net, x, f"block{block}", row.wide, row.channels, row.kernel, row.stride, row.act, excite)
    return x


def _mobilenet_v3(net: Net, rows: tuple[Row, ...], hidden: int, gain: float) -> onnx.ModelProto:
    x = mobilenet_v3_blocks(net, mobilenet_v3_stem(net, 224), rows)
    x = net.hard_swish(net.conv(x, "head", 6 * x.channels), "head.hard_swish")
    x = net.hard_swish(net.linear(image_head(net, x), "hidden", hidden), "hidden.hard_swish")
    return net.classifier(x, "classifier", gain=gain)
