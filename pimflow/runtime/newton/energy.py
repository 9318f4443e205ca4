"""Energy of a PIM command stream by part. The formulas stand with the timing profiles (`runtime/newton/profiles`)."""

from __future__ import annotations

from dataclasses import dataclass


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

    def as_json(self) -> dict[str, float]:
        """In joules, with the total."""
        return {**dict(self.parts_j), "total": self.total_j}
