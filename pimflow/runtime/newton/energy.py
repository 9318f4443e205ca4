"""Energy of a PIM command stream by part. The formulas are in the timing profiles (`runtime/newton/profiles`)."""

from __future__ import annotations

from pimflow.records import dataclass


@dataclass(frozen=True, slots=True)
class EnergyBreakdown:
    """Energy in joules by part; parts are named after commands under `artifact`, after causes under `strict`."""

    parts_j: tuple[tuple[str, float], ...]

    @property
    def total_j(self) -> float:
        """The sum of the parts, in joules."""
        return sum(energy for _, energy in self.parts_j)

    @property
    def parts_mj(self) -> dict[str, float]:
        """The parts in millijoules."""
        return {name: energy * 1e3 for name, energy in self.parts_j}

    @property
    def total_mj(self) -> float:
        """The sum of the parts in millijoules."""
        return sum(self.parts_mj.values())

    def __add__(self, other: EnergyBreakdown) -> EnergyBreakdown:
        sums = dict(self.parts_j)
        for name, energy in other.parts_j:
            sums[name] = sums.get(name, 0.0) + energy
        return EnergyBreakdown(tuple(sums.items()))

    def times(self, factor: int) -> EnergyBreakdown:
        """The energy of `factor` identical channels."""
        return EnergyBreakdown(tuple((name, energy * factor) for name, energy in self.parts_j))
