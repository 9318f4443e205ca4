"""A whole small machine, event by event: every copy, every core cycle by cycle, every row that the host merges.

The assignment of rows and edges is the package's (`tests/codegen/upmem/` compares it with the published code).
Everything that takes time is implemented independently: no totals of bytes or rows, no closed form, no core that
represents others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from pimflow.codegen.upmem.partition import Longs, cores_of, filled_before, tasklets_of
from pimflow.codegen.upmem.strategy import Strategy
from pimflow.sparse import Graph
from pimflow.targets.schema.upmem import UpmemSpec
from support.upmem.oracle_core import core_cycles
from support.upmem.simulated import programs_of

BYTES = 4
"""The size of an int32."""


def stages_us(spec: UpmemSpec, graph: Graph, features: int, strategy: Strategy) -> Mapping[str, float]:
    """Microseconds of every stage of an aggregation in int32; features of a part fill words of 8 bytes."""
    loaded = retrieved = merged = slowest = 0.0
    results: list[tuple[int, int]] = []
    there: set[tuple[int, int]] = set()
    columns = features // strategy.feature_parts
    width = -(-graph.num_src // strategy.edge_parts)
    ranks = [spec.cores // spec.ranks + (rank < spec.cores % spec.ranks) for rank in range(spec.ranks)]
    together = spec.ranks // strategy.clusters
    for cluster in range(strategy.clusters):
        edge_part, feature_part = divmod(cluster, strategy.feature_parts)
        rowptr, sources = _part(graph, edge_part * width, (edge_part + 1) * width)
        own = sum(ranks[cluster * together : (cluster + 1) * together])
        cores = cores_of(rowptr, own, strategy.cores)
        most = max(end - first for first, end in zip(cores.first_row, cores.end_row, strict=True))
        for core in range(own):
            loaded += sources * columns * BYTES / (spec.link.host_to_pim_gb_per_s * 1e3)
            slowest = max(slowest, _core_cycles(spec, tuple(rowptr.tolist()), own, core, strategy, columns))
            results.append((own, int(most) * columns * BYTES))
            for row in range(int(cores.first_row[core]), int(cores.end_row[core])):
                rates = spec.merge.add_rows_per_ms if (row, feature_part) in there else spec.merge.copy_rows_per_ms
                merged += 1e3 * float(np.interp(columns * BYTES, spec.merge.row_bytes, 1 / np.array(rates)))
                there.add((row, feature_part))
    block = sum(size for _, size in results) / len(results)
    nearest = min(range(len(spec.link.block_kib)), key=lambda place: abs(spec.link.block_kib[place] * 1024 - block))
    for _, size in results:
        retrieved += size / (spec.link.pim_to_host_gb_per_s[nearest] * 1e3)
    kernel = spec.launch_us + slowest / spec.clock_mhz
    return {"load": loaded, "kernel": kernel, "retrieve": retrieved, "merge": merged}


def _part(graph: Graph, first: int, end: int) -> tuple[Longs, int]:
    """Row pointers of the edges from a range of sources, edge by edge, and the number of these sources."""
    counts = [0] * graph.num_dst
    for row in range(graph.num_dst):
        for source in graph.col[graph.rowptr[row] : graph.rowptr[row + 1]]:
            counts[row] += first <= source < end
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), min(end, graph.num_src) - first


@cache
def _core_cycles(
    spec: UpmemSpec, rowptr: tuple[int, ...], cores: int, core: int, strategy: Strategy, columns: int
) -> int:
    pointers = np.array(rowptr, np.int64)
    shares = cores_of(pointers, cores, strategy.cores)
    tasklets = tasklets_of(pointers, filled_before(pointers), shares, spec.tasklets, strategy, "int32")
    return core_cycles(programs_of(pointers, shares, tasklets, core, strategy, spec, columns), spec.issue_cycles)
