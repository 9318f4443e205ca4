"""Machines as data: what a target file may say, as frozen dataclasses. Units are in the names.

Every field has its meaning here and its value, with its source, in a TOML file beside this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class GpuEnergy:
    """Energy of the GPU and its memory: constant power, and energy per event."""

    static_w: float  # leakage, clocks and fans of the whole board, drawn as long as the model runs
    busy_w: (
        float  # what the GPU draws on top while one of its kernels runs, whatever it does (schedulers, register files)
    )
    mac_pj: float  # one multiply-accumulate of a matrix product
    operation_pj: float  # one operation of any other kernel
    l2_pj_per_byte: float  # between the second-level cache and an SM
    dram_pj_per_byte: float  # between DRAM and the second-level cache


@dataclass(frozen=True)
class GpuSpec:
    """The GPU beside the PIM channels.

    `memory_channels` counts all channels; with PIM in use, `memory_channels - pim.channels` of them serve the GPU.
    The kernels that these numbers describe, and the formulas they enter, are in `runtime/gpu_kernels.py`.
    """

    clock_mhz: float
    sms: int
    memory_channels: int
    channel_gb_per_s: float
    launch_cycles: int  # GPU cycles from the launch of a kernel to its first instruction
    operand: Literal["fp16", "bf16", "fp32"]  # element type of activations and weights on the GPU
    conv_launches: int  # kernels that the library launches for one convolution
    macs_per_sm_cycle: int  # peak multiply-accumulates of one SM in a matrix product
    matrix_efficiency: float  # share of that peak which a full main loop reaches
    tiles: tuple[tuple[int, ...], ...]  # (rows, columns) of the output tile of a thread block; the best one is taken
    tile_depth: int  # elements of K in one step of the main loop
    blocks_per_sm: int  # thread blocks of a matrix product that an SM holds at a time
    step_cycles: float  # shortest time of one step of the main loop: latency of its loads
    fill_cycles: float  # start of a thread block to its first step, and last step to its end
    depthwise_macs_per_sm_cycle: float  # multiply-accumulates of one SM in a depthwise convolution
    operations_per_sm_cycle: int  # operations of one SM in any other kernel (vector lanes)
    memory_efficiency: float  # share of the channels' peak bandwidth that a kernel reaches
    l2_bytes_per_channel_cycle: float  # bandwidth of the slices of second-level cache that belong to one channel
    energy: GpuEnergy

    @property
    def element_bytes(self) -> int:
        """Bytes of one activation or weight."""
        return 4 if self.operand == "fp32" else 2


@dataclass(frozen=True)
class ArtifactTiming:
    """Constraints of the published simulator, in DRAM command clock cycles ("A to B": B so much later or more)."""

    gwrite_to_next_hidden: int  # GWRITE to GWRITE and to any G_ACT, with latency hiding
    gwrite_to_next_exposed: int  # the same, without
    gwrite_to_comp: int
    act_to_act: int  # G_ACTi to G_ACTi+1, within one sweep over the bank groups
    act_to_comp: int
    comp_to_comp: int
    comp_to_readres: int
    readres_to_gwrite: int
    readres_latency: int  # READRES to its result leaving the channel
    pre_to_act: int  # PREA to G_ACT0 and to REF
    ref_to_act: int  # REF to G_ACT0 and to REF
    refresh_interval: int


@dataclass(frozen=True)
class StrictTiming:
    """JEDEC-style constraints, in DRAM command clock cycles."""

    t_faw: int
    t_rcd: int
    t_rp: int
    t_ras: int
    t_rtp: int
    t_ccd: int
    t_bl: int
    t_drain: int  # MAC pipeline drain before READRES
    t_cl: int  # READRES to the start of its data burst
    t_rtw: int  # READRES to GWRITE: the data bus turns round (tCL + tBL - tCWL)
    burst_bytes: int  # data moved by one burst on the channel's bus
    t_refi: int
    t_rfc: int
    max_postponed_refreshes: int


@dataclass(frozen=True)
class PimTimings:
    """Timing profiles by name."""

    default: Literal["artifact", "strict"]
    artifact: ArtifactTiming
    strict: StrictTiming


@dataclass(frozen=True)
class ArtifactEnergy:
    """Energy constants of the published simulator (see its formula in `runtime/pim_energy.py`)."""

    precharge_nj: float
    sram_read_nj: float
    sram_write_nj: float
    dram_read_nj: float
    multiply_pj: float  # one multiplication
    add_pj: float  # one addition


@dataclass(frozen=True)
class StrictEnergy:
    """Energy per event, in picojoules, and static power of one channel."""

    activate_pj: float  # one bank's row: activation and its precharge
    column_read_pj: float  # one column I/O of one bank, from row buffer to multipliers
    mac_pj: float  # one multiply-accumulate
    buffer_read_pj: float  # one column I/O's worth from the global buffer
    buffer_write_pj: float  # one burst into the global buffer
    transfer_pj_per_byte: float  # over the channel's bus and the crossbar, either way
    refresh_pj: float  # one all-bank refresh of one channel
    static_mw: float  # background power of one channel


@dataclass(frozen=True)
class PimEnergies:
    """Energy constants by timing profile."""

    artifact: ArtifactEnergy
    strict: StrictEnergy


@dataclass(frozen=True)
class PimSpec:
    """The PIM-enabled channels and what their hardware can do."""

    channels: int
    clock_mhz: float  # DRAM command clock
    banks: int  # per channel
    bank_groups: int
    rows: int  # per bank, usable for weights
    columns: int  # column I/Os per row
    multipliers: int  # per bank: elements per column I/O
    buffers: int  # global buffers of the device that a mapping may use: channels form that many groups at most
    buffer_columns: int  # size of one buffer in column I/Os
    buffers_per_channel: int  # buffers that one channel can hold filled at a time
    any_slot_any_column: bool  # whether COMP may pair any buffer slot with any column of the row
    gwrite_latency: Literal["hidden", "exposed"]
    operand: Literal["fp16", "bf16", "fp32"]
    accumulator: Literal["fp32", "fp16"]
    readout_activation: bool  # whether activations are applied as results are read out; else a GPU kernel does it
    timing: PimTimings
    energy: PimEnergies
    # Bandwidth of the link over which operands of PIM nodes are copied to the PIM channels, and results back. None:
    # nothing is copied, as GWRITE and READRES move data over the crossbar, within the streams.
    transfer_gb_per_s: float | None = None

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
        return (self.host, "pim")
