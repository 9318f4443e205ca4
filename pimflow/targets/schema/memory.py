"""Memory tiers of a machine and the links between them: the places for data that exceed the GPU's own memory."""

from __future__ import annotations

from collections.abc import Iterator

from pimflow.records import dataclass
from pimflow.targets.schema.unit import MISSING, Amount, Count, Positive

GIB = 1 << 30


@dataclass(frozen=True)
class GpuMemory:
    """The DRAM on the GPU's board; its bandwidth is in the GPU's own table."""

    capacity_gib: Positive
    reserved_gib: Amount  # the part taken by the driver's context and the libraries' workspaces

    @property
    def usable_bytes(self) -> int:
        """The bytes available for a model's values."""
        return round(max(self.capacity_gib - self.reserved_gib, 0.0) * GIB)


@dataclass(frozen=True)
class HostMemory:
    """The DRAM of the CPU that the GPU is plugged into, and the throughput and power of its threads."""

    capacity_gib: Positive
    gather_gb_per_s: Positive  # rows at random addresses into one buffer, by all threads: bytes of rows per second
    gather_us: Amount  # from requesting a gather until its threads run
    sampled_edges_per_us: Positive  # neighbours that all threads of a loader sample and renumber per microsecond
    step_us: Amount  # of a training step outside all kernels: the interpreter's time for loop, autograd and optimiser
    idle_w: Amount  # CPU, DRAM and board while no thread runs
    gather_w: Amount  # in addition while all threads gather
    spin_us: Amount  # after a gather, the time for which its threads wait for the next one without sleeping
    sampling_w: Amount  # in addition while the loader samples
    issuing_w: Amount  # in addition while one thread issues the GPU's work and waits for it
    dram_pj_per_byte: Amount  # per byte through its channels
    spin_w: Amount | None = None  # in addition to idle_w while threads wait without sleeping; by default gather_w
    pageable_gather_gb_per_s: Positive | None = None  # into newly allocated memory; by default gather_gb_per_s

    def gathered_gb_per_s(self, pageable: bool) -> float:
        """The rate of a gather into a page-locked buffer, or into pageable memory, which frameworks allocate anew."""
        return self.pageable_gather_gb_per_s or self.gather_gb_per_s if pageable else self.gather_gb_per_s

    @property
    def waiting_w(self) -> float:
        """The power of threads that wait for their next gather without sleeping."""
        return self.gather_w if self.spin_w is None else self.spin_w

    @property
    def capacity_bytes(self) -> int:
        """Its capacity in bytes."""
        return round(self.capacity_gib * GIB)


@dataclass(frozen=True)
class PcieLink:
    """The link between the GPU and the host's memory: copies by its DMA engines, and reads by the GPU's own threads."""

    copy_gb_per_s: Positive  # copies from page-locked memory
    pageable_gb_per_s: Positive  # copies from memory that the driver first copies into a page-locked buffer
    copy_us: Amount  # from requesting a copy until its first byte moves
    zero_copy_gb_per_s: Positive  # reads of whole lines by the GPU's threads, without headers
    zero_copy_us: Amount  # launching the kernel that reads
    request_bytes: Count  # the largest read request of the GPU: a line of its L2 cache
    round_trip_ns: Positive  # of a request, until its data arrive
    outstanding_requests: Count  # that the link supports at a time
    reading_w: Amount  # additional power of the GPU while its threads wait for the data
    pj_per_byte: Amount  # at both ends
    sector_bytes: Count = 32  # what a request consists of: a warp asks for the sectors of a line that it needs
    # What a request adds to its data on the link: 12 bytes of header, and 12 of framing, sequence number, CRC and
    # acknowledgement (PCI Express 3.0).
    header_bytes: Amount = 24.0
    mapped_gib: Positive | None = None  # the largest table whose rows the GPU addresses without delay; None: any
    lookup_ns: Amount | None = None  # per row of a larger table: the GPU translates an address that it has not cached

    def reading_us(self, requests: int, sectors: int, rows: int, table_bytes: int) -> float:
        """The time for the GPU's threads to read rows: the longest of three that overlap.

        The link carries all sectors and a header per request, at the rate of whole lines; only so many requests are
        outstanding, and each takes a round trip (Min et al., EMOGI, VLDB 2020); addresses are translated row by row.
        """
        lines = self.bytes_of(requests, sectors) / (self.request_bytes + self.header_bytes)
        streaming_us = lines * self.request_bytes / (self.zero_copy_gb_per_s * 1e3)
        waiting_us = requests * self.round_trip_ns * 1e-3 / self.outstanding_requests
        is_mapped = self.mapped_gib is None or table_bytes <= self.mapped_gib * GIB
        return max(streaming_us, waiting_us, 0.0 if is_mapped else rows * (self.lookup_ns or 0.0) * 1e-3)

    def bytes_of(self, requests: int, sectors: int) -> float:
        """What the link carries for some requests."""
        return sectors * self.sector_bytes + requests * self.header_bytes


@dataclass(frozen=True)
class Ssd:
    """SSDs that the GPU reads and writes without data passing through the CPU; all drives of an array together."""

    capacity_gb: Positive
    read_gb_per_s: Positive
    write_gb_per_s: Positive
    link_gb_per_s: Positive  # between the drives and the GPU, in either direction
    latency_us: Amount  # of a request, until its first byte moves
    endurance_tb_written: Positive  # for which the drives are rated over their lifetime
    idle_w: Amount
    busy_w: Amount  # in addition while they read or write
    pj_per_byte: Amount  # of the link


@dataclass(frozen=True)
class Memory:
    """The memory tiers of a machine, in addition to its units' own tables: `[memory]`, which is optional."""

    gpu: GpuMemory
    host: HostMemory | None = None
    pcie: PcieLink | None = None
    ssd: Ssd | None = None

    @property
    def summary(self) -> str:
        """The tiers and their capacities."""
        parts = [f"{self.gpu.capacity_gib:g} GiB on the GPU"]
        if self.host is not None:
            parts.append(f"{self.host.capacity_gib:g} GiB in the host")
        if self.ssd is not None:
            parts.append(f"{self.ssd.capacity_gb:g} GB on SSDs")
        return ", ".join(parts)

    def problems(self) -> Iterator[tuple[str, str]]:
        """A tier without the link to it, or a reservation that leaves no memory."""
        if self.gpu.reserved_gib >= self.gpu.capacity_gib:
            yield "gpu.reserved_gib", f"is {self.gpu.reserved_gib:g}; the GPU has {self.gpu.capacity_gib:g} GiB in all"
        if self.host is not None and self.pcie is None:
            yield "pcie", MISSING
        if self.pcie is not None and self.host is None:
            yield "host", MISSING
        if self.pcie is not None and self.pcie.request_bytes % self.pcie.sector_bytes:
            sector = self.pcie.sector_bytes
            yield "pcie.request_bytes", f"is {self.pcie.request_bytes}, not a multiple of sector_bytes, {sector}"
        if self.pcie is not None and (self.pcie.mapped_gib is None) != (self.pcie.lookup_ns is None):
            yield "pcie.lookup_ns" if self.pcie.lookup_ns is None else "pcie.mapped_gib", MISSING
