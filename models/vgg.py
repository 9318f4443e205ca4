"""VGG-16 without batch norms (Simonyan and Zisserman, ICLR 2015, configuration D)."""

from __future__ import annotations

import onnx

from .builder import Net

# Channels and number of the 3x3 convolutions before each max pooling.
_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def vgg_16(net: Net) -> onnx.ModelProto:
    """VGG-16 at 224x224."""
    x = net.input(224)
    for stage, (channels, repeats) in enumerate(_STAGES, start=1):
        for repeat in range(1, repeats + 1):
            x = net.conv_bias(x, f"conv{stage}_{repeat}", channels, kernel=3)
            x = net.relu(x, f"relu{stage}_{repeat}")
        x = net.max_pool(x, f"pool{stage}", kernel=2, stride=2)
    x = net.flatten(x, "flatten")
    x = net.relu(net.linear(x, "fc6", 4096), "relu6")
    x = net.relu(net.linear(x, "fc7", 4096), "relu7")
    return net.classifier(x, "fc8", gain=0.8)
