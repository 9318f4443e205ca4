"""The search for which activations to keep, offload and recompute, and when to load offloaded ones back.

A plan is evaluated by simulating it. Offloaded buffers are loaded back as late as possible without delaying a kernel:
going from the last load to the first, each ends when its buffer is needed or when the next load begins. The search
starts from the best plan that offloads only the first i buffers, where i may be 0. It then goes through the buffers
alive at the peak, longest unused first, and offloads or recomputes each if that improves the plan. Finally it keeps
those buffers after all that do not lower the peak. The simulation of a plan stops as soon as the plan is known to be no
better. If both offloading and recomputing are allowed, each is also tried alone first, so that the result is never
worse than a plan of one kind.

At first no buffer is recomputed from one that is itself recomputed later. Then the search continues with that allowed,
and also restarts with it from nothing recomputed: once longest unused first, once least time per byte first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import accumulate, islice

from pimflow.records import dataclass
from pimflow.runtime.offload.channel import Channel
from pimflow.runtime.offload.run import ActivationPlan, Found, Most, Run, follow_within, made_again
from pimflow.runtime.offload.trace import Trace
from pimflow.runtime.offload.wish import Wish

MOST_PREFIXES = 48
"""The maximum number of plans that offload only the first i buffers; evenly spaced if there are more buffers."""

LEAST_SHARE = 1e-3
"""The smallest buffer to offload or recompute, as a fraction of all saved bytes."""

LONGEST_CHAIN = 8
"""The maximum number of kernels that recompute one buffer."""

MOST_EXCHANGES = 4
"""The maximum number of buffers to try in exchange for one that is kept instead."""

_Choice = tuple[frozenset[int], frozenset[int]]
"""The offloaded buffers, and the recomputed ones."""


@dataclass(frozen=True)
class _Way:
    """The changes that may improve a plan.

    Args:
        offload, recompute: whether buffers may be offloaded or recomputed.
        nested: whether a buffer may be recomputed from others that are recomputed only for this, before their own
            readers need them.
        soonest: whether buffers with the least recomputation time per byte come first, instead of those unused longest.
    """

    offload: bool
    recompute: bool
    nested: bool = False
    soonest: bool = False


def searched(trace: Trace, channel: Channel | None, wish: Wish) -> Found:
    """The best plan that the search finds.

    Args:
        trace: the step.
        channel: the channel to the SSDs; None if nothing can be offloaded.
        wish: the requirements for the plan.
    """
    return _Search(trace, channel, wish).best()


def improved(trace: Trace, channel: Channel | None, wish: Wish, plan: ActivationPlan) -> Found:
    """The plan reached from a given one by successive changes, each of which improves it.

    Args:
        trace, channel, wish: as for `searched`.
        plan: the plan to start from; it offloads no buffer more than once.
    """
    return _Search(trace, channel, wish).improved_from(plan)


def exchanged(trace: Trace, channel: Channel | None, wish: Wish, plan: ActivationPlan) -> Found:
    """The plan reached by successive exchanges: a buffer is recomputed instead of offloaded or vice versa, or it is
    kept and another one leaves memory instead.

    Args:
        trace, channel, wish, plan: as for `improved`.
    """
    return _Search(trace, channel, wish).exchanged_from(plan)


def asked_back(
    trace: Trace, channel: Channel, offloaded: Iterable[int], recomputed: Mapping[int, tuple[int, ...]]
) -> tuple[tuple[int, int], ...]:
    """For each offloaded buffer, the kernel before which to request its load, in order: as late as no kernel waits."""
    again = made_again(trace, recomputed)
    ends = _ends(trace, recomputed, again)
    read = _read_again(trace, recomputed, again)
    needed = {buffer: min(trace.returns(buffer), read.get(buffer, len(ends))) for buffer in offloaded}
    stored, free = {}, 0.0
    for buffer in sorted(needed, key=lambda buffer: (trace.made(buffer), buffer)):
        free = max(free, ends[trace.made(buffer)]) + channel.store_us(trace.buffers[buffer].bytes)
        stored[buffer] = free
    loads = []
    following = float("inf")
    for buffer in sorted(needed, key=lambda buffer: (needed[buffer], buffer), reverse=True):
        place = needed[buffer]
        due = ends[place - 1] if place else 0.0
        following = min(due, following) - channel.load_us(trace.buffers[buffer].bytes)
        latest = bisect_right(ends, following)  # the last kernel to start by that time
        ready = bisect_left(ends, max(stored[buffer], ends[trace.leaves(buffer)])) + 1
        loads.append((buffer, min(place, max(latest, ready))))
    return tuple(reversed(loads))


def _ends(trace: Trace, recomputed: Mapping[int, tuple[int, ...]], again: Mapping[int, int]) -> Sequence[float]:
    """The end of each kernel if none waits, including recomputation."""
    if not recomputed:
        return trace.through_us
    first = min(again.values())
    times = [kernel.time_us for kernel in trace.kernels[first:]]
    for buffer, chain in recomputed.items():
        times[again[buffer] - first] += sum(trace.kernels[kernel].time_us for kernel in chain)
    return [*trace.through_us[:first], *islice(accumulate(times, initial=trace.through_us[first - 1]), 1, None)]


def _read_again(trace: Trace, recomputed: Mapping[int, tuple[int, ...]], again: Mapping[int, int]) -> dict[int, int]:
    """For each buffer that others are recomputed from, the first kernel before which that happens."""
    read: dict[int, int] = {}
    for buffer, kernels in recomputed.items():
        for other in (other for kernel in kernels for other in trace.kernels[kernel].reads):
            read[other] = min(again[buffer], read.get(other, again[buffer]))
    return read


@dataclass
class _Search:
    """One search; `tried` caches the result of each choice, or limits that it is known to exceed."""

    trace: Trace
    channel: Channel | None
    wish: Wish
    tried: dict[_Choice, Found | Most] = field(default_factory=dict)
    chains: dict[int, tuple[int, ...] | None] = field(default_factory=dict)
    later: dict[int, frozenset[int]] = field(default_factory=dict)

    @cached_property
    def large(self) -> list[int]:
        """The saved buffers that are large enough to be worth offloading or recomputing."""
        least = LEAST_SHARE * self.trace.saved_bytes
        return [buffer for buffer in self.trace.saved if self.trace.buffers[buffer].bytes >= least]

    @property
    def both(self) -> _Way:
        """All changes that are allowed."""
        return _Way(self.wish.offload and self.channel is not None, self.wish.recompute)

    def improved_from(self, plan: ActivationPlan) -> Found:
        """The result of improving a plan."""
        found = self._better(self._whole(*_choice(plan)), self.both)
        return self._better(found, replace(self.both, nested=True)) if self.both.recompute else found

    def exchanged_from(self, plan: ActivationPlan) -> Found:
        """The result of exchanges in a plan until none helps."""
        found, before = self._whole(*_choice(plan)), None
        while found is not before:
            before = found
            for buffer in sorted(frozenset().union(*_choice(found.plan))):
                found = next(
                    filter(None, (self._if_better(*change, found) for change in self._exchanges(buffer, found))), found
                )
        return found

    def best(self) -> Found:
        """The best of one kind or of both, improved until nothing helps."""
        both = self.both
        ways = [both]
        if both.offload and both.recompute:
            ways += [_Way(offload=True, recompute=False), _Way(offload=False, recompute=True)]
        best = min((self._better(self._start(way), way) for way in ways), key=self._key)
        best = self._better(best, both)
        return self._nested(best, both) if both.recompute else best

    def _nested(self, best: Found, both: _Way) -> Found:
        """The best plan with nested recomputation allowed; never worse than the given one."""
        alone = _Way(offload=False, recompute=True, nested=True)
        ways = (alone, replace(alone, soonest=True))
        anew = min((self._improved(self._start(way), way) for way in ways), key=self._key)
        return min((self._better(found, replace(both, nested=True)) for found in (best, anew)), key=self._key)

    def _start(self, way: _Way) -> Found:
        found = self._whole(frozenset(), frozenset())
        if way.offload:
            for prefix in self._prefixes():
                found = self._if_better(frozenset(prefix), frozenset(), found) or found
        return found

    def _better(self, found: Found, way: _Way) -> Found:
        return self._thinned(self._improved(found, way))

    def _prefixes(self) -> list[list[int]]:
        count = len(self.large)
        steps = min(count, MOST_PREFIXES)
        return [self.large[: round(count * step / steps)] for step in range(1, steps + 1)]

    def _key(self, found: Found) -> tuple[float, ...]:
        return self.wish.key(self.trace, found)

    def _if_better(self, offloaded: frozenset[int], recomputed: frozenset[int], found: Found) -> Found | None:
        other = self.look(offloaded, recomputed, self.wish.most(self.trace, found))
        return other if other is not None and self._key(other) < self._key(found) else None

    def _whole(self, offloaded: frozenset[int], recomputed: frozenset[int]) -> Found:
        """The result of a choice, without limits."""
        found = self.look(offloaded, recomputed, Most())
        assert found is not None
        return found

    def look(self, offloaded: frozenset[int], recomputed: frozenset[int], most: Most) -> Found | None:
        """The result of a choice; None if it is known to exceed the limits."""
        key = (offloaded, recomputed)
        tried = self.tried.get(key)
        if tried is None or (isinstance(tried, Most) and not most.is_within(tried)):
            tried = self.tried[key] = self._followed(offloaded, recomputed, most) or most
        return tried if isinstance(tried, Found) else None

    def _followed(self, offloaded: frozenset[int], recomputed: frozenset[int], most: Most) -> Found | None:
        ordered = sorted(recomputed, key=lambda buffer: (self.trace.made(buffer), buffer))
        again = {buffer: chain for buffer in ordered if (chain := self._chain(buffer)) is not None}
        loads = asked_back(self.trace, self.channel, offloaded, again) if self.channel is not None else ()
        plan = ActivationPlan(loads, again, limit_bytes=self.wish.limit_bytes)
        run = follow_within(self.trace, plan, self.channel, most)
        return None if run is None else Found(plan, run)

    def _chain(self, buffer: int) -> tuple[int, ...] | None:
        if buffer not in self.chains:
            self.chains[buffer] = chain_of(self.trace, buffer)
        return self.chains[buffer]

    def _not_nested(self, recomputed: frozenset[int]) -> frozenset[int]:
        """The recomputed buffers without those whose operands are recomputed only later."""
        return frozenset(buffer for buffer in recomputed if not self._made_of_later(buffer) & recomputed)

    def _made_of_later(self, buffer: int) -> frozenset[int]:
        """The saved buffers that a buffer is recomputed from and that the backward pass reads later than it."""
        if buffer not in self.later:
            kernels, returns = self.trace.kernels, self.trace.returns
            read = {other for place in self._chain(buffer) or () for other in kernels[place].reads}
            saved = read.intersection(self.trace.saved)
            self.later[buffer] = frozenset(other for other in saved if returns(other) > returns(buffer))
        return self.later[buffer]

    def _improved(self, found: Found, way: _Way) -> Found:
        """Offloads or recomputes buffers alive at the peak, one at a time, until that no longer helps."""
        while True:
            changed = (self._if_better(*change, found) for change in self._changes(found, way))
            better = next(filter(None, changed), None)
            if better is None:
                return found
            found = better

    def _changes(self, found: Found, way: _Way) -> Iterable[tuple[frozenset[int], frozenset[int]]]:
        offloaded, recomputed = found.plan.offloaded, frozenset(found.plan.recomputed)
        there = self._at_the_peak(found)
        in_vain = self._in_vain(found, there) if way.recompute else frozenset()
        for buffer in self._soonest_made(there) if way.soonest else self._longest_unused(there, found):
            if way.offload and buffer not in offloaded:
                yield offloaded | {buffer}, recomputed - {buffer}
            if not way.recompute or buffer in recomputed or self._chain(buffer) is None:
                continue
            more = recomputed | {buffer}
            again = more if way.nested else self._not_nested(more)
            if buffer in again and not (again == more and buffer in in_vain):
                yield offloaded - {buffer}, again

    def _exchanges(self, buffer: int, found: Found) -> Iterable[_Choice]:
        """Choices in which a buffer leaves memory the other way or is kept: alone, or in exchange for another buffer
        that is large enough, smallest first."""
        offloaded, recomputed = (chosen - {buffer} for chosen in _choice(found.plan))
        if buffer not in found.plan.offloaded | found.plan.recomputed.keys():
            return
        yield from (way for way in self._leaving(buffer, offloaded, recomputed) if way != _choice(found.plan))
        yield offloaded, recomputed
        bare = self._whole(offloaded, recomputed)
        more = bare.run.peak_bytes - max(self.wish.limit_bytes or 0, found.run.peak_bytes - 1)
        sizes = self.trace.sizes
        others = [other for other in self._at_the_peak(bare) if sizes[other] >= more and other != buffer]
        for other in sorted(others, key=lambda other: (sizes[other], other))[:MOST_EXCHANGES]:
            yield from self._leaving(other, offloaded, recomputed)

    def _leaving(self, buffer: int, offloaded: frozenset[int], recomputed: frozenset[int]) -> Iterable[_Choice]:
        """The choices that offload or recompute a buffer that is kept so far."""
        if self.both.offload:
            yield offloaded | {buffer}, recomputed
        if self.both.recompute and self._chain(buffer) is not None:
            yield offloaded, recomputed | {buffer}

    def _in_vain(self, found: Found, buffers: Iterable[int]) -> frozenset[int]:
        """Buffers whose recomputation would not lower the peak, because it is also reached while they are in memory.

        Known only if nothing is offloaded: then no time at which memory is freed depends on another.
        """
        if found.plan.loads:
            return frozenset()
        trace, highest = self.trace, _Highest(found.run)
        read = _read_again(trace, found.plan.recomputed, made_again(trace, found.plan.recomputed))

        def there(buffer: int) -> int:
            needed = min(trace.returns(buffer), read.get(buffer, len(trace.kernels)))
            return max(highest.until(trace.leaves(buffer)), highest.since(needed, trace.made(buffer)))

        return frozenset(buffer for buffer in buffers if there(buffer) >= found.run.peak_bytes)

    def _at_the_peak(self, found: Found) -> list[int]:
        """The large saved buffers that are alive at the peak."""
        alive: dict[int, int] = {}
        for time_us, _, which, size in found.run.log:
            if time_us > found.run.peak_us:
                break
            if size:
                alive[which] = alive.get(which, 0) + size
        return [buffer for buffer in self.large if alive.get(buffer, 0) > 0]

    def _longest_unused(self, buffers: Iterable[int], found: Found) -> list[int]:
        """The buffers, longest unused first."""
        starts = found.run.starts_us

        def unused_us(buffer: int) -> float:
            return starts[self.trace.returns(buffer)] - starts[self.trace.leaves(buffer)]

        return sorted(buffers, key=lambda buffer: (-unused_us(buffer), buffer))

    def _soonest_made(self, buffers: Iterable[int]) -> list[int]:
        """The buffers that can be recomputed, least time per byte first."""
        kernels = self.trace.kernels
        us_per_byte = {
            buffer: sum(kernels[place].time_us for place in chain) / self.trace.buffers[buffer].bytes
            for buffer in buffers
            if (chain := self._chain(buffer)) is not None
        }
        return sorted(us_per_byte, key=lambda buffer: (us_per_byte[buffer], buffer))

    def _thinned(self, found: Found) -> Found:
        """Keeps the buffers that need not be offloaded or recomputed."""
        for buffer in (*found.plan.offloaded, *found.plan.recomputed):
            offloaded, recomputed = found.plan.offloaded - {buffer}, frozenset(found.plan.recomputed) - {buffer}
            found = self._if_better(offloaded, recomputed, found) or found
        return found


def _choice(plan: ActivationPlan) -> _Choice:
    return plan.offloaded, frozenset(plan.recomputed)


class _Highest:
    """The maximum of live bytes in a run up to each kernel, and from each kernel on."""

    def __init__(self, run: Run) -> None:
        self.steps: list[int] = []  # kernels in order of execution, including reruns
        self.place_of: dict[int, int] = {}  # position of each kernel among the steps, without reruns
        highest: list[int] = []
        alive = most = 0
        for moment in run.log:
            alive += moment.bytes
            if moment.what != "give":
                most = max(most, alive)
            if moment.what in ("run", "again"):
                if moment.what == "run":
                    self.place_of[moment.which] = len(highest)
                self.steps.append(moment.which)
                highest.append(most)
                most = 0
        self.ahead = list(accumulate(highest, max))
        self.behind = list(accumulate(reversed(highest), max))[::-1]

    def until(self, kernel: int) -> int:
        """The maximum until a kernel ends."""
        return self.ahead[self.place_of[kernel]]

    def since(self, kernel: int, made: int) -> int:
        """The maximum since a kernel begins, including the reruns right before it from the first one of a kernel after
        `made` on."""
        end = self.place_of[kernel]
        later = (place for place in range(self.place_of[kernel - 1] + 1, end) if self.steps[place] > made)
        return self.behind[next(later, end)]


def chain_of(trace: Trace, buffer: int) -> tuple[int, ...] | None:
    """The kernels that recompute a saved buffer, in order; None if they are too many or an operand is unavailable.

    Their operands have to be saved too, be inputs, or be recomputed along with the buffer; operands in the chain are
    recomputed first. Data that was overwritten in the meantime, for example in place, is unavailable. Kernels that draw
    random numbers cannot run again.
    """
    there = set(trace.saved)
    place, chain = trace.returns(buffer), set()
    waiting, made_again, seen = [buffer], {buffer}, set[int]()
    while waiting:
        current = waiting.pop()
        made = [
            kernel
            for kernel in trace.uses[current]
            if trace.given <= kernel < trace.turn and current in trace.kernels[kernel].writes
        ]
        if not made or any(trace.kernels[kernel].draws for kernel in made):
            return None
        chain.update(made)
        for kernel in made:
            for read in trace.kernels[kernel].reads:
                if read in seen or read in made_again or trace.buffers[read].fixed:
                    continue
                if read not in there:
                    made_again.add(read)
                    waiting.append(read)
                seen.add(read)
        if len(chain) > LONGEST_CHAIN:
            return None
    if any(_is_overwritten(trace, kernel, place, made_again) for kernel in chain):
        return None
    return tuple(sorted(chain))


def _is_overwritten(trace: Trace, kernel: int, place: int, made_again: Container[int]) -> bool:
    """Whether rerunning a kernel before `place` would read, or destroy, data that has been written since it ran."""
    reads, writes = trace.kernels[kernel].reads, trace.kernels[kernel].writes
    return any(
        buffer not in made_again
        and any(buffer in trace.kernels[use].writes for use in trace.uses[buffer] if since <= use < place)
        for since, buffers in ((kernel, reads), (kernel + 1, writes))
        for buffer in buffers
    )
