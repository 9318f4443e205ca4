"""Memory planning: the place of each value in the arena, and the size of the arena."""

from pimflow.runtime.memory.plan import ALIGNMENT, ArenaRegion, FilledBox, MemoryPlan, ValuePlace, plan_memory

__all__ = ["ALIGNMENT", "ArenaRegion", "FilledBox", "MemoryPlan", "ValuePlace", "plan_memory"]
