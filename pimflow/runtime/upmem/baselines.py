"""The cost of aggregations with other systems on the same modules: SparseP, GraNDe, and PyGim's published tuner.

The formulas follow the code published with PyGim (`backend_pim/spmv_sparseP`, `backend_pim/spmm_grande`,
`utils/autotuner.py`).
"""

from __future__ import annotations

from dataclasses import replace

from pimflow.codegen.upmem.partition import cores_of
from pimflow.codegen.upmem.strategy import CoreBalance, Strategy
from pimflow.ir import Refusal
from pimflow.records import dataclass
from pimflow.runtime.upmem.edge_parts import EdgeParts
from pimflow.runtime.upmem.pricing import Aggregation, AggregationCost, Cluster, Pricing, retrieving_gb_per_s, row_us
from pimflow.sparse import Graph
from pimflow.targets.schema.upmem import ELEMENT_BYTES, UpmemSpec

_TUNED_COLUMNS = (2, 4, 8, 16, 32)
"""The numbers of columns for which the published tuner has rates."""
_TUNED: tuple[tuple[int, int], ...] = ((1, 32), (2, 16))
_TUNED_CORES: tuple[CoreBalance, ...] = ("nnz", "row")


def sparsep(spec: UpmemSpec, graph: Graph, aggregation: Aggregation) -> AggregationCost | Refusal:
    """SparseP: products of the matrix with single columns; ranks take columns, cores whole rows of edges.

    One round multiplies as many columns as there are ranks; columns share no reads.
    """
    rounds = -(-aggregation.features // spec.ranks)
    pricing = Pricing(spec, replace(aggregation, features=spec.ranks), EdgeParts(graph))
    cost = pricing.cost(Strategy(1, spec.ranks, "coo", "nnz", "nnz"))
    return cost if isinstance(cost, Refusal) else cost.times(rounds)


def grande(spec: UpmemSpec, graph: Graph, aggregation: Aggregation) -> AggregationCost | Refusal:
    """GraNDe: each rank takes an edge part, and its cores share the features, so edges are copied to all its cores.

    Each core computes partial results for all destinations, which the host adds up over the ranks.
    """
    columns = -(-aggregation.features // min(spec.rank_cores()))
    used = -(-aggregation.features // columns)
    clusters = [Cluster(part, 1, columns) for part in range(spec.ranks) for _ in range(used)]
    strategy = Strategy(spec.ranks, 1, "csr", "row", "nnz")
    return Pricing(spec, aggregation, EdgeParts(graph)).cost_of(strategy, clusters)


@dataclass(frozen=True)
class Published:
    """The choice of PyGim's published tuner, with its prediction."""

    strategy: Strategy
    predicted_us: float


def published_tuner(spec: UpmemSpec, graph: Graph, aggregation: Aggregation) -> Published | Refusal:
    """The choice of the published tuner, including its errors.

    It compares four strategies. Of several edge parts it counts the loading and merging of only the last one, and the
    kernel of the core with most non-zeros, whatever the shares of its tasklets. It only has rates for 2 to 32 columns
    of INT32.
    """
    found: list[tuple[float, Strategy]] = []
    parts = EdgeParts(graph)
    for edge_parts, feature_parts in _TUNED:
        columns = aggregation.features // feature_parts
        if columns in _TUNED_COLUMNS and edge_parts * feature_parts == spec.ranks:
            for balance in _TUNED_CORES:
                strategy = Strategy(edge_parts, feature_parts, "csr", balance, "nnz")
                found.append((_published_us(spec, parts, aggregation, strategy, columns), strategy))
    if not found:
        return Refusal(f"the published tuner has no rates for {aggregation.features} features on {spec.ranks} ranks")
    predicted, strategy = min(found)
    return Published(strategy, predicted)


def _published_us(
    spec: UpmemSpec, parts: EdgeParts, aggregation: Aggregation, strategy: Strategy, columns: int
) -> float:
    size = columns * ELEMENT_BYTES[aggregation.element]
    cores = min(spec.rank_cores())
    every = cores * strategy.feature_parts
    overwritten = retrieved = slowest = 0.0
    for part in range(strategy.edge_parts):
        rowptr, _ = parts.rows(strategy.edge_parts, part)
        shares = cores_of(rowptr, cores, strategy.cores)
        loaded = every * parts.sources(strategy.edge_parts, part) * size
        merged = parts.graph.num_dst * strategy.feature_parts
        merging = merged * (row_us(spec, size, True) + (strategy.edge_parts - 1) * row_us(spec, size, False))
        overwritten = loaded / (spec.link.host_to_pim_gb_per_s * 1e3) + merging
        retrieved += every * int(shares.rows.max()) * size
        slowest = max(slowest, int(shares.nonzeros.max()) * _nonzero_us(spec, columns))
    block = retrieved / (every * strategy.edge_parts)
    return overwritten + retrieved / (retrieving_gb_per_s(spec, block) * 1e3) + slowest


def _nonzero_us(spec: UpmemSpec, columns: int) -> float:
    """The time of a non-zero according to the tuner's rates, to which the kernel's costs are fitted."""
    return (spec.kernel.nonzero + spec.kernel.multiply_add.int32 * columns) / spec.clock_mhz
