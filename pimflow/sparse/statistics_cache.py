"""Caches of statistics: in memory, and for large graphs on disk, keyed by hashes of content and code."""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from weakref import WeakKeyDictionary, ref

import numpy as np

from pimflow.cache import STATISTICS_SUFFIX, cache_folder
from pimflow.data import open_file
from pimflow.errors import OptionError
from pimflow.sparse.checks import Ids, hash_array
from pimflow.sparse.forms import Progress
from pimflow.sparse.graph import Graph
from pimflow.sparse.stack_distance import ReuseProfile, profile_of
from pimflow.sparse.statistics import Statistics, measure

MIN_CACHED_EDGES = 1 << 20
"""Graphs with fewer edges are measured faster than a file is found."""

_DAMAGED = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)
_COUNTS = tuple(field.name for field in fields(Statistics) if field.name != "reuse")
_of_graphs: WeakKeyDictionary[Graph, Statistics] = WeakKeyDictionary()
_of_arrays: dict[tuple[int, int], tuple[ref[Ids], ReuseProfile]] = {}


def statistics_of(graph: Graph, progress: Progress = lambda line: None) -> Statistics:
    """The statistics of a graph, measured once: cached with the graph and, if it is large, in the cache folder."""
    if graph not in _of_graphs:
        file = _file_of(lambda: graph.structure_sha256, graph.num_edges)
        known = None if file is None else _read_statistics(file)
        _of_graphs[graph] = known or measure(graph, progress)
        if file is not None and known is None:
            _write_statistics(file, _of_graphs[graph])
    return _of_graphs[graph]


def reuse(graph: Graph, cache_rows: float) -> float:
    """The fraction of a graph's edges whose source is not among the `cache_rows` most recently used rows.

    Edges are visited destination by destination, in the order of `Graph.col`.
    """
    return statistics_of(graph).reuse.miss_ratio(cache_rows)


def cached_profile(ids: Ids, count: int, per_line: int = 1) -> ReuseProfile:
    """The profile of accesses to rows, measured once: cached with the array and, if it is long, in the cache folder.

    Args:
        ids: row ids below `count`, in the order of access; must not be modified afterwards.
        count: number of rows.
        per_line: number of rows with consecutive ids that share a cache line; the profile is that of lines.
    """
    key = (id(ids), per_line)
    known = _of_arrays.get(key)
    if known is None or known[0]() is not ids:
        _of_arrays[key] = (ref(ids, lambda _: _of_arrays.pop(key, None)), _profile(ids, count, per_line))
    return _of_arrays[key][1]


def _profile(ids: Ids, count: int, per_line: int) -> ReuseProfile:
    def digest() -> str:
        found = hashlib.sha256(f"{count} {per_line} {len(ids)} ".encode())
        hash_array(found, ids)
        return found.hexdigest()

    file = _file_of(digest, len(ids))
    known = None if file is None else _read(file)
    profile = known[0] if known else profile_of(ids if per_line == 1 else ids // per_line, -(-count // per_line))
    if file is not None and known is None:
        _write(file, profile, ())
    return profile


def _file_of(digest: Callable[[], str], edges: int) -> Path | None:
    """The file for a digest; None for small graphs, or if there is no cache folder."""
    if edges < MIN_CACHED_EDGES:
        return None
    try:
        return cache_folder() / f"{digest()[:32]}-{_code()}{STATISTICS_SUFFIX}"
    except OptionError:
        return None


@cache
def _code() -> str:
    """A hash of the code that measures the statistics, so that other versions do not read them."""
    digest = hashlib.sha256()
    for name in ("sorting.py", "stack_distance.py", "statistics.py"):
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()[:16]


def _read_statistics(file: Path) -> Statistics | None:
    found = _read(file)
    if found is None or len(found[1]) != len(_COUNTS):
        return None
    return Statistics(**dict(zip(_COUNTS, found[1], strict=True)), reuse=found[0])


def _write_statistics(file: Path, found: Statistics) -> None:
    _write(file, found.reuse, [getattr(found, name) for name in _COUNTS])


def _read(file: Path) -> tuple[ReuseProfile, Sequence[int]] | None:
    """The profile and the counts in a file; None if it is missing or damaged."""
    try:
        with open_file(file) as stream, np.load(stream, allow_pickle=False) as arrays:
            accesses, rows, is_exact = arrays["accesses"].tolist()
            profile = ReuseProfile(accesses, rows, arrays["distances"].astype(np.int64), bool(is_exact))
            return profile, arrays["counts"].tolist()
    except _DAMAGED:
        return None


def _write(file: Path, profile: ReuseProfile, counts: Sequence[int]) -> None:
    """Writes what was measured; if that fails, it is measured again the next time."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")  # a name that `cache clear` recognises
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as stream:
            np.savez(
                stream,
                counts=np.array(counts, np.int64),
                accesses=np.array([profile.accesses, profile.rows, profile.is_exact], np.int64),
                distances=profile.distances,
            )
        temporary.replace(file)
