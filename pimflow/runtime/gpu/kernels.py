"""Kernel times on a GPU with a given number of memory channels: closed forms with a few parameters of the target.

A kernel takes `launch + max(compute, memory)`: the roofline of Williams et al. (CACM 2009) after a launch, where
"compute" is based not on peak throughput but on what tiles, waves and main-loop latency leave of it. Times here are in
GPU cycles.
"""

from __future__ import annotations

from pimflow.records import dataclass
from pimflow.runtime.gpu.work import CachedWork, DepthwiseWork, GpuWork, MatrixWork, SegmentedWork
from pimflow.targets import GpuSpec

# For products with fewer rows or columns than this, a library also has a matrix-vector kernel.
GEMV_ROWS = 4


@dataclass(frozen=True, slots=True)
class KernelCycles:
    """The parts of a kernel's time in GPU cycles, and the bytes through the L2. DRAM and L2 transfers overlap."""

    launch: float
    compute: float
    dram: float
    l2: float
    l2_bytes: int

    @property
    def memory(self) -> float:
        """The slower of DRAM and second-level cache."""
        return max(self.dram, self.l2)

    @property
    def total(self) -> float:
        """Launch, then the slower of computing and moving."""
        return self.launch + max(self.compute, self.memory)


def kernel_cycles(work: GpuWork, gpu: GpuSpec, channels: int) -> KernelCycles:
    """The time of the kernel that a library would choose for this work, with `channels` memory channels."""
    if isinstance(work, MatrixWork):
        return _matrix(work, gpu, channels)
    if isinstance(work, DepthwiseWork):
        return _depthwise(work, gpu, channels)
    compute = work.operations / (gpu.sms * gpu.operations_per_sm_cycle)
    return _stream(gpu, channels, compute, work.bytes, 1, _only_cached(work))


def dram_cycles(moved_bytes: int, gpu: GpuSpec, channels: int) -> float:
    """Cycles of a DRAM transfer: bytes / (channels x channel bandwidth x efficiency), in GPU cycles."""
    bytes_per_us = channels * gpu.channel_gb_per_s * 1e3 * gpu.memory_efficiency
    return moved_bytes / bytes_per_us * gpu.clock_mhz


def _only_cached(work: GpuWork) -> int:
    """Bytes that pass the second-level cache but not DRAM."""
    return work.cache_bytes if isinstance(work, CachedWork | SegmentedWork) else 0


def _stream(
    gpu: GpuSpec, channels: int, compute: float, moved_bytes: int, launches: int, only_cached: int = 0
) -> KernelCycles:
    """A kernel that every byte passes once, from DRAM to L2 to SM or back: a plain roofline.

    `only_cached` additional bytes come from the L2.

    Both bandwidths scale with the channels: each has its own DRAM interface and its slices of the second-level cache.
    """
    l2_bytes = moved_bytes + only_cached
    l2 = l2_bytes / (channels * gpu.l2_bytes_per_channel_cycle)
    dram = dram_cycles(moved_bytes, gpu, channels)
    return KernelCycles(float(gpu.launch_cycles * launches), compute, dram, l2, l2_bytes)


def _depthwise(work: DepthwiseWork, gpu: GpuSpec, channels: int) -> KernelCycles:
    """fill + macs / (sms * rate): a direct convolution, without reuse across channels that tiles could exploit."""
    rate = work.macs_per_sm_cycle or gpu.depthwise_macs_per_sm_cycle
    compute = gpu.fill_cycles + max(work.macs / (gpu.sms * rate), work.chain_us * gpu.clock_mhz)
    return _stream(gpu, channels, compute, work.bytes, gpu.conv_launches)


def _matrix(work: MatrixWork, gpu: GpuSpec, channels: int) -> KernelCycles:
    """The fastest of the tiled kernels and, for few rows or columns, the matrix-vector kernel.

    The latter assigns a warp to every row of the matrix and computes on the vector lanes. It has no tile to fill and no
    main loop to wait for, so it streams its matrix at memory bandwidth.
    """
    splits = (1,) if work.whole_k else gpu.splits
    options = [_tiled(work, gpu, channels, tile, split) for tile in gpu.tiles for split in splits]
    if min(work.m, work.n) < GEMV_ROWS:
        compute = work.macs / (gpu.sms * gpu.operations_per_sm_cycle)
        options.append(_stream(gpu, channels, compute, work.bytes, 1, _only_cached(work)))
    return min(options, key=lambda option: option.total)


def _tiled(work: MatrixWork, gpu: GpuSpec, channels: int, tile: tuple[int, int], split: int) -> KernelCycles:
    """A kernel with output tiles of rows x columns and K in `split` parts.

    A grid of b = groups * ceil(M/rows) * ceil(N/columns) * split thread blocks (for segmented work, the sum over its
    segments) runs in waves of sms * blocks_per_sm. A wave in which the busiest SM holds r blocks takes
    `fill + ceil(K / (depth * split)) * max(step, r * rows * columns * depth / rate)`:
    a step of the main loop is bound by the latency of its loads or by arithmetic, whichever is longer (the model of
    tile and wave quantisation in NVIDIA's "Matrix Multiplication Background" guide, with the loop's latency made
    explicit). Each step of a block loads (rows + columns) * depth elements from the second-level cache. Partial sums
    are written there in single precision, and a second kernel reads them and adds them up.
    """
    rows, columns = tile
    blocks = work.blocks(rows, columns) * split
    steps = -(-work.k // (gpu.tile_depth * split))
    rate = gpu.macs_per_sm_cycle * gpu.matrix_efficiency
    step_compute = rows * columns * gpu.tile_depth / rate

    def wave(resident: int) -> float:
        return gpu.fill_cycles + steps * max(gpu.step_cycles, resident * step_compute)

    full, rest = divmod(blocks, gpu.sms * gpu.blocks_per_sm)
    compute = full * wave(gpu.blocks_per_sm) + (wave(-(-rest // gpu.sms)) if rest else 0.0)
    partial_sums = 2 * split * work.results * 4 if split > 1 else 0
    l2_rate = channels * gpu.l2_bytes_per_channel_cycle
    compute += partial_sums / l2_rate
    l2_bytes = blocks * steps * (rows + columns) * gpu.tile_depth * gpu.element_bytes + _only_cached(work)
    dram = dram_cycles(work.bytes, gpu, channels)
    launches = (gpu.conv_launches if work.convolution else 1) + (split > 1)
    launch = float(gpu.launch_cycles * launches)
    return KernelCycles(launch, compute, dram, l2_bytes / l2_rate, l2_bytes + partial_sums)
