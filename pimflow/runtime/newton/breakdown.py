"""What a layer's cycles are spent on: the COMP-bound limit, and what keeps the streams from it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pimflow.codegen import MatrixProblem
from pimflow.codegen.newton import lower
from pimflow.ir import Refusal
from pimflow.runtime.newton.cost import PimCost, time_classes
from pimflow.runtime.newton.profiles.base import TimingProfile
from pimflow.runtime.newton.timing.streams import StreamTimer


@dataclass(frozen=True, slots=True)
class CycleBreakdown:
    """Cycles of the slowest channel by cause; they add up to its cycles.

    Args:
        comp_bound: the least COMPs of the problem, spread evenly, back to back.
        idle: COMPs of the slowest channel beyond that: channels that have less to do.
        activation: waits for rows to open (and, in `strict`, to close).
        gwrite: waits for fills.
        refresh: waits for refresh.
        rest: READRES, turnarounds, the tail of the last result.
    """

    comp_bound: int
    idle: int
    activation: int
    gwrite: int
    refresh: int
    rest: int

    @property
    def parts(self) -> dict[str, int]:
        """Cycles by what the channel does or waits for: of a COMP that runs while a row opens, say, only the COMP."""
        return {
            "COMP": self.comp_bound + self.idle,
            "fill": self.gwrite,
            "activation": self.activation,
            "readout": self.rest,
            "refresh": self.refresh,
        }

    def as_json(self) -> dict[str, int]:
        """Under the causes' names."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def cycle_breakdown(problem: MatrixProblem, cost: PimCost, profile: TimingProfile) -> CycleBreakdown:
    """Times the streams again on machines that lack one cause of waiting after the other.

    Args:
        problem: the layer.
        cost: its cost under the mapping to explain.
        profile: the timing profile, of the machine, that the cost is of.
    """
    cycles = [cost.cycles]
    for machine in profile.without_waits():
        program = lower(problem, cost.mapping, machine)
        if isinstance(program, Refusal):
            raise ValueError(program.reason)
        timer = StreamTimer(profile.on(machine))
        cycles.append(max(timing.cycles for timing in time_classes(program, timer)))
    computing = max(channel.commands.comp for channel in cost.channels) * profile.comp_cycles
    return CycleBreakdown(
        comp_bound=cost.bound_cycles,
        idle=computing - cost.bound_cycles,
        activation=cycles[2] - cycles[3],
        gwrite=cycles[1] - cycles[2],
        refresh=cycles[0] - cycles[1],
        rest=cycles[3] - computing,
    )
