"""UPMEM: DRAM modules with a small multithreaded core beside every bank, behind the host's memory bus.

Tables that were measured stay tables. Between their entries one reads along straight lines, but for the bandwidth back
to the host, which does not rise steadily with the size of a block: there the nearest entry holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import ClassVar, Literal

from pimflow.records import dataclass
from pimflow.targets.schema.unit import Amount, Count, CountOrZero, Positive, Unit, register_kind

ElementType = Literal["int8", "int16", "int32", "fp32"]
"""What a core adds up."""

ELEMENT_BYTES: Mapping[str, int] = {"int8": 1, "int16": 2, "int32": 4, "int64": 8, "fp32": 4}

MOST_TASKLETS = 24  # hardware threads of a core


@dataclass(frozen=True)
class MramTable:
    """How long a core waits for one transfer between its bank (MRAM) and its scratchpad (WRAM), by its size."""

    transfer_bytes: tuple[Count, ...]  # the last one is the longest transfer there is
    read_us: tuple[Positive, ...]
    write_us: tuple[Positive, ...]

    def problems(self) -> Iterator[tuple[str, str]]:
        """Tables that do not fit each other."""
        yield from _unequal(self.transfer_bytes, read_us=self.read_us, write_us=self.write_us)
        yield from _unsorted(transfer_bytes=self.transfer_bytes)


@dataclass(frozen=True)
class MultiplyAdds:
    """Instructions of one multiply-add into the accumulator, loads, stores and the loop with it, by element type."""

    int8: Positive
    int16: Positive
    int32: Positive
    fp32: Positive
    wide: Amount  # more, where integers add up in int64

    def of(self, element: ElementType, widened: bool) -> float:
        """For an element type."""
        instructions: float = getattr(self, element)
        return instructions + (self.wide if widened else 0.0)


@dataclass(frozen=True)
class KernelCosts:
    """Instructions of the aggregation kernels."""

    nonzero: Amount  # of every non-zero: its column and its value, the address of its features, the loops
    row: Amount  # of every row written
    row_element: Amount  # of every feature of a row written: storing and clearing it
    add_element: Amount  # of every feature that is added to a row from memory
    coo_nonzero: Amount  # more of a non-zero in COO: its row, and whether it is another one
    head_nonzero: Amount  # more of a non-zero for every further head: its value, and the loop over its columns
    zero_row: Amount  # of every row that is cleared before the non-zeros, in COO
    barrier: Amount  # of every tasklet at a barrier
    mutex: Amount  # of locking and unlocking
    multiply_add: MultiplyAdds
    stream_buffer_bytes: Count  # what a sequential reader fetches at a time


@dataclass(frozen=True)
class HostLink:
    """Copies between the host's memory and the banks of all cores, every one of them at once."""

    host_to_pim_gb_per_s: Positive  # of bytes delivered: a copy that goes to many cores counts as often
    block_kib: tuple[Count, ...]  # what comes from one core
    pim_to_host_gb_per_s: tuple[Positive, ...]
    host_gb_per_s: Positive  # the host's own memory, over which it quantises and scales
    # Between the memory of a GPU that is the machine's host, and that of the CPU. None: the CPU is the host.
    pcie_gb_per_s: Positive | None = None

    def problems(self) -> Iterator[tuple[str, str]]:
        """Tables that do not fit each other."""
        yield from _unequal(self.block_kib, pim_to_host_gb_per_s=self.pim_to_host_gb_per_s)
        yield from _unsorted(block_kib=self.block_kib)


@dataclass(frozen=True)
class HostMerge:
    """How fast the host copies rows to their places, and adds rows of partial results to them."""

    row_bytes: tuple[Count, ...]
    copy_rows_per_ms: tuple[Positive, ...]
    add_rows_per_ms: tuple[Positive, ...]

    def problems(self) -> Iterator[tuple[str, str]]:
        """Tables that do not fit each other, or have fewer than two entries."""
        yield from _unequal(
            self.row_bytes, copy_rows_per_ms=self.copy_rows_per_ms, add_rows_per_ms=self.add_rows_per_ms
        )
        yield from _unsorted(row_bytes=self.row_bytes)
        if len(self.row_bytes) < 2:
            yield "row_bytes", "needs two sizes or more, to extend the table from"


@dataclass(frozen=True)
class UpmemEnergy:
    """What the modules draw, and the CPU before them while it works for them."""

    dimm_w: Amount  # one module while its cores run
    idle_dimm_w: Amount  # one module while they do not
    copying_w: Amount  # the CPU while it copies, quantises and merges, more than while it waits
    waiting_w: (
        Amount  # the CPU all the time, where another unit is the machine's host; that host's own power is its own
    )
    link_pj_per_byte: Amount  # between host and banks, either way
    pcie_pj_per_byte: Amount  # between the memories of CPU and GPU


@register_kind
@dataclass(frozen=True)
class UpmemSpec(Unit):
    """UPMEM modules as one unit: cores in ranks, all of which run one aggregation at a time."""

    kind: ClassVar[str] = "upmem"

    clock_mhz: Positive
    dimms: Count
    ranks: Count
    cores: Count  # that work, over all ranks
    tasklets: Count  # threads of a core that the kernels start
    issue_cycles: Count  # from one instruction of a tasklet to its next
    wram_bytes: Count  # scratchpad of a core
    stack_bytes: CountOrZero  # of every tasklet, in the scratchpad
    mram_bytes: Count  # bank of a core
    operand: ElementType  # what features are aggregated in, if nothing else is asked for
    accumulator: Literal["operand", "int64"]  # what integers add up in
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
        return f"{self.cores:,} UPMEM cores in {self.ranks} ranks, {mib:g} MiB each, {self.clock_mhz:g} MHz"

    @property
    def widened(self) -> bool:
        """Whether integers add up in int64."""
        return self.accumulator == "int64" and self.operand != "fp32"

    @property
    def static_w(self) -> float:
        """What is drawn whatever happens: by modules whose cores do not run, and by a CPU that is not the host."""
        return self.dimms * self.energy.idle_dimm_w + self.energy.waiting_w

    def rank_cores(self) -> tuple[int, ...]:
        """Cores of every rank: equally many, the first ones with one more."""
        each, more = divmod(self.cores, self.ranks)
        return tuple(each + (rank < more) for rank in range(self.ranks))

    def problems(self, units: Mapping[str, Unit]) -> Iterator[tuple[str, str]]:
        """More threads than a core has, fewer cores than ranks, tables that do not fit each other."""
        if self.tasklets > MOST_TASKLETS:
            yield "tasklets", f"is {self.tasklets}; a core has {MOST_TASKLETS}"
        if self.cores < self.ranks:
            yield "cores", f"is {self.cores}, fewer than the {self.ranks} ranks"
        for name in ("mram", "link", "merge"):
            for key, problem in getattr(self, name).problems():
                yield f"{name}.{key}", problem


def _unequal(sizes: tuple[int, ...], **tables: tuple[float, ...]) -> Iterator[tuple[str, str]]:
    if not sizes:
        yield next(iter(tables)), "has nothing to be read at: the sizes are empty"
    for key, table in tables.items():
        if len(table) != len(sizes):
            yield key, f"has {len(table)} entries for {len(sizes)} sizes"


def _unsorted(**tables: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    for key, table in tables.items():
        if any(small >= large for small, large in pairwise(table)):
            yield key, "must rise"
