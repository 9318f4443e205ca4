"""Safe reading of ONNX files: a `ModelProto` whose external data are known to be in the model's folder."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Message
from onnx import TensorProto, helper

from pimflow.data import read_file
from pimflow.errors import ModelError
from pimflow.frontend.file_outline import LARGE_FILE_BYTES, PROTOBUF_LIMIT_BYTES, file_outline
from pimflow.frontend.fixing import FixedValues
from pimflow.frontend.functions import inlined
from pimflow.frontend.screening import screen, screen_inlined
from pimflow.ir import Array
from pimflow.ir.analysis.tensor_layout import element_bytes
from pimflow.onnxio.export import ModelContent, SplitModel
from pimflow.onnxio.pieces import LongModel, loads_in_pieces
from pimflow.onnxio.session import is_of_four_bits, lacks_kernel, open_session, session_options
from pimflow.onnxio.tensors import NUMPY_NATIVE, ONNX_ERRORS, dtype_name, to_array
from pimflow.records import dataclass

LARGE_TENSOR_BYTES = 1 << 16
"""Initialisers above this size are not copied for the checker."""


@dataclass(frozen=True)
class Source:
    """A parsed model, and its file, next to which external data would be (None: it cannot have any)."""

    proto: onnx.ModelProto
    name: str
    path: Path | None
    handle: str | bytes | None
    """The file or bytes that the checker and ONNX Runtime can read; None for a parsed model, to avoid a copy."""
    detached: Mapping[str, Array] = field(default_factory=dict)
    """Arrays of the initialisers whose data are not in `proto`, by name."""
    fixed: FixedValues = field(default_factory=dict)
    """The values that inputs are fixed to, by name."""
    has_run: bool = False
    """Whether ONNX Runtime is known to run it with the requested shapes."""
    unroll: bool = False
    """Whether its Loops and Scans of known length are replaced by their iterations."""
    learnt_apart: bool = False
    """Whether products of weights with values that depend only on the bound graph stay products, for training."""

    @property
    def split(self) -> SplitModel:
        """The model, its detached arrays apart."""
        return SplitModel.of(self.proto, dict(self.detached))

    @property
    def outline(self) -> bytes:
        """The model without its large initialisers."""
        return outline(self.proto, self.detached)

    def array(self, initialiser: TensorProto) -> Array:
        """The elements of an initialiser, as from `load_tensor`."""
        detached = self.detached.get(initialiser.name)
        return load_tensor(initialiser, self.path) if detached is None else detached

    @cached_property
    def external(self) -> list[TensorProto]:
        """Tensors whose data are in other files."""
        return [
            tensor for tensor in all_tensors(self.proto) if is_external(tensor) and tensor.name not in self.detached
        ]


def read_source(source: Path | ModelContent) -> Source:
    """Reads and checks a model.

    Raises:
        ModelError: the file cannot be read, is not a valid ONNX model, or refers to missing or foreign data.
    """
    given = _open(source)
    label = str(source) if isinstance(source, (str, Path)) else given.name
    _require_model(given.proto, label)
    screen(given.proto)
    for tensor in given.external:
        external_range(tensor, given.path)
    _check(given, label)
    return given


def long_model(source: ModelContent) -> LongModel:
    """A model to be asked about in pieces, without the checks of `read_source`.

    Raises:
        ModelError: it cannot be read, or is not an ONNX model.
    """
    data = source if isinstance(source, bytes) else None
    if isinstance(source, str):
        with suppress(OSError):  # reported below
            data = read_file(Path(source), LARGE_FILE_BYTES)
    found = None if data is None else LongModel.of_bytes(data)
    return LongModel.of_split(_open(source).split) if found is None else found


def _open(source: Path | ModelContent) -> Source:
    if isinstance(source, SplitModel):
        return replace(_open(source.proto), detached=source.constants)
    if isinstance(source, onnx.ModelProto):
        return Source(source, source.graph.name or "model", None, None)
    if isinstance(source, bytes):
        proto = _parse(source, "the model given as bytes")
        return Source(proto, proto.graph.name or "model", None, source)
    path = Path(source)
    with suppress(OSError):  # reported below
        outlined = file_outline(path)
        if outlined is not None:
            return Source(outlined.proto, path.stem, path, str(path), outlined.read(path))
    return Source(_parse(_read_file(path), str(path)), path.stem, path, str(path))


def _read_file(path: Path) -> bytes:
    try:
        data = read_file(path, PROTOBUF_LIMIT_BYTES)
    except FileNotFoundError:
        raise ModelError(f"no such file: {path}") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    if not data:
        raise ModelError(f"{path} is empty", "export or download the model again")
    return data


def _unreadable(path: Path, error: OSError) -> ModelError:
    if error.errno == errno.EFBIG:
        return ModelError(f"{path} is larger than the 2 GB that protobuf can read", "save its weights as external data")
    if error.errno == errno.ENAMETOOLONG:
        return ModelError(
            f"{str(path)[:60]}... cannot be read: it is too long for a path", "give the path of an ONNX file"
        )
    with suppress(OSError):
        if path.is_dir():
            return ModelError(f"{path} is a folder, not an ONNX file", "name the .onnx file in it")
    return ModelError(f"{path} cannot be read: {error.strerror}", "check its permissions")


def _parse(data: bytes, label: str) -> onnx.ModelProto:
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise ModelError(
            f"{label} is not an ONNX model, or is truncated ({error})", "export or download the model again"
        ) from error
    return proto


def _require_model(proto: onnx.ModelProto, label: str) -> None:
    if proto.ir_version < 1 or not proto.HasField("graph"):
        raise ModelError(f"{label} is not an ONNX model: it holds no graph", "export or download the model again")
    if not proto.graph.output:
        raise ModelError(f"{label} has no outputs", "export it with the outputs that you need")
    if not proto.opset_import:
        raise ModelError(f"{label} names no opset", "export or download the model again")
    for opset in proto.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version < 7:
            raise ModelError(
                f"{label} uses opset {opset.version}; opset 7 is the oldest supported",
                "raise it with onnx.version_converter",
            )


def _check(source: Source, label: str) -> None:
    """Accepts models that the checker accepts, and those that ONNX Runtime loads although the checker complains.

    If both refuse, ONNX Runtime's reason is reported: the checker's may be about something harmless.
    """
    try:
        with_files = source.handle if source.external and not source.detached else None
        onnx.checker.check_model(with_files or source.outline)
    except ONNX_ERRORS as error:
        if source.handle is None and source.proto.ByteSize() > PROTOBUF_LIMIT_BYTES:
            raise ModelError(f"{label}: {error}", "save the model with external data and give its path") from error
        if loads_in_pieces(LongModel.of_split(source.split)):
            return
        if source.proto.functions:  # before ONNX Runtime sees what calls give
            screen_inlined(inlined(_parse(source.outline, label)).graph.node)
        whole = source.handle or (source.outline if source.detached else source.proto.SerializeToString())
        try:
            open_session(whole, session_options(optimise=False), label)
        except ModelError as refusal:
            if not lacks_kernel(refusal):  # missing bf16 kernels: checked again when the graph is read
                raise


def outline(proto: onnx.ModelProto, detached: Container[str] = ()) -> bytes:
    """The model with its large and its `detached` initialisers as inputs: everything that the checker needs,
    without copying weights."""
    outline = onnx.ModelProto()
    _copy_fields(proto, outline, skip="graph")
    _copy_fields(proto.graph, outline.graph, skip="initializer")
    known = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        if tensor.name not in detached and _bytes_at_most(tensor, LARGE_TENSOR_BYTES):
            outline.graph.initializer.append(tensor)
        elif tensor.name not in known:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            outline.graph.input.append(value)
    return bytes(outline.SerializeToString())


def _bytes_at_most(tensor: TensorProto, limit: int) -> bool:
    """Whether a tensor's data take at most `limit` bytes; checks the shape first: protobuf counts by copying."""
    width = element_bytes(dtype_name(tensor.data_type))
    if tensor.HasField("raw_data") and width and width * math.prod(tensor.dims) > limit:
        return False
    return bool(tensor.ByteSize() <= limit)


def _copy_fields(message: Message, into: Message, skip: str) -> None:
    """Copies all set fields except one."""
    for known, value in message.ListFields():
        if known.name == skip:
            continue
        if isinstance(value, Message):
            getattr(into, known.name).CopyFrom(value)
        elif isinstance(value, (int, float, str, bytes)):
            setattr(into, known.name, value)
        else:
            getattr(into, known.name).extend(value)


def all_tensors(proto: onnx.ModelProto) -> Iterator[TensorProto]:
    """Every tensor of a model: initialisers and attributes, including those in subgraphs and functions."""
    yield from _graph_tensors(proto.graph)
    for function in proto.functions:
        for node in function.node:
            yield from _node_tensors(node)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _node_tensors(node)


def _node_tensors(node: onnx.NodeProto) -> Iterator[TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for sparse in [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []:
            yield from (sparse.values, sparse.indices)
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from _graph_tensors(graph)


def is_external(tensor: TensorProto) -> bool:
    """Whether a tensor's data are in another file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


@dataclass(frozen=True)
class FileRange:
    """The location of an external tensor's bytes."""

    path: Path
    offset: int
    length: int


def external_range(tensor: TensorProto, model: Path | None) -> FileRange:
    """The file range of an external tensor; if its length is omitted, it follows from the tensor.

    Args:
        tensor: the tensor.
        model: the model's file; None for a model in memory.

    Raises:
        ModelError: they are not in a file inside the model's folder, or the range does not fit file and tensor.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    label = f"external data of tensor {tensor.name!r}"
    if model is None:
        raise ModelError(f"{label} cannot be found: the model was not given as a file", "give the path of the model")
    path = _inside(entries.get("location", ""), model, label)
    size = path.stat().st_size
    offset = _count(entries.get("offset", ""), 0, label)
    rest = max(0, size - offset)
    length = _count(entries.get("length", ""), min(rest, _stored_bytes(tensor, rest)), label)
    if offset + length > size:
        raise ModelError(
            f"{label}: bytes {offset} to {offset + length} are not in {path}, which has {size}",
            "put the data file of this model next to it",
        )
    return FileRange(path, offset, length)


def _stored_bytes(tensor: TensorProto, default: int) -> int:
    """The size of a tensor's elements in a file in bytes; `default` if it does not follow from type and shape."""
    name, elements = dtype_name(tensor.data_type), int(math.prod(tensor.dims))
    width = element_bytes(name)
    if width is None or min(tensor.dims, default=0) < 0:
        return default
    return -(-elements // 2) if is_of_four_bits(name) else elements * width


def _count(text: str, default: int, label: str) -> int:
    """An offset or a length, parsed like ONNX Runtime does: digits, at most as many as a file size can have."""
    if text and not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelError(f"{label}: offset or length is {text[:40]!r}, not a number of bytes")
    return int(text or default)


def _inside(location: str, model: Path, label: str) -> Path:
    """The file at a location relative to the model's folder.

    Links may point to the folder that a link to the model itself points to: download caches store all files of a model
    in one folder, under other names.
    """
    folder = model.parent
    foreign = PureWindowsPath(location)
    absolute = PurePosixPath(location).is_absolute() or foreign.is_absolute() or bool(foreign.drive)
    if not location or "\0" in location or absolute or ".." in foreign.parts:
        raise ModelError(
            f"{label}: {location!r} is not a file inside the model's folder {folder}",
            "save the model again, with its data next to it",
        )
    path = folder / location
    target, roots = os.path.realpath(path), {os.path.realpath(folder), str(Path(os.path.realpath(model)).parent)}
    if all(os.path.commonpath([root, target]) != root for root in roots):
        raise ModelError(
            f"{label}: {location!r} leads outside the model's folder {folder}",
            "save the model again, with its data next to it",
        )
    with suppress(OSError):  # its name is too long
        if path.is_file():
            return _readable(path, label)
    raise ModelError(f"{label}: {path} does not exist or is not a file", "put the data file next to the model")


def _readable(path: Path, label: str) -> Path:
    if not os.access(path, os.R_OK):
        raise ModelError(f"{label}: {path} cannot be read", "check its permissions")
    return path


def load_tensor(tensor: TensorProto, model: Path | None) -> Array:
    """A tensor's elements, read-only; external ones of numpy's own types are memory-mapped from their file.

    Raises:
        ModelError: the data do not fit the tensor.
    """
    if not is_external(tensor):
        return to_array(tensor)
    place = external_range(tensor, model)
    name = dtype_name(tensor.data_type)
    if name not in NUMPY_NATIVE:
        return to_array(_with_data(tensor, place))
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    shape = tuple(tensor.dims)
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != place.length:
        raise ModelError(f"external data of tensor {tensor.name!r}: {place.length} bytes do not fill {name}{shape}")
    if not place.length:
        return np.zeros(shape, dtype)
    mapped: Array = np.memmap(place.path, dtype, "r", place.offset, shape)
    return mapped


def _with_data(tensor: TensorProto, place: FileRange) -> TensorProto:
    """An external tensor with its data inside; onnx's own reader would not follow links to them."""
    with place.path.open("rb") as file:
        file.seek(place.offset)
        data = file.read(place.length)
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=data)
