"""Computes an aggregation tasklet by tasklet, as a strategy divides it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.codegen.upmem.partition import Longs, cores_of, filled_before, tasklets_of
from pimflow.codegen.upmem.strategy import Strategy
from pimflow.ir import Refusal
from pimflow.records import dataclass
from pimflow.runtime.upmem.pricing import Aggregation, clusters_of
from pimflow.runtime.upmem.quantize import bits_for, dtype_of, quantized
from pimflow.sparse import Graph
from pimflow.targets.schema.upmem import UpmemSpec

_BLOCK_BYTES = 1 << 26


@dataclass(frozen=True, eq=False)
class Part:
    """The edges of one edge part in CSR: sources relative to the part's first one, weights by head."""

    rowptr: Longs
    col: npt.NDArray[np.integer[Any]]
    weight: npt.NDArray[Any] | None
    first: int
    sources: int


def aggregated(
    spec: UpmemSpec,
    graph: Graph,
    features: npt.NDArray[Any],
    strategy: Strategy,
    aggregation: Aggregation,
    weights: npt.NDArray[Any] | None = None,
) -> npt.NDArray[np.float32]:
    """The sums over a graph's edges, float32 [destinations, columns], computed in the requested element type.

    Every tasklet sums its own non-zeros of each row. If several tasklets, cores or edge parts share a row, their sums
    are added in turn. The host scales quantised results.

    Args:
        spec: the machine, for its cores and tasklets.
        graph: the edges, with their weights if they have any.
        features: [sources, columns].
        strategy: how the work is divided.
        aggregation: element type and accumulator. Sums may overflow, as they would on the machine.
        weights: [edges] or [edges, heads], instead of the graph's own.
    """
    weights = graph.weight if weights is None else weights
    bits = bits_for(graph, aggregation.element, aggregation.widened, weights)
    steps = None if isinstance(bits, Refusal) else bits
    x = quantized(features, aggregation.element, steps)
    weight = None if weights is None else quantized(weights.reshape(-1, aggregation.heads), aggregation.element, steps)
    accumulator = np.dtype(np.int64) if aggregation.widened else np.dtype(dtype_of(aggregation.element))
    total = np.zeros((graph.num_dst, features.shape[1]), accumulator)
    whole = None if weight is None else weight.values
    parts: dict[int, Part] = {}
    widest = -(-features.shape[1] // strategy.feature_parts)
    head_of = np.arange(features.shape[1]) // aggregation.head_columns
    for place, cluster in enumerate(clusters_of(spec, aggregation, strategy)):
        if cluster.part not in parts:
            parts = {cluster.part: _part(graph, whole, strategy.edge_parts, cluster.part)}
        part = parts[cluster.part]
        first = place % strategy.feature_parts * widest
        own = x.values[part.first : part.first + part.sources, first : first + cluster.columns]
        element = "int64" if aggregation.widened else aggregation.element
        cuts = _cuts(part.rowptr, strategy, cluster.cores, spec.tasklets, element)
        columns = slice(first, first + cluster.columns)
        _add_segments(total[:, columns], own.astype(accumulator, copy=False), part, cuts, head_of[columns])
    scale = np.float32(x.scale * (weight.scale if weight else 1.0))
    return total.astype(np.float32, copy=False) * scale if scale != 1 else total.astype(np.float32, copy=False)


def _part(graph: Graph, weight: npt.NDArray[Any] | None, parts: int, part: int) -> Part:
    width = -(-graph.num_src // parts)
    first = part * width
    sources = min(width, graph.num_src - first)
    if parts == 1:
        return Part(graph.rowptr, graph.col, weight, 0, sources)
    chosen = (graph.col >= first) & (graph.col < first + sources)
    before = np.concatenate([[0], np.cumsum(chosen)])
    own = None if weight is None else weight[chosen]
    return Part(before[graph.rowptr], graph.col[chosen] - np.int32(first), own, first, sources)


def _cuts(rowptr: Longs, strategy: Strategy, cores: int, tasklets: int, element: str) -> Longs:
    """The positions at which the non-zeros of each tasklet begin, for all cores in order, and the end."""
    shares = cores_of(rowptr, cores, strategy.cores)
    firsts = tasklets_of(rowptr, filled_before(rowptr), shares, tasklets, strategy, element).first.ravel()
    return np.concatenate([firsts, rowptr[-1:]])


def _add_segments(total: npt.NDArray[Any], x: npt.NDArray[Any], part: Part, cuts: Longs, head_of: Longs) -> None:
    """Adds the sum of each segment (one tasklet's part of one row) to its row; `head_of` gives the head of a column."""
    starts = np.unique(np.concatenate([part.rowptr, cuts]))
    rows = np.searchsorted(part.rowptr, starts[:-1], side="right") - 1
    block = max(1, _BLOCK_BYTES // max(x.shape[1] * x.itemsize, 1))
    first = 0
    while first < len(rows):
        end = max(first + 1, int(np.searchsorted(starts, starts[first] + block, side="right")) - 1)
        end = min(end, len(rows))
        edges = slice(int(starts[first]), int(starts[end]))
        products = x[part.col[edges]]
        if part.weight is not None:
            products = products * part.weight[edges][:, head_of].astype(x.dtype, copy=False)
        sums = np.add.reduceat(products, starts[first:end] - starts[first], axis=0, dtype=x.dtype)
        np.add.at(total, rows[first:end], sums)
        first = end
