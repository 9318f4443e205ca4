"""MnasNet-B1 (Tan et al., CVPR 2019), depth multiplier 1.0, with torchvision's topology."""

from __future__ import annotations

import onnx

from .builder import Net, Signal

# Expansion, kernel, output channels, repeats, stride of the first.
_STAGES = ((3, 3, 24, 3, 2), (3, 5, 40, 3, 2), (6, 5, 80, 3, 2), (6, 3, 96, 2, 1), (6, 5, 192, 4, 2), (6, 3, 320, 1, 1))


def mnasnet_1_0() -> onnx.ModelProto:
    """Builds MnasNet 1.0 at 224x224."""
    net = Net("mnasnet-1.0", seed=5)
    x = net.relu(net.conv(net.input(224), "stem", 32, kernel=3, stride=2), "stem.relu")
    x = net.relu(net.conv(x, "stem.depthwise", 32, kernel=3, groups=32), "stem.depthwise.relu")
    x = net.conv(x, "stem.project", 16, linear=True)
    block = 0
    for expansion, kernel, channels, repeats, first_stride in _STAGES:
        for repeat in range(repeats):
            block += 1
            stride = first_stride if repeat == 0 else 1
            x = _inverted_residual(net, x, f"block{block}", expansion, kernel, channels, stride)
    x = net.relu(net.conv(x, "head", 1280), "head.relu")
    x = net.flatten(net.global_average(x, "pool"), "flatten")
    return net.classifier(x, "classifier", gain=1.0)


def _inverted_residual(
    net: Net, x: Signal, name: str, expansion: int, kernel: int, channels: int, stride: int
) -> Signal:
    wide = x.channels * expansion
    y = net.relu(net.conv(x, f"{name}.expand", wide), f"{name}.expand.relu")
    y = net.conv(y, f"{name}.depthwise", wide, kernel=kernel, stride=stride, groups=wide)
    y = net.relu(y, f"{name}.depthwise.relu")
    y = net.conv(y, f"{name}.project", channels, linear=True)
    if stride == 1 and channels == x.channels:
        y = net.add(x, y, f"{name}.add")
    return y
