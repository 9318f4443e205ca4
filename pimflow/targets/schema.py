"""Machines as data: what a target file may say, as frozen dataclasses. Units are in the names.

Every field has its meaning here and its value, with its source, in a TOML file beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pimflow.data import Limits

Count = Annotated[int, Limits(above=0)]
CountOrZero = Annotated[int, Limits(least=0)]
Positive = Annotated[float, Limits(above=0)]
Amount = Annotated[float, Limits(least=0)]


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


@dataclass(frozen=True)
class GpuSpec:
    """The GPU beside the PIM channels.

    `memory_channels` counts all channels; with PIM in use, `memory_channels - pim.channels` of them serve the GPU.
    The kernels that these numbers describe, and the formulas they enter, are in `runtime/gpu_kernels.py`.
    """

    clock_mhz: Positive
    sms: Count
    memory_channels: Count
    channel_gb_per_s: Positive
    launch_cycles: CountOrZero  # GPU cycles from the launch of a kernel to its first instruction
    operand: Literal["fp16", "bf16", "fp32"]  # element type of activations and weights on the GPU
    conv_launches: Count  # kernels that the library launches for one convolution
    macs_per_sm_cycle: Count  # peak multiply-accumulates of one SM in a matrix product
    matrix_efficiency: Positive  # share of that peak which a full main loop reaches
    tiles: tuple[
        tuple[Count, Count], ...
    ]  # (rows, columns) of the output tile of a thread block; the best one is taken
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


@dataclass(frozen=True)
class ArtifactTiming:
    """Constraints of the published simulator, in DRAM command clock cycles ("A to B": B so much later or more)."""

    gwrite_to_next_hidden: CountOrZero  # GWRITE to GWRITE and to any G_ACT, with latency hiding
    gwrite_to_next_exposed: Count  # the same, without
    gwrite_to_comp: Count
    act_to_act: Count  # G_ACTi to G_ACTi+1, within one sweep over the bank groups
    act_to_comp: Count
    comp_to_comp: Count
    comp_to_readres: Count
    readres_to_gwrite: Count
    readres_latency: Count  # READRES to its result leaving the channel
    pre_to_act: Count  # PREA to G_ACT0 and to REF
    ref_to_act: Count  # REF to G_ACT0 and to REF
    refresh_interval: Count


@dataclass(frozen=True)
class StrictTiming:
    """JEDEC-style constraints, in DRAM command clock cycles."""

    t_faw: Count
    t_rcd: Count
    t_rp: Count
    t_ras: Count
    t_rtp: Count
    t_ccd: Count
    t_bl: Count
    t_drain: CountOrZero  # MAC pipeline drain before READRES
    t_cl: Count  # READRES to the start of its data burst
    t_rtw: Count  # READRES to GWRITE: the data bus turns round (tCL + tBL - tCWL)
    burst_bytes: Count  # data moved by one burst on the channel's bus
    t_refi: Count
    t_rfc: Count
    max_postponed_refreshes: CountOrZero


@dataclass(frozen=True)
class PimTimings:
    """Timing profiles by name."""

    default: Literal["artifact", "strict"]
    artifact: ArtifactTiming
    strict: StrictTiming


@dataclass(frozen=True)
class ArtifactEnergy:
    """Energy constants of the published simulator (see its formula in `runtime/pim_energy.py`)."""

    precharge_nj: Amount
    sram_read_nj: Amount
    sram_write_nj: Amount
    dram_read_nj: Amount
    multiply_pj: Amount  # one multiplication
    add_pj: Amount  # one addition


@dataclass(frozen=True)
class StrictEnergy:
    """Energy per event, in picojoules, and static power of one channel."""

    activate_pj: Amount  # one bank's row: activation and its precharge
    column_read_pj: Amount  # one column I/O of one bank, from row buffer to multipliers
    mac_pj: Amount  # one multiply-accumulate
    buffer_read_pj: Amount  # one column I/O's worth from the global buffer
    buffer_write_pj: Amount  # one burst into the global buffer
    transfer_pj_per_byte: Amount  # over the channel's bus and the crossbar, either way
    refresh_pj: Amount  # one all-bank refresh of one channel
    static_mw: Amount  # background power of one channel


@dataclass(frozen=True)
class PimEnergies:
    """Energy constants by timing profile."""

    artifact: ArtifactEnergy
    strict: StrictEnergy


@dataclass(frozen=True)
class PimSpec:
    """The PIM-enabled channels and what their hardware can do."""

    channels: Count
    clock_mhz: Positive  # DRAM command clock
    banks: Count  # per channel
    bank_groups: Count
    rows: Count  # per bank, usable for weights
    columns: Count  # column I/Os per row
    multipliers: Count  # per bank: elements per column I/O
    buffers: Count  # global buffers of the device that a mapping may use: channels form that many groups at most
    buffer_columns: Count  # size of one buffer in column I/Os
    buffers_per_channel: Count  # buffers that one channel can hold filled at a time
    any_slot_any_column: bool  # whether COMP may pair any buffer slot with any column of the row
    gwrite_latency: Literal["hidden", "exposed"]
    operand: Literal["fp16", "bf16", "fp32"]
    accumulator: Literal["fp32", "fp16"]
    readout_activation: bool  # whether activations are applied as results are read out; else a GPU kernel does it
    timing: PimTimings
    energy: PimEnergies
    # Bandwidth of the link over which operands of PIM nodes are copied to the PIM channels, and results back. None:
    # nothing is copied, as GWRITE and READRES move data over the crossbar, within the streams.
    transfer_gb_per_s: Positive | None = None

    @property
    def buffer_elements(self) -> int:
        """Elements in one global buffer."""
        return self.buffer_columns * self.multipliers

    @property
    def banks_per_group(self) -> int:
        """Banks that one G_ACT opens."""
        return self.banks // self.bank_groups

    @property
    def element_bytes(self) -> int:
        """Bytes of one operand."""
        return 4 if self.operand == "fp32" else 2


@dataclass(frozen=True)
class Target:
    """A machine: GPU, PIM channels and what they cost."""

    name: str
    description: str
    gpu: GpuSpec
    pim: PimSpec

    @property
    def host(self) -> str:
        """The device that can run every node: the baseline, and where nodes run that go nowhere else."""
        return "gpu"

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices, the host first."""
        return tuple(self.units)

    @property
    def units(self) -> Mapping[str, GpuSpec | PimSpec]:
        """What the target says of each device, the host first."""
        return {"gpu": self.gpu, "pim": self.pim}

    def kind(self, device: str) -> str:
        """The kind of unit that a device is."""
        return {"gpu": "gpu", "pim": "newton"}[device]
