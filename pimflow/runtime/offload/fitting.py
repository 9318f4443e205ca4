"""Checks whether a placed graph fits into its GPU's memory, and plans its activations if it does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from pimflow.ir import Graph
from pimflow.ir.analysis.host_tables import fetches
from pimflow.records import NamedTuple
from pimflow.runtime.memory.plan import MemoryPlan
from pimflow.runtime.memory.tiers import gpu_bytes
from pimflow.runtime.spending import SpendingCosts, schedule

if TYPE_CHECKING:  # imported where something does not fit
    from pimflow.runtime.offload.schedule import SpilledSchedule
    from pimflow.runtime.offload.spill import Spill, SpillWay


class MemoryCosts(SpendingCosts, Protocol):
    """A cost model for a placed graph."""

    def workspaces(self, graph: Graph) -> Mapping[str, int]:
        """Workspace bytes of nodes, by name."""

    def static_energy_mj(self, makespan_us: float) -> float:
        """The static energy of the board and its units over a run."""


class Fitted(NamedTuple):
    """The plan for activations that do not fit, and the resulting schedule."""

    spill: Spill
    schedule: SpilledSchedule


def overflows(memory: MemoryPlan, costs: MemoryCosts) -> bool:
    """Whether weights and activations at their peak exceed the GPU's memory; false if the target does not give it."""
    tiers = costs.target.memory
    return tiers is not None and gpu_bytes(memory) > tiers.gpu.usable_bytes


def fit_activations(graph: Graph, memory: MemoryPlan, costs: MemoryCosts, way: SpillWay) -> Fitted | None:
    """The plan for the activations of one inference; None if they fit or cannot be planned.

    Args:
        graph: a placed graph.
        memory: its memory plan.
        costs: its cost model.
        way: the measures allowed.
    """
    tiers = costs.target.memory
    if tiers is None or not overflows(memory, costs) or way == "never":
        return None
    if memory.outside or any(fetches(graph)):
        return None
    from pimflow.runtime.offload.schedule import spilled_schedule
    from pimflow.runtime.offload.spill import channel_of, plan_spill

    kept = schedule(graph, costs)
    room = tiers.gpu.usable_bytes - memory.weight_bytes
    spill = plan_spill(graph, memory, kept.timeline, room, channel_of(costs.target), way)
    static_mj = costs.static_energy_mj(spill.found.run.time_us)
    return Fitted(spill, spilled_schedule(spill, kept, costs.target, static_mj))
