"""The basis of the GPU's times, and hence of every speedup."""

from __future__ import annotations

from pimflow.targets import Gpu, GpuSpec, Target

MEASURED_TARGET = "turing-pim"


def gpu_basis(target: Target, *, measured: bool = False) -> str:
    """The basis of a target's GPU, and which target has a measured one; "" for a machine without a GPU.

    Args:
        target: the machine.
        measured: whether times from a table of measured kernels take precedence over the model's.
    """
    gpu = next((unit for unit in target.units.values() if isinstance(unit, Gpu)), None)
    if gpu is None:
        return ""
    text = f"GPU {gpu.basis or f'of {target.name}, which does not say what it was fitted to'}"
    if measured:
        return f"{text}; profiled kernels as measured"
    if isinstance(gpu, GpuSpec) and "measured" not in gpu.basis:
        return f"{text}; measured GPU: --target {MEASURED_TARGET}"
    return text
