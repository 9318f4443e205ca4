"""Memory: where every value is in the arena, and how much that takes."""

from pimflow.runtime.memory.plan import ALIGNMENT, ArenaRegion, FilledBox, MemoryPlan, ValuePlace, plan_memory

__all__ = ["ALIGNMENT", "ArenaRegion", "FilledBox", "MemoryPlan", "ValuePlace", "plan_memory"]
