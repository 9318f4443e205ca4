"""Statistics that are kept: in memory, and those of large graphs on disk, by content hash and code."""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
import zlib
from dataclasses import fields
from functools import cache
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from pimflow.cache import STATISTICS_SUFFIX, cache_folder
from pimflow.data import open_file
from pimflow.errors import OptionError
from pimflow.sparse.forms import Progress
from pimflow.sparse.graph import Graph
from pimflow.sparse.stack_distance import ReuseProfile
from pimflow.sparse.statistics import Statistics, measure

KEPT_EDGES = 1 << 20
"""Graphs with fewer edges are measured sooner than a file is found."""

_DAMAGED = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)
_of_graphs: WeakKeyDictionary[Graph, Statistics] = WeakKeyDictionary()
_COUNTS = tuple(field.name for field in fields(Statistics) if field.name != "reuse")


def statistics_of(graph: Graph, progress: Progress = lambda line: None) -> Statistics:
    """The statistics of a graph, measured once: kept with the graph, and if it is large in the cache folder."""
    if graph not in _of_graphs:
        _of_graphs[graph] = _measured(graph, progress)
    return _of_graphs[graph]


def reuse(graph: Graph, cache_rows: float) -> float:
    """The share of a graph's edges whose source is not among the `cache_rows` rows that were touched last.

    Rows of destinations are gone through one after the other, in the order of `Graph.col`.
    """
    return statistics_of(graph).reuse.miss_ratio(cache_rows)


def _measured(graph: Graph, progress: Progress) -> Statistics:
    file = _file_of(graph.sha256) if graph.num_edges >= KEPT_EDGES else None
    known = None if file is None else _read(file)
    if known is not None:
        return known
    found = measure(graph, progress)
    if file is not None:
        _write(file, found)
    return found


def _file_of(sha256: str) -> Path | None:
    try:
        return cache_folder() / f"{sha256[:32]}-{_code()}{STATISTICS_SUFFIX}"
    except OptionError:
        return None


@cache
def _code() -> str:
    """Names the code that statistics come from: no other code reads them."""
    digest = hashlib.sha256()
    for name in ("stack_distance.py", "statistics.py"):
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()[:16]


def _read(file: Path) -> Statistics | None:
    """What a file holds; None if there is none, or it is damaged."""
    try:
        with open_file(file) as stream, np.load(stream, allow_pickle=False) as arrays:
            counts = dict(zip(_COUNTS, arrays["counts"].tolist(), strict=True))
            accesses, rows, is_exact = arrays["accesses"].tolist()
            profile = ReuseProfile(accesses, rows, arrays["distances"].astype(np.int64), bool(is_exact))
            return Statistics(**counts, reuse=profile)
    except _DAMAGED:
        return None


def _write(file: Path, found: Statistics) -> None:
    """Keeps statistics; where that fails they are measured again the next time."""
    beside = file.with_name(f"{file.name}.{os.getpid()}.tmp")  # a name that `cache clear` knows
    profile = found.reuse
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as stream:
            np.savez(
                stream,
                counts=np.array([getattr(found, name) for name in _COUNTS], np.int64),
                accesses=np.array([profile.accesses, profile.rows, profile.is_exact], np.int64),
                distances=profile.distances,
            )
        beside.replace(file)
