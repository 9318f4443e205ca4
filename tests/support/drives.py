"""An oracle for steps whose buffers are offloaded to SSDs and fetched as a plan says, transfer by transfer."""

from __future__ import annotations

from pimflow.runtime.offload.channel import Channel
from pimflow.runtime.offload.run import ActivationPlan
from pimflow.runtime.offload.trace import Trace


class Drives:
    """The step, simulated from transfer to transfer; the content of a buffer is the list of kernels that wrote it.

    Nothing is recomputed, and transfers do not slow kernels down.

    Args:
        trace, plan, channel: only their figures are used.
        limit: the most that may be in memory at a time.
    """

    def __init__(self, trace: Trace, plan: ActivationPlan, channel: Channel, limit: int) -> None:
        self.trace, self.plan, self.channel, self.limit = trace, plan, channel, limit
        self.now = 0.0
        self.peak = 0
        self.there: dict[int, tuple[int, ...]] = {}  # buffer: its writers, in order
        self.copies: dict[int, tuple[int, ...]] = {}
        self.leaving: set[int] = set()
        self.coming: set[int] = set()
        self.waiting: list[tuple[str, int]] = []
        self.moving: tuple[float, str, int] | None = None

    def run(self) -> tuple[float, int]:
        """The time of the step, and its peak of bytes in memory; asserts that every kernel finds what it reads."""
        history: dict[int, tuple[int, ...]] = {}
        for place, kernel in enumerate(self.trace.kernels):
            self.ask(place)
            touched = {*kernel.reads, *kernel.writes}
            while touched & self.coming or (self.leaving and self.bytes({*self.there, *touched}) > self.limit):
                assert self.moving is not None
                self.end_transfer()
            for buffer in touched - {*self.there}:
                self.there[buffer] = ()
            self.count()
            assert all(self.there[buffer] == history.get(buffer, ()) for buffer in kernel.reads)
            end = self.now + kernel.time_us
            while self.moving is not None and self.moving[0] <= end:
                self.end_transfer()
            self.now = end
            for buffer in kernel.writes:
                self.there[buffer] = history[buffer] = (*history.get(buffer, ()), place)
            self.leave(place)
        return self.now, self.peak

    def bytes(self, buffers: set[int]) -> int:
        return sum(self.trace.buffers[buffer].bytes for buffer in buffers if not self.trace.buffers[buffer].fixed)

    def count(self) -> None:
        self.peak = max(self.peak, self.bytes({*self.there}))

    def ask(self, place: int) -> None:
        for buffer, before in self.plan.loads:
            if before == place and buffer in self.leaving:
                self.leaving.discard(buffer)
                self.waiting = [request for request in self.waiting if request != ("store", buffer)]
            elif before == place:
                self.coming.add(buffer)
                self.waiting.append(("load", buffer))
        self.begin()

    def leave(self, place: int) -> None:
        uses = [
            [p for p, k in enumerate(self.trace.kernels) if b in (*k.reads, *k.writes)]
            for b in range(len(self.trace.buffers))
        ]
        ways = [(b, max(use for use in uses[b] if use < before)) for b, before in self.plan.loads]
        for buffer in sorted({buffer for buffer, _ in self.plan.loads}):
            written = [p for p in uses[buffer] if buffer in self.trace.kernels[p].writes]
            if any(b == buffer and max(p for p in written if p <= left) == place for b, left in ways):
                self.waiting.append(("store", buffer))
        for buffer in [b for b in self.there if uses[b][-1] == place]:
            del self.there[buffer]
        for buffer, left in sorted(ways):
            if left == place and self.copies.get(buffer) == self.there[buffer]:
                del self.there[buffer]
            elif left == place:
                self.leaving.add(buffer)
                under_way = {self.moving[1:]} if self.moving is not None else set()
                if ("store", buffer) not in {*self.waiting, *under_way}:
                    self.waiting.append(("store", buffer))
        self.begin()

    def begin(self) -> None:
        if self.moving is None and self.waiting:
            kind, buffer = self.waiting.pop(0)
            size = self.trace.buffers[buffer].bytes
            takes = self.channel.store_us(size) if kind == "store" else self.channel.load_us(size)
            self.moving = (self.now + takes, kind, buffer)
            if kind == "load":
                self.there[buffer] = ()
                self.count()

    def end_transfer(self) -> None:
        assert self.moving is not None
        self.now, kind, buffer = self.moving
        self.moving = None
        if kind == "load":
            self.there[buffer] = self.copies[buffer]
            self.coming.discard(buffer)
        elif buffer in self.there:
            self.copies[buffer] = self.there[buffer]
            if buffer in self.leaving:
                self.leaving.discard(buffer)
                del self.there[buffer]
        self.begin()
