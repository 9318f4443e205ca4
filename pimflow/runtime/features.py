"""What reading rows of a table by an index takes, by where the table lies: the GPU's memory, or the host's.

| placement | what happens |
|---|---|
| `resident` | a kernel of the GPU gathers rows of its own memory |
| `gather` | threads of the CPU gather rows into a page-locked buffer, which is copied |
| `gather-pageable` | the same into ordinary memory, as frameworks do it unless asked: the driver copies it first |
| `zero-copy` | threads of the GPU read the host's memory over the link, rows rotated to lines where that pays |
| `zero-copy-plain` | the same, rows as they lie |

Of R rows of b bytes, a gather and its copy take R b / gather bandwidth + R b / copy bandwidth, and both beginnings;
reads of the GPU max(requests x 128 B / bandwidth, requests x round trip / outstanding requests) behind the launch (Min
et al., PyTorch-Direct, 2021). Requests are counted exactly (`sparse/host_rows.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from pimflow.codegen.backend import Parts
from pimflow.codegen.host import HostBackend
from pimflow.errors import TargetError
from pimflow.ir import Refusal
from pimflow.sparse.checks import Ids
from pimflow.sparse.host_rows import HostRows
from pimflow.targets import Target
from pimflow.targets.schema import HostMemory, Memory, PcieLink

Placement = Literal["resident", "gather", "gather-pageable", "zero-copy", "zero-copy-plain"]
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
"""Where a table may lie and how it is read from there, by the names of options."""

_GATHER_PASSES = 3
"""Of the host's channels: a row is read, its place in the buffer read before it is written, and written."""


@dataclass(frozen=True)
class Access:
    """What one access to a table costs.

    Args:
        placement: where the table lies, and how it is read.
        rows, row_bytes: what is read.
        time_parts_us: by step; they follow one another.
        energy_parts_mj: by event, static power apart.
        requests: over the link, of the GPU's threads; 0 of copies.
    """

    placement: Placement
    rows: int
    row_bytes: int
    time_parts_us: Parts
    energy_parts_mj: Parts
    requests: int = 0

    @property
    def time_us(self) -> float:
        """All steps."""
        return sum(self.time_parts_us.values())

    @property
    def energy_mj(self) -> float:
        """All events."""
        return sum(self.energy_parts_mj.values())

    @property
    def bytes(self) -> int:
        """Of the rows."""
        return self.rows * self.row_bytes


class FeatureAccess:
    """Prices accesses to tables on a machine whose tiers are known.

    Args:
        target: the machine.
        host: its GPU, whose kernels gather rows that lie there.

    Raises:
        TargetError: the target does not say its tiers.
    """

    def __init__(self, target: Target, host: HostBackend) -> None:
        self.memory, self.tier, self.link = tiers_of(target)
        self.host = host

    def cost(self, placement: Placement, index: Ids, row_bytes: int, element_bytes: int = 4) -> Access:
        """Reading the rows of an index [R] of a table."""
        rows, size = len(index), len(index) * row_bytes
        if placement == "resident":
            return self._on_gpu(rows, row_bytes)
        if placement == "gather":
            return self._gathered(placement, rows, row_bytes, size / (self.link.copy_gb_per_s * 1e3), 0)
        if placement == "gather-pageable":
            return self._gathered(placement, rows, row_bytes, size / (self.link.pageable_gb_per_s * 1e3), 2 * size)
        shifted = placement == "zero-copy"
        table = HostRows(row_bytes, element_bytes, self.link.request_bytes, shifted)
        return self._read(placement, rows, row_bytes, table.requests(index))

    def _on_gpu(self, rows: int, row_bytes: int) -> Access:
        cost = self.host.copy_cost(2 * rows * row_bytes, "uint8")
        return Access("resident", rows, row_bytes, {"gather": cost.time_us}, {"GPU": cost.energy_mj})

    def _gathered(self, placement: Placement, rows: int, row_bytes: int, moving_us: float, staged: int) -> Access:
        """`staged` bytes pass the host's channels on the driver's way to its own buffer."""
        size = rows * row_bytes
        gather_us = self.tier.gather_us + size / (self.tier.gather_gb_per_s * 1e3)
        passed = _GATHER_PASSES * size + staged + size
        energy = {
            "CPU": self.tier.gather_w * gather_us * 1e-3,
            "host DRAM": passed * self.tier.dram_pj_per_byte * 1e-9,
            "link": size * self.link.pj_per_byte * 1e-9,
        }
        times = {"gather": gather_us, "copy": self.link.copy_us + moving_us}
        return Access(placement, rows, row_bytes, times, energy)

    def _read(self, placement: Placement, rows: int, row_bytes: int, requests: int) -> Access:
        asked = requests * self.link.request_bytes
        streaming_us = asked / (self.link.zero_copy_gb_per_s * 1e3)
        waiting_us = requests * self.link.round_trip_ns * 1e-3 / self.link.outstanding_requests
        read_us = max(streaming_us, waiting_us)
        energy = {
            "GPU": self.link.reading_w * read_us * 1e-3,
            "host DRAM": asked * self.tier.dram_pj_per_byte * 1e-9,
            "link": asked * self.link.pj_per_byte * 1e-9,
        }
        times = {"launch": self.link.zero_copy_us, "read": read_us}
        return Access(placement, rows, row_bytes, times, energy, requests)

    def placements(self, table_bytes: int, beside: int, on_host: int = 0) -> Mapping[Placement, Refusal | None]:
        """Where a table has room, and why not.

        Args:
            table_bytes: of the table.
            beside: what else the GPU's memory has to hold at its peak.
            on_host: what else the host's memory has to hold.

        Raises:
            TargetError: it fits nowhere.
        """
        on_gpu = _room("the GPU", table_bytes, self.memory.gpu.usable_bytes - beside)
        in_host = _room("the host", table_bytes, self.tier.capacity_bytes - on_host)
        if on_gpu is not None and in_host is not None:
            raise TargetError(f"features fit nowhere: {on_gpu.reason}; {in_host.reason}", "choose a larger machine")
        return {placement: on_gpu if placement == "resident" else in_host for placement in PLACEMENTS}


def tiers_of(target: Target) -> tuple[Memory, HostMemory, PcieLink]:
    """The tiers of a target, the host's and the link among them.

    Raises:
        TargetError: it does not say them.
    """
    memory = target.memory
    if memory is None or memory.host is None or memory.pcie is None:
        raise TargetError(
            f"target {target.name!r} does not say what its memory tiers are",
            "add [memory.gpu], [memory.host] and [memory.pcie] (docs/targets.md), or choose rtx3090",
        )
    return memory, memory.host, memory.pcie


def _room(where: str, demand: int, capacity: int) -> Refusal | None:
    if demand <= capacity:
        return None
    return Refusal(f"{demand / 1e9:,.2f} GB of features, room for {max(capacity, 0) / 1e9:,.2f} GB in {where}'s memory")
