"""GoogLeNet (Szegedy et al., CVPR 2015, with batch norms) and Inception v3 (CVPR 2016), with torchvision's topology.

In inference form: without auxiliary classifiers.
"""

from __future__ import annotations

import onnx

from .blocks import conv_relu, image_head
from .builder import Net, Signal, Size

# Table 1 of the GoogLeNet paper: channels of the 1x1; of the 1x1 before the first 3x3, and of that 3x3; the same for
# the second (5x5 in the paper, 3x3 in torchvision); and of the 1x1 after the pooling. None: a pooling between blocks.
_GOOGLENET = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "pool3": None,
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "pool4": None,
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}

# A branch: channels and kernel of each convolution; if a third number, the stride, is given, there is no padding.
Branch = tuple[tuple[int, Size] | tuple[int, Size, int], ...]


def googlenet(net: Net) -> onnx.ModelProto:
    """GoogLeNet at 224x224."""
    net.epsilon = 1e-3
    x = conv_relu(net, net.input(224), "conv1", 64, 7, 2)
    x = net.max_pool(x, "pool1", 3, 2, ceil=True)
    x = conv_relu(net, conv_relu(net, x, "conv2", 64), "conv3", 192, 3)
    x = net.max_pool(x, "pool2", 3, 2, ceil=True)
    for name, widths in _GOOGLENET.items():
        if widths is None:
            x = net.max_pool(x, name, 3 if name == "pool3" else 2, 2, ceil=True)
            continue
        one, before_three, three, before_five, five, pooled = widths
        parts = [
            _branch(net, x, f"{name}.branch1", ((one, 1),)),
            _branch(net, x, f"{name}.branch2", ((before_three, 1), (three, 3))),
            _branch(net, x, f"{name}.branch3", ((before_five, 1), (five, 3))),
            _branch(net, net.max_pool(x, f"{name}.pool", 3, 1, pad=1), f"{name}.branch4", ((pooled, 1),)),
        ]
        x = net.concat(parts, name)
    return net.classifier(image_head(net, x), "fc", gain=0.23)


def inception_v3(net: Net) -> onnx.ModelProto:
    """Inception v3 at 299x299."""
    net.epsilon = 1e-3
    x = conv_relu(net, net.input(299), "conv1a", 32, 3, 2, pad=0)
    x = conv_relu(net, conv_relu(net, x, "conv2a", 32, 3, pad=0), "conv2b", 64, 3)
    x = net.max_pool(x, "pool1", 3, 2)
    x = conv_relu(net, conv_relu(net, x, "conv3b", 80), "conv4a", 192, 3, pad=0)
    x = net.max_pool(x, "pool2", 3, 2)
    for name, pooled in (("5b", 32), ("5c", 64), ("5d", 64)):
        x = _mixed(net, x, name, (((64, 1),), ((48, 1), (64, 5)), ((64, 1), (96, 3), (96, 3))), pooled)
    x = _reduced(net, x, "6a", (((384, 3, 2),), ((64, 1), (96, 3), (96, 3, 2))))
    for name, width in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        once = ((width, 1), (width, (1, 7)), (192, (7, 1)))
        twice = ((width, 1), (width, (7, 1)), (width, (1, 7)), (width, (7, 1)), (192, (1, 7)))
        x = _mixed(net, x, name, (((192, 1),), once, twice), 192)
    through = ((192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2))
    x = _reduced(net, x, "7a", (((192, 1), (320, 3, 2)), through))
    for name in ("7b", "7c"):
        x = _widened(net, x, name)
    return net.classifier(image_head(net, x), "fc", gain=0.14)


def _branch(net: Net, x: Signal, name: str, convolutions: Branch) -> Signal:
    for index, (channels, kernel, *strides) in enumerate(convolutions, start=1):
        stride, pad = (strides[0], 0) if strides else (1, None)
        x = conv_relu(net, x, f"{name}.{index}", channels, kernel, stride, pad)
    return x


def _mixed(net: Net, x: Signal, name: str, branches: tuple[Branch, ...], pooled: int) -> Signal:
    """Branches, and one after an average pooling, concatenated."""
    parts = [_branch(net, x, f"{name}.branch{index}", branch) for index, branch in enumerate(branches, start=1)]
    average = net.average_pool(x, f"{name}.pool", 3, 1, pad=1)
    return net.concat([*parts, _branch(net, average, f"{name}.pooled", ((pooled, 1),))], name)


def _reduced(net: Net, x: Signal, name: str, branches: tuple[Branch, ...]) -> Signal:
    """Branches that end with a stride of 2, and a max pooling, concatenated."""
    parts = [_branch(net, x, f"{name}.branch{index}", branch) for index, branch in enumerate(branches, start=1)]
    return net.concat([*parts, net.max_pool(x, f"{name}.pool", 3, 2)], name)


def _widened(net: Net, x: Signal, name: str) -> Signal:
    """Two branches that end in a 1x3 next to a 3x1, one 1x1, and the pooling, concatenated (figure 7 of the paper)."""
    starts: tuple[Branch, ...] = (((384, 1),), ((448, 1), (384, 3)))
    parts = [_branch(net, x, f"{name}.branch1", ((320, 1),))]
    for index, start in enumerate(starts, start=2):
        y = _branch(net, x, f"{name}.branch{index}", start)
        parts += [
            _branch(net, y, f"{name}.branch{index}.{kernel[0]}x{kernel[1]}", ((384, kernel),))
            for kernel in ((1, 3), (3, 1))
        ]
    average = net.average_pool(x, f"{name}.pool", 3, 1, pad=1)
    return net.concat([*parts, _branch(net, average, f"{name}.pooled", ((192, 1),))], name)
