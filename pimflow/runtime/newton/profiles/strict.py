"""Profile `strict`: what JEDEC-style DRAM would allow, with energy by cause."""

from __future__ import annotations

from dataclasses import replace

from pimflow.runtime.newton.energy import EnergyBreakdown
from pimflow.runtime.newton.profiles.base import TimingProfile, VisitCosts
from pimflow.runtime.newton.timing.result import StreamTiming
from pimflow.runtime.newton.timing.strict import StrictRules
from pimflow.targets import PimSpec, StrictTiming

_NEVER = 1 << 40


class StrictProfile(TimingProfile):
    """Row state, one data bus per channel, postponed refresh; what every command moves and computes is paid for."""

    name = "strict"

    def rules(self, gwrite_latency: str) -> StrictRules:
        """See `StrictRules`."""
        return StrictRules(self.pim, gwrite_latency)

    def energy(self, timing: StreamTiming) -> EnergyBreakdown:
        """By cause: rows opened, columns read, MACs, buffer reads and writes, bytes moved, refreshes, background power.

        The constants are `[pim.energy.strict]` of the target; their sources are there.
        """
        pim, energy, counts = self.pim, self.pim.energy.strict, timing.commands
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

    @property
    def comp_cycles(self) -> int:
        """tCCD."""
        return self.pim.timing.strict.t_ccd

    def visit_costs(self) -> VisitCosts:
        """Rows are precharged between visits, a fill takes the bus burst by burst."""
        pim, timing = self.pim, self.pim.timing.strict
        sweep = (pim.bank_groups - 1) * timing.t_faw + timing.t_rcd
        bursts = -(-pim.multipliers * pim.element_bytes // timing.burst_bytes)
        filling = bursts * pim.buffer_columns * timing.t_ccd  # passes while a refresh runs
        return VisitCosts(
            comp=timing.t_ccd,
            fill=timing.t_ccd,
            fill_per_slot=bursts * timing.t_ccd,
            next_fill=timing.t_ccd,
            sweep=sweep + timing.t_rtp + timing.t_rp,
            settle=timing.t_drain + timing.t_bl,
            turn=timing.t_rtw,
            read=timing.t_drain + 1,
            fill_hidden=sweep + timing.t_rtp + timing.t_rp,
            busy_refresh=(timing.t_rfc + timing.t_rp) / timing.t_refi,
            idle_refresh=max(0, timing.t_rfc + timing.t_rp + sweep - filling) / timing.t_refi,
            sweep_refresh=0,
        )

    def without_waits(self) -> tuple[PimSpec, PimSpec, PimSpec]:
        """Refresh, then bursts, then row constraints taken away."""
        calm = replace(self.pim.timing.strict, t_refi=_NEVER)
        quick = replace(calm, burst_bytes=_NEVER, t_rtw=1)
        ready = replace(quick, t_faw=1, t_rcd=1, t_rp=1, t_ras=1, t_rtp=1)
        return self._with(calm), self._with(quick), self._with(ready)

    def _with(self, timing: StrictTiming) -> PimSpec:
        return replace(self.pim, timing=self.pim.timing.with_tables(strict=timing))
