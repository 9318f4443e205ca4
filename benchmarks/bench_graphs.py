"""Time and memory to make, write, read, measure, rank and reorder graphs with 10^5 edges or more.

Every size runs in separate processes, so that each has its own memory peak; `--edges` sets other sizes. Edges are those
of an R-MAT graph with 16 per vertex, or (`--like reddit`) match a data set's numbers. Ranking is what `pimflow
tune-graph` does once the graph is read: all strategies on `upmem`, and the host; no result of another run is reused.
Its memory is that of a process that reads the graph and ranks.

Run: python benchmarks/bench_graphs.py [--edges 1e5 1e6 1e7 1e8] [--per-vertex 16] [--features 32] [--like NAME ...]
[--orders]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from machine import here

from pimflow import gnn
from pimflow.sparse import DATA_SETS, ORDERS, Graph, like, reordered, source_histogram
from pimflow.sparse.generate import rmat
from pimflow.sparse.statistics import measure

STEPS = ("make", "read", "hash", "ranges", "statistics", "rank")
PEAKS = f" {'peak GiB':>9} {'ranking GiB':>12} {'strategies':>10}"


def timed(step: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return step(), time.perf_counter() - start


def peak_gib() -> float:
    """Peak memory of this process so far; Linux counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**30 if sys.platform == "darwin" else peak / 2**20


def make(what: str, per_vertex: int, file: Path) -> float:
    """Write the edges as an exporter of PyTorch Geometric's data would; return the seconds to make them."""
    if what in DATA_SETS:
        graph, seconds = timed(lambda: like(what))
    else:
        edges = round(float(what))
        scale = max(round(np.log2(edges / per_vertex)), 1)
        graph, seconds = timed(lambda: rmat(scale, edges))
    np.savez(file, edge_index=graph.edge_index(), num_nodes=graph.num_dst)
    return float(seconds)


def look(file: Path, orders: bool) -> tuple[str, dict[str, float], float]:
    """Read a graph and measure it: its size, seconds by step, peak memory in GiB."""
    graph, read = timed(lambda: Graph.load(file))
    seconds = {"read": read, "hash": timed(lambda: graph.sha256)[1]}
    seconds["ranges"] = timed(lambda: source_histogram(graph))[1]
    seconds["statistics"] = timed(lambda: measure(graph))[1]
    for order in ORDERS if orders else ():
        seconds[order] = timed(partial(reordered, graph, order))[1]
    return f"{graph.num_edges:>13,} {graph.num_dst:>10,}", seconds, peak_gib()


def rank(file: Path, features: int) -> tuple[int, float, float]:
    """Rank the strategies of a graph: how many can run, seconds, and peak memory in GiB, including reading it."""
    os.environ["PIMFLOW_CACHE_DIR"] = str(file.with_name("cache"))
    graph = Graph.load(file)
    tuning, seconds = timed(lambda: gnn.tune(graph, features, "upmem"))
    return len(tuning.rows), seconds, peak_gib()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", nargs="*", default=["1e5", "1e6", "1e7", "1e8"], help="sizes of R-MAT graphs")
    parser.add_argument("--per-vertex", type=int, default=16, help="their mean number of edges per vertex")
    parser.add_argument("--features", type=int, default=32, help="columns of the ranked aggregation")
    parser.add_argument("--like", nargs="*", default=[], choices=list(DATA_SETS), help="data sets whose sizes to use")
    parser.add_argument("--orders", action="store_true", help="also measure each order of the vertices")
    arguments = parser.parse_args()
    steps = (*STEPS, *(ORDERS if arguments.orders else ()))
    print(here())
    print(f"{'edges':>13} {'vertices':>10} " + " ".join(f"{step + ' s':>12}" for step in steps) + PEAKS)
    fresh = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "graph.npz"
        for what in (*arguments.edges, *arguments.like):
            shutil.rmtree(file.with_name("cache"), ignore_errors=True)
            with fresh.Pool(1) as pool:
                making = pool.apply(make, (what, arguments.per_vertex, file))
            with fresh.Pool(1) as pool:
                size, seconds, peak = pool.apply(look, (file, arguments.orders))
            with fresh.Pool(1) as pool:
                strategies, ranking, ranking_peak = pool.apply(rank, (file, arguments.features))
            seconds.update(make=making, rank=ranking)
            line = f"{size} " + " ".join(f"{seconds[step]:>12.2f}" for step in steps)
            print(f"{line} {peak:>9.2f} {ranking_peak:>12.2f} {strategies:>10}", flush=True)


if __name__ == "__main__":
    main()
