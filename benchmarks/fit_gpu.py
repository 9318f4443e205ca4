"""Fits the free parameters of the GPU model to PIMFlow's published MobileNetV2 figures, and to nothing else.

    python benchmarks/fit_gpu.py            # fit, from many seeded starts; prints parameters and figures
    python benchmarks/fit_gpu.py --check    # only evaluate the parameters in the target file

The figures are the GPU's time for all convolutions; the share of it that Newton++, pipelines, MD-DP and all together
(PIMFlow) save; and the time and the speedup of the whole model. They are evaluated by the few lines below, which share
nothing with the compiler's search, so that the two check each other; PIM times are the compiler's exact ones.
Parameters with a source are not fitted.

End to end, a residual Add is part of the convolution's kernel on the GPU (cuDNN adds a second tensor in its epilogue),
and a separate kernel after PIM, which cannot add a second tensor to its results.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import pimflow_zoo
from pimflow.codegen.work import ConvProblem, MatmulProblem
from pimflow.frontend import load_model
from pimflow.ir import Conv2d, Value
from pimflow.ir.analysis.rows import RowWindow, rows_needed
from pimflow.passes import CLEANUP, PassManager
from pimflow.runtime.gpu.kernels import kernel_cycles
from pimflow.runtime.gpu.work import GpuWork, MatrixWork, StreamWork, gpu_work
from pimflow.runtime.newton.autotune.choose import MappingSearch
from pimflow.runtime.newton.cost import PimCost
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.targets import GpuSpec, load_target, override

PUBLISHED = {
    "conv baseline": 1.454e6,  # GPU cycles of all convolutions on the GPU alone
    "conv newton++": 1.365,
    "conv pipeline": 1.413,
    "conv md-dp": 1.436,
    "conv pimflow": 1.481,
    "whole baseline": 1.44562e6,  # GPU cycles of the whole model on the GPU alone
    "whole pimflow": 1.44562e6 / 1.047831e6,
}
"""The figures to fit: MobileNetV2 with 16 PIM channels and 4 buffers (PIMFlow, CGO 2023; see docs/results.md)."""

BOUNDS = {
    "step_cycles": (400.0, 2000.0),  # a load from DRAM takes 400 to 600 cycles on Turing when nothing else runs
    "fill_cycles": (500.0, 6000.0),  # a few dependent loads before the loop, the epilogue's stores after it
    "matrix_efficiency": (0.1, 0.9),
    "depthwise_macs_per_sm_cycle": (1.0, 64.0),  # an SM has 64 lanes; depthwise kernels spend most of them on addresses
}
"""The fitted parameters and their physically plausible ranges."""

TARGET = override(load_target("pimflow"), timing="artifact")  # the profile that the published figures were made with
SEARCH = MappingSearch(timing_profile(TARGET.pim))
MODEL = "mobilenet-v2"
PIM_CHANNELS = TARGET.pim.channels
CHANNELS_LEFT = TARGET.gpu.memory_channels - PIM_CHANNELS


@dataclass(frozen=True)
class Layer:
    """One convolution of the model."""

    op: Conv2d
    source: Value
    weights: Value
    rows: int
    columns: int
    residual: bool  # whether an Add of a second tensor follows

    @property
    def depthwise(self) -> bool:
        return self.op.groups > 1

    @property
    def pointwise(self) -> bool:
        return self.op.kernel == (1, 1)

    def window(self, start: int, stop: int) -> RowWindow:
        window = rows_needed(self.op, self.source.shape or (), start, stop)
        assert isinstance(window, RowWindow)
        return window

    def part(self, start: int, stop: int) -> tuple[Conv2d, tuple[int, ...], int]:
        """The op and input shape that produce output rows [start, stop), and the number of these rows."""
        window = self.window(start, stop)
        _, left, _, right = self.op.pads
        batch, channels, _, width = self.source.shape or ()
        op = replace(self.op, pads=(window.pad_top, left, window.pad_bottom, right))
        return op, (batch, channels, window.in_stop - window.in_start, width), stop - start


@cache
def layers(model: str) -> tuple[Layer, ...]:
    """The convolutions of a zoo model, in order."""
    graph = PassManager(CLEANUP).run(load_model(pimflow_zoo.build(model))).graph
    return tuple(
        Layer(
            node.op,
            graph.value(node.inputs[0]),
            graph.value(node.inputs[1]),
            rows=graph.shape(node.output)[2],
            columns=graph.shape(node.output)[3],
            residual=any(user.kind == "Add" for user in graph.users(node.output)),
        )
        for node in graph.nodes
        if isinstance(node.op, Conv2d)
    )


@cache
def pim_cycles(layer: Layer, start: int, stop: int) -> float:
    """The time in GPU cycles that PIM takes for output rows [start, stop), on the published machine and mapping."""
    op, shape, _ = layer.part(start, stop)
    out_channels = (layer.weights.shape or ())[0]
    problem = ConvProblem(shape[0], shape[1], out_channels, shape[2], shape[3], op.kernel, op.strides, op.pads)
    cost = SEARCH.choose(problem, "newton++")
    assert isinstance(cost, PimCost)
    return cost.time_us * TARGET.gpu.clock_mhz


def gpu_cycles(layer: Layer, start: int, stop: int, gpu: GpuSpec, channels: int) -> float:
    """The time in GPU cycles that the GPU takes for output rows [start, stop)."""
    op, shape, rows = layer.part(start, stop)
    out = Value("out", (shape[0], (layer.weights.shape or ())[0], rows, layer.columns))
    work = gpu_work(op, [Value("in", shape), layer.weights], [out], gpu.element_bytes)
    assert isinstance(work, GpuWork)
    return kernel_cycles(work, gpu, channels).total


class Evaluation:
    """Times of MobileNetV2 under the published policies, in GPU cycles, for one set of GPU parameters.

    `whole` counts the whole model, otherwise only convolutions count.
    """

    def __init__(self, gpu: GpuSpec, whole: bool) -> None:
        self.layers = layers(MODEL)
        self.gpu = gpu
        self.whole = whole
        self._memo: dict[tuple[Layer, int, int, int], float] = {}

    def on_gpu(self, layer: Layer, start: int, stop: int, channels: int = CHANNELS_LEFT) -> float:
        key = (layer, start, stop, channels)
        if key not in self._memo:
            self._memo[key] = gpu_cycles(layer, start, stop, self.gpu, channels)
        return self._memo[key]

    def addition(self, layer: Layer, rows: int) -> float:
        """The kernel that adds the residual to rows computed on PIM."""
        if not self.whole or not layer.residual:
            return 0.0
        elements = (layer.weights.shape or ())[0] * rows * layer.columns
        return kernel_cycles(StreamWork(elements, 3 * elements * self.gpu.element_bytes), self.gpu, CHANNELS_LEFT).total

    def on_pim(self, layer: Layer, start: int, stop: int) -> float:
        return pim_cycles(layer, start, stop) + self.addition(layer, stop - start)

    def baseline(self) -> float:
        every = TARGET.gpu.memory_channels
        return sum(self.on_gpu(layer, 0, layer.rows, every) for layer in self.layers) + self.tail(every, pim=False)

    def tail(self, channels: int, pim: bool) -> float:
        """Pooling and classifier, if the whole model counts."""
        if not self.whole:
            return 0.0
        features, pixels, classes = 1280, 49, 1000
        width = self.gpu.element_bytes
        pool = StreamWork(features * pixels, width * features * (pixels + 1))
        matrix = MatrixWork(1, classes, features, 1, width * (features + classes + features * classes))
        classifier = kernel_cycles(matrix, self.gpu, channels).total
        if pim:
            cost = SEARCH.choose(MatmulProblem(1, features, classes), "newton++")
            assert isinstance(cost, PimCost)
            classifier = min(classifier, cost.time_us * TARGET.gpu.clock_mhz)
        return kernel_cycles(pool, self.gpu, channels).total + classifier

    def newton(self, layer: Layer) -> float:
        """The faster of GPU and PIM."""
        gpu = self.on_gpu(layer, 0, layer.rows)
        return gpu if layer.depthwise else min(gpu, self.on_pim(layer, 0, layer.rows))

    def md_dp(self, layer: Layer) -> float:
        """The best split on a grid of 10 %, the first ceil(H * ratio) rows on the GPU."""
        best = self.newton(layer)
        for tenth in range(1, 10):
            rows = math.ceil(layer.rows * tenth / 10)
            if not layer.depthwise and rows < layer.rows:
                both = max(self.on_gpu(layer, 0, rows), pim_cycles(layer, rows, layer.rows))
                best = min(best, both + self.addition(layer, layer.rows - rows))
        return best

    def pipeline(self, run: Sequence[Layer]) -> float:
        """Two halves, bottom first: the makespan of the run's parts on the two devices, in order of stages."""
        ends = {"gpu": 0.0, "pim": 0.0}
        done = [0.0, 0.0]

        def step(device: str, times: Sequence[float]) -> None:
            for stage, time in enumerate(times):
                ends[device] = done[stage] = max(*done[: stage + 1], ends[device]) + time

        for layer, parts in zip(run, _halves(run, run[-1].rows // 2), strict=True):
            if layer.depthwise:
                step("gpu", [self.on_gpu(layer, start, stop) for start, stop in parts])
            else:
                step("pim", [pim_cycles(layer, start, stop) for start, stop in parts])
                if self.whole and layer.residual:
                    step("gpu", [self.addition(layer, stop - start) for start, stop in parts])
        return max(done)

    def best(self, split: bool, pipelines: bool) -> float:
        """The cheapest cover of the chain by single layers and pipelines: a dynamic program."""
        single = [self.md_dp(layer) if split else self.newton(layer) for layer in self.layers]
        cost = [0.0]
        for stop, layer_cost in enumerate(single, 1):
            choices = [cost[stop - 1] + layer_cost]
            for length in (2, 3) if pipelines else ():
                run = self.layers[max(0, stop - length) : stop]
                if len(run) == length and _is_pattern(run):
                    choices.append(cost[stop - length] + self.pipeline(run))
            cost.append(min(choices))
        return cost[-1] + self.tail(CHANNELS_LEFT, pim=True)


def figures(gpu: GpuSpec) -> dict[str, float]:
    """The model's counterparts of `PUBLISHED`."""
    conv, whole = Evaluation(gpu, whole=False), Evaluation(gpu, whole=True)
    base, whole_base = conv.baseline(), whole.baseline()
    return {
        "conv baseline": base,
        "conv newton++": base / conv.best(split=False, pipelines=False),
        "conv pipeline": base / conv.best(split=False, pipelines=True),
        "conv md-dp": base / conv.best(split=True, pipelines=False),
        "conv pimflow": base / conv.best(split=True, pipelines=True),
        "whole baseline": whole_base,
        "whole pimflow": whole_base / whole.best(split=True, pipelines=True),
    }


def _halves(run: Sequence[Layer], half: int) -> list[list[tuple[int, int]]]:
    """Output rows (start, stop) of both stages of every layer, bottom first; the top stage makes the remaining rows."""
    bottom, top = (half, run[-1].rows), (0, half)
    parts = [[bottom, top]]
    for consumer in reversed(run[1:]):
        need = consumer.window(*bottom)
        bottom, top = (need.in_start, need.in_stop), (0, need.in_start)
        parts.insert(0, [bottom, top])
    return parts


def _is_pattern(run: Sequence[Layer]) -> bool:
    """1x1 -> depthwise, depthwise -> 1x1, or 1x1 -> depthwise -> 1x1, and enough rows for two stages."""
    if any(not layer.depthwise and not layer.pointwise for layer in run) or run[-1].rows < 2:
        return False
    kinds = [layer.depthwise for layer in run]
    return all(before != after for before, after in pairwise(kinds)) and kinds != [True, False, True]


def loss(gpu: GpuSpec) -> float:
    """Mean square of the figures' relative errors (logarithms), in percent."""
    ours = figures(gpu)
    return sum((100 * math.log(ours[name] / PUBLISHED[name])) ** 2 for name in PUBLISHED) / len(PUBLISHED)


def with_fit(gpu: GpuSpec, values: Mapping[str, float]) -> GpuSpec:
    """The GPU with other values of some of its float parameters."""
    fields: dict[str, Any] = dict(values)
    return replace(gpu, **fields)


def search(job: tuple[int, int]) -> tuple[float, GpuSpec]:
    """Seeded random descent from a random start: (loss, parameters)."""
    seed, steps = job
    rng = random.Random(seed)
    start = {name: math.exp(rng.uniform(math.log(low), math.log(high))) for name, (low, high) in BOUNDS.items()}
    gpu = with_fit(TARGET.gpu, start)
    best, width = loss(gpu), 0.5
    for _ in range(steps):
        moved = with_fit(gpu, dict(_moves(gpu, rng, width)))
        value = loss(moved)
        if value < best:
            gpu, best = moved, value
        width = max(0.02, width * 0.995)
    return best, gpu


def _moves(gpu: GpuSpec, rng: random.Random, width: float) -> Iterator[tuple[str, float]]:
    for name in rng.sample(sorted(BOUNDS), rng.choice((1, 1, 2, 3))):
        low, high = BOUNDS[name]
        yield name, min(high, max(low, getattr(gpu, name) * math.exp(rng.gauss(0, width))))


def report(gpu: GpuSpec) -> None:
    """Print the parameters, and the figures next to the published ones."""
    print(", ".join(f"{name} = {getattr(gpu, name):.4g}" for name in BOUNDS))
    ours = figures(gpu)
    print(f"{'':16}{'published':>12}{'ours':>12}{'error':>9}")
    for name, published in PUBLISHED.items():
        print(f"{name:16}{published:>12.5g}{ours[name]:>12.5g}{100 * (ours[name] / published - 1):>7.2f} %")


def main() -> None:
    """Fit or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="evaluate the target file's parameters only")
    parser.add_argument("--starts", type=int, default=10, help="random starts")
    parser.add_argument("--steps", type=int, default=350, help="steps from each start")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    if arguments.check:
        report(TARGET.gpu)
        return
    jobs = [(seed, arguments.steps) for seed in range(arguments.starts)]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        found = sorted(pool.map(search, jobs), key=lambda item: item[0])
    for value, gpu in found[:5]:
        print(f"\nloss {value:.3f}")
        report(gpu)


if __name__ == "__main__":
    main()
