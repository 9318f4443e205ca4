"""Output shapes and element types of the typed ops, from their input values: ONNX's own formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pimflow.errors import GraphError
from pimflow.ir.graph import Value
from pimflow.ir.ops import (
    BatchNorm,
    Concat,
    Conv2d,
    Elementwise,
    Gemm,
    GlobalPool,
    MatMul,
    Op,
    Pad,
    Pool2d,
    Reshape,
    Slice,
    Transpose,
    op_name,
    window_out,
)

Shape = tuple[int, ...]

PREDICATES = frozenset(
    {"Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Xor", "Not", "IsNaN", "IsInf"}
)
"""Elementwise kinds whose result is boolean whatever their inputs are."""


class TensorType(NamedTuple):
    """A static shape and an element type (numpy's name)."""

    shape: Shape
    dtype: str


def infer(op: Op, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
    """The shape and element type of each output of a typed op (every typed op has one output).

    Args:
        op: any op but `OnnxOp`.
        inputs: the values read, None for absent optional inputs.

    Raises:
        GraphError: the op is an `OnnxOp`, an input has no static shape, or the shapes do not fit the op.
    """
    rule = _RULES.get(type(op))
    if rule is None:
        raise GraphError(f"{op_name(op)} is opaque: its output shapes are not known from its inputs alone")
    shapes = [None if value is None else _static(op, value) for value in inputs]
    if not shapes or shapes[0] is None:
        raise GraphError(f"{op_name(op)} has no first input")
    shape = rule(op, shapes)
    if any(dim < 0 for dim in shape):
        raise GraphError(f"{op_name(op)} of input shapes {shapes} would have the shape {shape}")
    return (TensorType(shape, _dtype(op, inputs)),)


def broadcast(*shapes: Shape) -> Shape:
    """numpy's broadcast of shapes.

    Raises:
        GraphError: they do not broadcast.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    out = []
    for dims in zip(*padded, strict=True):
        sizes = set(dims) - {1}
        if len(sizes) > 1:
            raise GraphError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)


def _static(op: Op, value: Value) -> Shape:
    if value.shape is None:
        raise GraphError(f"{op_name(op)} reads {value.name!r}, which has no static shape")
    return value.shape


def _dtype(op: Op, inputs: Sequence[Value | None]) -> str:
    dtypes = [value.dtype for value in inputs if value is not None]
    if not isinstance(op, Elementwise):
        return dtypes[0]
    if op.kind in PREDICATES:
        return "bool"
    if op.kind == "Where":
        return dtypes[1]
    return dtypes[0]


def _need(condition: bool, op: Op, message: str) -> None:
    if not condition:
        raise GraphError(f"{op_name(op)}: {message}")


def _conv(op: Conv2d, shapes: Sequence[Shape | None]) -> Shape:
    x, w = shapes[0], shapes[1] if len(shapes) > 1 else None
    if x is None or w is None or len(x) != 4 or len(w) != 4:
        raise GraphError(f"Conv needs input and weights of rank 4, has {x} and {w}")
    _need(w[2:] == op.kernel, op, f"weights {w} do not have the kernel {op.kernel}")
    _need(x[1] == w[1] * op.groups, op, f"{x[1]} input channels, weights {w} and {op.groups} groups do not agree")
    _need(w[0] % op.groups == 0, op, f"{w[0]} output channels do not divide into {op.groups} groups")
    bias = shapes[2] if len(shapes) > 2 else None
    _need(bias is None or bias == (w[0],), op, f"bias {bias} does not have one element for each of {w[0]} channels")
    return (x[0], w[0], *_windows(op, x))


def _windows(op: Conv2d | Pool2d, x: Shape) -> Shape:
    ceil = isinstance(op, Pool2d) and op.ceil_mode
    return tuple(
        window_out(x[2 + i], op.kernel[i], op.strides[i], op.pads[i], op.pads[2 + i], op.dilations[i], ceil)
        for i in range(2)
    )


def _gemm(op: Gemm, shapes: Sequence[Shape | None]) -> Shape:
    a, b = shapes[0], shapes[1] if len(shapes) > 1 else None
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        raise GraphError(f"Gemm needs two matrices, has {a} and {b}")
    rows, inner = reversed(a) if op.trans_a else a
    inner_b, columns = reversed(b) if op.trans_b else b
    _need(inner == inner_b, op, f"the inner sizes {inner} and {inner_b} differ")
    c = shapes[2] if len(shapes) > 2 else None
    _need(c is None or broadcast((rows, columns), c) == (rows, columns), op, f"C {c} does not fit {(rows, columns)}")
    return (rows, columns)


def _matmul(op: MatMul, shapes: Sequence[Shape | None]) -> Shape:
    a, b = shapes[0], shapes[1] if len(shapes) > 1 else None
    if not a or not b:
        raise GraphError(f"MatMul needs two tensors of rank 1 or more, has {a} and {b}")
    left = (1, *a) if len(a) == 1 else a
    right = (*b, 1) if len(b) == 1 else b
    _need(left[-1] == right[-2], op, f"the inner sizes of {a} and {b} differ")
    rows = left[-2:-1] if len(a) > 1 else ()
    columns = right[-1:] if len(b) > 1 else ()
    return broadcast(left[:-2], right[:-2]) + rows + columns


def _batch_norm(op: BatchNorm, shapes: Sequence[Shape | None]) -> Shape:
    x = shapes[0]
    if x is None or len(x) < 2:
        raise GraphError(f"BatchNormalization needs an input of rank 2 or more, has {x}")
    _need(len(shapes) == 5, op, f"needs five inputs, has {len(shapes)}")
    _need(all(shape == (x[1],) for shape in shapes[1:]), op, f"statistics {shapes[1:]} do not fit {x[1]} channels")
    return x


def _elementwise(op: Elementwise, shapes: Sequence[Shape | None]) -> Shape:
    return broadcast(*(shape for shape in shapes if shape is not None))


def _pool(op: Pool2d, shapes: Sequence[Shape | None]) -> Shape:
    x = shapes[0]
    if x is None or len(x) != 4:
        raise GraphError(f"{op_name(op)} needs an input of rank 4, has {x}")
    return (*x[:2], *_windows(op, x))


def _global_pool(op: GlobalPool, shapes: Sequence[Shape | None]) -> Shape:
    x = shapes[0]
    if x is None or len(x) != 4:
        raise GraphError(f"{op_name(op)} needs an input of rank 4, has {x}")
    return (*x[:2], 1, 1)


def _slice(op: Slice, shapes: Sequence[Shape | None]) -> Shape:
    x = shapes[0] or ()
    _need(0 <= op.axis < len(x), op, f"axis {op.axis} is not an axis of {x}")
    _need(0 <= op.start <= x[op.axis], op, f"start {op.start} is outside axis {op.axis} of {x}")
    _need(0 <= op.stop <= x[op.axis], op, f"stop {op.stop} is outside axis {op.axis} of {x}")
    _need(op.step > 0, op, f"step {op.step} is not positive")
    length = max(0, -(-(op.stop - op.start) // op.step))
    return (*x[: op.axis], length, *x[op.axis + 1 :])


def _pad(op: Pad, shapes: Sequence[Shape | None]) -> Shape:
    x = shapes[0] or ()
    _need(len(op.before) == len(op.after) == len(x), op, f"widths {op.before} and {op.after} do not fit {x}")
    _need(min((*op.before, *op.after), default=0) >= 0, op, "negative widths are not allowed")
    return tuple(low + dim + high for low, dim, high in zip(op.before, x, op.after, strict=True))


def _concat(op: Concat, shapes: Sequence[Shape | None]) -> Shape:
    parts = [shape for shape in shapes if shape is not None]
    first = parts[0]
    _need(len(parts) == len(shapes), op, "an input is absent")
    _need(0 <= op.axis < len(first), op, f"axis {op.axis} is not an axis of {first}")
    for part in parts:
        same = len(part) == len(first) and all(
            a == b for i, (a, b) in enumerate(zip(part, first, strict=True)) if i != op.axis
        )
        _need(same, op, f"shapes {parts} differ outside axis {op.axis}")
    return (*first[: op.axis], sum(part[op.axis] for part in parts), *first[op.axis + 1 :])


def _reshape(op: Reshape, shapes: Sequence[Shape | None]) -> Shape:
    x = shapes[0] or ()
    _need(math.prod(op.shape) == math.prod(x), op, f"{x} and {op.shape} do not hold the same number of elements")
    return op.shape


def _transpose(op: Transpose, shapes: Sequence[Shape | None]) -> Shape:
    x = shapes[0] or ()
    _need(sorted(op.perm) == list(range(len(x))), op, f"{op.perm} is not a permutation of the axes of {x}")
    return tuple(x[axis] for axis in op.perm)


_RULES: dict[type, Callable[[Any, Sequence[Shape | None]], Shape]] = {
    Conv2d: _conv,
    Gemm: _gemm,
    MatMul: _matmul,
    BatchNorm: _batch_norm,
    Elementwise: _elementwise,
    Pool2d: _pool,
    GlobalPool: _global_pool,
    Slice: _slice,
    Pad: _pad,
    Concat: _concat,
    Reshape: _reshape,
    Transpose: _transpose,
}
