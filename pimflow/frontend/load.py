"""The entry point: loads any ONNX model that ONNX Runtime can run with static shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from pimflow.errors import ModelError, OptionError
from pimflow.frontend.binding import ShapeBindings, bind_inputs
from pimflow.frontend.convert import convert_graph
from pimflow.frontend.declarations import contradictions
from pimflow.frontend.fixing import FixedValues, fixed_arrays
from pimflow.frontend.graph_binding import BoundGraph, bind_graph, random_graph
from pimflow.frontend.importing import import_graph
from pimflow.frontend.inference import Inferred, declared_types, infer_graph
from pimflow.frontend.merging import merge_equal_nodes
from pimflow.frontend.reading import Source, read_source
from pimflow.frontend.unblocking import unblocked
from pimflow.ir import Array, Graph
from pimflow.ir.verify import verify_graph
from pimflow.onnxio.export import ModelContent, SplitModel
from pimflow.onnxio.folding import unpacked
from pimflow.onnxio.pieces import PIECE_OPERANDS, LongModel, loads_in_pieces
from pimflow.onnxio.recurrence import prepared
from pimflow.onnxio.runtime import return_memory
from pimflow.onnxio.session import GraphSession, open_session, session_options
from pimflow.records import dataclass
from pimflow.sparse import Graph as Adjacency

if TYPE_CHECKING:
    from pimflow.frontend.recovery import Recovered
    from pimflow.frontend.relation_binding import BoundRelations

SORTED_EDGES = 1 << 18
"""From this number on, edges are bound in the order of their destinations if no result depends on their order: their
values are then consecutive in memory wherever they are gathered or summed."""

LARGE_CONSTANT_BYTES = 64 * 2**20
"""Weights above this size are treated as inputs while ONNX Runtime is asked whether it can run a model."""


def load_model(
    source: Path | ModelContent,
    shapes: ShapeBindings | None = None,
    *,
    fixed: FixedValues | None = None,
    annotations: bool = False,
) -> Graph:
    """Reads a model into the IR: typed ops where they are exact, shapes static.

    Args:
        source: a path, a serialised model, or a parsed one, with its large constants inside it or separate. Only a path
            can have external data.
        shapes: sizes of inputs (by name, a tuple) and of symbolic dims (by name, an int).
        fixed: values of inputs that become constants.
        annotations: whether to read back devices and tags that `save_onnx` wrote.

    Raises:
        ModelError: the model cannot be read, is not valid, or ONNX Runtime refuses it.
        ShapeError: dims are unbound (all are listed), or a shape does not fit.
    """
    with _text_names():
        return _loaded(replace(read_source(source), fixed=fixed or {}), shapes or {}, annotations=annotations)


@dataclass(frozen=True)
class Loaded:
    """A loaded model, and the graph that it was loaded for.

    Args:
        graph: the program; the edges of the bound graph are constants of it.
        adjacency: the bound graph; None if the model reads none, or keeps it as an input.
        notes: aggregations that were not recovered, and why; parts of the graph that are not read.
        is_estimate: whether the bound graph is a random one of the requested size.
        has_external_data: whether weights are in other files than the model.
        outlined: the model of a large file, without the weights that `graph` has; None for any other.
        of_graph: names of the constants that depend on the bound graph, such as norms: none of them is a parameter.
    """

    graph: Graph
    adjacency: Adjacency | None = None
    notes: tuple[str, ...] = ()
    is_estimate: bool = False
    has_external_data: bool = False
    outlined: SplitModel | None = None
    of_graph: frozenset[str] = frozenset()


def load_with_graph(
    source: Path | ModelContent,
    shapes: ShapeBindings | None,
    adjacency: Adjacency | None,
    *,
    fixed: FixedValues | None = None,
    keep_edges: bool = False,
    has_run: bool = False,
    unroll: bool = False,
    learnt_apart: bool = False,
) -> Loaded:
    """Reads a model; if it is a graph network, for one graph: aggregations become sparse ops, and norms constants.

    Args:
        source: a path, a serialised model, or a parsed one.
        shapes: sizes that do not follow from the graph.
        adjacency: the graph; None for a random one with the sizes from `shapes` and the model, if that is a graph
            network.
        fixed: values of inputs that become constants.
        keep_edges: whether the edges stay an input, so the graph gives only their number, and nothing is recovered.
        has_run: whether ONNX Runtime is known to run the model with these shapes, so that this is not checked again.
        unroll: whether Loops and Scans of known length are replaced by their iterations.
        learnt_apart: whether products of weights with values that depend only on the graph stay, for training.

    Raises:
        ModelError: as in `load_model`; or the model reads no edges, or edge types that the graph lacks.
        ShapeError: as in `load_model`; or the model was exported for a graph of another size.
    """
    with _text_names():
        given = replace(
            read_source(source), fixed=fixed or {}, has_run=has_run, unroll=unroll, learnt_apart=learnt_apart
        )
        loaded = _read(given, shapes or {}, adjacency, keep_edges)
        outlined = given.split if given.detached and given.path is not None else None
        return replace(loaded, has_external_data=bool(given.external), outlined=outlined)


def _read(given: Source, shapes: ShapeBindings, adjacency: Adjacency | None, keep_edges: bool) -> Loaded:
    if adjacency is not None:
        bound = _bind(given.proto, adjacency, shapes)
        return Loaded(_loaded(given, bound.shapes, annotations=False)) if keep_edges else _bound(given, bound)
    found = None if keep_edges else random_graph(given.proto, shapes)
    if found is None:
        return Loaded(_loaded(given, shapes, annotations=False))
    return replace(_bound(given, found), is_estimate=True)


def _bind(model: onnx.ModelProto, adjacency: Adjacency, shapes: ShapeBindings) -> BoundGraph | BoundRelations:
    if not adjacency.relations:
        return bind_graph(model.graph, adjacency, shapes)
    from pimflow.frontend.relation_binding import bind_relations

    return bind_relations(model, adjacency, shapes)


def _bound(given: Source, bound: BoundGraph | BoundRelations) -> Loaded:
    both = next((name for name in given.fixed if name in bound.arrays()), None)
    if both is not None:
        raise OptionError(f"input {both!r} is fixed, but also bound to the graph", "leave one out")
    try:
        recovered = _recovered(given, bound)
    except ModelError as error:
        if bound.misfit is not None:
            raise bound.misfit from error
        raise
    if bound.misfit is not None and recovered.never_runs:
        raise bound.misfit
    notes = (*bound.notes, *recovered.notes)
    return Loaded(_typed(recovered.inferred), bound.adjacency, notes, of_graph=recovered.of_graph)


def _recovered(given: Source, bound: BoundGraph | BoundRelations) -> Recovered:
    """The model with its aggregations as sparse ops, and with values that depend on the bound graph as constants."""
    from pimflow.frontend.recovery import recover

    opaque = merge_equal_nodes(import_graph(given, bound.shapes, annotations=False))
    in_rows = bound.may_be_sorted and bound.adjacency.num_edges >= SORTED_EDGES
    inferred = _inferred(given, opaque, bound.arrays(in_rows=in_rows))
    if in_rows and not _is_of_vertices(inferred.graph, bound.adjacency):
        inferred = _inferred(given, opaque, bound.arrays())
    return recover(inferred, inferred.bound)


def _is_of_vertices(graph: Graph, adjacency: Adjacency) -> bool:
    """Whether every result has one row per vertex, so that none depends on the order of edges."""
    return all((graph.values[name].shape or ())[:1] == (adjacency.num_dst,) for name in graph.outputs)


def _loaded(given: Source, shapes: ShapeBindings, *, annotations: bool) -> Graph:
    opaque = import_graph(given, shapes, annotations)
    if not annotations:
        return _typed(_inferred(given, opaque, {}))
    inferred = _inferred(given, unpacked(opaque), {})
    return _typed(inferred._replace(graph=prepared(inferred.graph)))


def _inferred(given: Source, opaque: Graph, bound: dict[str, Array]) -> Inferred:
    """A graph with its shapes, after checking that ONNX Runtime can run it."""
    declared = declared_types(given.proto.graph)
    try:
        if not given.has_run:
            _require_runnable(opaque)
            return_memory(len(opaque.nodes), opaque.constant_bytes)
    except ModelError:
        infer_graph(
            opaque, declared, suspect=True, bound=bound
        )  # names the node and its operands, if one node is at fault
        raise
    is_bound = bool(bound)
    inferred = infer_graph(opaque, declared, bound=bound, unroll=given.unroll, learnt_apart=given.learnt_apart)
    _check_declarations(given, inferred.graph)
    plain = None if is_bound else unblocked(inferred.graph)
    if plain is None:
        return inferred
    sized = {name for name, value in plain.values.items() if value.shape is not None}
    return infer_graph(plain, {name: value for name, value in declared.items() if name in sized})


def bound_inputs(
    source: Path | ModelContent,
    adjacency: Adjacency | None,
    shapes: ShapeBindings | None = None,
    fixed: FixedValues | None = None,
) -> Mapping[str, Array]:
    """The inputs of a model that a graph replaces, and those that are fixed, as arrays by name.

    Raises:
        ModelError: as in `load_with_graph`.
        ShapeError: as in `load_with_graph`.
    """
    if adjacency is None and not fixed:
        return {}
    model = read_source(source).proto
    declared = model.graph.input
    if adjacency is None:
        return fixed_arrays(bind_inputs(declared, shapes or {}), fixed or {})
    bound = _bind(model, adjacency, shapes or {})
    return {**bound.arrays(), **(fixed_arrays(bind_inputs(declared, bound.shapes), fixed) if fixed else {})}


def _typed(inferred: Inferred) -> Graph:
    graph = convert_graph(inferred.graph, inferred.forms, inferred.known)
    verify_graph(graph)
    return graph


@contextmanager
def _text_names() -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise ModelError(
            f"the model holds a name that is not text ({error})", "export or download the model again"
        ) from error


def _check_declarations(source: Source, graph: Graph) -> None:
    """Refuses a model with an incorrect declaration if ONNX Runtime does, too (it ignores some shapes).

    Raises:
        ModelError: a declaration is wrong; the message names the value and both types.
    """
    wrong = next(contradictions(source.proto.graph, graph), None)
    if wrong is None:
        return
    try:
        open_session(source.handle or source.outline, session_options(optimise=False), source.name)
    except ModelError as error:
        raise ModelError(wrong, f"correct the declaration, or leave it out; {error.what}") from error


def _require_runnable(graph: Graph) -> None:
    """Checks that ONNX Runtime, the reference, can run a graph, if possible without letting it copy the largest
    weights.

    Raises:
        ModelError: ONNX Runtime refuses the graph.
    """
    is_long = sum(len(node.inputs) for node in graph.nodes) > PIECE_OPERANDS
    if is_long and loads_in_pieces(LongModel.of_graph(graph)):
        return
    large = [name for name, array in graph.constants.items() if array.nbytes > LARGE_CONSTANT_BYTES]
    if large:
        small = {name: array for name, array in graph.constants.items() if name not in large}
        try:
            GraphSession(graph.replace(inputs=(*graph.inputs, *large), constants=small), optimise=False)
            return
        except ModelError:
            pass  # an operator may require constants
    GraphSession(graph, optimise=False)
