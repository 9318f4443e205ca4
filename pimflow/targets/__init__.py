"""Machines as data: TOML files, their schema and a strict loader."""

from pimflow.targets.loader import DEFAULT_TARGET, every_target, load_target, parse_target, target_names, target_text
from pimflow.targets.overrides import GWRITE_LATENCIES, override, parse_values
from pimflow.targets.record import TargetRecord
from pimflow.targets.schema import (
    ArtifactEnergy,
    ArtifactTiming,
    CpuEnergy,
    CpuSpec,
    Gpu,
    GpuEnergy,
    GpuSpec,
    MeasuredGpuSpec,
    Override,
    PimEnergies,
    PimSpec,
    PimTimings,
    StrictEnergy,
    StrictTiming,
    Target,
)
from pimflow.targets.writer import annotated, to_toml

__all__ = [
    "DEFAULT_TARGET",
    "GWRITE_LATENCIES",
    "ArtifactEnergy",
    "ArtifactTiming",
    "CpuEnergy",
    "CpuSpec",
    "Gpu",
    "GpuEnergy",
    "GpuSpec",
    "MeasuredGpuSpec",
    "Override",
    "PimEnergies",
    "PimSpec",
    "PimTimings",
    "StrictEnergy",
    "StrictTiming",
    "Target",
    "TargetRecord",
    "annotated",
    "every_target",
    "load_target",
    "override",
    "parse_target",
    "parse_values",
    "target_names",
    "target_text",
    "to_toml",
]
