"""Kernels of random shapes, each as a graph of one node, for `measure.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from pimflow.ir import Builder, Graph, MatMul

Shape = Callable[[np.random.Generator], Graph]
_MOST_MACS = 3e11
_MOST_ELEMENTS = 1 << 28


def random_kernels(operand: str) -> Iterator[Graph]:
    """Endless graphs of one node, the kinds in turn, so that any number of them is balanced; the same in every run."""
    random = np.random.default_rng(17 if operand == "fp16" else 23)
    kinds = (_linear, _pointwise, _window, _linear, _elementwise, _batched, _depthwise, _window, _softmax, _norm)
    while True:
        for kind in kinds:
            graph = None
            while graph is None:
                graph = kind(random)
            yield graph


def _size(random: np.random.Generator, low: int, high: int, multiple: int = 1) -> int:
    """A number between two others, evenly on a logarithmic scale, and a multiple of a third in most cases."""
    found = math.exp(random.uniform(math.log(low), math.log(high)))
    if random.random() < 0.1:
        return max(1, round(found))
    return max(multiple, round(found / multiple) * multiple)


def _linear(random: np.random.Generator) -> Graph | None:
    m, k, n = _size(random, 1, 16384), _size(random, 16, 8192, 8), _size(random, 16, 16384, 8)
    if float(m) * k * n > _MOST_MACS or max(m * k, k * n, m * n) > _MOST_ELEMENTS:
        return None
    build = Builder()
    return build.graph(build.gemm(build.input(m, k), n))


def _batched(random: np.random.Generator) -> Graph | None:
    batch, m, k, n = _size(random, 1, 512), *(_size(random, 16, 2048, 8) for _ in range(3))
    if float(batch) * m * k * n > _MOST_MACS or batch * max(m * k, k * n, m * n) > _MOST_ELEMENTS:
        return None
    build = Builder()
    return build.graph(build.op(MatMul(), build.input(batch, m, k), build.input(batch, k, n, name="y")))


def _pointwise(random: np.random.Generator) -> Graph | None:
    return _convolution(random, 1, 1 if random.random() < 0.85 else 2)


def _window(random: np.random.Generator) -> Graph | None:
    return _convolution(random, int(random.choice((3, 3, 3, 5, 7))), 1 if random.random() < 0.7 else 2)


def _convolution(random: np.random.Generator, kernel: int, stride: int) -> Graph | None:
    side = int(random.choice((7, 8, 14, 16, 28, 32, 56, 64, 112, 128)))
    images, inner, outer = _size(random, 1, 64), _size(random, 8, 2048, 8), _size(random, 8, 2048, 8)
    macs = float(images) * (side / stride) ** 2 * kernel**2 * inner * outer
    if macs > _MOST_MACS or images * side**2 * max(inner, outer) > _MOST_ELEMENTS or kernel > side:
        return None
    build = Builder()
    x = build.input(images, inner, side, side)
    return build.graph(build.conv(x, outer, kernel, stride=stride, pad=kernel // 2))


def _depthwise(random: np.random.Generator) -> Graph | None:
    side, kernel = int(random.choice((7, 14, 28, 56, 112))), int(random.choice((3, 3, 5)))
    images, channels = _size(random, 1, 32), _size(random, 16, 1536, 8)
    if images * side**2 * channels > _MOST_ELEMENTS:
        return None
    build = Builder()
    x = build.input(images, channels, side, side)
    return build.graph(build.depthwise(x, kernel, stride=1 if random.random() < 0.7 else 2))


def _matrix(random: np.random.Generator) -> tuple[int, int]:
    columns = _size(random, 16, 16384, 8)
    return _size(random, 1, max(2, min(1 << 17, _MOST_ELEMENTS // columns))), columns


def _elementwise(random: np.random.Generator) -> Graph:
    build, shape = Builder(), _matrix(random)
    x = build.input(*shape)
    kind = str(random.choice(("Relu", "Add", "Mul", "Sigmoid", "Gelu")))
    operands = (x, build.input(*shape, name="y")) if kind in ("Add", "Mul") else (x,)
    return build.graph(build.elementwise(kind, *operands))


def _softmax(random: np.random.Generator) -> Graph:
    build, shape = Builder(), _matrix(random)
    return build.graph(build.onnx("Softmax", build.input(*shape), axis=-1))


def _norm(random: np.random.Generator) -> Graph:
    build, (rows, columns) = Builder(), _matrix(random)
    scale, shift = build.weights(columns), build.weights(columns)
    return build.graph(build.onnx("LayerNormalization", build.input(rows, columns), scale, shift, axis=-1))
