"""Kernels that compute the values of sparse ops, compared with scipy's and numpy's, in ms of processor time.

Processor time is summed over all threads, so that other jobs on the machine matter little. Memory peaks are not
compared: our kernels work in blocks, while the others, where scipy has no product, make a row for every edge.

Run: python benchmarks/bench_sparse_values.py [--edges 2e6] [--features 64]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from machine import here
from scipy.sparse import csr_array

from pimflow.ir import Array, EdgeSoftmax, GatherRows, Op, Sddmm, SegmentReduce, Spmm, TypedLinear
from pimflow.runtime.execute.sparse_values import SPARSE_VALUES
from pimflow.sparse import Graph, in_degrees
from pimflow.sparse.generate import rmat

EDGES_PER_VERTEX, HEADS, TYPES = 16, 4, 8
Case = tuple[str, Op, Sequence["Array | None"], Callable[[], Any]]


def cpu_s(compute: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and the minimum seconds of three runs."""
    seconds = []
    for _ in range(3):
        start = time.process_time()
        result = compute()
        seconds.append(time.process_time() - start)
    return result, min(seconds)


def cases(graph: Graph, features: int) -> list[Case]:
    """Each op with its operands, and the same computation with scipy or numpy."""
    random = np.random.default_rng(0)
    rowptr, col, count = graph.rowptr, graph.col, graph.num_dst
    x = random.standard_normal((count, features), np.float32)
    weight = random.random(graph.num_edges, np.float32)
    heads = random.random((graph.num_edges, HEADS), np.float32)
    by_head = x.reshape(count, HEADS, -1)
    degrees, dst = in_degrees(graph), graph.destinations()
    occupied = np.flatnonzero(degrees)
    matrices = random.standard_normal((TYPES, features, features), np.float32)
    bounds = np.linspace(0, count, TYPES + 1).astype(np.int64)

    def adjacency(data: Any) -> Any:
        return csr_array((data, col, rowptr), shape=(count, count))

    def largest() -> Any:
        out = np.zeros_like(x)
        out[occupied] = np.maximum(np.maximum.reduceat(x[col], rowptr[occupied], axis=0), 0)
        return out

    def softmax() -> Any:
        maxima = np.full((count, HEADS), -np.inf, np.float32)
        maxima[occupied] = np.maximum.reduceat(heads, rowptr[occupied], axis=0)
        powers = np.exp(heads - maxima[dst])
        sums = np.stack([adjacency(powers[:, head]) @ np.ones(count, np.float32) for head in range(HEADS)], 1)
        return powers / sums[dst]

    each = np.arange(graph.num_edges)
    ones = csr_array((np.ones(graph.num_edges, np.float32), each, rowptr), shape=(count, graph.num_edges))
    return [
        ("Spmm", Spmm(), [x, rowptr, col, weight], lambda: adjacency(weight) @ x),
        (
            "Spmm, heads",
            Spmm(),
            [by_head, rowptr, col, heads],
            lambda: np.stack([adjacency(heads[:, head]) @ by_head[:, head] for head in range(HEADS)], 1),
        ),
        ("Spmm, max", Spmm("max"), [x, rowptr, col], largest),
        ("SegmentReduce", SegmentReduce(), [heads, rowptr], lambda: ones @ heads),
        ("Sddmm, dot", Sddmm("dot"), [x, x, rowptr, col], lambda: np.einsum("ec,ec->e", x[col], x[dst])),
        ("EdgeSoftmax", EdgeSoftmax(), [heads, rowptr], softmax),
        ("GatherRows", GatherRows(), [x, col], lambda: np.take(x, col, axis=0)),
        (
            "TypedLinear",
            TypedLinear(),
            [x, matrices, bounds],
            lambda: np.concatenate([x[a:b] @ w for a, b, w in zip(bounds, bounds[1:], matrices, strict=False)]),
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=float, default=2e6, help="edges of an R-MAT graph")
    parser.add_argument("--features", type=int, default=64, help="features of a vertex")
    arguments = parser.parse_args()
    edges = int(arguments.edges)
    graph = rmat(max(round(np.log2(edges / EDGES_PER_VERTEX)), 1), edges)
    print(here())
    print(f"{graph.num_dst:,} vertices, {graph.num_edges:,} edges, {arguments.features} features, {HEADS} heads")
    print(f"{'op':<16} {'ours ms':>8} {'scipy, numpy ms':>16} {'largest difference':>19}")
    for name, op, operands, other in cases(graph, arguments.features):
        ours, own_s = cpu_s(lambda op=op, operands=operands: SPARSE_VALUES.of(op)(op, operands))  # type: ignore[misc]
        theirs, other_s = cpu_s(other)
        apart = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
        print(f"{name:<16} {1e3 * own_s:>8.1f} {1e3 * other_s:>16.1f} {apart:>19.1e}", flush=True)


if __name__ == "__main__":
    main()
