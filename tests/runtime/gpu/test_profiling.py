"""Profiling: the kernels that are timed, the CPU's timer, and the CUDA timer with a fake torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest

from pimflow.errors import OptionError
from pimflow.ir import Builder, Conv2d, Elementwise, Gemm, Graph, MatMul, Node, OnnxOp, Op, Pool2d
from pimflow.runtime.execute.ort import random_inputs, single_node_graph
from pimflow.runtime.gpu.measured import MeasuredTable
from pimflow.runtime.gpu.profiling import CpuTimer, profile_model
from pimflow.runtime.gpu.profiling_cuda import MOST_RUNS, SPAN_US, CudaTimer
from support.values import assert_varies
from support.zoo import clean_model


@pytest.fixture(scope="module")
def toy() -> Graph:
    return clean_model("toy")


class FixedTimer:
    """A timer that returns given times in order."""

    machine, versions, dtype = "fake", "0", "float32"

    def __init__(self, times: dict[str, list[float] | None]) -> None:
        self.times = times
        self.asked: list[tuple[str, int, int]] = []

    def time_us(self, graph: Graph, node: Node, warmup: int, repeats: int) -> list[float] | None:
        self.asked.append((node.kind, warmup, repeats))
        return self.times.get(node.kind, [1.0])


def test_every_kernel_once_and_the_median_of_its_runs(toy: Graph) -> None:
    timer = FixedTimer({"Conv": [9.0, 2.0, 4.0], "Gemm": None})
    seen: list[tuple[int, int]] = []
    rows = profile_model(toy, "cpu", warmup=2, repeats=3, timer=timer, progress=lambda *done: seen.append(done))
    assert {kind for kind, _, _ in timer.asked} >= {"Conv", "Gemm"}
    assert "Clip" not in {kind for kind, _, _ in timer.asked}  # fused
    assert {(warmup, repeats) for _, warmup, repeats in timer.asked} == {(2, 3)}
    assert seen[-1] == (len(timer.asked), len(timer.asked))
    times = {row.time_us for row in rows if isinstance(row.op, Conv2d)}
    assert times == {4.0}
    assert not any(isinstance(row.op, Gemm) for row in rows)  # they could not be run, and are left out
    conv = next(node for node in toy.nodes if isinstance(node.op, Conv2d))
    assert MeasuredTable(rows).time_us(conv.op, [toy.value(name) for name in conv.inputs]) == 4.0


def test_repeated_kernels_are_timed_once() -> None:
    build = Builder()
    x = build.input(1, 4)
    for _ in range(3):
        x = build.relu(x)
    timer = FixedTimer({})
    profile_model(build.graph(build.reshape(x, 4)), "cpu", timer=timer)
    assert [kind for kind, _, _ in timer.asked] == ["Relu"]


def test_the_cpu_is_really_timed(toy: Graph) -> None:
    rows = profile_model(toy, "cpu", warmup=1, repeats=3)
    assert len({row.time_us for row in rows}) > 1
    assert all(0 < row.time_us < 1e6 for row in rows)
    assert all("onnxruntime" in row.versions and row.machine and row.dtype == "float32" for row in rows)


def test_a_single_node_keeps_its_weights_and_asks_for_its_activations(toy: Graph) -> None:
    conv = next(node for node in toy.nodes if isinstance(node.op, Conv2d))
    alone = single_node_graph(toy, conv)
    assert alone.inputs == ("i0",)
    assert set(alone.constants) == {"i1", "i2"}
    assert all(alone.constants[f"i{i}"] is toy.constants[conv.inputs[i]] for i in (1, 2))
    feeds = random_inputs(alone, seed=0)
    assert feeds["i0"].shape == toy.shape(conv.inputs[0])
    assert_varies(feeds["i0"])
    assert len(CpuTimer(threads=1).time_us(toy, conv, 1, 4)) == 4


def test_options_are_checked(toy: Graph) -> None:
    with pytest.raises(OptionError, match="unknown device 'tpu'"):
        profile_model(toy, "tpu")
    with pytest.raises(OptionError, match="cannot measure 0 runs"):
        profile_model(toy, "cpu", repeats=0)
    with pytest.raises(OptionError, match="on the CPU, operands have the model's types"):
        profile_model(toy, "cpu", gpu_operand="fp16")
    with pytest.raises(OptionError, match="unknown gpu_operand 'int8'"):
        profile_model(toy, "cuda", gpu_operand="int8")


# --- CUDA, with a fake ------------------------------------------------------------------------------------------------


class FakeTensor:
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.layout = shape, "contiguous"
        self.nbytes = 2 * prod(shape)

    def to(self, memory_format: str) -> FakeTensor:
        self.layout = memory_format
        return self

    def t(self) -> FakeTensor:
        return FakeTensor(self.shape[::-1])

    def permute(self, perm: tuple[int, ...]) -> FakeTensor:
        return FakeTensor(tuple(self.shape[axis] for axis in perm))

    def contiguous(self) -> FakeTensor:
        return self

    def abs(self) -> FakeTensor:
        return self


class FakeTorch:
    """Counts calls; a kernel takes `kernel_us` of device time, and a call 30 us of the host's unless it is captured."""

    __version__ = "9.9"
    float16, float32 = "float16", "float32"
    channels_last, contiguous_format = "channels_last", "contiguous"
    version = SimpleNamespace(cuda="13.0")

    def __init__(self, available: bool = True, kernel_us: float = 50.0, captures: bool = True) -> None:
        self.kernel_us, self.captures = kernel_us, captures
        self.capturing: FakeGraph | None = None
        self.dtypes: set[str] = set()
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.clock_ms = 0.0
        torch = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = torch.clock_ms

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, other: Event) -> float:
                return other.at - self.at

        self.cuda = SimpleNamespace(
            is_available=lambda: available,
            get_device_name=lambda i: "Fake GPU",
            get_device_properties=lambda i: SimpleNamespace(L2_cache_size=1 << 10),
            synchronize=lambda: None,
            Event=Event,
            CUDAGraph=lambda: FakeGraph(torch),
            graph=self._capture,
        )
        cudnn = SimpleNamespace(benchmark=False, version=lambda: 99)
        self.backends = SimpleNamespace(cudnn=cudnn)
        names = "linear conv2d max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d batch_norm hardswish "
        names += "layer_norm gelu"
        self.nn = SimpleNamespace(functional=SimpleNamespace(**{name: self._kernel(name) for name in names.split()}))
        self.nn.functional.pad = lambda x, widths: FakeTensor(
            (*x.shape[:2], x.shape[2] + widths[2] + widths[3], x.shape[3] + widths[0] + widths[1])
        )
        for name in ("relu", "add", "mul", "sigmoid", "matmul", "softmax", "clamp"):
            setattr(self, name, self._kernel(name))

    def _kernel(self, name: str) -> Any:
        def run(*arguments: Any, **_: Any) -> None:
            self.calls.append((name, arguments))
            if self.capturing is not None:
                self.capturing.kernels += 1
            else:
                self.clock_ms += (self.kernel_us + 30) * 1e-3

        return run

    @contextmanager
    def _capture(self, graph: FakeGraph) -> Iterator[None]:
        if not self.captures:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.capturing = graph
        yield
        self.capturing = None

    def inference_mode(self) -> Any:
        return nullcontext()

    def randn(self, shape: tuple[int, ...], device: str, dtype: str) -> FakeTensor:
        assert device == "cuda"
        self.dtypes.add(dtype)
        return FakeTensor(shape)


class FakeGraph:
    """A captured sequence of kernels."""

    def __init__(self, torch: FakeTorch) -> None:
        self.torch, self.kernels = torch, 0

    def replay(self) -> None:
        self.torch.clock_ms += self.kernels * self.torch.kernel_us * 1e-3


def one(op: Op, *shapes: tuple[int, ...]) -> tuple[Graph, Node]:
    """A graph of one node over inputs of these shapes."""
    build = Builder()
    inputs = [build.input(*shape) for shape in shapes]
    opaque = isinstance(op, OnnxOp)
    made = build.node(op, inputs, [(shapes[0], "float32")])[0] if opaque else build.op(op, *inputs)
    return build.graph(made), build.producer(made)


def test_cuda_times_are_of_replayed_kernels_and_in_microseconds() -> None:
    torch = FakeTorch()
    graph, node = one(Conv2d((3, 3), (2, 2), (1, 1, 1, 1), groups=2), (1, 4, 8, 8), (4, 2, 3, 3), (4,))
    times = CudaTimer(torch=torch).time_us(graph, node, 3, 5)
    assert times == pytest.approx([50.0] * 5)  # without the host's 30 us
    captured = SPAN_US / 80
    assert len(torch.calls) == 3 + 1 + captured
    name, (x, weights, bias, strides, padding, dilations, groups) = torch.calls[0]
    assert (name, strides, padding, dilations, groups) == ("conv2d", (2, 2), (1, 1), (1, 1), 2)
    assert (x.shape, weights.shape, bias) == ((1, 4, 8, 8), (4, 2, 3, 3), None)  # compilers fuse the bias
    assert (x.layout, weights.layout) == ("channels_last", "channels_last")
    assert torch.backends.cudnn.benchmark is True


@pytest.mark.parametrize(("kernel_us", "runs"), [(1.0, 65), (0.0, 67), (5000.0, 1)])
def test_the_number_of_runs_between_two_events_depends_on_the_kernel(kernel_us: float, runs: int) -> None:
    torch = FakeTorch(kernel_us=kernel_us)
    CudaTimer(torch=torch).time_us(*one(Elementwise("Relu"), (4,)), 0, 1)
    assert len(torch.calls) == 1 + 1 + runs
    assert runs <= MOST_RUNS


def test_what_cannot_be_captured_is_called() -> None:
    torch = FakeTorch(captures=False)
    times = CudaTimer(torch=torch).time_us(*one(Elementwise("Relu"), (4,)), 0, 2)
    assert times == pytest.approx([80.0, 80.0])


def test_weights_take_turns_until_they_exceed_the_cache_four_times() -> None:
    build = Builder()
    graph = build.graph(build.gemm(build.input(1, 16), 64, bias=None))
    torch = FakeTorch()
    CudaTimer(torch=torch).time_us(graph, graph.nodes[0], 0, 1)
    operands = [arguments for _, arguments in torch.calls]
    assert len({id(activations) for activations, *_ in operands}) == 1
    assert len({id(weights) for _, weights, *_ in operands}) == 2  # of 2 KiB, and a cache of 1 KiB


@pytest.mark.parametrize(
    ("op", "layout"),
    [
        (Elementwise("Relu"), "channels_last"),
        (Pool2d("max", (2, 2)), "channels_last"),
        (MatMul(), "contiguous"),
        (OnnxOp("Softmax", attributes=(("axis", -1),)), "contiguous"),
    ],
)
def test_maps_have_channels_last_and_matrices_do_not(op: Op, layout: str) -> None:
    torch = FakeTorch()
    CudaTimer(torch=torch).time_us(*one(op, *((2, 4, 4, 4),) * (2 if isinstance(op, MatMul) else 1)), 0, 1)
    read = [tensor for _, arguments in torch.calls for tensor in arguments if isinstance(tensor, FakeTensor)]
    assert {tensor.layout for tensor in read} == {layout}


@pytest.mark.parametrize("operand", ["fp16", "fp32"])
def test_the_type_of_operands(operand: str) -> None:
    torch = FakeTorch()
    timer = CudaTimer(operand, torch=torch)
    timer.time_us(*one(Elementwise("Relu"), (4,)), 0, 1)
    assert torch.dtypes == {timer.dtype} == {{"fp16": "float16", "fp32": "float32"}[operand]}


def test_cuda_pads_an_asymmetric_input_outside_the_timed_kernel() -> None:
    torch = FakeTorch()
    graph, node = one(Conv2d((3, 3), (1, 1), (0, 1, 2, 3)), (1, 4, 8, 8), (4, 4, 3, 3))
    CudaTimer(torch=torch).time_us(graph, node, 0, 1)
    _, (x, _, bias, _, padding, _, _) = torch.calls[0]
    assert (x.shape, padding, bias) == ((1, 4, 10, 12), (0, 0), None)


@pytest.mark.parametrize(
    ("op", "shapes", "kernel"),
    [
        (Gemm(trans_b=True), ((1, 8), (4, 8)), "linear"),
        (Gemm(trans_a=True), ((8, 1), (8, 4)), "linear"),
        (Pool2d("max", (2, 2)), ((1, 2, 4, 4),), "max_pool2d"),
        (Pool2d("average", (2, 2)), ((1, 2, 4, 4),), "avg_pool2d"),
        (Elementwise("Add"), ((4,), (4,)), "add"),
        (Elementwise("Clip", (("max", 6.0),)), ((4,),), "clamp"),
        (Elementwise("Gelu"), ((4,),), "gelu"),
        (OnnxOp("Softmax", attributes=(("axis", 1),)), ((2, 4),), "softmax"),
        (OnnxOp("LayerNormalization", attributes=(("axis", -1),)), ((2, 4), (4,), (4,)), "layer_norm"),
    ],
)
def test_cuda_runs_the_op_of_the_same_meaning(op: Op, shapes: tuple[tuple[int, ...], ...], kernel: str) -> None:
    torch = FakeTorch()
    CudaTimer(torch=torch).time_us(*one(op, *shapes), 0, 1)
    assert {name for name, _ in torch.calls} == {kernel}
    if kernel == "linear":
        left, right = torch.calls[0][1]
        assert (left.shape, right.shape) == ((1, 8), (4, 8))


def test_cuda_leaves_out_what_it_does_not_know() -> None:
    timer = CudaTimer(torch=FakeTorch())
    assert timer.time_us(*one(OnnxOp("Unheard"), (4,)), 0, 1) is None
    assert timer.time_us(*one(Pool2d("max", (2, 2), pads=(0, 0, 1, 1)), (1, 2, 4, 4)), 0, 1) is None


def test_cuda_profile_of_a_model(toy: Graph) -> None:
    rows = profile_model(toy, "cuda", timer=CudaTimer(torch=FakeTorch()))
    assert [row.time_us for row in rows] == pytest.approx([50.0] * len(rows))
    assert {(row.machine, row.versions, row.dtype) for row in rows} == {
        ("Fake GPU", "torch 9.9, cuda 13.0, cudnn 99", "float16")
    }


def test_without_a_gpu_cuda_is_refused() -> None:
    with pytest.raises(OptionError, match="no CUDA device"):
        CudaTimer(torch=FakeTorch(available=False))
