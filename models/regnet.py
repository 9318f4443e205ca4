"""RegNetX and RegNetY of 400 MFLOPS (Radosavovic et al., CVPR 2020), with torchvision's topology."""

from __future__ import annotations

import onnx

from .blocks import Excite, bottleneck, conv_relu, image_head
from .builder import Net

# Width and depth of each stage, from the paper's rule for w_a = 24.48, w_0 = 24, w_m = 2.54 and d = 22, and for w_a =
# 27.89, w_0 = 48, w_m = 2.09 and d = 16.
_X = ((32, 1), (64, 2), (160, 7), (400, 12))
_Y = ((48, 1), (104, 3), (208, 6), (440, 6))


def regnet_x_400mf(net: Net) -> onnx.ModelProto:
    """RegNetX-400MF at 224x224."""
    return _regnet(net, _X, group_width=16, excited=False, gain=0.5)


def regnet_y_400mf(net: Net) -> onnx.ModelProto:
    """RegNetY-400MF at 224x224: with squeeze-and-excitation."""
    return _regnet(net, _Y, group_width=8, excited=True, gain=0.3)


def _regnet(
    net: Net, stages: tuple[tuple[int, int], ...], group_width: int, excited: bool, gain: float
) -> onnx.ModelProto:
    x = conv_relu(net, net.input(224), "stem", 32, kernel=3, stride=2)
    for stage, (width, depth) in enumerate(stages, start=1):
        for index in range(depth):
            stride = 2 if index == 0 else 1
            excite = Excite(round(x.channels / 4), Net.relu, Net.sigmoid) if excited else None
            x = bottleneck(net, x, f"stage{stage}.{index}", width, width, stride, width // group_width, excite)
    return net.classifier(image_head(net, x), "fc", gain=gain)
