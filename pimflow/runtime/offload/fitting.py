"""Whether a placed graph fits into its GPU's memory, and what becomes of its activations where it does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pimflow.ir import Graph
from pimflow.ir.analysis.host_tables import fetches
from pimflow.runtime.memory.plan import MemoryPlan
from pimflow.runtime.memory.tiers import gpu_bytes
from pimflow.runtime.spending import SpendingCosts, schedule

if TYPE_CHECKING:  # imported where something does not fit
    from pimflow.runtime.offload.schedule import SpilledSchedule
    from pimflow.runtime.offload.spill import Spill, SpillWay


class MemoryCosts(SpendingCosts, Protocol):
    """A cost model that a placed graph runs under."""

    def workspaces(self, graph: Graph) -> Mapping[str, int]:
        """Bytes that nodes need beside their operands and results, by name."""

    def static_energy_mj(self, makespan_us: float) -> float:
        """What the board and its units draw over a run, whatever they do."""


class Fitted(NamedTuple):
    """What becomes of activations that do not fit, and when everything runs then."""

    spill: Spill
    schedule: SpilledSchedule


def overflows(memory: MemoryPlan, costs: MemoryCosts) -> bool:
    """Whether weights, and activations at their peak, take more than the GPU's memory has, where the target says it."""
    tiers = costs.target.memory
    return tiers is not None and gpu_bytes(memory) > tiers.gpu.usable_bytes


def made_to_fit(graph: Graph, memory: MemoryPlan, costs: MemoryCosts, way: SpillWay) -> Fitted | None:
    """What becomes of the activations of one inference; None where all fit, or none of this is planned.

    Args:
        graph: placed.
        memory: its memory plan.
        costs: the cost model that it runs under.
        way: what may be done.
    """
    tiers = costs.target.memory
    if tiers is None or not overflows(memory, costs) or way == "never":
        return None
    if memory.outside or any(fetches(graph)):
        return None
    from pimflow.runtime.offload.schedule import spilled_schedule
    from pimflow.runtime.offload.spill import channel_of, spilled

    kept = schedule(graph, costs)
    room = tiers.gpu.usable_bytes - memory.weight_bytes
    spill = spilled(graph, memory, kept.timeline, room, channel_of(costs.target), way)
    static_mj = costs.static_energy_mj(spill.found.run.time_us)
    return Fitted(spill, spilled_schedule(spill, kept, costs.target, static_mj))
