"""ResNet-50 v1.5 (He et al., CVPR 2016; the stride in the 3x3), with torchvision's topology."""

from __future__ import annotations

import onnx

from .builder import Net, Signal

# Bottleneck channels, repeats, stride of the first.
_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
_EXPANSION = 4


def resnet_50() -> onnx.ModelProto:
    """Builds ResNet-50 at 224x224."""
    net = Net("resnet-50", seed=6)
    x = net.relu(net.conv(net.input(224), "stem", 64, kernel=7, stride=2), "stem.relu")
    x = net.max_pool(x, "stem.pool", kernel=3, stride=2, pad=1)
    for stage, (channels, repeats, first_stride) in enumerate(_STAGES, start=1):
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            x = _bottleneck(net, x, f"layer{stage}.{repeat}", channels, stride)
    x = net.flatten(net.global_average(x, "pool"), "flatten")
    return net.classifier(x, "fc", gain=0.75)


def _bottleneck(net: Net, x: Signal, name: str, channels: int, stride: int) -> Signal:
    out = channels * _EXPANSION
    y = net.relu(net.conv(x, f"{name}.conv1", channels), f"{name}.relu1")
    y = net.relu(net.conv(y, f"{name}.conv2", channels, kernel=3, stride=stride), f"{name}.relu2")
    y = net.conv(y, f"{name}.conv3", out, linear=True)
    if stride != 1 or x.channels != out:
        x = net.conv(x, f"{name}.downsample", out, stride=stride, linear=True)
    return net.relu(net.add(x, y, f"{name}.add"), f"{name}.relu3")
