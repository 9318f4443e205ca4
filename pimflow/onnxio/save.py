"""Writes a graph as an ONNX file; weights that are too large for protobuf go to a data file next to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import Message

from pimflow.ir import Array, Graph
from pimflow.onnxio.export import SMALL_TENSOR_BYTES, set_external, split_model
from pimflow.onnxio.wire import Buffer, Messages, field
from pimflow.records import NamedTuple

SINGLE_FILE_LIMIT_BYTES = 256 << 20
"""Constants up to this total size are stored in the model: protobuf copies its content, and holds 2 GB at most."""

EXTERNAL_MINIMUM_BYTES = 1024
ALIGNMENT_BYTES = 4096
"""Tensors in the data file start at multiples of a page, so that they can be mapped."""

DATA_SUFFIX = ".data"
"""The suffix that makes a model's file name that of its data file."""

_NODE = onnx.GraphProto.NODE_FIELD_NUMBER
_VALUE_INFO = onnx.GraphProto.VALUE_INFO_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_RAW_DATA = onnx.TensorProto.RAW_DATA_FIELD_NUMBER


class Stored(NamedTuple):
    """A constant in a data file, and its offset; the gaps between constants are zeros."""

    offset: int
    array: Array


def save_onnx(
    graph: Graph, path: str | Path, *, single_file_limit_bytes: int = SINGLE_FILE_LIMIT_BYTES
) -> tuple[Stored, ...]:
    """Writes the graph as ONNX; the same graph gives the same bytes.

    If the total size of constants exceeds the limit, they go to `<file name>.data` in the same folder.

    Returns:
        The constants in that file, in order; () if there is none.

    Raises:
        OSError: a file cannot be written.
    """
    path = Path(path)
    is_single = graph.constant_bytes <= single_file_limit_bytes
    nodes, values = Messages(_NODE), Messages(_VALUE_INFO)
    limit_bytes = SMALL_TENSOR_BYTES if is_single else EXTERNAL_MINIMUM_BYTES
    model, outside = split_model(graph, limit_bytes, nodes=nodes, values=values)
    stored: tuple[Stored, ...] = ()
    if outside and not is_single:
        stored = tuple(_write_data(model, outside, path.with_name(path.name + DATA_SUFFIX)))
    with path.open("wb") as file:
        file.writelines(serialised(model, outside if is_single else {}, nodes.data, values.data))
    return stored


def serialised(
    model: onnx.ModelProto, inside: Mapping[str, Array], nodes: Buffer = b"", values: Buffer = b""
) -> Iterator[Buffer]:
    """The bytes of a model with the data of some initialisers inserted, to which it only refers: the same bytes as
    protobuf's deterministic serialisation of a model that contains them, without a copy. The model is consumed.

    Args:
        model: a model made by `split_model`.
        inside: arrays to insert, by name of the initialiser.
        nodes: the bytes of its nodes, if it does not have them itself.
        values: the same for the types of intermediate values.
    """
    tensors = [_tensor(tensor, inside.get(tensor.name)) for tensor in model.graph.initializer]
    del model.graph.initializer[:]
    head, tail = _split_at(model.graph, "initializer")
    graph = [nodes, head, *(piece for tensor in tensors for piece in field(_INITIALIZER, tensor)), tail, values]
    model.ClearField("graph")
    before, after = _split_at(model, "graph")
    yield from (before, *field(_GRAPH, graph), after)


def _tensor(tensor: onnx.TensorProto, array: Array | None) -> list[Buffer]:
    if array is None:
        return [tensor.SerializeToString(deterministic=True)]
    head = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return [head.SerializeToString(deterministic=True), *field(_RAW_DATA, [data.data])]


def _split_at(message: Message, field: str) -> tuple[Buffer, Buffer]:
    """A message's bytes before and after a field that is not set: fields are in the order of their numbers.

    Clears the fields before it.
    """
    number = message.DESCRIPTOR.fields_by_name[field].number
    data = memoryview(message.SerializeToString(deterministic=True))
    for known, _ in message.ListFields():
        if known.number < number:
            message.ClearField(known.name)
    at = len(data) - message.ByteSize()
    return data[:at], data[at:]


def _write_data(model: onnx.ModelProto, arrays: dict[str, Array], path: Path) -> Iterator[Stored]:
    """Writes the arrays one after another and points the model's tensors at them."""
    with path.open("wb") as file:
        for tensor in model.graph.initializer:
            if tensor.name not in arrays:
                continue
            array = np.ascontiguousarray(arrays[tensor.name])
            file.write(b"\0" * (-file.tell() % ALIGNMENT_BYTES))
            stored = Stored(file.tell(), arrays[tensor.name])
            set_external(tensor, path.name, stored.offset, array.nbytes)
            array.tofile(file)
            yield stored
