"""A GPU whose kernels are those of libraries, as measured: the parameters of its cost model.

The formulas are in `runtime/gpu/library.py`. `pimflow calibrate` fits efficiencies, latencies and times per call to
measured kernels; tiles, peaks and caches are properties of the machine and its libraries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from pimflow.data import Limits
from pimflow.records import dataclass
from pimflow.targets.schema.gpu import Gpu, Operand
from pimflow.targets.schema.unit import MISSING, Amount, Count, Positive, Unit, register_kind

Share = Annotated[float, Limits(least=1e-9, most=1)]


@dataclass(frozen=True)
class Tiling:
    """A family of kernels that compute a matrix product in tiles of the result; the fastest one is used."""

    tiles: tuple[tuple[Count, Count], ...]  # (rows, columns) per thread block
    depth: Count  # elements of K in one step of the main loop
    splits: tuple[Count, ...]  # numbers of parts into which K may be cut, one thread block each; sums are added later
    macs_per_sm_cycle: Count  # peak multiply-accumulates of one SM
    accumulators_per_sm: Count  # results in an SM's registers: limits the number of resident thread blocks
    efficiency: Share  # share of the peak at the highest clock that full main loops reach
    step_us: Amount  # shortest time of one step of the main loop: latency of its loads
    fill_us: Amount  # start of a thread block to its first step, plus last step to its end
    split_us: Amount  # time to add up the parts of K, in addition to moving them
    operand_gb_per_s: Positive  # bandwidth of the operands of all tiles, through the caches
    memory_efficiency: Share  # share of the channels' peak bandwidth that is reached
    # A kernel much longer than `throttled_after_us` takes 1 + `throttling` times its time at the highest clock: the
    # board's power limit lowers the clock.
    throttling: Amount
    throttled_after_us: Positive
    # Bandwidth of tiles that are written after their main loops; without it, writing overlaps with computing
    result_gb_per_s: Positive | None = None


@dataclass(frozen=True)
class Call:
    """The overhead of a library call around its kernel.

    The measured time of a call with a kernel of time `t` is max(`call_us`, `lead_us` + t).
    """

    lead_us: Amount  # call to the kernel's first instruction
    call_us: Amount  # shortest time of a call, however short its kernel is: the host's share


@dataclass(frozen=True)
class Products(Call):
    """Matrix products, single or in batches."""

    gemm: Tiling
    unaligned: Tiling | None = None  # used instead where N or K is no multiple of `row_multiple`
    row_multiple: Count | None = None  # elements; rows begin at addresses that bulk copies and vector loads need


@dataclass(frozen=True)
class Winograd:
    """Convolution of 3x3 windows at stride 1 in three steps: transform operands, multiply, transform results back.

    Computes m x m outputs from (m+2) x (m+2) inputs with (m+2)^2 products instead of 9 m^2 (Lavin and Gray, CVPR 2016).
    """

    output_tile: Count  # m
    gemm: Tiling


@dataclass(frozen=True)
class Convolutions(Call):
    """Convolutions, dense and grouped."""

    implicit_gemm: Tiling
    channel_multiple: Count  # to which the channels of a group are padded for `implicit_gemm`
    few_channels: Tiling | None = None  # used instead for windows with fewer channels than that; dense ones only
    winograd: Winograd | None = None
    unaligned: Tiling | None = None  # as in `Products`, for channels and filters of a group
    row_multiple: Count | None = None


@dataclass(frozen=True)
class Depthwise(Call):
    """Convolutions with one input channel per group."""

    macs_per_sm_cycle: Positive
    memory_efficiency: Share
    cache_gb_per_s: Positive | None = None  # as in `Streams`
    # A result's time per element of its window: its sum is computed step by step, however few results there are
    tap_us: Positive | None = None


@dataclass(frozen=True)
class ShortRows:
    """Softmax or normalisation of short rows, which has kernels of its own; the keys are those of `Streams`."""

    columns: Count  # the longest row
    memory_efficiency: Share
    cache_gb_per_s: Positive | None = None
    row_us: Positive | None = None
    column_us: Positive | None = None


@dataclass(frozen=True)
class Streams(Call):
    """Kernels that read or write every byte once.

    A thread block, or a part of one, computes a row of a softmax or a normalisation. An SM takes `row_us` for each of
    its rows; in addition, a row takes `column_us` for each of its elements, however few rows there are.
    """

    memory_efficiency: Share
    cache_gb_per_s: Positive | None = None  # bandwidth of the L2 cache, which all bytes pass; without it, no limit
    row_us: Positive | None = None
    column_us: Positive | None = None
    short_rows: ShortRows | None = None


@dataclass(frozen=True)
class Library:
    """The kernels for operands of one element type."""

    mac_pj: Amount  # energy of one multiply-accumulate of a product or convolution
    product: Products
    convolution: Convolutions
    depthwise: Depthwise
    elementwise: Streams  # also copies, pooling, reductions: everything that is not named elsewhere
    softmax: Streams
    normalization: Streams


@register_kind
@dataclass(frozen=True)
class MeasuredGpuSpec(Gpu):
    """A GPU with a library of measured kernels for every element type that it supports."""

    kind: ClassVar[str] = "measured-gpu"

    fp16: Library | None = None
    fp32: Library | None = None
    # Whether the L2 cache still has the activations of the kernels before, as far as it holds them
    warm_activations: bool | None = None

    @property
    def library(self) -> Library:
        """The kernels of its element type.

        Raises:
            ValueError: it has none for this type (`problems` reports this for a target file).
        """
        library = {"fp16": self.fp16, "fp32": self.fp32}.get(self.operand)
        if library is None:
            raise ValueError(f"no kernels for {self.operand}")
        return library

    @property
    def peak_macs_per_sm_cycle(self) -> int:
        """The peak of its products."""
        return self.library.product.gemm.macs_per_sm_cycle

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The element types with kernels."""
        libraries: tuple[tuple[Operand, Library | None], ...] = (("fp16", self.fp16), ("fp32", self.fp32))
        return tuple(operand for operand, library in libraries if library is not None)

    @property
    def mac_pj(self) -> float:
        """Energy of one multiply-accumulate of a product in its element type, in pJ."""
        return self.library.mac_pj

    def problems(self, units: Mapping[str, Unit]) -> Iterator[tuple[str, str]]:
        """An element type without kernels, or tilings without tiles."""
        if self.operand not in self.operands:
            yield self.operand, MISSING
        for operand, library in (("fp16", self.fp16), ("fp32", self.fp32)):
            if library is not None:
                yield from _problems(operand, library)


def _problems(operand: str, library: Library) -> Iterator[tuple[str, str]]:
    convolution = library.convolution
    tilings: dict[str, Tiling | None] = {
        "product.gemm": library.product.gemm,
        "product.unaligned": library.product.unaligned,
        "convolution.implicit_gemm": convolution.implicit_gemm,
        "convolution.few_channels": convolution.few_channels,
        "convolution.unaligned": convolution.unaligned,
        "convolution.winograd.gemm": convolution.winograd.gemm if convolution.winograd else None,
    }
    for path, tiling in tilings.items():
        if tiling is not None and not (tiling.tiles and tiling.splits):
            yield f"{operand}.{path}.{'splits' if tiling.tiles else 'tiles'}", "must name at least one"
