"""Makes docs/im2win.md and its chart: convolutions in window order next to Im2win's published figures, layer by layer.

    python benchmarks/im2win_results.py   # about a minute

Published: S. Lu, J. Chu, L. Guo and X. T. Liu, Im2win: An Efficient Convolution Paradigm on GPU, Euro-Par 2023. Layers,
memory and TFLOPS are those of its repository (github.com/seth-lu/Im2win: benchmarks/benchmarks.h,
log/log_float_GPU_mem.txt, log/log_float_GPU_TFLOPS.txt): 128 images in fp32 on an RTX 3090.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean, geometric_mean

import numpy as np
from svg_file import picture

import pimflow
from pimflow.codegen import ConvProblem
from pimflow.ir import Builder, Conv2d
from pimflow.report.layer import report_layer
from pimflow.report.page.bars import BarPanel, Series, grouped_bars
from pimflow.runtime.gpu.backend import GpuHost
from pimflow.runtime.gpu.convolutions import MIB, Sizes
from pimflow.runtime.gpu.window_order import convolve
from pimflow.runtime.newton.layer import NewtonLayer
from pimflow.targets import Target, load_target
from pimflow.targets.schema.gpu import Algorithm, ConvolutionChoice

DOCS = Path(__file__).parent.parent / "docs"
CHART = "im2win-memory.svg"
TARGET, IMAGES, BYTES = "rtx3090", 128, 4
NO_LIMIT_MIB = float(1 << 20)
MODELS = ("resnet-50", "vgg-16", "googlenet")
WAYS = ("library", "im2col", "im2win", "fastest")
MACHINES = ("rtx3090", "turing-pim")
PIM_TARGET, ORDERS = "pimflow", ("column order", "window order")
SYSTEMS = ("cublas", "cudnn", "direct", "im2win")
"""The measured systems: im2col with cuBLAS, cuDNN, the paper's direct kernels, and its own in window order."""


@dataclass(frozen=True)
class Layer:
    """One of the twelve layers: square maps and kernels, without padding.

    Args:
        name: as published.
        channels, size, filters, kernel, stride: C, H = W, O, kh = kw, the stride.
        memory_mib: published memory of the process, in the order of `SYSTEMS`.
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
        """The sizes for all images."""
        result = (self.size - self.kernel) // self.stride + 1
        op = Conv2d((self.kernel, self.kernel), (self.stride, self.stride))
        return Sizes(op, (IMAGES, self.channels, self.size, self.size), (IMAGES, self.filters, result, result))

    def operands_mib(self, images: int = IMAGES) -> float:
        """The size of input, weights and results."""
        sizes = self.sizes
        maps = math.prod(sizes.source[1:]) + math.prod(sizes.result[1:])
        return (images * maps + sizes.weights) * BYTES / MIB

    def published_mib(self, system: str) -> int:
        """The published memory of the process."""
        return self.memory_mib[SYSTEMS.index(system)]

    @property
    def window_mib(self) -> int:
        """The published memory of window order beyond that of the direct kernels, which store no transformed tensor."""
        return self.published_mib("im2win") - self.published_mib("direct")

    def tensor_mib(self, images: int = IMAGES) -> tuple[float, float]:
        """The sizes of the tensors that im2col and im2win store."""
        each = images * BYTES / MIB
        return each * self.sizes.columns(), each * self.sizes.windows()

    def time_us(self, algorithm: Algorithm, workspace_mib: float = NO_LIMIT_MIB) -> float:
        """The time on the machine of the paper."""
        choice = ConvolutionChoice((algorithm,), workspace_mib)
        host = GpuHost("gpu", replace(load_target(TARGET).any_gpu, convolutions=choice))
        build = Builder(self.name)
        weights = np.broadcast_to(np.float32(0), (self.filters, self.channels, self.kernel, self.kernel))
        graph = build.graph(build.op(self.sizes.op, build.input(*self.sizes.source), build.constant(weights)))
        return host.cost(graph, graph.nodes[0]).time_us

    def ours_tflops(self, algorithm: Algorithm, workspace_mib: float = NO_LIMIT_MIB) -> float:
        """Twice the multiply-accumulates over the time, including the copy."""
        return 2 * self.sizes.macs / self.time_us(algorithm, workspace_mib) / 1e6

    @property
    def an_image_mib(self) -> float:
        """A workspace in which im2col has room for one image, which is how PyTorch runs it."""
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
    """Elements in both orders, relative to those of the input."""
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
    """The savings: of the tensor, of all memory, and as published."""
    columns, windows = layer.tensor_mib()
    published = 1 - layer.published_mib("im2win") / layer.published_mib("cublas")
    return 1 - windows / columns, (columns - windows) / (columns + layer.operands_mib()), published


def _saved_of_process(layer: Layer) -> float:
    """The saving of the process, from the tensors of 64 images and the memory of the direct kernels."""
    columns, windows = layer.tensor_mib(64)
    return (columns - windows) / (layer.published_mib("direct") + columns)


def memory_rows() -> Iterable[str]:
    """Counted and published memory, one row per layer."""
    for layer in LAYERS:
        kernels = f"{layer.filters} of {layer.kernel}x{layer.kernel}, {layer.stride}"
        shape = f"{layer.channels}x{layer.size}x{layer.size}, {kernels}"
        tensors = (f"{mib:,.0f}" for mib in layer.tensor_mib())
        tensor, whole, published = map(_percent, _saved(layer))
        processes = map(layer.published_mib, ("cublas", "im2win"))
        yield _row(layer.name, shape, *tensors, tensor, whole, *processes, published)


def _product_tflops(layer: Layer) -> float:
    """The speed of im2win without its copy, which takes as long as any copy of the same number of bytes."""
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


@dataclass(frozen=True)
class Speeds:
    """TFLOPS of the twelve layers, by system."""

    published: dict[str, tuple[float, ...]]
    ours: dict[str, tuple[float, ...]]

    @classmethod
    def of(cls, layers: Sequence[Layer]) -> Speeds:
        """The speeds of layers, in order."""
        published = zip(*(layer.tflops for layer in layers), strict=True)
        ours = {name: tuple(map(rate, layers)) for name, rate in OURS}
        return cls(dict(zip(SYSTEMS, published, strict=True)), ours)

    @property
    def columns(self) -> tuple[tuple[float, ...], ...]:
        """The published columns, then ours."""
        return (*self.published.values(), *self.ours.values())

    def rows(self) -> Iterable[str]:
        """One row per layer, and one of their means."""
        for layer, *rates in zip(LAYERS, *self.columns, strict=True):
            yield _row(layer.name, *map(_rate, rates))
        means = map(geometric_mean, self.columns)
        yield _row("**geometric mean**", *map(_rate, means))


def _rate(tflops: float) -> str:
    return f"{tflops:.2f}"


def _ratio(most: Callable[[Iterable[float]], float], some: Sequence[float], others: Sequence[float]) -> str:
    return f"{most(a / b for a, b in zip(some, others, strict=True)):.2f}x"


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


@cache
def _free() -> Target:
    """The target `pimflow`, if a COMP could name columns of buffer and row independently."""
    target = load_target(PIM_TARGET)
    return target.with_units(pim=replace(target.pim, any_slot_any_column=True))


def fill_rows() -> Iterable[str]:
    """One image of the twelve layers on PIM, in either order of elements."""
    for layer in LAYERS:
        sizes, side = (layer.size, layer.size), (layer.kernel, layer.kernel)
        strides = (layer.stride, layer.stride)
        detail = report_layer(ConvProblem(1, layer.channels, layer.filters, *sizes, side, strides), _free()).detail
        assert isinstance(detail, NewtonLayer)
        found = [cost for cost in (detail.cost, detail.other_order) if cost is not None]
        times = {cost.mapping.element_order: cost.time_us for cost in found}
        cells = (f"{times[order]:,.1f}" if order in times else "-" for order in ORDERS)
        yield _row(layer.name, *cells, detail.cost.mapping.element_order)


def _error() -> float:
    """The difference between columns and windows for one image of the last layer, relative to the largest result."""
    layer, random = LAYERS[-1], np.random.default_rng(0)
    x = random.standard_normal((1, *layer.sizes.source[1:])).astype(np.float32)
    weights = random.standard_normal((layer.filters, layer.channels, layer.kernel, layer.kernel)).astype(np.float32)
    a, b = (convolve(layer.sizes.op, (x, weights), way) for way in ("im2col", "im2win"))
    return float(np.abs(np.subtract(a, b)).max() / np.abs(a).max())


def page() -> str:
    """The whole page."""
    speeds = Speeds.of(LAYERS)
    savings = map(fmean, zip(*map(_saved, LAYERS), strict=True))
    return TEMPLATE.read_text(encoding="utf-8").format(
        chart=CHART,
        memory="\n".join(memory_rows()),
        speed="\n".join(speeds.rows()),
        ways=" | ".join(WAYS),
        rule="---|" * len(WAYS),
        networks="\n".join(_networks()),
        fills="\n".join(fill_rows()),
        error=f"{_error():.0e}",
        **dict(zip(("tensor_mean", "all_mean", "published_mean"), map(_percent, savings), strict=True)),
        **_memory_figures(),
        **_speed_figures(speeds),
    )


def _memory_figures() -> dict[str, str]:
    """The memory of processes beyond operands and tensors."""
    conv4, conv8, conv12 = (next(layer for layer in LAYERS if layer.name == f"Conv{count}") for count in (4, 8, 12))
    contexts = [layer.published_mib("direct") - layer.operands_mib(64) for layer in LAYERS]
    return {
        "process_mean": _percent(fmean(map(_saved_of_process, LAYERS))),
        "context": f"{min(contexts):.0f} to {max(contexts):.0f}",
        "image": f"{max(layer.an_image_mib for layer in LAYERS):.0f}",
        "cublas": f"{conv12.published_mib('cublas') - conv12.published_mib('direct')}",
        "im2win_extra": f"{conv8.window_mib}",
        "conv8": f"{conv8.tensor_mib(64)[1]:.0f}",
        "conv4_extra": f"{conv4.window_mib}",
        "conv4": f"{conv4.tensor_mib(64)[1]:,.0f}",
    }


def _speed_figures(speeds: Speeds) -> dict[str, str]:
    """Speedups of window order over the others, and means."""
    published, ours = speeds.published, speeds.ours
    return {
        "over_cublas": _ratio(fmean, published["im2win"], published["cublas"]),
        "over_cudnn": _ratio(max, published["im2win"], published["cudnn"]),
        "over_direct": _ratio(max, published["im2win"], published["direct"]),
        "ours_over_image": _ratio(fmean, ours["im2win"], ours["image"]),
        "ours_over_col": _ratio(fmean, ours["im2win"], ours["im2col"]),
        "ours_over_library": _ratio(max, ours["im2win"], ours["library"]),
        "ours_over_direct": _ratio(max, ours["im2win"], ours["direct"]),
        "cublas_mean": _rate(geometric_mean(published["cublas"])),
        "im2win_mean": _rate(geometric_mean(published["im2win"])),
        "ours_image": _rate(geometric_mean(ours["image"])),
        "ours_im2win": _rate(geometric_mean(ours["im2win"])),
    }


def main() -> None:
    (DOCS / "images" / CHART).write_text(chart(), encoding="utf-8")
    (DOCS / "im2win.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
