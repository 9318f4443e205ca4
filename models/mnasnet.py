"""MnasNet-B1 (Tan et al., CVPR 2019) in three widths, with torchvision's topology."""

from __future__ import annotations

import onnx

from .blocks import conv_relu, image_head, inverted_residual, scaled
from .builder import Net

# Expansion, kernel, output channels, repeats, stride of the first.
_STAGES = ((3, 3, 24, 3, 2), (3, 5, 40, 3, 2), (6, 5, 80, 3, 2), (6, 3, 96, 2, 1), (6, 5, 192, 4, 2), (6, 3, 320, 1, 1))


def mnasnet(net: Net, width: float, gain: float) -> onnx.ModelProto:
    """MnasNet at 224x224; `width` is the paper's depth multiplier."""
    stem = scaled(32, width)
    x = conv_relu(net, net.input(224), "stem", stem, kernel=3, stride=2)
    x = net.relu(net.conv(x, "stem.depthwise", stem, kernel=3, groups=stem), "stem.depthwise.relu")
    x = net.conv(x, "stem.project", scaled(16, width), linear=True)
    block = 0
    for expansion, kernel, channels, repeats, first_stride in _STAGES:
        for repeat in range(repeats):
            block += 1
            stride = first_stride if repeat == 0 else 1
            wide, narrow = x.channels * expansion, scaled(channels, width)
            x = inverted_residual(net, x, f"block{block}", wide, narrow, kernel, stride, Net.relu)
    return net.classifier(image_head(net, conv_relu(net, x, "head", 1280)), "classifier", gain=gain)
