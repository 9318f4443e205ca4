"""PIMFlow's toy network: pointwise, depthwise, pointwise, pool, linear; on a 3x16x16 input."""

from __future__ import annotations

import onnx

from .builder import Net


def toy(net: Net) -> onnx.ModelProto:
    """The toy network."""
    x = net.input(16)
    x = net.relu6(net.conv_bias(x, "conv1", 64), "clip1")
    x = net.relu6(net.conv_bias(x, "depthwise", 64, kernel=3, groups=64), "clip2")
    x = net.relu6(net.conv_bias(x, "conv2", 64), "clip3")
    x = net.flatten(net.average_pool(x, "pool", 16), "flatten")
    return net.classifier(x, "linear", gain=1.0, classes=10)
