"""DenseNet-121 (Huang et al., CVPR 2017), with torchvision's topology."""

from __future__ import annotations

import onnx

from .blocks import conv_relu, image_head
from .builder import Net, Signal

_GROWTH = 32
_LAYERS = (6, 12, 24, 16)


def densenet_121(net: Net) -> onnx.ModelProto:
    """DenseNet-121 at 224x224."""
    x = conv_relu(net, net.input(224), "stem", 2 * _GROWTH, kernel=7, stride=2)
    x = net.max_pool(x, "stem.pool", kernel=3, stride=2, pad=1)
    for block, layers in enumerate(_LAYERS, start=1):
        if block > 1:
            x = _before(net, x, f"transition{block - 1}", x.channels // 2)
            x = net.average_pool(x, f"transition{block - 1}.pool", 2)
        features = [x]
        for layer in range(1, layers + 1):
            name = f"block{block}.layer{layer}"
            x = net.concat(features, f"{name}.concat") if layer > 1 else x
            y = _before(net, _before(net, x, f"{name}.conv1", 4 * _GROWTH), f"{name}.conv2", _GROWTH, kernel=3)
            features.append(y)
        x = net.concat(features, f"block{block}.concat")
    x = net.relu(net.norm(x, "norm"), "norm.relu")
    return net.classifier(image_head(net, x), "classifier", gain=1.0)


def _before(net: Net, x: Signal, name: str, channels: int, kernel: int = 1) -> Signal:
    """Batch norm and Relu before a convolution."""
    x = net.relu(net.norm(x, f"{name}.norm"), f"{name}.relu")
    return net.conv_plain(x, name, channels, kernel)
