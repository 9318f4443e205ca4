"""The GPU cost model against closed forms, limits and monotonicity."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.ir import (
    Attributes,
    BatchNorm,
    Concat,
    Conv2d,
    Elementwise,
    Gemm,
    GlobalPool,
    MatMul,
    OnnxOp,
    Op,
    Pad,
    Pool2d,
    Reshape,
    Shape,
    Slice,
    Transpose,
    Value,
    window_out,
)
from pimflow.runtime.gpu.cost import GpuCost, gpu_cost, movement_cost, static_energy_mj
from pimflow.runtime.gpu.kernels import kernel_cycles
from pimflow.runtime.gpu.work import DepthwiseWork, MatrixWork, StreamWork, Window, gpu_work
from pimflow.targets import GpuSpec, Target, load_target

PIMFLOW = load_target("pimflow")
GPU = PIMFLOW.gpu
ALL = GPU.memory_channels
Case = tuple[Op, list[Value], list[Value]]


def value(*shape: int, dtype: str = "float32") -> Value:
    return Value("v", shape, dtype)


def conv(channels: int, out: int, size: int, kernel: int = 1, groups: int = 1, stride: int = 1) -> Case:
    pad = kernel // 2
    op = Conv2d((kernel, kernel), (stride, stride), (pad,) * 4, groups=groups)
    side = window_out(size, kernel, stride, pad, pad, 1)
    inputs = [value(1, channels, size, size), value(out, channels // groups, kernel, kernel)]
    return op, inputs, [value(1, out, side, side)]


def cost(case: Case, channels: int = ALL, target: Target = PIMFLOW) -> GpuCost:
    return gpu_cost(*case, target.gpu, channels)


def with_gpu(**changes: Any) -> Target:
    return PIMFLOW.with_units(gpu=replace(GPU, **changes))


# --- closed forms -----------------------------------------------------------------------------------------------------


def plain_gpu(**changes: Any) -> GpuSpec:
    """One tile shape, round numbers, and memory that is never the limit."""
    numbers: dict[str, Any] = {
        "sms": 10,
        "launch_cycles": 1000,
        "conv_launches": 1,
        "macs_per_sm_cycle": 256,
        "matrix_efficiency": 0.5,
        "tiles": ((64, 64),),
        "tile_depth": 32,
        "blocks_per_sm": 2,
        "step_cycles": 100.0,
        "fill_cycles": 500.0,
        "channel_gb_per_s": 1e9,
        "l2_bytes_per_channel_cycle": 1e9,
    }
    return replace(GPU, **(numbers | changes))


@pytest.mark.parametrize(
    ("m", "n", "k", "groups", "expected"),
    [
        # compute time of one 64x64x32 block = 131072 / 128 = 1024 cycles; of two on one SM, 2048
        (64, 64, 32, 1, 1000 + 500 + 1024),
        (64, 64, 33, 1, 1000 + 500 + 2 * 1024),
        (640, 64, 32, 1, 1000 + 500 + 1024),  # ten blocks, one per SM
        (641, 64, 32, 1, 1000 + 500 + 2048),  # eleven: one SM has two
        (1280, 64, 32, 1, 1000 + 500 + 2048),  # twenty: a full wave
        (1281, 64, 32, 1, 1000 + 500 + 2048 + 500 + 1024),  # twenty-one: a second wave
        (64, 64, 32, 11, 1000 + 500 + 2048),  # groups are blocks too
        (64, 65, 32, 1, 1000 + 500 + 1024),
    ],
)
def test_tiles_and_waves(m: int, n: int, k: int, groups: int, expected: float) -> None:
    cycles = kernel_cycles(MatrixWork(m, n, k, groups, 0), plain_gpu(), 32)
    assert cycles.total == pytest.approx(expected)


@pytest.mark.parametrize(
    ("k", "splits", "expected"),
    [
        # ten steps of a block: in two parts, five per SM; in four, three (rounded up); a second launch adds up
        (320, (1, 2), 2 * 1000 + 500 + 5 * 1024 + 2 * 2 * 4096 * 4 / 3200),
        (320, (2, 4), 2 * 1000 + 500 + 3 * 1024 + 2 * 4 * 4096 * 4 / 3200),
        (32, (1, 2), 1000 + 500 + 1024),  # one step: nothing to divide
    ],
)
def test_sums_are_divided_among_idle_sms_where_that_pays(k: int, splits: tuple[int, ...], expected: float) -> None:
    gpu = plain_gpu(splits=splits, l2_bytes_per_channel_cycle=100.0)
    assert kernel_cycles(MatrixWork(64, 64, k, 1, 0), gpu, 32).total == pytest.approx(expected)
    whole = MatrixWork(64, 64, k, 1, 0, whole_k=True)
    assert kernel_cycles(whole, gpu, 32) == kernel_cycles(whole, plain_gpu(l2_bytes_per_channel_cycle=100.0), 32)


def test_step_latency_binds_when_arithmetic_is_fast() -> None:
    cycles = kernel_cycles(MatrixWork(64, 64, 320, 1, 0), plain_gpu(macs_per_sm_cycle=10**6), 32)
    assert cycles.total == pytest.approx(1000 + 500 + 10 * 100)


def test_large_product_reaches_the_efficiency_asked_for() -> None:
    gpu = plain_gpu(step_cycles=1.0)
    work = MatrixWork(64 * 200, 64 * 10, 32 * 4000, 1, 0)
    peak = gpu.sms * gpu.macs_per_sm_cycle
    assert work.macs / peak / kernel_cycles(work, gpu, 32).total == pytest.approx(gpu.matrix_efficiency, rel=1e-3)


def test_the_best_tile_is_taken() -> None:
    small, large = plain_gpu(), plain_gpu(tiles=((128, 128),))
    both = plain_gpu(tiles=((128, 128), (64, 64)))
    for m in (16, 64, 640, 5000):
        work = MatrixWork(m, 256, 64, 1, 0)
        totals = [kernel_cycles(work, gpu, 32).total for gpu in (small, large, both)]
        assert totals[2] == min(totals[:2])


def test_memory_roofline_in_bytes_over_bandwidth() -> None:
    moved = 100 * 2**20
    out = movement_cost(moved, GPU, 16)
    seconds = moved / (16 * GPU.channel_gb_per_s * 1e9 * GPU.memory_efficiency)
    assert out.time_us == pytest.approx(GPU.launch_cycles / GPU.clock_mhz + seconds * 1e6)
    assert out.memory_us > out.compute_us


def test_l2_binds_when_its_slices_are_narrow() -> None:
    work = MatrixWork(1024, 1024, 1024, 1, 0)
    narrow = plain_gpu(l2_bytes_per_channel_cycle=1.0)
    traffic = 16 * 16 * 32 * (64 + 64) * 32 * narrow.element_bytes
    assert kernel_cycles(work, narrow, 16).l2 == pytest.approx(traffic / 16)
    assert kernel_cycles(work, narrow, 16).total == pytest.approx(1000 + traffic / 16)


def test_matrix_vector_product_streams_its_matrix() -> None:
    out = cost((Gemm(trans_b=True), [value(1, 25088), value(4096, 25088)], [value(1, 4096)]))
    moved = 2 * (25088 + 4096 * 25088 + 4096)
    assert out.bytes == moved
    assert out.flops == 2 * 4096 * 25088
    bandwidth = ALL * GPU.channel_gb_per_s * 1e3 * GPU.memory_efficiency
    assert out.time_us == pytest.approx(GPU.launch_cycles / GPU.clock_mhz + moved / bandwidth)


def test_depthwise_rate() -> None:
    op, inputs, outputs = conv(96, 96, 112, 3, groups=96)
    gpu = plain_gpu(depthwise_macs_per_sm_cycle=4.0)
    work = gpu_work(op, inputs, outputs, 2)
    assert isinstance(work, DepthwiseWork)
    assert work.macs == 96 * 112 * 112 * 9
    assert kernel_cycles(work, gpu, 32).total == pytest.approx(1000 + 500 + work.macs / 40)


# --- work from shapes -------------------------------------------------------------------------------------------------


def test_convolution_is_an_implicit_gemm() -> None:
    work = gpu_work(*conv(24, 144, 56, 3), 2)
    window = Window((1, 56, 56), 24, (3, 3), (1, 1), (1, 1), skipped_bytes=0)
    moved = 2 * 56 * 56 * (24 + 144) + 2 * 144 * 24 * 9
    assert work == MatrixWork(56 * 56, 144, 24 * 9, 1, moved, convolution=True, window=window)


def test_pixels_between_windows_are_skipped() -> None:
    """A 1x1 convolution at stride 2 reads one pixel of four, a 3x3 one reads all."""
    skipped = []
    for kernel in (1, 3):
        work = gpu_work(*conv(24, 144, 56, kernel, stride=2), 2)
        assert isinstance(work, MatrixWork)
        assert work.window is not None
        skipped.append(work.window.skipped_bytes)
    assert skipped == [2 * 24 * 56 * 56 * 3 // 4, 0]


@pytest.mark.parametrize(
    ("kind", "attributes", "weights", "source", "out", "macs"),
    [
        ("Conv", (), (8, 4, 3), (1, 4, 20), (1, 8, 18), 8 * 18 * 12),
        ("Conv", (("group", 2),), (8, 2, 3, 3, 3), (1, 4, 5, 5, 5), (1, 8, 3, 3, 3), 8 * 27 * 54),
        ("Conv", (("group", 4),), (4, 1, 3), (1, 4, 20), (1, 4, 18), 4 * 18 * 3),
        ("ConvTranspose", (), (4, 8, 2, 2), (1, 4, 5, 5), (1, 8, 10, 10), 100 * 32),
        ("ConvTranspose", (("group", 2),), (4, 3, 2, 2), (1, 4, 5, 5), (1, 6, 10, 10), 100 * 12),
        ("Einsum", (), (8, 4, 3), (1, 4, 20), (1, 8, 18), 0),
    ],
)
def test_carried_convolutions_count_their_macs(
    kind: str, attributes: Attributes, weights: Shape, source: Shape, out: Shape, macs: int
) -> None:
    work = gpu_work(OnnxOp(kind, attributes=attributes), [value(*source), value(*weights)], [value(*out)], 2)
    assert (0 if isinstance(work, StreamWork) or work is None else work.macs) == macs


def test_grouped_convolution_has_one_product_per_group() -> None:
    work = gpu_work(*conv(64, 128, 14, 3, groups=4), 2)
    assert isinstance(work, MatrixWork)
    assert (work.m, work.n, work.k, work.groups) == (196, 32, 144, 4)
    assert work.macs == 196 * 128 * 144


@pytest.mark.parametrize(
    ("left", "right", "out", "expected"),
    [
        ((8, 64), (64, 32), (8, 32), (8, 32, 64, 1)),
        ((2, 8, 64), (64, 32), (2, 8, 32), (16, 32, 64, 1)),
        ((2, 8, 64), (2, 64, 32), (2, 8, 32), (8, 32, 64, 2)),
        ((64,), (64, 32), (32,), (1, 32, 64, 1)),
        ((8, 64), (64,), (8,), (8, 1, 64, 1)),
        ((4, 1, 8, 64), (3, 64, 32), (4, 3, 8, 32), (8, 32, 64, 12)),
    ],
)
def test_matmul_work(left: Shape, right: Shape, out: Shape, expected: Shape) -> None:
    work = gpu_work(MatMul(), [value(*left), value(*right)], [value(*out)], 2)
    assert isinstance(work, MatrixWork)
    assert (work.m, work.n, work.k, work.groups) == expected
    assert work.macs == math.prod(out) * left[-1]


def test_transposed_gemm_reads_k_from_the_right_axis() -> None:
    work = gpu_work(Gemm(trans_a=True), [value(64, 8), value(64, 32)], [value(8, 32)], 2)
    assert isinstance(work, MatrixWork)
    assert (work.m, work.n, work.k) == (8, 32, 64)


def test_views_cost_nothing_and_fused_kernels_neither() -> None:
    x = value(1, 8, 14, 14)
    free: list[tuple[Op, Value]] = [(Reshape((1, 1568)), value(1, 1568))]
    free += [(OnnxOp(name), x) for name in ("Identity", "Flatten", "Squeeze", "Unsqueeze", "Dropout")]
    for op, out in free:
        assert cost((op, [x], [out])) == GpuCost()
    assert cost((Elementwise("Relu"), [x], [x])).time_us > GPU.launch_cycles / GPU.clock_mhz


def test_every_other_kernel_pays_launch_and_bytes() -> None:
    x = value(1, 64, 56, 56)
    cases: list[tuple[Op, list[Value], list[Value]]] = [
        (Elementwise("Add"), [x, x], [x]),
        (Elementwise("Sigmoid"), [x], [x]),
        (BatchNorm(), [x, *[value(64)] * 4], [x]),
        (Pool2d("max", (3, 3), (2, 2), (1, 1, 1, 1)), [x], [value(1, 64, 28, 28)]),
        (GlobalPool("average"), [x], [value(1, 64, 1, 1)]),
        (Transpose((0, 2, 3, 1)), [x], [value(1, 56, 56, 64)]),
        (Slice(2, 0, 28), [x], [value(1, 64, 28, 56)]),
        (Pad((0, 0, 1, 0), (0, 0, 0, 0)), [x], [value(1, 64, 57, 56)]),
        (Concat(1), [x, x], [value(1, 128, 56, 56)]),
        (OnnxOp("Softmax"), [x], [x]),
        (OnnxOp("LayerNormalization"), [x, value(56), value(56)], [x]),
        (OnnxOp("ReduceMean"), [x], [value(1, 64, 1, 1)]),
        (OnnxOp("LRN", attributes=(("size", 5),)), [x], [x]),
        (OnnxOp("SomethingNew", "com.example"), [x], [x]),
    ]
    for op, inputs, outputs in cases:
        out = cost((op, inputs, outputs))
        assert out.time_us > out.launch_us > 0, op
        assert out.bytes > 0, op
        assert out.time_us == pytest.approx(out.launch_us + max(out.compute_us, out.memory_us)), op
        assert out.energy_mj > 0, op


def test_slice_moves_what_it_keeps_and_gather_what_it_returns() -> None:
    kept = cost((Slice(2, 0, 1), [value(1, 64, 56, 56)], [value(1, 64, 1, 56)]))
    assert kept.bytes == 2 * 2 * 64 * 56
    table = value(50_000, 256)
    gathered = cost((OnnxOp("Gather"), [table, value(4, dtype="int64")], [value(4, 256)]))
    assert gathered.bytes == 2 * 2 * 4 * 256 + 4 * 8


def test_unknown_shapes_still_cost_a_launch() -> None:
    unknown = Value("v", None, "")
    out = cost((OnnxOp("NonZero"), [unknown], [unknown]))
    assert out.time_us == pytest.approx(GPU.launch_cycles / GPU.clock_mhz)


def test_integers_count_at_their_own_width() -> None:
    floats = cost((OnnxOp("Cast"), [value(1000)], [value(1000)]))
    integers = cost((OnnxOp("Cast"), [value(1000, dtype="int64")], [value(1000, dtype="int64")]))
    assert (floats.bytes, integers.bytes) == (4000, 16000)


def test_no_channel_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one memory channel"):
        cost(conv(8, 8, 8), channels=0)


# --- monotonicity and parameters --------------------------------------------------------------------------------------

SIZES = st.integers(1, 40)


@settings(max_examples=60)
@given(channels=SIZES, out=SIZES, size=st.integers(3, 60), kernel=st.sampled_from([1, 3, 5]), left=st.integers(1, 31))
def test_fewer_channels_are_never_faster(channels: int, out: int, size: int, kernel: int, left: int) -> None:
    node = conv(8 * channels, 8 * out, size, kernel)
    assert cost(node, channels=left).time_us >= cost(node, channels=left + 1).time_us


@settings(max_examples=60)
@given(m=st.integers(4, 3000), n=st.integers(4, 600), k=st.integers(1, 2000), grow=st.integers(1, 500))
def test_more_work_is_never_faster(m: int, n: int, k: int, grow: int) -> None:
    def total(m: int, n: int, k: int) -> float:
        return kernel_cycles(MatrixWork(m, n, k, 1, 2 * (m * k + k * n + m * n)), GPU, 16).total

    base = total(m, n, k)
    assert total(m, n, k + grow) >= base
    assert total(m + grow, n, k) >= base
    assert total(m, n + grow, k) >= base


@pytest.mark.parametrize(
    ("field", "changed", "case"),
    [
        ("launch_cycles", 9000, conv(64, 64, 14)),
        ("conv_launches", 7, conv(64, 64, 14)),
        ("macs_per_sm_cycle", 8, conv(64, 64, 56, 3)),
        ("matrix_efficiency", 0.01, conv(64, 64, 56, 3)),
        ("step_cycles", 9000.0, conv(64, 64, 14)),
        ("fill_cycles", 90000.0, conv(64, 64, 14)),
        ("sms", 1, conv(64, 64, 56, 3)),
        ("clock_mhz", 500.0, conv(64, 64, 14)),
        ("tiles", ((512, 512),), conv(64, 64, 14, 3)),
        ("tile_depth", 8, conv(64, 64, 14, 3)),
        ("blocks_per_sm", 8, conv(64, 512, 112)),
        ("splits", (1, 4), conv(512, 64, 7, 3)),
        ("depthwise_macs_per_sm_cycle", 0.5, conv(64, 64, 56, 3, groups=64)),
        ("operations_per_sm_cycle", 1, (Elementwise("Sigmoid"), [value(10**6)], [value(10**6)])),
        ("memory_efficiency", 0.05, (Elementwise("Relu"), [value(10**7)], [value(10**7)])),
        ("channel_gb_per_s", 1.0, (Elementwise("Relu"), [value(10**7)], [value(10**7)])),
        ("l2_bytes_per_channel_cycle", 0.1, conv(64, 64, 56, 3)),
        ("operand", "fp32", (Elementwise("Relu"), [value(10**7)], [value(10**7)])),
    ],
)
def test_every_parameter_binds(field: str, changed: object, case: Case) -> None:
    assert cost(case, target=with_gpu(**{field: changed})).time_us != cost(case).time_us


@pytest.mark.parametrize("field", ["busy_w", "mac_pj", "l2_pj_per_byte", "dram_pj_per_byte"])
def test_every_energy_parameter_binds(field: str) -> None:
    energy = replace(GPU.energy, **{field: 10 * getattr(GPU.energy, field)})
    node = conv(64, 64, 56, 3)
    assert cost(node, target=with_gpu(energy=energy)).energy_mj > cost(node).energy_mj


def test_operation_energy_binds_outside_matrix_products() -> None:
    energy = replace(GPU.energy, operation_pj=1000.0)
    node = (Elementwise("Relu"), [value(10**6)], [value(10**6)])
    gained = cost(node, target=with_gpu(energy=energy)).energy_mj - cost(node).energy_mj
    assert gained == pytest.approx((1000.0 - GPU.energy.operation_pj) * 1e6 * 1e-9)


def test_a_cost_is_the_sum_of_its_parts() -> None:
    some = GpuCost(launch_us=1, computing_us=2, moving_us=4, busy_mj=8, arithmetic_mj=16, l2_mj=32, dram_mj=64)
    assert some.time_us == sum(some.time_parts_us.values()) == 7
    assert some.energy_mj == sum(some.energy_parts_mj.values()) == 120


def test_static_energy_is_power_times_time() -> None:
    assert static_energy_mj(1000.0, GPU) == pytest.approx(GPU.energy.static_w)


def test_stream_work_of_an_lrn_counts_its_window() -> None:
    x = value(1, 16, 10, 10)
    narrow, wide = (gpu_work(OnnxOp("LRN", attributes=(("size", size),)), [x], [x], 2) for size in (3, 9))
    assert isinstance(narrow, StreamWork)
    assert isinstance(wide, StreamWork)
    assert wide.operations - narrow.operations == 12 * 1600
