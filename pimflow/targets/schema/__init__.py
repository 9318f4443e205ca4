"""Machines as data: what a target file may say, as frozen dataclasses. Units are in the names.

Every field has its meaning here and its value, with its source, in a TOML file beside this folder.
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
