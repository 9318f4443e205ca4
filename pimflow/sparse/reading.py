"""Graphs from files: the choice of a reader, and the interpretation of .npz files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.data import open_file
from pimflow.errors import GraphDataError
from pimflow.sparse import checks
from pimflow.sparse.forms import EdgeLists, Edges, Progress, Relation, Rows, check_memory, too_large
from pimflow.sparse.npz import DAMAGED, StoredArray, forms_in, open_arrays
from pimflow.sparse.relations import is_one_of_several, states_kinds
from pimflow.sparse.text import read_text

PYG_NAMES = ("edge_index", "edge_weight", "edge_type", "num_nodes")
SCIPY_NAMES = ("format", "shape", "data", "indices", "indptr", "row", "col")
OWN_NAMES = ("rowptr", "order", "weight", "num_src", "relation_names", "relation_ends")
Arrays = Mapping[str, StoredArray]

_ZIP, _NUMPY = b"PK", b"\x93NUMPY"
_SHOWN = 4  # arrays named in a message


def read_graph(path: Path, progress: Progress) -> Edges | Rows | EdgeLists:
    """The contents of a graph file, whose form is recognised by its content.

    Raises:
        GraphDataError: it cannot be read, or does not hold a graph.
    """
    try:
        with open_file(path) as file:
            head = file.read(len(_NUMPY))
        if head == _NUMPY:
            raise GraphDataError(f"{path} holds one bare array", "save edge_index, [2, E], by name with numpy.savez")
        return _from_npz(path) if head.startswith(_ZIP) else read_text(path, progress)
    except FileNotFoundError:
        raise GraphDataError(f"no such file: {path}") from None
    except DAMAGED as error:
        if isinstance(error, OSError) and error.strerror:  # the system's, rather than a decoder's
            raise GraphDataError(f"{path} cannot be read: {error.strerror}", "give another file") from None
        raise GraphDataError(f"{path} cannot be read: {error}", "the file is damaged; make it again") from None
    except MemoryError:
        raise too_large(f"{path} does not fit") from None


def _from_npz(path: Path) -> Edges | Rows | EdgeLists:
    arrays = open_arrays(path, frozenset(PYG_NAMES + SCIPY_NAMES + OWN_NAMES))
    where = str(path)
    if "edge_index" in arrays:
        others = [name for name, array in forms_in(path) if name not in PYG_NAMES and is_edge_list(name, array)]
        if not is_one_of_several(others, [name for name in PYG_NAMES[1:] if name in arrays], where):
            return _from_edge_index(arrays, where)
        return _from_lists(open_arrays(path, frozenset(("edge_index", *others))), where)
    if "rowptr" in arrays:
        return _from_own(arrays, where)
    if "format" in arrays:
        return _from_scipy(arrays, where)
    every = open_arrays(path)
    lists = {name: array for name, array in every.items() if is_edge_list(name, array)}
    if lists:
        return _from_lists(lists, where)
    held = ", ".join(f"{name} {array.dtype.name} {list(array.shape)}" for name, array in list(every.items())[:_SHOWN])
    raise GraphDataError(
        f"{path} has no edge_index, and is not a scipy sparse matrix: it has {held or 'no arrays'}",
        "save edge_index, integers [2, E], with numpy.savez; for a heterogeneous graph, an array for every edge list",
    )


def _from_edge_index(arrays: Arrays, where: str) -> Edges | Rows:
    shape = arrays["edge_index"].shape
    check_memory(shape[-1] if shape else 0, where)
    count = _read(arrays, "num_nodes")
    num_src, num_dst = (None, None) if count is None else checks.vertex_counts(count, where)
    src, dst = checks.pairs(arrays["edge_index"].read(), where)
    return Edges(src, dst, num_src, num_dst, _read(arrays, "edge_weight"), _read(arrays, "edge_type"))


def _from_own(arrays: Arrays, where: str) -> Edges | Rows:
    form = _read(arrays, "format")
    if form is not None and str(form) != checks.FORMAT:
        raise GraphDataError(f"{where} has the format {form}", "save the graph again with this version of pimflow")
    for name in ("col", "num_src"):
        if name not in arrays:
            raise GraphDataError(f"{where} has rowptr, but no {name}", "save the graph with Graph.save")
    return Rows(
        arrays["rowptr"].read(),
        arrays["col"].read(),
        checks.vertex_count(_read(arrays, "num_src"), where),
        _read(arrays, "weight"),
        _read(arrays, "edge_type"),
        _read(arrays, "order"),
        _relations(arrays, where),
    )


def _relations(arrays: Arrays, where: str) -> tuple[Relation, ...]:
    names, ends = (_read(arrays, name) for name in ("relation_names", "relation_ends"))
    if names is None or ends is None:
        return ()
    if ends.shape != (names.size, 2) or ends.dtype.kind != "i" or names.dtype.kind != "U":
        raise GraphDataError(f"{where}: its edge lists are damaged", "save the graph again with Graph.save")
    return tuple(Relation(name, *sizes) for name, sizes in zip(names.tolist(), ends.tolist(), strict=True))


def is_edge_list(name: str, array: StoredArray | npt.NDArray[Any] | None) -> bool:
    """Whether an array is an edge list: by its name or, if it can be opened, by its form, integers [2, E]."""
    if states_kinds(name):
        return True
    return array is not None and len(array.shape) == 2 and array.shape[0] == 2 and array.dtype.kind in "iu"


def _from_lists(lists: Arrays, where: str) -> EdgeLists:
    check_memory(sum(array.shape[-1] for array in lists.values() if array.shape), where)
    return EdgeLists({name: array.read() for name, array in lists.items()})


def _from_scipy(arrays: Arrays, where: str) -> Edges | Rows:
    """A matrix written by scipy.sparse.save_npz: entry [i, j] is an edge from i to j, as in `Graph.from_scipy`."""
    form = arrays["format"].read().tolist()
    kind = form.decode("ascii", "replace") if isinstance(form, bytes) else str(form)
    lists = {"coo": ("row", "col"), "csr": ("indptr", "indices"), "csc": ("indptr", "indices")}
    if kind not in lists:
        raise GraphDataError(f"{where} is a sparse matrix in the form {kind!r}", "save it as csr, csc or coo")
    for name in ("shape", "data", *lists[kind]):
        if name not in arrays:
            raise GraphDataError(f"{where} is a sparse matrix without {name}", "save it with scipy.sparse.save_npz")
    check_memory(arrays["data"].shape[0] if arrays["data"].shape else 0, where)
    sizes = arrays["shape"].read()
    if sizes.shape != (2,):
        raise GraphDataError(f"{where} is a sparse array of {sizes.size} dimensions; it must be a matrix")
    num_src, num_dst = (checks.vertex_count(size, where) for size in sizes)
    first, second = (arrays[name].read() for name in lists[kind])
    weight = checks.matrix_weights(arrays["data"].read())
    if kind == "csc":
        _check_rows(first, num_dst, where)
        return Rows(first, second, num_src, weight)
    if kind == "csr":
        _check_rows(first, num_src, where)
        pointers = checks.rows(first, len(second), where)
        first = np.repeat(np.arange(num_src, dtype=np.int32), np.diff(pointers))
    return Edges(first, second, num_src, num_dst, weight)


def _check_rows(pointers: npt.NDArray[Any], rows: int, where: str) -> None:
    if pointers.shape != (rows + 1,):
        raise GraphDataError(f"{where}: indptr has shape {list(pointers.shape)}, but there are {rows} rows")


def _read(arrays: Arrays, name: str) -> npt.NDArray[Any] | None:
    return arrays[name].read() if name in arrays else None
