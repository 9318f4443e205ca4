"""Times of a library's kernels on a real GPU: closed forms with parameters that `calibrate` fits to measurements.

A call takes max(call, lead + kernel) (`Call`); a kernel takes the longer of computing and moving. The kernel that runs
is the fastest of the library's according to the model, over tiles, ways to cut K, and algorithms of convolution. All
formulas take arrays with one element per kernel, so that a fit evaluates thousands of kernels at once. Times are in
microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from pimflow.records import dataclass
from pimflow.runtime.gpu.kernel_time import KernelTime
from pimflow.runtime.gpu.work import CachedWork, DepthwiseWork, GpuWork, MatrixWork, SegmentedWork, StreamWork
from pimflow.targets.schema.measured_gpu import (
    Call,
    Depthwise,
    Library,
    MeasuredGpuSpec,
    Products,
    ShortRows,
    Streams,
    Tiling,
    Winograd,
)

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Family = Literal["product", "convolution", "depthwise", "elementwise", "softmax", "normalization"]
"""Families of kernels that are fitted separately: the fields of a `Library` that hold kernels."""

MAX_BLOCKS_PER_SM = 16  # Turing's limit for any block size (CUDA programming guide, compute capability 7.5)
_WINDOW = 3  # rows and columns of the windows that Winograd's transforms support


@dataclass(frozen=True)
class Batch:
    """Kernels of one family as arrays with one element per kernel. Sizes that a family does not use are 0.

    `m`, `n`, `k` and `groups` are those of `MatrixWork`. `moved` are bytes that pass DRAM, `skipped` those that no
    window of a convolution reads, and `cached` those that come only from the second-level cache. `operations` are
    multiply-accumulates of a depthwise convolution, or operations. A convolution has `rows` x `columns` outputs in each
    of `images` images. For windows with stride 1 and dilation 1, `slides` is 1 if they are 3x3, and `pointwise` is 1 if
    they are 1x1 in one group. `gradients` is 1 for gradients of weights. `weights` are elements of matrices that no
    kernel before has read or written. A softmax or a normalisation is of `rows` rows of `columns` elements; a
    result of a depthwise convolution is a sum of `taps` products.
    """

    m: Floats
    n: Floats
    k: Floats
    groups: Floats
    moved: Floats
    skipped: Floats
    operations: Floats
    channels: Floats
    images: Floats
    rows: Floats
    columns: Floats
    slides: Floats
    pointwise: Floats
    gradients: Floats
    cached: Floats
    weights: Floats
    taps: Floats

    @classmethod
    def of(cls, works: Sequence[GpuWork]) -> Batch:
        """A batch of kernels."""
        return cls(*np.array([_sizes(work) for work in works], dtype=np.float64).T)

    def at(self, places: npt.NDArray[np.intp]) -> Batch:
        """A batch of some of these kernels."""
        return Batch(*(getattr(self, array.name)[places] for array in fields(self)))


def _sizes(work: GpuWork) -> tuple[float, ...]:
    """The elements of one kernel in the arrays of a `Batch`."""
    if isinstance(work, MatrixWork):
        window = work.window
        product = (work.m, work.n, work.k, work.groups, work.bytes)
        # In a batch of products, the right-hand sides are activations, too
        weights = work.k * work.n * work.groups if work.convolution or work.groups == 1 else 0
        if window is None:
            cached = work.cache_bytes if isinstance(work, SegmentedWork) else 0
            return (*product, 0, 0, 0, 0, 0, 0, 0, 0, 0, cached, weights, 0)
        single = window.strides == window.dilations == (1, 1)
        slides = single and window.kernel == (_WINDOW, _WINDOW)
        pointwise = single and window.kernel == (1, 1) and work.groups == 1
        gradient = window.is_weight_gradient
        maps = (window.channels, *window.outputs)
        return (*product, window.skipped_bytes, 0, *maps, slides, pointwise, gradient, 0, weights, 0)
    operations = work.macs if isinstance(work, DepthwiseWork) else work.operations
    cached = work.cache_bytes if isinstance(work, CachedWork) else 0
    rows, columns = (work.rows, work.columns) if isinstance(work, StreamWork) else (0, 0)
    taps = work.taps if isinstance(work, DepthwiseWork) else 0
    return (0, 0, 0, 0, work.bytes, 0, operations, 0, 0, rows, columns, 0, 0, 0, cached, 0, taps)


@dataclass(frozen=True)
class Kernels:
    """Times of kernels without their calls, for computing and for moving, the bytes that pass the L2, and those of
    operands and results that stay in it."""

    compute: Floats
    memory: Floats
    l2_bytes: Floats
    resident: Floats

    @property
    def total(self) -> Floats:
        """The time of each kernel: the longer of both."""
        return np.maximum(self.compute, self.memory)


def family(work: GpuWork) -> Family:
    """The family of a library's kernels that do some work."""
    if isinstance(work, MatrixWork):
        return "convolution" if work.convolution else "product"
    return "depthwise" if isinstance(work, DepthwiseWork) else work.kind


def kernel_time(work: GpuWork, gpu: MeasuredGpuSpec, channels: int) -> KernelTime:
    """The time of one kernel with `channels` memory channels left to the GPU.

    The time of a call beyond its kernel counts as launch.
    """
    kind = family(work)
    kernels = _kernels_of(work, kind, gpu, channels)
    kernel_us = float(kernels.total[0])
    call: Call = getattr(gpu.library, kind)
    time_us = max(call.call_us, call.lead_us + kernel_us)
    return KernelTime(
        launch_us=time_us - kernel_us,
        compute_us=float(kernels.compute[0]),
        memory_us=float(kernels.memory[0]),
        busy_us=kernel_us,
        l2_bytes=round(float(kernels.l2_bytes[0])),
        resident_bytes=round(float(kernels.resident[0])),
    )


def _kernels_of(work: GpuWork, kind: Family, gpu: MeasuredGpuSpec, channels: int) -> Kernels:
    """The times of one kernel, of the library or similar to one of the library."""
    batch, board, library = Batch.of([work]), _Board(gpu, channels), gpu.library
    if isinstance(work, MatrixWork) and work.whole_k:
        return _tiled(batch, replace(library.product.gemm, splits=(1,)), board)
    if isinstance(work, DepthwiseWork) and work.macs_per_sm_cycle is not None:
        found = _depthwise(batch, replace(library.depthwise, macs_per_sm_cycle=work.macs_per_sm_cycle), board)
        return replace(found, compute=np.maximum(found.compute, work.chain_us))
    return run_times(kind, batch, gpu, channels)


def call_times(kind: Family, batch: Batch, gpu: MeasuredGpuSpec, channels: int) -> Floats:
    """Times of calls, as measured from outside."""
    call: Call = getattr(gpu.library, kind)
    times: Floats = np.maximum(call.call_us, call.lead_us + run_times(kind, batch, gpu, channels).total)
    return times


def run_times(kind: Family, batch: Batch, gpu: MeasuredGpuSpec, channels: int) -> Kernels:
    """Times of kernels without their calls."""
    board = _Board(gpu, channels)
    library = gpu.library
    if kind == "product":
        return _products(batch, library.product, board)
    if kind == "convolution":
        return _convolutions(batch, library, board)
    if kind == "depthwise":
        return _depthwise(batch, library.depthwise, board)
    return _streams(batch, getattr(library, kind), board)


@dataclass(frozen=True)
class _Board:
    """A GPU with some of its memory channels; the slices of its caches belong to the channels."""

    gpu: MeasuredGpuSpec
    channels: int

    @property
    def element_bytes(self) -> int:
        return self.gpu.element_bytes

    def macs_per_us(self, per_sm_cycle: float) -> float:
        """The rate of one SM at the highest clock."""
        return per_sm_cycle * self.gpu.clock_mhz

    def dram_bytes_per_us(self, efficiency: float) -> float:
        return self.channels * self.gpu.channel_gb_per_s * 1e3 * efficiency

    def cache_bytes_per_us(self, gb_per_s: float) -> float:
        """The part of a bandwidth of all slices that belongs to the channels left."""
        return gb_per_s * 1e3 * self.channels / self.gpu.memory_channels

    def resident_bytes(self, activations: Floats) -> Floats:
        """The bytes of activations that the L2 has when a kernel begins, and keeps.

        Up to half of the L2 it has all: each half serves the SMs next to it, so that data that all of them read are in
        both. From there on, every byte that does not fit displaces another one that would have been found.
        """
        if not self.gpu.warm_activations:
            return 0 * activations
        cache = self.gpu.l2_kib * 1024 * self.channels / self.gpu.memory_channels
        return np.clip(cache - activations, 0, activations)


def _products(batch: Batch, table: Products, board: _Board) -> Kernels:
    """Products, by other kernels if a row of an operand or of the result does not begin at an aligned address."""
    found = _tiled(batch, table.gemm, board)
    other = table.unaligned
    if other is None:
        return found
    odd = _odd(table.row_multiple, batch.k, batch.n)
    return _replaced(found, batch, odd, lambda some: _tiled(some, other, board))


def _odd(multiple: int | None, *sizes: Floats) -> Flags:
    """Where one of the sizes is no multiple."""
    found: Flags = np.any([size % (multiple or 1) > 0 for size in sizes], axis=0)
    return found


def _tiled(batch: Batch, tiling: Tiling, board: _Board) -> Kernels:
    """Products, each by the fastest kernel of a family.

    A kernel of t_m x t_n tiles that cuts K into s parts has b = groups ceil(M/t_m) ceil(N/t_n) s thread blocks, of
    which the busiest SM gets c = ceil(b/SMs) and holds r at a time; each takes S = ceil(ceil(K/depth)/s) steps.
    Computing takes the longer of c S t_m t_n depth / rate and ceil(c/r) (S step + fill), as in NVIDIA's account of
    tile and wave quantisation (Matrix Multiplication Background), plus adding up the parts. Where tiles are written
    after their main loops, the time to write the c tiles is added to the first of these. Moving takes the longer of
    DRAM's bytes and the bytes that pass the cache, which include the operands of all tiles. Long kernels lower the
    clock: t (1 + throttling t / (t + throttled_after)).
    """
    shapes = [(rows, columns, split) for rows, columns in tiling.tiles for split in tiling.splits]
    tile_rows, tile_columns, split = np.array(shapes, dtype=np.float64).T
    m, n, k, groups = (array[:, None] for array in (batch.m, batch.n, batch.k, batch.groups))
    blocks = groups * np.ceil(m / tile_rows) * np.ceil(n / tile_columns) * split
    steps = np.ceil(np.ceil(k / tiling.depth) / split)
    held = np.clip(np.floor(tiling.accumulators_per_sm / (tile_rows * tile_columns)), 1, MAX_BLOCKS_PER_SM)
    busiest = np.ceil(blocks / board.gpu.sms)
    rate = board.macs_per_us(tiling.macs_per_sm_cycle) * tiling.efficiency
    arithmetic = busiest * steps * tile_rows * tile_columns * tiling.depth / rate
    if tiling.result_gb_per_s:
        written = busiest * tile_rows * tile_columns * board.element_bytes
        arithmetic += written * board.gpu.sms / board.cache_bytes_per_us(tiling.result_gb_per_s)
    waiting = np.ceil(busiest / held) * (steps * tiling.step_us + tiling.fill_us)
    operands = blocks * steps * tiling.depth * (tile_rows + tile_columns) * board.element_bytes
    operands += batch.cached[:, None]
    partial_sums = np.where(split > 1, 2 * split * groups * m * n * 4, 0)  # written and read as fp32
    operand_rate = board.cache_bytes_per_us(tiling.operand_gb_per_s)
    adding = np.where(split > 1, tiling.split_us, 0) + partial_sums / operand_rate
    passed = batch.moved - batch.skipped
    resident = board.resident_bytes(np.maximum(passed - batch.weights * board.element_bytes, 0))
    moved = (passed - resident)[:, None] / board.dram_bytes_per_us(tiling.memory_efficiency)
    kernels = (
        np.maximum(arithmetic, waiting) + adding,
        np.maximum(moved, operands / operand_rate),
        operands + partial_sums,
    )
    fastest = np.argmin(np.maximum(kernels[0], kernels[1]), axis=1)
    compute, memory, cache = (array[np.arange(len(fastest)), fastest] for array in kernels)
    chosen = Kernels(compute, memory, cache, resident)
    slower = 1 + tiling.throttling * chosen.total / (chosen.total + tiling.throttled_after_us)
    return replace(chosen, compute=chosen.compute * slower, memory=chosen.memory * slower)


def _convolutions(batch: Batch, library: Library, board: _Board) -> Kernels:
    """Convolutions, each by the fastest applicable algorithm.

    Channels are padded to the multiple that the kernels need; windows over fewer channels, as in a network's first
    layer, have separate kernels. A pointwise convolution with stride 1 is a matrix product of the data as stored
    (NHWC), so kernels for products apply.

    Gradients of weights sum over images and maps, a long sum for few results. Their kernels cut K like those of
    products (cuDNN's CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, _1 and _3; CUTLASS's wgrad with split-K), and pad nothing, as
    images take the place of channels.
    """
    table = library.convolution
    multiple = table.channel_multiple
    taps = batch.k / np.maximum(batch.channels, 1)
    padded = np.where(batch.channels > 0, taps * np.ceil(batch.channels / multiple) * multiple, batch.k)
    found = _tiled(replace(batch, k=padded), table.implicit_gemm, board)
    if (narrow := table.few_channels) is not None:
        few = (batch.channels > 0) & (batch.channels < multiple) & (taps > 1) & (batch.groups == 1)
        found = _replaced(found, batch, few, lambda some: _tiled(some, narrow, board))
    if (unaligned := table.unaligned) is not None:
        odd = _odd(table.row_multiple, batch.channels, batch.n)
        found = _replaced(found, batch, odd, lambda some: _tiled(some, unaligned, board))
    gemm = library.product.gemm
    cut = replace(table.implicit_gemm, splits=gemm.splits, split_us=gemm.split_us)
    found = _replaced(found, batch, batch.gradients > 0, lambda some: _tiled(some, cut, board))
    products = library.product
    found = _replaced(
        found, batch, batch.pointwise > 0, lambda some: _products(some, products, board), only_faster=True
    )
    if (winograd := table.winograd) is not None:
        found = _replaced(
            found, batch, batch.slides > 0, lambda some: _winograd(some, winograd, board), only_faster=True
        )
    return found


def _replaced(
    found: Kernels, batch: Batch, some: Flags, kernels: Callable[[Batch], Kernels], *, only_faster: bool = False
) -> Kernels:
    """`found` with other kernels for some of the batch; these are computed for no others."""
    places = np.flatnonzero(some)
    if not len(places):
        return found
    others = kernels(batch.at(places))
    taken = others.total < found.total[places] if only_faster else np.ones(len(places), dtype=bool)
    arrays = [(getattr(found, array.name).copy(), getattr(others, array.name)) for array in fields(Kernels)]
    for array, other in arrays:
        array[places[taken]] = other[taken]
    return Kernels(*(array for array, _ in arrays))


def _winograd(batch: Batch, winograd: Winograd, board: _Board) -> Kernels:
    """Transforms of inputs, filters and outputs, each a pass over memory, and (m+2)^2 products of tiles by channels."""
    side = winograd.output_tile
    points = (side + _WINDOW - 1) ** 2
    tiles = batch.images * np.ceil(batch.rows / side) * np.ceil(batch.columns / side)
    inner, outer = batch.channels * batch.groups, batch.n * batch.groups
    filters = batch.channels * outer
    transformed = points * (tiles * (inner + outer) + filters) * board.element_bytes
    products = replace(
        batch, m=tiles, k=batch.channels, groups=batch.groups * points, moved=transformed, skipped=0 * batch.moved
    )
    kernels = _tiled(products, winograd.gemm, board)
    passes = (batch.moved + transformed) / board.dram_bytes_per_us(winograd.gemm.memory_efficiency)
    moved = kernels.l2_bytes + batch.moved + transformed
    return Kernels(kernels.total + passes, kernels.memory + passes, moved, 0 * moved)


def _depthwise(batch: Batch, table: Depthwise, board: _Board) -> Kernels:
    """The longer of multiplying and moving: there is no reuse across channels that tiles could exploit."""
    compute = batch.operations / (board.gpu.sms * board.macs_per_us(table.macs_per_sm_cycle))
    compute = compute + batch.taps * (table.tap_us or 0)
    return Kernels(compute, *_moving(batch, table, board))


def _streams(batch: Batch, table: Streams, board: _Board) -> Kernels:
    """The longer of operations on the vector lanes and of moving every byte once (the roofline of Williams et al.).

    Rows of a softmax or a normalisation also take the time of their thread blocks.
    """
    found = _rows(batch, table, board)
    short = table.short_rows
    if short is None:
        return found
    return _replaced(found, batch, batch.columns <= short.columns, lambda some: _rows(some, short, board))


def _rows(batch: Batch, table: Streams | ShortRows, board: _Board) -> Kernels:
    lanes = board.gpu.sms * board.gpu.operations_per_sm_cycle * board.gpu.clock_mhz
    rows = batch.columns * (table.column_us or 0) + batch.rows / board.gpu.sms * (table.row_us or 0)
    return Kernels(np.maximum(batch.operations / lanes, rows), *_moving(batch, table, board))


def _moving(batch: Batch, table: Depthwise | Streams | ShortRows, board: _Board) -> tuple[Floats, Floats, Floats]:
    """The time to move every byte once, the bytes that pass the L2, and those that stay in it.

    Without a bandwidth of their own, additional bytes from the second-level cache have that of products' operands;
    which of the others such kernels find there is known from their graph.
    """
    passed = batch.moved + batch.cached
    resident = np.where(batch.cached > 0, 0, board.resident_bytes(batch.moved))
    moved = (batch.moved - resident) / board.dram_bytes_per_us(table.memory_efficiency)
    rate = table.cache_gb_per_s or board.gpu.library.product.gemm.operand_gb_per_s
    cache = np.maximum(moved, passed / board.cache_bytes_per_us(rate))
    return cache if table.cache_gb_per_s else np.where(batch.cached > 0, cache, moved), passed, resident
