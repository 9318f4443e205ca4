"""Which activations to keep, offload and recompute, and when to ask them back.

A plan is judged by following it. What is offloaded is asked back as late as no kernel waits for: from the last load
to the first, each ends where it is needed or where the next begins. Search starts from the best "keep from the i-th
on" and from nothing offloaded, then takes what is alive at the peak, the longest unused first, and offloads or
recomputes it while that makes the plan better; at last it keeps again what does not lower the peak. A plan is followed
no further than until it is known to be no better. Where both may be done, each is tried alone first, so that no plan of
one kind is better than the one that is found.

At first nothing is made again of what itself is made again later. Then the search goes on with that, and starts anew
with it from nothing recomputed: once more the longest unused first, and once what takes the least time a byte.
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
"""Of "keep from the i-th on", evenly spread where there are more."""

LEAST_SHARE = 1e-3
"""Of all that is saved: smaller buffers stay."""

LONGEST_CHAIN = 8
"""Kernels that one buffer may be recomputed by."""

MOST_EXCHANGES = 4
"""Buffers that are tried for one that stays."""

_Choice = tuple[frozenset[int], frozenset[int]]
"""What is offloaded, and what is recomputed."""


@dataclass(frozen=True)
class _Way:
    """How a plan is improved.

    Args:
        offload, recompute: what may be done.
        nested: whether something may be made again of what is made again for that too soon for its own reader.
        soonest: what takes the least time a byte is made again first, not what is unused longest.
    """

    offload: bool
    recompute: bool
    nested: bool = False
    soonest: bool = False


def searched(trace: Trace, channel: Channel | None, wish: Wish) -> Found:
    """The best plan that the search finds.

    Args:
        trace: the step.
        channel: to the SSDs; None: nothing can be offloaded.
        wish: what is asked of it.
    """
    return _Search(trace, channel, wish).best()


def improved(trace: Trace, channel: Channel | None, wish: Wish, plan: ActivationPlan) -> Found:
    """The plan that one change after the other leads to, each to a better plan.

    Args:
        trace, channel, wish: as above.
        plan: to begin with; no saved buffer leaves more than once.
    """
    return _Search(trace, channel, wish).improved_from(plan)


def exchanged(trace: Trace, channel: Channel | None, wish: Wish, plan: ActivationPlan) -> Found:
    """The plan that one exchange after the other leads to: what is offloaded or made again is so the other way, or
    stays, and something else leaves for it.

    Args:
        trace, channel, wish, plan: as above.
    """
    return _Search(trace, channel, wish).exchanged_from(plan)


def asked_back(
    trace: Trace, channel: Channel, offloaded: Iterable[int], recomputed: Mapping[int, tuple[int, ...]]
) -> tuple[tuple[int, int], ...]:
    """For every offloaded buffer the kernel before which it is asked back, in order: as late as no kernel waits for."""
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
        latest = bisect_right(ends, following)  # the kernel that starts next at that time, or before
        ready = bisect_left(ends, max(stored[buffer], ends[trace.leaves(buffer)])) + 1
        loads.append((buffer, min(place, max(latest, ready))))
    return tuple(reversed(loads))


def _ends(trace: Trace, recomputed: Mapping[int, tuple[int, ...]], again: Mapping[int, int]) -> Sequence[float]:
    """When every kernel ends, if none waits."""
    if not recomputed:
        return trace.through_us
    first = min(again.values())
    times = [kernel.time_us for kernel in trace.kernels[first:]]
    for buffer, chain in recomputed.items():
        times[again[buffer] - first] += sum(trace.kernels[kernel].time_us for kernel in chain)
    return [*trace.through_us[:first], *islice(accumulate(times, initial=trace.through_us[first - 1]), 1, None)]


def _read_again(trace: Trace, recomputed: Mapping[int, tuple[int, ...]], again: Mapping[int, int]) -> dict[int, int]:
    """Of every buffer from which something is recomputed the first kernel before which that is."""
    read: dict[int, int] = {}
    for buffer, kernels in recomputed.items():
        for other in (other for kernel in kernels for other in trace.kernels[kernel].reads):
            read[other] = min(again[buffer], read.get(other, again[buffer]))
    return read


@dataclass
class _Search:
    """One search; `tried` has what each choice came to, or what it was found to exceed."""

    trace: Trace
    channel: Channel | None
    wish: Wish
    tried: dict[_Choice, Found | Most] = field(default_factory=dict)
    chains: dict[int, tuple[int, ...] | None] = field(default_factory=dict)
    later: dict[int, frozenset[int]] = field(default_factory=dict)

    @cached_property
    def large(self) -> list[int]:
        """What is worth while to offload or recompute."""
        least = LEAST_SHARE * self.trace.saved_bytes
        return [buffer for buffer in self.trace.saved if self.trace.buffers[buffer].bytes >= least]

    @property
    def both(self) -> _Way:
        """All that may be done."""
        return _Way(self.wish.offload and self.channel is not None, self.wish.recompute)

    def improved_from(self, plan: ActivationPlan) -> Found:
        """What a plan is improved to."""
        found = self._better(self._whole(*_choice(plan)), self.both)
        return self._better(found, replace(self.both, nested=True)) if self.both.recompute else found

    def exchanged_from(self, plan: ActivationPlan) -> Found:
        """What exchanges make of a plan, until none helps."""
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
        """The best where something may be made again of what is made again for that; no worse than one without."""
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
        """What a choice comes to, whatever that is."""
        found = self.look(offloaded, recomputed, Most())
        assert found is not None
        return found

    def look(self, offloaded: frozenset[int], recomputed: frozenset[int], most: Most) -> Found | None:
        """What a choice comes to; None where it is known to exceed what it may come to."""
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
        """Those that are made of nothing that is made again only later."""
        return frozenset(buffer for buffer in recomputed if not self._made_of_later(buffer) & recomputed)

    def _made_of_later(self, buffer: int) -> frozenset[int]:
        """What a buffer is made again of that the backward pass reads later."""
        if buffer not in self.later:
            kernels, returns = self.trace.kernels, self.trace.returns
            read = {other for place in self._chain(buffer) or () for other in kernels[place].reads}
            saved = read.intersection(self.trace.saved)
            self.later[buffer] = frozenset(other for other in saved if returns(other) > returns(buffer))
        return self.later[buffer]

    def _improved(self, found: Found, way: _Way) -> Found:
        """Offloads or recomputes, one buffer at a time, what is alive at the peak."""
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
        """Choices in which it leaves the other way, or stays: alone, or for one that is large enough, the smallest
        first."""
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
        """What may be done with a buffer that stays so far."""
        if self.both.offload:
            yield offloaded | {buffer}, recomputed
        if self.both.recompute and self._chain(buffer) is not None:
            yield offloaded, recomputed | {buffer}

    def _in_vain(self, found: Found, buffers: Iterable[int]) -> frozenset[int]:
        """What leaves the peak where it is if it is made again too: as much is alive while it is there anyway.

        Known where nothing is moved: no time at which memory is given back depends on another.
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
        """Saved buffers that are there at the peak."""
        alive: dict[int, int] = {}
        for time_us, _, which, size in found.run.log:
            if time_us > found.run.peak_us:
                break
            if size:
                alive[which] = alive.get(which, 0) + size
        return [buffer for buffer in self.large if alive.get(buffer, 0) > 0]

    def _longest_unused(self, buffers: Iterable[int], found: Found) -> list[int]:
        """Those first that are not needed for the longest time."""
        starts = found.run.starts_us

        def unused_us(buffer: int) -> float:
            return starts[self.trace.returns(buffer)] - starts[self.trace.leaves(buffer)]

        return sorted(buffers, key=lambda buffer: (-unused_us(buffer), buffer))

    def _soonest_made(self, buffers: Iterable[int]) -> list[int]:
        """Those that can be made again, those first that take the least time a byte."""
        kernels = self.trace.kernels
        us_per_byte = {
            buffer: sum(kernels[place].time_us for place in chain) / self.trace.buffers[buffer].bytes
            for buffer in buffers
            if (chain := self._chain(buffer)) is not None
        }
        return sorted(us_per_byte, key=lambda buffer: (us_per_byte[buffer], buffer))

    def _thinned(self, found: Found) -> Found:
        """Keeps again what need not be offloaded or recomputed."""
        for buffer in (*found.plan.offloaded, *found.plan.recomputed):
            offloaded, recomputed = found.plan.offloaded - {buffer}, frozenset(found.plan.recomputed) - {buffer}
            found = self._if_better(offloaded, recomputed, found) or found
        return found


def _choice(plan: ActivationPlan) -> _Choice:
    return plan.offloaded, frozenset(plan.recomputed)


class _Highest:
    """The most that is alive at a time up to a kernel of a run, and from one on."""

    def __init__(self, run: Run) -> None:
        self.steps: list[int] = []  # kernels as they run, those that run again once more
        self.place_of: dict[int, int] = {}  # kernels, but for those that run again, among the steps
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
        """Until it ends."""
        return self.ahead[self.place_of[kernel]]

    def since(self, kernel: int, made: int) -> int:
        """Since it begins; from what runs again right before it, what makes something that was made behind another
        kernel counts too."""
        end = self.place_of[kernel]
        later = (place for place in range(self.place_of[kernel - 1] + 1, end) if self.steps[place] > made)
        return self.behind[next(later, end)]


def chain_of(trace: Trace, buffer: int) -> tuple[int, ...] | None:
    """The kernels that make a saved buffer again, in order; None where that takes too many, or what is not there.

    What they read has to be saved too, or to be an input, or is made again with it; what is recomputed itself is made
    again before. What was overwritten meanwhile, as what is computed in place does, is no longer there. What is drawn
    is not drawn again.
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
    """Whether a kernel that ran again before a place would read, or undo, what has been written since it ran."""
    reads, writes = trace.kernels[kernel].reads, trace.kernels[kernel].writes
    return any(
        buffer not in made_again
        and any(buffer in trace.kernels[use].writes for use in trace.uses[buffer] if since <= use < place)
        for since, buffers in ((kernel, reads), (kernel + 1, writes))
        for buffer in buffers
    )
