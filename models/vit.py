"""ViT-B/16 (Dosovitskiy et al., ICLR 2021), with torchvision's topology."""

from __future__ import annotations

import numpy as np
import onnx

from .builder import CLASSES, Net
from .transformer import Tokens, layer_norm, linear, pre_norm_layer

_SIZE = 224
_PATCH = 16
_FEATURES = 768
_HEADS = 12
_LAYERS = 12
_EPSILON = 1e-6


def vit_b_16(net: Net) -> onnx.ModelProto:
    """ViT-B/16 at 224x224."""
    patches = net.conv_bias(net.input(_SIZE), "patches", _FEATURES, _PATCH, stride=_PATCH, pad=0, shift=(-0.05, 0.05))
    count = patches.height * patches.width
    flat = net.node("Reshape", "flat", patches.name, net.integers("flat.shape", 1, _FEATURES, count))
    rows = net.node("Transpose", "rows", flat, perm=[0, 2, 1])
    both = net.node("Concat", "tokens.joined", net.weight("class.weight", (1, 1, _FEATURES), 0.2), rows, axis=1)
    places = net.weight("position.weight", (1, count + 1, _FEATURES), 0.2)
    x = Tokens(net.node("Add", "embedding", both, places), count + 1, _FEATURES)
    for index in range(_LAYERS):
        x = pre_norm_layer(net, x, f"layer{index}", _HEADS, _EPSILON)
    normed = layer_norm(net, x.name, "norm", _FEATURES, _EPSILON)
    first = net.node("Gather", "class", normed, net.constant("first", np.int64(0)), axis=1)
    net.node("Identity", "logits", linear(net, first, "head", _FEATURES, CLASSES))
    net.value_output("logits", (1, CLASSES))
    return net.finish()
