"""Asks ONNX Runtime about a model of very many nodes in pieces: consecutive nodes, a session for each piece.

A session takes 3 KB a node, all at once, and more than linear time to open: 3 s for 100,000 nodes, 1 s in pieces.
Pieces can only agree: if one is refused, or if the model cannot be divided, the whole model has to be asked about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from pimflow.errors import ModelError
from pimflow.ir import Array, Graph
from pimflow.onnxio.captures import subgraphs
from pimflow.onnxio.export import SplitModel, split_model
from pimflow.onnxio.runtime import runtime_errors
from pimflow.onnxio.session import (
    INLINE_LIMIT_BYTES,
    lend,
    needs_ort_value,
    open_session,
    ort_dtype,
    ran_out_of_resources,
    refuse,
    session_options,
    time_limited,
)
from pimflow.onnxio.tensors import dtype_code
from pimflow.onnxio.wire import Messages, UnknownForm, fields, messages
from pimflow.records import NamedTuple

if TYPE_CHECKING:
    from onnxruntime import RunOptions

PIECE_OPERANDS = 1 << 14
"""Operands of the nodes of a piece, which has at least one node; a model that has no more is not divided."""


_NODE = onnx.GraphProto.NODE_FIELD_NUMBER
_VALUE_INFO = onnx.GraphProto.VALUE_INFO_FIELD_NUMBER
_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER


class LongModel(NamedTuple):
    """A model whose nodes are kept as bytes.

    Args:
        proto: the model without its nodes and the types of its intermediate values.
        nodes: the bytes of a graph that has the nodes alone.
        constants: the constants outside the model, by name.
    """

    proto: onnx.ModelProto
    nodes: bytes
    constants: Mapping[str, Array]

    @classmethod
    def of_graph(cls, graph: Graph) -> LongModel:
        """A graph as a long model."""
        nodes, values = Messages(_NODE), Messages(_VALUE_INFO)
        model = split_model(graph, INLINE_LIMIT_BYTES, with_ranks=False, nodes=nodes, values=values)
        return cls(model.proto, bytes(nodes.data), model.constants)

    @classmethod
    def of_split(cls, model: SplitModel) -> LongModel:
        """A parsed model as a long model."""
        nodes = onnx.GraphProto(node=model.proto.graph.node).SerializeToString()
        rest = onnx.ModelProto(ir_version=model.proto.ir_version, opset_import=model.proto.opset_import)
        rest.functions.extend(model.proto.functions)
        rest.graph.name = model.proto.graph.name
        for name in ("input", "output", "initializer", "sparse_initializer"):
            getattr(rest.graph, name).extend(getattr(model.proto.graph, name))
        return cls(rest, nodes, model.constants)

    @classmethod
    def of_bytes(cls, data: bytes) -> LongModel | None:
        """A serialised model as a long model; None if it is not in the form in which protobuf writes models."""
        try:
            graphs = [part for part in fields(data, 0, len(data)) if part.number == _GRAPH]
            (graph,) = graphs if len(graphs) == 1 else (None,)
            if graph is None:
                return None
            stop = _end(data, _NODE, graph.content, graph.stop)
            kept, start = [], stop
            while start < graph.stop:
                after = _end(data, _VALUE_INFO, start, graph.stop)
                part = next(fields(data, after, graph.stop), None)
                start = graph.stop if part is None else part.stop
                kept.append(data[after:start])
            proto = onnx.ModelProto.FromString(data[: graph.start] + data[graph.stop :])
            proto.graph.MergeFromString(b"".join(kept))
        except (UnknownForm, DecodeError):
            return None
        return None if proto.graph.node else cls(proto, data[graph.content : stop], {})


def _end(data: bytes, number: int, start: int, stop: int) -> int:
    """The end of the messages of a repeated field that begin at `start`."""
    for part in messages(data, number, start, stop):
        start = part.stop
    return start


def loads_in_pieces(model: LongModel) -> bool:
    """Whether ONNX Runtime accepts every piece of a model, with the types that it infers for the results of those
    before; False also if the model is short, or cannot be divided."""
    pieces = _pieces(model)
    types = _input_types(model.proto)
    try:
        for piece in pieces:
            session = _Session(model, piece, types)
            types |= {item.name: _type(item.type, item.shape) for item in session.results}
    except ModelError:
        return False
    return bool(pieces)


def runs_in_pieces(model: LongModel, feeds: Mapping[str, Any], limit_s: float | None = None) -> bool:
    """Whether ONNX Runtime runs every piece of a model, on the results of those before; False also if the model is
    short, or cannot be divided.

    Args:
        model: the model.
        feeds: values by input name.
        limit_s: seconds after which the runs are ended, at the next node.

    Raises:
        ModelError: time or memory ran out.
    """
    pieces = _pieces(model)
    types = _input_types(model.proto)
    values = dict(feeds)
    try:
        with time_limited(limit_s) as options:
            for piece in pieces:
                session = _Session(model, piece, types)
                values |= session.run(values, options)
                types |= {item.name: _type(item.type, _shape(values[item.name])) for item in session.results}
                for name in piece.ends:
                    values.pop(name, None)
    except ModelError as error:
        if ran_out_of_resources(error):
            raise
        return False
    return bool(pieces)


class _Piece(NamedTuple):
    """Consecutive nodes, and the values that they share with the rest of the model.

    Args:
        nodes: the offsets of their bytes.
        values: inputs of the model, and results of earlier pieces, that they read.
        tensors: positions of the initialisers that they read.
        gives: their results that later pieces read, and those that are outputs of the model.
        ends: values that no later piece reads.
    """

    nodes: slice
    values: Sequence[str]
    tensors: Sequence[int]
    gives: Sequence[str]
    ends: Sequence[str]


class _Session:
    """A session over a piece, as it is written, and the types of its results.

    Raises:
        ModelError: ONNX Runtime refuses it, or it reads a value that is not a tensor.
    """

    def __init__(self, model: LongModel, piece: _Piece, types: Mapping[str, onnx.TypeProto | None]) -> None:
        whole, self._values = model.proto.graph, piece.values
        part = onnx.ModelProto(ir_version=model.proto.ir_version, opset_import=model.proto.opset_import)
        part.graph.name = whole.name
        part.graph.MergeFromString(model.nodes[piece.nodes])
        part.graph.initializer.extend(whole.initializer[index] for index in piece.tensors)
        for name in piece.values:
            if types[name] is None:
                raise ModelError(f"value {name!r} is not a tensor")
            part.graph.input.add(name=name, type=types[name])
        for name in piece.gives:
            part.graph.output.add(name=name)
        options = session_options(optimise=False)
        names = [tensor.name for tensor in part.graph.initializer]
        self._lent = lend({name: model.constants[name] for name in names if name in model.constants}, options)
        self._ort = open_session(part.SerializeToString(), options, whole.name)
        self.results = self._ort.get_outputs()

    def run(self, values: Mapping[str, Any], options: RunOptions | None) -> dict[str, Any]:
        """The results by name."""
        read = {name: values[name] for name in self._values}
        if any(map(needs_ort_value, read.values())):
            raise ModelError("a value has a type that numpy lacks")
        try:
            found = self._ort.run(None, read, options)
        except runtime_errors() as error:
            refuse("a piece", error)
        return {item.name: value for item, value in zip(self.results, found, strict=True)}


def _shape(value: Any) -> Sequence[int]:
    return value.shape if isinstance(value, np.ndarray) else ()


def _type(kind: str, shape: Sequence[int | str | None]) -> onnx.TypeProto | None:
    """A type as ONNX Runtime gives it, None if it is not a tensor's. Shape [] also stands for an unknown rank."""
    code = dtype_code(ort_dtype(kind))
    return onnx.helper.make_tensor_type_proto(code, list(shape) or None) if code else None


def _input_types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto | None]:
    return {info.name: info.type for info in model.graph.input}


def _pieces(model: LongModel) -> list[_Piece]:
    """The pieces of a model; none if it is short, or if a piece might differ from its part of the model: where nodes
    have bodies or call functions, are not in order, or where a name stands for two values."""
    graph = model.proto.graph
    tensors = {tensor.name: index for index, tensor in enumerate(graph.initializer)}
    last = dict.fromkeys((*(info.name for info in graph.input), *tensors), -1)  # the piece that reads a value last
    if len(last) < len(graph.input) + len(graph.initializer) or _is_special(model):
        return []
    parts: list[_Part] = []
    for found in messages(model.nodes, _NODE, 0, len(model.nodes)):
        node = onnx.NodeProto.FromString(model.nodes[found.content : found.stop])
        if not parts or parts[-1].operands + len(node.input) > PIECE_OPERANDS:
            parts.append(_Part(found.start))
        part = parts[-1]
        part.stop, part.operands = found.stop, part.operands + len(node.input)
        operands, results = list(filter(None, node.input)), list(filter(None, node.output))
        if any(subgraphs(node.attribute)) or not all(map(last.__contains__, operands)):
            return []
        if any(map(last.__contains__, results)):
            return []
        last.update(dict.fromkeys((*operands, *results), len(parts) - 1))
        part.makes.update(dict.fromkeys(results))
        part.reads.update(dict.fromkeys(name for name in operands if name not in part.makes))
    outputs = dict.fromkeys((info.name for info in graph.output), len(parts))
    if len(parts) < 2 or not last.keys() >= outputs.keys():
        return []
    last |= outputs
    return [
        _Piece(
            slice(part.start, part.stop),
            [name for name in part.reads if name not in tensors],
            [tensors[name] for name in part.reads if name in tensors],
            [name for name in part.makes if last[name] > index],
            [name for name in part.reads if last[name] == index],
        )
        for index, part in enumerate(parts)
    ]


@dataclass
class _Part:
    """A piece in the making: the offsets of its bytes, and what its nodes read from before and make."""

    start: int
    stop: int = 0
    operands: int = 0
    reads: dict[str, None] = field(default_factory=dict)
    makes: dict[str, None] = field(default_factory=dict)


def _is_special(model: LongModel) -> bool:
    """Whether a model has functions, sparse constants, or constants in files."""
    graph = model.proto.graph
    apart = any(tensor.external_data and tensor.name not in model.constants for tensor in graph.initializer)
    return apart or bool(model.proto.functions or graph.sparse_initializer)
