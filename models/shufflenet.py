"""ShuffleNetV2 (Ma et al., ECCV 2018), width 1.0, with torchvision's topology."""

from __future__ import annotations

import onnx

from .blocks import conv_relu, image_head
from .builder import Net, Signal

# Output channels and repeats.
_STAGES = ((116, 4), (232, 8), (464, 4))


def shufflenet_v2(net: Net) -> onnx.ModelProto:
    """ShuffleNetV2 x1.0 at 224x224."""
    x = conv_relu(net, net.input(224), "stem", 24, kernel=3, stride=2)
    x = net.max_pool(x, "stem.pool", kernel=3, stride=2, pad=1)
    for stage, (channels, repeats) in enumerate(_STAGES, start=2):
        x = _halved(net, x, f"stage{stage}.0", channels // 2)
        for repeat in range(1, repeats):
            x = _unit(net, x, f"stage{stage}.{repeat}")
    return net.classifier(image_head(net, conv_relu(net, x, "head", 1024)), "fc", gain=1.0)


def _unit(net: Net, x: Signal, name: str) -> Signal:
    """A unit in which half of the channels bypass the convolutions."""
    passed, y = net.split(x, f"{name}.split")
    y = _separable(net, conv_relu(net, y, f"{name}.conv1", y.channels), f"{name}.branch", y.channels, stride=1)
    return net.shuffle(net.concat([passed, y], f"{name}.concat"), f"{name}.shuffle", groups=2)


def _halved(net: Net, x: Signal, name: str, width: int) -> Signal:
    """A unit whose two branches halve height and width."""
    side = _separable(net, x, f"{name}.side", width, stride=2)
    y = _separable(net, conv_relu(net, x, f"{name}.conv1", width), f"{name}.branch", width, stride=2)
    return net.shuffle(net.concat([side, y], f"{name}.concat"), f"{name}.shuffle", groups=2)


def _separable(net: Net, x: Signal, name: str, channels: int, stride: int) -> Signal:
    x = net.conv(x, f"{name}.depthwise", x.channels, 3, stride, groups=x.channels, linear=True)
    return conv_relu(net, x, f"{name}.pointwise", channels)
