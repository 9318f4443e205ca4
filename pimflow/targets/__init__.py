"""Machines as data: TOML files, their schema and a strict loader."""

from pimflow.targets.loader import DEFAULT_TARGET, load_target, parse_target, target_names, target_text
from pimflow.targets.overrides import GWRITE_LATENCIES, override
from pimflow.targets.schema import (
    ArtifactEnergy,
    ArtifactTiming,
    Gpu,
    GpuEnergy,
    GpuSpec,
    MeasuredGpuSpec,
    PimEnergies,
    PimSpec,
    PimTimings,
    StrictEnergy,
    StrictTiming,
    Target,
)
from pimflow.targets.writer import to_toml

__all__ = [
    "DEFAULT_TARGET",
    "GWRITE_LATENCIES",
    "ArtifactEnergy",
    "ArtifactTiming",
    "Gpu",
    "GpuEnergy",
    "GpuSpec",
    "MeasuredGpuSpec",
    "PimEnergies",
    "PimSpec",
    "PimTimings",
    "StrictEnergy",
    "StrictTiming",
    "Target",
    "load_target",
    "override",
    "parse_target",
    "target_names",
    "target_text",
    "to_toml",
]
