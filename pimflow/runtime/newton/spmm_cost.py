"""The cost of an aggregation on PIM: estimates from group counts, then exact cycles of the best mapping."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pimflow.codegen.newton.spmm import (
    Packing,
    SpmmMapping,
    SpmmProblem,
    SpmmProgram,
    lower_spmm,
    packing_refusal,
    roles,
    shares,
)
from pimflow.ir import Refusal
from pimflow.records import dataclass
from pimflow.runtime.newton.cost import StreamsCost, channel_totals
from pimflow.runtime.newton.energy import EnergyBreakdown
from pimflow.runtime.newton.profiles.base import TimingProfile
from pimflow.runtime.newton.timing.result import CycleParts, StreamTiming
from pimflow.runtime.newton.timing.streams import StreamTimer


@dataclass(frozen=True)
class SpmmCost(StreamsCost):
    """The cost of an aggregation, including writing the features into the banks but not adding up partial results,
    which the host does.

    Args:
        mapping: how the work is divided.
        units: number of rows of partial results.
        is_partial: whether any destination has several of these rows.
    """

    mapping: SpmmMapping
    units: int
    is_partial: bool

    @property
    def parts(self) -> CycleParts:
        """The cycles of the slowest channel by part."""
        return max(self.channels, key=lambda channel: channel.cycles).parts


def mappings(packing: Packing, problem: SpmmProblem, policy: str, profile: TimingProfile) -> Iterator[SpmmMapping]:
    """The mappings that a policy tries: early and plain fills, with the number of groups that closed forms rate best.

    Numbers of groups whose programs would be too long are tried only if all are. "newton+" has one buffer, plain fills,
    and no hidden GWRITE.
    """
    pim = profile.pim
    if policy == "newton+":
        yield SpmmMapping(1, False, "exposed")
        return
    numbers = [number for number in range(1, pim.buffers + 1) if pim.channels % number == 0]
    short = [number for number in numbers if packing_refusal(problem, packing, number, pim) is None]
    best = min(short or numbers, key=lambda number: _slowest(packing, problem, number, profile))
    yield SpmmMapping(best, True, pim.gwrite_latency)
    yield SpmmMapping(best, False, pim.gwrite_latency)


def _slowest(packing: Packing, problem: SpmmProblem, number: int, profile: TimingProfile) -> float:
    """Estimated cycles of the slowest group: its busiest channel by closed forms, and writing its features."""
    pim, costs = profile.pim, profile.visit_costs()
    parts = roles(problem.features, SpmmMapping(number, False, pim.gwrite_latency), pim)
    lanes, tiles = parts[0].lanes, max(role.tiles for role in parts)
    per_fill = np.bincount(packing.fill[packing.unit], minlength=packing.fills)
    units = np.bincount(packing.fill, minlength=packing.fills)
    fills = costs.fill + costs.fill_per_slot * np.minimum(per_fill, packing.columns) + costs.plain
    work = (per_fill * costs.comp + units * costs.read) / lanes + fills
    block_bytes = packing.columns * pim.multipliers * pim.element_bytes * pim.banks
    return max(
        tiles * float(work[first:stop].sum())
        + profile.placement_cycles(tiles * block_bytes * len(set(packing.block[first:stop].tolist())))
        for first, stop in shares(packing, number)
    )


def fastest_program(
    problem: SpmmProblem, packing: Packing, policy: str, timer: StreamTimer
) -> tuple[SpmmProgram, SpmmCost] | Refusal:
    """The fastest program that a policy tries, by exact timing, and its cost; or why there is none."""
    best: tuple[SpmmProgram, SpmmCost] | None = None
    for mapping in mappings(packing, problem, policy, timer.profile):
        program = lower_spmm(problem, packing, mapping, timer.profile.pim)
        if isinstance(program, Refusal):
            return program
        cost = spmm_cost(program, packing, timer)
        if best is None or cost.time_us < best[1].time_us:
            best = program, cost
    assert best is not None
    return best


def spmm_cost(program: SpmmProgram, packing: Packing, timer: StreamTimer) -> SpmmCost:
    """The cost of a program, by exact timing. Rows that a refresh closed are reopened."""
    profile, pim = timer.profile, program.pim
    total = channel_totals([entry.channels for entry in program.classes], _timings(program, timer), profile)
    width = pim.multipliers * pim.element_bytes * pim.banks
    busy = [channel for group in program.channel_groups for channel in group]
    stored = [program.slots_written(channel) * width for channel in busy]
    dram_rows = sum(program.rows_of(channel) for channel in busy) * pim.banks
    placing = profile.placement_cycles(max(stored))
    placement_pj = profile.placement_pj(sum(stored), dram_rows)
    return SpmmCost(
        time_us=pim.launch_us + (total.cycles + placing) / pim.clock_mhz,
        cycles=total.cycles,
        commands=total.commands,
        comps_on_closed_rows=total.comps_on_closed_rows,
        energy=total.energy + EnergyBreakdown((("placement", placement_pj * 1e-12),)),
        channels=total.channels,
        mapping=program.mapping,
        placement_cycles=placing,
        launch_us=pim.launch_us,
        rows=program.rows,
        units=packing.units,
        is_partial=packing.is_partial,
    )


def _timings(program: SpmmProgram, timer: StreamTimer) -> list[StreamTiming]:
    return [timer.time(entry.stream, program.mapping.gwrite_latency, True) for entry in program.classes]
