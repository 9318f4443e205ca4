"""`Graph`: edges in compressed rows, one row per destination, with their weights and types."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import astuple, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pimflow.errors import GraphDataError, counted
from pimflow.records import dataclass
from pimflow.sparse import checks
from pimflow.sparse.checks import Floats, Ids, Ints, Longs
from pimflow.sparse.forms import EdgeLists, Progress, Relation, Rows
from pimflow.sparse.sorting import is_sorted

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A directed graph in CSR form: row d holds the sources of the edges into d, in the order in which they were given.

    Duplicates, self loops and vertices without edges are legal. Arrays are read-only, and may be mapped from a file.

    Args:
        rowptr: int64 [num_dst + 1], the start of each row in `col`.
        col: int32 [E], the source of every edge.
        num_src: number of sources; equal to the number of destinations, except in bipartite graphs.
        order: int32 or int64 [E], the position of every edge in the list in which it was given; None if that list was
            already sorted by destination.
        weight: float32 [E], in the order of `col`; None if edges have none.
        edge_type: int32 [E], in the order of `col`; None if edges have none.
        relations: the edge lists of a heterogeneous graph, whose sources and destinations are numbered consecutively;
            () for any other graph.
    """

    rowptr: Longs
    col: Ints
    num_src: int
    order: Ids | None = None
    weight: Floats | None = None
    edge_type: Ints | None = None
    relations: tuple[Relation, ...] = ()

    def __post_init__(self) -> None:
        for name in ("rowptr", "col", "order", "weight", "edge_type"):
            array = getattr(self, name)
            if array is not None:
                object.__setattr__(self, name, _read_only(array))

    def __repr__(self) -> str:
        sources = "" if self.num_dst == self.num_src else f"{self.num_src:,} to "
        return f"Graph({sources}{counted(self.num_dst, 'vertex', 'vertices')}, {counted(self.num_edges, 'edge')})"

    @property
    def num_dst(self) -> int:
        """The number of destinations."""
        return len(self.rowptr) - 1

    @property
    def num_edges(self) -> int:
        """The number of edges, duplicates included."""
        return len(self.col)

    @cached_property
    def num_types(self) -> int:
        """The largest edge type plus one; 0 if edges have none."""
        if self.edge_type is None or not self.num_edges:
            return 0
        return int(np.max(self.edge_type)) + 1

    @cached_property
    def structure_sha256(self) -> str:
        """A hash of rows and sources, but not of the values of edges."""
        digest = hashlib.sha256(f"pimflow-graph/1 {self.num_src} {self.num_dst} {self.num_edges}".encode())
        for array in (self.rowptr, self.col):
            checks.hash_array(digest, array)
        return digest.hexdigest()

    @cached_property
    def sha256(self) -> str:
        """A hash of the content: structure and values in CSR order, whatever form they were read from.

        The order in which edges were given is not part of it, except within each row.
        """
        digest = hashlib.sha256(self.structure_sha256.encode())
        for name, array in (("weight", self.weight), ("edge_type", self.edge_type)):
            digest.update(f" {name} {array is not None} ".encode())
            if array is not None:
                checks.hash_array(digest, array)
        if self.relations:
            digest.update(repr([astuple(relation) for relation in self.relations]).encode())
        return digest.hexdigest()

    @classmethod
    def from_edge_index(
        cls,
        edge_index: npt.ArrayLike,
        num_nodes: int | tuple[int, int] | None = None,
        edge_weight: npt.ArrayLike | None = None,
        edge_type: npt.ArrayLike | None = None,
        *,
        where: str = "graph",
    ) -> Graph:
        """A graph from an edge list in PyTorch Geometric's form.

        Args:
            edge_index: integers [2, E]: a row of sources, a row of destinations.
            num_nodes: number of vertices, or the numbers of sources and of destinations; if None, the largest id plus
                one.
            edge_weight: numbers [E] or [E, 1].
            edge_type: integers [E], from 0.
            where: the source of the data, for error messages.

        Raises:
            GraphDataError: the arrays are not those of a graph.
        """
        src, dst = checks.pairs(_as_array(edge_index, f"{where}: edge_index"), where)
        num_src, num_dst = (None, None) if num_nodes is None else checks.vertex_counts(num_nodes, where)
        return cls.from_edges(src, dst, num_src, num_dst, edge_weight, edge_type, where=where)

    @classmethod
    def from_edges(
        cls,
        src: npt.NDArray[Any],
        dst: npt.NDArray[Any],
        num_src: int | None = None,
        num_dst: int | None = None,
        edge_weight: npt.ArrayLike | None = None,
        edge_type: npt.ArrayLike | None = None,
        *,
        where: str = "graph",
    ) -> Graph:
        """A graph, bipartite if need be, from the sources and destinations of its edges, integers [E] each.

        Time and memory are linear: rows are built by a counting sort. If a number of vertices is None, both are the
        largest id plus one.

        Raises:
            GraphDataError: the arrays are not those of a graph.
        """
        if src.shape != dst.shape or src.ndim != 1:
            raise GraphDataError(f"{where}: sources have shape {list(src.shape)}, destinations {list(dst.shape)}")
        edges = len(src)
        num_src, num_dst = (None if num is None else checks.vertex_count(num, where) for num in (num_src, num_dst))
        sources = checks.ids(checks.integers(src, "src", where), "source", num_src, where)
        destinations = checks.ids(checks.integers(dst, "dst", where), "destination", num_dst, where)
        if num_src is None or num_dst is None:
            num_src = num_dst = checks.vertices_of(sources, destinations, where)
        weight = None if edge_weight is None else checks.weights(np.asarray(edge_weight), edges, where)
        kinds = None if edge_type is None else checks.types(np.asarray(edge_type), edges, where)
        rowptr, col, order = _rows_of(sources, destinations, num_src, num_dst)
        if order is None:
            return cls(
                rowptr,
                checks.defensive_copy(col, src),
                num_src,
                None,
                _defensive_copy(weight, edge_weight),
                _defensive_copy(kinds, edge_type),
            )
        return cls(rowptr, col, num_src, order, _in_csr_order(weight, order), _in_csr_order(kinds, order))

    @classmethod
    def from_edge_lists(cls, lists: Mapping[Any, npt.ArrayLike], *, where: str = "graph") -> Graph:
        """A heterogeneous graph, from the edge lists of its relations: integers [2, E] each, by name.

        A name may be one of PyTorch Geometric's triples (source, relation, destination), which becomes
        SOURCE__RELATION__DESTINATION.

        Raises:
            GraphDataError: there is no list, or they are not those of a graph.
        """
        from pimflow.sparse.relations import concatenated, list_name

        named = {list_name(name, where): pairs for name, pairs in lists.items()}
        arrays = {name: _as_array(pairs, f"{where}: {name}") for name, pairs in named.items()}
        src, dst, relations = concatenated(arrays, where)
        sizes = (sum(item.num_src for item in relations), sum(item.num_dst for item in relations))
        return replace(cls.from_edges(src, dst, *sizes, where=where), relations=relations)

    @classmethod
    def from_mapping(cls, arrays: Mapping[Any, Any], *, where: str = "graph") -> Graph:
        """A graph from arrays by the names of an .npz file: `edge_index`, alone or with `edge_weight`, `edge_type` or
        `num_nodes`. Any other mapping holds the edge lists of a heterogeneous graph.

        Raises:
            GraphDataError: the arrays are not those of a graph, or those of a graph of either kind.
        """
        from pimflow.sparse.reading import PYG_NAMES, is_edge_list
        from pimflow.sparse.relations import is_one_of_several, list_name

        given = {name: arrays[name] for name in PYG_NAMES if name in arrays}
        if "edge_index" not in given:
            return cls.from_edge_lists(arrays, where=where)
        named = {list_name(name, where): array for name, array in arrays.items() if name not in PYG_NAMES}
        others = [name for name, array in named.items() if is_edge_list(name, _as_array(array, f"{where}: {name}"))]
        if is_one_of_several(others, [*given][1:], where):
            return cls.from_edge_lists(arrays, where=where)
        return cls.from_pyg(SimpleNamespace(**given), where=where)

    @classmethod
    def from_csr(
        cls,
        rowptr: npt.ArrayLike,
        col: npt.ArrayLike,
        num_src: int | None = None,
        edge_weight: npt.ArrayLike | None = None,
        edge_type: npt.ArrayLike | None = None,
        *,
        order: npt.ArrayLike | None = None,
        where: str = "graph",
    ) -> Graph:
        """A graph from compressed rows: `col[rowptr[d]:rowptr[d + 1]]` are the sources of the edges into d.

        Args:
            rowptr: integers [num_dst + 1].
            col: integers [E].
            num_src: number of sources; if None, that of destinations.
            edge_weight, edge_type: as in `from_edge_index`, in the order of `col`.
            order: positions of the edges in the list in which they were given, a permutation; None if they are in that
                order.
            where: the source of the data, for error messages.

        Raises:
            GraphDataError: the arrays are not those of a graph.
        """
        columns = np.asarray(col)
        if columns.ndim != 1:
            raise GraphDataError(f"{where}: col has shape {list(columns.shape)}; it must be [E]")
        edges = len(columns)
        pointers = checks.rows(np.asarray(rowptr), edges, where)
        sources = checks.vertex_count(len(pointers) - 1 if num_src is None else num_src, where)
        weight = None if edge_weight is None else checks.weights(np.asarray(edge_weight), edges, where)
        kinds = None if edge_type is None else checks.types(np.asarray(edge_type), edges, where)
        columns = checks.ids(checks.integers(columns, "col", where), "source", sources, where)
        positions = None if order is None else checks.permutation(np.asarray(order), edges, where)
        return cls(
            checks.defensive_copy(pointers, rowptr),
            checks.defensive_copy(columns, col),
            sources,
            _defensive_copy(positions, order),
            _defensive_copy(weight, edge_weight),
            _defensive_copy(kinds, edge_type),
        )

    @classmethod
    def from_scipy(cls, matrix: Any, *, where: str = "graph") -> Graph:
        """A graph from any of scipy's sparse matrices: entry [i, j] is an edge from i to j, its value the weight.

        PyTorch Geometric and networkx read such matrices in the same way. A matrix of booleans or only ones gives no
        weights; one that is not square gives a bipartite graph. Entries keep their order, and duplicates are not
        summed.

        Raises:
            GraphDataError: it is not such a matrix, or its arrays are not those of a graph.
        """
        import scipy.sparse

        if not scipy.sparse.issparse(matrix) or matrix.ndim != 2:
            raise GraphDataError(f"{where}: a {type(matrix).__name__} is not a scipy sparse matrix")
        entries = matrix.tocoo()
        num_src, num_dst = (checks.vertex_count(size, where) for size in matrix.shape)
        weight = checks.matrix_weights(entries.data)
        return cls.from_edges(entries.row, entries.col, num_src, num_dst, weight, where=where)

    @classmethod
    def from_pyg(cls, data: Any, *, where: str = "graph") -> Graph:
        """A graph from a `torch_geometric.data.Data`, or any object with its attributes.

        Reads `edge_index`, `num_nodes` and, if present, `edge_weight` (else an `edge_attr` of one column) and
        `edge_type`.

        Raises:
            GraphDataError: there is no edge_index, or the arrays are not those of a graph.
        """
        index = getattr(data, "edge_index", None)
        if index is None:
            raise GraphDataError(
                f"{where}: a {type(data).__name__} has no edge_index",
                "for a heterogeneous one, give a dict of edge lists by the names of the model's inputs",
            )
        weight = getattr(data, "edge_weight", None)
        attributes = getattr(data, "edge_attr", None)
        if weight is None and attributes is not None and attributes.ndim <= 2 and attributes.shape[1:] in ((), (1,)):
            weight = attributes
        kinds = getattr(data, "edge_type", None)
        return cls.from_edge_index(
            _as_array(index, f"{where}: edge_index"),
            getattr(data, "num_nodes", None),
            None if weight is None else _as_array(weight, f"{where}: edge_weight"),
            None if kinds is None else _as_array(kinds, f"{where}: edge_type"),
            where=where,
        )

    @classmethod
    def load(cls, path: str | Path, progress: Progress = lambda line: None) -> Graph:
        """The graph in a file, whose form is recognised by its content.

        An .npz file has `edge_index` [2, E] and optionally `edge_weight`, `edge_type` and `num_nodes`; or it is a scipy
        sparse matrix, or was written by `save`; otherwise its integer arrays [2, E] are the edge lists of a
        heterogeneous graph, by name (`edge_index` may be one of them, if nothing belongs to it). Text, plain or gzip,
        is in the MatrixMarket format or has one line per edge: source, destination and optionally a weight.

        Args:
            path: the file.
            progress: receives lines of text that report progress.

        Raises:
            GraphDataError: it cannot be read, or does not hold a graph.
        """
        from pimflow.sparse.reading import read_graph

        read, where = read_graph(Path(path), progress), str(path)
        if isinstance(read, EdgeLists):
            return cls.from_edge_lists(read.lists, where=where)
        weight, kinds = read.weight, read.edge_type
        if isinstance(read, Rows):
            rows = cls.from_csr(read.rowptr, read.col, read.num_src, weight, kinds, order=read.order, where=where)
            return replace(rows, relations=checks.relations(read.relations, rows.num_src, rows.num_dst, where))
        progress(f"sorting {len(read.src):,} edges into rows")
        return cls.from_edges(read.src, read.dst, read.num_src, read.num_dst, weight, kinds, where=where)

    def save(self, path: str | Path) -> None:
        """Writes the graph to an .npz file, which `load` maps into memory instead of reading.

        The same graph gives the same bytes.

        Raises:
            OutputError: the file cannot be written.
        """
        from pimflow.sparse.npz import write_arrays

        arrays = {name: getattr(self, name) for name in ("rowptr", "col", "order", "weight", "edge_type")}
        present = {name: array for name, array in arrays.items() if array is not None}
        scalars = {"format": np.array(checks.FORMAT), "num_src": np.array(self.num_src)}
        if self.relations:
            names, *ends = zip(*map(astuple, self.relations), strict=True)
            scalars |= {"relation_names": np.array(names), "relation_ends": np.array(ends, np.int64).T}
        write_arrays(Path(path), {**scalars, **present})

    def destinations(self) -> Ints:
        """The destination of every edge, int32 [E], in the order of `col`."""
        return np.repeat(np.arange(self.num_dst, dtype=np.int32), np.diff(self.rowptr))

    def as_given(self, values: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """Values of edges ([E, ...], in the order of `col`) in the order in which the edges were given."""
        if self.order is None:
            return values
        given = np.empty_like(values)
        given[self.order] = values
        return given

    def edge_index(self) -> Longs:
        """Sources and destinations, int64 [2, E], in the order in which the edges were given."""
        pairs = np.empty((2, self.num_edges), np.int64)
        positions = slice(None) if self.order is None else self.order
        pairs[0, positions] = self.col
        pairs[1, positions] = self.destinations()
        return pairs

    def edge_lists(self) -> dict[str, Longs]:
        """The edge lists of a heterogeneous graph as they were given, int64 [2, E] each, by name."""
        src, dst = self.edge_index()
        lists, edge, sources, destinations = {}, 0, 0, 0
        for relation in self.relations:
            end = destinations + relation.num_dst
            last = edge + int(self.rowptr[end] - self.rowptr[destinations])
            lists[relation.name] = np.stack((src[edge:last] - sources, dst[edge:last] - destinations))
            edge, sources, destinations = last, sources + relation.num_src, end
        return lists

    def transposed(self) -> Graph:
        """The graph with all edges reversed: one row per source."""
        weight = None if self.weight is None else self.as_given(self.weight)
        kinds = None if self.edge_type is None else self.as_given(self.edge_type)
        src, dst = self.as_given(self.col), self.as_given(self.destinations())
        return Graph.from_edges(dst, src, self.num_dst, self.num_src, weight, kinds)


def _rows_of(src: Ints, dst: Ints, num_src: int, num_dst: int) -> tuple[Longs, Ints, Ids | None]:
    """`rowptr`, `col` and `order` of edges; `order` is None if they are already sorted by destination."""
    if is_sorted(dst):
        counts = np.bincount(dst, minlength=num_dst)
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64))), src, None
    from scipy.sparse import coo_matrix

    positions = np.arange(len(dst), dtype=np.int32 if len(dst) < 2**31 else np.int64)
    entries = coo_matrix((positions, (dst, src)), shape=(num_dst, num_src))
    entries.has_canonical_format = True  # otherwise duplicates would be summed
    rows = entries.tocsr()
    return rows.indptr.astype(np.int64), rows.indices.astype(np.int32, copy=False), rows.data


def _in_csr_order(values: npt.NDArray[Number] | None, order: Ids) -> npt.NDArray[Number] | None:
    return None if values is None else values[order]


def _defensive_copy(values: npt.NDArray[Number] | None, given: npt.ArrayLike | None) -> npt.NDArray[Number] | None:
    return None if values is None or given is None else checks.defensive_copy(values, given)


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    view: npt.NDArray[Any] = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _as_array(values: Any, where: str) -> npt.NDArray[Any]:
    """A numpy array from anything that converts to one (including PyTorch tensors on any device).

    Raises:
        GraphDataError: it is a list of lists that differ in length.
    """
    tensor = values.detach() if hasattr(values, "detach") else values
    try:
        return np.asarray(tensor.cpu() if hasattr(tensor, "cpu") else tensor)
    except ValueError:
        raise GraphDataError(f"{where}: its rows differ in length", "give arrays") from None
