"""Conversions of element types, tensors and attributes between ONNX's protobuf forms and ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import EncodeError
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx.checker import ValidationError
from onnx.defs import SchemaError
from onnx.shape_inference import InferenceError

from pimflow.errors import ModelError
from pimflow.ir import Array, OpaqueAttribute, Value
from pimflow.ir.ops.opaque import AttributeValue
from pimflow.sparse.memory import available_bytes, size_text


def _dtype_table() -> dict[str, int]:
    table: dict[str, int] = {}
    for code in TensorProto.DataType.values():
        if code != TensorProto.UNDEFINED:
            table.setdefault(helper.tensor_dtype_to_np_dtype(code).name, code)
    return table


_CODES = _dtype_table()
_NAMES: dict[int, str] = {code: helper.tensor_dtype_to_np_dtype(code).name for code in _CODES.values()}

NUMPY_NATIVE = frozenset(
    {"float16", "float32", "float64", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
)
"""Element types that numpy itself has; the others come from ml_dtypes, and strings are Python objects."""

ONNX_ERRORS: tuple[type[Exception], ...] = (
    ValidationError,
    InferenceError,
    SchemaError,
    EncodeError,
    RuntimeError,
    ValueError,
    IndexError,
    OverflowError,
    MemoryError,
)
"""The exceptions that onnx's checker, shape inference and inliner raise for a model, including those from C++."""

MAX_ELEMENTS = 2**40
"""The maximum number of elements of a value: no machine holds more, so larger sizes mean an error (in pads, repeats or
a dimension)."""

MAX_DIMS = 32
"""The maximum number of dims of a value, which is the limit of the oldest supported numpy."""


def is_boundless(shape: Sequence[int]) -> bool:
    """Whether a shape is too large for any array; dims of 0 are ignored, as in numpy's own check."""
    return len(shape) > MAX_DIMS or math.prod(size for size in shape if size) > MAX_ELEMENTS


def dtype_name(code: int) -> str:
    """The element type's name; "" if it is undefined or unknown to the installed onnx."""
    return _NAMES.get(code, "")


def dtype_code(name: str) -> int:
    """The ONNX code of an element type; 0 (undefined) for "" and for types that are not tensors."""
    return _CODES.get(name, 0)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy (or ml_dtypes) type of an element type's name."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(dtype_code(name)))


def type_text(proto: onnx.TypeProto) -> str:
    """A value's type in the form of `Value.dtype`: a tensor's element type; "seq(float32)" and the like for others."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        return dtype_name(proto.tensor_type.elem_type)
    if kind == "sequence_type":
        return f"seq({type_text(proto.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({type_text(proto.optional_type.elem_type)})"
    if kind == "map_type":
        return f"map({dtype_name(proto.map_type.key_type)},{type_text(proto.map_type.value_type)})"
    return ""


def static_shape(proto: onnx.TypeProto) -> tuple[int, ...] | None:
    """The shape of a tensor type whose dims are all known sizes; None for any other type."""
    if not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
        return None
    dims = proto.tensor_type.shape.dim
    if not all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims):
        return None
    return tuple(int(dim.dim_value) for dim in dims)


def type_proto(dtype: str, shape: Sequence[int | str] | None) -> onnx.TypeProto:
    """The inverse of `type_text`, with the shape if it is a tensor's and known."""
    for prefix, make in (
        ("seq(", helper.make_sequence_type_proto),
        ("optional(", helper.make_optional_type_proto),
    ):
        if dtype.startswith(prefix):
            return make(type_proto(dtype[len(prefix) : -1], None))
    if dtype.startswith("map("):
        key, value = dtype[4:-1].split(",", 1)
        return helper.make_map_type_proto(dtype_code(key), type_proto(value, None))
    return helper.make_tensor_type_proto(dtype_code(dtype), shape)


def value_info(value: Value) -> onnx.ValueInfoProto:
    """A value's name and type in ONNX form."""
    return onnx.ValueInfoProto(name=value.name, type=_known_type(value.dtype, value.shape) if value.dtype else None)


_known_type = lru_cache(maxsize=1 << 12)(type_proto)
"""`type_proto`, cached: split models have thousands of values with few shapes. Results must be copied, not modified."""


def to_array(tensor: TensorProto, base_dir: str = "") -> Array:
    """A tensor's elements as a read-only array.

    Raises:
        ModelError: the data do not fit the tensor's shape and type.
    """
    if is_boundless(tensor.dims):
        raise ModelError(f"tensor {tensor.name!r}: no array has the shape {list(tensor.dims)}", "correct its sizes")
    try:
        array = np.asarray(numpy_helper.to_array(tensor, base_dir))
    except (ValueError, TypeError, KeyError, IndexError, MemoryError) as error:
        raise ModelError(
            f"tensor {tensor.name!r} of shape {list(tensor.dims)} cannot be decoded ({error})",
            "export or download the model again",
        ) from error
    array.flags.writeable = False
    return array


def brief(array: Array) -> str:
    """The first elements as text, for messages."""
    return f"[{', '.join(map(str, array.reshape(-1)[:8].tolist()))}{', ...' if array.size > 8 else ''}]"


def sparse_to_array(sparse: onnx.SparseTensorProto) -> Array:
    """A sparse tensor as a dense array.

    Raises:
        ModelError: indices or values do not fit its shape, or it does not fit into memory.
    """
    values, indices = to_array(sparse.values), to_array(sparse.indices)
    label, shape = f"sparse tensor {sparse.values.name!r} of shape {list(sparse.dims)}", tuple(sparse.dims)
    if values.dtype == object:
        raise ModelError(f"{label} holds strings", "ONNX Runtime has no sparse tensors of strings")
    size, room = values.dtype.itemsize * math.prod(shape), available_bytes()
    if is_boundless(shape) or size > room:
        raise ModelError(f"{label} takes {size_text(size)} as an array, but {size_text(room)} of memory is free")
    try:
        dense = np.zeros(shape, values.dtype)
        positions: Any = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dense.shape)
        dense.reshape(-1)[positions] = values
    except (IndexError, ValueError, TypeError) as error:
        raise ModelError(f"{label} has values or indices that do not fit it ({error})") from error
    dense.flags.writeable = False
    return dense


def to_tensor(name: str, array: Array) -> TensorProto:
    """An array as an ONNX tensor with its data inside."""
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def attribute_value(proto: AttributeProto) -> AttributeValue:
    """An attribute's value; it stays serialised if it has no plain Python form, or would lose its type."""
    if proto.type == AttributeProto.INT:
        return int(proto.i)
    if proto.type == AttributeProto.FLOAT:
        return shortest(proto.f)
    if proto.type == AttributeProto.STRING:
        return _text(proto.s)
    if proto.type == AttributeProto.INTS and proto.ints:
        return tuple(int(item) for item in proto.ints)
    if proto.type == AttributeProto.FLOATS and proto.floats:
        return tuple(shortest(item) for item in proto.floats)
    if proto.type == AttributeProto.STRINGS and proto.strings:
        texts = [_text(item) for item in proto.strings]
        if all(isinstance(item, str) for item in texts):
            return tuple(str(item) for item in texts)
    return OpaqueAttribute(proto.SerializeToString(deterministic=True))


def shortest(single: float) -> float:
    """The shortest decimal that rounds to the same single-precision number (1e-05 for 9.999999747378752e-06)."""
    return float(str(np.float32(single)))


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


def attribute_proto(name: str, value: AttributeValue) -> AttributeProto:
    """The inverse of `attribute_value`."""
    if isinstance(value, OpaqueAttribute):
        parsed: AttributeProto = AttributeProto.FromString(value.serialized)
        return parsed
    if type(value) is int:
        return AttributeProto(name=name, type=AttributeProto.INT, i=value)
    numbers = value if isinstance(value, tuple) else ()
    whole = [item for item in numbers if type(item) is int]
    if whole and len(whole) == len(numbers):
        return AttributeProto(name=name, type=AttributeProto.INTS, ints=whole)
    proto: AttributeProto = helper.make_attribute(name, value)
    return proto
