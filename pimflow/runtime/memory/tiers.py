"""What a graph's values take of the memory tiers that a target states."""

from __future__ import annotations

from pimflow.runtime.memory.plan import MemoryPlan
from pimflow.targets.schema import GpuMemory


def gpu_bytes(plan: MemoryPlan) -> int:
    """What weights, and activations at their peak, take of the GPU's memory, in the model's element types."""
    return plan.arena_bytes + plan.weight_bytes


def gpu_memory_text(memory: GpuMemory, plan: MemoryPlan) -> str:
    """How much of the GPU's memory a plan takes, and by how much it passes it."""
    needed, usable = gpu_bytes(plan), memory.usable_bytes
    if needed <= usable:
        return f"{gigabytes(needed)} of {gigabytes(usable)} taken, weights and activations at their peak"
    return (
        f"DOES NOT FIT: weights and activations take {gigabytes(needed)} at their peak, the GPU has "
        f"{gigabytes(usable)} for them"
    )


def gigabytes(amount: int) -> str:
    """Bytes as text, in GB; small amounts in MB."""
    return f"{amount / 1e9:,.2f} GB" if amount >= 1e8 else f"{amount / 1e6:,.2f} MB"
