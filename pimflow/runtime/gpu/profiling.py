"""Times a model's kernels on this machine: ONNX Runtime on the CPU, or PyTorch on a CUDA device."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import onnxruntime

from pimflow.errors import OptionError, choice
from pimflow.ir import Graph, Node
from pimflow.ir.analysis.content import content_of
from pimflow.onnxio.session import GraphSession
from pimflow.runtime.execute.ort import random_inputs, single_node_graph
from pimflow.runtime.gpu.measured import MeasuredRow, kernel_key
from pimflow.runtime.gpu.work import node_work

DEVICES = ("cpu", "cuda")
OPERANDS = ("fp16", "fp32")
"""Types of operands that a CUDA device can be timed with."""
WARMUP = 3
REPEATS = 11


class KernelTimer(Protocol):
    """A device that runs and times single nodes."""

    machine: str
    versions: str
    dtype: str

    def time_us(self, graph: Graph, node: Node, warmup: int, repeats: int) -> Sequence[float] | None:
        """Times of `repeats` runs of one node after `warmup` untimed ones, in microseconds; None if it cannot run."""


def profile_model(
    graph: Graph,
    device: str,
    *,
    gpu_operand: str | None = None,
    warmup: int = WARMUP,
    repeats: int = REPEATS,
    timer: KernelTimer | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[MeasuredRow]:
    """Times each distinct kernel of a model; its row has the median of `repeats` runs.

    Nodes that are views or are fused into another node's kernel (`fused_into`) have no kernel.

    Args:
        graph: the model.
        device: "cpu" or "cuda".
        gpu_operand: the type of operands on a CUDA device, "fp16" (the default) or "fp32".
        warmup: number of untimed runs before the timed ones.
        repeats: number of timed runs.
        timer: runs and times the nodes, instead of the device's own timer.
        progress: called with (kernels done, total kernels).

    Raises:
        OptionError: the device does not exist, or PyTorch with CUDA is not available; a count is not positive; or
            `gpu_operand` is not such a type, or given for the CPU.
    """
    device = choice("device", device, DEVICES)
    if gpu_operand is not None:
        _check_operand(gpu_operand, device)
    if warmup < 0 or repeats < 1:
        raise OptionError(f"cannot measure {repeats} runs after {warmup}", "give at least one run")
    timer = timer or _timer(device, gpu_operand)
    kernels = _kernels(graph)
    rows = []
    for index, node in enumerate(kernels):
        times = timer.time_us(graph, node, warmup, repeats)
        if times is not None:
            rows.append(_row(graph, node, statistics.median(times), timer))
        if progress is not None:
            progress(index + 1, len(kernels))
    return rows


def _check_operand(gpu_operand: str, device: str) -> None:
    choice("gpu_operand", gpu_operand, OPERANDS)
    if device == "cpu":
        raise OptionError("on the CPU, operands have the model's types", "leave gpu_operand out, or choose cuda")


def _timer(device: str, gpu_operand: str | None) -> KernelTimer:
    if device == "cpu":
        return CpuTimer()
    from pimflow.runtime.gpu.profiling_cuda import CudaTimer  # imports torch, which takes seconds and may be missing

    return CudaTimer(gpu_operand or "fp16")


def _kernels(graph: Graph) -> list[Node]:
    """One node for each distinct kernel, in topological order."""
    found: dict[object, Node] = {}
    for node in graph.nodes:
        inputs, outputs = graph.in_values(node), graph.out_values(node)
        if node.placement.fused_into or node_work(graph, node, 4) is None:
            continue
        if any(value is not None and value.shape is None for value in (*inputs, *outputs)):
            continue
        shapes = [None if value is None else value.shape for value in inputs]
        found.setdefault(kernel_key(node.op, shapes, content_of(graph, node)), node)
    return list(found.values())


def _row(graph: Graph, node: Node, time_us: float, timer: KernelTimer) -> MeasuredRow:
    return MeasuredRow(
        op=node.op,
        inputs=tuple(None if value is None else value.shape for value in graph.in_values(node)),
        outputs=tuple(value.shape or () for value in graph.out_values(node)),
        dtype=timer.dtype,
        time_us=max(time_us, 1e-3),
        machine=timer.machine,
        versions=timer.versions,
        content=content_of(graph, node),
    )


class CpuTimer:
    """ONNX Runtime on the CPU, with one session per node, and operands in the model's types.

    Args:
        threads: number of threads per kernel; by default one per core.
    """

    dtype = "float32"

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or os.cpu_count() or 1
        self.machine = f"{platform.processor() or platform.machine()} x{self._threads}"
        self.versions = f"onnxruntime {onnxruntime.__version__}"

    def time_us(self, graph: Graph, node: Node, warmup: int, repeats: int) -> Sequence[float]:
        """Wall-clock times of single-node sessions."""
        alone = single_node_graph(graph, node)
        session = GraphSession(alone, threads=self._threads)
        feeds = random_inputs(alone, seed=0)
        times = []
        for _ in range(warmup + repeats):
            start = time.perf_counter()
            session.run(feeds)
            times.append((time.perf_counter() - start) * 1e6)
        return times[warmup:]
