"""The GPU's work for sparse ops: bytes from the graph's statistics, against a cache simulated row by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pytest

from pimflow.ir import (
    EdgeSoftmax,
    GatherPairs,
    GatherRows,
    Op,
    Sddmm,
    SegmentReduce,
    Spmm,
    TypedLinear,
    TypedSpmm,
    Value,
)
from pimflow.runtime.backends import host_of
from pimflow.runtime.gpu.cost import GpuCost, gpu_cost
from pimflow.runtime.gpu.sparse_work import exporter_pattern
from pimflow.runtime.gpu.work import KernelSequence, MatrixWork, SegmentedWork, gpu_work
from pimflow.runtime.sparse_traffic import UNKNOWN_ORDER, Cache, SparseWork
from pimflow.sparse import Graph, generate, like, reordered, stack_distance
from pimflow.targets import GpuSpec, MeasuredGpuSpec, load_target
from support.lru import misses

GPU = replace(load_target("pimflow").gpu, l2_kib=64.0)
CACHE = Cache(64 * 1024, 32)
WIDTH = 64
Arrays = dict[int, npt.NDArray[np.generic]]


def operands(graph: Graph) -> list[Value]:
    edges = graph.num_edges
    return [
        Value("x", (graph.num_src, WIDTH), "float32"),
        Value("rowptr", (graph.num_dst + 1,), "int64"),
        Value("col", (edges,), "int32"),
        Value("weight", (edges,), "float32"),
    ]


def result(*shape: int) -> Value:
    return Value("out", shape, "float32")


def spmm_cost(graph: Graph, gpu: GpuSpec | MeasuredGpuSpec = GPU) -> GpuCost:
    constants: Arrays = {1: graph.rowptr, 2: graph.col}
    out = [result(graph.num_dst, WIDTH)]
    return gpu_cost(Spmm(), operands(graph), out, gpu, gpu.memory_channels, constants=constants)


GRAPHS: dict[str, Callable[[], Graph]] = {
    "uniform": lambda: generate.uniform(5000, 40_000),
    "power law": lambda: generate.power_law(5000, 40_000, 600),
    "R-MAT by degree": lambda: reordered(generate.rmat(12, 40_000), "degree"),
    "streets": lambda: generate.road_grid(100, 100, in_order=True),
    "blocks": lambda: generate.block_model(5000, 40_000, 50, 0.1, in_order=True),
    "Reddit": lambda: like("reddit", 0.01, keep="density"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_an_aggregation_moves_what_streams_and_what_misses_the_cache(name: str) -> None:
    graph = GRAPHS[name]()
    edges, row_bytes = graph.num_edges, 2 * WIDTH
    streamed = 8 * (graph.num_dst + 1) + (4 + 2) * edges + graph.num_dst * row_bytes
    fetched = misses(graph.col.tolist(), 64 * 1024 // row_bytes) * row_bytes
    cost = spmm_cost(graph)
    assert cost.bytes == streamed + fetched
    assert cost.flops == 2 * edges * WIDTH
    assert cost.memory_us == pytest.approx(cost.bytes / (32 * 28e3 * 0.8), rel=0.2)  # or the L2, where most rows hit
    assert cost.unknown == ""


KEPT_ASIDE: dict[str, Callable[[], Graph]] = {
    "uniform": lambda: generate.uniform(9000, 60_000, seed=11),
    "dense": lambda: generate.uniform(1500, 60_000, seed=11),
    "power law": lambda: generate.power_law(9000, 60_000, 900, seed=11),
    "power law by degree": lambda: reordered(generate.power_law(9000, 60_000, 900, seed=12), "degree"),
    "R-MAT": lambda: generate.rmat(13, 60_000, 11),
    "streets by RCM": lambda: reordered(generate.road_grid(120, 120, seed=11), "rcm"),
    "blocks": lambda: generate.block_model(9000, 60_000, 60, 0.2, seed=11),
    "blocks by community": lambda: reordered(generate.block_model(9000, 60_000, 60, 0.2, seed=12), "community"),
    "proteins": lambda: like("ogbn-proteins", 0.03, seed=11, keep="density"),
}


@pytest.mark.parametrize("name", KEPT_ASIDE)
def test_a_sampled_price_is_within_a_tenth_of_an_exact_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for graphs that are too large for an exact count."""
    monkeypatch.setattr(stack_distance, "EXACT_ACCESSES", 0)
    graph = KEPT_ASIDE[name]()
    edges, row_bytes = graph.num_edges, 2 * WIDTH
    streamed = 8 * (graph.num_dst + 1) + (4 + 2) * edges + graph.num_dst * row_bytes
    for cache_kib in (16.0, 64.0, 256.0):
        cost = spmm_cost(graph, replace(GPU, l2_kib=cache_kib))
        fetched = misses(graph.col.tolist(), int(cache_kib * 1024) // row_bytes) * row_bytes
        assert cost.bytes - streamed == pytest.approx(fetched, rel=0.1)


def test_equal_shapes_do_not_cost_the_same() -> None:
    blocks = generate.block_model(5000, 40_000, 50, 0.1)
    community = reordered(blocks, "community")
    assert operands(blocks) == operands(community)
    assert spmm_cost(community).time_us < spmm_cost(blocks).time_us


def test_half_of_the_channels_have_half_of_the_cache() -> None:
    graph = generate.uniform(5000, 40_000)
    out = [result(5000, WIDTH)]
    constants: Arrays = {1: graph.rowptr, 2: graph.col}
    whole, half = (gpu_cost(Spmm(), operands(graph), out, GPU, n, constants=constants) for n in (32, 16))
    assert half.bytes > whole.bytes
    assert half.memory_us > 2 * whole.memory_us


def test_cached_rows_are_bound_by_the_l2_cache() -> None:
    """32 channels x 64 bytes per cycle."""
    graph = generate.uniform(200, 100_000)
    cost = spmm_cost(graph, load_target("pimflow").gpu)
    passed = 100_000 * (2 * WIDTH + 6) + 8 * 201 + 200 * 2 * WIDTH
    assert cost.memory_us == pytest.approx(passed / (32 * 64) / 1365)
    measured = load_target("turing-pim").any_gpu
    assert isinstance(measured, MeasuredGpuSpec)
    rate = measured.library.product.gemm.operand_gb_per_s * 1e3
    assert spmm_cost(graph, measured).memory_us == pytest.approx(passed / rate)


def work(op: Op, inputs: list[Value], out: Value, constants: Arrays) -> SparseWork:
    found = gpu_work(op, inputs, [out], 2, constants)
    assert isinstance(found, SparseWork)
    return found


def test_other_ops_over_edges() -> None:
    graph = generate.power_law(3000, 20_000, 300)
    x, rowptr, col, _ = operands(graph)
    rows, edges, out_bytes = graph.num_dst, graph.num_edges, 2 * WIDTH
    fetched = misses(graph.col.tolist(), 64 * 1024 // out_bytes) * out_bytes
    ends: Arrays = {2: graph.rowptr, 3: graph.col}
    added = work(Sddmm("add"), [x, x, rowptr, col], result(edges, WIDTH), ends)
    assert added.memory_bytes(CACHE) == fetched + rows * out_bytes + 8 * (rows + 1) + 4 * edges + edges * out_bytes
    dot = work(Sddmm("dot"), [x, x, rowptr, col], result(edges), ends)
    assert (added.macs, dot.macs, dot.operations) == (0, edges * WIDTH, edges * WIDTH)
    assert dot.memory_bytes(CACHE) == added.memory_bytes(CACHE) - edges * (out_bytes - 2)
    gathered = work(GatherRows(), [x, col], result(edges, WIDTH), {1: graph.col})
    assert gathered.memory_bytes(CACHE) == fetched + 4 * edges + edges * out_bytes
    both = work(GatherPairs("dot"), [x, x, col, col], result(edges), {2: graph.col, 3: graph.col})
    assert (both.macs, both.operations) == (edges * WIDTH, edges * WIDTH)
    assert both.memory_bytes(CACHE) == 2 * fetched + 8 * edges + 2 * edges
    reduced = gpu_work(
        SegmentReduce("max"), [result(edges, WIDTH), rowptr], [result(rows, WIDTH)], 2, {1: graph.rowptr}
    )
    assert reduced is not None
    assert not isinstance(reduced, KernelSequence)
    assert reduced.bytes == (edges + rows) * out_bytes + 8 * (rows + 1)


def test_long_rows_of_a_softmax_are_read_again_from_the_cache() -> None:
    """With 8 heads in 16 bits, 3,072 edges take 48 KiB."""
    for degree, again in ((3072, 0), (3073, 2 * 3073 * 16)):
        rowptr = np.array([0, degree, degree + 5])
        logits = result(degree + 5, 8)
        found = work(EdgeSoftmax(), [logits, Value("rowptr", (3,), "int64")], logits, {1: rowptr})
        assert (found.again_bytes, found.streamed_bytes) == (again, 2 * (degree + 5) * 16 + 24)
        assert found.cache_bytes(CACHE) == found.memory_bytes(CACHE) + again
        assert found.kind == "softmax"


def test_types_without_rows_are_not_read() -> None:
    x, w, pointers = result(90, 16), Value("w", (4, 16, 8), "float32"), Value("pointers", (5,), "int64")
    found = gpu_work(TypedLinear(), [x, w, pointers], [result(90, 8)], 2, {2: np.array([0, 30, 30, 60, 90])})
    assert isinstance(found, MatrixWork)
    assert (found.m, found.n, found.k, found.groups) == (30, 8, 16, 3)
    assert found.bytes == 2 * (90 * 16 + 90 * 8 + 3 * 16 * 8) + 40


def test_tiles_have_rows_of_one_type_only() -> None:
    x, w, pointers = result(200, 16), Value("w", (3, 16, 8), "float32"), Value("pointers", (4,), "int64")
    found = gpu_work(TypedLinear(), [x, w, pointers], [result(200, 8)], 2, {2: np.array([0, 1, 130, 200])})
    assert isinstance(found, SegmentedWork)
    assert found.segments == (1, 129, 70)
    assert (found.macs, found.blocks(64, 8), found.blocks(128, 4)) == (200 * 16 * 8, 1 + 3 + 2, 2 * (1 + 2 + 1))
    heads = [result(200, 4, 16), Value("w", (3, 4, 16, 8), "float32"), pointers]
    by_head = gpu_work(TypedLinear(), heads, [result(200, 4, 8)], 2, {2: np.array([0, 1, 130, 200])})
    assert isinstance(by_head, SegmentedWork)
    assert (by_head.macs, by_head.blocks(64, 8)) == (4 * found.macs, 4 * (1 + 3 + 2))
    even = gpu_work(TypedLinear(), [x, w, pointers], [result(200, 8)], 2)
    assert isinstance(even, SegmentedWork)
    assert even.segments == (67, 67, 66), "where types are computed when it runs"


def test_indexed_rows_of_a_product_use_the_cache_like_a_gather() -> None:
    """Compared with a separate gather and product, the rows in between are neither written nor read again."""
    ids = np.random.default_rng(0).integers(0, 3000, 20_000)
    x, w, pointers = result(3000, WIDTH), Value("w", (3, WIDTH, 16), "float32"), Value("pointers", (4,), "int64")
    index, bounds, out = Value("index", (20_000,), "int32"), np.array([0, 5000, 5001, 20_000]), result(20_000, 16)
    found = gpu_work(TypedLinear(), [x, w, pointers, index], [out], 2, {2: bounds, 3: ids})
    assert isinstance(found, SegmentedWork)
    assert (found.segments, found.macs) == ((5000, 1, 14_999), 20_000 * WIDTH * 16)
    fetched = misses(ids.tolist(), 64 * 1024 // (2 * WIDTH)) * 2 * WIDTH
    assert found.with_cache(CACHE).bytes == fetched + 4 * 20_000 + 2 * (3 * WIDTH * 16 + 20_000 * 16) + 32
    rows = result(20_000, WIDTH)
    apart = gpu_work(TypedLinear(), [rows, w, pointers], [out], 2, {2: bounds})
    picked = work(GatherRows(), [x, index], rows, {1: ids})
    assert isinstance(apart, SegmentedWork)
    assert found.with_cache(CACHE).bytes == picked.memory_bytes(CACHE) + apart.bytes - 2 * 20_000 * 2 * WIDTH
    assert apart.with_cache(CACHE) is apart
    whole = gpu_cost(TypedLinear(), [x, w, pointers, index], [out], GPU, 32, constants={2: bounds, 3: ids})
    assert whole.bytes == found.with_cache(CACHE).bytes
    unknown = gpu_work(TypedLinear(), [x, w, pointers, index], [out], 2, {2: bounds})
    assert isinstance(unknown, KernelSequence)
    assert unknown.unknown == UNKNOWN_ORDER


PRODUCTS, EDGES, ROWS = 6000, 9000, 2500
"""Products by type, sorted by destination within each type; edges that read them, some twice; rows of the result."""


def typed_sum(known: bool = True, scaled: bool = False) -> tuple[list[Value | None], Arrays]:
    """Operands of a `TypedSpmm` whose rows are read by an index, and its constants."""
    rng = np.random.default_rng(3)
    counts = np.bincount(rng.integers(0, ROWS, EDGES), minlength=ROWS)
    given: list[Value | None] = [
        Value("x", (3000, WIDTH), "float32"),
        Value("w", (3, WIDTH, 32), "float32"),
        Value("pointers", (4,), "int64"),
        Value("index", (PRODUCTS,), "int32"),
        Value("rowptr", (ROWS + 1,), "int64"),
        Value("col", (EDGES,), "int32"),
        Value("weight", (EDGES,), "float32"),
    ]
    given += [Value("scale", (ROWS,), "float32")] if scaled else []
    places = np.empty(EDGES, np.int64)
    places[np.argsort(rng.integers(0, 3, EDGES), kind="stable")] = np.arange(EDGES)
    col = (places * PRODUCTS // EDGES).astype(np.int32)
    structure = {4: np.concatenate([[0], np.cumsum(counts)]), 5: col}
    bounds = {2: np.array([0, 2000, 2001, PRODUCTS]), 3: rng.integers(0, 3000, PRODUCTS)}
    return given, {**bounds, **(structure if known else {})}


@pytest.mark.parametrize("scaled", [False, True])
def test_summed_products_use_the_cache_twice_and_start_from_zeros(scaled: bool) -> None:
    given, constants = typed_sum(scaled=scaled)
    found = gpu_work(TypedSpmm(), given, [result(ROWS, 32)], 2, constants)
    assert isinstance(found, KernelSequence)
    (zeros, one), (product, other) = found.kernels
    assert isinstance(product, SegmentedWork)
    assert (zeros.bytes, one, other, found.unknown) == (2 * ROWS * 32, 1, 1, "")
    assert (product.segments, product.macs) == ((2000, 1, 3999), PRODUCTS * WIDTH * 32)
    destination = np.repeat(np.arange(ROWS), np.diff(constants[4]))
    edges = sorted(range(EDGES), key=lambda edge: constants[5][edge])  # in the order of their products
    runs = [key for key, _ in groupby((int(destination[edge]), constants[5][edge] // 64) for edge in edges)]
    assert ROWS < len(runs) < 0.95 * EDGES
    added = misses([row for row, _ in runs], 64 * 1024 // 64) * 64
    weights = misses([edge // 16 for edge in edges], 64 * 1024 // 32) * 32
    scales = misses([int(destination[edge]) // 16 for edge in edges], 64 * 1024 // 32) * 32 if scaled else 0
    gathered = misses(constants[3].tolist(), 64 * 1024 // (2 * WIDTH)) * 2 * WIDTH
    structure = 4 * (PRODUCTS + (PRODUCTS + 1) + 2 * EDGES) + 32
    cached = product.with_cache(CACHE)
    assert cached.bytes == gathered + 2 * 3 * WIDTH * 32 + structure + 2 * added + weights + scales
    assert cached.cache_bytes == len(runs) * 2 * 64 + EDGES * (64 if scaled else 32)


def test_additions_take_cache_time() -> None:
    """With a cache that holds everything but is slow, in both forms of the cost model."""
    given, constants = typed_sum()
    plain = replace(GPU, l2_kib=float(1 << 20), l2_bytes_per_channel_cycle=0.01)
    (board,) = (unit for unit in load_target("rtx3090").units.values() if isinstance(unit, MeasuredGpuSpec))
    gemm = replace(board.library.product.gemm, operand_gb_per_s=1.0)
    products = replace(board.library.product, gemm=gemm)
    measured = replace(board, l2_kib=float(1 << 20), fp32=replace(board.library, product=products))
    for gpu, bytes_per_us in ((plain, 32 * 0.01 * plain.clock_mhz), (measured, 1e3)):
        whole, apart = (
            gpu_cost(op, operands, [out], gpu, gpu.memory_channels, constants=constants)
            for op, operands, out in (
                (TypedSpmm(), given, result(ROWS, 32)),
                (TypedLinear(), given[:4], result(PRODUCTS, 32)),
            )
        )
        found = gpu_work(TypedSpmm(), given, [result(ROWS, 32)], gpu.element_bytes, constants)
        assert isinstance(found, KernelSequence)
        product = found.kernels[1][0]
        assert isinstance(product, SegmentedWork)
        assert whole.time_us - apart.time_us > 0.99 * product.with_cache(CACHE).cache_bytes / bytes_per_us


def test_summed_products_over_unknown_edges_assume_no_reuse_and_report_it() -> None:
    given, constants = typed_sum(known=False)
    found = gpu_work(TypedSpmm(), given, [result(ROWS, 32)], 2, constants)
    assert isinstance(found, KernelSequence)
    assert found.unknown == UNKNOWN_ORDER


def test_an_unknown_graph_assumes_no_reuse_and_reports_it() -> None:
    graph = generate.uniform(300, 4000)
    found = gpu_work(Spmm(), operands(graph), [result(300, WIDTH)], 2)
    assert isinstance(found, KernelSequence)
    assert found.unknown == UNKNOWN_ORDER
    unknown = gpu_cost(Spmm(), operands(graph), [result(300, WIDTH)], GPU, 32)
    assert unknown.unknown == UNKNOWN_ORDER
    assert unknown.bytes > spmm_cost(graph).bytes


def test_the_exporters_pattern_moves_an_index_as_large_as_the_messages() -> None:
    edges = np.random.default_rng(0).integers(0, 500, (2, 6000))
    graph = Graph.from_edge_index(edges, 500)
    plain, weighted = (exporter_pattern(graph, WIDTH, 2, weights) for weights in (False, True))
    messages, index, table = 6000 * 2 * WIDTH, 6000 * 8 * WIDTH, 500 * 2 * WIDTH
    read, added = (misses(ids.tolist(), 64 * 1024 // (2 * WIDTH)) * 2 * WIDTH for ids in edges)
    moved = [
        kernel.memory_bytes(CACHE) if isinstance(kernel, SparseWork) else kernel.bytes for kernel, _ in plain.kernels
    ]
    expected = [6000 * 8 + messages + read, 6000 * 8 + index, table, 2 * table + index + messages + 2 * added]
    assert moved == expected
    extra = [kernel.bytes for kernel, _ in weighted.kernels if kernel not in [known for known, _ in plain.kernels]]
    assert 6000 * 2 + 2 * messages in extra


def test_an_aggregation_costs_a_fraction_of_the_export() -> None:
    graph = generate.uniform(5000, 100_000)
    host = host_of(load_target("pimflow"))
    exported = host.cost_as_exported(graph, WIDTH, False)
    assert exported is not None
    assert exported.time_us > 5 * spmm_cost(graph).time_us
    assert exported.time_us == pytest.approx(4 * 5000 / 1365 + sum(dict(exported.time_parts_us, launch=0).values()))
