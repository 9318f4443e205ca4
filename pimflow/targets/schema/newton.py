"""Newton-style PIM: the channels, the features of their hardware, and timing and energy by profile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pimflow.data import Limits, Nested, Table, not_among, take, unknown
from pimflow.errors import TargetError, counted
from pimflow.records import dataclass
from pimflow.targets.schema.gpu import Gpu
from pimflow.targets.schema.unit import (
    MISSING,
    Amount,
    Count,
    CountOrZero,
    Cycles,
    CyclesOrZero,
    Positive,
    Unit,
    register_kind,
)

OPERANDS = ("fp16", "bf16", "fp32")
"""Operand types in which a whole model can be computed."""

T = TypeVar("T")


@dataclass(frozen=True)
class TimingTable:
    """The constraints of one timing profile, in DRAM command clock cycles."""

    def problems(self, pim: PimSpec) -> Iterator[tuple[str, str]]:
        """Invalid values, as (key, what is wrong with its value)."""
        return iter(())


@dataclass(frozen=True)
class ArtifactTiming(TimingTable):
    """Constraints of the published simulator, in DRAM command clock cycles ("A to B": minimum time from A to B)."""

    gwrite_to_next_hidden: CyclesOrZero  # GWRITE to GWRITE and to any G_ACT, with latency hiding
    gwrite_to_next_exposed: Cycles  # the same, without latency hiding
    gwrite_to_comp: Cycles
    act_to_act: Cycles  # G_ACTi to G_ACTi+1, within one sweep over the bank groups
    act_to_comp: Cycles
    comp_to_comp: Cycles
    comp_to_readres: Cycles
    readres_to_gwrite: Cycles
    readres_latency: Cycles  # READRES to its result leaving the channel
    pre_to_act: Cycles  # PREA to G_ACT0 and to REF
    ref_to_act: Cycles  # REF to G_ACT0 and to REF
    refresh_interval: Count

    def problems(self, pim: PimSpec) -> Iterator[tuple[str, str]]:
        """A refresh, including reopening all rows before the next COMP, that takes longer than the refresh interval."""
        rows = (pim.bank_groups - 1) * self.act_to_act + self.act_to_comp
        if self.refresh_interval <= self.pre_to_act + self.ref_to_act + rows + 1:
            yield "refresh_interval", "leaves no time between refreshes"


@dataclass(frozen=True)
class StrictTiming(TimingTable):
    """JEDEC-style constraints, in DRAM command clock cycles."""

    t_faw: Cycles
    t_rcd: Cycles
    t_rp: Cycles
    t_ras: Cycles
    t_rtp: Cycles
    t_ccd_s: Cycles  # column commands in different bank groups: bursts to and from the buffers
    t_ccd_l: Cycles  # column commands in one bank group: COMP to COMP, as every COMP reads all banks
    t_bl: Cycles  # one burst on the data bus
    t_drain: CyclesOrZero  # MAC pipeline drain before READRES
    t_cl: CyclesOrZero  # READRES to the start of its first data burst
    t_cwl: CyclesOrZero  # GWRITE to the start of its first data burst
    t_wtr: CyclesOrZero  # end of a GWRITE's data to READRES: data bus turnaround
    t_rtw: Cycles  # last burst of a READRES to GWRITE: data bus turnaround (tCL + tBL - tCWL)
    t_mod: CyclesOrZero  # change between access to banks and to registers; 0 if there are no such modes
    burst_bytes: Count  # data moved by one burst on the channel's bus
    t_refi: Count
    t_rfc: Cycles
    max_postponed_refreshes: CountOrZero

    @property
    def burst_cycles(self) -> int:
        """Cycles from one burst to the next on the data bus."""
        return max(self.t_bl, self.t_ccd_s)

    def bursts(self, size: int) -> int:
        """The number of bursts for `size` bytes, at least one."""
        return max(1, -(-size // self.burst_bytes))

    def problems(self, pim: PimSpec) -> Iterator[tuple[str, str]]:
        """A refresh, including reopening all rows, that takes longer than the refresh interval."""
        rows = pim.bank_groups * self.t_faw + self.t_ras + self.t_rcd
        if self.t_refi <= self.t_rp + self.t_rfc + rows + 2 * self.t_mod:
            yield "t_refi", "leaves no time between refreshes"


@dataclass(frozen=True)
class ArtifactEnergy:
    """Energy constants of the published simulator (see its formula in `runtime/newton/profiles/artifact.py`)."""

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
    transfer_pj_per_byte: Amount  # over the channel's bus and the crossbar, in either direction
    refresh_pj: Amount  # one all-bank refresh of one channel
    static_mw: Amount  # background power of one channel


TIMINGS: dict[str, type[TimingTable]] = {"artifact": ArtifactTiming, "strict": StrictTiming}
"""The schema of `[pim.timing.NAME]` by profile."""

ENERGIES: dict[str, type[Any]] = {"artifact": ArtifactEnergy, "strict": StrictEnergy}
"""The schema of `[pim.energy.NAME]` by profile."""


def _read_tables(forms: dict[str, type[Any]], data: dict[str, Any], read: Nested, *others: str) -> Table[Any]:
    for key in data:
        if key not in forms:
            raise unknown(key, (*others, *forms))
    return Table({name: read(forms[name], table, name) for name, table in data.items()})


def _table_of(tables: Table[Any], form: type[T], name: str, path: str) -> T:
    if name not in tables:
        raise TargetError(f"this machine has no table [{path}.{name}]", "add it to the target's file")
    table = tables[name]
    assert isinstance(table, form)
    return table


@dataclass(frozen=True)
class PimTimings:
    """Timing profiles by name, and the default one."""

    default: str
    tables: Table[TimingTable]

    @cached_property
    def artifact(self) -> ArtifactTiming:
        """The table of the published simulator."""
        return _table_of(self.tables, ArtifactTiming, "artifact", "pim.timing")

    @cached_property
    def strict(self) -> StrictTiming:
        """The table of what JEDEC-style DRAM would allow; its bus constants apply under every profile."""
        return _table_of(self.tables, StrictTiming, "strict", "pim.timing")

    def with_tables(self, **tables: TimingTable) -> PimTimings:
        """The same profiles with some tables replaced."""
        return replace(self, tables=Table({**self.tables, **tables}))

    @classmethod
    def from_data(cls, data: Any, read: Nested) -> PimTimings:
        """Reads `default`, and a table per profile."""
        rest = dict(read(dict[str, Any], data))
        name = rest.pop("default", None)
        tables = _read_tables(TIMINGS, rest, read, "default")
        default = read(str, take({} if name is None else {"default": name}, "default"), "default")
        if default not in TIMINGS:
            raise not_among(default, TIMINGS, "default")
        return cls(default, tables)

    def to_data(self) -> dict[str, Any]:
        """The profiles as in a target file."""
        return {"default": self.default, **self.tables}


@dataclass(frozen=True)
class PimEnergies:
    """Energy constants by timing profile."""

    tables: Table[Any]

    @property
    def artifact(self) -> ArtifactEnergy:
        """The table of the published simulator."""
        return _table_of(self.tables, ArtifactEnergy, "artifact", "pim.energy")

    @property
    def strict(self) -> StrictEnergy:
        """The table by cause; transfers over the bus cost the same under every profile."""
        return _table_of(self.tables, StrictEnergy, "strict", "pim.energy")

    def with_tables(self, **tables: Any) -> PimEnergies:
        """The same profiles with some tables replaced."""
        return PimEnergies(Table({**self.tables, **tables}))

    @classmethod
    def from_data(cls, data: Any, read: Nested) -> PimEnergies:
        """Reads a table per profile."""
        return cls(_read_tables(ENERGIES, read(dict[str, Any], data), read))

    def to_data(self) -> dict[str, Any]:
        """The profiles as in a target file."""
        return dict(self.tables)


Activation = Literal[
    "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Tanh"
]
"""Functions of a single element that hardware can apply to results, by ONNX op_type."""


MAX_BUFFERS_PER_CHANNEL = 64
"""Limit on the buffers of a channel, because the mapping search tries every number of them."""
FewBuffers = Annotated[int, Limits(least=1, most=MAX_BUFFERS_PER_CHANNEL)]


@dataclass(frozen=True)
class Int8:
    """Hardware that multiplies signed or unsigned 8-bit operands and accumulates in 32 bits: `[pim.int8]`."""

    multipliers: Count  # per bank: 8-bit operands per column I/O
    result_bytes: Count  # bytes that one bank returns in a READRES
    multiply_pj: Amount  # one multiplication, under every profile
    add_pj: Amount  # one 32-bit addition, under every profile


@register_kind
@dataclass(frozen=True)
class PimSpec(Unit):
    """The PIM-enabled channels and the features of their hardware."""

    kind: ClassVar[str] = "newton"

    channels: Count
    clock_mhz: Positive  # DRAM command clock
    banks: Count  # per channel
    bank_groups: Count
    rows: Count  # per bank, usable for weights
    columns: Count  # column I/Os per row
    multipliers: Count  # per bank: elements per column I/O
    buffers: Count  # global buffers of the device that a mapping may use: limits the number of channel groups
    buffer_columns: Count  # size of one buffer in column I/Os
    buffers_per_channel: FewBuffers  # filled buffers that one channel can hold at a time
    any_slot_any_column: bool  # whether COMP may pair any buffer slot with any column of the row
    gwrite_latency: Literal["hidden", "exposed"]
    operand: Literal["fp16", "bf16", "fp32", "int8"]
    accumulator: Literal["fp32", "fp16"]
    result_bytes: Count  # bytes that one bank returns in a READRES
    # Functions of a single element, by ONNX op_type, that are applied while results are read out; others run on the GPU
    readout_functions: Literal["any"] | tuple[Activation, ...]
    launch_us: Amount  # microseconds from requesting a PIM kernel to its first command
    timing: PimTimings
    energy: PimEnergies
    # Bandwidth of the link over which operands of PIM nodes are copied to the PIM channels, and results back. None:
    # nothing is copied, because GWRITE and READRES move data over the crossbar within the streams.
    transfer_gb_per_s: Positive | None = None
    # Hypothetical hardware: the number of parts into which a kernel may divide every buffer, to be filled and read
    # independently; 2 is ping-pong between halves. A COMP then names a part, and its slot in the part is its column.
    buffer_parts: FewBuffers = 1
    # Hypothetical hardware: whether channels may also fill the buffers that no other group of channels needs.
    buffer_pool: bool = False
    # Microseconds in which the channels change between PIM and host and serve neither, including the time to make data
    # accessible. None: they belong to PIM for the whole run.
    channel_switch_us: Amount | None = None
    # 8-bit operands in addition to its own type, for products that a model stores in 8 bits. None: not supported.
    int8: Int8 | None = None

    @property
    def narrow_operands(self) -> tuple[str, ...]:
        """Narrow integer types that it multiplies directly."""
        return () if self.int8 is None else ("int8",)

    @property
    def in_int8(self) -> PimSpec:
        """The same channels with 8-bit operands, of which a column and a buffer hold twice as many as of 16-bit ones.

        Raises:
            ValueError: they do not support these.
        """
        if self.int8 is None:
            raise ValueError("the channels cannot multiply 8-bit operands")
        multiply, add = self.int8.multiply_pj, self.int8.add_pj
        tables: dict[str, Any] = {}
        if "artifact" in self.energy.tables:
            tables["artifact"] = replace(self.energy.artifact, multiply_pj=multiply, add_pj=add)
        tables["strict"] = replace(self.energy.strict, mac_pj=multiply + add)
        return replace(
            self,
            operand="int8",
            multipliers=self.int8.multipliers,
            result_bytes=self.int8.result_bytes,
            energy=self.energy.with_tables(**tables),
            int8=None,
        )

    @property
    def summary(self) -> str:
        """The number of channels, and the multipliers in each."""
        banks = counted(self.banks, "bank")
        return f"{counted(self.channels, 'channel')} of {banks} x {counted(self.multipliers, 'multiplier')}"

    @property
    def settings(self) -> Mapping[str, Any]:
        """Timing profile, channels, buffers, GWRITE latency, and the element type."""
        names = ("channels", "buffers", "buffers_per_channel", "gwrite_latency", "operand")
        kinds = ", ".join((self.operand, *self.narrow_operands))
        return {"timing": self.timing.default, **{name: getattr(self, name) for name in names}, "operand": kinds}

    @property
    def buffer_elements(self) -> int:
        """Elements in one global buffer."""
        return self.buffer_columns * self.multipliers

    @property
    def fills_per_channel(self) -> int:
        """Filled buffers that a channel can hold at a time, if its group is the only one."""
        return self.fills_held(1)

    def fills_held(self, groups: int) -> int:
        """Filled buffers that a channel can hold at a time if channels form `groups` groups."""
        return self.buffers_per_channel * (max(self.buffers // groups, 1) if self.buffer_pool else 1)

    def in_parts(self, parts: int) -> PimSpec:
        """The same channels for a kernel that divides every buffer into `parts` parts."""
        if parts == 1:
            return self
        columns, held = self.buffer_columns // parts, self.buffers_per_channel * parts
        return replace(self, buffer_columns=columns, buffers_per_channel=held, buffer_parts=1)

    @property
    def with_less(self) -> tuple[PimSpec, ...]:
        """The same channels with one of the hardware options off; if they share a pool of buffers, also with one less
        per channel."""
        less: dict[str, Any] = {
            "buffer_parts": 1,
            "buffer_pool": False,
            "any_slot_any_column": False,
            "buffers_per_channel": max(self.buffers_per_channel - self.buffer_pool, 1),
        }
        return tuple(replace(self, **{key: value}) for key, value in less.items() if getattr(self, key) != value)

    @property
    def banks_per_group(self) -> int:
        """Banks opened by one G_ACT."""
        return self.banks // self.bank_groups

    @property
    def element_bytes(self) -> int:
        """Bytes of one operand."""
        return {"fp32": 4, "int8": 1}.get(self.operand, 2)

    def problems(self, units: Mapping[str, Unit]) -> Iterator[tuple[str, str]]:
        """Sizes that do not match each other or the GPU, and profiles without tables."""
        yield from self._operand_problems()
        if self.banks % self.bank_groups:
            yield "bank_groups", "must divide pim.banks"
        if self.buffers > self.channels:
            yield "buffers", "must not exceed pim.channels"
        if self.buffer_columns % self.buffer_parts:
            yield "buffer_parts", "must divide pim.buffer_columns"
        if self.fills_per_channel * self.buffer_parts > MAX_BUFFERS_PER_CHANNEL:
            yield (
                "buffers_per_channel",
                f"with their parts and the pool must not exceed {MAX_BUFFERS_PER_CHANNEL}",
            )
        for device, unit in units.items():
            if isinstance(unit, Gpu) and self.channels >= unit.memory_channels:
                yield "channels", f"must be below {device}.memory_channels"
        yield from self._profile_problems()

    def _operand_problems(self) -> Iterator[tuple[str, str]]:
        if self.operand == "int8":
            yield "operand", "applies to every model, and most are not in int8: use the table [pim.int8]"
        column_bytes = self.multipliers * self.element_bytes
        if self.int8 is not None and self.int8.multipliers > column_bytes:
            yield "int8.multipliers", f"must not exceed the {column_bytes} bytes of a column I/O"

    def _profile_problems(self) -> Iterator[tuple[str, str]]:
        profiles = dict.fromkeys(("strict", self.timing.default, *self.timing.tables, *self.energy.tables))
        for name in profiles:
            for where, tables in (("timing", self.timing.tables), ("energy", self.energy.tables)):
                if name not in tables:
                    yield f"{where}.{name}", MISSING
        for name, table in self.timing.tables.items():
            for key, problem in table.problems(self):
                yield f"timing.{name}.{key}", problem
