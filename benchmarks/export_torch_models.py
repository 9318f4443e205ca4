"""Exports small PyTorch networks with many patterns to tests/data/exported, with both of PyTorch's exporters.

    pip install torch==2.13.0 onnx onnxscript numpy
    python benchmarks/export_torch_models.py [NAME ...]

The files are inputs of tests/test_exported_models.py; only this script needs PyTorch. Weights are seeded, and batch
norms have the statistics of their own inputs, so that signals neither vanish nor grow.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import torch
import torch.nn.functional as F
from torch import Tensor, nn

FOLDER = Path(__file__).parent.parent / "tests" / "data" / "exported"
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)
Act = Callable[[], nn.Module]


def conv(i: int, o: int, k: int = 3, s: int = 1, groups: int = 1, dilation: int = 1, act: Act = nn.ReLU) -> nn.Module:
    """Convolution, batch norm, activation."""
    layer = nn.Conv2d(i, o, k, s, k // 2 * dilation, dilation, groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(o), act())


def head(channels: int, classes: int = 10) -> nn.Module:
    """Global pooling and a classifier."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, act: Act, gate: Act) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, channels // 4, 1)
        self.excite = nn.Conv2d(channels // 4, channels, 1)
        self.act, self.gate = act(), gate()

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.adaptive_avg_pool2d(x, 1)
        return x * self.gate(self.excite(self.act(self.squeeze(pooled))))


class InvertedResidual(nn.Module):
    def __init__(self, i: int, o: int, expand: int, k: int, s: int, act: Act, gate: Act) -> None:
        super().__init__()
        h = i * expand
        self.body = nn.Sequential(
            conv(i, h, 1, act=act),
            conv(h, h, k, s, groups=h, act=act),
            SqueezeExcite(h, nn.ReLU, gate),
            conv(h, o, 1, act=nn.Identity),
        )
        self.residual = s == 1 and i == o

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


def mobilenet_v3() -> nn.Module:
    """Inverted residuals, squeeze and excitation, hard swish."""
    act, gate = nn.Hardswish, nn.Hardsigmoid
    blocks = (InvertedResidual(16, 24, 2, 5, 2, act, gate), InvertedResidual(24, 24, 3, 3, 1, act, gate))
    return nn.Sequential(conv(3, 16, 3, 2, act=act), *blocks, head(24))


def efficientnet() -> nn.Module:
    """Inverted residuals with SiLU and sigmoid gates."""
    blocks = (
        InvertedResidual(16, 24, 2, 3, 2, nn.SiLU, nn.Sigmoid),
        InvertedResidual(24, 24, 3, 5, 1, nn.SiLU, nn.Sigmoid),
    )
    return nn.Sequential(conv(3, 16, 3, 2, act=nn.SiLU), *blocks, head(24))


class ConvNeXtBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.mlp = nn.Sequential(nn.Linear(channels, 3 * channels), nn.GELU(), nn.Linear(3 * channels, channels))
        self.scale = nn.Parameter(torch.full((channels,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.mlp(y)).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    """Layer norms over channels, linear layers on permuted pixels."""
    return nn.Sequential(nn.Conv2d(3, 24, 4, 4), ConvNeXtBlock(24), ConvNeXtBlock(24), head(24))


class DenseNet(nn.Module):
    """Every layer reads the concatenation of all previous ones."""

    def __init__(self) -> None:
        super().__init__()
        widths = [16 + 8 * step for step in range(3)]
        self.stem = conv(3, 16, 3, 2)
        self.layers = nn.ModuleList(nn.Sequential(self.before(w, 24), self.before(24, 8, 3)) for w in widths)
        self.transition = nn.Sequential(self.before(40, 20), nn.AvgPool2d(2))
        self.head = head(20)

    @staticmethod
    def before(i: int, o: int, k: int = 1) -> nn.Module:
        """Norm and activation before the convolution."""
        return nn.Sequential(nn.BatchNorm2d(i), nn.ReLU(), nn.Conv2d(i, o, k, padding=k // 2, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return self.head(self.transition(torch.cat(features, 1)))


class Inception(nn.Module):
    """Four branches, one with a 1x5 and a 5x1 kernel, and a reduction without padding in ceil mode."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 16, 3, 2)
        self.a = conv(16, 8, 1)
        self.b = nn.Sequential(conv(16, 8, 1), conv(8, 12, 3))
        self.c = nn.Sequential(nn.Conv2d(16, 8, (1, 5), padding=(0, 2)), nn.Conv2d(8, 8, (5, 1), padding=(2, 0)))
        self.d = nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(16, 8, 1))
        self.reduce = nn.Conv2d(36, 12, 3, 2)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=False)
        self.classify = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.cat([self.a(x), self.b(x), self.c(x), self.d(x)], 1)
        x = torch.cat([self.reduce(x), self.pool(x)], 1)
        return self.classify(x.amax((2, 3)))


class ShuffleUnit(nn.Module):
    """Splits channels, convolves one half, joins and shuffles."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        h = channels // 2
        self.body = nn.Sequential(conv(h, h, 1), conv(h, h, groups=h, act=nn.Identity), conv(h, h, 1))

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        y = torch.cat([left, self.body(right)], 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet() -> nn.Module:
    """Channel splits and shuffles."""
    return nn.Sequential(
        conv(3, 32, 3, 2), ShuffleUnit(32), ShuffleUnit(32), nn.MaxPool2d(3, 2, 1), ShuffleUnit(32), head(32)
    )


class UNet(nn.Module):
    """Transposed convolution, bilinear upsampling, skips."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.m = conv(3, 12), conv(12, 16), conv(16, 24)
        self.up = nn.ConvTranspose2d(24, 16, 2, 2)
        self.d1, self.d2, self.out = conv(32, 16), conv(28, 12), nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        m = self.m(F.max_pool2d(b, 2))
        y = self.d1(torch.cat([self.up(m), b], 1))
        y = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)
        return self.out(self.d2(torch.cat([y, a], 1)))


class RegNet(nn.Module):
    """Grouped convolutions in a bottleneck with a projected skip."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 16, 3, 2)
        self.body = nn.Sequential(conv(16, 32, 1), conv(32, 32, 3, 2, groups=4), conv(32, 32, 1, act=nn.Identity))
        self.skip = conv(16, 32, 1, 2, act=nn.Identity)
        self.head = head(32)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(F.relu(self.body(x) + self.skip(x)))


class Encoder(nn.Module):
    """One transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        qkv = self.qkv(self.n1(x)).reshape(n, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(n, tokens, width))
        return x + self.mlp(self.n2(x))


class VisionTransformer(nn.Module):
    """Patch embedding, class token, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 32, 8, 8)
        self.token, self.position = nn.Parameter(torch.randn(1, 1, 32)), nn.Parameter(torch.randn(1, 17, 32))
        self.layer, self.norm, self.classify = Encoder(32, 2), nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.classify(self.norm(self.layer(x))[:, 0])


class Pyramid(nn.Module):
    """Dilated branches and a pooled one, resized to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 16, 3, 2)
        self.branches = nn.ModuleList([conv(16, 8, 1), conv(16, 8, dilation=2), conv(16, 8, dilation=4)])
        self.pooled, self.join, self.out = nn.Conv2d(16, 8, 1), conv(32, 16, 1), nn.Conv2d(16, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        pooled = self.pooled(F.adaptive_avg_pool2d(y, 1)).expand(-1, -1, *y.shape[2:])
        y = self.join(torch.cat([*(branch(y) for branch in self.branches), pooled], 1))
        return F.interpolate(self.out(y), size=x.shape[2:], mode="bilinear", align_corners=False)


class Detector(nn.Module):
    """Pixels sliced into channels, a split stage, pyramid pooling, nearest-neighbour upsampling, boxes as rows."""

    def __init__(self) -> None:
        super().__init__()
        self.focus, self.down = conv(12, 16, act=nn.SiLU), conv(16, 32, 3, 2, act=nn.SiLU)
        self.inner, self.join, self.head = conv(16, 16), conv(64, 16, 1), nn.Conv2d(32, 3 * 7, 1)

    def forward(self, x: Tensor) -> Tensor:
        corners = [x[..., row::2, column::2] for row in (0, 1) for column in (0, 1)]
        fine = self.focus(torch.cat(corners, 1))
        a, b = self.down(fine).split(16, 1)
        y = torch.cat([a, self.inner(b) + b], 1)
        y = self.join(torch.cat([y, F.max_pool2d(y, 5, 1, 2)], 1))
        y = self.head(torch.cat([F.interpolate(y, scale_factor=2, mode="nearest"), fine], 1))
        n, _, h, w = y.shape
        return y.view(n, 3, 7, h, w).permute(0, 1, 3, 4, 2).sigmoid().reshape(n, -1, 7)


class OddWindows(nn.Module):
    """Even kernels; one-sided, negative, reflecting and non-zero padding; windows without padding."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 12, 2), nn.Conv2d(12, 16, 4, 2, 1), nn.Conv2d(16, 16, 3, 2)
        self.d, self.e, self.slope = nn.Conv2d(16, 20, (2, 3), (1, 2), (1, 0)), nn.Conv2d(20, 9, 3), nn.PReLU(16)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.a(F.pad(x, (1, 0, 2, 0))), 0.1)
        x = F.elu(self.c(F.pad(self.slope(self.b(x)), (0, 1, 0, 1))))
        x = F.pad(F.relu6(self.d(x)), (1, 2, 3, 0), mode="reflect")
        x = F.pad(F.pad(x, (-1, 0, 0, -1)), (1, 1, 1, 1), value=0.5)
        return self.e(x).clamp(-3, 3)


class SharedWeights(nn.Module):
    """One convolution and one linear layer, each used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.twice, self.linear = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.twice(F.relu(self.stem(x))))
        x = F.relu(self.twice(x)) + x
        return self.linear(torch.tanh(self.linear(x.mean((2, 3)))))


class ManyOutputs(nn.Module):
    """Two inputs; outputs that other nodes also read, one of them given twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.join = conv(3, 16, 3, 2), conv(1, 16, 3, 2), conv(32, 24, 1)
        self.last, self.linear = conv(24, 24), nn.Linear(24, 5)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        joined = self.join(torch.cat([self.a(x), self.b(mask)], 1))
        last = self.last(joined)
        return self.linear(last.mean((2, 3))), joined, last, last, torch.sigmoid(joined) * last


def series() -> nn.Module:
    """One-dimensional convolutions."""
    body = (nn.Conv1d(4, 16, 5, 2, 2), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 24, 3, padding=2, dilation=2))
    return nn.Sequential(*body, nn.MaxPool1d(2), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 7))


@dataclass(frozen=True)
class Export:
    """A network, the shapes of its inputs, and how it is exported; `dynamic` maps an input's axes to names."""

    build: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    opset: int
    dynamo: bool = False
    dynamic: dict[str, dict[int, str]] = field(default_factory=dict)
    optimize: bool = True
    half: bool = False


IMAGE = (1, 3, 64, 64)
EXPORTS = {
    "mobilenet-v3": Export(mobilenet_v3, ((1, 3, 96, 96),), 17),
    "efficientnet": Export(efficientnet, ((2, 3, 64, 64),), 18, dynamo=True),
    "convnext": Export(convnext, (IMAGE,), 20),
    "densenet": Export(DenseNet, (IMAGE,), 13),
    "inception": Export(Inception, ((1, 3, 49, 63),), 11),
    "shufflenet": Export(shufflenet, (IMAGE,), 11, dynamic={"input0": {0: "N", 2: "H", 3: "W"}}),
    "unet": Export(UNet, (IMAGE,), 18, dynamo=True),
    "regnet": Export(RegNet, (IMAGE,), 20, dynamo=True, optimize=False),
    "vit": Export(VisionTransformer, ((1, 3, 32, 32),), 13),
    "pyramid": Export(Pyramid, ((1, 3, 48, 40),), 17),
    "detector": Export(Detector, (IMAGE,), 18, dynamo=True),
    "odd-windows": Export(OddWindows, ((1, 3, 45, 51),), 13),
    "shared-weights": Export(SharedWeights, ((2, 3, 40, 40),), 18, dynamo=True, dynamic={"input0": {0: "N"}}),
    "many-outputs": Export(ManyOutputs, (IMAGE, (1, 1, 64, 64)), 17),
    "series": Export(series, ((1, 4, 200),), 17),
    "half": Export(RegNet, (IMAGE,), 17, half=True),
}


def seeded(name: str, export: Export) -> nn.Module:
    """The network with random weights and norms, ready for inference."""
    torch.manual_seed(zlib.crc32(name.encode()))
    model = export.build().train()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, NORMS):
                module.weight.uniform_(0.7, 1.3)
                module.bias.uniform_(-0.3, 0.3)
        for _ in range(20):
            model(*(torch.randn(8, *shape[1:]) for shape in export.shapes))
    return (model.half() if export.half else model).eval()


def write(name: str, export: Export) -> Path:
    """Export one network."""
    path = FOLDER / f"{name}.onnx"
    dtype = torch.float16 if export.half else torch.float32
    inputs = tuple(torch.randn(shape, dtype=dtype) for shape in export.shapes)
    options: dict[str, Any] = {"input_names": [f"input{index}" for index in range(len(inputs))]}
    if export.dynamo:
        axes = tuple({axis: torch.export.Dim(text) for axis, text in one.items()} for one in export.dynamic.values())
        options |= {"dynamic_shapes": axes or None, "optimize": export.optimize}
        options |= {"external_data": False, "verbose": False}
    else:
        options["dynamic_axes"] = export.dynamic or None
    torch.onnx.export(seeded(name, export), inputs, path, opset_version=export.opset, dynamo=export.dynamo, **options)
    onnx.save(without_origin(onnx.load(path)), path)
    return path


def without_origin(model: onnx.ModelProto) -> onnx.ModelProto:
    """Remove, in place, the exporter's notes about the source line of each node; return the model."""
    graph = model.graph
    for item in (model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        item.doc_string = ""
        item.ClearField("metadata_props")
    return model


def main() -> None:
    """Write all networks, or those named."""
    parser = argparse.ArgumentParser(description="export small PyTorch networks to tests/data/exported")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(EXPORTS)}")
    for name in parser.parse_args().names or EXPORTS:
        path = write(name, EXPORTS[name])
        print(f"{path.stat().st_size:8,} {path.name}")


if __name__ == "__main__":
    main()
