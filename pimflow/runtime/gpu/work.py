"""The work of an operation on a GPU: multiply-accumulates, operations and bytes, derived from its shapes.

The only inputs are the op and the shapes and element types of its operands; the GPU's cost model determines the cost of
the work. Bytes count every operand once: repeated reads come from cache (their cost is the tile traffic in
`kernels.py`). Floating-point tensors count at the width in which the GPU computes, all others at their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal

import numpy as np

from pimflow.ir import (
    Array,
    BatchNorm,
    Concat,
    Conv2d,
    Elementwise,
    Gemm,
    GlobalPool,
    Graph,
    MatMul,
    Node,
    Op,
    OpRules,
    Pad,
    Pool2d,
    Reshape,
    Shape,
    Slice,
    Transpose,
    Value,
)
from pimflow.ir.analysis.content import content_arrays
from pimflow.records import dataclass
from pimflow.runtime.sparse_traffic import Cache, RowAccess, SparseWork


@dataclass(frozen=True, slots=True)
class Window:
    """The properties of a convolution that a matrix product does not have.

    Args:
        outputs: number of images, and rows and columns of their maps.
        channels: input channels of one group.
        kernel, strides, dilations: properties of its windows.
        skipped_bytes: bytes of its input that no window reads, as a stride is larger than the kernel.
    """

    outputs: tuple[int, int, int]
    channels: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    skipped_bytes: int

    @property
    def is_weight_gradient(self) -> bool:
        """Whether windows are larger than the map of results, as in the gradient of weights, where a window is a map of
        the result's gradient and a channel is an image. Patches, whose windows do not overlap, do not count."""
        return math.prod(self.kernel) > math.prod(self.outputs[1:]) and self.strides != self.kernel


@dataclass(frozen=True, slots=True)
class MatrixWork:
    """`groups` products of an m x k by a k x n matrix, as a GEMM or an implicit GEMM. `bytes` leave or enter DRAM.

    `window` has further properties of a two-dimensional convolution. `whole_k` means that no kernel of a library that
    cuts K can be used, as the rows of the matrix overlap.
    """

    m: int
    n: int
    k: int
    groups: int
    bytes: int
    convolution: bool = False
    window: Window | None = None
    whole_k: bool = False

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.m * self.n * self.k * self.groups

    @property
    def results(self) -> int:
        """Elements of all products."""
        return self.m * self.n * self.groups

    def blocks(self, rows: int, columns: int) -> int:
        """The number of tiles of `rows` x `columns` that cover all results."""
        return self.groups * -(-self.m // rows) * -(-self.n // columns)


@dataclass(frozen=True)
class SegmentedWork(MatrixWork):
    """Products of segments of rows, each with its own matrix, in one kernel; `segments` holds the rows of each.

    `m` is their mean, rounded up. Rows read by index are `gathered`; tiles load them like any operand. Rows read or
    updated after the products are `scattered`. `bytes` includes neither. `cache_bytes` pass the second-level cache in
    addition to the operands of tiles.
    """

    segments: tuple[int, ...] = ()
    gathered: RowAccess | None = None
    scattered: tuple[RowAccess, ...] = ()
    cache_bytes: int = 0

    def with_cache(self, cache: Cache) -> SegmentedWork:
        """The work with the bytes that miss a cache, of rows read by index or updated."""
        accesses = (*self.scattered, *(() if self.gathered is None else (self.gathered,)))
        if not accesses:
            return self
        moved = sum(access.memory_bytes(cache) for access in accesses)
        passed = sum(access.requested_bytes(cache) for access in self.scattered)
        return replace(self, bytes=self.bytes + moved, gathered=None, scattered=(), cache_bytes=passed)

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return sum(self.segments) * self.n * self.k

    @property
    def results(self) -> int:
        """Elements of all products."""
        return sum(self.segments) * self.n

    def blocks(self, rows: int, columns: int) -> int:
        """The number of tiles; no tile has rows of two segments."""
        return sum(-(-segment // rows) for segment in self.segments) * -(-self.n // columns)


@dataclass(frozen=True, slots=True)
class DepthwiseWork:
    """A convolution with one input channel per group, or the gradient of its weights: `macs` multiply-accumulates,
    without reuse across channels. A result is a sum over `taps` elements of a window.

    For a kernel that is not in the library, `macs_per_sm_cycle` is its rate and `chain_us` the time of one result.
    """

    macs: int
    bytes: int
    macs_per_sm_cycle: float | None = None
    chain_us: float = 0.0
    taps: int = 0


StreamKind = Literal["elementwise", "softmax", "normalization"]
"""Kinds of kernels that stream their operands: reductions over rows have their own kernels."""


@dataclass(frozen=True, slots=True)
class StreamWork:
    """Any other kernel: `operations` arithmetic operations on `bytes` that pass through once.

    A softmax or a normalisation is of `rows` rows of `columns` elements; both are 0 for all others, or if unknown.
    """

    operations: int
    bytes: int
    kind: StreamKind = "elementwise"
    rows: int = 0
    columns: int = 0

    @property
    def macs(self) -> int:
        """Zero."""
        return 0


@dataclass(frozen=True)
class CachedWork(StreamWork):
    """A kernel that passes `cache_bytes` more bytes through the second-level cache than through DRAM.

    `multiplied` are multiply-accumulates among its operations.
    """

    cache_bytes: int = 0
    multiplied: int = 0

    @property
    def macs(self) -> int:
        """Multiply-accumulates on the vector lanes."""
        return self.multiplied


GpuWork = MatrixWork | DepthwiseWork | StreamWork | SparseWork
"""The work of one kernel. `SparseWork` becomes `CachedWork` once the cache is known."""


@dataclass(frozen=True)
class KernelSequence:
    """Kernels that a library runs one after the other for one node, each with its number of executions. `unknown` says
    what is missing or inaccurate, and why ("": nothing)."""

    kernels: tuple[tuple[GpuWork, int], ...]
    unknown: str = ""

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all of them."""
        return sum(work.macs * times for work, times in self.kernels)


NodeWork = GpuWork | KernelSequence
"""The work of one node."""

# Operations per input element, counted from the definitions (a transcendental function counts as 4: one issue of the
# quarter-rate special-function unit). Softmax: maximum, subtract, exponential, sum, divide. LayerNormalization: two
# moments, subtract, scale, multiply, add. All functions that are not listed: one per element.
OPERATIONS = {
    "Softmax": 8,
    "LogSoftmax": 9,
    "LayerNormalization": 8,
    "InstanceNormalization": 8,
    "GroupNormalization": 8,
    "LpNormalization": 4,
    "Sigmoid": 6,
    "Tanh": 6,
    "Exp": 4,
    "Log": 4,
    "Erf": 8,
    "Gelu": 10,
    "Sqrt": 4,
    "Div": 4,
    "Pow": 8,
    "HardSwish": 4,
    "HardSigmoid": 3,
    "Softplus": 9,
    "Mish": 14,
    "Clip": 2,
}


@dataclass(frozen=True, slots=True)
class Operands:
    """The operands and results of a kernel.

    Args:
        inputs: its operands, without optional ones that are absent.
        outputs: its results.
        element_bytes: bytes of one floating-point element on the GPU.
        constants: arrays of `Op.content_positions` by position; empty if only shapes are known.
        given: all operands by position, None where an optional one is absent.
        opset: operator set versions by domain, of the node's graph.
    """

    inputs: Sequence[Value]
    outputs: Sequence[Value]
    element_bytes: int
    constants: Mapping[int, Array] = field(default_factory=dict)
    given: Sequence[Value | None] = ()
    opset: Mapping[str, int] = field(default_factory=dict)

    @property
    def output(self) -> Value:
        """The first result."""
        return self.outputs[0]

    @property
    def bytes(self) -> int:
        """Bytes of all operands and results, each counted once."""
        elements: dict[str, int] = {}
        for value in (*self.inputs, *self.outputs):
            elements[value.dtype] = elements.get(value.dtype, 0) + value.elements
        return sum([number * element_width(dtype, self.element_bytes) for dtype, number in elements.items()])


GPU_WORK: OpRules[Callable[[Any, Operands], NodeWork | None]] = OpRules("work on the GPU")
"""Functions that return the work of an op on a GPU; None if nothing runs (views and shape arithmetic)."""


def gpu_work(
    op: Op,
    inputs: Sequence[Value | None],
    outputs: Sequence[Value],
    element_bytes: int,
    constants: Mapping[int, Array] | None = None,
    opset: Mapping[str, int] | None = None,
) -> NodeWork | None:
    """The work of one node; None if nothing runs (views and shape arithmetic).

    Args:
        op: the operation.
        inputs: its operands, None where an optional one is absent.
        outputs: its results.
        element_bytes: bytes of one floating-point element on the GPU.
        constants: arrays of `op.content_positions` by position, if known.
        opset: operator set versions by domain, for ops with bodies.
    """
    present = [value for value in inputs if value is not None]
    return GPU_WORK.of(op)(op, Operands(present, outputs, element_bytes, constants or {}, inputs, opset or {}))


def node_work(graph: Graph, node: Node, element_bytes: int) -> NodeWork | None:
    """`gpu_work` of a node of a graph."""
    inputs, outputs = graph.in_values(node), graph.out_values(node)
    return gpu_work(node.op, inputs, outputs, element_bytes, content_arrays(graph, node), graph.opset)


def value_bytes(value: Value, element_bytes: int) -> int:
    """Bytes of a tensor on the GPU; 0 if its shape is unknown."""
    return value.elements * element_width(value.dtype, element_bytes)


def element_width(dtype: str, element_bytes: int) -> int:
    """Bytes of one element on the GPU: `element_bytes` for floating-point types, else the type's own size."""
    if dtype in ("", "bfloat16") or dtype.startswith("float") or "(" in dtype:  # sequences and maps have no elements
        return element_bytes
    try:
        return np.dtype(dtype).itemsize
    except TypeError:
        return element_bytes


@GPU_WORK.register(Conv2d)
def _convolution(op: Conv2d, operands: Operands) -> GpuWork:
    weights, output, moved = operands.inputs[1].shape, operands.output, operands.bytes
    if weights is None or output.shape is None:
        return StreamWork(0, moved)
    out_channels, depth = weights[0], math.prod(weights[1:])
    if op.groups > 1 and weights[1] == 1:
        return DepthwiseWork(output.elements * depth, moved, taps=depth)
    pixels = output.elements // max(out_channels, 1)
    window = _window(op, operands, weights[1])
    if 1 < op.groups == out_channels and window is not None and window.is_weight_gradient and window.outputs[0] == 1:
        return DepthwiseWork(output.elements * depth, moved)  # separate blocks sum up the windows of each channel
    return MatrixWork(pixels, out_channels // op.groups, depth, op.groups, moved, convolution=True, window=window)


def _window(op: Conv2d, operands: Operands, channels: int) -> Window | None:
    shape = operands.output.shape
    if shape is None or len(shape) != 4:
        return None
    touched = math.prod(min(1.0, size / step) for size, step in zip(op.kernel, op.strides, strict=True))
    skipped = round(value_bytes(operands.inputs[0], operands.element_bytes) * (1 - touched))
    return Window((shape[0], *shape[2:]), channels, op.kernel, op.strides, op.dilations, skipped)


@GPU_WORK.register(Gemm)
def _gemm(op: Gemm, operands: Operands) -> GpuWork:
    left, out = operands.inputs[0].shape, operands.output.shape
    if left is None or out is None:
        return StreamWork(0, operands.bytes)
    return MatrixWork(out[0], out[1], left[0] if op.trans_a else left[1], 1, operands.bytes)


@GPU_WORK.register(MatMul)
def _matmul(op: MatMul, operands: Operands) -> GpuWork:
    left, right = operands.inputs[0].shape, operands.inputs[1].shape
    if not left or not right:
        return StreamWork(0, operands.bytes)
    return batched_product(left, right, operands.output.elements, operands.bytes)


def batched_product(left: Shape, right: Shape, results: int, moved: int) -> MatrixWork:
    """The work of a numpy.matmul with `results` result elements that moves `moved` bytes."""
    columns = right[-1] if len(right) > 1 else 1
    rows = left[-2] if len(left) > 1 else 1
    products = max(results // max(rows * columns, 1), 1)
    if math.prod(right[:-2]) == 1:  # one right-hand side for the whole batch: a single taller product
        return MatrixWork(rows * products, columns, left[-1], 1, moved)
    return MatrixWork(rows, columns, left[-1], products, moved)


@GPU_WORK.register(Pool2d)
def _pool(op: Pool2d, operands: Operands) -> GpuWork:
    return StreamWork(operands.output.elements * op.kernel[0] * op.kernel[1], operands.bytes)


@GPU_WORK.register(GlobalPool)
def _global_pool(op: GlobalPool, operands: Operands) -> GpuWork:
    return StreamWork(operands.inputs[0].elements, operands.bytes)


@GPU_WORK.register(BatchNorm)
def _batch_norm(op: BatchNorm, operands: Operands) -> GpuWork:
    return StreamWork(2 * operands.output.elements, operands.bytes)


@GPU_WORK.register(Elementwise)
def _elementwise(op: Elementwise, operands: Operands) -> GpuWork:
    operations = operands.output.elements * OPERATIONS.get(op.kind, 1) * max(len(operands.inputs) - 1, 1)
    return StreamWork(operations, operands.bytes)


@GPU_WORK.register(Slice, Pad, Concat, Transpose)
def _copy(op: Op, operands: Operands) -> GpuWork:
    return StreamWork(0, 2 * value_bytes(operands.output, operands.element_bytes))


@GPU_WORK.register(Reshape)
def _view(op: Reshape, operands: Operands) -> None:
    """Nothing runs."""
