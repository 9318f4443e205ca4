"""The way of activations to the SSDs and back: how fast it is, and which transfer has it when."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Mapping
from dataclasses import field
from functools import cached_property
from typing import Literal

from pimflow.records import dataclass
from pimflow.runtime.offload.trace import Trace
from pimflow.targets.schema.gpu import Gpu
from pimflow.targets.schema.memory import Ssd

Kind = Literal["store", "load"]
"""Ways of moving a buffer: to the SSDs, and back."""


@dataclass(frozen=True)
class Channel:
    """The way to the SSDs and back, one transfer at a time, and the GPU's memory, in bytes a microsecond."""

    write_bytes_per_us: float
    read_bytes_per_us: float
    latency_us: float = 0.0
    memory_bytes_per_us: float = math.inf

    @classmethod
    def of(cls, ssd: Ssd, gpu: Gpu) -> Channel:
        """Of a target's SSDs: the slower of the drives and of the link to them."""
        write, read = (min(rate, ssd.link_gb_per_s) for rate in (ssd.write_gb_per_s, ssd.read_gb_per_s))
        memory = gpu.memory_channels * gpu.channel_gb_per_s
        return cls(1e3 * write, 1e3 * read, ssd.latency_us, 1e3 * memory)

    @cached_property
    def speeds(self) -> Mapping[Kind, float]:
        """Of kernels during a transfer, beside that without one."""
        rates: dict[Kind, float] = {"store": self.write_bytes_per_us, "load": self.read_bytes_per_us}
        return {kind: max(0.0, 1 - rate / self.memory_bytes_per_us) for kind, rate in rates.items()}

    def store_us(self, size: int) -> float:
        """Of so many bytes."""
        return self.latency_us + size / self.write_bytes_per_us

    def load_us(self, size: int) -> float:
        """Of so many bytes."""
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
    """The channel: requests wait in order until it is free. `done` has the last of every kind and buffer."""

    channel: Channel
    trace: Trace
    free_us: float = 0.0
    waiting: deque[tuple[float, Kind, int]] = field(default_factory=deque)
    done: dict[tuple[Kind, int], Transfer] = field(default_factory=dict)
    order: list[Transfer] = field(default_factory=list)  # the same as they begin
    stored_bytes: int = 0  # by stores that have begun
    past: int = 0  # of those, that ended before the last kernel looked for one

    def ask(self, now: float, kind: Kind, buffer: int) -> None:
        """Has a transfer wait from a time on."""
        self.waiting.append((now, kind, buffer))

    def advance(self, now: float) -> None:
        """Begins all that begins by a time."""
        while self.waiting and max(self.free_us, self.waiting[0][0]) <= now:
            self._begin()

    def finish(self, kind: Kind, buffer: int) -> float:
        """When a transfer that was asked for ends; all before it have begun."""
        while (kind, buffer) not in self.done:
            self._begin()
        return self.done[kind, buffer].end_us

    def forget(self, kind: Kind, buffer: int) -> None:
        """An earlier transfer no longer counts: the buffer is written anew, or leaves again."""
        self.done.pop((kind, buffer), None)

    def is_stored(self, buffer: int) -> bool:
        """Whether a store of what the buffer holds has begun or waits."""
        return ("store", buffer) in self.done or any(request[1:] == ("store", buffer) for request in self.waiting)

    def next_stored(self, buffers: Container[int]) -> float:
        """When the first store of one of some buffers ends that all have been asked for; none behind it has begun."""
        done = [end.end_us for (kind, buffer), end in self.done.items() if kind == "store" and buffer in buffers]
        if done:
            return min(done)
        return self.finish("store", next(b for _, kind, b in self.waiting if kind == "store" and b in buffers))

    def slowed_us(self, start: float, work_us: float) -> float:
        """How much longer a kernel takes that starts at a time and takes so long where nothing is moved."""
        if not self.waiting and self.free_us <= start:
            return 0.0
        now, left, more = start, work_us, 0.0
        while (transfer := self._under_way(now, now + left)) is not None:
            ahead = max(0.0, transfer.begin_us - now)
            now, left = now + ahead, left - ahead
            speed, span = self.channel.speeds[transfer.kind], transfer.end_us - now
            if left <= speed * span:
                return more + left / speed - left
            now, left, more = transfer.end_us, left - speed * span, more + (1 - speed) * span
        return more

    def _under_way(self, now: float, end: float) -> Transfer | None:
        """The first transfer that ends behind a time, no earlier than the last one asked for, if it begins before
        another."""
        if self.free_us <= now and self.waiting and max(self.free_us, self.waiting[0][0]) < end:
            self._begin()
        while self.past < len(self.order) and self.order[self.past].end_us <= now:
            self.past += 1
        found = self.order[self.past] if self.past < len(self.order) else None
        return found if found is not None and found.begin_us < end else None

    def _begin(self) -> None:
        asked, kind, buffer = self.waiting.popleft()
        begin, size = max(self.free_us, asked), self.trace.buffers[buffer].bytes
        self.free_us = begin + (self.channel.store_us(size) if kind == "store" else self.channel.load_us(size))
        self.done[kind, buffer] = Transfer(kind, buffer, begin, self.free_us)
        self.order.append(self.done[kind, buffer])
        self.stored_bytes += size if kind == "store" else 0

    def withdraw(self, buffer: int) -> None:
        """Takes back a store that has not begun."""
        self.waiting = deque(request for request in self.waiting if request[1:] != ("store", buffer))
