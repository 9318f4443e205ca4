"""The operations that the compiler reasons about, as frozen dataclasses, and `OnnxOp` for all others.

Typed ops do not depend on an opset: the frontend brings every opset's spelling into this form (dims and
bounds that ONNX passes as constant inputs become fields) and writes it back in the model's own opset.
Layout is ONNX's: activations are NCHW, matrices row-major.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Union


@dataclass(frozen=True)
class Conv2d:
    """2-D convolution. Inputs: X [N, C, H, W], W [O, C/groups, kh, kw], optional bias [O]."""

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, left, bottom, right
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1


@dataclass(frozen=True)
class Gemm:
    """alpha * op(A) @ op(B) + beta * C, with op an optional transpose. Inputs: A, B, optional C."""

    alpha: float = 1.0
    beta: float = 1.0
    trans_a: bool = False
    trans_b: bool = False


@dataclass(frozen=True)
class MatMul:
    """numpy.matmul of two inputs, with its batch broadcasting."""


@dataclass(frozen=True)
class BatchNorm:
    """Inference-mode batch normalisation. Inputs: X, scale, bias, mean, variance."""

    epsilon: float = 1e-5


AttributeValue = Union[int, float, str, bytes, tuple[int, ...], tuple[float, ...], tuple[str, ...], "OpaqueAttribute"]
Attributes = tuple[tuple[str, AttributeValue], ...]
"""Attributes as (name, value) pairs, sorted by name."""


@dataclass(frozen=True)
class OpaqueAttribute:
    """An attribute kept as a serialised AttributeProto (tensors, subgraphs, types): carried, not understood."""

    serialized: bytes


@dataclass(frozen=True)
class Elementwise:
    """One output element from the same element of every (broadcast) input: Relu, Add, Mul, Sigmoid, Clip, ...

    `kind` is the ONNX op_type. Clip has its constant bounds as attributes "min" and "max" (either may be absent)
    and one input, whatever the opset; a Clip with computed bounds stays an `OnnxOp`.
    """

    kind: str
    attributes: Attributes = ()


@dataclass(frozen=True)
class Pool2d:
    """Max or average pooling over [N, C, H, W], with one output."""

    kind: Literal["max", "average"]
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, left, bottom, right
    dilations: tuple[int, int] = (1, 1)
    ceil_mode: bool = False
    count_include_pad: bool = False


@dataclass(frozen=True)
class GlobalPool:
    """Mean or max over H and W, which stay as dims of 1."""

    kind: Literal["max", "average"]


@dataclass(frozen=True)
class Slice:
    """Elements start, start + step, .. < stop along one axis (all non-negative, in range)."""

    axis: int
    start: int
    stop: int
    step: int = 1


@dataclass(frozen=True)
class Pad:
    """Constant padding: `before[i]` and `after[i]` elements of `value` on axis i (negative widths not allowed)."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float = 0.0


@dataclass(frozen=True)
class Concat:
    """Concatenation of all inputs along a non-negative axis."""

    axis: int


@dataclass(frozen=True)
class Reshape:
    """The same elements, in the same order, under another (fully known) shape: Reshape, Flatten, Squeeze, Unsqueeze."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Transpose:
    """Permutation of the axes."""

    perm: tuple[int, ...]


@dataclass(frozen=True)
class OnnxOp:
    """Any other ONNX operator: kept as it is, executed by ONNX Runtime, costed on the GPU."""

    op_type: str
    domain: str = ""
    attributes: Attributes = ()


Op = (
    Conv2d
    | Gemm
    | MatMul
    | BatchNorm
    | Elementwise
    | Pool2d
    | GlobalPool
    | Slice
    | Pad
    | Concat
    | Reshape
    | Transpose
    | OnnxOp
)


def op_name(op: Op) -> str:
    """The name a person knows the op by: its ONNX op_type where there is one."""
    if isinstance(op, OnnxOp):
        return op.op_type
    if isinstance(op, Elementwise):
        return op.kind
    if isinstance(op, Conv2d):
        return "Conv"
    if isinstance(op, Pool2d):
        return "MaxPool" if op.kind == "max" else "AveragePool"
    if isinstance(op, GlobalPool):
        return "GlobalMaxPool" if op.kind == "max" else "GlobalAveragePool"
    if isinstance(op, BatchNorm):
        return "BatchNormalization"
    return type(op).__name__


def window_out(size: int, kernel: int, stride: int, before: int, after: int, dilation: int, ceil: bool = False) -> int:
    """Output extent of a sliding window along one axis (ONNX Conv and Pool formula).

    floor or ceil of (size + before + after - dilation*(kernel-1) - 1) / stride, plus 1. With `ceil`, a window that
    would start beyond the input and its leading padding is dropped, as ONNX Runtime does.
    """
    span = size + before + after - dilation * (kernel - 1) - 1
    if not ceil:
        return span // stride + 1
    out = math.ceil(span / stride) + 1
    return out - 1 if (out - 1) * stride >= size + before else out
