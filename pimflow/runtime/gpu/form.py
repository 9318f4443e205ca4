"""What a form of GPU cost model is: how long kernels run, and which of its parameters a fit may move."""

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
    """One measured kernel as a model sees it: its work, its time, and the class that its error is reported under.

    `gpu_operand` is the element type that it was measured in.
    """

    work: GpuWork
    time_us: float
    name: str
    gpu_operand: str


class Form(ABC, Generic[G]):
    """A form of cost model, for one kind of GPU."""

    @abstractmethod
    def kernel_time(self, work: GpuWork, gpu: G, channels: int) -> KernelTime:
        """Time of one kernel with `channels` memory channels left to the GPU."""

    @abstractmethod
    def times_us(self, gpu: G, samples: Sequence[Sample]) -> list[float]:
        """Times of measured kernels by the model, with all memory channels, in the element types of the samples."""

    @abstractmethod
    def parameters(self, gpu: G) -> Mapping[str, float]:
        """The parameters that `fit` may move, by name, with their values."""

    @abstractmethod
    def with_parameters(self, gpu: G, values: Mapping[str, float]) -> G:
        """The GPU with other values of some of those parameters, for prices alone: they are not rounded."""

    @abstractmethod
    def fit(self, gpu: G, samples: Sequence[Sample]) -> G:
        """The parameters that explain the samples best; those that no sample depends on stay as they are."""

    def operand_of(self, gpu: G, dtype: str) -> str | None:
        """The element type that a row measured in `dtype` (numpy's name) is priced in; None if it has no figures."""
        return gpu.operand
