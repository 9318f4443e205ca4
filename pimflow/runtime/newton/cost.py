"""The cost of a matrix problem under a mapping on PIM: exact cycles, command counts and energy, for each channel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from pimflow.codegen import MatmulProblem, MatrixProblem
from pimflow.codegen.newton import CommandCounts, Mapping, PimProgram
from pimflow.codegen.newton.lowering import Outline
from pimflow.records import dataclass
from pimflow.runtime.newton.energy import EnergyBreakdown
from pimflow.runtime.newton.profiles.base import TimingProfile
from pimflow.runtime.newton.timing.result import CycleParts, StreamTiming


@dataclass(frozen=True, slots=True)
class ChannelCost:
    """One channel's share of the work; zero cycles and commands if it has none."""

    cycles: int
    commands: CommandCounts
    parts: CycleParts


@dataclass(frozen=True)
class StreamsCost:
    """The total cost of the streams of all channels.

    Args:
        time_us: the launch, writing operands into the banks, then the stream of the slowest channel.
        cycles: cycles of the slowest channel's stream, in DRAM command clock cycles.
        commands, comps_on_closed_rows: sums over all channels.
        energy: of all channels, by the parts of the timing profile, and of writing operands.
        channels: every channel, in order.
        placement_cycles: cycles to write operands that are activations into the banks of the fullest channel.
        launch_us: from the launch of the kernel to its first command; part of `time_us`.
        rows: rows of every bank that operands occupy, in the fullest channel.
    """

    time_us: float
    cycles: int
    commands: CommandCounts
    comps_on_closed_rows: int
    energy: EnergyBreakdown
    channels: tuple[ChannelCost, ...]
    placement_cycles: int
    launch_us: float
    rows: int

    @property
    def counters(self) -> dict[str, int]:
        """The commands by name, over all channels."""
        return self.commands.as_json()

    @cached_property
    def energy_mj(self) -> float:
        """Energy of all channels in millijoules, including placement."""
        return self.energy.total_mj

    @property
    def energy_parts_mj(self) -> dict[str, float]:
        """Energy in millijoules by the parts of the timing profile, then placement."""
        return self.energy.parts_mj


@dataclass(frozen=True)
class PimCost(StreamsCost):
    """The cost of a matrix problem under a mapping; the only operand ever written into the banks is a right-hand side.

    Args:
        prea, ref: sums over all channels.
        mapping: the mapping priced.
        bound_cycles: COMP-bound limit: the fewest COMPs that the problem allows, spread evenly, back to back.
    """

    prea: int
    ref: int
    mapping: Mapping
    bound_cycles: int

    @cached_property
    def utilisation(self) -> float:
        """COMP-bound limit over cycles."""
        return self.bound_cycles / self.cycles if self.cycles else 0.0


@dataclass(frozen=True)
class ChannelTotals:
    """The channels' shares in order, the cycles of the slowest channel, and sums over all channels."""

    channels: tuple[ChannelCost, ...]
    cycles: int
    commands: CommandCounts
    prea: int
    ref: int
    comps_on_closed_rows: int
    energy: EnergyBreakdown


def channel_totals(
    alike: Sequence[Sequence[int]], timings: Sequence[StreamTiming], profile: TimingProfile
) -> ChannelTotals:
    """The totals over all channels, given one timing for each class of channels with the same stream."""
    channels = [ChannelCost(0, CommandCounts(), CycleParts())] * profile.pim.channels
    commands, energy = CommandCounts(), EnergyBreakdown(())
    prea = ref = closed = 0
    for same, timing in zip(alike, timings, strict=True):
        share, number = ChannelCost(timing.cycles, timing.commands, timing.parts), len(same)
        for channel in same:
            channels[channel] = share
        commands += timing.commands.times(number)
        prea, ref = prea + timing.prea * number, ref + timing.ref * number
        closed += timing.comps_on_closed_rows * number
        energy += profile.energy(timing).times(number)
    cycles = max(timing.cycles for timing in timings)
    return ChannelTotals(tuple(channels), cycles, commands, prea, ref, closed, energy)


def kernel_us(cycles: int, profile: TimingProfile) -> float:
    """Microseconds of a kernel: the launch, and the cycles of the slowest channel including placement."""
    return profile.pim.launch_us + cycles / profile.pim.clock_mhz


def price(program: PimProgram | Outline, timings: tuple[StreamTiming, ...], profile: TimingProfile) -> PimCost:
    """The cost of a program from the timings of its classes; its streams need not exist."""
    pim = program.pim
    total = channel_totals(program.channel_classes, timings, profile)
    placing = placement_cycles(program, profile)
    return PimCost(
        time_us=kernel_us(total.cycles + placing, profile),
        cycles=total.cycles,
        commands=total.commands,
        prea=total.prea,
        ref=total.ref,
        comps_on_closed_rows=total.comps_on_closed_rows,
        energy=total.energy + EnergyBreakdown((("placement", _placement_pj(program, profile) * 1e-12),)),
        channels=total.channels,
        mapping=program.mapping,
        placement_cycles=placing,
        bound_cycles=-(-program.shape.least_comps // pim.channels) * profile.comp_cycles,
        launch_us=pim.launch_us,
        rows=program.rows,
    )


def placement_cycles(program: PimProgram | Outline, profile: TimingProfile) -> int:
    """Cycles to write an activation right-hand side with its replicas into the banks of the fullest channel; else 0."""
    if not places_operand(program.problem):
        return 0
    layout = program.layout
    most = max(layout.bytes_written(channel, program.pim) for channel in range(program.pim.channels))
    return profile.placement_cycles(most)


def _placement_pj(program: PimProgram | Outline, profile: TimingProfile) -> float:
    """Energy in pJ of placing an activation right-hand side: all bytes, each row of each bank opened once; else 0."""
    if not places_operand(program.problem):
        return 0.0
    pim, layout = program.pim, program.layout
    stored = sum(layout.bytes_written(channel, pim) for channel in range(pim.channels))
    rows = sum(layout.rows(channel) for channel in range(pim.channels)) * pim.banks
    return profile.placement_pj(stored, rows)


def places_operand(problem: MatrixProblem) -> bool:
    """Whether an operand is written into the banks before each run: an activation right-hand side."""
    return isinstance(problem, MatmulProblem) and not problem.constant_rhs
