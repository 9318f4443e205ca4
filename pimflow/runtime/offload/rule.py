"""SSDTrain's adaptive rule, the published baseline: Wu et al., DAC 2025 (arXiv 2408.10013).

Going through the forward pass, everything is offloaded up to the first tensor that the drives are too slow for: the
bytes offloaded before it plus twice its size, over the time from the start of the step until its gradient is due (a
backward pass is assumed to take twice the forward's time), exceed the write rate. From there on everything is kept.
Tensors of fewer than 8 Mi elements are kept. When a module begins in the backward pass, the tensors that the module
before it in the network saved are requested; of several modules after it, as where the network branches, the one whose
backward pass begins last counts.
"""

from __future__ import annotations

from pimflow.runtime.offload.channel import Channel
from pimflow.runtime.offload.run import ActivationPlan
from pimflow.runtime.offload.trace import Trace

MIN_ELEMENTS = 8 << 20
"""Tensors with fewer elements are kept."""


def adaptive_rule(
    trace: Trace, channel: Channel, modules: tuple[int, ...] = (), min_elements: int = MIN_ELEMENTS
) -> ActivationPlan:
    """The plan of the rule for a step.

    Args:
        trace: the step.
        channel: the channel to the SSDs; the rule uses its write rate.
        modules: kernels of the forward pass at which modules begin; if empty, each saved buffer is its own module.
        min_elements: tensors with fewer elements are kept.
    """
    offloaded: list[int] = []
    before_bytes, before_us, reached = 0, 0.0, 0
    for buffer in trace.saved:
        last_write = trace.last_write(buffer)
        before_us += sum(kernel.time_us for kernel in trace.kernels[reached:last_write])
        reached = max(reached, last_write)
        size = trace.buffers[buffer].bytes
        if trace.buffers[buffer].elements < min_elements:
            continue
        left_us = 3 * trace.forward_us - 2 * before_us
        if before_bytes + 2 * size > channel.write_bytes_per_us * left_us:
            break
        offloaded.append(buffer)
        before_bytes += size
    return ActivationPlan(_one_module_ahead(trace, offloaded, modules))


def _one_module_ahead(trace: Trace, offloaded: list[int], modules: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """When each buffer is requested: when the last of the modules after its own to begin its backward pass before the
    buffer is read begins it."""
    starts = sorted(modules) or sorted({trace.last_write(buffer) for buffer in trace.saved})

    def module(buffer: int) -> int:
        return sum(start <= trace.last_write(buffer) for start in starts)

    begins: dict[int, int] = {}  # where the backward pass of each module begins
    for buffer in trace.saved:
        begins[module(buffer)] = min(
            trace.first_backward_use(buffer), begins.get(module(buffer), trace.first_backward_use(buffer))
        )
    loads = []
    for buffer in offloaded:
        later = [begin for other, begin in begins.items() if other > module(buffer)]
        requested = max((begin for begin in later if begin <= trace.first_backward_use(buffer)), default=trace.turn)
        loads.append((buffer, requested))
    return tuple(sorted(loads, key=lambda load: (load[1], trace.first_backward_use(load[0]), load[0])))
