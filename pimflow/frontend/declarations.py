"""Checks of the types that a model declares for its values."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from pimflow.ir import Graph, Value
from pimflow.onnxio.tensors import dtype_name, static_shape, type_text


def contradictions(proto: onnx.GraphProto, graph: Graph) -> Iterator[str]:
    """Declarations that cannot be correct, each as one clause that names the value and both types.

    Args:
        proto: the given graph.
        graph: the same graph with all shapes inferred.
    """
    yield from _of_initialisers(proto)
    yield from _of_results(proto, graph)


def _of_initialisers(proto: onnx.GraphProto) -> Iterator[str]:
    inputs = {info.name: info for info in proto.input}
    for tensor in proto.initializer:
        info = inputs.get(tensor.name)
        if info is None:
            continue
        stored = Value(tensor.name, tuple(tensor.dims), dtype_name(tensor.data_type))
        if not _agree(info, stored):
            yield f"the input {tensor.name!r} is declared as {_spell(info)}, its initialiser is {stored.type_text}"


def _of_results(proto: onnx.GraphProto, graph: Graph) -> Iterator[str]:
    for info in (*proto.value_info, *proto.output):
        value = graph.values.get(info.name)
        if value is None or _agree(info, value):
            continue
        node = graph.producer(info.name)
        subject = "it" if node is None else f"node {node.name!r} ({node.kind})"
        made = "is" if node is None else "makes"
        yield f"the value {info.name!r} is declared as {_spell(info)}, {subject} {made} {value.type_text}"


def _agree(info: onnx.ValueInfoProto, value: Value) -> bool:
    """Whether a declaration is consistent with what is known about a value."""
    if not info.HasField("type") or not value.dtype:
        return True
    if type_text(info.type) != value.dtype:
        return False
    dims = static_shape(info.type)
    return dims is None or value.shape is None or dims == value.shape


def _spell(info: onnx.ValueInfoProto) -> str:
    dtype = type_text(info.type) or "no element type"
    if not info.type.HasField("tensor_type") or not info.type.tensor_type.HasField("shape"):
        return dtype
    dims = info.type.tensor_type.shape.dim
    return f"{dtype}[{', '.join(dim.dim_param or str(dim.dim_value) for dim in dims)}]"
