"""Simulates a training step whose activations are kept, offloaded or recomputed: all times, and what is alive when.

Three things happen concurrently: the GPU runs kernels one after the other; one channel to the SSDs serves stores and
loads, one at a time, in the order of their requests; memory is allocated and freed. A store is requested once its
buffer is written (for several buffers of one kernel, in the order of their numbers). The buffer is freed when it is
stored and the forward pass has read it for the last time. A load is requested when a certain kernel is about to start,
and its memory is allocated when it begins. A kernel waits for its operands. A buffer that is requested before it is
stored is forwarded: it never left. Its store is withdrawn if it is still queued; a store that found the channel free
began at once, and is useless.

Transfers also use the GPU's memory: meanwhile kernels are slowed down by the transfer's mean share of the memory
bandwidth, as if all kernels were memory-bound.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import accumulate, chain
from operator import itemgetter
from typing import Literal

from pimflow.records import NamedTuple, dataclass
from pimflow.runtime.offload.channel import Channel, Kind, Queue, Transfer
from pimflow.runtime.offload.trace import Trace


class Trip(NamedTuple):
    """A round trip of a buffer, which leaves memory and comes back.

    Args:
        buffer: number of the buffer.
        last_write: the last kernel that writes it before it leaves: from then on it may be stored.
        last_use: the last kernel that accesses it before it leaves.
        load_before: the kernel before which its load is requested.
        next_use: the first kernel that accesses it after it is back.
    """

    buffer: int
    last_write: int
    last_use: int
    load_before: int
    next_use: int

    @classmethod
    def of(cls, trace: Trace, buffer: int, before: int) -> Trip:
        """The trip of a buffer whose load is requested before a kernel."""
        uses = trace.uses[buffer]
        behind = bisect_left(uses, before)
        ahead = uses[:behind]
        written = (place for place in reversed(ahead) if buffer in trace.kernels[place].writes)
        return cls(buffer, next(written, ahead[0]), ahead[-1], before, uses[behind])


@dataclass(frozen=True)
class ActivationPlan:
    """The plan for the saved buffers; buffers that it does not name are kept.

    Args:
        loads: for each offloaded buffer, the kernel before which its load is requested, in the order of requests; a
            buffer that leaves more than once has several entries.
        recomputed: for each recomputed buffer, the kernels that make it again right before it is read; the buffers are
            in the order in which they were made.
        order: all kernels in order of execution, including reruns, if that is not the trace's order. Nothing is
            offloaded then, and `simulate_in_order` in `reordered` simulates the plan.
        limit_bytes: a kernel whose results would exceed this limit together with the live bytes waits for pending
            stores; None for no limit.
    """

    loads: tuple[tuple[int, int], ...] = ()
    recomputed: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    order: tuple[int, ...] = ()
    limit_bytes: int | None = None

    @cached_property
    def offloaded(self) -> frozenset[int]:
        """The offloaded buffers."""
        return frozenset(buffer for buffer, _ in self.loads)

    def trips(self, trace: Trace) -> list[Trip]:
        """All trips of offloaded buffers, in the order of their load requests."""
        return [Trip.of(trace, buffer, before) for buffer, before in self.loads]


def recomputed_before(trace: Trace, recomputed: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
    """For each recomputed buffer, the kernel before which it is recomputed: the first one after the turn that accesses
    it, or before which another buffer is recomputed from it.

    Args:
        trace: the step.
        recomputed: as in a plan.
    """
    places: dict[int, int] = {}
    read: dict[int, int] = {}
    for buffer, kernels in reversed(list(recomputed.items())):
        place = places[buffer] = min(trace.first_backward_use(buffer), read.get(buffer, len(trace.kernels)))
        for other in {other for kernel in kernels for other in trace.kernels[kernel].reads}:
            read[other] = min(place, read.get(other, place))
    return places


EventKind = Literal["allocate", "free", "run", "again", "stored", "loaded"]
"""Events: a buffer's memory is allocated or freed; a kernel or a rerun ends; a store or a load of a buffer ends."""


_ENDED: Mapping[Kind, EventKind] = {"store": "stored", "load": "loaded"}


class Moment(NamedTuple):
    """An event at a time, of a buffer or kernel by number; `bytes` is positive for memory that is allocated, negative
    for memory that is freed, otherwise 0."""

    time_us: float
    what: EventKind
    which: int
    bytes: int = 0


Event = tuple[float, EventKind, int, int]
"""The values of a moment."""
Entry = tuple[float, EventKind | Literal["quiet"], int, int]
"""An event, or a range of kernels during which nothing else happens: its start, and its first kernel and the one after
its last."""


class Steps(NamedTuple):
    """The kernels of a run in order of execution.

    Args:
        kernels: with reruns.
        place_of: the place of each kernel among these, apart from its reruns.
        peaks_bytes: by place, the maximum of live bytes since the end of the kernel before.
    """

    kernels: list[int]
    place_of: dict[int, int]
    peaks_bytes: list[int]


class Recording:
    """The events of a run. A search simulates far more runs than it looks into, so they are listed on demand.

    Args:
        trace: the step.
        entries: in the order in which they were recorded; transfers are recorded late.
        starts_us, ends_us: of each kernel of the trace.
    """

    def __init__(
        self, trace: Trace, entries: Iterable[Entry], starts_us: Sequence[float], ends_us: Sequence[float]
    ) -> None:
        self._trace = trace
        self._entries = sorted(entries, key=itemgetter(0))
        self._starts_us, self._ends_us = starts_us, ends_us

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recording) and self.events == other.events

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """All events in order of time; simultaneous events are in causal order."""
        return tuple(self._events())

    def _events(self) -> Iterator[Event]:
        sizes = self._trace.sizes
        for entry in self._entries:
            if entry[1] != "quiet":
                yield entry[0], entry[1], entry[2], entry[3]
                continue
            for place in range(entry[2], entry[3]):
                start, end = self._starts_us[place], self._ends_us[place]
                yield from ((start, "allocate", buffer, sizes[buffer]) for buffer in self._trace.begins[place])
                yield end, "run", place, 0
                yield from ((end, "free", buffer, -sizes[buffer]) for buffer in self._trace.ends[place])

    def peak(self) -> tuple[int, float]:
        """The maximum of live bytes, and its time."""
        before, during = self._trace.live_before_bytes, self._trace.live_with_bytes
        alive = peak = 0
        when = 0.0
        for time_us, what, which, size in self._entries:
            if what != "quiet":
                alive += size
                if alive > peak:
                    peak, when = alive, time_us
                continue
            others, inside = alive - before[which], during[which:size]
            most = max(inside)
            if others + most > peak:
                peak, when = others + most, self._starts_us[which + inside.index(most)]
            alive = others + before[size]
        return peak, when

    def alive_at(self, time_us: float) -> set[int]:
        """The buffers in memory after all events up to a time."""
        begins, ends = self._trace.begins, self._trace.ends
        alive: set[int] = set()
        for start_us, what, which, after in self._entries:
            if start_us > time_us:
                break
            if what == "allocate":
                alive.add(which)
            elif what == "free":
                alive.discard(which)
            elif what == "quiet":
                begun, ended = (bisect_right(us, time_us, which, after) for us in (self._starts_us, self._ends_us))
                alive.update(chain.from_iterable(begins[which:begun]))
                alive.difference_update(chain.from_iterable(ends[which:ended]))
        return alive

    def steps(self) -> Steps:
        """The kernels in order of execution, with the maximum of live bytes."""
        before, during = self._trace.live_before_bytes, self._trace.live_with_bytes
        kernels: list[int] = []
        peaks: list[int] = []
        place_of: dict[int, int] = {}
        alive = most = 0
        for _, what, which, size in self._entries:
            if what == "quiet":
                others, place = alive - before[which], len(kernels)
                peaks += [others + bytes_ for bytes_ in during[which:size]]
                peaks[place] = max(peaks[place], most)
                place_of.update(zip(range(which, size), range(place, place + size - which), strict=True))
                kernels += range(which, size)
                alive, most = others + before[size], 0
                continue
            alive += size
            if what != "free":
                most = max(most, alive)
            if what in ("run", "again"):
                if what == "run":
                    place_of[which] = len(kernels)
                kernels.append(which)
                peaks.append(most)
                most = 0
        return Steps(kernels, place_of, peaks)


@dataclass(frozen=True)
class Rerun:
    """A rerun of a kernel, given by its place in the trace."""

    place: int
    begin_us: float
    end_us: float


@dataclass(frozen=True)
class Run:
    """The simulated run of a plan.

    Args:
        time_us: time of the step.
        stall_us: part of it in which kernels waited for loads or for room.
        recompute_us: part of it in which kernels ran again.
        slowed_us: part of it that transfers added to kernels.
        peak_bytes: maximum bytes of live activations.
        peak_us: time of this maximum.
        transfers: stores and loads, in order.
        starts_us, ends_us: start and end of each kernel of the trace.
        reruns: kernels that ran again, in order.
        recording: the events; a kernel's operands are in memory until its results are.
    """

    time_us: float
    stall_us: float
    recompute_us: float
    slowed_us: float
    peak_bytes: int
    peak_us: float
    transfers: tuple[Transfer, ...]
    starts_us: tuple[float, ...]
    ends_us: tuple[float, ...]
    reruns: tuple[Rerun, ...]
    recording: Recording

    @cached_property
    def log(self) -> tuple[Moment, ...]:
        """The events, with names for their values."""
        return tuple(map(Moment._make, self.recording.events))

    def bytes_of(self, kind: Kind, trace: Trace) -> int:
        """The total bytes of all stores, or of all loads."""
        return sum(trace.sizes[transfer.buffer] for transfer in self.transfers if transfer.kind == kind)


@dataclass(frozen=True)
class RunLimits:
    """Limits on a run.

    Args:
        peak_bytes: bytes of live activations.
        stored_bytes: bytes stored, if the peak equals its limit.
        lost_us: time of reruns and waits.
        slowed: whether the time that transfers add to kernels counts as lost too.
        again_us: time of reruns, if the peak and the bytes stored equal their limits.
    """

    peak_bytes: float = math.inf
    stored_bytes: float = math.inf
    lost_us: float = math.inf
    slowed: bool = False
    again_us: float = math.inf

    def is_within(self, other: RunLimits) -> bool:
        """Whether every run that exceeds the other limits exceeds these."""
        return (
            self.peak_bytes <= other.peak_bytes
            and self.stored_bytes <= other.stored_bytes
            and self.lost_us <= other.lost_us
            and self.slowed == other.slowed
            and self.again_us <= other.again_us
        )


@dataclass(frozen=True)
class SimulatedPlan:
    """A plan and its simulated run."""

    plan: ActivationPlan
    run: Run


def keep_all(trace: Trace) -> SimulatedPlan:
    """The plan that keeps all activations, and its run."""
    return SimulatedPlan(ActivationPlan(), simulate(trace, ActivationPlan()))


def simulate(trace: Trace, plan: ActivationPlan, channel: Channel | None = None) -> Run:
    """Simulates a step.

    Args:
        trace: the step.
        plan: the plan for its saved buffers.
        channel: the channel to the SSDs; required if anything is offloaded.
    """
    run = simulate_within(trace, plan, channel, RunLimits())
    assert run is not None
    return run


def simulate_within(trace: Trace, plan: ActivationPlan, channel: Channel | None, limits: RunLimits) -> Run | None:
    """Like `simulate`; None as soon as the run is known to exceed the limits."""
    return _Simulation(trace, plan, channel or Channel(1.0, 1.0)).run(limits)


class _Simulation:
    """The simulation of one run."""

    def __init__(self, trace: Trace, plan: ActivationPlan, channel: Channel) -> None:
        self.limit_bytes = math.inf if plan.limit_bytes is None else plan.limit_bytes
        self.trace = trace
        self.saved = frozenset(trace.saved)
        self.plan = plan
        self.queue = Queue(channel, trace)
        self.now = 0.0
        self.stall_us = 0.0
        self.recompute_us = 0.0
        self.slowed_us = 0.0
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.reruns: list[Rerun] = []
        self.log: list[Entry] = []
        self.alive: set[int] = set()
        self.alive_bytes = 0
        self.highest_bytes = 0  # at the starts of kernels: a lower bound on the peak
        self.leaving: dict[int, float] = {}  # offloaded buffers: when the forward pass was done with them
        self.maybe_unused: list[int] = []  # buffers whose last use or store may have ended since memory was freed
        self.taken = self.ended = 0  # transfers whose memory is accounted for, at their begin and their end
        self.requested: set[int] = set()  # requested, and not yet read
        self.several_trips = {
            buffer for buffer, count in Counter(buffer for buffer, _ in plan.loads).items() if count > 1
        }
        self.stores: dict[int, list[int]] = {}
        trips = plan.trips(trace)
        for written, buffer in sorted({(trip.last_write, trip.buffer) for trip in trips}):
            self.stores.setdefault(written, []).append(buffer)
        self.load_requests: dict[int, list[int]] = {}
        for buffer, before in plan.loads:
            self.load_requests.setdefault(before, []).append(buffer)
        self.recomputed_at: dict[int, list[int]] = {}
        self.recomputed_before = again = recomputed_before(trace, plan.recomputed)
        for buffer in plan.recomputed:
            self.recomputed_at.setdefault(again[buffer], []).append(buffer)
        self.later, self.last_uses, self.last_reruns = _last_uses(trace, plan, trips, again)
        late = (trace.uses[buffer][-1] for buffer in self.later)
        marked = (
            self.stores,
            self.load_requests,
            self.recomputed_at,
            self.last_uses,
            self.last_reruns,
            late,
            (len(trace.kernels) - 1,),
        )
        self.marked = sorted({*chain.from_iterable(marked)})

    def run(self, limits: RunLimits) -> Run | None:
        kernels = self.trace.kernels
        again_us = sum(kernels[place].time_us for chain in self.plan.recomputed.values() for place in chain)
        while (place := len(self.starts)) < len(kernels):
            if self._exceeds(limits, again_us):
                return None
            following = self._quiet_until(place)
            if following > place:
                self._run_quiet(place, following)
                continue
            if place in self.load_requests:
                self._request_loads(place)
            for buffer in self.recomputed_at.get(place, ()):
                self._recompute(buffer, place)
            for buffer in self.last_reruns.get(place, ()):
                self._free(buffer, self.now)
            self.starts.append(self._execute(place, again=False))
            self.ends.append(self.now)
        times = (self.now, self.stall_us, self.recompute_us, self.slowed_us)
        spans = (tuple(self.starts), tuple(self.ends))
        recording = Recording(self.trace, self.log, *spans)
        return Run(*times, *recording.peak(), tuple(self.queue.order), *spans, tuple(self.reruns), recording)

    def _quiet_until(self, place: int) -> int:
        """The first kernel from `place` on at which the plan requires something or a transfer is pending; at latest the
        last kernel."""
        queue = self.queue
        moved = self.requested or self.leaving or self.maybe_unused or queue.waiting or queue.free_us > self.now
        if moved or not self.ended == self.taken == len(queue.order):
            return place
        return self.marked[bisect_left(self.marked, place)]

    def _run_quiet(self, place: int, following: int) -> None:
        """Runs kernels as if everything were kept: buffers are allocated at their first use and freed after their last
        one. The result is bit-identical to running the kernels one by one."""
        trace = self.trace
        self.log.append((self.now, "quiet", place, following))
        ends = list(accumulate(trace.times_us[place:following], initial=self.now))
        self.starts += ends[:-1]
        self.ends += ends[1:]
        self.now = ends[-1]
        more = self.alive_bytes - trace.live_before_bytes[place]
        self.highest_bytes = max(self.highest_bytes, more + max(trace.live_during_bytes[place:following]))
        self.alive_bytes = more + trace.live_before_bytes[following]
        self.alive.update(chain.from_iterable(trace.begins[place:following]))
        self.alive.difference_update(chain.from_iterable(trace.ends[place:following]))

    def _exceeds(self, limits: RunLimits, again_us: float) -> bool:
        """Whether the run so far, together with all reruns of the plan, exceeds the limits."""
        lost_us = again_us + self.stall_us + (self.slowed_us if limits.slowed else 0.0)
        if lost_us > limits.lost_us or self.highest_bytes > limits.peak_bytes:
            return True
        if self.highest_bytes < limits.peak_bytes or self.queue.stored_bytes < limits.stored_bytes:
            return False
        return self.queue.stored_bytes > limits.stored_bytes or again_us > limits.again_us

    def _request_loads(self, place: int) -> None:
        self._release(self.now)
        for buffer in self.load_requests[place]:
            if buffer in self.leaving:
                if ("store", buffer) not in self.queue.done:
                    self.queue.withdraw(buffer)
                del self.leaving[buffer]
                continue
            self.queue.request(self.now, "load", buffer)
            self.requested.add(buffer)

    def _release(self, now: float) -> None:
        """Frees buffers that are stored by a time after their last use; allocates those whose loads have begun."""
        self.queue.advance(now)
        order = self.queue.order
        if self.ended == self.taken == len(order) and not self.maybe_unused:
            return
        while self.ended < len(order) and order[self.ended].end_us <= now:
            transfer = order[self.ended]
            self.ended += 1
            self.log.append((transfer.end_us, _ENDED[transfer.kind], transfer.buffer, 0))
            if transfer.kind == "store":
                self.maybe_unused.append(transfer.buffer)
        for buffer in self.maybe_unused:
            stored = self.queue.done.get(("store", buffer))
            if buffer in self.leaving and stored is not None and stored.end_us <= now:
                self._free(buffer, max(stored.end_us, self.leaving.pop(buffer)))
        self.maybe_unused.clear()
        while self.taken < len(order) and order[self.taken].begin_us <= now:
            transfer = order[self.taken]
            self.taken += 1
            if transfer.kind == "load":
                self._allocate(transfer.buffer, transfer.begin_us)

    def _recompute(self, buffer: int, before: int) -> None:
        """Runs kernels of the forward pass again; temporary results, and copies of what is on the SSDs, are freed after
        the last rerun that reads them."""
        kernels = [self.trace.kernels[place] for place in self.plan.recomputed[buffer]]
        there, away = set(self.alive), self.plan.offloaded - self.alive - self.requested
        for step, place in enumerate(self.plan.recomputed[buffer]):
            begin = self._execute(place, again=True)
            self.reruns.append(Rerun(place, begin, self.now))
            self.recompute_us += kernels[step].time_us
            read = {other for kernel in kernels[step + 1 :] for other in kernel.reads}
            for other in sorted(self.alive - there - read):
                if other in away or not self._stays(other, before):
                    self._free(other, self.now)

    def _stays(self, buffer: int, before: int) -> bool:
        """Whether a buffer recomputed before a kernel is needed from there on and is not to be recomputed later."""
        last = max(self.trace.uses[buffer][-1], self.later.get(buffer, -1))
        return buffer in self.saved and last >= before and self.recomputed_before.get(buffer, before) <= before

    def _execute(self, place: int, *, again: bool) -> float:
        """Runs a kernel once its operands are in memory."""
        kernel, start, touched = self.trace.kernels[place], self.now, self.trace.accessed[place]
        if self.requested:
            for buffer in self.requested.intersection(touched):
                start = max(start, self._arrival(buffer))
        if self.plan.loads:
            start = self._with_room(start, place)
            self.stall_us += start - self.now
        for buffer in touched:
            if buffer not in self.alive:
                self._allocate(buffer, start)
        self.now = start
        if kernel.time_us > 0:
            self.highest_bytes = max(self.highest_bytes, self.alive_bytes)
            slowed_us = self.queue.slowed_us(start, kernel.time_us) if self.plan.loads else 0.0
            self.now = start + kernel.time_us + slowed_us
            self.slowed_us += slowed_us
        self.log.append((self.now, "again" if again else "run", place, 0))
        if not again:
            self._end(place)
        return start

    def _end(self, place: int) -> None:
        """Requests stores of the buffers that a kernel has written, and lets buffers leave after their last use."""
        for buffer in self.stores.get(place, ()):
            self.queue.forget("store", buffer)
            self.queue.request(self.now, "store", buffer)
        for buffer in self.trace.ends[place]:
            if buffer not in self.later:
                self._free(buffer, self.now)
        for buffer in self.last_uses.get(place, ()):
            self._evict(buffer)

    def _with_room(self, start: float, place: int) -> float:
        """When there is room for the buffers that a kernel allocates: it waits for one store after the other."""
        self._release(start)
        if self.limit_bytes == math.inf or not self.leaving:
            return start
        taken = [buffer for buffer in self.trace.accessed[place] if buffer not in self.alive]
        size = sum(self.trace.sizes[buffer] for buffer in taken)
        while size and self.alive_bytes + size > self.limit_bytes and self.leaving:
            start = max(start, self.queue.next_stored(self.leaving))
            self._release(start)
        return start

    def _arrival(self, buffer: int) -> float:
        end, begin = self.queue.finish("load", buffer), self.queue.done["load", buffer].begin_us
        self._release(begin)
        self._allocate(buffer, begin)
        self.requested.discard(buffer)
        return end

    def _allocate(self, buffer: int, now: float) -> None:
        if buffer not in self.alive:
            size = self.trace.sizes[buffer]
            self.alive.add(buffer)
            self.alive_bytes += size
            self.log.append((now, "allocate", buffer, size))

    def _free(self, buffer: int, now: float) -> None:
        if buffer in self.alive:
            size = self.trace.sizes[buffer]
            self.alive.discard(buffer)
            self.alive_bytes -= size
            self.log.append((now, "free", buffer, -size))

    def _evict(self, buffer: int) -> None:
        """Frees a buffer that will be recomputed, or lets it leave to be loaded later, after its last use."""
        if buffer in self.plan.recomputed:
            self._free(buffer, self.now)
            return
        self.leaving[buffer] = self.now
        self.maybe_unused.append(buffer)
        self.queue.forget("load", buffer)
        if buffer in self.several_trips and not self.queue.is_stored(buffer):
            self.queue.request(self.now, "store", buffer)


def _last_uses(
    trace: Trace, plan: ActivationPlan, trips: Iterable[Trip], again: Mapping[int, int]
) -> tuple[dict[int, int], dict[int, list[int]], dict[int, list[int]]]:
    """Three maps: buffers that stay after their last use, as others are recomputed from them, with the kernel before
    which that happens last; by kernel, the buffers that it is the last to access before they leave; by kernel, the
    buffers that reruns right before it are the last to read."""
    last: dict[int, int] = {}
    for buffer, kernels in plan.recomputed.items():  # operands of reruns have to be in memory by then
        for place in kernels:
            for read in trace.kernels[place].reads:
                last[read] = max(last.get(read, -1), again[buffer])
    saved = frozenset(trace.saved)
    later = {buffer: place for buffer, place in last.items() if buffer in saved and place > trace.uses[buffer][-1]}
    last_reruns: dict[int, list[int]] = {}
    for buffer in sorted(later):
        last_reruns.setdefault(later[buffer], []).append(buffer)
    last_uses: dict[int, list[int]] = {}
    left = {(trip.last_use, trip.buffer) for trip in trips}
    for place, buffer in sorted(left | {(trace.last_forward_use(buffer), buffer) for buffer in plan.recomputed}):
        last_uses.setdefault(place, []).append(buffer)
    return later, last_uses, last_reruns
