"""Energy of PIM command streams, by timing profile.

`artifact` is the published simulator's formula; it has no activation, refresh, static or transfer energy. `strict` counts
what every command moves and computes, from the constants of `[pim.energy.strict]` of the target, sources there.
"""

from __future__ import annotations

from dataclasses import dataclass

from pimflow.runtime.pim_timing.result import StreamTiming
from pimflow.targets import PimSpec


@dataclass(frozen=True, slots=True)
class EnergyBreakdown:
    """Energy in picojoules by part; parts are named after commands under `artifact`, after causes under `strict`."""

    parts_pj: tuple[tuple[str, float], ...]

    @property
    def total_pj(self) -> float:
        """The sum of the parts."""
        return sum(energy for _, energy in self.parts_pj)

    def __add__(self, other: EnergyBreakdown) -> EnergyBreakdown:
        mine = dict(self.parts_pj)
        for name, energy in other.parts_pj:
            mine[name] = mine.get(name, 0.0) + energy
        return EnergyBreakdown(tuple(mine.items()))

    def times(self, factor: int) -> EnergyBreakdown:
        """The energy of `factor` such streams."""
        return EnergyBreakdown(tuple((name, energy * factor) for name, energy in self.parts_pj))

    def as_json(self) -> dict[str, float]:
        """In joules, with the total."""
        return {**{name: energy * 1e-12 for name, energy in self.parts_pj}, "total": self.total_pj * 1e-12}


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
    """The published formula, per COMP on every bank: multiplications, additions, a buffer read, a column's share of a row."""
    energy, counts = pim.energy.artifact, timing.commands
    arithmetic_pj = pim.multipliers * (energy.multiply_pj + energy.add_pj)
    comp_pj = pim.banks * (arithmetic_pj + energy.sram_read_nj * 1e3 + energy.dram_read_nj * 1e3 / pim.columns)
    return EnergyBreakdown(
        (
            ("COMP", comp_pj * counts.comp),
            ("GWRITE", energy.sram_write_nj * 1e3 * counts.gwrite),
            ("READRES", energy.sram_read_nj * 1e3 * counts.readres),
            ("PRE", energy.precharge_nj * 1e3 * pim.banks * timing.prea),
        )
    )


def _strict(timing: StreamTiming, pim: PimSpec) -> EnergyBreakdown:
    """By cause: rows opened, columns read, MACs, buffer reads and writes, bytes moved, refreshes, background power."""
    energy, counts = pim.energy.strict, timing.commands
    result_bytes = pim.banks * pim.element_bytes * counts.readres
    column_bytes = pim.multipliers * pim.element_bytes
    static_pj = energy.static_mw * timing.cycles / pim.clock_mhz * 1e3  # mW x us = nJ
    return EnergyBreakdown(
        (
            ("activation", energy.activate_pj * pim.banks_per_group * counts.g_act),
            ("column_read", energy.column_read_pj * pim.banks * counts.comp),
            ("mac", energy.mac_pj * pim.multipliers * pim.banks * counts.comp),
            ("buffer_read", energy.buffer_read_pj * counts.comp),
            ("buffer_write", energy.buffer_write_pj * timing.gwrite_bytes / column_bytes),
            ("transfer", energy.transfer_pj_per_byte * (timing.gwrite_bytes + result_bytes)),
            ("refresh", energy.refresh_pj * timing.ref),
            ("static", static_pj),
        )
    )
