"""MobileNetV2 (Sandler et al., CVPR 2018), width 1.0, with torchvision's topology."""

from __future__ import annotations

import onnx

from .builder import Net, Signal

# Expansion, output channels, repeats, stride of the first: table 2 of the paper.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def mobilenet_v2() -> onnx.ModelProto:
    """Builds MobileNetV2 at 224x224."""
    net = Net("mobilenet-v2", seed=2)
    x = net.relu6(net.conv(net.input(224), "stem", 32, kernel=3, stride=2), "stem.clip")
    block = 0
    for expansion, channels, repeats, first_stride in _STAGES:
        for repeat in range(repeats):
            block += 1
            stride = first_stride if repeat == 0 else 1
            x = _inverted_residual(net, x, f"block{block}", expansion, channels, stride)
    x = net.relu6(net.conv(x, "head", 1280), "head.clip")
    x = net.flatten(net.global_average(x, "pool"), "flatten")
    return net.classifier(x, "classifier", gain=1.0)


def _inverted_residual(net: Net, x: Signal, name: str, expansion: int, channels: int, stride: int) -> Signal:
    y = x
    wide = x.channels * expansion
    if expansion != 1:
        y = net.relu6(net.conv(y, f"{name}.expand", wide), f"{name}.expand.clip")
    y = net.conv(y, f"{name}.depthwise", wide, kernel=3, stride=stride, groups=wide)
    y = net.relu6(y, f"{name}.depthwise.clip")
    y = net.conv(y, f"{name}.project", channels, linear=True)
    if stride == 1 and channels == x.channels:
        y = net.add(x, y, f"{name}.add")
    return y
