"""UPMEM: DRAM modules with a small multithreaded core next to every bank, behind the host's memory bus.

Measured tables are used as tables, with linear interpolation between entries. The exception is the bandwidth back to
the host, which does not rise steadily with the block size: there, the nearest entry applies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import ClassVar, Literal

from pimflow.errors import counted
from pimflow.records import dataclass
from pimflow.targets.schema.unit import Amount, Count, CountOrZero, Positive, Unit, register_kind

ElementType = Literal["int8", "int16", "int32", "fp32"]
"""Element types that a core can add up."""

ELEMENT_BYTES: Mapping[str, int] = {"int8": 1, "int16": 2, "int32": 4, "int64": 8, "fp32": 4}

MAX_TASKLETS = 24  # hardware threads of a core


@dataclass(frozen=True)
class MramTable:
    """How long a core waits for one transfer between its bank (MRAM) and its scratchpad (WRAM), by transfer size."""

    transfer_bytes: tuple[Count, ...]  # the last one is the longest transfer possible
    read_us: tuple[Positive, ...]
    write_us: tuple[Positive, ...]

    def problems(self) -> Iterator[tuple[str, str]]:
        """Tables of different lengths."""
        yield from _unequal(self.transfer_bytes, read_us=self.read_us, write_us=self.write_us)
        yield from _unsorted(transfer_bytes=self.transfer_bytes)


@dataclass(frozen=True)
class MultiplyAdds:
    """Instructions of one multiply-add into the accumulator with its loads, stores and loop, by element type."""

    int8: Positive
    int16: Positive
    int32: Positive
    fp32: Positive
    wide: Amount  # additional ones if integers accumulate in int64

    def of(self, element: ElementType, widened: bool) -> float:
        """The number for an element type."""
        instructions: float = getattr(self, element)
        return instructions + (self.wide if widened else 0.0)


@dataclass(frozen=True)
class KernelCosts:
    """Instructions of the aggregation kernels."""

    nonzero: Amount  # per non-zero: its column and its value, the address of its features, the loops
    row: Amount  # per row written
    row_element: Amount  # per feature of a row written: storing and clearing it
    add_element: Amount  # per feature that is added to a row from memory
    coo_nonzero: Amount  # additional ones per non-zero in COO: its row, and whether the row changes
    head_nonzero: Amount  # additional ones per non-zero and further head: its value, and the loop over its columns
    zero_row: Amount  # per row that is cleared before the non-zeros, in COO
    barrier: Amount  # per tasklet at a barrier
    mutex: Amount  # for locking and unlocking
    multiply_add: MultiplyAdds
    stream_buffer_bytes: Count  # fetched at a time by a sequential reader


@dataclass(frozen=True)
class HostLink:
    """Copies between the host's memory and the banks of all cores, to or from all of them at once."""

    host_to_pim_gb_per_s: Positive  # of delivered bytes: a copy that goes to many cores counts once per core
    block_kib: tuple[Count, ...]  # sizes of the data from one core
    pim_to_host_gb_per_s: tuple[Positive, ...]
    host_gb_per_s: Positive  # the host's own memory, when it quantises and scales
    # Between the memory of a GPU that is the machine's host, and that of the CPU. None: the CPU is the host.
    pcie_gb_per_s: Positive | None = None

    def problems(self) -> Iterator[tuple[str, str]]:
        """Tables of different lengths."""
        yield from _unequal(self.block_kib, pim_to_host_gb_per_s=self.pim_to_host_gb_per_s)
        yield from _unsorted(block_kib=self.block_kib)


@dataclass(frozen=True)
class HostMerge:
    """How fast the host copies rows to their places, and adds rows of partial results to them."""

    row_bytes: tuple[Count, ...]
    copy_rows_per_ms: tuple[Positive, ...]
    add_rows_per_ms: tuple[Positive, ...]

    def problems(self) -> Iterator[tuple[str, str]]:
        """Tables of different lengths, or with fewer than two entries."""
        yield from _unequal(
            self.row_bytes, copy_rows_per_ms=self.copy_rows_per_ms, add_rows_per_ms=self.add_rows_per_ms
        )
        yield from _unsorted(row_bytes=self.row_bytes)
        if len(self.row_bytes) < 2:
            yield "row_bytes", "needs two or more sizes, for extrapolation"


@dataclass(frozen=True)
class UpmemEnergy:
    """Power of the modules, and of the CPU that drives them."""

    dimm_w: Amount  # one module while its cores run
    idle_dimm_w: Amount  # one module while they do not
    copying_w: Amount  # the CPU while it copies, quantises and merges, in addition to waiting_w
    waiting_w: Amount  # the CPU all the time, if another unit is the machine's host; that host's power is separate
    link_pj_per_byte: Amount  # between host and banks, either way
    pcie_pj_per_byte: Amount  # between the memories of CPU and GPU


@register_kind
@dataclass(frozen=True)
class UpmemSpec(Unit):
    """UPMEM modules as one unit: cores in ranks, all of which run the same aggregation at a time."""

    kind: ClassVar[str] = "upmem"

    clock_mhz: Positive
    dimms: Count
    ranks: Count
    cores: Count  # that work, in all ranks
    tasklets: Count  # threads of a core that the kernels start
    issue_cycles: Count  # from one instruction of a tasklet to its next
    wram_bytes: Count  # scratchpad of a core
    stack_bytes: CountOrZero  # of every tasklet, in the scratchpad
    mram_bytes: Count  # bank of a core
    operand: ElementType  # of features in an aggregation, by default
    accumulator: Literal["operand", "int64"]  # for integers
    launch_us: Amount  # starting a kernel on all cores
    mram: MramTable
    kernel: KernelCosts
    link: HostLink
    merge: HostMerge
    energy: UpmemEnergy

    @property
    def summary(self) -> str:
        """Its cores, their memory and clock."""
        mib = self.mram_bytes / 2**20
        cores = counted(self.cores, "UPMEM core")
        return f"{cores} in {counted(self.ranks, 'rank')}, {mib:g} MiB each, {self.clock_mhz:g} MHz"

    @property
    def widened(self) -> bool:
        """Whether integers accumulate in int64."""
        return self.accumulator == "int64" and self.operand != "fp32"

    @property
    def static_w(self) -> float:
        """Power drawn in any case: by modules whose cores do not run, and by a CPU that is not the host."""
        return self.dimms * self.energy.idle_dimm_w + self.energy.waiting_w

    def rank_cores(self) -> tuple[int, ...]:
        """Cores of every rank: equal numbers, with one more in the first ranks if needed."""
        each, more = divmod(self.cores, self.ranks)
        return tuple(each + (rank < more) for rank in range(self.ranks))

    def problems(self, units: Mapping[str, Unit]) -> Iterator[tuple[str, str]]:
        """More threads than a core has, fewer cores than ranks, tables of different lengths."""
        if self.tasklets > MAX_TASKLETS:
            yield "tasklets", f"is {self.tasklets}; a core has {MAX_TASKLETS}"
        if self.cores < self.ranks:
            yield "cores", f"is {self.cores}, fewer than the {self.ranks} ranks"
        for name in ("mram", "link", "merge"):
            for key, problem in getattr(self, name).problems():
                yield f"{name}.{key}", problem


def _unequal(sizes: tuple[int, ...], **tables: tuple[float, ...]) -> Iterator[tuple[str, str]]:
    if not sizes:
        yield next(iter(tables)), "needs sizes to be read at, but these are empty"
    for key, table in tables.items():
        if len(table) != len(sizes):
            yield key, f"has {len(table)} entries for {len(sizes)} sizes"


def _unsorted(**tables: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    for key, table in tables.items():
        if any(small >= large for small, large in pairwise(table)):
            yield key, "must rise"
