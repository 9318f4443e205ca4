"""What a layer's cycles are spent on: the COMP-bound limit, and what keeps the streams from it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache

from pimflow.codegen import PimProblem
from pimflow.codegen.newton import lower
from pimflow.ir import Refusal
from pimflow.runtime.newton.cost import PimCost, comp_cycles, time_classes
from pimflow.targets import PimSpec

_NEVER = 1 << 40


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

    def as_json(self) -> dict[str, int]:
        """Under the causes' names."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def cycle_breakdown(problem: PimProblem, cost: PimCost, pim: PimSpec, profile: str | None = None) -> CycleBreakdown:
    """Times the streams again on machines that lack one cause of waiting after the other.

    Args:
        problem: the layer.
        cost: its cost under the mapping to explain.
        pim: the machine.
        profile: timing profile that the cost is of; the machine's default if None.
    """
    name = (profile or pim.timing.default).lower()
    cycles = [cost.cycles]
    for machine in _machines(pim, name):
        program = lower(problem, cost.mapping, machine)
        if isinstance(program, Refusal):
            raise ValueError(program.reason)
        cycles.append(max(timing.cycles for timing in time_classes(program, name)))
    computing = max(channel.commands.comp for channel in cost.channels) * comp_cycles(pim, name)
    return CycleBreakdown(
        comp_bound=cost.bound_cycles,
        idle=computing - cost.bound_cycles,
        activation=cycles[2] - cycles[3],
        gwrite=cycles[1] - cycles[2],
        refresh=cycles[0] - cycles[1],
        rest=cycles[3] - computing,
    )


@lru_cache(maxsize=32)
def _machines(pim: PimSpec, profile: str) -> tuple[PimSpec, PimSpec, PimSpec]:
    """The machine without refresh; also without waits for fills; also without waits for rows."""
    if profile == "artifact":
        artifact = pim.timing.artifact
        steady = replace(artifact, refresh_interval=_NEVER)
        filled = replace(
            steady, gwrite_to_next_hidden=1, gwrite_to_next_exposed=1, gwrite_to_comp=1, readres_to_gwrite=1
        )
        opened = replace(filled, act_to_act=1, act_to_comp=1)
        timings = [replace(pim.timing, artifact=timing) for timing in (steady, filled, opened)]
    else:
        strict = pim.timing.strict
        calm = replace(strict, t_refi=_NEVER)
        quick = replace(calm, burst_bytes=_NEVER, t_rtw=1)
        ready = replace(quick, t_faw=1, t_rcd=1, t_rp=1, t_ras=1, t_rtp=1)
        timings = [replace(pim.timing, strict=timing) for timing in (calm, quick, ready)]
    steady_pim, filled_pim, opened_pim = (replace(pim, timing=timing) for timing in timings)
    return steady_pim, filled_pim, opened_pim
