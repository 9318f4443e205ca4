"""SSDlite320 with MobileNetV3-Large (Howard et al., ICCV 2019), a detector, with torchvision's topology.

Its outputs are all boxes and their scores, before non-maximum suppression.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx

from .builder import Net, Signal
from .mobilenet import LARGE, mobilenet_v3_blocks, mobilenet_v3_stem
from .writer import Floats

_SIZE = 320
_CLASSES = 91
_RATIOS = (2, 3)
_SCALES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.0)
_BOXES = 2 + 2 * len(_RATIOS)
# Channels of the maps that are added after the backbone.
_EXTRA = (512, 256, 256, 128)
# Scales of the predicted code of a box: offsets of its centre, logarithms of its size.
_CODE = (10.0, 5.0)


def ssdlite_320(net: Net) -> onnx.ModelProto:
    """SSDlite320: `boxes` [1, 3234, 4] in pixels, `scores` [1, 3234, 91]."""
    maps = list(_maps(net))
    boxes = _joined(net, [_head(net, x, f"boxes{index}", 4) for index, x in enumerate(maps)], "boxes", 4)
    scores = _joined(
        net, [_head(net, x, f"scores{index}", _CLASSES) for index, x in enumerate(maps)], "scores", _CLASSES
    )
    anchors = np.concatenate([_anchors(x.height, *_SCALES[index : index + 2]) for index, x in enumerate(maps)])
    _decode(net, boxes, anchors)
    net.node("Softmax", "scores", scores, axis=-1)
    net.value_output("boxes", (1, len(anchors), 4))
    net.value_output("scores", (1, len(anchors), _CLASSES))
    return net.finish()


def _maps(net: Net) -> Iterator[Signal]:
    """Feature maps at 20x20 (of the expansion in block 13), 10x10, 5x5, 3x3, 2x2 and 1x1."""
    x = mobilenet_v3_blocks(net, mobilenet_v3_stem(net, _SIZE), LARGE[:12])
    # The last three blocks are half as wide as the classifier's.
    tail = [
        row._replace(wide=row.wide if index == 0 else row.wide // 2, channels=row.channels // 2)
        for index, row in enumerate(LARGE[12:])
    ]
    first = tail[0]
    x = net.hard_swish(net.conv(x, "block13.expand", first.wide), "block13.expand.hard_swish")
    yield x
    x = mobilenet_v3_blocks(net, x, tail, first=13)
    x = net.hard_swish(net.conv(x, "head", 6 * x.channels), "head.hard_swish")
    yield x
    for index, channels in enumerate(_EXTRA):
        name = f"extra{index}"
        x = net.relu6(net.conv(x, f"{name}.conv1", channels // 2), f"{name}.conv1.relu6")
        x = _depthwise(net, x, f"{name}.depthwise", stride=2)
        x = net.relu6(net.conv(x, f"{name}.conv2", channels), f"{name}.conv2.relu6")
        yield x


def _depthwise(net: Net, x: Signal, name: str, stride: int = 1) -> Signal:
    return net.relu6(net.conv(x, name, x.channels, 3, stride, groups=x.channels), f"{name}.relu6")


def _head(net: Net, x: Signal, name: str, columns: int) -> str:
    """A prediction head: [1, boxes of this map, columns]."""
    y = net.conv_bias(_depthwise(net, x, f"{name}.depthwise"), name, _BOXES * columns, shift=(-0.2, 0.2))
    apart = net.integers(f"{name}.apart", 1, _BOXES, columns, x.height, x.width)
    boxes = net.node("Reshape", f"{name}.boxes", y.name, apart)
    last = net.node("Transpose", f"{name}.last", boxes, perm=[0, 3, 4, 1, 2])
    return net.node(
        "Reshape", f"{name}.rows", last, net.integers(f"{name}.shape", 1, x.height * x.width * _BOXES, columns)
    )


def _joined(net: Net, parts: list[str], name: str, columns: int) -> str:
    return net.node("Concat", f"{name}.all", *parts, axis=1)


def _anchors(size: int, scale: float, following: float) -> Floats:
    """Centre, width and height, in pixels, of the anchor boxes of a size x size map (Liu et al., ECCV 2016)."""
    between = math.sqrt(scale * following)
    shapes = [(scale, scale), (between, between)]
    for ratio in _RATIOS:
        wide, narrow = scale * math.sqrt(ratio), scale / math.sqrt(ratio)
        shapes += [(wide, narrow), (narrow, wide)]
    shares = np.clip(shapes, 0.0, 1.0)
    centres = (np.arange(size) + 0.5) / size
    return np.array([(x, y, *shape) for y in centres for x in centres for shape in shares]) * _SIZE


def _decode(net: Net, codes: str, anchors: Floats) -> None:
    """`boxes`: corners, from the predicted code of every anchor (Girshick et al., CVPR 2014, appendix C)."""
    halves = net.integers("halves", 2, 2)
    offsets, sizes = net.node_of_many("Split", "boxes.parts", (codes, halves), ["boxes.offsets", "boxes.sizes"], axis=2)
    centre, size = anchors[None, :, :2], anchors[None, :, 2:]
    moved = net.node("Mul", "boxes.moved", offsets, net.constant("anchor.moves", size / _CODE[0]))
    middle = net.node("Add", "boxes.middle", moved, net.constant("anchor.centres", centre))
    grown = net.node("Exp", "boxes.grown", net.node("Div", "boxes.logs", sizes, net.scalar("anchor.code", _CODE[1])))
    half = net.node("Mul", "boxes.half", grown, net.constant("anchor.halves", size / 2))
    corners = [net.node("Sub", "boxes.low", middle, half), net.node("Add", "boxes.high", middle, half)]
    inside = net.node("Concat", "boxes.corners", *corners, axis=2)
    net.node("Clip", "boxes", inside, net.scalar("image.low", 0.0), net.scalar("image.high", float(_SIZE)))
