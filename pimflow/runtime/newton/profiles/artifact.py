"""Profile `artifact`: cycle-identical to the simulator that PIMFlow published, with its formula for energy."""

from __future__ import annotations

from dataclasses import replace

from pimflow.runtime.newton.energy import EnergyBreakdown
from pimflow.runtime.newton.profiles.base import TimingProfile, VisitCosts
from pimflow.runtime.newton.timing.artifact import ArtifactRules
from pimflow.runtime.newton.timing.result import StreamTiming
from pimflow.targets import ArtifactTiming, PimSpec

_NEVER = 1 << 40


class ArtifactProfile(TimingProfile):
    """The published simulator: no activation, refresh, static or transfer energy, no check of addresses."""

    name = "artifact"
    checks_addresses = False

    def rules(self, gwrite_latency: str) -> ArtifactRules:
        """See `ArtifactRules`."""
        return ArtifactRules(self.pim, gwrite_latency)

    def energy(self, timing: StreamTiming) -> EnergyBreakdown:
        """The published formula, and in its order of operations: it was printed with six digits of just that result."""
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
        """COMP to COMP."""
        return self.pim.timing.artifact.comp_to_comp

    def visit_costs(self) -> VisitCosts:
        """A refresh delays the next G_ACT0 only, so that streams with open rows hardly see it."""
        timing, exposed = self.pim.timing.artifact, self.pim.gwrite_latency == "exposed"
        sweep = (self.pim.bank_groups - 1) * timing.act_to_act + timing.act_to_comp
        return VisitCosts(
            comp=timing.comp_to_comp,
            fill=timing.gwrite_to_comp,
            fill_per_slot=0,
            next_fill=timing.gwrite_to_next_exposed if exposed else timing.gwrite_to_next_hidden,
            sweep=sweep,
            settle=timing.comp_to_readres,
            turn=timing.readres_to_gwrite + timing.gwrite_to_comp,
            read=max(0, timing.comp_to_readres + 1 - timing.comp_to_comp),
            fill_hidden=0 if exposed else sweep,
            busy_refresh=(timing.ref_to_act + timing.pre_to_act) / timing.refresh_interval,
            idle_refresh=(timing.pre_to_act + 1) / timing.refresh_interval,
            sweep_refresh=timing.ref_to_act**2 / (2 * timing.refresh_interval),
        )

    def without_waits(self) -> tuple[PimSpec, PimSpec, PimSpec]:
        """Refresh, then GWRITE, then G_ACT constraints taken away."""
        steady = replace(self.pim.timing.artifact, refresh_interval=_NEVER)
        filled = replace(
            steady, gwrite_to_next_hidden=1, gwrite_to_next_exposed=1, gwrite_to_comp=1, readres_to_gwrite=1
        )
        opened = replace(filled, act_to_act=1, act_to_comp=1)
        return self._with(steady), self._with(filled), self._with(opened)

    def _with(self, timing: ArtifactTiming) -> PimSpec:
        return replace(self.pim, timing=self.pim.timing.with_tables(artifact=timing))
