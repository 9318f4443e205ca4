"""ConvNeXt-T (Liu et al., CVPR 2022), with torchvision's topology."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx

from .builder import Net, Signal
from .transformer import feed_forward, layer_norm

_STAGES = ((96, 3), (192, 3), (384, 9), (768, 3))
_EPSILON = 1e-6
# Scale of a block's branch, per channel (as in a trained network; an untrained one begins at 1e-6).
_SCALE = (0.3, 0.7)
_SHIFT = (-0.05, 0.05)


def convnext_tiny(net: Net) -> onnx.ModelProto:
    """ConvNeXt-T at 224x224."""
    x = net.conv_bias(net.input(224), "stem", _STAGES[0][0], 4, stride=4, pad=0, shift=_SHIFT)
    x = _norm(net, x, "stem.norm")
    for stage, (channels, depth) in enumerate(_STAGES, start=1):
        if stage > 1:
            x = _norm(net, x, f"stage{stage}.norm")
            x = net.conv_bias(x, f"stage{stage}.halved", channels, 2, stride=2, pad=0, shift=_SHIFT)
        for block in range(depth):
            x = _block(net, x, f"stage{stage}.{block}")
    x = _norm(net, net.global_average(x, "pool"), "norm")
    return net.classifier(net.flatten(x, "flatten"), "classifier", gain=1.0)


def _block(net: Net, x: Signal, name: str) -> Signal:
    """Depthwise 7x7, then layer norm and two linear layers over the channels, scaled and added."""
    y = net.conv_bias(x, f"{name}.depthwise", x.channels, 7, groups=x.channels, shift=_SHIFT)
    last = net.node("Transpose", f"{name}.last", y.name, perm=[0, 2, 3, 1])
    last = layer_norm(net, last, f"{name}.norm", x.channels, _EPSILON)
    last = feed_forward(net, last, name, x.channels, 4 * x.channels)
    first = net.node("Transpose", f"{name}.first", last, perm=[0, 3, 1, 2])
    factors = net.uniform(_SCALE, x.channels)
    weight = net.constant(f"{name}.scale.weight", factors[:, None, None])
    scaled = net.node("Mul", f"{name}.scale", first, weight)
    return replace(
        x, name=net.node("Add", f"{name}.add", scaled, x.name), variance=x.variance + factors**2, before=None
    )


def _norm(net: Net, x: Signal, name: str) -> Signal:
    """Layer norm over the channels of every pixel."""
    last = net.node("Transpose", f"{name}.last", x.name, perm=[0, 2, 3, 1])
    normed = layer_norm(net, last, name, x.channels, _EPSILON)
    first = net.node("Transpose", f"{name}.first", normed, perm=[0, 3, 1, 2])
    return replace(x, name=first, mean=np.zeros(x.channels), variance=np.ones(x.channels), before=None)
