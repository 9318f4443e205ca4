"""What has no room leaves, as often as it takes: followed by other means, and replayed by value."""

from __future__ import annotations

import math
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.runtime.offload.paging import paged
from pimflow.runtime.offload.run import ActivationPlan, Channel
from pimflow.runtime.offload.trace import Buffer, Kernel, Trace

TIMES = st.floats(0.5, 20.0)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Kernels that read up to three of what was made, and now and then write one of these anew."""
    count = draw(st.integers(2, 9))
    kernels = [Kernel("inputs", 0.0, (), (0,))]
    for made in range(1, count):
        reads = draw(st.sets(st.integers(0, made - 1), min_size=1, max_size=3))
        rewritten = {draw(st.sampled_from(sorted(reads)))} if draw(st.integers(0, 3)) == 0 else set()
        kernels.append(Kernel(f"k{made}", draw(TIMES), tuple(sorted(reads)), (*sorted(rewritten), made)))
    unread = {*range(count)} - set(chain.from_iterable(kernel.reads for kernel in kernels))
    kernels.append(Kernel("results", 0.0, tuple(sorted(unread)), ()))
    sizes = draw(st.lists(st.integers(100, 1000), min_size=count, max_size=count))
    return Trace(
        tuple(kernels), count // 2 + 1, tuple(Buffer(str(n), size, size) for n, size in enumerate(sizes)), given=1
    )


class Drives:
    """The step from transfer to transfer; contents are the kernels that wrote them."""

    def __init__(self, trace: Trace, plan: ActivationPlan, channel: Channel, limit: int) -> None:
        self.trace, self.plan, self.channel, self.limit = trace, plan, channel, limit
        self.now = 0.0
        self.peak = 0
        self.there: dict[int, tuple[int, ...]] = {}  # buffer: who wrote it, in order
        self.copies: dict[int, tuple[int, ...]] = {}
        self.leaving: set[int] = set()
        self.coming: set[int] = set()
        self.waiting: list[tuple[str, int]] = []
        self.moving: tuple[float, str, int] | None = None

    def run(self) -> tuple[float, int]:
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
            assert all(self.there[buffer] == history[buffer] for buffer in kernel.reads)
            end = self.now + kernel.time_us
            while self.moving is not None and self.moving[0] <= end:
                self.end_transfer()
            self.now = end
            for buffer in kernel.writes:
                self.there[buffer] = history[buffer] = (*history.get(buffer, ()), place)
            self.leave(place)
        return self.now, self.peak

    def bytes(self, buffers: set[int]) -> int:
        return sum(self.trace.buffers[buffer].bytes for buffer in buffers)

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


@given(traces(), st.floats(10.0, 500.0), st.integers(0, 2000))
@settings(max_examples=150)
def test_a_plan_for_any_room_that_holds_every_kernel(trace: Trace, rate: float, spare: int) -> None:
    """Time and peak are those of another simulation, in which every kernel finds what it is to read."""
    touched = max(sum(trace.buffers[b].bytes for b in {*k.reads, *k.writes}) for k in trace.kernels)
    channel = Channel(rate, 1.37 * rate, 0.11)
    assert paged(trace, channel, touched - 1) is None
    found = paged(trace, channel, touched + spare)
    assert found is not None
    assert found.run.peak_bytes <= touched + spare
    time_us, peak = Drives(trace, found.plan, channel, touched + spare).run()
    assert found.run.time_us == pytest.approx(time_us, rel=1e-9)
    assert found.run.peak_bytes == peak


def test_where_all_has_room_nothing_leaves() -> None:
    kernels = [Kernel("inputs", 0.0, (), (0,)), Kernel("a", 1.0, (0,), (1,)), Kernel("b", 1.0, (1,), (2,))]
    trace = Trace(
        (*kernels, Kernel("c", 1.0, (0, 2), (3,))), 2, tuple(Buffer(str(n), 10, 10) for n in range(4)), given=1
    )
    channel = Channel(1.0, 1.0)
    whole, tight = paged(trace, channel, 30), paged(trace, channel, 30 - 1)
    assert whole is not None
    assert tight is None
    assert whole.plan.loads == ()
    assert math.isclose(whole.run.time_us, 3.0)
