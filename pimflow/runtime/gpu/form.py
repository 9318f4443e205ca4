"""`Form`: a GPU cost model, with the time of kernels and the parameters that a fit may change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from pimflow.records import dataclass
from pimflow.runtime.gpu.kernel_time import KernelTime
from pimflow.runtime.gpu.work import GpuWork
from pimflow.targets import Gpu

G = TypeVar("G", bound=Gpu)


@dataclass(frozen=True)
class Sample:
    """A measured kernel for a cost model: its work, its time, and the class under which its error is reported.

    `gpu_operand` is the element type in which it was measured.
    """

    work: GpuWork
    time_us: float
    name: str
    gpu_operand: str


class Form(ABC, Generic[G]):
    """A form of cost model, for one kind of GPU."""

    @abstractmethod
    def kernel_time(self, work: GpuWork, gpu: G, channels: int) -> KernelTime:
        """The time of one kernel with `channels` memory channels left to the GPU."""

    @abstractmethod
    def times_us(self, gpu: G, samples: Sequence[Sample]) -> list[float]:
        """The model's times of measured kernels, with all memory channels, in the element types of the samples."""

    @abstractmethod
    def parameters(self, gpu: G) -> Mapping[str, float]:
        """The parameters that `fit` may change, by name, with their values."""

    @abstractmethod
    def with_parameters(self, gpu: G, values: Mapping[str, float]) -> G:
        """The GPU with other values of some of these parameters, only for pricing: they are not rounded."""

    @abstractmethod
    def fit(self, gpu: G, samples: Sequence[Sample]) -> G:
        """The GPU with the parameters that explain the samples best; those that no sample depends on are unchanged."""

    def operand_of(self, gpu: G, dtype: str) -> str | None:
        """The element type in which to price a row measured in `dtype` (numpy's name); None if there is none for it."""
        return gpu.operand
