"""Kernel times on an NVIDIA GPU by PyTorch and CUDA events, maps with channels last. Torch is imported with a timer.

Times are of the device alone: the runs between two events are replays of a CUDA graph, which prepares launches
beforehand, as a deployed model would. Weights are copied so often that each run reads others than the one before, as
long as together they do not exceed the second-level cache several times: a model's layers find their weights in memory
and their activations in the cache. The remaining cost of a launch is part of the table, and a fit finds it.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pimflow.errors import OptionError
from pimflow.ir import (
    BatchNorm,
    Concat,
    Conv2d,
    EdgeSoftmax,
    Elementwise,
    GatherPairs,
    GatherRows,
    Gemm,
    GlobalPool,
    Graph,
    MatMul,
    Node,
    OnnxOp,
    Op,
    OpRules,
    Pad,
    Pool2d,
    Reshape,
    Sddmm,
    SegmentReduce,
    Slice,
    Spmm,
    Transpose,
    TypedLinear,
    TypedSpmm,
)

_DTYPES = {"fp16": "float16", "fp32": "float32"}  # names in torch and in tables

SPAN_US = 2000.0
"""The time between two events that is aimed at: long enough for their resolution of half a microsecond."""
MOST_RUNS = 200
"""Runs between two events, at most."""
_CACHE_BYTES = 1 << 26  # assumed where PyTorch, in older versions, does not state it
_CACHES = 4  # weights in turn exceed the second-level cache so many times

_ELEMENTWISE: Mapping[str, str] = {  # ONNX op_type to the equivalent function in torch
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Neg": "neg",
    "Abs": "abs",
    "Erf": "erf",
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Div": "div",
    "Pow": "pow",
    "Reciprocal": "reciprocal",
}

Run = Callable[[], object]


class CudaTimer:
    """A CUDA device through PyTorch.

    Args:
        operand: the type of operands, "fp16" or "fp32".
        torch: the module, or a stand-in for tests.

    Raises:
        OptionError: PyTorch is not installed, or sees no CUDA device.
    """

    def __init__(self, operand: str = "fp16", torch: Any = None) -> None:
        self._torch = torch if torch is not None else _import_torch()
        if not self._torch.cuda.is_available():
            raise OptionError("PyTorch sees no CUDA device", "profile with --device cpu")
        self.dtype = _DTYPES[operand]
        self._torch.backends.cudnn.benchmark = True  # the library's best algorithm, as a deployed model would use
        properties = self._torch.cuda.get_device_properties(0)
        self._cache_bytes = int(getattr(properties, "L2_cache_size", _CACHE_BYTES))
        self.machine = str(self._torch.cuda.get_device_name(0))
        versions = f"torch {self._torch.__version__}, cuda {self._torch.version.cuda}"
        self.versions = f"{versions}, cudnn {self._torch.backends.cudnn.version()}"

    def time_us(self, graph: Graph, node: Node, warmup: int, repeats: int) -> Sequence[float] | None:
        """Times of the node's kernel by CUDA events; None for ops without a counterpart in `CUDA_KERNELS`."""
        with self._torch.inference_mode():
            runs = self._runs(graph, node)
            if not runs:
                return None
            return self.times_us(runs, warmup, repeats)

    def times_us(self, runs: Sequence[Run], warmup: int, repeats: int) -> list[float]:
        """Times of one of the runs, which take turns, each over many of them."""
        for turn in range(max(warmup, 1)):  # the first run chooses the kernel
            runs[turn % len(runs)]()
        self._torch.cuda.synchronize()
        count = self._count(runs[0])
        replay = self._replay([runs[turn % len(runs)] for turn in range(count)])
        replay()
        return [self._elapsed_us(replay) / count for _ in range(repeats)]

    def _elapsed_us(self, run: Run) -> float:
        start = self._torch.cuda.Event(enable_timing=True)
        end = self._torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3  # elapsed_time is in milliseconds

    def _count(self, run: Run) -> int:
        """How many runs take about `SPAN_US`."""
        return max(1, min(MOST_RUNS, math.ceil(SPAN_US / max(self._elapsed_us(run), 1e-3))))

    def _replay(self, runs: Sequence[Run]) -> Run:
        """Runs as a CUDA graph; one by one if the library does not allow a kernel to be captured."""
        captured = self._torch.cuda.CUDAGraph()
        try:
            with self._torch.cuda.graph(captured):
                for run in runs:
                    run()
        except RuntimeError:
            return lambda: [run() for run in runs]
        replay: Run = captured.replay
        return replay

    def _runs(self, graph: Graph, node: Node) -> list[Run]:
        """Calls of the node's kernel that differ in their weights; none if it has no counterpart."""
        rule = CUDA_KERNELS.find(node.op)
        shapes = [graph.value(name).shape for name in node.inputs if name]
        if rule is None or None in shapes:
            return []
        fixed = [name in graph.constants for name in node.inputs if name]
        layout = _layout(self._torch, node.op)
        first = [self._tensor(shape, layout) for shape in shapes if shape is not None]
        size = sum(tensor.nbytes for tensor, is_fixed in zip(first, fixed, strict=True) if is_fixed)
        copies = min(MOST_RUNS, math.ceil(_CACHES * self._cache_bytes / size)) if size else 1
        runs: list[Run] = []
        for _ in range(copies):
            tensors = [
                self._tensor(tensor.shape, layout) if is_fixed and runs else tensor
                for tensor, is_fixed in zip(first, fixed, strict=True)
            ]
            run = rule(self._torch, node.op, tensors)
            if run is None:
                return []
            runs.append(run)
        return runs

    def _tensor(self, shape: Sequence[int], layout: Any) -> Any:
        tensor = self._torch.randn(tuple(shape), device="cuda", dtype=getattr(self._torch, self.dtype))
        return tensor.to(memory_format=layout) if len(shape) == 4 else tensor


def _layout(torch: Any, op: Op) -> Any:
    """The order of elements of an op's operands in four dimensions: channels last for maps, plain for matrices."""
    is_matrix = op.is_matrix_product or isinstance(op, (OnnxOp, Transpose))
    return torch.contiguous_format if is_matrix else torch.channels_last


CUDA_KERNELS: OpRules[Callable[[Any, Any, Sequence[Any]], Run | None]] = OpRules("kernels on CUDA")
"""The kernels that time ops: from torch, the op and its operands to a call; None if torch has no kernel."""

CUDA_KERNELS.leave_out("a copy: its time follows from its bytes", Slice, Pad, Concat)
CUDA_KERNELS.leave_out("a view: nothing runs", Reshape)
CUDA_KERNELS.leave_out(
    "its time depends on a graph, which random operands do not have",
    *(Spmm, SegmentReduce, Sddmm, EdgeSoftmax, GatherPairs, GatherRows, TypedLinear, TypedSpmm),
)


@CUDA_KERNELS.register(Conv2d)
def _convolution(torch: Any, op: Conv2d, tensors: Sequence[Any]) -> Run:
    """Asymmetric padding is applied to the input beforehand, outside the timed region.

    A bias is left out, as the keys of tables do: compilers fuse it, whereas torch's convolution adds it in a kernel of
    its own.
    """
    functional = torch.nn.functional
    top, left, bottom, right = op.pads
    x, padding = tensors[0], (top, left)
    if (top, left) != (bottom, right):
        x, padding = functional.pad(x, (left, right, top, bottom)), (0, 0)
    return lambda: functional.conv2d(x, tensors[1], None, op.strides, padding, op.dilations, op.groups)


@CUDA_KERNELS.register(Gemm)
def _gemm(torch: Any, op: Gemm, tensors: Sequence[Any]) -> Run:
    left = tensors[0].t() if op.trans_a else tensors[0]
    right = tensors[1] if op.trans_b else tensors[1].t()
    return lambda: torch.nn.functional.linear(left, right, *tensors[2:3])


@CUDA_KERNELS.register(MatMul)
def _matmul(torch: Any, op: MatMul, tensors: Sequence[Any]) -> Run:
    return lambda: torch.matmul(tensors[0], tensors[1])


@CUDA_KERNELS.register(Pool2d)
def _pool(torch: Any, op: Pool2d, tensors: Sequence[Any]) -> Run | None:
    functional, x = torch.nn.functional, tensors[0]
    top, left, bottom, right = op.pads
    if (top, left) != (bottom, right):
        return None
    if op.kind == "max":
        return lambda: functional.max_pool2d(
            x, op.kernel, op.strides, (top, left), op.dilations, ceil_mode=op.ceil_mode
        )
    return lambda: functional.avg_pool2d(x, op.kernel, op.strides, (top, left), op.ceil_mode, op.count_include_pad)


@CUDA_KERNELS.register(GlobalPool)
def _global_pool(torch: Any, op: GlobalPool, tensors: Sequence[Any]) -> Run:
    functional = torch.nn.functional
    pool = functional.adaptive_avg_pool2d if op.kind == "average" else functional.adaptive_max_pool2d
    return lambda: pool(tensors[0], 1)


@CUDA_KERNELS.register(BatchNorm)
def _batch_norm(torch: Any, op: BatchNorm, tensors: Sequence[Any]) -> Run:
    x, scale, bias, mean, variance = tensors
    return lambda: torch.nn.functional.batch_norm(x, mean, variance.abs(), scale, bias, eps=op.epsilon)


@CUDA_KERNELS.register(Transpose)
def _transpose(torch: Any, op: Transpose, tensors: Sequence[Any]) -> Run:
    return lambda: tensors[0].permute(op.perm).contiguous()


@CUDA_KERNELS.register(OnnxOp)
def _other(torch: Any, op: OnnxOp, tensors: Sequence[Any]) -> Run | None:
    functional, attributes, x = torch.nn.functional, dict(op.attributes), tensors[0]
    axis: Any = attributes.get("axis", -1)
    if op.op_type == "Softmax":
        return lambda: torch.softmax(x, axis)
    if op.op_type == "LayerNormalization":
        normalized = tuple(x.shape[axis:])
        return lambda: functional.layer_norm(x, normalized, *tensors[1:3])
    return None


@CUDA_KERNELS.register(Elementwise)
def _elementwise(torch: Any, op: Elementwise, tensors: Sequence[Any]) -> Run | None:
    if op.kind == "Clip":
        bounds = dict(op.attributes)
        return lambda: torch.clamp(tensors[0], bounds.get("min"), bounds.get("max"))
    if op.kind == "HardSwish":
        return lambda: torch.nn.functional.hardswish(tensors[0])
    if op.kind == "Gelu":
        approximate = str(dict(op.attributes).get("approximate", "none"))
        return lambda: torch.nn.functional.gelu(tensors[0], approximate=approximate)
    name = _ELEMENTWISE.get(op.kind)
    if name is None:
        return None
    function = getattr(torch, name)
    return lambda: function(*tensors)


def _import_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise OptionError("PyTorch is not installed", "install torch with CUDA, or profile with --device cpu") from None
