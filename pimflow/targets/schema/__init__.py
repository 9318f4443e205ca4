"""Machines as data: the schema of target files, as frozen dataclasses. Units are in the names.

The meaning of every field is defined here; its value is in a TOML file next to this folder, with its source.
"""

from pimflow.targets.schema.cpu import CpuEnergy, CpuSpec
from pimflow.targets.schema.gpu import BoardEnergy, Gpu, GpuEnergy, GpuSpec, Operand
from pimflow.targets.schema.measured_gpu import (
    Call,
    Convolutions,
    Depthwise,
    Library,
    MeasuredGpuSpec,
    Products,
    Streams,
    Tiling,
    Winograd,
)
from pimflow.targets.schema.memory import GpuMemory, HostMemory, Memory, PcieLink, Ssd
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
from pimflow.targets.schema.origin import Origin, Override
from pimflow.targets.schema.target import Target
from pimflow.targets.schema.unit import KINDS, Kind, Unit, kind_of_plugin, register_kind
from pimflow.targets.schema.upmem import UpmemSpec

__all__ = [
    "ENERGIES",
    "KINDS",
    "TIMINGS",
    "ArtifactEnergy",
    "ArtifactTiming",
    "BoardEnergy",
    "Call",
    "Convolutions",
    "CpuEnergy",
    "CpuSpec",
    "Depthwise",
    "Gpu",
    "GpuEnergy",
    "GpuMemory",
    "GpuSpec",
    "HostMemory",
    "Kind",
    "Library",
    "MeasuredGpuSpec",
    "Memory",
    "Operand",
    "Origin",
    "Override",
    "PcieLink",
    "PimEnergies",
    "PimSpec",
    "PimTimings",
    "Products",
    "Ssd",
    "Streams",
    "StrictEnergy",
    "StrictTiming",
    "Target",
    "Tiling",
    "TimingTable",
    "Unit",
    "UpmemSpec",
    "Winograd",
    "kind_of_plugin",
    "register_kind",
]
