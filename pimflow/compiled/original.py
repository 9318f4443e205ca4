"""The model as given: reads it for the options of a compilation, determines its bound inputs, and runs it once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pimflow.bundle.graphs import read_graph
from pimflow.bundle.source import ModelSource
from pimflow.frontend import Loaded, bound_inputs, load_with_graph
from pimflow.ir import Array, Graph
from pimflow.onnxio.runtime import runtime_version
from pimflow.options import Options
from pimflow.search.solver import run_cache
from pimflow.sparse import Graph as Adjacency
from pimflow.verify.running import MAX_RUN_BYTES, check_original, live_bytes, runs_if_it_loads

if TYPE_CHECKING:
    import onnx


def read_model(source: ModelSource, options: Options, *, unroll: bool = False, learnt_apart: bool = False) -> Loaded:
    """The model in the IR, for the graph that the options name (or that it comes with), if it is a graph network.

    Args:
        source: the model.
        options: how it is read.
        unroll: whether Loops and Scans of known length are replaced by their iterations.
        learnt_apart: whether products of weights with values that depend only on the graph stay, for training.

    Raises:
        PimflowError: it cannot be read, its shapes are not bound, or the graph does not fit.
    """
    adjacency = options.graph or source.adjacency
    has_run = adjacency is None and _has_run(source, options)
    loaded = load_with_graph(
        source.content,
        options.shapes,
        adjacency,
        fixed=options.fixed,
        keep_edges=options.graph_as_input,
        has_run=has_run,
        unroll=unroll,
        learnt_apart=learnt_apart,
    )
    if not loaded.has_external_data:
        source.note_whole()
    return loaded


def read_for_passes(
    model: str | Path | bytes | onnx.ModelProto, constants: str | Path | None, options: Options
) -> Graph:
    """A model, or a graph in text form with the constants next to it, as input of passes.

    Raises:
        PimflowError: it cannot be read, or is malformed.
    """
    return read_graph(model, options.shapes, constants, options.fixed)


def inputs_bound(source: ModelSource, adjacency: Adjacency | None, options: Options) -> Mapping[str, Array]:
    """The model's inputs that a graph replaces, and those that are fixed, by name."""
    return bound_inputs(source.content, adjacency, options.shapes, options.fixed)


def run_original(source: ModelSource, loaded: Loaded, options: Options) -> None:
    """Runs the model once, on the graph that it was read for, unless an earlier run with the same digests did, or its
    operators leave no doubt that it runs.

    Does nothing if the options disable the check.

    Raises:
        ModelError: it does not run.
    """
    if not options.check:
        return
    adjacency = loaded.adjacency
    if adjacency is None and runs_if_it_loads(loaded.graph):
        _note_run(source, loaded, options)
        return
    is_run = live_bytes(loaded.graph) <= MAX_RUN_BYTES
    bound = inputs_bound(source, adjacency, options) if is_run else {}
    # given a path, ONNX Runtime would hold the weights of a large file twice while it opens it
    content = loaded.outlined or source.as_file()
    if adjacency is not None or loaded.has_external_data:
        check_original(content, loaded.graph, options.seed, bound)
        return
    known = run_cache(options, runtime_version()).has(*_run_key(source, loaded, options))
    if known or check_original(content, loaded.graph, options.seed, bound):
        _note_run(source, loaded, options)


def _note_run(source: ModelSource, loaded: Loaded, options: Options) -> None:
    """Records that the model runs; the digest of one with weights in other files does not cover those."""
    if loaded.has_external_data:
        return
    runs = run_cache(options, runtime_version())
    for key in (_run_key(source, loaded, options), _request_key(source, options)):
        if not runs.has(*key):
            runs.put(*key)


def _run_key(source: ModelSource, loaded: Loaded, options: Options) -> tuple[object, ...]:
    """Everything that identifies a run of a model that has been read."""
    shapes = [loaded.graph.value(name).shape for name in loaded.graph.inputs]
    return source.sha256, sorted(options.fixed.items()), shapes, options.seed


def _request_key(source: ModelSource, options: Options) -> tuple[object, ...]:
    """Everything that identifies a model from a file or the zoo before it is read."""
    sizes, values = sorted(options.shapes.items()), sorted(options.fixed.items())
    return "asked for", source.sha256, sizes, values, options.graph_as_input


def _has_run(source: ModelSource, options: Options) -> bool:
    """Whether an earlier run read the model with the same settings and ran it to its end. Not for a model in memory,
    whose digest takes as long as running it."""
    runs = run_cache(options, runtime_version())
    if source.given is not None or not runs.is_enabled:
        return False
    try:
        return runs.has(*_request_key(source, options))
    except OSError:  # the reader says why
        return False
