"""Binds a heterogeneous graph to a model that reads one edge list per relation, matched by the name of its input."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from pimflow.errors import ModelError, ShapeError
from pimflow.frontend.binding import Declared, ShapeBindings, declared_input
from pimflow.frontend.graph_binding import as_input, is_edge_list, scatter_sources
from pimflow.ir import Array
from pimflow.records import dataclass
from pimflow.sparse import Graph as Adjacency
from pimflow.sparse.relations import find_list


@dataclass(frozen=True)
class BoundRelations:
    """A heterogeneous graph bound to a model's inputs.

    Args:
        adjacency: the graph.
        shapes: numbers of edges, and the sizes given by the user.
        lists: the inputs that it replaces.
        notes: parts of the graph that the model does not read, and inputs that the graph does not have.
    """

    adjacency: Adjacency
    shapes: ShapeBindings
    lists: tuple[Declared, ...]
    notes: tuple[str, ...] = ()
    may_be_sorted = False
    misfit = None

    def arrays(self, *, in_rows: bool = False) -> dict[str, Array]:
        """The inputs that become constants, with edges in the order in which they were given."""
        found = _by_input(self.lists, self.adjacency)
        return {item.name: as_input(found[item.name], item) for item in self.lists}


def bind_relations(model: onnx.ModelProto, adjacency: Adjacency, shapes: ShapeBindings) -> BoundRelations:
    """Binds a heterogeneous graph to the inputs of a model; features and sizes give the number of vertices of each
    kind.

    A list that the graph does not have stays an input if the model reads it, but aggregates nothing by it: the pairs
    that a link predictor scores.

    Raises:
        ModelError: the model reads no edge list, or one that the graph does not have.
        ShapeError: the model was exported for other numbers of edges.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    declared = (declared_input(info) for info in model.graph.input if info.name not in constants)
    lists = tuple(filter(is_edge_list, declared))
    if not lists:
        raise ModelError(
            "the model has no edge list among its inputs (integers [2, E])", "give a graph network, or no graph"
        )
    found = _by_input(lists, adjacency)
    pairs = {name for node in model.graph.node for name in node.input} - scatter_sources(model)
    kept = tuple(item.name for item in lists if found and item.name in pairs - found.keys())
    lists = tuple(item for item in lists if item.name not in kept)
    missing = [item.name for item in lists if item.name not in found]
    names = [relation.name for relation in adjacency.relations]
    if missing:
        raise ModelError(
            f"the model reads the edge lists {', '.join(item.name for item in lists)}, and the graph has no "
            f"{', '.join(missing)}: it has {', '.join(names)}",
            "save every edge list of the graph under the name of its input, or as SOURCE__NAME__DESTINATION",
        )
    given = dict(shapes)
    for item in lists:
        _bind(given, item, found[item.name].shape[1])
    unread = sorted(set(names) - {find_list(item.name, names) for item in lists})
    notes = [f"{name}: the model does not read this list" for name in unread]
    notes += [f"{name}: the graph does not have this list, so it stays an input" for name in kept]
    return BoundRelations(adjacency, given, lists, tuple(notes))


def _by_input(lists: Sequence[Declared], adjacency: Adjacency) -> dict[str, Array]:
    """The edge lists of a graph, by the inputs that they replace."""
    found = adjacency.edge_lists()
    return {item.name: found[name] for item in lists if (name := find_list(item.name, found))}


def _bind(given: dict[str, tuple[int, ...] | int], item: Declared, edges: int) -> None:
    """Adds the number of edges of a list."""
    size = (item.dims or ())[1]
    known = given.get(size) if isinstance(size, str) else size
    if known not in (None, edges):
        raise ShapeError(
            f"the model is for {known} edges of {item.name}, the graph has {edges:,}",
            "export the model with a dynamic size for every edge list, or give a graph of its own size",
        )
    if isinstance(size, str):
        given[size or item.name] = edges if size else (2, edges)
