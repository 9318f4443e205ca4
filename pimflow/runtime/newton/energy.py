"""Energy of PIM command streams, by timing profile.

`artifact` is the published simulator's formula: no activation, refresh, static or transfer energy. `strict` counts what
every command moves and computes, from the constants of `[pim.energy.strict]` of the target; their sources stand there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pimflow.targets import PimSpec

if TYPE_CHECKING:
    from pimflow.runtime.newton.timing.result import StreamTiming


@dataclass(frozen=True, slots=True)
class EnergyBreakdown:
    """Energy in joules by part; parts are named after commands under `artifact`, after causes under `strict`."""

    parts_j: tuple[tuple[str, float], ...]

    @property
    def total_j(self) -> float:
        """The sum of the parts, in joules."""
        return sum(energy for _, energy in self.parts_j)

    @property
    def total_pj(self) -> float:
        """The sum of the parts, in picojoules."""
        return self.total_j * 1e12

    @property
    def total_mj(self) -> float:
        """The sum of the parts, in millijoules."""
        return self.total_j * 1e3

    def as_json(self) -> dict[str, float]:
        """In joules, with the total."""
        return {**dict(self.parts_j), "total": self.total_j}


def stream_energy(timing: StreamTiming, pim: PimSpec, profile: str | None = None) -> EnergyBreakdown:
    """Energy of one channel's stream.

    Args:
        timing: what the stream executes, and how long that takes.
        pim: the machine.
        profile: "artifact" or "strict"; the machine's default if None.
    """
    if (profile or pim.timing.default).lower() == "artifact":
        return _artifact(timing, pim)
    return _strict(timing, pim)


def _artifact(timing: StreamTiming, pim: PimSpec) -> EnergyBreakdown:
    """The published formula, and in its order of operations: it was printed with six digits of just that result."""
    energy, counts, columns = pim.energy.artifact, timing.commands, pim.columns
    multiply, add = pim.multipliers * energy.multiply_pj * 1e-12, pim.multipliers * energy.add_pj * 1e-12
    read, write, row = energy.sram_read_nj * 1e-9, energy.sram_write_nj * 1e-9, energy.dram_read_nj * 1e-9
    full_row = columns * multiply + columns * read + row + columns * add
    return EnergyBreakdown(
        (
            ("COMP", full_row * pim.banks * counts.comp / columns),
            ("GWRITE", counts.gwrite * write),
            ("READRES", counts.readres * read),
            ("PRE", timing.prea * (energy.precharge_nj * 1e-9) * pim.banks),
        )
    )


def _strict(timing: StreamTiming, pim: PimSpec) -> EnergyBreakdown:
    """By cause: rows opened, columns read, MACs, buffer reads and writes, bytes moved, refreshes, background power."""
    energy, counts = pim.energy.strict, timing.commands
    moved_bytes = timing.gwrite_bytes + pim.banks * pim.element_bytes * counts.readres
    seconds = timing.cycles / pim.clock_mhz * 1e-6
    return EnergyBreakdown(
        (
            ("activation", energy.activate_pj * pim.banks_per_group * counts.g_act * 1e-12),
            ("column_read", energy.column_read_pj * pim.banks * counts.comp * 1e-12),
            ("mac", energy.mac_pj * pim.multipliers * pim.banks * counts.comp * 1e-12),
            ("buffer_read", energy.buffer_read_pj * counts.comp * 1e-12),
            ("buffer_write", energy.buffer_write_pj * timing.gwrite_bytes / pim.timing.strict.burst_bytes * 1e-12),
            ("transfer", energy.transfer_pj_per_byte * moved_bytes * 1e-12),
            ("refresh", energy.refresh_pj * timing.ref * 1e-12),
            ("static", energy.static_mw * 1e-3 * seconds),
        )
    )
