"""Makes docs/im2win.md and its chart: convolutions in window order beside what Im2win published, layer by layer.

    python benchmarks/im2win_results.py   # about a minute

Published: S. Lu, J. Chu, L. Guo and X. T. Liu, Im2win: An Efficient Convolution Paradigm on GPU, Euro-Par 2023. Layers,
memory and TFLOPS are those of its repository (github.com/seth-lu/Im2win: benchmarks/benchmarks.h,
log/log_float_GPU_mem.txt, log/log_float_GPU_TFLOPS.txt): 128 images in fp32 on an RTX 3090.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, geometric_mean

import numpy as np
from svg_file import picture

import pimflow
from pimflow.ir import Builder, Conv2d
from pimflow.report.page.bars import BarPanel, Series, grouped_bars
from pimflow.runtime.gpu.backend import GpuHost
from pimflow.runtime.gpu.convolutions import MIB, Sizes
from pimflow.runtime.gpu.window_order import convolve
from pimflow.targets import load_target
from pimflow.targets.schema.gpu import Algorithm, ConvolutionChoice

DOCS = Path(__file__).parent.parent / "docs"
CHART = "im2win-memory.svg"
TARGET, IMAGES, BYTES = "rtx3090", 128, 4
NO_LIMIT_MIB = float(1 << 20)
MODELS = ("resnet-50", "vgg-16", "googlenet")
WAYS = ("library", "im2col", "im2win", "fastest")
MACHINES = ("rtx3090", "turing-pim")


@dataclass(frozen=True)
class Layer:
    """One of the twelve layers: square maps and kernels, without padding.

    Args:
        name: as published.
        channels, size, filters, kernel, stride: C, H = W, O, kh = kw, the stride.
        memory_mib: of the process, published: im2col with cuBLAS, cuDNN, direct, im2win.
        tflops: published, in the same order.
    """

    name: str
    channels: int
    size: int
    filters: int
    kernel: int
    stride: int
    memory_mib: tuple[int, int, int, int]
    tflops: tuple[float, float, float, float]

    @cached_property
    def sizes(self) -> Sizes:
        """Of all images."""
        result = (self.size - self.kernel) // self.stride + 1
        op = Conv2d((self.kernel, self.kernel), (self.stride, self.stride))
        return Sizes(op, (IMAGES, self.channels, self.size, self.size), (IMAGES, self.filters, result, result))

    @property
    def operands_mib(self) -> float:
        """Input, weights and results."""
        sizes = self.sizes
        return (math.prod(sizes.source) + sizes.weights + math.prod(sizes.result)) * BYTES / MIB

    def tensor_mib(self, images: int = IMAGES) -> tuple[float, float]:
        """What im2col and im2win put down."""
        each = images * BYTES / MIB
        return each * self.sizes.columns(), each * self.sizes.windows()

    def time_us(self, algorithm: Algorithm, workspace_mib: float = NO_LIMIT_MIB) -> float:
        """On the machine of the paper."""
        choice = ConvolutionChoice((algorithm,), workspace_mib)
        host = GpuHost("gpu", replace(load_target(TARGET).any_gpu, convolutions=choice))
        build = Builder(self.name)
        weights = np.broadcast_to(np.float32(0), (self.filters, self.channels, self.kernel, self.kernel))
        graph = build.graph(build.op(self.sizes.op, build.input(*self.sizes.source), build.constant(weights)))
        return host.cost(graph, graph.nodes[0]).time_us

    def ours_tflops(self, algorithm: Algorithm, workspace_mib: float = NO_LIMIT_MIB) -> float:
        """Twice the multiply-accumulates over the time, the copy included."""
        return 2 * self.sizes.macs / self.time_us(algorithm, workspace_mib) / 1e6

    @property
    def an_image_mib(self) -> float:
        """A workspace in which im2col has room for one image: how PyTorch runs it."""
        return self.tensor_mib(1)[0]


LAYERS = (
    Layer("Conv1", 3, 227, 96, 11, 4, (1229, 1241, 805, 879), (3.02265, 4.45878, 0.665053, 8.01756)),
    Layer("Conv2", 3, 231, 96, 11, 4, (1235, 1389, 807, 883), (3.04543, 5.5806, 0.665465, 7.69168)),
    Layer("Conv3", 3, 227, 64, 7, 2, (1473, 1627, 1003, 1293), (3.11838, 4.62928, 0.717251, 3.76371)),
    Layer("Conv4", 32, 224, 64, 7, 2, (1863, 2543, 1340, 1347), (6.85363, 9.97934, 0.278325, 13.0253)),
    Layer("Conv5", 96, 24, 256, 5, 1, (1111, 1135, 829, 945), (3.7877, 19.2694, 0.519521, 14.5034)),
    Layer("Conv6", 256, 12, 512, 3, 1, (1075, 1115, 803, 869), (3.827, 10.1237, 0.183942, 9.97942)),
    Layer("Conv7", 3, 224, 64, 3, 1, (2629, 2783, 1581, 1871), (0.744714, 1.65294, 0.261025, 1.29896)),
    Layer("Conv8", 64, 112, 128, 3, 1, (2503, 3719, 1347, 2011), (6.24725, 9.46686, 0.500211, 12.0254)),
    Layer("Conv9", 64, 56, 64, 3, 1, (1189, 1503, 867, 951), (2.04762, 6.4167, 0.559908, 7.29744)),
    Layer("Conv10", 128, 28, 128, 3, 1, (1117, 1235, 819, 959), (3.33448, 11.5992, 0.559784, 11.9762)),
    Layer("Conv11", 256, 14, 256, 3, 1, (1079, 1203, 761, 803), (1.68463, 15.5708, 0.199542, 12.3861)),
    Layer("Conv12", 512, 7, 512, 3, 1, (1067, 1295, 789, 835), (0.907105, 7.08886, 0.0490399, 7.64123)),
)

TEMPLATE = Path(__file__).with_name("im2win_template.md")


def chart() -> str:
    """Elements in both orders over those of the input."""
    rows = [
        [of(layer.sizes) / math.prod(layer.sizes.source[1:]) for layer in LAYERS]
        for of in (Sizes.columns, Sizes.windows)
    ]
    series = (Series("im2col: every window by itself", "d0 s3"), Series("im2win: window order", "d0"))
    title = "Elements that are put down, times those of the input"
    names = tuple(layer.name for layer in LAYERS)
    drawn = grouped_bars(names, series, [BarPanel(title, rows)], unit="times the input", base=0.0)
    return picture(drawn, "figures.css")


def _row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _saved(layer: Layer) -> tuple[float, float, float]:
    """Of the tensor, of all that is taken, and as published."""
    columns, windows = layer.tensor_mib()
    cublas, _, _, im2win = layer.memory_mib
    return 1 - windows / columns, (columns - windows) / (columns + layer.operands_mib), 1 - im2win / cublas


def memory_rows() -> Iterable[str]:
    """Counted and published, a row a layer."""
    for layer in LAYERS:
        kernels = f"{layer.filters} of {layer.kernel}x{layer.kernel}, {layer.stride}"
        shape = f"{layer.channels}x{layer.size}x{layer.size}, {kernels}"
        tensors = (f"{mib:,.0f}" for mib in layer.tensor_mib())
        tensor, whole, published = map(_percent, _saved(layer))
        yield _row(layer.name, shape, *tensors, tensor, whole, layer.memory_mib[0], layer.memory_mib[3], published)


def _product_tflops(layer: Layer) -> float:
    """Of im2win without its copy, which takes as long as a copy of as many bytes."""
    host = GpuHost("gpu", load_target(TARGET).any_gpu)
    moved = (math.prod(layer.sizes.source) + IMAGES * layer.sizes.windows()) * BYTES
    return 2 * layer.sizes.macs / (layer.time_us("im2win") - host.copy_cost(moved, "float32").time_us) / 1e6


OURS: tuple[tuple[str, Callable[[Layer], float]], ...] = (
    ("image", lambda layer: layer.ours_tflops("im2col", layer.an_image_mib)),
    ("im2col", lambda layer: layer.ours_tflops("im2col")),
    ("library", lambda layer: layer.ours_tflops("library")),
    ("direct", lambda layer: layer.ours_tflops("direct")),
    ("im2win", lambda layer: layer.ours_tflops("im2win")),
    ("product", _product_tflops),
)


def _speeds() -> list[list[float]]:
    """Ours, a row a layer."""
    return [[of(layer) for _, of in OURS] for layer in LAYERS]


def speed_rows() -> Iterable[str]:
    """Published and ours, a row a layer."""
    for layer, row in zip(LAYERS, _speeds(), strict=True):
        yield _row(layer.name, *(f"{rate:.2f}" for rate in (*layer.tflops, *row)))


def _networks() -> Iterable[str]:
    for model in MODELS:
        for machine in MACHINES:
            found = {
                way: pimflow.compile(f"zoo:{model}", target=machine, policy="gpu", convolutions=way, check=False)
                for way in WAYS
            }
            cells = [
                f"{one.report.result.time_us / 1e3:.2f}, {one.memory.arena_bytes / 1e6:.1f}" for one in found.values()
            ]
            yield _row(
                model, machine, *cells, dict(found["fastest"].about).get("convolutions", "library").split(";")[0]
            )


def _error() -> float:
    """Of the last layer, one image: columns against windows, over the largest result."""
    layer, random = LAYERS[-1], np.random.default_rng(0)
    x = random.standard_normal((1, *layer.sizes.source[1:])).astype(np.float32)
    weights = random.standard_normal((layer.filters, layer.channels, layer.kernel, layer.kernel)).astype(np.float32)
    a, b = (convolve(layer.sizes.op, (x, weights), way) for way in ("im2col", "im2win"))
    return float(np.abs(np.subtract(a, b)).max() / np.abs(a).max())


def page() -> str:
    """The whole page."""
    speeds = _speeds()
    ours = {name: [row[place] for row in speeds] for place, (name, _) in enumerate(OURS)}
    published = list(zip(*(layer.tflops for layer in LAYERS), strict=True))
    savings = [fmean(column) for column in zip(*map(_saved, LAYERS), strict=True)]
    contexts = [layer.memory_mib[2] - _operands_mib_of(layer, 64) for layer in LAYERS]
    by_name = {layer.name: layer for layer in LAYERS}
    means = [geometric_mean(column) for column in (*published, *ours.values())]

    def ratio(most: Callable[[Sequence[float]], float], some: Sequence[float], others: Sequence[float]) -> str:
        return f"{most([a / b for a, b in zip(some, others, strict=True)]):.2f}x"

    return TEMPLATE.read_text(encoding="utf-8").format(
        chart=CHART,
        memory="\n".join(memory_rows()),
        tensor_mean=_percent(savings[0]),
        all_mean=_percent(savings[1]),
        published_mean=_percent(savings[2]),
        context=f"{min(contexts):.0f} to {max(contexts):.0f}",
        image=f"{max(layer.an_image_mib for layer in LAYERS):.0f}",
        cublas=by_name["Conv12"].memory_mib[0] - by_name["Conv12"].memory_mib[2],
        im2win_extra=by_name["Conv8"].memory_mib[3] - by_name["Conv8"].memory_mib[2],
        conv8=f"{by_name['Conv8'].tensor_mib(64)[1]:.0f}",
        conv4_extra=by_name["Conv4"].memory_mib[3] - by_name["Conv4"].memory_mib[2],
        conv4=f"{by_name['Conv4'].tensor_mib(64)[1]:,.0f}",
        speed="\n".join(speed_rows()),
        speed_means=" | ".join(f"{mean:.2f}" for mean in means),
        over_cublas=ratio(fmean, published[3], published[0]),
        over_cudnn=ratio(max, published[3], published[1]),
        over_direct=ratio(max, published[3], published[2]),
        ours_over_image=ratio(fmean, ours["im2win"], ours["image"]),
        ours_over_col=ratio(fmean, ours["im2win"], ours["im2col"]),
        ours_over_library=ratio(max, ours["im2win"], ours["library"]),
        ours_over_direct=ratio(max, ours["im2win"], ours["direct"]),
        ways=" | ".join(WAYS),
        rule="---|" * len(WAYS),
        networks="\n".join(_networks()),
        error=f"{_error():.0e}",
        ours_image=f"{geometric_mean(ours['image']):.2f}",
        cublas_mean=f"{geometric_mean(published[0]):.2f}",
        ours_im2win=f"{geometric_mean(ours['im2win']):.2f}",
        im2win_mean=f"{geometric_mean(published[3]):.2f}",
    )


def _operands_mib_of(layer: Layer, images: int) -> float:
    weights = layer.sizes.weights * BYTES / MIB
    return weights + (layer.operands_mib - weights) * images / IMAGES


def main() -> None:
    (DOCS / "images" / CHART).write_text(chart(), encoding="utf-8")
    (DOCS / "im2win.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
