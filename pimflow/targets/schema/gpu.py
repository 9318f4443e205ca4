"""The GPU: clock, SMs, memory channels, and the parameters of its cost model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pimflow.targets.schema.unit import Amount, Count, CountOrZero, Positive, Unit, register_kind

if TYPE_CHECKING:
    from pimflow.targets.schema.target import Target


@dataclass(frozen=True)
class GpuEnergy:
    """Energy of the GPU and its memory: constant power, and energy per event."""

    static_w: Amount  # leakage, clocks and fans of the whole board, drawn as long as the model runs
    # What the GPU draws on top while one of its kernels runs, whatever it does (schedulers, register files).
    busy_w: Amount
    mac_pj: Amount  # one multiply-accumulate of a matrix product
    operation_pj: Amount  # one operation of any other kernel
    l2_pj_per_byte: Amount  # between the second-level cache and an SM
    dram_pj_per_byte: Amount  # between DRAM and the second-level cache


@register_kind
@dataclass(frozen=True)
class GpuSpec(Unit):
    """The GPU beside the PIM channels.

    `memory_channels` counts all channels; with PIM in use, `memory_channels - pim.channels` of them serve the GPU.
    The kernels that these numbers describe, and the formulas they enter, are in `runtime/gpu/kernels.py`.
    """

    kind: ClassVar[str] = "gpu"
    can_host: ClassVar[bool] = True

    clock_mhz: Positive
    sms: Count
    memory_channels: Count
    channel_gb_per_s: Positive
    launch_cycles: CountOrZero  # GPU cycles from the launch of a kernel to its first instruction
    operand: Literal["fp16", "bf16", "fp32"]  # element type of activations and weights on the GPU
    conv_launches: Count  # kernels that the library launches for one convolution
    asymmetric_padding: bool  # whether the library's convolutions can pad one side more than the other
    macs_per_sm_cycle: Count  # peak multiply-accumulates of one SM in a matrix product
    matrix_efficiency: Positive  # share of that peak which a full main loop reaches
    # (Rows, columns) of the output tile of a thread block; the best one is taken
    tiles: tuple[tuple[Count, Count], ...]
    tile_depth: Count  # elements of K in one step of the main loop
    blocks_per_sm: Count  # thread blocks of a matrix product that an SM holds at a time
    step_cycles: Positive  # shortest time of one step of the main loop: latency of its loads
    fill_cycles: Positive  # start of a thread block to its first step, and last step to its end
    depthwise_macs_per_sm_cycle: Positive  # multiply-accumulates of one SM in a depthwise convolution
    operations_per_sm_cycle: Count  # operations of one SM in any other kernel (vector lanes)
    memory_efficiency: Positive  # share of the channels' peak bandwidth that a kernel reaches
    l2_bytes_per_channel_cycle: Positive  # bandwidth of the slices of second-level cache that belong to one channel
    energy: GpuEnergy

    @property
    def element_bytes(self) -> int:
        """Bytes of one activation or weight."""
        return 4 if self.operand == "fp32" else 2

    def problems(self, target: Target) -> Iterator[tuple[str, str]]:
        """An empty list of tiles."""
        if not self.tiles:
            yield "tiles", "must name one tile or more"
