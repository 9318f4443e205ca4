"""Profile `strict`: what JEDEC-style DRAM would allow, with energy by cause."""

from __future__ import annotations

from pimflow.runtime.newton.energy import EnergyBreakdown
from pimflow.runtime.newton.profiles.base import LeastGaps, LeastVisits, TimingProfile, VisitCosts
from pimflow.runtime.newton.timing.result import StreamTiming
from pimflow.runtime.newton.timing.strict import StrictRules


class StrictProfile(TimingProfile):
    """Row state, one data bus per channel, postponed refresh; energy for all that commands move and compute."""

    name = "strict"

    def rules(self, gwrite_latency: str, reopens_rows: bool = True) -> StrictRules:
        """See `StrictRules`, which always reopen rows."""
        return StrictRules(self.pim, gwrite_latency)

    def energy(self, timing: StreamTiming) -> EnergyBreakdown:
        """Energy by cause: rows opened, columns read, MACs, buffer accesses, bytes moved, refreshes, background power.

        The constants are `[pim.energy.strict]` of the target; their sources are there.
        """
        pim, energy, counts = self.pim, self.pim.energy.strict, timing.commands
        moved_bytes = timing.gwrite_bytes + pim.banks * pim.result_bytes * counts.readres
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
        """tCCD_L."""
        return self.pim.timing.strict.t_ccd_l

    def least_gaps(self, slot_elements: float) -> LeastGaps:
        """Rows are closed and opened, or a buffer is written burst by burst, which only a second buffer hides.

        If a refresh comes between two COMPs, rows are closed before it and opened after it, whatever else happens.
        Bounds on changes and fills are known where COMP names one column for row and buffer, with one buffer held.
        """
        pim, timing = self.pim, self.pim.timing.strict
        opening = (pim.bank_groups - 1) * timing.t_faw + timing.t_rcd
        rows = max(0, opening + timing.t_rtp + timing.t_rp - timing.t_ccd_l)
        reading = timing.t_drain + 1
        if timing.t_mod:
            reading += 2 * timing.t_mod + timing.burst_cycles * (timing.bursts(pim.banks * pim.result_bytes) - 1)
        known = LeastGaps(opening, 0.0, reading, timing.t_rfc, timing.t_refi)
        if pim.any_slot_any_column or pim.fills_per_channel * pim.buffer_parts > 1:
            return known
        slot = slot_elements * pim.element_bytes / timing.burst_bytes * timing.burst_cycles
        ending = timing.t_cwl + timing.t_bl - timing.burst_cycles
        full = min(pim.columns, pim.buffer_columns) * slot + ending  # COMP names one column for row and buffer
        refresh = max(0.0, timing.t_rfc - max(0.0, full - rows))
        return known._replace(change=min(rows, full), refresh=refresh, slot=slot, fill=ending)

    def least_visits(self) -> LeastVisits | None:
        """As `visit_costs`, without changes of mode."""
        pim, timing = self.pim, self.pim.timing.strict
        burst = timing.burst_cycles
        first = (pim.bank_groups - 1) * timing.t_faw + timing.t_rcd
        reading = burst * (timing.bursts(pim.banks * pim.result_bytes) - 1)
        return LeastVisits(
            comp=timing.t_ccd_l,
            first=first,
            change=timing.t_rtp + timing.t_rp + first,
            read=timing.t_drain + 1,
            plain=timing.t_ccd_l + timing.t_drain + reading + timing.t_rtw,
            early=timing.t_ccd_l + timing.t_wtr + 1,
            fill=timing.t_cwl + timing.t_bl - burst,
            burst=burst,
            burst_bytes=timing.burst_bytes,
            element_bytes=pim.element_bytes,
            refresh=timing.t_rfc,
            refresh_interval=timing.t_refi,
        )

    def least_bus_cycles(self, filled_bytes: float, results: float) -> float:
        """The bursts of all transfers, one after the other."""
        pim, timing = self.pim, self.pim.timing.strict
        bursts = filled_bytes / timing.burst_bytes + results * timing.bursts(pim.banks * pim.result_bytes)
        return bursts * timing.burst_cycles

    def visit_costs(self) -> VisitCosts:
        """Rows are precharged between visits, a fill occupies the bus burst by burst, and the bus turns around."""
        pim, timing = self.pim, self.pim.timing.strict
        burst, modes = timing.burst_cycles, 2 * timing.t_mod
        reading = burst * (timing.bursts(pim.banks * pim.result_bytes) - 1)
        rows = (pim.bank_groups - 1) * timing.t_faw + timing.t_rcd
        change = rows + timing.t_rtp + timing.t_rp
        plain = timing.t_ccd_l + timing.t_drain + reading + timing.t_rtw + modes
        reopening = (timing.t_rp + rows) / (1 + timing.max_postponed_refreshes)
        return VisitCosts(
            comp=timing.t_ccd_l,
            fill=timing.t_cwl + timing.t_bl - burst,
            fill_per_slot=burst * pim.multipliers * pim.element_bytes / timing.burst_bytes,
            next_fill=0,
            sweep=change - timing.t_ccd_l + modes,
            early=timing.t_ccd_l + timing.t_wtr + 1 + modes,
            plain=plain,
            back=timing.t_wtr,
            read=timing.t_drain + 1 + modes,
            fill_hidden=max(0, change - plain) if pim.gwrite_latency == "hidden" else 0,
            busy_refresh=(timing.t_rfc + timing.t_rp) / timing.t_refi,
            idle_refresh=(timing.t_rfc + reopening) / timing.t_refi,
        )
