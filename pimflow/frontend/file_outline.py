"""Parses a large model file without the data of its large initialisers, which are read once, directly into arrays.

protobuf copies a file's bytes into its messages, and returns copies of those: four times the size of the model before
any work is done. The wire format shows where a tensor's `raw_data` are, so everything else can be parsed without them.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from pimflow.data import open_file
from pimflow.ir import Array
from pimflow.onnxio.tensors import NUMPY_NATIVE, dtype_name, numpy_dtype
from pimflow.onnxio.wire import Field, UnknownForm, fields
from pimflow.records import NamedTuple

PROTOBUF_LIMIT_BYTES = 2**31 - 1
"""The maximum size of a protobuf message."""

LARGE_FILE_BYTES = 16 << 20
"""The minimum size of a file that is parsed as an outline; smaller ones are parsed whole."""

LARGE_DATA_BYTES = 1 << 20
"""Data of a tensor larger than this are left out."""

_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = onnx.TensorProto.RAW_DATA_FIELD_NUMBER


class FileOutline(NamedTuple):
    """A model whose large initialisers have no data (they are marked as external), and where the data are."""

    proto: onnx.ModelProto
    places: Mapping[str, tuple[int, int]]

    def read(self, path: Path) -> dict[str, Array]:
        """The data left out, as read-only arrays by name of the initialiser.

        Raises:
            OSError: they cannot be read.
        """
        tensors = (tensor for tensor in self.proto.graph.initializer if tensor.name in self.places)
        with open_file(path) as file:
            return {tensor.name: _read(file, tensor, self.places[tensor.name][0]) for tensor in tensors}


def file_outline(path: Path) -> FileOutline | None:
    """The outline of a model file; None if it is small, too large for protobuf, or not in the usual form of ONNX files.

    Raises:
        OSError: it cannot be read.
    """
    with open_file(path) as file:
        if not LARGE_FILE_BYTES <= os.fstat(file.fileno()).st_size <= PROTOBUF_LIMIT_BYTES:
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _outline(data)
            except (UnknownForm, DecodeError):
                return None


def _outline(data: mmap.mmap) -> FileOutline | None:
    graphs = [field for field in fields(data, 0, len(data)) if field.number == _GRAPH]
    if len(graphs) != 1:
        return None
    (graph,) = graphs
    pieces: list[bytes] = []
    places: dict[str, tuple[int, int]] = {}
    done = graph.content
    for field in fields(data, graph.content, graph.stop):
        found = _large(data, field) if field.number == _INITIALIZER else None
        if found is None:
            continue
        tensor, raw = found
        if not tensor.name or tensor.name in places:
            return None
        places[tensor.name] = raw.content, raw.stop - raw.content
        tensor.data_location = onnx.TensorProto.EXTERNAL
        pieces += [data[done : field.start], onnx.GraphProto(initializer=[tensor]).SerializeToString()]
        done = field.stop
    if not places:
        return None
    proto = onnx.ModelProto.FromString(data[: graph.start] + data[graph.stop :])
    proto.graph.MergeFromString(b"".join((*pieces, data[done : graph.stop])))
    names = [tensor.name for tensor in proto.graph.initializer]
    return FileOutline(proto, places) if len(set(names)) == len(names) else None


def _large(data: mmap.mmap, initializer: Field) -> tuple[onnx.TensorProto, Field] | None:
    """An initialiser without its data, and the field that holds them, if they are large and fill an array."""
    if initializer.stop - initializer.start <= LARGE_DATA_BYTES:
        return None
    parts = list(fields(data, initializer.content, initializer.stop))
    raw = [field for field in parts if field.number == _RAW_DATA]
    rest = sum(field.stop - field.start for field in parts if field.number != _RAW_DATA)
    if len(raw) != 1 or rest > LARGE_DATA_BYTES:
        return None
    rests = (data[field.start : field.stop] for field in parts if field.number != _RAW_DATA)
    tensor: onnx.TensorProto = onnx.TensorProto.FromString(b"".join(rests))
    name, size = dtype_name(tensor.data_type), raw[0].stop - raw[0].content
    if name not in NUMPY_NATIVE or min(tensor.dims, default=0) < 0 or size <= LARGE_DATA_BYTES:
        return None
    return (tensor, raw[0]) if math.prod(tensor.dims) * numpy_dtype(name).itemsize == size else None


def _read(file: BinaryIO, tensor: onnx.TensorProto, start: int) -> Array:
    count = math.prod(tensor.dims)
    file.seek(start)
    array: Array = np.fromfile(file, numpy_dtype(dtype_name(tensor.data_type)), count)
    if array.size < count:
        raise OSError(errno.EIO, "the file was truncated while it was read")
    array.flags.writeable = False
    return array.reshape(tuple(tensor.dims))
