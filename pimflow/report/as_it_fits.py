"""What a plan takes once its activations fit, beside what it takes with all of them kept."""

from __future__ import annotations

from pimflow.ir import Graph
from pimflow.records import dataclass
from pimflow.report.measures import Costs, Measure
from pimflow.report.tables import number, significant
from pimflow.runtime.memory import plan_memory
from pimflow.runtime.offload.fitting import made_to_fit, overflows
from pimflow.runtime.offload.spill import SpillWay

HEADER = ("as it fits (us)", "(mJ)")
"""Of the columns of a table, where not all plans that it shows keep their activations."""
FITTED = (
    "as it fits: activations that the GPU's memory does not hold leave it or are made again; all else is with all kept"
)
NO_ROOM = "DOES NOT FIT"


@dataclass(frozen=True)
class AsItFits:
    """What `compile` finds of one inference (`spill` in its `memory`); where all fit, or nothing is planned for what
    does not, what it takes with all activations kept.

    Args:
        time_us, energy_mj: of a run.
        fits: whether weights and activations fit into the GPU's memory then; true where the target does not say it.
    """

    time_us: float
    energy_mj: float
    fits: bool

    @classmethod
    def of(cls, graph: Graph, costs: Costs, way: SpillWay, kept: Measure) -> AsItFits:
        """Of a placed graph.

        Args:
            graph: placed.
            costs: the machine.
            way: what may become of activations.
            kept: what a run takes with all of them kept.
        """
        if costs.target.memory is None:
            return cls(kept.time_us, kept.energy_mj, True)
        serving = costs.serving(graph)
        memory = plan_memory(graph, serving.workspaces(graph))
        fitted = made_to_fit(graph, memory, serving, way)
        if fitted is None:
            return cls(kept.time_us, kept.energy_mj, not overflows(memory, serving))
        return cls(fitted.schedule.makespan_us, fitted.schedule.total_energy_mj, fitted.spill.fits)

    def differs(self, kept_us: float) -> bool:
        """Whether not all activations are kept, or not all fit."""
        return not self.fits or self.time_us != kept_us

    def figures(self) -> dict[str, float | bool]:
        """By their names in rows."""
        return {"spilled_us": self.time_us, "spilled_energy_mj": self.energy_mj, "fits": self.fits}

    def cells(self) -> tuple[str, str]:
        """In the columns of `HEADER`."""
        return (number(self.time_us) if self.fits else NO_ROOM, significant(self.energy_mj))
