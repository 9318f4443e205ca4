"""SqueezeNet 1.0 and 1.1 (Iandola et al., 2016), with torchvision's topology."""

from __future__ import annotations

import onnx

from .builder import CLASSES, Net, Signal

# Channels of the squeeze, and of each of the two expansions after it; None: a pooling.
_FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))


def squeezenet_1_0(net: Net) -> onnx.ModelProto:
    """SqueezeNet 1.0 at 224x224."""
    return _squeezenet(net, stem=(96, 7), pooled_before=(3, 7), gain=4.0)


def squeezenet_1_1(net: Net) -> onnx.ModelProto:
    """SqueezeNet 1.1 at 224x224."""
    return _squeezenet(net, stem=(64, 3), pooled_before=(2, 4), gain=5.0)


def _squeezenet(net: Net, stem: tuple[int, int], pooled_before: tuple[int, ...], gain: float) -> onnx.ModelProto:
    channels, kernel = stem
    x = net.relu(net.conv_bias(net.input(224), "stem", channels, kernel, stride=2, pad=0), "stem.relu")
    x = net.max_pool(x, "pool", 3, 2, ceil=True)
    for index, (squeezed, expanded) in enumerate(_FIRES):
        if index in pooled_before:
            x = net.max_pool(x, f"pool{index}", 3, 2, ceil=True)
        x = _fire(net, x, f"fire{index + 2}", squeezed, expanded)
    x = net.conv_bias(x, "classifier", CLASSES, shift=(-0.02, 0.02), gain=gain)
    x = net.global_average(net.relu(x, "classifier.relu"), "classifier.pool")
    net.flatten(x, "flatten", output="logits")
    net.value_output("logits", (1, CLASSES))
    return net.finish()


def _fire(net: Net, x: Signal, name: str, squeezed: int, expanded: int) -> Signal:
    x = net.relu(net.conv_bias(x, f"{name}.squeeze", squeezed), f"{name}.squeeze.relu")
    parts = [
        net.relu(net.conv_bias(x, f"{name}.expand{kernel}", expanded, kernel), f"{name}.expand{kernel}.relu")
        for kernel in (1, 3)
    ]
    return net.concat(parts, f"{name}.concat")
