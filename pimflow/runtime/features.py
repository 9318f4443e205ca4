"""The cost of reading rows of a table by an index, depending on where the table is: in GPU memory or host memory.

| placement | what happens |
|---|---|
| `resident` | a kernel of the GPU gathers rows of its own memory |
| `gather` | threads of the CPU gather rows into a page-locked buffer, which is copied |
| `gather-pageable` | the same into pageable memory, the default of frameworks: the driver makes a copy first |
| `zero-copy` | threads of the GPU read the host's memory over the link, rows rotated to fit lines where that pays |
| `zero-copy-plain` | the same, without rotating rows |

For R rows of b bytes, a gather and its copy take R b / gather bandwidth + R b / copy bandwidth, plus the start-up time
of each. Reads by the GPU take the time of `PcieLink.reading_us` after the launch. Requests and their sectors are
counted exactly (`sparse/host_rows.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import chain
from typing import Literal, get_args

from pimflow.codegen.answers import Copy, Parts, SumOfParts, Transfer
from pimflow.codegen.host import HostBackend
from pimflow.errors import TargetError
from pimflow.ir import Refusal
from pimflow.records import dataclass
from pimflow.sparse.checks import Ids
from pimflow.sparse.host_rows import HostRows, Requests
from pimflow.targets import Target
from pimflow.targets.schema import HostMemory, Memory, PcieLink

Placement = Literal["resident", "gather", "gather-pageable", "zero-copy", "zero-copy-plain"]
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
"""Where a table may be and how it is read from there, under the names of the options."""

HOST_MEMORY, LINK = "host memory", "pcie"
"""The resources of the steps on timelines."""

_GATHER_PASSES = 3
"""Passes over the host's channels per row: the row is read, and its place in the buffer is read and written."""


@dataclass(frozen=True, eq=False)
class TableRead:
    """A read of rows of a table, independent of where the table is.

    Args:
        index: the rows to read [R], in the order in which they are written.
        row_bytes: bytes of a row.
        element_bytes: bytes that a thread reads at a time.
        is_run: whether the rows are contiguous, so that a copy needs no gather before it.
        table_bytes: size of the table.
    """

    index: Ids
    row_bytes: int
    element_bytes: int = 4
    is_run: bool = False
    table_bytes: int = 0
    _counted: dict[tuple[int, int, bool], Requests] = field(default_factory=dict, repr=False)

    @property
    def bytes(self) -> int:
        """Total bytes of the rows."""
        return len(self.index) * self.row_bytes

    def requests(self, link: PcieLink, *, shifted: bool) -> Requests:
        """What the GPU's threads request over a link, cached."""
        key = (link.request_bytes, link.sector_bytes, shifted)
        if key not in self._counted:
            rows = HostRows(self.row_bytes, self.element_bytes, link.request_bytes, shifted, link.sector_bytes)
            self._counted[key] = rows.requests(self.index)
        return self._counted[key]


@dataclass(frozen=True)
class Access(SumOfParts):
    """The cost of one access to a table.

    Args:
        placement: where the table is, and how it is read.
        time_parts_us: time by step; the steps are sequential.
        energy_parts_mj: energy by consumer, without static power.
        requests: requests of the GPU's threads over the link; 0 for copies.
        bytes: bytes of the rows, which are written to the GPU's memory.
    """

    placement: Placement
    time_parts_us: Parts
    energy_parts_mj: Parts
    requests: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Fetch(Transfer):
    """The transfer of rows from the host's memory, as a sequence of steps."""

    steps: tuple[Copy, ...] = ()

    @classmethod
    def of(cls, access: Access) -> Fetch:
        """The transfer of an access: the CPU's gather occupies the host's memory, all other steps the link.

        The energy of the other steps is attributed to the last of them.
        """
        energy = dict(access.energy_parts_mj)
        cpu_mj = energy.pop("CPU", 0.0)
        *before, (last, last_us) = access.time_parts_us.items()
        steps = [Copy(part, time_us, cpu_mj, HOST_MEMORY) for part, time_us in before if part == "gather"]
        steps += [Copy(part, time_us, 0.0) for part, time_us in before if part != "gather"]
        return cls(0.0, 0.0, link=LINK, steps=(*steps, Copy(last, last_us, sum(energy.values()))))

    @property
    def energy_mj(self) -> float:
        """Energy of all steps."""
        return sum(step.energy_mj for step in self.steps)

    @property
    def before(self) -> tuple[Copy, ...]:
        """All steps: the node itself does nothing."""
        return self.steps


class FeatureAccess:
    """Prices accesses to tables on a machine with known memory tiers.

    Args:
        target: the machine.
        host: the machine's GPU, whose kernels gather rows of its own memory.

    Raises:
        TargetError: the target does not describe its memory tiers.
    """

    def __init__(self, target: Target, host: HostBackend) -> None:
        self.memory, self.tier, self.link = tiers_of(target)
        self.host = host

    def cost(self, placement: Placement, read: TableRead) -> Access:
        """The cost of reading rows of a table."""
        if placement == "resident":
            cost = self.host.copy_cost(2 * read.bytes, "uint8")
            return Access(placement, {"gather": cost.time_us}, {"GPU": cost.energy_mj}, 0, read.bytes)
        if placement == "gather":
            return self._gathered(placement, read, self.link.copy_gb_per_s, 0)
        if placement == "gather-pageable":
            return self._gathered(placement, read, self.link.pageable_gb_per_s, 2 * read.bytes)
        return self._read(placement, read)

    def cost_of_all(self, placement: Placement, reads: Sequence[TableRead]) -> Access:
        """The cost of reading rows of several tables, one after the other."""
        found = [self.cost(placement, read) for read in reads]
        return Access(
            placement,
            _added([one.time_parts_us for one in found]),
            _added([one.energy_parts_mj for one in found]),
            sum(one.requests for one in found),
            sum(one.bytes for one in found),
        )

    def lower_bound_us(self, size: int) -> float:
        """A lower bound in microseconds on fetching `size` bytes by any method: all of them cross the link."""
        rates = (self.link.copy_gb_per_s, self.link.pageable_gb_per_s, self.link.zero_copy_gb_per_s)
        return size / (max(rates) * 1e3)

    def _gathered(self, placement: Placement, read: TableRead, copy_gb_per_s: float, staged: int) -> Access:
        """The cost of a gather and a copy; the driver's own copy moves `staged` bytes over the host's channels."""
        size, link = read.bytes, read.bytes * self.link.pj_per_byte * 1e-9
        copy_us = self.link.copy_us + size / (copy_gb_per_s * 1e3)
        if read.is_run:
            moved = {"host DRAM": (staged + size) * self._dram_mj, "link": link}
            return Access(placement, {"copy": copy_us}, moved, 0, size)
        rate = self.tier.gathered_gb_per_s(pageable=placement == "gather-pageable")
        gather_us = self.tier.gather_us + size / (rate * 1e3)
        energy = {
            "CPU": self.tier.gather_w * gather_us * 1e-3,
            "host DRAM": (_GATHER_PASSES * size + staged + size) * self._dram_mj,
            "link": link,
        }
        return Access(placement, {"gather": gather_us, "copy": copy_us}, energy, 0, size)

    @property
    def _dram_mj(self) -> float:
        """Millijoules of a byte that passes the host's channels."""
        return self.tier.dram_pj_per_byte * 1e-9

    def _read(self, placement: Placement, read: TableRead) -> Access:
        counted = read.requests(self.link, shifted=placement == "zero-copy")
        requests, sectors = counted.requests, counted.sectors
        read_us = self.link.reading_us(requests, sectors, len(read.index), read.table_bytes)
        energy = {
            "GPU": self.link.reading_w * read_us * 1e-3,
            "host DRAM": sectors * self.link.sector_bytes * self._dram_mj,
            "link": self.link.bytes_of(requests, sectors) * self.link.pj_per_byte * 1e-9,
        }
        return Access(placement, {"launch": self.link.zero_copy_us, "read": read_us}, energy, requests, read.bytes)

    def placements(self, table_bytes: int, beside: int, on_host: int = 0) -> Mapping[Placement, Refusal | None]:
        """For each placement, why the table does not fit there, or None if it does.

        Args:
            table_bytes: bytes of the table.
            beside: bytes of everything else in the GPU's memory at its peak.
            on_host: bytes of everything else in the host's memory.

        Raises:
            TargetError: the table fits nowhere.
        """
        on_gpu = _room("the GPU", table_bytes, self.memory.gpu.usable_bytes - beside)
        in_host = _room("the host", table_bytes, self.tier.capacity_bytes - on_host)
        if on_gpu is not None and in_host is not None:
            raise TargetError(f"features fit nowhere: {on_gpu.reason}; {in_host.reason}", "choose a larger machine")
        return {placement: on_gpu if placement == "resident" else in_host for placement in PLACEMENTS}


def _added(parts: Sequence[Parts]) -> Parts:
    return {name: sum(one.get(name, 0.0) for one in parts) for name in dict.fromkeys(chain.from_iterable(parts))}


def tiers_of(target: Target) -> tuple[Memory, HostMemory, PcieLink]:
    """The memory tiers of a target: the GPU's memory, the host's, and the link.

    Raises:
        TargetError: the target does not describe them.
    """
    memory = target.memory
    if memory is None or memory.host is None or memory.pcie is None:
        raise TargetError(
            f"target {target.name!r} does not describe its memory tiers",
            "add [memory.gpu], [memory.host] and [memory.pcie] (docs/targets.md), or choose rtx3090",
        )
    return memory, memory.host, memory.pcie


def _room(where: str, demand: int, capacity: int) -> Refusal | None:
    if demand <= capacity:
        return None
    return Refusal(f"{demand / 1e9:,.2f} GB of features, room for {max(capacity, 0) / 1e9:,.2f} GB in {where}'s memory")
