"""What an operation asks of a GPU: multiply-accumulates, operations and bytes, from its shapes alone.

The only inputs are the op and the shapes and element types of its operands; what the work costs is `gpu_kernels`' job.
Bytes count every operand once: what is read several times is read from cache (its cost is the tile traffic in
`gpu_kernels`). Floating-point tensors count at the width that the GPU computes in, all others at their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pimflow.ir import (
    BatchNorm,
    Concat,
    Conv2d,
    Elementwise,
    Gemm,
    GlobalPool,
    MatMul,
    OnnxOp,
    Op,
    Pad,
    Pool2d,
    Reshape,
    Slice,
    Transpose,
    Value,
)


@dataclass(frozen=True)
class MatrixWork:
    """`groups` products of an m x k by a k x n matrix, as a GEMM or an implicit GEMM. `bytes` leave or enter DRAM."""

    m: int
    n: int
    k: int
    groups: int
    bytes: int
    convolution: bool = False

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.m * self.n * self.k * self.groups


@dataclass(frozen=True)
class DepthwiseWork:
    """A convolution with one input channel per group: `macs` multiply-accumulates, no reuse across channels."""

    macs: int
    bytes: int


@dataclass(frozen=True)
class StreamWork:
    """Any other kernel: `operations` arithmetic operations over `bytes` that pass through once."""

    operations: int
    bytes: int


GpuWork = MatrixWork | DepthwiseWork | StreamWork

_FREE = frozenset({"Identity", "Shape", "Size", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout", "Constant"})
# Operations per input element, counted from the definitions (a transcendental function counts as 4: one issue of the
# quarter-rate special-function unit). Softmax: maximum, subtract, exponential, sum, divide. LayerNormalization: two
# moments, subtract, scale, multiply, add. Everything else that is unknown: one per element.
_OPERATIONS = {
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
# Convolutions that the compiler only carries: where their weights are among the operands.
_WEIGHTS_AT = {"Conv": 1, "ConvTranspose": 1, "ConvInteger": 1, "QLinearConv": 3, "DeformConv": 1}
# Kernels that read a table by index touch what they return, not the table.
_GATHERS = frozenset({"Gather", "GatherElements", "GatherND", "Embedding"})


def gpu_work(op: Op, inputs: Sequence[Value | None], outputs: Sequence[Value], element_bytes: int) -> GpuWork | None:
    """The work of one node; None where nothing runs (views and shape arithmetic).

    Args:
        op: the operation.
        inputs: its operands, None where an optional one is absent.
        outputs: its results.
        element_bytes: bytes of one floating-point element on the GPU.
    """
    present = [value for value in inputs if value is not None]
    moved = sum(value_bytes(value, element_bytes) for value in (*present, *outputs))
    if isinstance(op, Conv2d):
        return _convolution(op, present, outputs[0], moved)
    if isinstance(op, Gemm):
        return _gemm(op, present, outputs[0], moved)
    if isinstance(op, MatMul):
        return _matmul(present, outputs[0], moved)
    if isinstance(op, Reshape):
        return None
    if isinstance(op, (Slice, Pad, Concat, Transpose)):
        return StreamWork(0, 2 * value_bytes(outputs[0], element_bytes))
    if isinstance(op, OnnxOp):
        return _other(op, present, outputs, element_bytes, moved)
    return StreamWork(_operations(op, present, outputs[0]), moved)


def value_bytes(value: Value, element_bytes: int) -> int:
    """Bytes of a tensor on the GPU; 0 where its shape is unknown."""
    return value.elements * element_width(value.dtype, element_bytes)


def element_width(dtype: str, element_bytes: int) -> int:
    """Bytes of one element on the GPU: `element_bytes` for floating-point types, else the type's own size."""
    if dtype in ("", "bfloat16") or dtype.startswith("float"):
        return element_bytes
    try:
        return np.dtype(dtype).itemsize
    except TypeError:
        return element_bytes


def _convolution(op: Conv2d, inputs: Sequence[Value], output: Value, moved: int) -> GpuWork:
    if inputs[1].shape is None or output.shape is None:
        return StreamWork(0, moved)
    out_channels, depth = inputs[1].shape[0], math.prod(inputs[1].shape[1:])
    if op.groups > 1 and inputs[1].shape[1] == 1:
        return DepthwiseWork(output.elements * depth, moved)
    pixels = output.elements // max(out_channels, 1)
    return MatrixWork(pixels, out_channels // op.groups, depth, op.groups, moved, convolution=True)


def _other_convolution(op: OnnxOp, source: Value, weights: Value, output: Value, moved: int) -> GpuWork:
    """Convolutions of other ranks and types, and transposed ones, as implicit GEMMs over their windows.

    A transposed convolution is the gradient of one: a product of every input pixel with all its weights.
    """
    groups = next((int(value) for key, value in op.attributes if key == "group" and isinstance(value, int)), 1)
    if weights.shape is None or len(weights.shape) < 3 or not output.elements or not source.elements:
        return StreamWork(0, moved)
    transposed = op.op_type == "ConvTranspose"
    window = math.prod(weights.shape[1:])
    if groups > 1 and weights.shape[1] == 1:
        return DepthwiseWork((source if transposed else output).elements * window, moved)
    pixels = (source if transposed else output).elements // max(weights.shape[0], 1)
    columns, depth = (window, weights.shape[0] // groups) if transposed else (weights.shape[0] // groups, window)
    return MatrixWork(pixels, columns, depth, groups, moved, convolution=True)


def _gemm(op: Gemm, inputs: Sequence[Value], output: Value, moved: int) -> GpuWork:
    left = inputs[0].shape
    if left is None or output.shape is None:
        return StreamWork(0, moved)
    return MatrixWork(output.shape[0], output.shape[1], left[0] if op.trans_a else left[1], 1, moved)


def _matmul(inputs: Sequence[Value], output: Value, moved: int) -> GpuWork:
    left, right = inputs[0].shape, inputs[1].shape
    if not left or not right:
        return StreamWork(0, moved)
    columns = right[-1] if len(right) > 1 else 1
    rows = left[-2] if len(left) > 1 else 1
    products = max(output.elements // max(rows * columns, 1), 1)
    if math.prod(right[:-2]) == 1:  # one right-hand side for the whole batch: a single taller product
        return MatrixWork(rows * products, columns, left[-1], 1, moved)
    return MatrixWork(rows, columns, left[-1], products, moved)


def _operations(op: Op, inputs: Sequence[Value], output: Value) -> int:
    if isinstance(op, Pool2d):
        return output.elements * op.kernel[0] * op.kernel[1]
    if isinstance(op, GlobalPool):
        return inputs[0].elements
    if isinstance(op, BatchNorm):
        return 2 * output.elements
    if isinstance(op, Elementwise):
        return output.elements * _OPERATIONS.get(op.kind, 1) * max(len(inputs) - 1, 1)
    return output.elements


def _other(
    op: OnnxOp, inputs: Sequence[Value], outputs: Sequence[Value], element_bytes: int, moved: int
) -> GpuWork | None:
    if op.op_type in _FREE:
        return None
    if op.op_type in _GATHERS:
        returned = sum(value_bytes(value, element_bytes) for value in outputs)
        indices = sum(value_bytes(value, element_bytes) for value in inputs[1:])
        return StreamWork(0, 2 * returned + indices)
    if op.op_type in _WEIGHTS_AT and len(inputs) > _WEIGHTS_AT[op.op_type]:
        return _other_convolution(op, inputs[0], inputs[_WEIGHTS_AT[op.op_type]], outputs[0], moved)
    elements = max((value.elements for value in (*inputs, *outputs)), default=0)
    if op.op_type == "LRN":
        size = next((int(value) for key, value in op.attributes if key == "size" and isinstance(value, int)), 5)
        return StreamWork(elements * (2 * size + 10), moved)
    return StreamWork(elements * _OPERATIONS.get(op.op_type, 1), moved)
