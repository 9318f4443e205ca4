"""Memory tiers of a machine and the links between them: where lies what the GPU's own memory does not hold."""

from __future__ import annotations

from collections.abc import Iterator

from pimflow.records import dataclass
from pimflow.targets.schema.unit import MISSING, Amount, Count, Positive

GIB = 1 << 30


@dataclass(frozen=True)
class GpuMemory:
    """The DRAM on the GPU's board; its bandwidth is in the GPU's own table."""

    capacity_gib: Positive
    reserved_gib: Amount  # of it, what the driver's context and the libraries' workspaces take

    @property
    def usable_bytes(self) -> int:
        """What a model's values may take."""
        return round(max(self.capacity_gib - self.reserved_gib, 0.0) * GIB)


@dataclass(frozen=True)
class HostMemory:
    """The DRAM of the CPU that the GPU is plugged into, and what its threads reach in it."""

    capacity_gib: Positive
    gather_gb_per_s: Positive  # rows at random addresses into one buffer, by all threads: bytes of rows a second
    gather_us: Amount  # asking for a gather, until its threads run
    sampled_edges_per_us: Positive  # neighbours that all threads of a loader draw, and renumber, in a microsecond
    step_us: Amount  # of a training step that no kernel shows: what the loop, autograd and optimiser are written in
    idle_w: Amount  # CPU, DRAM and board while no thread runs
    gather_w: Amount  # on top of that while all threads gather
    spin_us: Amount  # behind a gather, that its threads wait for the next one without sleeping
    sampling_w: Amount  # on top of that while the loader samples
    issuing_w: Amount  # on top of that while one thread issues the GPU's work and waits for it
    dram_pj_per_byte: Amount  # of what passes its channels
    spin_w: Amount | None = None  # on top of idle_w while they wait so; unsaid: as much as gathering

    @property
    def waiting_w(self) -> float:
        """What threads draw that wait for their next gather without sleeping."""
        return self.gather_w if self.spin_w is None else self.spin_w

    @property
    def capacity_bytes(self) -> int:
        """How much it holds."""
        return round(self.capacity_gib * GIB)


@dataclass(frozen=True)
class PcieLink:
    """The link between the GPU and the host's memory: copies by its DMA engines, and reads by the GPU's own threads."""

    copy_gb_per_s: Positive  # copies from page-locked memory
    pageable_gb_per_s: Positive  # copies from memory that the driver first copies into a page-locked buffer
    copy_us: Amount  # asking for a copy, until its first byte moves
    zero_copy_gb_per_s: Positive  # reads of whole requests by the GPU's threads, the request's bytes alone
    zero_copy_us: Amount  # launching the kernel that reads
    request_bytes: Count  # the most that one read request of the GPU asks for: a line of its second-level cache
    round_trip_ns: Positive  # of a request, until its data are there
    outstanding_requests: Count  # that the link keeps under way at a time
    reading_w: Amount  # what the GPU draws on top while its threads wait for what they read
    pj_per_byte: Amount  # of both ends


@dataclass(frozen=True)
class Ssd:
    """SSDs that the GPU reads and writes without the CPU's touching the data; all drives of an array together."""

    capacity_gb: Positive
    read_gb_per_s: Positive
    write_gb_per_s: Positive
    link_gb_per_s: Positive  # between the drives and the GPU, in either direction
    latency_us: Amount  # of a request, until its first byte moves
    endurance_tb_written: Positive  # that the drives are rated for over their life
    idle_w: Amount
    busy_w: Amount  # on top of that while they read or write
    pj_per_byte: Amount  # of the link


@dataclass(frozen=True)
class Memory:
    """The tiers that a machine has beside what its units' own tables say: `[memory]`, all of it optional."""

    gpu: GpuMemory
    host: HostMemory | None = None
    pcie: PcieLink | None = None
    ssd: Ssd | None = None

    @property
    def summary(self) -> str:
        """The tiers and how much they hold."""
        parts = [f"{self.gpu.capacity_gib:g} GiB on the GPU"]
        if self.host is not None:
            parts.append(f"{self.host.capacity_gib:g} GiB in the host")
        if self.ssd is not None:
            parts.append(f"{self.ssd.capacity_gb:g} GB on SSDs")
        return ", ".join(parts)

    def problems(self) -> Iterator[tuple[str, str]]:
        """A tier without the link to it, or a reservation that leaves nothing."""
        if self.gpu.reserved_gib >= self.gpu.capacity_gib:
            yield "gpu.reserved_gib", f"is {self.gpu.reserved_gib:g}; the GPU has {self.gpu.capacity_gib:g} GiB in all"
        if self.host is not None and self.pcie is None:
            yield "pcie", MISSING
        if self.pcie is not None and self.host is None:
            yield "host", MISSING
