"""The channel on which activations move to the SSDs and back: its speed, and the schedule of its transfers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Iterable
from dataclasses import field
from typing import Literal

from pimflow.records import dataclass
from pimflow.runtime.offload.trace import Trace
from pimflow.targets.schema.gpu import Gpu
from pimflow.targets.schema.memory import Ssd

Kind = Literal["store", "load"]
"""Directions of a transfer: to the SSDs, and back."""


@dataclass(frozen=True)
class Channel:
    """The channel to the SSDs, for one transfer at a time, what they hold, and the GPU's memory; rates in bytes per
    microsecond."""

    write_bytes_per_us: float
    read_bytes_per_us: float
    latency_us: float = 0.0
    memory_bytes_per_us: float = math.inf
    capacity_bytes: float = math.inf

    @classmethod
    def of(cls, ssd: Ssd, gpu: Gpu) -> Channel:
        """The channel to a target's SSDs, with the rate of the drives, of the link or of the GPU's memory, whichever is
        slowest."""
        memory = gpu.memory_channels * gpu.channel_gb_per_s
        write, read = (min(rate, ssd.link_gb_per_s, memory) for rate in (ssd.write_gb_per_s, ssd.read_gb_per_s))
        return cls(1e3 * write, 1e3 * read, ssd.latency_us, 1e3 * memory, 1e9 * ssd.capacity_gb)

    def has_space(self, trace: Trace, offloaded: Iterable[int]) -> bool:
        """Whether the SSDs hold some buffers of a step, each in a place of its own."""
        return sum(trace.sizes[buffer] for buffer in offloaded) <= self.capacity_bytes

    def speed_during(self, size: int, span_us: float) -> float:
        """The speed of kernels during a transfer of `size` bytes, relative to their speed without one.

        The transfer takes its mean share of the memory's bandwidth. It thus slows kernels down by as many bytes as it
        moves, however fast it is, and not by its latency.
        """
        return max(0.0, 1 - size / (span_us * self.memory_bytes_per_us)) if size else 1.0

    def store_us(self, size: int) -> float:
        """The time to store `size` bytes."""
        return self.latency_us + size / self.write_bytes_per_us

    def load_us(self, size: int) -> float:
        """The time to load `size` bytes."""
        return self.latency_us + size / self.read_bytes_per_us


@dataclass(frozen=True)
class Transfer:
    """A store or a load of one buffer."""

    kind: Kind
    buffer: int
    begin_us: float
    end_us: float


@dataclass
class Queue:
    """The queue of the channel; requests are served in order. `done` has the last transfer of each kind and buffer."""

    channel: Channel
    trace: Trace
    free_us: float = 0.0
    waiting: deque[tuple[float, Kind, int]] = field(default_factory=deque)
    done: dict[tuple[Kind, int], Transfer] = field(default_factory=dict)
    order: list[Transfer] = field(default_factory=list)  # transfers in the order in which they begin
    stored_bytes: int = 0  # bytes of stores that have begun
    past: int = 0  # transfers in `order` that ended before the current kernel

    def request(self, now: float, kind: Kind, buffer: int) -> None:
        """Queues a transfer at a time."""
        self.waiting.append((now, kind, buffer))

    def advance(self, now: float) -> None:
        """Starts all transfers that begin by a time."""
        while self.waiting and max(self.free_us, self.waiting[0][0]) <= now:
            self._begin()

    def finish(self, kind: Kind, buffer: int) -> float:
        """The end of a requested transfer; starts it and all transfers before it."""
        while (kind, buffer) not in self.done:
            self._begin()
        return self.done[kind, buffer].end_us

    def forget(self, kind: Kind, buffer: int) -> None:
        """Forgets an earlier transfer, as the buffer is written again or leaves again."""
        self.done.pop((kind, buffer), None)

    def is_stored(self, buffer: int) -> bool:
        """Whether a store of the buffer's content has begun or is queued."""
        return ("store", buffer) in self.done or any(request[1:] == ("store", buffer) for request in self.waiting)

    def next_stored(self, buffers: Container[int]) -> float:
        """The earliest end of the requested stores of some buffers; starts no transfer after that one."""
        done = [end.end_us for (kind, buffer), end in self.done.items() if kind == "store" and buffer in buffers]
        if done:
            return min(done)
        return self.finish("store", next(b for _, kind, b in self.waiting if kind == "store" and b in buffers))

    def slowed_us(self, start: float, work_us: float) -> float:
        """The delay of a kernel that starts at a time and takes `work_us` without transfers."""
        if not self.waiting and self.free_us <= start:
            return 0.0
        now, left, more = start, work_us, 0.0
        while (transfer := self._under_way(now, now + left)) is not None:
            ahead = max(0.0, transfer.begin_us - now)
            now, left = now + ahead, left - ahead
            speed, span = self._speed_during(transfer), transfer.end_us - now
            if left <= speed * span:
                return more + left / speed - left
            now, left, more = transfer.end_us, left - speed * span, more + (1 - speed) * span
        return more

    def _speed_during(self, transfer: Transfer) -> float:
        size = self.trace.buffers[transfer.buffer].bytes
        return self.channel.speed_during(size, transfer.end_us - transfer.begin_us)

    def _under_way(self, now: float, end: float) -> Transfer | None:
        """The first transfer that ends after `now`, if it begins before `end`; `now` must not decrease from call to
        call."""
        if self.free_us <= now and self.waiting and max(self.free_us, self.waiting[0][0]) < end:
            self._begin()
        while self.past < len(self.order) and self.order[self.past].end_us <= now:
            self.past += 1
        found = self.order[self.past] if self.past < len(self.order) else None
        return found if found is not None and found.begin_us < end else None

    def _begin(self) -> None:
        requested_us, kind, buffer = self.waiting.popleft()
        begin, size = max(self.free_us, requested_us), self.trace.buffers[buffer].bytes
        self.free_us = begin + (self.channel.store_us(size) if kind == "store" else self.channel.load_us(size))
        self.done[kind, buffer] = Transfer(kind, buffer, begin, self.free_us)
        self.order.append(self.done[kind, buffer])
        self.stored_bytes += size if kind == "store" else 0

    def withdraw(self, buffer: int) -> None:
        """Removes a store that has not begun from the queue."""
        self.waiting = deque(request for request in self.waiting if request[1:] != ("store", buffer))
