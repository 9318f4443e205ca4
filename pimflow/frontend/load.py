"""The way in: any ONNX model that ONNX Runtime can run with static shapes."""

from __future__ import annotations

from pathlib import Path

import onnx

from pimflow.errors import ModelError
from pimflow.frontend.binding import ShapeBindings
from pimflow.frontend.convert import convert_graph
from pimflow.frontend.importing import import_graph
from pimflow.frontend.inference import declared_types, infer_graph
from pimflow.frontend.reading import read_source
from pimflow.ir import Graph
from pimflow.ir.verify import verify_graph
from pimflow.onnxio.session import GraphSession

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
    except UnicodeDecodeError as error:
        raise ModelError(
            f"the model holds a name that is not text ({error})", "export or download the model again"
        ) from error
    _require_runnable(opaque)
    graph = convert_graph(*infer_graph(opaque, declared_types(given.proto.graph)))
    verify_graph(graph)
    return graph


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
