"""The way in: any ONNX model that ONNX Runtime can run with static shapes."""

from __future__ import annotations

from pathlib import Path

import onnx

from pimflow.errors import ModelError
from pimflow.frontend.binding import ShapeBindings
from pimflow.frontend.convert import convert_graph
from pimflow.frontend.declarations import contradictions
from pimflow.frontend.importing import import_graph
from pimflow.frontend.inference import declared_types, infer_graph
from pimflow.frontend.reading import Source, outline, read_source
from pimflow.ir import Graph
from pimflow.ir.verify import verify_graph
from pimflow.onnxio.folding import unpacked
from pimflow.onnxio.session import GraphSession, open_session, session_options

LARGE_CONSTANT_BYTES = 64 * 2**20
"""Weights above this size are inputs while ONNX Runtime is asked whether it would run a model."""


def load_model(
    source: str | Path | bytes | onnx.ModelProto,
    shapes: ShapeBindings | None = None,
    *,
    annotations: bool = False,
) -> Graph:
    """Reads a model into the IR: typed ops where they are exact, shapes static.

    Args:
        source: a path, a serialised model, or a parsed one. Only a path can have external data.
        shapes: sizes of inputs (by name, a tuple) and of symbolic dims (by name, an int).
        annotations: whether devices and tags that `save_onnx` wrote are read back.

    Raises:
        ModelError: the model cannot be read, is not valid, or ONNX Runtime refuses it.
        ShapeError: dims are unbound (all are listed), or a shape does not fit.
    """
    try:
        given = read_source(source)
        opaque = import_graph(given, shapes or {}, annotations)
        opaque = unpacked(opaque) if annotations else opaque
    except UnicodeDecodeError as error:
        raise ModelError(
            f"the model holds a name that is not text ({error})", "export or download the model again"
        ) from error
    declared = declared_types(given.proto.graph)
    try:
        _require_runnable(opaque)
    except ModelError:
        infer_graph(opaque, declared)  # names the node and what it reads, where one node is at fault
        raise
    inferred = infer_graph(opaque, declared)
    _check_declarations(given, inferred.graph)
    graph = convert_graph(*inferred)
    verify_graph(graph)
    return graph


def _check_declarations(source: Source, graph: Graph) -> None:
    """Refuses a model that declares of a value what cannot be, if ONNX Runtime does (it overlooks some shapes).

    Raises:
        ModelError: names the value and both types.
    """
    wrong = next(contradictions(source.proto.graph, graph), None)
    if wrong is None:
        return
    try:
        open_session(source.handle or outline(source.proto), session_options(optimise=False), source.name)
    except ModelError as error:
        raise ModelError(wrong, f"correct the declaration, or leave it out; {error.what}") from error


def _require_runnable(graph: Graph) -> None:
    """Asks ONNX Runtime, the judge of what can be run, without letting it copy the largest weights if that can be.

    Raises:
        ModelError: ONNX Runtime refuses the graph.
    """
    large = [name for name, array in graph.constants.items() if array.nbytes > LARGE_CONSTANT_BYTES]
    if large:
        small = {name: array for name, array in graph.constants.items() if name not in large}
        try:
            GraphSession(graph.replace(inputs=(*graph.inputs, *large), constants=small), optimise=False)
            return
        except ModelError:
            pass  # an operator may insist on constants
    GraphSession(graph, optimise=False)
