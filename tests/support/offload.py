"""Two oracles for a training step, tick by tick and event by event: what runs, is transferred and is alive."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import chain as chained

import numpy as np
from hypothesis import strategies as st

import pimflow
from pimflow.compiled import CompiledModel
from pimflow.ir import Builder
from pimflow.onnxio.export import to_onnx
from pimflow.passes.differentiate import Differentiate
from pimflow.runtime.offload.channel import Channel
from pimflow.runtime.offload.run import ActivationPlan
from pimflow.runtime.offload.spill import Spill, SpillWay
from pimflow.runtime.offload.trace import Buffer, Kernel, Trace
from pimflow.targets import Target, load_target
from pimflow.targets.schema import GpuMemory, Memory

TIMES = st.floats(0.5, 20.0)


@cache
def step() -> bytes:
    """A training step of eight layers over 512 rows: 65 KB are saved after each, and 4 KB are weights."""
    build = Builder()
    x = build.input(512, 32)
    for _ in range(8):
        x = build.relu(build.gemm(x, 32))
    graph = Differentiate("mean-squared").run(build.graph(build.gemm(x, 8))).graph
    return bytes(to_onnx(graph).SerializeToString())


def machine(kib: float, base: str = "a100-ssd") -> Target:
    """A machine with this much memory on its GPU."""
    target = load_target(base)
    gpu = GpuMemory(kib / 2**20, 0.0)
    memory = Memory(gpu) if target.memory is None else replace(target.memory, gpu=gpu)
    return replace(target, memory=memory)


def slow_drives(target: Target, write_gb_per_s: float, read_gb_per_s: float) -> Target:
    """The machine with other drives."""
    assert target.memory is not None
    assert target.memory.ssd is not None
    ssd = replace(target.memory.ssd, write_gb_per_s=write_gb_per_s, read_gb_per_s=read_gb_per_s)
    return replace(target, memory=replace(target.memory, ssd=ssd))


@cache
def residual_step() -> bytes:
    """A training step of convolutions with residual sums in place, padding, and a concatenation."""
    build = Builder()
    x = build.conv(build.input(2, 8, 16, 16), 16, 3, pad=1)
    for _ in range(3):
        x = build.add(x, build.conv(build.tanh(build.sigmoid(x)), 16, 3, pad=1))
    graph = Differentiate("mean-squared").run(build.graph(build.concat(1, x, build.relu(x)))).graph
    return bytes(to_onnx(graph).SerializeToString())


@cache
def momentum_step() -> bytes:
    """A training step whose last nodes are the updates of all weights: in the schedule's order, whatever their
    gradients need is kept until then."""
    build = Builder()
    x = build.input(128, 64)
    for _ in range(4):
        x = build.relu(build.gemm(x, 64))
    graph = Differentiate("mean-squared", optimiser="momentum").run(build.graph(build.gemm(x, 8))).graph
    return bytes(to_onnx(graph).SerializeToString())


@cache
def gated_by_input() -> bytes:
    """Layers whose results are all multiplied by the input."""
    build = Builder()
    x = y = build.input(512, 32)
    for _ in range(4):
        y = build.mul(build.gemm(y, 32), x)
    return bytes(to_onnx(build.graph(build.gemm(y, 8))).SerializeToString())


@cache
def compiled_short(way: SpillWay = "auto") -> tuple[CompiledModel, Spill]:
    """That step with so little memory and such slow drives that a plan uses both ways: some buffers are offloaded,
    others are recomputed."""
    target = slow_drives(machine(300), 2.44, 2.88)
    model = pimflow.compile(residual_step(), target=target, policy="gpu", spill=way, use_cache=False, check=False)
    assert model.spill is not None
    return model, model.spill


def chain(layers: int, layer_us: float = 1000.0, layer_bytes: int = 1_000_000, backward: float = 2.0) -> Trace:
    """Layers that each save one buffer; a layer's backward pass takes `backward` times as long as its forward pass."""
    buffers = tuple(Buffer(f"saved{layer}", layer_bytes, layer_bytes) for layer in range(layers))
    ahead = [Kernel(f"forward{layer}", layer_us, (layer - 1,) if layer else (), (layer,)) for layer in range(layers)]
    back = [Kernel(f"backward{layer}", backward * layer_us, (layer,), ()) for layer in reversed(range(layers))]
    return Trace((*ahead, *back), layers, buffers)


def random_chain(seed: int, layers: int = 12) -> Trace:
    """A chain of layers with random sizes and times."""
    rng = np.random.default_rng(seed)
    plain = chain(layers)
    buffers = tuple(Buffer(buffer.name, int(rng.integers(1, 40)) * 50_000, 1) for buffer in plain.buffers)
    kernels = tuple(
        Kernel(kernel.name, float(rng.integers(2, 30)) * 100, kernel.reads, kernel.writes) for kernel in plain.kernels
    )
    return Trace(kernels, plain.turn, buffers)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Kernels that read up to three existing buffers, and sometimes overwrite one of them."""
    count = draw(st.integers(2, 9))
    kernels = [Kernel("inputs", 0.0, (), (0,))]
    for made in range(1, count):
        reads = draw(st.sets(st.integers(0, made - 1), min_size=1, max_size=3))
        rewritten = {draw(st.sampled_from(sorted(reads)))} if draw(st.integers(0, 3)) == 0 else set()
        kernels.append(Kernel(f"k{made}", draw(TIMES), tuple(sorted(reads)), (*sorted(rewritten), made)))
    unread = {*range(count)} - set(chained.from_iterable(kernel.reads for kernel in kernels))
    kernels.append(Kernel("results", 0.0, tuple(sorted(unread)), ()))
    sizes = draw(st.lists(st.integers(100, 1000), min_size=count, max_size=count))
    return Trace(
        tuple(kernels),
        count // 2 + 1,
        tuple(Buffer(str(n), size, size) for n, size in enumerate(sizes)),
        input_kernels=1,
    )


class Clock:
    """One step, tick by tick.

    Args:
        trace, plan, channel: only their figures are used.
        limit_bytes: what activations may take, if a kernel can wait for it.
        tick_us: duration of a tick.
    """

    def __init__(
        self,
        trace: Trace,
        plan: ActivationPlan,
        channel: Channel,
        limit_bytes: float = float("inf"),
        tick_us: float = 1.0,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.trace, self.plan, self.channel, self.tick_us = trace, plan, channel, tick_us
        self.program = self._program()
        self.resident: set[int] = set()
        self.stored: set[int] = set()
        self.storing: list[int] = []
        self.requests: list[tuple[str, int]] = []
        self.moving: tuple[str, int, float] | None = None
        self.recalled: set[int] = set()

    def _program(self) -> list[tuple[int, bool]]:
        """Kernels in execution order, and whether each is a recomputation."""
        forward = [(place, False) for place in range(self.trace.turn)]
        behind = [(place, False) for place in range(self.trace.turn, len(self.trace.kernels))]
        for buffer, kernels in sorted(self.plan.recomputed.items(), key=lambda item: -max(item[1])):
            touched = [self.trace.kernels[place].reads + self.trace.kernels[place].writes for place, _ in behind]
            first = [buffer in buffers for buffers in touched].index(True)
            behind[first:first] = [(kernel, True) for kernel in kernels]
        return forward + behind

    def run(self) -> tuple[float, int]:
        """The time of the step, and its peak of bytes alive."""
        now, peak, step = 0.0, 0, 0
        left: float | None = None
        while step < len(self.program):
            place, again = self.program[step]
            if left is None:
                self._recall(step)
                if self._is_there(step):
                    kernel = self.trace.kernels[place]
                    left = kernel.time_us
                    read = {buffer for buffer in kernel.reads if not self.trace.buffers[buffer].fixed}
                    assert read <= self.resident, f"an operand of {kernel.name} is not in memory"
                    self.resident |= {*kernel.reads, *kernel.writes}
            peak = max(peak, self._bytes(self.resident))
            speed = self._move()
            if left is not None:
                left -= self.tick_us * speed
            now += self.tick_us
            if left is not None and left <= 1e-9:
                left = None
                self._done(step, place, again)
                step += 1
        return now, peak

    def _bytes(self, buffers: set[int]) -> int:
        return sum(self.trace.buffers[buffer].bytes for buffer in buffers if not self.trace.buffers[buffer].fixed)

    def _recall(self, step: int) -> None:
        own = next(place for place, again in self.program[step:] if not again)
        for buffer, before in self.plan.loads:
            if buffer in self.recalled or before > own:
                continue
            self.recalled.add(buffer)
            if buffer in self.stored:
                self.requests.append(("load", buffer))
            elif ("store", buffer) in self.requests:
                self.requests.remove(("store", buffer))

    def _is_there(self, step: int) -> bool:
        place, again = self.program[step]
        kernel = self.trace.kernels[place]
        new = {*kernel.reads, *kernel.writes} - self.resident
        taken = self._bytes(self.resident) + self._bytes(new)
        leaves = [b for b in self.storing if b in self.resident and b not in self.stored and b not in self.recalled]
        if self._bytes(new) and taken > self.limit_bytes and leaves:
            return False
        if place < self.trace.turn and not again:
            return True
        arriving = {buffer for kind, buffer in self.requests if kind == "load"}
        if self.moving is not None and self.moving[0] == "load":
            arriving.add(self.moving[1])
        return not arriving & set(self.trace.kernels[place].reads)

    def _move(self) -> float:
        """Transfer for one tick; return the speed of kernels during it."""
        self._begin()
        if self.moving is None:
            return 1.0
        kind, buffer, left = self.moving
        self.moving = (kind, buffer, left - self.tick_us)
        if left - self.tick_us <= 1e-9:
            self.moving = None
            if kind == "store" and buffer not in self.recalled:
                self.stored.add(buffer)
                self._drop()
        return speed_beside(self.trace, self.channel, kind, buffer)

    def _begin(self) -> None:
        """Start the first request if the channel is free."""
        if self.moving is not None or not self.requests:
            return
        kind, buffer = self.requests.pop(0)
        self.moving = (kind, buffer, takes_us(self.trace, self.channel, kind, buffer))
        if kind == "load":
            self.resident.add(buffer)

    def _drop(self) -> None:
        """Drop buffers that are stored and have had their last read before offloading."""
        for buffer in self.storing:
            if buffer in self.stored and buffer not in self.recalled:
                self.resident.discard(buffer)

    def _done(self, step: int, place: int, again: bool) -> None:
        kernels = self.trace.kernels
        for buffer in sorted(self.plan.offloaded):
            ahead = [use for use in self.trace.uses[buffer] if use < self.trace.turn]
            if not again and place == max(use for use in ahead if buffer in kernels[use].writes):
                self.requests.append(("store", buffer))
            if not again and place == ahead[-1]:
                self.storing.append(buffer)
        self._begin()
        self._drop()
        rest = self.program[step + 1 :]
        needed = {buffer for other, _ in rest for buffer in kernels[other].reads}
        for buffer in list(self.resident):
            if buffer not in needed or self._comes_again(buffer, rest):
                self.resident.discard(buffer)

    def _comes_again(self, buffer: int, rest: list[tuple[int, bool]]) -> bool:
        """Whether a buffer is recomputed before it is read."""
        for other, _ in rest:
            kernel = self.trace.kernels[other]
            if buffer in kernel.reads:
                return False
            if buffer in kernel.writes:
                return True
        return True


def takes_us(trace: Trace, channel: Channel, kind: str, buffer: int) -> float:
    """How long a transfer takes."""
    rate = channel.write_bytes_per_us if kind == "store" else channel.read_bytes_per_us
    return channel.latency_us + trace.buffers[buffer].bytes / rate


def speed_beside(trace: Trace, channel: Channel, kind: str, buffer: int) -> float:
    """The speed of kernels while a buffer moves: what its bytes leave of the memory's bandwidth."""
    size = trace.buffers[buffer].bytes
    return 1 - size / takes_us(trace, channel, kind, buffer) / channel.memory_bytes_per_us if size else 1.0


class Events:
    """One step, exactly, from each end of a kernel or a transfer to the next; nothing is recomputed, and nothing waits
    for memory."""

    def __init__(self, trace: Trace, plan: ActivationPlan, channel: Channel) -> None:
        assert not plan.recomputed
        self.trace, self.plan, self.channel = trace, plan, channel
        self.asked_before = dict(plan.loads)
        self.there: set[int] = set()
        self.queue: list[tuple[str, int]] = []
        self.moving: tuple[str, int, float] | None = None
        self.stored: set[int] = set()
        self.loaded: set[int] = set()
        self.through: set[int] = set()  # offloaded, after their last read before that
        self.stay: set[int] = set()  # requested back before they were stored
        self.now, self.peak = 0.0, 0

    def run(self) -> tuple[float, int]:
        """The time of the step, and its peak of bytes alive."""
        for place, kernel in enumerate(self.trace.kernels):
            self._ask_back(place)
            while place >= self.trace.turn and not self._has_arrived(kernel.reads):
                assert self.moving is not None
                self._to(self.moving[2])
            self.there |= {*kernel.reads, *kernel.writes}
            self._count()
            self._compute(kernel.time_us)
            self._leave(place)
            while self.moving is not None and self.moving[2] <= self.now:
                self._to(self.moving[2])
        return self.now, self.peak

    def _ask_back(self, place: int) -> None:
        for buffer, before in self.plan.loads:
            if before != place:
                continue
            if buffer in self.stored:
                self.queue.append(("load", buffer))
                continue
            self.stay.add(buffer)
            self.queue = [request for request in self.queue if request != ("store", buffer)]
        self._begin()

    def _has_arrived(self, reads: tuple[int, ...]) -> bool:
        return all(b not in self.asked_before or b in self.stay or b in self.loaded for b in reads)

    def _begin(self) -> None:
        if self.moving is not None or not self.queue:
            return
        kind, buffer = self.queue.pop(0)
        self.moving = (kind, buffer, self.now + takes_us(self.trace, self.channel, kind, buffer))
        if kind == "load":
            self.there.add(buffer)
            self._count()

    def _to(self, end: float) -> None:
        """End a transfer, and begin the next."""
        assert self.moving is not None
        kind, buffer, _ = self.moving
        self.now, self.moving = end, None
        (self.stored if kind == "store" else self.loaded).add(buffer)
        if kind == "store" and buffer in self.through - self.stay:
            self.there.discard(buffer)
        self._begin()

    def _compute(self, left: float) -> None:
        while left > 0:
            speed = 1.0
            if self.moving is not None:
                speed = speed_beside(self.trace, self.channel, *self.moving[:2])
            end = self.now + left / speed if speed > 0 else math.inf
            if self.moving is None or self.moving[2] >= end:
                self.now = end
                return
            left -= (self.moving[2] - self.now) * speed
            self._to(self.moving[2])

    def _leave(self, place: int) -> None:
        kernels, turn = self.trace.kernels, self.trace.turn
        for buffer in {*kernels[place].reads, *kernels[place].writes}:
            uses = [at for at, other in enumerate(kernels) if buffer in (*other.reads, *other.writes)]
            leaves = buffer in self.asked_before and place == max((at for at in uses if at < turn), default=None)
            self.through |= {buffer} if leaves else set()
            if place == uses[-1] or (leaves and buffer in self.stored):
                self.there.discard(buffer)
        for buffer in sorted(self.asked_before):
            if place == max(at for at in range(turn) if buffer in kernels[at].writes):
                self.queue.append(("store", buffer))
        self._begin()
        self._count()

    def _count(self) -> None:
        alive = [buffer for buffer in self.there if not self.trace.buffers[buffer].fixed]
        self.peak = max(self.peak, sum(self.trace.buffers[buffer].bytes for buffer in alive))
