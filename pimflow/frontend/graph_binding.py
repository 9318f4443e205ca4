"""Binds a graph to a graph network's inputs: edges, their weights and types, and the sizes that follow from them."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
import onnx

from pimflow.errors import ModelError, ShapeError, counted
from pimflow.frontend.binding import Declared, ShapeBindings, declared_input
from pimflow.ir import Array
from pimflow.records import dataclass
from pimflow.sparse import Graph as Adjacency

_EDGE_WORDS = ("edge", "rel")
_VERTEX_SYMBOLS = ("n", "v", "nodes", "num_nodes", "n_nodes", "vertices", "num_vertices")
_INTEGERS = ("int64", "int32")
_SAME_ELEMENTS = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")

Place = tuple[Declared, int]
"""An input, and one of its axes."""


@dataclass(frozen=True)
class GraphInputs:
    """The inputs of a model that a graph determines, in whole or in size.

    Args:
        edge_index: the input [2, E].
        weight: the input with one number per edge, or None.
        edge_type: the input with one integer per edge, or None.
        edges: all other inputs with one row per edge.
        vertices: inputs with one row per vertex.
        others: all other inputs of known rank; they may have vertices along a later axis.
    """

    edge_index: Declared
    weight: Declared | None = None
    edge_type: Declared | None = None
    edges: tuple[Declared, ...] = ()
    vertices: tuple[Declared, ...] = ()
    others: tuple[Declared, ...] = ()


@dataclass(frozen=True)
class BoundGraph:
    """A graph bound to a model's inputs.

    Args:
        adjacency: the graph.
        shapes: sizes of all inputs that follow from the graph, and those given by the user.
        inputs: the inputs of the model that it replaces or sizes.
        notes: parts of the graph that the model does not read, and inputs that the graph does not have.
    """

    adjacency: Adjacency
    shapes: ShapeBindings
    inputs: GraphInputs
    notes: tuple[str, ...] = ()

    @property
    def may_be_sorted(self) -> bool:
        """Whether no remaining input has one row per edge, so that edges may be reordered."""
        weighted = self.inputs.weight is None or self.adjacency.weight is not None
        return weighted and not self.inputs.edges

    @property
    def misfit(self) -> ShapeError | None:
        """Why the model may not run on the graph: it has one table of vertices, without rows for all destinations."""
        places = _of_vertices(self.inputs, self.shapes, None)
        rows = {_given_size(*place, self.shapes) for place in places}
        if len(_tables(places)) != 1 or None in rows or self.adjacency.num_dst <= self.adjacency.num_src:
            return None
        return _one_table(places, self.adjacency, self.shapes)

    def arrays(self, *, in_rows: bool = False) -> dict[str, Array]:
        """The inputs that become constants, with edges in the given order or (`in_rows`) in that of `col`."""
        adjacency, found = self.adjacency, self.inputs
        pairs = np.stack((adjacency.col, adjacency.destinations())) if in_rows else adjacency.edge_index()
        arrays = {found.edge_index.name: as_input(pairs, found.edge_index)}
        for item, values in ((found.weight, adjacency.weight), (found.edge_type, adjacency.edge_type)):
            if item is not None and values is not None:
                arrays[item.name] = as_input(values if in_rows else adjacency.as_given(values), item)
        return arrays


def graph_inputs(proto: onnx.GraphProto, excluded: Container[str] = ()) -> GraphInputs | None:
    """The inputs of a model that a graph can be bound to; None if no input has the form of an edge list.

    An edge list is an input of integers [2, E]. Inputs that share its size E, by symbol, number or name, belong to
    edges; other float matrices are vertex features.

    Args:
        proto: the model's graph.
        excluded: names of inputs that are no edge lists, whatever their form.

    Raises:
        ModelError: several inputs may be the edge list.
    """
    constants = {tensor.name for tensor in proto.initializer}
    declared = [declared_input(info) for info in proto.input if info.name not in constants]
    lists = [item for item in declared if is_edge_list(item) and item.name not in excluded]
    named = [item for item in lists if item.name == "edge_index"]
    if not lists:
        return None
    if len(lists) > 1 and not named:
        raise ModelError(
            f"the inputs {', '.join(item.name for item in lists)} may all be edge lists",
            "give a graph with one edge list per name, or call the input for the graph's edges edge_index",
        )
    index = (named or lists)[0]
    others = [item for item in declared if item is not index and item not in lists and item.dims]
    of_edges = [item for item in others if _is_of_edges(item, index)]
    weight = next((item for item in of_edges if item.dtype.startswith("float") and _is_column(item)), None)
    kinds = next((item for item in of_edges if item.dtype in _INTEGERS and _is_column(item)), None)
    matrices = [item for item in others if item.dtype.startswith("float") and len(item.dims or ()) == 2]
    vertices = [item for item in matrices if item not in of_edges]
    return GraphInputs(
        index,
        weight,
        kinds,
        tuple(item for item in of_edges if item not in (weight, kinds)),
        tuple(vertices),
        tuple(item for item in others if item not in of_edges and item not in vertices),
    )


def is_edge_list(item: Declared) -> bool:
    """Whether an input has the form of an edge list: integers [2, E]."""
    dims = item.dims
    return dims is not None and len(dims) == 2 and dims[0] == 2 and item.dtype in _INTEGERS


def _is_column(item: Declared) -> bool:
    return len(item.dims or ()) == 1 or (item.dims or ())[1:] == (1,)


def _is_of_edges(item: Declared, index: Declared) -> bool:
    """Whether an input has one row per edge: by size or, if symbols differ or numbers may agree by chance, by name."""
    assert item.dims is not None
    assert index.dims is not None
    size, edges = item.dims[0], index.dims[1]
    if isinstance(size, str) and size and size == edges:
        return True
    if isinstance(size, int) and isinstance(edges, int) and size != edges:
        return False
    if isinstance(size, int) and isinstance(edges, str):
        return False
    named = any(word in item.name.lower() for word in _EDGE_WORDS)
    return named or (isinstance(size, int) and not _is_vertex_like(item))


def _is_vertex_like(item: Declared) -> bool:
    return len(item.dims or ()) == 2 and item.name.lower() in ("x", "h", "features", "feat", "input")


def bind_graph(proto: onnx.GraphProto, adjacency: Adjacency, shapes: ShapeBindings) -> BoundGraph:
    """Binds a graph to the inputs of a model.

    Raises:
        ModelError: the model reads no edge list, or edge types that the graph does not have.
        ShapeError: the model was exported for a graph of another size.
    """
    found = graph_inputs(proto)
    if found is None:
        raise ModelError(
            "the model has no edge list among its inputs (integers [2, E])", "give a graph network, or no graph"
        )
    return _bound_to(found, adjacency, shapes)


def _bound_to(found: GraphInputs, adjacency: Adjacency, shapes: ShapeBindings) -> BoundGraph:
    sizes = _sizes(found, adjacency, shapes)
    given = dict(shapes)
    for item, size in sizes.items():
        given.pop(item, None)
        given[item] = size
    return BoundGraph(adjacency, given, found, _notes(found, adjacency))


def _sizes(found: GraphInputs, adjacency: Adjacency, shapes: ShapeBindings) -> dict[str, tuple[int, ...] | int]:
    """Sizes of symbols, and shapes of inputs with unnamed dims.

    If sources and destinations are different vertices, no input says which of them its rows are, so the user gives the
    numbers of rows.
    """
    vertices, edges = adjacency.num_dst, adjacency.num_edges
    pairs = [(found.edge_index, 1, edges)]
    pairs += [(item, 0, edges) for item in (found.weight, found.edge_type, *found.edges) if item is not None]
    if adjacency.num_src == vertices:
        pairs += [(item, axis, vertices) for item, axis in _of_vertices(found, shapes, vertices)]
    else:
        _check_tables(found, adjacency, shapes)
    mismatched = [(item, axis) for item, axis, size in pairs if _given_size(item, axis, shapes) not in (None, size)]
    if mismatched:
        _refuse_other_size(found, adjacency, shapes)
    sizes: dict[str, tuple[int, ...] | int] = {}
    for item, axis, size in pairs:
        dims = item.dims or ()
        dim = dims[axis]
        if isinstance(dim, str) and dim:
            sizes[dim] = size
        elif isinstance(dim, str) and all(isinstance(other, int) for place, other in enumerate(dims) if place != axis):
            sizes[item.name] = tuple(size if place == axis else int(other) for place, other in enumerate(dims))
    return sizes


def _check_tables(found: GraphInputs, adjacency: Adjacency, shapes: ShapeBindings) -> None:
    """Checks that one of the given numbers of rows is that of the sources of a bipartite graph.

    Raises:
        ShapeError: none is, or the model has one table of vertices, whose number of rows is not given.
    """
    places = _of_vertices(found, shapes, None)
    rows = {_given_size(*place, shapes) for place in places}
    if len(_tables(places)) == 1 and adjacency.num_src not in rows:
        raise _one_table(places, adjacency, shapes)
    if found.vertices and None not in rows and adjacency.num_src not in rows:
        known = " and ".join(f"{size:,}" for size in sorted(size for size in rows if size is not None))
        raise ShapeError(
            f"the model is for {known} vertices, {_edges_between(adjacency)}",
            "bind the sizes of its inputs to these, or give a graph of its own size",
        )


def _tables(places: Sequence[Place]) -> set[object]:
    """The tables of vertices among inputs: those with one symbol or number of rows are of the same vertices."""
    return {_dim(place) or place for place in places}


def _one_table(places: Sequence[Place], adjacency: Adjacency, shapes: ShapeBindings) -> ShapeError:
    """The error for a bipartite graph and a model with one table of vertices."""
    spelled = ", ".join(f"{item.name} {_spelled(item)}" for item, _ in places)
    size = _given_size(*places[0], shapes)
    rows = "" if size is None else f" ({counted(size, 'row')})"
    other = "otherwise give a model that also reads a table of destinations"
    if size is None:
        other = f"if only sources have rows, bind these: {_typed(places[0], adjacency.num_src)}"
    return ShapeError(
        f"the model has one table of vertices, {spelled}{rows}, and {_edges_between(adjacency)}",
        f"if both are vertices of one kind, make the graph square (one number as num_nodes); {other}",
    )


def _edges_between(adjacency: Adjacency) -> str:
    sources = counted(adjacency.num_src, "vertex", "vertices")
    return f"the edges of the graph go from {sources} to {counted(adjacency.num_dst, 'other')}"


def _of_vertices(found: GraphInputs, shapes: ShapeBindings, vertices: int | None) -> list[Place]:
    """Inputs with their vertex axis: that of rows or, in batches [B, N, F] and the like, an unambiguous later one.

    Args:
        found: the inputs.
        shapes: sizes given by the user.
        vertices: number of vertices; None if it is to be found.

    Raises:
        ShapeError: several sizes may be the number of vertices.
    """
    if found.vertices:
        return [(item, 0) for item in found.vertices]
    axes = [(item, axis) for item in found.others for axis in range(max(len(item.dims or ()) - 1, 1))]
    free = [place for place in axes if isinstance(_dim(place), str) and _dim(place) != _dim((found.edge_index, 1))]
    named = [place for place in free if str(_dim(place)).lower() in _VERTEX_SYMBOLS]
    if len({_dim(place) for place in named}) == 1:
        return named
    if vertices is not None and any(_given_size(*place, shapes) == vertices for place in axes):
        return []
    free = [place for place in free if _given_size(*place, shapes) is None] or free
    sole = len({_dim(place) or place for place in free}) == 1
    if vertices is not None and free and not (sole and all(axis >= len(item.dims or ()) - 2 for item, axis in free)):
        spelled = ", ".join(dict.fromkeys(f"{item.name} {_spelled(item)}" for item, _ in free))
        raise ShapeError(
            f"it is not clear which size in {spelled} is the number of vertices ({vertices:,})",
            f"bind it: {' or '.join(dict.fromkeys(_typed(place, vertices) for place in free))}",
        )
    return free or [(item, len(item.dims or ()) - 2) for item in found.others if len(item.dims or ()) > 2]


def _dim(place: Place) -> int | str:
    item, axis = place
    return (item.dims or ())[axis]


def _spelled(item: Declared) -> str:
    return f"[{', '.join(str(dim) if dim != '' else '?' for dim in item.dims or ())}]"


def _typed(place: Place, size: int) -> str:
    """The option that binds a size."""
    item, axis = place
    dims = item.dims or ()
    if dims[axis]:
        return f"--shape {dims[axis]}={size}"
    return f"--shape {item.name}:{'x'.join(str(size if at == axis else dim or 1) for at, dim in enumerate(dims))}"


def _given_size(item: Declared, axis: int, shapes: ShapeBindings) -> int | None:
    """A size given by the model or the user; None if it is given by neither."""
    dim = (item.dims or ())[axis]
    if isinstance(dim, int):
        return dim
    bound = shapes.get(item.name)
    if isinstance(bound, tuple) and len(bound) > axis:
        return bound[axis]
    symbol = shapes.get(dim)
    return symbol if isinstance(symbol, int) else None


def _refuse_other_size(found: GraphInputs, adjacency: Adjacency, shapes: ShapeBindings) -> None:
    edges = _given_size(found.edge_index, 1, shapes)
    places = _of_vertices(found, shapes, adjacency.num_dst)
    rows = {size: f"{size:,}" for item, axis in places if (size := _given_size(item, axis, shapes)) is not None}
    known = [f"{' and '.join(rows.values())} vertices"] if rows else []
    known += [counted(edges, "edge")] if edges is not None else []
    pair = "say how many sources and how many destinations it has (two numbers as num_nodes)"
    raise ShapeError(
        f"the model is for {' and '.join(known)}, the graph has {counted(adjacency.num_dst, 'vertex', 'vertices')} and "
        f"{counted(adjacency.num_edges, 'edge')}",
        f"{pair if len(rows) > 1 else 'export the model with dynamic sizes'}, or give a graph of its own size",
    )


def _notes(found: GraphInputs, adjacency: Adjacency) -> tuple[str, ...]:
    if found.edge_type is not None and adjacency.edge_type is None:
        raise ModelError(
            f"the model reads edge types ({found.edge_type.name}), and the graph has none",
            "give a graph with edge_type",
        )
    if found.weight is not None and adjacency.weight is None:
        return (f"{found.weight.name}: the graph has no weights, so it stays an input",)
    if found.weight is None and adjacency.weight is not None:
        return ("edge_weight: the model does not read the graph's weights",)
    return ()


def as_input(array: Array, item: Declared) -> Array:
    """An array in an input's type, as a column if the input is one."""
    typed = array.astype(np.dtype(item.dtype), copy=False)
    return typed.reshape(-1, 1) if len(item.dims or ()) == 2 and array.ndim == 1 else typed


def _reduces(node: onnx.NodeProto) -> bool:
    return node.op_type in ("ScatterElements", "ScatterND") and any(
        attribute.name == "reduction" and attribute.s != b"none" for attribute in node.attribute
    )


def scatter_sources(proto: onnx.ModelProto) -> set[str]:
    """The values by which scatters with a reduction are indexed, as in graph networks, and all that these depend on."""
    reducing = {function.name for function in proto.functions if any(map(_reduces, function.node))}
    sources: set[str] = set()
    for node in reversed(proto.graph.node):
        if _reduces(node):
            sources.add(node.input[1])
        elif node.op_type in reducing or not sources.isdisjoint(node.output):
            sources.update(node.input)
    return sources


def _token_ids(proto: onnx.GraphProto) -> set[str]:
    """The inputs, of any form, that as a whole pick rows of a constant table."""
    constants = {tensor.name for tensor in proto.initializer}
    origin = {info.name: info.name for info in proto.input}
    found: set[str] = set()
    for node in proto.node:
        if node.op_type == "Gather" and node.input[0] in constants and node.input[1] in origin:
            found.add(origin[node.input[1]])
        elif node.op_type in _SAME_ELEMENTS and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
    return found


def random_graph(model: onnx.ModelProto, shapes: ShapeBindings) -> BoundGraph | None:
    """A random graph with the sizes given by the user and the model, for estimates; None if the sizes are not known, or
    the model is no graph network: no scatter with a reduction has indices that depend on an edge list.

    The gradient of an embedding is such a scatter by two texts of E tokens, which have the form of an edge list. Ends,
    weights and types of edges are drawn uniformly.

    Raises:
        ModelError: as `graph_inputs`.
    """
    proto, sources = model.graph, scatter_sources(model)
    excluded = _token_ids(proto).union(info.name for info in proto.input if info.name not in sources)
    found = graph_inputs(proto, excluded) if sources else None
    if found is None:
        return None
    edges = _given_size(found.edge_index, 1, shapes)
    vertices = next((_given_size(item, axis, shapes) for item, axis in _of_vertices(found, shapes, None)), None)
    if edges is None or vertices is None:
        return None
    random = np.random.default_rng(0)
    src, dst = (random.integers(0, vertices, edges, np.int32) for _ in range(2))
    kinds = random.integers(0, _relations(proto, found), edges, np.int32) if found.edge_type else None
    weight = random.random(edges, np.float32) if found.weight else None
    return _bound_to(found, Adjacency.from_edges(src, dst, vertices, vertices, weight, kinds), shapes)


def _relations(proto: onnx.GraphProto, found: GraphInputs) -> int:
    """The number of edge types that a model distinguishes: by its weight matrices, or its comparisons of types."""
    assert found.edge_type is not None
    sizes = {tensor.name: tensor.dims for tensor in proto.initializer}
    reads = [node for node in proto.node if node.op_type in ("Gather", "GatherND")]
    picks = [node.input[0] for node in reads if len(sizes.get(node.input[0], ())) == 3]
    picked = [sizes[name][0] for name in picks]
    compared = sum(node.op_type == "Equal" and found.edge_type.name in node.input for node in proto.node)
    most: int = max(1, compared, *picked)
    return most
