"""ResNet (He et al., CVPR 2016; the stride in the 3x3) and ResNeXt (Xie et al., CVPR 2017), torchvision's topology."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from .blocks import basic_block, bottleneck, conv_relu, image_head
from .builder import Net, Signal

Block = Callable[[Net, Signal, str, int, int], Signal]

_EXPANSION = 4


def resnet_18(net: Net) -> onnx.ModelProto:
    """ResNet-18 at 224x224."""
    return _resnet(net, basic_block, (2, 2, 2, 2), gain=0.75)


def resnet_34(net: Net) -> onnx.ModelProto:
    """ResNet-34 at 224x224."""
    return _resnet(net, basic_block, (3, 4, 6, 3), gain=0.4)


def resnet_50(net: Net) -> onnx.ModelProto:
    """ResNet-50 at 224x224."""
    return _resnet(net, _bottleneck, (3, 4, 6, 3), gain=0.75)


def resnext_50(net: Net) -> onnx.ModelProto:
    """ResNeXt-50 32x4d at 224x224."""
    return _resnet(net, _grouped_bottleneck, (3, 4, 6, 3), gain=0.75)


def _resnet(net: Net, block: Block, repeats: tuple[int, ...], gain: float) -> onnx.ModelProto:
    x = conv_relu(net, net.input(224), "stem", 64, kernel=7, stride=2)
    x = net.max_pool(x, "stem.pool", kernel=3, stride=2, pad=1)
    for stage, count in enumerate(repeats, start=1):
        for repeat in range(count):
            stride = 2 if stage > 1 and repeat == 0 else 1
            x = block(net, x, f"layer{stage}.{repeat}", 32 << stage, stride)
    return net.classifier(image_head(net, x), "fc", gain=gain)


def _bottleneck(net: Net, x: Signal, name: str, channels: int, stride: int) -> Signal:
    return bottleneck(net, x, name, channels, channels * _EXPANSION, stride)


def _grouped_bottleneck(net: Net, x: Signal, name: str, channels: int, stride: int) -> Signal:
    """32 groups of 4 channels in the first stage, twice as many in each that follows."""
    return bottleneck(net, x, name, 2 * channels, channels * _EXPANSION, stride, groups=32)
