"""Machines as data: what a target file may say, as frozen dataclasses. Units are in the names.

Every field has its meaning here and its value, with its source, in a TOML file beside this folder.
"""

from pimflow.targets.schema.gpu import GpuEnergy, GpuSpec
from pimflow.targets.schema.newton import (
    ENERGIES,
    TIMINGS,
    ArtifactEnergy,
    ArtifactTiming,
    PimEnergies,
    PimSpec,
    PimTimings,
    StrictEnergy,
    StrictTiming,
    TimingTable,
)
from pimflow.targets.schema.target import Target
from pimflow.targets.schema.unit import KINDS, Unit, register_kind

__all__ = [
    "ENERGIES",
    "KINDS",
    "TIMINGS",
    "ArtifactEnergy",
    "ArtifactTiming",
    "GpuEnergy",
    "GpuSpec",
    "PimEnergies",
    "PimSpec",
    "PimTimings",
    "StrictEnergy",
    "StrictTiming",
    "Target",
    "TimingTable",
    "Unit",
    "register_kind",
]
