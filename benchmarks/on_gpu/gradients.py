"""Gradients of convolutions of random shapes on a GPU, as a training step computes them."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
from shapes import random_kernels

from pimflow.ir import Conv2d
from pimflow.runtime.gpu.profiling_cuda import CudaTimer


def measured_gradients(seconds: float) -> list[dict[str, Any]]:
    """As many convolutions as there is time for: sizes, and the times of both gradients and of the forward pass."""
    timer, begin = CudaTimer("fp16"), time.perf_counter()
    found: list[dict[str, Any]] = []
    for graph in random_kernels("fp16"):
        if time.perf_counter() - begin > seconds:
            return found
        node = graph.nodes[0]
        if isinstance(node.op, Conv2d):
            x, weights = (graph.value(name).shape or () for name in node.inputs[:2])
            y = graph.value(node.output).shape or ()
            found.append(_measured(timer, node.op, (x, weights, y)))
    return found


def _measured(timer: CudaTimer, op: Conv2d, shapes: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
    x, weights, y = (
        torch.randn(shape, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last) for shape in shapes
    )
    fixed = (op.strides, op.pads[:2], op.dilations, False, (0, 0), op.groups)

    def both(of_input: bool, of_weights: bool) -> float:
        mask = (of_input, of_weights, False)
        backward = torch.ops.aten.convolution_backward
        return median(timer.times_us([lambda: backward(y, x, weights, None, *fixed, mask)], 2, 3))

    def forward() -> Any:
        return torch.nn.functional.conv2d(x, weights, None, *fixed[:3], op.groups)

    return {
        "x": list(shapes[0]),
        "weights": list(shapes[1]),
        "y": list(shapes[2]),
        "strides": list(op.strides),
        "pads": list(op.pads),
        "groups": op.groups,
        "weights_us": both(False, True),
        "input_us": both(True, False),
        "forward_us": median(timer.times_us([forward], 2, 3)),
    }
