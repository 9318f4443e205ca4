"""Kernel times on an NVIDIA GPU through PyTorch: fp16, channels-last, CUDA events. A timer imports torch when created.

Times are of the device alone: there are `INNER` runs between two events, so each launch hides behind the previous run
if the kernel is longer than its launch. The table therefore holds kernel times, and fitting a target to it yields the
launch cost that remains visible.
"""

from __future__ import annotations

import importlib
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

INNER = 20

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
}

Run = Callable[[], object]


class CudaTimer:
    """A CUDA device through PyTorch.

    Args:
        torch: the module, or a stand-in for tests.

    Raises:
        OptionError: PyTorch is not installed, or sees no CUDA device.
    """

    dtype = "float16"

    def __init__(self, torch: Any = None) -> None:
        self._torch = torch if torch is not None else _import_torch()
        if not self._torch.cuda.is_available():
            raise OptionError("PyTorch sees no CUDA device", "profile with --device cpu")
        self._torch.backends.cudnn.benchmark = True  # the library's best algorithm, as a deployed model would use
        self.machine = str(self._torch.cuda.get_device_name(0))
        versions = f"torch {self._torch.__version__}, cuda {self._torch.version.cuda}"
        self.versions = f"{versions}, cudnn {self._torch.backends.cudnn.version()}"

    def time_us(self, graph: Graph, node: Node, warmup: int, repeats: int) -> Sequence[float] | None:
        """Times of the node's kernel by CUDA events; None for ops without a counterpart in `CUDA_KERNELS`."""
        with self._torch.inference_mode():
            run = self._runner(graph, node)
            if run is None:
                return None
            for _ in range(warmup):
                run()
            self._torch.cuda.synchronize()
            return [self._once(run) for _ in range(repeats)]

    def _once(self, run: Run) -> float:
        start = self._torch.cuda.Event(enable_timing=True)
        end = self._torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(INNER):
            run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / INNER  # elapsed_time is in milliseconds

    def _tensor(self, shape: Sequence[int]) -> Any:
        tensor = self._torch.randn(tuple(shape), device="cuda", dtype=self._torch.float16)
        return tensor.to(memory_format=self._torch.channels_last) if len(shape) == 4 else tensor

    def _runner(self, graph: Graph, node: Node) -> Run | None:
        shapes = [graph.value(name).shape for name in node.inputs if name]
        tensors = [self._tensor(shape) for shape in shapes if shape is not None]
        if len(tensors) != len(shapes):
            return None
        rule = CUDA_KERNELS.find(node.op)
        return None if rule is None else rule(self._torch, node.op, tensors)


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
    """Asymmetric padding is applied to the input beforehand, outside the timed region."""
    functional = torch.nn.functional
    top, left, bottom, right = op.pads
    x, padding = tensors[0], (top, left)
    if (top, left) != (bottom, right):
        x, padding = functional.pad(x, (left, right, top, bottom)), (0, 0)
    bias = tensors[2] if len(tensors) > 2 else None
    return lambda: functional.conv2d(x, tensors[1], bias, op.strides, padding, op.dilations, op.groups)


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
    if op.op_type != "Softmax":
        return None
    axis = next((value for key, value in op.attributes if key == "axis"), -1)
    return lambda: torch.softmax(tensors[0], axis)


@CUDA_KERNELS.register(Elementwise)
def _elementwise(torch: Any, op: Elementwise, tensors: Sequence[Any]) -> Run | None:
    if op.kind == "Clip":
        bounds = dict(op.attributes)
        return lambda: torch.clamp(tensors[0], bounds.get("min"), bounds.get("max"))
    if op.kind == "HardSwish":
        return lambda: torch.nn.functional.hardswish(tensors[0])
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
