"""Memory: which movements are free, where every value lies in the arena, and how much that takes."""

from pimflow.runtime.memory.layout import dense_strides, element_bytes
from pimflow.runtime.memory.movement import Movement, annotate_movement, is_movement, moved_bytes, movement
from pimflow.runtime.memory.plan import ALIGNMENT, ArenaRegion, FilledBox, MemoryPlan, ValuePlace, plan_memory

__all__ = [
    "ALIGNMENT",
    "ArenaRegion",
    "FilledBox",
    "MemoryPlan",
    "Movement",
    "ValuePlace",
    "annotate_movement",
    "dense_strides",
    "element_bytes",
    "is_movement",
    "moved_bytes",
    "movement",
    "plan_memory",
]
