"""Units of kind `vector`: like a second CPU, with SIMD lanes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pimflow.runtime.cpu.backend import CpuBackend
from pimflow.targets.schema import CpuSpec, Kind
from pimflow_vector.rates import LANES


@dataclass(frozen=True)
class VectorSpec(CpuSpec):
    """A table of a target: the keys of a CPU's, each core with its lanes."""

    kind: ClassVar[str] = "vector"
    can_host: ClassVar[bool] = False


class VectorUnit(CpuBackend):
    """A CPU whose cores process `LANES` times as many elements."""

    title = "Vector unit"

    def __init__(self, device: str, spec: VectorSpec) -> None:
        super().__init__(device, replace(spec, macs_per_core_cycle=spec.macs_per_core_cycle * LANES))


VECTOR = Kind(VectorSpec, unit=VectorUnit)
