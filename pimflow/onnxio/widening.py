"""Graphs in single precision: a model's computation without rounding to 16 bits, or of products' operands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx

from pimflow.ir import Array, Graph, OnnxOp, OpaqueAttribute, Value
from pimflow.ir.ops.opaque import AttributeValue
from pimflow.onnxio.captures import subgraphs
from pimflow.onnxio.tensors import attribute_proto, dtype_code, to_array, to_tensor

NARROW = frozenset({"float16", "bfloat16"})
"""Floating-point types with less precision than single precision."""

WIDE = "float32"

_CODES = frozenset(map(dtype_code, NARROW))
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype"})
"""Attributes that specify the element type of a node's result."""

ACCURACY = "accuracy_level"
"""Attribute of products with few-bit weights: the precision to which a kernel may round the left-hand side."""

EIGHT_BITS = 4
"""Its value for 8-bit integers, in blocks."""

_UNROUNDED = 1
"""Its value for single precision."""


def is_narrow(graph: Graph) -> bool:
    """Whether some value is a 16-bit floating-point number, also in subgraphs, and if only a Cast says so."""
    ops = (node.op for node in graph.nodes if isinstance(node.op, OnnxOp))
    return any(value.dtype in NARROW for value in graph.values.values()) or any(map(_makes_narrow, ops))


def _makes_narrow(op: OnnxOp) -> bool:
    """Whether attributes of an operator say that it makes 16-bit floating-point numbers."""
    return any(
        _names_narrow(attribute_proto(name, value))
        for name, value in op.attributes
        if name in _TYPE_ATTRIBUTES or isinstance(value, OpaqueAttribute)
    )


def _names_narrow(proto: onnx.AttributeProto) -> bool:
    """Whether an attribute names such a type, holds such a tensor, or has a subgraph that does."""
    if proto.name in _TYPE_ATTRIBUTES:
        return proto.i in _CODES
    return any(tensor.data_type in _CODES for tensor in _tensors(proto)) or any(
        any(tensor.data_type in _CODES for tensor in graph.initializer)
        or any(_names_narrow(attribute) for node in graph.node for attribute in node.attribute)
        for graph in subgraphs([proto])
    )


def widened(graph: Graph) -> Graph:
    """The same graph with single precision in place of 16-bit floating-point numbers, in subgraphs too.

    Kernels are not allowed to round operands of products either.
    """
    return graph.replace(
        nodes=[replace(node, op=_wide_op(node.op)) if isinstance(node.op, OnnxOp) else node for node in graph.nodes],
        values={name: _wide_value(value) for name, value in graph.values.items()},
        constants={name: single_precision(array) for name, array in graph.constants.items()},
        packed={},
    )


def single_precision(array: Array) -> Array:
    """The array, converted to single precision if it holds 16-bit floating-point numbers."""
    wide: Array = array.astype(WIDE) if array.dtype.name in NARROW else array
    return wide


def _wide_value(value: Value) -> Value:
    dtype = value.dtype
    for narrow in NARROW:
        dtype = WIDE if dtype == narrow else dtype.replace(f"({narrow})", f"({WIDE})")
    return value if dtype == value.dtype else replace(value, dtype=dtype)


def _wide_op(op: OnnxOp) -> OnnxOp:
    return replace(op, attributes=tuple((name, _wide_attribute(name, value)) for name, value in op.attributes))


def _wide_attribute(name: str, value: AttributeValue) -> AttributeValue:
    if name in _TYPE_ATTRIBUTES and isinstance(value, int):
        return dtype_code(WIDE) if value in _CODES else value
    if name == ACCURACY:
        return _UNROUNDED
    if not isinstance(value, OpaqueAttribute):
        return value
    proto = attribute_proto(name, value)
    _widen(proto)
    return OpaqueAttribute(proto.SerializeToString(deterministic=True))


def _widen(proto: onnx.AttributeProto) -> None:
    """Widens types in an attribute, including its subgraphs, in place."""
    if proto.name in _TYPE_ATTRIBUTES and proto.i in _CODES:
        proto.i = dtype_code(WIDE)
    if proto.name == ACCURACY:
        proto.i = _UNROUNDED
    for tensor in _tensors(proto):
        _widen_tensor(tensor)
    for graph in subgraphs([proto]):
        for tensor in graph.initializer:
            _widen_tensor(tensor)
        for info in (*graph.input, *graph.output, *graph.value_info):
            if info.type.tensor_type.elem_type in _CODES:
                info.type.tensor_type.elem_type = dtype_code(WIDE)
        for attribute in (attribute for node in graph.node for attribute in node.attribute):
            _widen(attribute)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _CODES:
        tensor.CopyFrom(to_tensor(tensor.name, to_array(tensor).astype(np.float32)))


def _tensors(proto: onnx.AttributeProto) -> list[onnx.TensorProto]:
    return [proto.t] if proto.HasField("t") else list(proto.tensors)
