"""Profile `artifact`: cycle-identical to the simulator that PIMFlow published, with its formula for energy."""

from __future__ import annotations

from pimflow.runtime.newton.energy import EnergyBreakdown
from pimflow.runtime.newton.profiles.base import TimingProfile, VisitCosts
from pimflow.runtime.newton.timing.artifact import ArtifactRules
from pimflow.runtime.newton.timing.result import StreamTiming


class ArtifactProfile(TimingProfile):
    """The published simulator: no energy for activation, refresh, static power or transfers, no address checks."""

    name = "artifact"
    checks_addresses = False

    def rules(self, gwrite_latency: str, reopens_rows: bool = True) -> ArtifactRules:
        """See `ArtifactRules`."""
        return ArtifactRules(self.pim, gwrite_latency, reopens_rows)

    def energy(self, timing: StreamTiming) -> EnergyBreakdown:
        """The published formula in its order of operations, so that all six published digits come out the same."""
        pim, energy, counts = self.pim, self.pim.energy.artifact, timing.commands
        columns = pim.columns
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

    @property
    def comp_cycles(self) -> int:
        """Cycles from COMP to COMP."""
        return self.pim.timing.artifact.comp_to_comp

    def visit_costs(self) -> VisitCosts:
        """Where rows stay open, a refresh closes them, and the stream also waits until they are reopened."""
        timing, exposed = self.pim.timing.artifact, self.pim.gwrite_latency == "exposed"
        rows = (self.pim.bank_groups - 1) * timing.act_to_act + timing.act_to_comp
        refresh = timing.ref_to_act + timing.pre_to_act
        return VisitCosts(
            comp=timing.comp_to_comp,
            fill=timing.gwrite_to_comp,
            fill_per_slot=0,
            next_fill=timing.gwrite_to_next_exposed if exposed else timing.gwrite_to_next_hidden,
            sweep=rows + timing.comp_to_readres + 1 - timing.comp_to_comp,
            early=timing.comp_to_readres,
            plain=timing.comp_to_readres + timing.readres_to_gwrite,
            back=0,
            read=max(0, timing.comp_to_readres + 1 - timing.comp_to_comp),
            fill_hidden=0 if exposed else rows,
            busy_refresh=refresh / timing.refresh_interval,
            idle_refresh=(refresh + 1 + rows) / timing.refresh_interval,
        )
