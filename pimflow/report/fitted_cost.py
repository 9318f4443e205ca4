"""The cost of a plan after its activations are made to fit, compared with keeping all of them."""

from __future__ import annotations

from pimflow.ir import Graph
from pimflow.records import dataclass
from pimflow.report.measures import Costs, Measure
from pimflow.report.tables import number, significant
from pimflow.runtime.memory import plan_memory
from pimflow.runtime.offload.fitting import fit_activations, overflows
from pimflow.runtime.offload.spill import SpillWay

HEADER = ("as it fits (us)", "(mJ)")
"""Headings of columns for tables in which some plan does not keep all its activations."""
FITTED = (
    "as it fits: activations that exceed the GPU's memory are offloaded or recomputed; all other figures keep them all"
)
NO_ROOM = "DOES NOT FIT"


@dataclass(frozen=True)
class FittedCost:
    """The cost of one inference as `compile` finds it (`spill` in its `memory`). If all activations fit, or nothing is
    planned for those that do not, it is the cost with all of them kept.

    Args:
        time_us, energy_mj: of a run.
        fits: whether weights and activations then fit into the GPU's memory; True if the target does not say.
    """

    time_us: float
    energy_mj: float
    fits: bool

    @classmethod
    def of(cls, graph: Graph, costs: Costs, way: SpillWay, kept: Measure) -> FittedCost:
        """The cost of a placed graph.

        Args:
            graph: placed.
            costs: the machine.
            way: how activations may be handled.
            kept: the cost of a run with all of them kept.
        """
        if costs.target.memory is None:
            return cls(kept.time_us, kept.energy_mj, True)
        serving = costs.serving(graph)
        memory = plan_memory(graph, serving.workspaces(graph))
        fitted = fit_activations(graph, memory, serving, way)
        if fitted is None:
            return cls(kept.time_us, kept.energy_mj, not overflows(memory, serving))
        return cls(fitted.schedule.makespan_us, fitted.schedule.total_energy_mj, fitted.spill.fits)

    def differs(self, kept_us: float) -> bool:
        """Whether not all activations are kept, or not all fit."""
        return not self.fits or self.time_us != kept_us

    def figures(self) -> dict[str, float | bool]:
        """The figures by their names in rows."""
        return {"spilled_us": self.time_us, "spilled_energy_mj": self.energy_mj, "fits": self.fits}

    def cells(self) -> tuple[str, str]:
        """The cells for the columns of `HEADER`."""
        return (number(self.time_us) if self.fits else NO_ROOM, significant(self.energy_mj))
