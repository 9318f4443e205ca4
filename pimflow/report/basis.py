"""What the GPU's times stand on, over which every speedup is."""

from __future__ import annotations

from pimflow.targets import Gpu, GpuSpec, Target

MEASURED_TARGET = "turing-pim"


def gpu_basis(target: Target, *, measured: bool = False) -> str:
    """What a target's GPU was fitted to, and where a measured one is to be had; "" for a machine without GPU.

    Args:
        target: the machine.
        measured: whether times of a table of measured kernels go before the model's.
    """
    gpu = next((unit for unit in target.units.values() if isinstance(unit, Gpu)), None)
    if gpu is None:
        return ""
    text = f"GPU {gpu.basis or f'of {target.name}, which does not say what it was fitted to'}"
    if measured:
        return f"{text}; kernels that were profiled as measured"
    if isinstance(gpu, GpuSpec) and "measured" not in gpu.basis:
        return f"{text}; measured GPU: --target {MEASURED_TARGET}"
    return text
