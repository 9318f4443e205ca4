"""Output shapes and element types of the typed ops, from their input values."""

from __future__ import annotations

from collections.abc import Sequence

from pimflow.errors import GraphError
from pimflow.ir.analysis.rows import Shape
from pimflow.ir.graph import Value
from pimflow.ir.ops.base import Op
from pimflow.records import NamedTuple


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
    shapes = [None if value is None else _static(op, value) for value in inputs]
    if not shapes or shapes[0] is None:
        raise GraphError(f"{op.onnx_name} has no first input")
    shape = op.shape_rule(shapes)
    if any(dim < 0 for dim in shape):
        raise GraphError(f"{op.onnx_name} of input shapes {shapes} would have the shape {shape}")
    return (TensorType(shape, op.dtype_rule([value.dtype for value in inputs if value is not None])),)


def _static(op: Op, value: Value) -> Shape:
    if value.shape is None:
        raise GraphError(f"{op.onnx_name} reads {value.name!r}, which has no static shape")
    return value.shape
