"""The cost model of measured GPUs against closed forms, limits and monotonicity."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pimflow.ir import Conv2d, Elementwise, Gemm, MatMul, OnnxOp, Op, Value
from pimflow.runtime.gpu.cost import GpuCost, gpu_cost, work_cost
from pimflow.runtime.gpu.library import Batch, call_times, family, kernel_time
from pimflow.runtime.gpu.work import DepthwiseWork, GpuWork, MatrixWork, StreamWork, Window, gpu_work
from pimflow.targets import MeasuredGpuSpec, Target, load_target, override
from pimflow.targets.schema import Library, Tiling
from pimflow.targets.schema.measured_gpu import ShortRows

TURING = load_target("turing-pim")
SHAPES = [(4096, 4096), (25088, 4096), (768, 3072), (1280, 1000), (1280, 320), (64, 64)]


def gpu_of(target: Target) -> MeasuredGpuSpec:
    gpu = target.any_gpu
    assert isinstance(gpu, MeasuredGpuSpec)
    return gpu


FP16 = gpu_of(TURING)
FP32 = gpu_of(override(TURING, gpu_operand="fp32"))
ALL = FP16.memory_channels


def with_gemm(gpu: MeasuredGpuSpec, **changes: Any) -> MeasuredGpuSpec:
    """The GPU with other matrix product kernels."""
    library = gpu.library
    return with_library(gpu, product=replace(library.product, gemm=replace(library.product.gemm, **changes)))


def with_library(gpu: MeasuredGpuSpec, **changes: Any) -> MeasuredGpuSpec:
    library: Library = replace(gpu.library, **changes)
    return replace(gpu, fp16=library) if gpu.operand == "fp16" else replace(gpu, fp32=library)


def plain() -> MeasuredGpuSpec:
    """One 64x64 kernel without latency, memory or launch: 8 tensor cores of 64 at 1590 MHz."""
    gpu = with_gemm(
        FP16,
        tiles=((64, 64),),
        splits=(1,),
        efficiency=1.0,
        step_us=0.0,
        fill_us=0.0,
        operand_gb_per_s=1e6,
        memory_efficiency=1.0,
    )
    return with_library(gpu, product=replace(gpu.library.product, lead_us=0.0))


def product(m: int, n: int, k: int, gpu: MeasuredGpuSpec, groups: int = 1, channels: int = ALL) -> GpuCost:
    moved = groups * gpu.element_bytes * (m * k + k * n + m * n)
    return work_cost(MatrixWork(m, n, k, groups, moved), gpu, channels)


def pixels(m: int, n: int, k: int, gpu: MeasuredGpuSpec) -> GpuCost:
    """A 1x1 convolution."""
    moved = gpu.element_bytes * (m * k + k * n + m * n)
    window = Window((1, m, 1), k, (1, 1), (1, 1), (1, 1), 0)
    return work_cost(MatrixWork(m, n, k, 1, moved, convolution=True, window=window), gpu, ALL)


def test_one_wave_at_peak() -> None:
    """40 SMs with one 64 x 64 tile each: 64 x 64 x 320 multiply-accumulates at 512 per cycle."""
    cycles = 64 * 64 * 320 / 512
    assert product(64 * 40, 64, 320, plain()).compute_us == pytest.approx(cycles / 1590)
    assert product(64 * 41, 64, 320, plain()).compute_us == pytest.approx(2 * cycles / 1590)


def test_a_short_main_loop_waits_for_its_steps() -> None:
    """8 blocks of 64 x 64 are resident at a time: 320 blocks wait 10 steps and a fill once, 321 twice."""
    gpu = with_gemm(plain(), step_us=7.0, fill_us=5.0)
    assert product(64 * 320, 64, 320, gpu).compute_us == pytest.approx(75.0)
    assert product(64 * 321, 64, 320, gpu).compute_us == pytest.approx(150.0)


def test_k_is_cut_where_that_pays() -> None:
    """One tile, 100 steps: in four parts 25 steps each, plus the sum of four fp32 tiles, written and read."""
    gpu = with_gemm(plain(), step_us=7.0, splits=(1, 4), split_us=2.0, operand_gb_per_s=1000.0)
    adding_us = 2.0 + 2 * 4 * 64 * 64 * 4 / 1e6
    assert product(64, 64, 3200, gpu).compute_us == pytest.approx(25 * 7.0 + adding_us)
    assert product(64, 64, 3200, with_gemm(gpu, split_us=1e4)).compute_us == pytest.approx(700.0)


def test_long_kernels_run_at_a_lower_clock() -> None:
    gpu = with_gemm(plain(), throttling=0.5, throttled_after_us=100.0)
    cold = product(64 * 4000, 64, 3200, plain())
    hot = product(64 * 4000, 64, 3200, gpu)
    assert hot.time_us == pytest.approx(cold.time_us * (1 + 0.5 * cold.time_us / (cold.time_us + 100.0)))


def test_dram_bounds_a_product_of_few_rows() -> None:
    cost = product(1, 4096, 4096, FP16)
    assert cost.memory_us == pytest.approx(cost.bytes / (320e3 * FP16.library.product.gemm.memory_efficiency))
    assert cost.time_us == pytest.approx(cost.launch_us + cost.memory_us)


@pytest.mark.parametrize("gpu", [FP16, FP32], ids=["fp16", "fp32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_more_rows_are_never_cheaper_and_there_is_no_cliff_at_few(gpu: MeasuredGpuSpec, shape: tuple[int, int]) -> None:
    k, n = shape
    for cost in (product, pixels):
        times = [cost(m, n, k, gpu).time_us for m in range(1, 129)]
        assert all(later >= 0.999 * sooner for sooner, later in pairwise(times))
        assert times[3] < 1.01 * times[2]
        assert times[31] < 1.1 * times[0]
        assert times[127] < 4 * times[0]


def test_every_part_of_a_time_is_in_its_total() -> None:
    works: list[GpuWork] = [
        MatrixWork(100, 200, 300, 2, 10**6),
        MatrixWork(196, 256, 2304, 1, 10**6, True, Window((1, 14, 14), 256, (3, 3), (1, 1), (1, 1), 0)),
        DepthwiseWork(10**6, 10**6),
        StreamWork(10**6, 10**6),
        StreamWork(10**6, 10**6, "softmax"),
        StreamWork(10**6, 10**6, "normalization"),
    ]
    for gpu in (FP16, FP32):
        for work in works:
            time = kernel_time(work, gpu, 16)
            assert time.time_us == pytest.approx(time.launch_us + max(time.compute_us, time.memory_us))
            assert time.busy_us == pytest.approx(max(time.compute_us, time.memory_us))
            assert time.l2_bytes > 0


def test_a_short_kernel_takes_as_long_as_its_call() -> None:
    call = FP32.library.elementwise
    tiny = work_cost(StreamWork(1, 4), FP32, ALL)
    assert tiny.time_us == call.call_us
    large = work_cost(StreamWork(1, 10**9), FP32, ALL)
    assert large.time_us == pytest.approx(call.lead_us + 1e9 / (320e3 * call.memory_efficiency))


def test_channels_bring_bandwidth() -> None:
    half = work_cost(StreamWork(1, 10**9), FP16, ALL // 2)
    assert half.memory_us == pytest.approx(2 * work_cost(StreamWork(1, 10**9), FP16, ALL).memory_us)


def convolution(channels: int, filters: int, size: int, kernel: int = 3, stride: int = 1) -> MatrixWork:
    out = (size + stride - 1) // stride
    window = Window((1, out, out), channels, (kernel, kernel), (stride, stride), (1, 1), 0)
    return MatrixWork(out * out, filters, channels * kernel**2, 1, 0, convolution=True, window=window)


def test_a_first_layer_runs_on_the_vector_lanes() -> None:
    """Windows over three channels run at 1/8 of the peak, so they take longer than those over eight."""
    eight, three = (work_cost(convolution(channels, 64, 224), FP16, ALL) for channels in (8, 3))
    assert three.compute_us > eight.compute_us
    without = with_library(FP16, convolution=replace(FP16.library.convolution, few_channels=None))
    assert work_cost(convolution(3, 64, 224), without, ALL).compute_us == eight.compute_us


def test_other_channels_are_padded_to_multiples_of_eight() -> None:
    """For pointwise convolutions, any number of channels; for others, from eight on; never in fp32."""
    for channels, kernel, same in ((6, 1, 8), (20, 1, 24), (20, 3, 24), (1152, 1, 1152)):
        costs = [work_cost(convolution(count, 48, 14, kernel), FP16, ALL).compute_us for count in (channels, same)]
        assert costs[0] == costs[1]
    fp32 = [work_cost(convolution(count, 48, 14), FP32, ALL).compute_us for count in (20, 24)]
    assert fp32[0] < fp32[1]


def test_groups_of_few_channels_are_padded_too() -> None:
    windows = (Window((1, 14, 14), channels, (3, 3), (1, 1), (1, 1), 0) for channels in (4, 8))
    four, eight = (MatrixWork(196, 64, 9 * window.channels, 4, 0, True, window) for window in windows)
    assert work_cost(four, FP16, ALL).time_us == work_cost(eight, FP16, ALL).time_us


def test_winograd_is_taken_where_it_is_faster() -> None:
    """F(4x4, 3x3) multiplies 36 times instead of 144: chosen for a large map with many channels, only at stride 1."""
    without = with_library(FP32, convolution=replace(FP32.library.convolution, winograd=None))

    def times(work: MatrixWork) -> tuple[float, float]:
        return work_cost(work, FP32, ALL).time_us, work_cost(work, without, ALL).time_us

    faster, slower = times(convolution(512, 512, 56))
    assert faster < 0.8 * slower
    for work in (convolution(512, 512, 56, stride=2), convolution(512, 512, 56, kernel=1)):
        assert len(set(times(work))) == 1


def test_winograd_in_closed_form() -> None:
    """16 x 16 map, 64 channels to 64 filters: 16 tiles; 36 products of 16 x 64 x 64; transforms over memory."""
    table = FP32.library.convolution
    assert table.winograd is not None
    gemm: Tiling = replace(table.winograd.gemm, tiles=((16, 64),), step_us=10.0, fill_us=0.0)
    gpu = with_library(FP32, convolution=replace(table, winograd=replace(table.winograd, gemm=gemm)))
    gpu = with_library(gpu, convolution=replace(gpu.library.convolution, implicit_gemm=replace(gemm, step_us=1e4)))
    transformed = 4 * 36 * (16 * (64 + 64) + 64 * 64)
    expected = 8 * 10.0 + transformed / (320e3 * gemm.memory_efficiency)
    assert work_cost(convolution(64, 64, 16), gpu, ALL).compute_us == pytest.approx(expected)


def test_a_batch_is_its_kernels_one_by_one() -> None:
    works = [convolution(16, 24, 14), convolution(64, 64, 56), convolution(3, 64, 224, 7, 2)]
    for gpu in (FP16, FP32):
        together = call_times("convolution", Batch.of(works), gpu, 20)
        assert np.allclose(together, [kernel_time(work, gpu, 20).time_us for work in works])


def value(*shape: int) -> Value:
    return Value("v", shape, "float32")


@pytest.mark.parametrize(
    ("op", "inputs", "kind"),
    [
        (Gemm(), [value(4, 8), value(8, 16)], "product"),
        (MatMul(), [value(2, 4, 8), value(2, 8, 16)], "product"),
        (Conv2d((3, 3)), [value(1, 8, 6, 6), value(8, 8, 3, 3)], "convolution"),
        (Conv2d((3, 3), groups=8), [value(1, 8, 6, 6), value(8, 1, 3, 3)], "depthwise"),
        (Elementwise("Relu"), [value(4, 8)], "elementwise"),
        (OnnxOp("Softmax"), [value(4, 8)], "softmax"),
        (OnnxOp("LayerNormalization"), [value(4, 8), value(8)], "normalization"),
        (OnnxOp("ReduceMean"), [value(4, 8)], "elementwise"),
    ],
)
def test_every_op_has_kernels(op: Op, inputs: list[Value], kind: str) -> None:
    rows = value(2, 4, 16) if isinstance(op, MatMul) else value(4, 16)
    output = value(1, 8, 4, 4) if isinstance(op, Conv2d) else rows
    for gpu in (FP16, FP32):
        work = gpu_work(op, inputs, [output], gpu.element_bytes)
        assert isinstance(work, GpuWork)
        assert family(work) == kind
        assert gpu_cost(op, inputs, [output], gpu, ALL).time_us > 0


def test_a_pointwise_convolution_takes_the_kernel_of_a_product_where_that_is_faster() -> None:
    for gpu in (FP16, FP32):
        work = convolution(2048, 512, 7, kernel=1)
        kernels = work_cost(work, gpu, ALL)
        alone = work_cost(MatrixWork(49, 512, 2048, 1, 0), gpu, ALL)
        assert (kernels.compute_us, kernels.memory_us) == (alone.compute_us, alone.memory_us)
        strided = work_cost(convolution(2048, 512, 14, kernel=1, stride=2), gpu, ALL)
        assert strided.compute_us > kernels.compute_us


def gradient_of(images: int, channels: int, size: int, kernel: int, groups: int = 1) -> tuple[GpuWork, GpuWork]:
    """Work of a convolution that keeps channels and map size, and of its weight gradient as exported."""
    pads = (kernel // 2,) * 4
    x, y = (Value(name, (images, channels, size, size), "float16") for name in "xy")
    w = Value("w", (channels, channels // groups, kernel, kernel), "float16")
    turned = Value("t", (channels // groups, groups * images, size, size), "float16")
    by = Value("b", (channels, images, size, size), "float16")
    made = Value("g", (channels // groups, channels, kernel, kernel), "float16")
    ahead = gpu_work(Conv2d((kernel, kernel), pads=pads, groups=groups), [x, w], [y], 2)
    back = gpu_work(Conv2d((size, size), pads=pads, groups=groups), [turned, by], [made], 2)
    assert isinstance(ahead, (MatrixWork, DepthwiseWork))
    assert isinstance(back, (MatrixWork, DepthwiseWork))
    assert ahead.macs == back.macs
    return ahead, back


@pytest.mark.parametrize("images", [1, 16])
@pytest.mark.parametrize(("channels", "size", "kernel"), [(64, 56, 3), (64, 56, 1), (256, 14, 3), (16, 224, 7)])
def test_gradients_of_weights_cut_their_long_sums(images: int, channels: int, size: int, kernel: int) -> None:
    """Like a product of the same sizes, with split-K and without padding; images take the place of channels."""
    ahead, back = gradient_of(images, channels, size, kernel)
    assert isinstance(back, MatrixWork)
    forward, gradient, table = work_cost(ahead, FP16, ALL), work_cost(back, FP16, ALL), FP16.library.product.gemm
    assert gradient.time_us < 3 * forward.time_us + table.split_us
    cut = replace(FP16.library.convolution.implicit_gemm, splits=table.splits, split_us=table.split_us)
    plain = work_cost(MatrixWork(back.m, back.n, back.k, 1, back.bytes), with_gemm(FP16, **vars(cut)), ALL)
    assert gradient.compute_us == plain.compute_us


def test_patches_of_an_image_are_no_gradient() -> None:
    """14x14 patches of 16x16 elements each: a vision transformer's first layer."""
    assert not Window((1, 14, 14), 3, (16, 16), (16, 16), (1, 1), 0).is_weight_gradient
    assert Window((3, 16, 16), 1, (209, 209), (1, 1), (1, 1), 0).is_weight_gradient


@pytest.mark.parametrize("images", [1, 4])
def test_gradients_of_depthwise_weights_take_as_long_as_the_forward_pass(images: int) -> None:
    ahead, back = gradient_of(images, 96, 28, 3, groups=96)
    assert isinstance(back, DepthwiseWork)
    assert work_cost(back, FP16, ALL).compute_us == work_cost(ahead, FP16, ALL).compute_us


def test_energy_of_a_multiplication_follows_the_element_type() -> None:
    def arithmetic(gpu: MeasuredGpuSpec) -> float:
        free = replace(gpu, energy=replace(gpu.energy, busy_w=0.0, l2_pj_per_byte=0.0, dram_pj_per_byte=0.0))
        return product(512, 512, 512, free).energy_mj

    assert arithmetic(FP16) == pytest.approx(512**3 * 1.5e-9)
    assert arithmetic(FP32) == pytest.approx(512**3 * 4.6e-9)


def warm(gpu: MeasuredGpuSpec = FP16) -> MeasuredGpuSpec:
    """The GPU with activations that stay in its 4 MB of L2."""
    return replace(gpu, warm_activations=True)


@pytest.mark.parametrize(("mib", "from_memory"), [(1, 0), (2, 0), (3, 2), (4, 4), (8, 8)])
def test_activations_that_half_the_cache_holds_stay_in_it(mib: int, from_memory: int) -> None:
    """Up to half of the L2 everything is found there, and nothing from all of it on."""
    work = StreamWork(0, mib << 20)
    cost = work_cost(work, warm(), ALL)
    assert cost.bytes == from_memory << 20
    assert cost.memory_us == pytest.approx((from_memory << 20) / (320e3 * FP16.library.elementwise.memory_efficiency))
    assert work_cost(work, FP16, ALL).bytes == mib << 20
    assert cost.energy_parts_mj["L2"] == work_cost(work, FP16, ALL).energy_parts_mj["L2"]


def test_the_slices_of_units_that_take_channels_hold_no_activations() -> None:
    assert work_cost(StreamWork(0, 2 << 20), warm(), ALL // 2).bytes == 2 << 20


def test_weights_come_from_memory() -> None:
    """1 MB of weights and 1 MB of activations; a batch of products has no weights."""
    weights = MatrixWork(256, 512, 1024, 1, (1 << 20) + 2 * 256 * (1024 + 512))
    assert work_cost(weights, warm(), ALL).bytes == 1 << 20
    batch = MatrixWork(128, 256, 512, 2, 2 * 2 * (128 * 512 + 512 * 256 + 128 * 256))
    assert work_cost(batch, warm(), ALL).bytes == 0


def test_bytes_in_the_cache_take_time_too() -> None:
    gpu = with_library(warm(), elementwise=replace(FP16.library.elementwise, cache_gb_per_s=500.0))
    assert work_cost(StreamWork(0, 1 << 20), gpu, ALL).memory_us == pytest.approx((1 << 20) / 500e3)
    memory = work_cost(StreamWork(0, 1 << 30), gpu, ALL).memory_us
    assert memory == work_cost(StreamWork(0, 1 << 30), FP16, ALL).memory_us


def test_tiles_are_written_after_their_main_loops() -> None:
    """40 SMs write one tile of 64 x 64 each, at 1 GB/s: 2 bytes per element."""
    gpu = with_gemm(plain(), result_gb_per_s=1.0)
    more = product(64 * 40, 64, 320, gpu).compute_us - product(64 * 40, 64, 320, plain()).compute_us
    assert more == pytest.approx(64 * 40 * 64 * 2 / 1e3)


def test_rows_at_odd_addresses_have_kernels_of_their_own() -> None:
    slow = replace(plain().library.product.gemm, efficiency=0.1)
    gpu = with_library(plain(), product=replace(plain().library.product, unaligned=slow, row_multiple=8))
    times = [product(64 * 40, n, k, gpu).compute_us for n, k in ((64, 320), (63, 320), (64, 319))]
    assert times == pytest.approx([times[0], 10 * times[0], 10 * times[0]])
    table = FP16.library.convolution
    gpu = with_library(FP16, convolution=replace(table, unaligned=slow, row_multiple=8))
    assert work_cost(convolution(64, 64, 56), gpu, ALL) == work_cost(convolution(64, 64, 56), FP16, ALL)
    for channels, filters in ((63, 64), (64, 63)):
        odd = convolution(channels, filters, 56)
        assert work_cost(odd, gpu, ALL).compute_us > work_cost(odd, FP16, ALL).compute_us


def test_rows_of_a_softmax_take_time() -> None:
    """400 rows on 40 SMs take 10 times `row_us`; one row its elements one after the other."""
    short = ShortRows(columns=16, memory_efficiency=1.0, row_us=1.0)
    table = replace(FP16.library.softmax, row_us=7.0, column_us=0.5, short_rows=short)
    gpu = with_library(FP16, softmax=table)

    def computing(rows: int, columns: int) -> float:
        return work_cost(StreamWork(0, 4 * rows * columns, "softmax", rows, columns), gpu, ALL).compute_us

    assert computing(400, 32) == pytest.approx(10 * 7.0 + 32 * 0.5)
    assert computing(400, 16) == pytest.approx(10 * 1.0)


@pytest.mark.parametrize(
    ("op", "shape", "rows", "columns"),
    [
        (OnnxOp("Softmax", attributes=(("axis", -1),)), (2, 3, 8), 6, 8),
        (OnnxOp("Softmax", attributes=(("axis", 1),)), (2, 3, 8), 16, 3),
        (OnnxOp("LayerNormalization", attributes=(("axis", -2),)), (2, 3, 8), 2, 24),
        (OnnxOp("InstanceNormalization"), (2, 3, 4, 5), 6, 20),
        (OnnxOp("GroupNormalization", attributes=(("num_groups", 3),)), (2, 6, 4, 5), 6, 40),
        (OnnxOp("LpNormalization"), (2, 8), 2, 8),
        (OnnxOp("Softmax", attributes=(("axis", -1),)), (2, 0), 0, 0),
        (OnnxOp("ReduceMean"), (2, 8), 0, 0),
    ],
)
def test_rows_of_reductions(op: OnnxOp, shape: tuple[int, ...], rows: int, columns: int) -> None:
    work = gpu_work(op, [value(*shape)], [value(*shape)], 2)
    assert isinstance(work, StreamWork)
    assert (work.rows, work.columns) == (rows, columns)


def test_a_depthwise_result_is_summed_up_element_by_element() -> None:
    gpu = with_library(FP16, depthwise=replace(FP16.library.depthwise, tap_us=2.0))
    op, inputs = Conv2d((3, 3), groups=8), [value(1, 8, 6, 6), value(8, 1, 3, 3)]
    work = gpu_work(op, inputs, [value(1, 8, 4, 4)], 2)
    assert isinstance(work, DepthwiseWork)
    assert work.taps == 9
    more = work_cost(work, gpu, ALL).compute_us - work_cost(work, FP16, ALL).compute_us
    assert more == pytest.approx(9 * 2.0)
