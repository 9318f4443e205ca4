"""The breakdown of a layer's cycles: the COMP-bound limit, and what keeps the streams from reaching it."""

from __future__ import annotations

from dataclasses import fields

from pimflow.records import dataclass
from pimflow.runtime.newton.cost import PimCost


@dataclass(frozen=True, slots=True)
class CycleBreakdown:
    """Cycles of the slowest channel by part (see `CycleParts`); they add up to its cycles.

    Args:
        comp_bound: COMPs up to the limit: the fewest that the problem allows, spread evenly, back to back.
        idle: COMPs of the slowest channel beyond that limit, while other channels have less to do.
        fill: GWRITE, and waits for it.
        activation: opening rows (and, in `strict`, closing them).
        readout: READRES, turnarounds, the tail of the last result.
        refresh: REF, and reopening rows.
    """

    comp_bound: int
    idle: int
    fill: int
    activation: int
    readout: int
    refresh: int

    @property
    def parts(self) -> dict[str, int]:
        """The cycles by part, with all COMPs as one part, under the names used for times by part."""
        return {
            "COMP": self.comp_bound + self.idle,
            "fill": self.fill,
            "activation": self.activation,
            "readout": self.readout,
            "refresh": self.refresh,
        }

    def as_json(self) -> dict[str, int]:
        """The cycles by name of part."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def cycle_breakdown(cost: PimCost) -> CycleBreakdown:
    """The breakdown of a layer's slowest channel, the first of equals."""
    parts = max(cost.channels, key=lambda channel: channel.cycles).parts
    bound = min(cost.bound_cycles, parts.comp)
    return CycleBreakdown(bound, parts.comp - bound, parts.fill, parts.activation, parts.readout, parts.refresh)
