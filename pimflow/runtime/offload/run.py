"""Follows a training step whose activations are kept, offloaded or recomputed: when everything runs, and what is alive.

Three things happen at once: the GPU runs kernels one after the other; one channel to the SSDs serves stores and loads,
one at a time, in the order in which they are asked for; memory is taken and given back. A store is asked for once its
buffer is made (those that one kernel makes in the order of their numbers), and the buffer given back when it is stored
and the forward pass has read it for the last time. A load is asked for as a certain kernel is about to start, and takes
its memory as it begins. A kernel waits for what it reads. What is wanted back before it is stored is forwarded: it
never left. Its store is withdrawn if it still waits; one that finds the channel free has begun as soon as it was asked
for, and is in vain.

What is moved passes the GPU's memory too: meanwhile kernels are slower by its share of that memory's bandwidth, as if
memory bound all of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from itertools import accumulate, chain
from operator import itemgetter
from typing import Literal, NamedTuple

from pimflow.records import dataclass
from pimflow.runtime.offload.channel import Channel, Kind, Queue, Transfer
from pimflow.runtime.offload.trace import Trace


class Trip(NamedTuple):
    """A buffer leaves memory and comes back.

    Args:
        buffer: which.
        made: the last kernel that writes it before: from then on it may be stored.
        leaves: the last kernel that touches it before.
        before: the kernel before which it is asked back.
        returns: the first kernel that touches it behind.
    """

    buffer: int
    made: int
    leaves: int
    before: int
    returns: int

    @classmethod
    def of(cls, trace: Trace, buffer: int, before: int) -> Trip:
        """The one from which a buffer is asked back before a kernel."""
        uses = trace.uses[buffer]
        behind = bisect_left(uses, before)
        ahead = uses[:behind]
        written = (place for place in reversed(ahead) if buffer in trace.kernels[place].writes)
        return cls(buffer, next(written, ahead[0]), ahead[-1], before, uses[behind])


@dataclass(frozen=True)
class ActivationPlan:
    """What becomes of the saved buffers; those that are named nowhere are kept.

    Args:
        loads: of every offloaded buffer the kernel before which it is asked back, in the order of asking; of one that
            leaves more than once, each time.
        recomputed: of every recomputed buffer the kernels that make it again, right before it is read; the buffers in
            the order in which they are made.
        order: all kernels as they run, those that run again more than once, where that is not the trace's order;
            nothing is offloaded then (`in_order`, in `reordered`, follows it).
        limit_bytes: a kernel whose results would not fit into that beside what is alive waits for stores, if there
            are any; None: none waits.
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
        """Every time that a buffer is offloaded, in the order in which they are asked back."""
        return [Trip.of(trace, buffer, before) for buffer, before in self.loads]


def made_again(trace: Trace, recomputed: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
    """For every recomputed buffer the kernel before which it is made again: the first behind the turn that touches it,
    or before which another is made again of it.

    Args:
        trace: the step.
        recomputed: as of a plan.
    """
    places: dict[int, int] = {}
    read: dict[int, int] = {}
    for buffer, kernels in reversed(list(recomputed.items())):
        place = places[buffer] = min(trace.returns(buffer), read.get(buffer, len(trace.kernels)))
        for other in {other for kernel in kernels for other in trace.kernels[kernel].reads}:
            read[other] = min(place, read.get(other, place))
    return places


What = Literal["take", "give", "run", "again", "stored", "loaded"]
"""Memory of a buffer is taken, or given back; a kernel ends, or ends once more; a store or a load of a buffer ends."""


_ENDED: Mapping[Kind, What] = {"store": "stored", "load": "loaded"}


class Moment(NamedTuple):
    """What happens at a time, to a buffer or a kernel, by number; `bytes` of memory that is taken are positive, that is
    given back negative, else 0."""

    time_us: float
    what: What
    which: int
    bytes: int = 0


@dataclass(frozen=True)
class Rerun:
    """A kernel that runs once more, by its place in the trace."""

    place: int
    begin_us: float
    end_us: float


@dataclass(frozen=True)
class Run:
    """What a plan comes to.

    Args:
        time_us: of the step.
        stall_us: of it, kernels waited for loads.
        recompute_us: of it, kernels that ran again.
        slowed_us: of it, kernels took longer beside transfers.
        peak_bytes: the most activations that were alive at a time.
        peak_us: when.
        transfers: stores and loads, in order.
        starts_us, ends_us: of every kernel of the trace.
        reruns: kernels that ran again, in order.
        log: all that happens, in order of time, and at one time in the order in which one follows from the other: what
            a kernel reads is there until its results are.
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
    log: tuple[Moment, ...]

    def bytes_of(self, kind: Kind, trace: Trace) -> int:
        """Bytes of all stores, or of all loads."""
        return sum(trace.sizes[transfer.buffer] for transfer in self.transfers if transfer.kind == kind)


@dataclass(frozen=True)
class Most:
    """What a run may come to.

    Args:
        peak_bytes: activations that are alive at a time.
        stored_bytes: where as many as that are.
        lost_us: what kernels that run again take, and waits.
        slowed: whether what kernels take longer beside transfers is lost too.
        again_us: where as many are alive, and as many bytes stored: what kernels that run again take.
    """

    peak_bytes: float = math.inf
    stored_bytes: float = math.inf
    lost_us: float = math.inf
    slowed: bool = False
    again_us: float = math.inf

    def is_within(self, other: Most) -> bool:
        """Whether what exceeds the other exceeds this."""
        return (
            self.peak_bytes <= other.peak_bytes
            and self.stored_bytes <= other.stored_bytes
            and self.lost_us <= other.lost_us
            and self.slowed == other.slowed
            and self.again_us <= other.again_us
        )


@dataclass(frozen=True)
class Found:
    """A plan and what it comes to."""

    plan: ActivationPlan
    run: Run


def kept(trace: Trace) -> Found:
    """The step as it is, with all activations kept."""
    return Found(ActivationPlan(), follow(trace, ActivationPlan()))


def follow(trace: Trace, plan: ActivationPlan, channel: Channel | None = None) -> Run:
    """Goes through a step.

    Args:
        trace: the step.
        plan: what becomes of its saved buffers.
        channel: to the SSDs; needed if anything is offloaded.
    """
    run = follow_within(trace, plan, channel, Most())
    assert run is not None
    return run


def follow_within(trace: Trace, plan: ActivationPlan, channel: Channel | None, most: Most) -> Run | None:
    """The same; None as soon as it is known to exceed what it may come to."""
    return _Follower(trace, plan, channel or Channel(1.0, 1.0)).run(most)


class _Follower:
    """One run through a step."""

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
        self.through: list[float] = []
        self.reruns: list[Rerun] = []
        self.log: list[
            tuple[float, What | Literal["quiet"], int, int]
        ] = []  # moments; of quiet kernels where, till where
        self.alive: set[int] = set()
        self.alive_bytes = 0
        self.highest_bytes = 0  # as kernels start: the peak is no lower
        self.leaving: dict[int, float] = {}  # offloaded buffers: when the forward pass was through with them
        self.left: list[int] = []  # buffers that may have been left or stored since memory was given back
        self.taken = self.ended = 0  # transfers of which the memory is accounted for, as they begin and as they end
        self.coming: set[int] = set()  # asked back, and not yet read
        self.again_away = {buffer for buffer, count in Counter(buffer for buffer, _ in plan.loads).items() if count > 1}
        self.stores: dict[int, list[int]] = {}
        trips = plan.trips(trace)
        for made, buffer in sorted({(trip.made, trip.buffer) for trip in trips}):
            self.stores.setdefault(made, []).append(buffer)
        self.asks: dict[int, list[int]] = {}
        for buffer, before in plan.loads:
            self.asks.setdefault(before, []).append(buffer)
        self.again: dict[int, list[int]] = {}
        self.again_at = again = made_again(trace, plan.recomputed)
        for buffer in plan.recomputed:
            self.again.setdefault(again[buffer], []).append(buffer)
        self.later, self.away_ends, self.made_of = _ends(trace, plan, trips, again)
        late = (trace.uses[buffer][-1] for buffer in self.later)
        asked = (self.stores, self.asks, self.again, self.away_ends, self.made_of, late, (len(trace.kernels) - 1,))
        self.events = sorted({*chain.from_iterable(asked)})

    def run(self, most: Most) -> Run | None:
        kernels = self.trace.kernels
        again_us = sum(kernels[place].time_us for chain in self.plan.recomputed.values() for place in chain)
        while (place := len(self.starts)) < len(kernels):
            if self._exceeds(most, again_us):
                return None
            following = self._quiet_until(place)
            if following > place:
                self._run_quiet(place, following)
                continue
            if place in self.asks:
                self._ask_back(place)
            for buffer in self.again.get(place, ()):
                self._make_again(buffer, place)
            for buffer in self.made_of.get(place, ()):
                self._give_back(buffer, self.now)
            self.starts.append(self._execute(place, again=False))
            self.through.append(self.now)
        log = tuple(map(Moment._make, sorted(self._told(), key=itemgetter(0))))  # what is moved is told of late
        times = (self.now, self.stall_us, self.recompute_us, self.slowed_us)
        spans = (tuple(self.starts), tuple(self.through))
        return Run(*times, *peak_of(log), tuple(self.queue.order), *spans, tuple(self.reruns), log)

    def _quiet_until(self, place: int) -> int:
        """The first kernel from there on beside which something happens that the plan asks for, or is moved; the last
        one counts as such."""
        queue = self.queue
        moved = self.coming or self.leaving or self.left or queue.waiting or queue.free_us > self.now
        if moved or not self.ended == self.taken == len(queue.order):
            return place
        return self.events[bisect_left(self.events, place)]

    def _run_quiet(self, place: int, following: int) -> None:
        """Runs kernels as where all is kept: what they touch for the first time is taken, for the last time given back.
        The same as one after the other, to the last bit."""
        trace = self.trace
        self.log.append((self.now, "quiet", place, following))
        ends = list(accumulate(trace.times_us[place:following], initial=self.now))
        self.starts += ends[:-1]
        self.through += ends[1:]
        self.now = ends[-1]
        more = self.alive_bytes - trace.alive_before[place]
        self.highest_bytes = max(self.highest_bytes, more + max(trace.alive_beside[place:following]))
        self.alive_bytes = more + trace.alive_before[following]
        self.alive.update(chain.from_iterable(trace.begins[place:following]))
        self.alive.difference_update(chain.from_iterable(trace.ends[place:following]))

    def _told(self) -> Iterator[tuple[float, What, int, int]]:
        """All moments as they were told of."""
        sizes = self.trace.sizes
        for entry in self.log:
            if entry[1] != "quiet":
                yield entry[0], entry[1], entry[2], entry[3]
                continue
            for place in range(entry[2], entry[3]):
                start, end = self.starts[place], self.through[place]
                yield from ((start, "take", buffer, sizes[buffer]) for buffer in self.trace.begins[place])
                yield end, "run", place, 0
                yield from ((end, "give", buffer, -sizes[buffer]) for buffer in self.trace.ends[place])

    def _exceeds(self, most: Most, again_us: float) -> bool:
        """Whether what happened so far, and what is run again in all, is more than may be."""
        lost_us = again_us + self.stall_us + (self.slowed_us if most.slowed else 0.0)
        if lost_us > most.lost_us or self.highest_bytes > most.peak_bytes:
            return True
        if self.highest_bytes < most.peak_bytes or self.queue.stored_bytes < most.stored_bytes:
            return False
        return self.queue.stored_bytes > most.stored_bytes or again_us > most.again_us

    def _ask_back(self, place: int) -> None:
        self._release(self.now)
        for buffer in self.asks[place]:
            if buffer in self.leaving:
                if ("store", buffer) not in self.queue.done:
                    self.queue.withdraw(buffer)
                del self.leaving[buffer]
                continue
            self.queue.ask(self.now, "load", buffer)
            self.coming.add(buffer)

    def _release(self, now: float) -> None:
        """Gives back what is stored by a time, and was read for the last time before it left; takes what is loaded."""
        self.queue.advance(now)
        order = self.queue.order
        if self.ended == self.taken == len(order) and not self.left:
            return
        while self.ended < len(order) and order[self.ended].end_us <= now:
            transfer = order[self.ended]
            self.ended += 1
            self.log.append((transfer.end_us, _ENDED[transfer.kind], transfer.buffer, 0))
            if transfer.kind == "store":
                self.left.append(transfer.buffer)
        for buffer in self.left:
            stored = self.queue.done.get(("store", buffer))
            if buffer in self.leaving and stored is not None and stored.end_us <= now:
                self._give_back(buffer, max(stored.end_us, self.leaving.pop(buffer)))
        self.left.clear()
        while self.taken < len(order) and order[self.taken].begin_us <= now:
            transfer = order[self.taken]
            self.taken += 1
            if transfer.kind == "load":
                self._take(transfer.buffer, transfer.begin_us)

    def _make_again(self, buffer: int, before: int) -> None:
        """Kernels of the forward pass once more; what none needs behind that is there until the last has read it."""
        kernels = [self.trace.kernels[place] for place in self.plan.recomputed[buffer]]
        there = set(self.alive)
        for step, place in enumerate(self.plan.recomputed[buffer]):
            begin = self._execute(place, again=True)
            self.reruns.append(Rerun(place, begin, self.now))
            self.recompute_us += kernels[step].time_us
            read = {other for kernel in kernels[step + 1 :] for other in kernel.reads}
            for other in sorted(self.alive - there - read):
                if not self._stays(other, before):
                    self._give_back(other, self.now)

    def _stays(self, buffer: int, before: int) -> bool:
        """Whether what was made again right before a kernel is needed from there on, and not made again until then."""
        last = max(self.trace.uses[buffer][-1], self.later.get(buffer, -1))
        return buffer in self.saved and last >= before and self.again_at.get(buffer, before) <= before

    def _execute(self, place: int, *, again: bool) -> float:
        """Runs a kernel once what it reads is there."""
        kernel, start, touched = self.trace.kernels[place], self.now, self.trace.touched[place]
        if self.coming:
            for buffer in self.coming.intersection(touched):
                start = max(start, self._arrival(buffer))
        if self.plan.loads:
            start = self._with_room(start, place)
            self.stall_us += start - self.now
        for buffer in touched:
            if buffer not in self.alive:
                self._take(buffer, start)
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
        """What a kernel has made is stored, what is not touched again leaves."""
        for buffer in self.stores.get(place, ()):
            self.queue.forget("store", buffer)
            self.queue.ask(self.now, "store", buffer)
        for buffer in self.trace.ends[place]:
            if buffer not in self.later:
                self._give_back(buffer, self.now)
        for buffer in self.away_ends.get(place, ()):
            self._leave(buffer)

    def _with_room(self, start: float, place: int) -> float:
        """When there is room for what a kernel takes: it waits for one store after the other."""
        self._release(start)
        if self.limit_bytes == math.inf:
            return start
        taken = [buffer for buffer in self.trace.touched[place] if buffer not in self.alive]
        size = sum(self.trace.sizes[buffer] for buffer in taken)
        while size and self.alive_bytes + size > self.limit_bytes and self.leaving:
            start = max(start, self.queue.next_stored(self.leaving))
            self._release(start)
        return start

    def _arrival(self, buffer: int) -> float:
        end, begin = self.queue.finish("load", buffer), self.queue.done["load", buffer].begin_us
        self._release(begin)
        self._take(buffer, begin)
        self.coming.discard(buffer)
        return end

    def _take(self, buffer: int, now: float) -> None:
        if buffer not in self.alive:
            size = self.trace.sizes[buffer]
            self.alive.add(buffer)
            self.alive_bytes += size
            self.log.append((now, "take", buffer, size))

    def _give_back(self, buffer: int, now: float) -> None:
        if buffer in self.alive:
            size = self.trace.sizes[buffer]
            self.alive.discard(buffer)
            self.alive_bytes -= size
            self.log.append((now, "give", buffer, -size))

    def _leave(self, buffer: int) -> None:
        """A buffer was touched for the last time before it is made again, or asked back."""
        if buffer in self.plan.recomputed:
            self._give_back(buffer, self.now)
            return
        self.leaving[buffer] = self.now
        self.left.append(buffer)
        self.queue.forget("load", buffer)
        if buffer in self.again_away and not self.queue.is_stored(buffer):
            self.queue.ask(self.now, "store", buffer)


def peak_of(log: Iterable[Moment]) -> tuple[int, float]:
    """The most that is there at a time, and when."""
    alive = peak = 0
    when = 0.0
    for moment in log:
        alive += moment.bytes
        if alive > peak:
            peak, when = alive, moment.time_us
    return peak, when


def _ends(
    trace: Trace, plan: ActivationPlan, trips: Iterable[Trip], again: Mapping[int, int]
) -> tuple[dict[int, int], dict[int, list[int]], dict[int, list[int]]]:
    """What stays behind the last kernel that touches it, as something is recomputed from it later, before which; by
    kernel what is touched for the last time before it leaves; and by kernel what is last read by what is recomputed
    before that."""
    last: dict[int, int] = {}
    for buffer, kernels in plan.recomputed.items():  # what a buffer is made of again has to be there by then
        for place in kernels:
            for read in trace.kernels[place].reads:
                last[read] = max(last.get(read, -1), again[buffer])
    saved = frozenset(trace.saved)
    later = {buffer: place for buffer, place in last.items() if buffer in saved and place > trace.uses[buffer][-1]}
    made_of: dict[int, list[int]] = {}
    for buffer in sorted(later):
        made_of.setdefault(later[buffer], []).append(buffer)
    away: dict[int, list[int]] = {}
    left = {(trip.leaves, trip.buffer) for trip in trips}
    for place, buffer in sorted(left | {(trace.leaves(buffer), buffer) for buffer in plan.recomputed}):
        away.setdefault(place, []).append(buffer)
    return later, away, made_of
