"""Which activations to keep, offload and recompute, and when to ask them back.

A plan is judged by following it. What is offloaded is asked back as late as no kernel waits for: from the last load
to the first, each ends where it is needed or where the next begins. Search starts from the best "keep from the i-th
on" and from nothing offloaded, then takes what is alive at the peak, the longest unused first, and offloads or
recomputes it while that makes the plan better; at last it keeps again what does not lower the peak. A plan is followed
no further than until it is known to be no better. Where both may be done, each is tried alone first, so that no plan of
one kind is better than the one that is found.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from pimflow.runtime.offload.run import ActivationPlan, Channel, Most, Run, follow_within
from pimflow.runtime.offload.trace import Trace

MOST_PREFIXES = 48
"""Of "keep from the i-th on", evenly spread where there are more."""

LEAST_SHARE = 1e-3
"""Of all that is saved: smaller buffers stay."""

LONGEST_CHAIN = 8
"""Kernels that one buffer may be recomputed by."""

_SLACK = 1e-9


@dataclass(frozen=True)
class Wish:
    """What is asked of a plan.

    Args:
        offload: whether anything may be offloaded.
        recompute: whether anything may be recomputed.
        slower_percent: how much longer the step may take than without either, unless `limit_bytes` asks for more. What
            transfers take of the memory's bandwidth is apart from that: nothing is offloaded without it.
        limit_bytes: what activations may take, in the least time, all included; None: as little as possible.
    """

    offload: bool = True
    recompute: bool = True
    slower_percent: float = 0.0
    limit_bytes: int | None = None


@dataclass(frozen=True)
class Found:
    """A plan and what it comes to."""

    plan: ActivationPlan
    run: Run


def plan_activations(trace: Trace, channel: Channel | None, wish: Wish | None = None) -> Found:
    """The best plan that the search finds.

    Args:
        trace: the step.
        channel: to the SSDs; None: nothing can be offloaded.
        wish: what is asked of it.
    """
    return _Search(trace, channel, wish or Wish()).best()


def asked_back(
    trace: Trace, channel: Channel, offloaded: Iterable[int], recomputed: Mapping[int, tuple[int, ...]]
) -> tuple[tuple[int, int], ...]:
    """For every offloaded buffer the kernel before which it is asked back, in order: as late as no kernel waits for."""
    ends = _ends(trace, recomputed)
    needed = {buffer: _needed(trace, buffer, recomputed) for buffer in offloaded}
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


def _ends(trace: Trace, recomputed: Mapping[int, tuple[int, ...]]) -> Sequence[float]:
    """When every kernel ends, if none waits."""
    if not recomputed:
        return trace.through_us
    again: dict[int, float] = {}
    for buffer, chain in recomputed.items():
        place = trace.returns(buffer)
        again[place] = again.get(place, 0.0) + sum(trace.kernels[kernel].time_us for kernel in chain)
    return list(accumulate(kernel.time_us + again.get(place, 0.0) for place, kernel in enumerate(trace.kernels)))


def _needed(trace: Trace, buffer: int, recomputed: Mapping[int, tuple[int, ...]]) -> int:
    """Where a buffer has to be back: for the backward pass, or for what is recomputed from it."""
    places = [
        trace.returns(other)
        for other, kernels in recomputed.items()
        if any(buffer in trace.kernels[place].reads for place in kernels)
    ]
    return min([trace.returns(buffer), *places])


@dataclass
class _Search:
    """One search; `tried` has what each choice came to, or what it was found to exceed."""

    trace: Trace
    channel: Channel | None
    wish: Wish
    tried: dict[tuple[frozenset[int], frozenset[int]], Found | Most] = field(default_factory=dict)

    def best(self) -> Found:
        """The best of one kind or of both, improved until nothing helps."""
        self.allowed_us = self.trace.time_us * (1 + self.wish.slower_percent / 100 + _SLACK)
        least = LEAST_SHARE * self.trace.saved_bytes
        self.large = [buffer for buffer in self.trace.saved if self.trace.buffers[buffer].bytes >= least]
        kinds = [self.wish]
        if self.channel is not None and self.wish.offload and self.wish.recompute:
            kinds += [replace(self.wish, recompute=False), replace(self.wish, offload=False)]
        best = min((self._better(self._start(kind), kind) for kind in kinds), key=self._key)
        return self._better(best, self.wish)

    def _start(self, kind: Wish) -> Found:
        found = self.look(frozenset(), frozenset(), Most())
        assert found is not None
        if self.channel is not None and kind.offload:
            for prefix in self._prefixes():
                found = self._if_better(frozenset(prefix), frozenset(), found) or found
        return found

    def _better(self, found: Found, kind: Wish) -> Found:
        return self._thinned(self._improved(found, kind))

    def _prefixes(self) -> list[list[int]]:
        count = len(self.large)
        steps = min(count, MOST_PREFIXES)
        return [self.large[: round(count * step / steps)] for step in range(1, steps + 1)]

    def _key(self, found: Found) -> tuple[float, ...]:
        """The smaller, the better: what is out of bounds, what is asked for, what is written and made again."""
        run, limit = found.run, self.wish.limit_bytes
        spent = (run.bytes_of("store", self.trace), run.recompute_us)
        if limit is None:
            return (max(0.0, run.time_us - run.slowed_us - self.allowed_us), run.peak_bytes, *spent)
        return (max(0, run.peak_bytes - limit), max(0.0, run.time_us - self.allowed_us), *spent)

    def _most(self, found: Found) -> Most:
        """What a plan with a smaller key does not exceed; times with a margin for how they are added up."""
        out, asked, stored, again_us = self._key(found)
        spare_us = self.allowed_us - self.trace.time_us * (1 - _SLACK)
        limit = self.wish.limit_bytes
        if limit is not None:
            peak = max(limit, found.run.peak_bytes)
            return Most(peak, lost_us=math.inf if out else spare_us + asked, slowed=True)
        if out:
            return Most(lost_us=spare_us + out)
        return Most(found.run.peak_bytes, stored, spare_us, again_us=again_us * (1 + _SLACK))

    def _if_better(self, offloaded: frozenset[int], recomputed: frozenset[int], found: Found) -> Found | None:
        other = self.look(offloaded, recomputed, self._most(found))
        return other if other is not None and self._key(other) < self._key(found) else None

    def look(self, offloaded: frozenset[int], recomputed: frozenset[int], most: Most) -> Found | None:
        """What a choice comes to; None where it is known to exceed what it may come to."""
        key = (offloaded, recomputed)
        tried = self.tried.get(key)
        if tried is None or (isinstance(tried, Most) and not most.is_within(tried)):
            tried = self.tried[key] = self._followed(offloaded, recomputed, most) or most
        return tried if isinstance(tried, Found) else None

    def _followed(self, offloaded: frozenset[int], recomputed: frozenset[int], most: Most) -> Found | None:
        again = {
            buffer: chain
            for buffer in sorted(recomputed, key=lambda buffer: (self.trace.made(buffer), buffer))
            if (chain := chain_of(self.trace, buffer, recomputed)) is not None
        }
        loads = asked_back(self.trace, self.channel, offloaded, again) if self.channel is not None else ()
        plan = ActivationPlan(loads, again)
        run = follow_within(self.trace, plan, self.channel, self.wish.limit_bytes, most)
        return None if run is None else Found(plan, run)

    def _improved(self, found: Found, kind: Wish) -> Found:
        """Offloads or recomputes, one buffer at a time, what is alive at the peak."""
        while True:
            changed = (self._if_better(*change, found) for change in self._changes(found, kind))
            better = next(filter(None, changed), None)
            if better is None:
                return found
            found = better

    def _changes(self, found: Found, kind: Wish) -> Iterable[tuple[frozenset[int], frozenset[int]]]:
        offloaded, recomputed = found.plan.offloaded, frozenset(found.plan.recomputed)
        for buffer in self._at_the_peak(found):
            if self.channel is not None and kind.offload and buffer not in offloaded:
                yield offloaded | {buffer}, recomputed - {buffer}
            if kind.recompute and buffer not in recomputed:
                again = recomputed | {buffer}
                if chain_of(self.trace, buffer, again) is not None:
                    yield offloaded - {buffer}, again

    def _at_the_peak(self, found: Found) -> list[int]:
        """Saved buffers that are there at the peak, those first that are not needed for the longest time."""
        alive: dict[int, int] = {}
        for time_us, _, which, size in found.run.log:
            if time_us > found.run.peak_us:
                break
            if size:
                alive[which] = alive.get(which, 0) + size
        there = [buffer for buffer in self.large if alive.get(buffer, 0) > 0]
        starts = found.run.starts_us

        def unused_us(buffer: int) -> float:
            return starts[self.trace.returns(buffer)] - starts[self.trace.leaves(buffer)]

        return sorted(there, key=lambda buffer: (-unused_us(buffer), buffer))

    def _thinned(self, found: Found) -> Found:
        """Keeps again what need not be offloaded or recomputed."""
        for buffer in (*found.plan.offloaded, *found.plan.recomputed):
            offloaded, recomputed = found.plan.offloaded - {buffer}, frozenset(found.plan.recomputed) - {buffer}
            found = self._if_better(offloaded, recomputed, found) or found
        return found


def chain_of(trace: Trace, buffer: int, recomputed: Iterable[int]) -> tuple[int, ...] | None:
    """The kernels that make a saved buffer again, in order; None where that takes too many, or what is not there.

    What they read has to be saved too, or to be an input, or is made again with it; what was overwritten meanwhile, as
    what is computed in place does, is no longer there. What is drawn is not drawn again.
    """
    there, again = set(trace.saved), set(recomputed)
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
                elif read in again and trace.returns(read) > place:
                    return None
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
