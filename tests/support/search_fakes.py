"""Small graphs and a PIM price that needs no streams, for the tests of the search."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from pimflow.codegen.newton.commands import CommandCounts
from pimflow.codegen.work import PimProblem, problem_of
from pimflow.ir import (
    Concat,
    Conv2d,
    Elementwise,
    Gemm,
    GlobalPool,
    Graph,
    Node,
    Pool2d,
    Refusal,
    Reshape,
    Slice,
    Value,
    window_out,
)
from pimflow.runtime.costs import CostModel
from pimflow.targets import load_target

PIM_RATE = {"newton+": 0.5e6, "newton++": 1.2e6, "auto": 1.5e6}  # MACs a microsecond
GPU_RATE = 1.0e6


@dataclass(frozen=True)
class FakeCost:
    time_us: float
    energy_mj: float = 0.0
    pim: FakePimCost | None = None


@dataclass(frozen=True)
class FakePimCost:
    time_us: float
    cycles: int
    commands: CommandCounts


class FakeCosts:
    """Prices in closed form, so that what the search should choose can be told by hand.

    PIM: 0.5 us and the MACs at a rate per mapping; products deeper than 4096 are refused. GPU: 1 us and MACs at a rate
    that falls to 0.8 of itself at half the channels (depthwise at a quarter of it), 1 us and 1 us per million elements
    for all other kernels; what is fused is free, what only moves costs 0.02 us.
    """

    def __init__(self, channels: int = 16, slow_down: float = 1.0) -> None:
        self.target = load_target("pimflow")
        self.gpu_channels = channels
        self.measured = None
        self._slow_down = slow_down

    def gpu_only(self) -> FakeCosts:
        return FakeCosts(32, self._slow_down)

    def pim_cost(self, problem: PimProblem, mapping: str) -> FakePimCost | Refusal:
        if problem.depth > 4096:
            return Refusal("too deep for the fake")
        time_us = self._slow_down * (0.5 + problem.macs / PIM_RATE[mapping])
        return FakePimCost(time_us, problem.macs, CommandCounts(comp=problem.macs))

    def static_energy_mj(self, makespan_us: float) -> float:
        return 0.1 * makespan_us

    def node_cost(self, graph: Graph, node: Node) -> FakeCost:
        problem = problem_of(graph, node)
        if node.device == "pim":
            assert not isinstance(problem, Refusal)
            cost = self.pim_cost(problem, node.placement.choice or "")
            assert isinstance(cost, FakePimCost)
            return FakeCost(cost.time_us, problem.macs * 1e-6, cost)
        if isinstance(node.op, (Slice, Concat, Reshape)):
            return FakeCost(0.02)
        if node.placement.fused_into:
            return FakeCost(0.0)
        speed = 1.0 if self.gpu_channels == 32 else 0.8
        if not isinstance(problem, Refusal):
            return FakeCost(1.0 + problem.macs / (GPU_RATE * speed))
        elements = sum(value.elements for value in graph.out_values(node))
        if isinstance(node.op, Conv2d):
            return FakeCost(1.0 + 4 * 9 * elements / (GPU_RATE * speed))
        return FakeCost(1.0 + elements / (1e6 * speed))


def fake_costs(slow_down: float = 1.0) -> CostModel:
    """The fake with PIM so many times slower."""
    return FakeCosts(slow_down=slow_down)  # type: ignore[return-value]


class Builder:
    """Builds NCHW graphs a node at a time; every method returns the name of the value it makes."""

    def __init__(self, shape: tuple[int, ...], name: str = "built") -> None:
        self.name = name
        self.values = {"x": Value("x", shape)}
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray] = {}

    def _add(self, op: object, inputs: tuple[str, ...], shape: tuple[int, ...], fused: str | None = None) -> str:
        index = len(self.nodes)
        value = f"v{index}"
        node = Node(op, inputs, (value,), f"{type(op).__name__.lower()}{index}")  # type: ignore[arg-type]
        self.nodes.append(node.placed(fused_into=fused) if fused else node)
        self.values[value] = Value(value, shape)
        return value

    def _weights(self, shape: tuple[int, ...]) -> str:
        name = f"w{len(self.nodes)}"
        self.values[name] = Value(name, shape)
        self.constants[name] = np.zeros(shape, np.float32)
        return name

    def conv(self, x: str, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> str:
        n, c, h, w = self.values[x].shape or ()
        pad = kernel // 2
        weights = self._weights((channels, c // groups, kernel, kernel))
        out = [window_out(size, kernel, stride, pad, pad, 1) for size in (h, w)]
        op = Conv2d((kernel, kernel), (stride, stride), (pad,) * 4, (1, 1), groups)
        return self._add(op, (x, weights), (n, channels, *out))

    def depthwise(self, x: str, kernel: int = 3, stride: int = 1) -> str:
        channels = (self.values[x].shape or ())[1]
        return self.conv(x, channels, kernel, stride, groups=channels)

    def relu(self, x: str, fused: bool = True) -> str:
        maker = next(node for node in self.nodes if x in node.outputs)
        into = maker.placement.fused_into or maker.name
        return self._add(Elementwise("Relu"), (x,), self.values[x].shape or (), into if fused else None)

    def add(self, a: str, b: str) -> str:
        return self._add(Elementwise("Add"), (a, b), self.values[a].shape or ())

    def max_pool(self, x: str) -> str:
        n, c, h, w = self.values[x].shape or ()
        return self._add(Pool2d("max", (2, 2), (2, 2)), (x,), (n, c, (h - 2) // 2 + 1, (w - 2) // 2 + 1))

    def classifier(self, x: str, classes: int) -> str:
        n, c = (self.values[x].shape or ())[:2]
        pooled = self._add(GlobalPool("average"), (x,), (n, c, 1, 1))
        flat = self._add(Reshape((n, c)), (pooled,), (n, c))
        return self._add(Gemm(), (flat, self._weights((c, classes))), (n, classes))

    def graph(self, *outputs: str) -> Graph:
        return Graph(self.name, ("x",), outputs, tuple(self.nodes), self.values, self.constants)


def inverted_residuals(blocks: int = 2, size: int = 14) -> Graph:
    """1x1 -> depthwise -> 1x1 blocks with a residual add, as MobileNetV2 has them; a classifier at the end."""
    build = Builder((1, 3, 2 * size, 2 * size), "inverted")
    x = build.relu(build.conv("x", 32, 3, 2))
    for _ in range(blocks):
        wide = build.relu(build.conv(x, 192))
        y = build.conv(build.relu(build.depthwise(wide)), 32)
        x = build.add(x, y)
    return build.graph(build.classifier(x, 100))


def heavy_chain(size: int = 28) -> Graph:
    """Convolutions that are large enough for both devices to work on one at once, with a residual add."""
    build = Builder((1, 128, size, size), "heavy")
    x = build.relu(build.conv("x", 256, 3))
    y = build.relu(build.conv(x, 256, 3))
    x = build.add(x, build.conv(y, 256, 3))
    return build.graph(build.conv(x, 512, 3, 2))


def fire_modules(size: int = 28) -> Graph:
    """Two branches of different weight between a fork and a join, twice."""
    build = Builder((1, 64, size, size), "fire")
    x = "x"
    for _ in range(2):
        squeezed = build.relu(build.conv(x, 32))
        one = build.relu(build.conv(squeezed, 64))
        three = build.relu(build.conv(squeezed, 64, 3))
        x = build.add(one, three)
    return build.graph(x)


def random_graph(seed: int) -> Graph:
    """A random chain with skips, strides, pools, depthwise layers and forks."""
    rng = random.Random(seed)
    build = Builder((rng.choice((1, 1, 2)), 16, rng.choice((14, 17, 28)), 14), f"random{seed}")
    x = "x"
    for _ in range(rng.randint(4, 9)):
        kind = rng.choice(("pointwise", "conv", "depthwise", "residual", "pool", "fork"))
        channels = rng.choice((16, 64, 160))
        if kind == "pointwise":
            x = build.relu(build.conv(x, channels), fused=rng.random() < 0.8)
        elif kind == "conv":
            x = build.conv(x, channels, rng.choice((2, 3, 5)), rng.choice((1, 1, 2)))
        elif kind == "depthwise":
            x = build.relu(build.depthwise(x, 3, rng.choice((1, 2))))
        elif kind == "pool" and min((build.values[x].shape or ())[2:]) >= 4:
            x = build.max_pool(x)
        elif kind == "fork":
            x = build.add(build.relu(build.conv(x, channels)), build.conv(x, channels, 3))
        else:
            y = build.conv(build.relu(build.depthwise(x)), (build.values[x].shape or ())[1])
            x = build.add(x, y)
    return build.graph(x)
