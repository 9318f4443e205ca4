"""GPUs: the base class of all (clock, SMs, memory channels), and the one whose cost model is fitted to a simulator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal, get_args

from pimflow.errors import counted
from pimflow.records import dataclass
from pimflow.targets.schema.unit import Amount, Count, CountOrZero, Positive, Unit, register_kind

Operand = Literal["fp16", "bf16", "fp32"]
"""Element types of activations and weights on a GPU."""
Algorithm = Literal["library", "im2col", "im2win", "direct"]
"""Algorithms for convolutions: `runtime/gpu/convolutions.py`."""
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
DEFAULT_WORKSPACE_MIB = 1024.0
"""The default workspace: what PyTorch allows for cuDNN's search on a current GPU. Operands do not count."""


@dataclass(frozen=True)
class ConvolutionChoice:
    """Algorithms for convolutions; each convolution uses the fastest one that supports it within the workspace."""

    algorithms: tuple[Algorithm, ...]  # "library", the kernels of the cost model, runs what no other one can
    workspace_mib: Amount  # the maximum for one convolution in addition to its operands and results
    # For the algorithm that computes every result separately: multiply-accumulates of an SM, and the time of each of
    # the sequential steps of a result. Medians of the direct kernels in Im2win's repository
    # (log_float_GPU_TFLOPS.txt), RTX 3090 at 1695 MHz: 0.56 TFLOPS over the eight layers with large maps; an image's
    # time over C kh kw for the four up to 20 x 20
    direct_macs_per_sm_cycle: Positive = 2.0
    direct_step_us: Amount = 0.229


LIBRARY_ALONE = ConvolutionChoice(("library",), DEFAULT_WORKSPACE_MIB)
"""The default for targets that do not mention convolutions."""


@dataclass(frozen=True)
class BoardEnergy:
    """Energy of a GPU and its memory, except matrix products: constant power, and energy per event."""

    static_w: Amount  # leakage, clocks and fans of the whole board, drawn as long as the model runs
    # Additional power of the GPU while one of its kernels runs, whatever it does (schedulers, register files).
    busy_w: Amount
    operation_pj: Amount  # one operation of any other kernel
    l2_pj_per_byte: Amount  # between the L2 cache and an SM
    dram_pj_per_byte: Amount  # between DRAM and the L2 cache


@dataclass(frozen=True)
class GpuEnergy(BoardEnergy):
    """Energy of a GPU whose products all have the same element type."""

    mac_pj: Amount  # one multiply-accumulate of a matrix product


@dataclass(frozen=True)
class Gpu(Unit, ABC):
    """The GPU next to the PIM channels, regardless of the cost model of its kernels.

    `memory_channels` counts all channels; with PIM in use, `memory_channels - pim.channels` of them serve the GPU.
    """

    can_host: ClassVar[bool] = True
    unsaid: ClassVar[Mapping[str, Any]] = {"convolutions": LIBRARY_ALONE}

    basis: str = field(default="", kw_only=True)  # what its cost model was fitted to, for readers
    # L2 cache of all channels together, for rows that are read by index. 0: none of them is found there again
    l2_kib: Amount = field(default=0.0, kw_only=True)
    sector_bytes: Count = field(default=32, kw_only=True)  # the smallest unit that the L2 cache fetches
    # Whether a kernel's launch latency is exposed, or hidden ("queued") while the GPU waits for the kernel's input
    launches: Literal["exposed", "queued"] = field(default="queued", kw_only=True)
    # Whether all stages of a node in a pipeline run in one kernel, which is launched once
    persistent_stages: bool = field(default=False, kw_only=True)
    # Algorithms for convolutions in addition to the library's; by default, the library runs all
    convolutions: ConvolutionChoice | None = field(default=None, kw_only=True)
    clock_mhz: Positive
    sms: Count
    memory_channels: Count
    channel_gb_per_s: Positive
    operand: Operand  # element type of activations and weights on the GPU
    operations_per_sm_cycle: Count  # operations of one SM in kernels without matrix products (vector lanes)
    asymmetric_padding: bool  # whether the library's convolutions can pad one side more than the other
    energy: BoardEnergy

    @property
    def summary(self) -> str:
        """The number of SMs and memory channels."""
        return f"{counted(self.sms, 'SM')} at {self.clock_mhz:g} MHz, {counted(self.memory_channels, 'memory channel')}"

    @property
    def settings(self) -> Mapping[str, Any]:
        """The element type."""
        return {"operand": self.operand}

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The element types that its cost model supports."""
        return (self.operand,)

    @property
    def element_bytes(self) -> int:
        """Bytes of one activation or weight."""
        return 4 if self.operand == "fp32" else 2

    @property
    @abstractmethod
    def peak_macs_per_sm_cycle(self) -> int:
        """Peak multiply-accumulates of one SM in a matrix product."""

    @property
    @abstractmethod
    def mac_pj(self) -> float:
        """Energy of one multiply-accumulate of a matrix product, in pJ."""


@register_kind
@dataclass(frozen=True)
class GpuSpec(Gpu):
    """A GPU whose cost model is fitted to a simulator's figures.

    The kernels that these numbers describe, and the formulas that use them, are in `runtime/gpu/kernels.py`.
    """

    kind: ClassVar[str] = "gpu"

    energy: GpuEnergy
    launch_cycles: CountOrZero  # GPU cycles from the launch of a kernel to its first instruction
    conv_launches: Count  # kernels that the library launches for one convolution
    macs_per_sm_cycle: Count  # peak multiply-accumulates of one SM in a matrix product
    matrix_efficiency: Positive  # share of that peak reached in a full main loop
    # (Rows, columns) of the output tile of a thread block; the best one is taken
    tiles: tuple[tuple[Count, Count], ...]
    tile_depth: Count  # elements of K in one step of the main loop
    blocks_per_sm: Count  # thread blocks of a matrix product that are resident on an SM at a time
    step_cycles: Positive  # shortest time of one step of the main loop: latency of its loads
    fill_cycles: Positive  # start of a thread block to its first step, plus last step to its end
    depthwise_macs_per_sm_cycle: Positive  # multiply-accumulates of one SM in a depthwise convolution
    memory_efficiency: Positive  # share of the channels' peak bandwidth that a kernel reaches
    l2_bytes_per_channel_cycle: Positive  # bandwidth of the L2 slices that belong to one channel
    # Numbers of parts into which K of a product may be cut, one thread block each, added up by another kernel (split-K)
    splits: tuple[Count, ...] = field(default=(1,), kw_only=True)

    @property
    def divides_sums(self) -> bool:
        """Whether `splits` has a number above one."""
        return max(self.splits) > 1

    @property
    def peak_macs_per_sm_cycle(self) -> int:
        """The value of the file."""
        return self.macs_per_sm_cycle

    @property
    def mac_pj(self) -> float:
        """Energy of one multiply-accumulate of a matrix product, in pJ."""
        return self.energy.mac_pj

    def problems(self, units: Mapping[str, Unit]) -> Iterator[tuple[str, str]]:
        """Empty lists of tiles or splits."""
        if not self.tiles:
            yield "tiles", "must name at least one tile"
        if not self.splits:
            yield "splits", "must name at least one number of parts"
