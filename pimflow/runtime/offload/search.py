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
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import accumulate, islice

from pimflow.records import dataclass
from pimflow.runtime.offload.channel import Channel
from pimflow.runtime.offload.requirements import Requirements
from pimflow.runtime.offload.run import (
    ActivationPlan,
    Run,
    RunLimits,
    SimulatedPlan,
    recomputed_before,
    simulate_within,
)
from pimflow.runtime.offload.trace import Trace

MAX_PREFIXES = 48
"""The maximum number of plans that offload only the first i buffers; evenly spaced if there are more buffers."""

MIN_SHARE = 1e-3
"""The smallest buffer to offload or recompute, as a fraction of all saved bytes."""

LONGEST_CHAIN = 8
"""The maximum number of kernels that recompute one buffer."""

MAX_EXCHANGES = 4
"""The maximum number of buffers to try in exchange for one that is kept instead."""

_Choice = tuple[frozenset[int], frozenset[int]]
"""The offloaded buffers, and the recomputed ones."""


@dataclass(frozen=True)
class _Moves:
    """The kinds of changes by which the search may improve a plan.

    Args:
        offload, recompute: whether buffers may be offloaded or recomputed.
        nested: whether a buffer may be recomputed from others that are recomputed only for this, before their own
            readers need them.
        cheapest_first: whether buffers with the least recomputation time per byte come first, instead of those unused
            longest.
    """

    offload: bool
    recompute: bool
    nested: bool = False
    cheapest_first: bool = False


@dataclass
class Results:
    """What is known of some choices for one memory limit.

    Args:
        tried: by choice, the key of its run, or limits that it is known to exceed; the runs themselves take too much
            memory.
        peaks: by choice, the peak of its run, and the large saved buffers that are alive then.
    """

    tried: dict[_Choice, tuple[float, ...] | RunLimits] = field(default_factory=dict)
    peaks: dict[_Choice, tuple[int, list[int]]] = field(default_factory=dict)


def _never() -> bool:
    return False


def _silent(_count: int) -> None:
    """Discard a number."""


@dataclass
class Watch:
    """The progress of searches, which stop improving their plans once time is up.

    Args:
        is_late: whether time is up.
        tell: receives the number of plans simulated so far.
        simulated: this number.
        cut_short: whether plans were left out for lack of time.
    """

    is_late: Callable[[], bool] = _never
    tell: Callable[[int], None] = _silent
    simulated: int = 0
    cut_short: bool = False

    def has_time(self) -> bool:
        """Whether there is time for another plan."""
        is_late = self.is_late()
        self.cut_short |= is_late
        return not is_late

    def count(self) -> None:
        """Count a plan."""
        self.simulated += 1
        self.tell(self.simulated)


@dataclass
class Known:
    """What searches for plans of one step with one channel can share.

    Args:
        watch: their progress.
        results: by requirements, without which kinds of changes are allowed.
        chains: by buffer, the kernels that recompute it, as for `chain_of`.
        later: by buffer, the saved buffers that it is recomputed from and that the backward pass reads later than it.
    """

    watch: Watch = field(default_factory=Watch)
    results: dict[Requirements, Results] = field(default_factory=dict)
    chains: dict[int, tuple[int, ...] | None] = field(default_factory=dict)
    later: dict[int, frozenset[int]] = field(default_factory=dict)

    def results_for(self, requirements: Requirements) -> Results:
        """What is known for some requirements, whichever kinds of changes they allow."""
        return self.results.setdefault(replace(requirements, offload=True, recompute=True), Results())


def search_plan(
    trace: Trace, channel: Channel | None, requirements: Requirements, known: Known | None = None
) -> SimulatedPlan:
    """The best plan that the search finds.

    Args:
        trace: the step.
        channel: the channel to the SSDs; None if nothing can be offloaded.
        requirements: the requirements for the plan.
        known: what searches for this step and channel share; by default this one starts anew.
    """
    return _Search(trace, channel, requirements, known or Known()).best()


def improve_plan(
    trace: Trace,
    channel: Channel | None,
    requirements: Requirements,
    plan: ActivationPlan,
    known: Known | None = None,
) -> SimulatedPlan:
    """The plan reached from a given one by successive changes, each of which improves it.

    Args:
        trace, channel, requirements, known: as for `search_plan`.
        plan: the plan to start from; it offloads no buffer more than once.
    """
    return _Search(trace, channel, requirements, known or Known()).improve(plan)


def exchange_buffers(
    trace: Trace,
    channel: Channel | None,
    requirements: Requirements,
    plan: ActivationPlan,
    known: Known | None = None,
) -> SimulatedPlan:
    """The plan reached by successive exchanges: a buffer is recomputed instead of offloaded or vice versa, or it is
    kept and another one leaves memory instead.

    Args:
        trace, channel, requirements, plan, known: as for `improve_plan`.
    """
    return _Search(trace, channel, requirements, known or Known()).exchange(plan)


def schedule_loads(
    trace: Trace, channel: Channel, offloaded: Iterable[int], recomputed: Mapping[int, tuple[int, ...]]
) -> tuple[tuple[int, int], ...]:
    """For each offloaded buffer, the kernel before which to request its load, in order: as late as no kernel waits."""
    again = recomputed_before(trace, recomputed)
    ends = _ends(trace, recomputed, again)
    read = _read_again(trace, recomputed, again)
    needed = {buffer: min(trace.first_backward_use(buffer), read.get(buffer, len(ends))) for buffer in offloaded}
    stored, free = {}, 0.0
    for buffer in sorted(needed, key=lambda buffer: (trace.last_write(buffer), buffer)):
        free = max(free, ends[trace.last_write(buffer)]) + channel.store_us(trace.buffers[buffer].bytes)
        stored[buffer] = free
    loads = []
    following = float("inf")
    for buffer in sorted(needed, key=lambda buffer: (needed[buffer], buffer), reverse=True):
        place = needed[buffer]
        due = ends[place - 1] if place else 0.0
        following = min(due, following) - channel.load_us(trace.buffers[buffer].bytes)
        latest = bisect_right(ends, following)  # the last kernel to start by that time
        ready = bisect_left(ends, max(stored[buffer], ends[trace.last_forward_use(buffer)])) + 1
        loads.append((buffer, min(place, max(latest, ready))))
    return tuple(reversed(loads))


def _ends(trace: Trace, recomputed: Mapping[int, tuple[int, ...]], again: Mapping[int, int]) -> Sequence[float]:
    """The end of each kernel if none waits, including recomputation."""
    if not recomputed:
        return trace.ends_us
    first = min(again.values())
    times = [kernel.time_us for kernel in trace.kernels[first:]]
    for buffer, chain in recomputed.items():
        times[again[buffer] - first] += sum(trace.kernels[kernel].time_us for kernel in chain)
    return [*trace.ends_us[:first], *islice(accumulate(times, initial=trace.ends_us[first - 1]), 1, None)]


def _read_again(trace: Trace, recomputed: Mapping[int, tuple[int, ...]], again: Mapping[int, int]) -> dict[int, int]:
    """For each buffer that others are recomputed from, the first kernel before which that happens."""
    read: dict[int, int] = {}
    for buffer, kernels in recomputed.items():
        for other in (other for kernel in kernels for other in trace.kernels[kernel].reads):
            read[other] = min(again[buffer], read.get(other, again[buffer]))
    return read


@dataclass
class _Search:
    """One search, and what it shares with others."""

    trace: Trace
    channel: Channel | None
    requirements: Requirements
    known: Known = field(default_factory=Known)

    @cached_property
    def results(self) -> Results:
        """What is known of choices."""
        return self.known.results_for(self.requirements)

    @cached_property
    def large(self) -> list[int]:
        """The saved buffers that are large enough to be worth offloading or recomputing."""
        least = MIN_SHARE * self.trace.saved_bytes
        return [buffer for buffer in self.trace.saved if self.trace.buffers[buffer].bytes >= least]

    @property
    def all_moves(self) -> _Moves:
        """All changes that are allowed."""
        return _Moves(self.requirements.offload and self.channel is not None, self.requirements.recompute)

    def improve(self, plan: ActivationPlan) -> SimulatedPlan:
        """The result of improving a plan."""
        found = self._refine(self._evaluate_fully(*_choice(plan)), self.all_moves)
        return self._refine(found, replace(self.all_moves, nested=True)) if self.all_moves.recompute else found

    def exchange(self, plan: ActivationPlan) -> SimulatedPlan:
        """The result of exchanges in a plan until none helps, without offloads that are useless."""
        found, before = self._evaluate_fully(*_choice(plan)), None
        while found is not before:
            before = found
            for buffer in sorted(frozenset().union(*_choice(found.plan))):
                found = next(
                    filter(None, (self._if_better(*change, found) for change in self._exchanges(buffer, found))), found
                )
        return self._without_forwarded(found)

    def best(self) -> SimulatedPlan:
        """The best of one kind or of both, improved until nothing helps."""
        allowed = self.all_moves
        kinds = [allowed]
        if allowed.offload and allowed.recompute:
            kinds += [_Moves(offload=True, recompute=False), _Moves(offload=False, recompute=True)]
        best = min((self._refine(self._initial(moves), moves) for moves in kinds), key=self._key)
        best = self._refine(best, allowed)
        return self._with_nesting(best, allowed) if allowed.recompute else best

    def _with_nesting(self, best: SimulatedPlan, allowed: _Moves) -> SimulatedPlan:
        """The best plan with nested recomputation allowed; never worse than the given one."""
        alone = _Moves(offload=False, recompute=True, nested=True)
        kinds = (alone, replace(alone, cheapest_first=True))
        restarted = min((self._improve(self._initial(moves), moves) for moves in kinds), key=self._key)
        return min((self._refine(found, replace(allowed, nested=True)) for found in (best, restarted)), key=self._key)

    def _initial(self, moves: _Moves) -> SimulatedPlan:
        found = self._evaluate_fully(frozenset(), frozenset())
        if moves.offload:
            for prefix in self._prefixes():
                found = self._if_better(frozenset(prefix), frozenset(), found) or found
        return found

    def _refine(self, found: SimulatedPlan, moves: _Moves) -> SimulatedPlan:
        return self._prune(self._improve(found, moves))

    def _prefixes(self) -> list[list[int]]:
        count = len(self.large)
        steps = min(count, MAX_PREFIXES)
        return [self.large[: round(count * step / steps)] for step in range(1, steps + 1)]

    def _key(self, found: SimulatedPlan) -> tuple[float, ...]:
        return self.requirements.key(self.trace, found)

    def _if_better(
        self, offloaded: frozenset[int], recomputed: frozenset[int], found: SimulatedPlan
    ) -> SimulatedPlan | None:
        tried, key = self.results.tried.get((offloaded, recomputed)), self._key(found)
        if (isinstance(tried, tuple) and tried >= key) or not self.known.watch.has_time():
            return None
        other = self.evaluate(offloaded, recomputed, self.requirements.limits(self.trace, found))
        return other if other is not None and self._key(other) < key else None

    def _evaluate_fully(self, offloaded: frozenset[int], recomputed: frozenset[int]) -> SimulatedPlan:
        """The result of a choice, without limits."""
        found = self.evaluate(offloaded, recomputed, RunLimits())
        assert found is not None
        return found

    def evaluate(
        self, offloaded: frozenset[int], recomputed: frozenset[int], limits: RunLimits
    ) -> SimulatedPlan | None:
        """The result of a choice; None if it is known to exceed the limits, or what the SSDs hold."""
        choice, tried = (offloaded, recomputed), self.results.tried
        known = tried.get(choice)
        if isinstance(known, RunLimits) and limits.is_within(known):
            return None
        self.known.watch.count()
        found = self._simulate(offloaded, recomputed, RunLimits() if isinstance(known, tuple) else limits)
        tried[choice] = limits if found is None else self._key(found)
        return found

    def _simulate(
        self, offloaded: frozenset[int], recomputed: frozenset[int], limits: RunLimits
    ) -> SimulatedPlan | None:
        if self.channel is not None and not self.channel.has_space(self.trace, offloaded):
            return None
        ordered = sorted(recomputed, key=lambda buffer: (self.trace.last_write(buffer), buffer))
        again = {buffer: chain for buffer in ordered if (chain := self._chain(buffer)) is not None}
        loads = schedule_loads(self.trace, self.channel, offloaded, again) if self.channel is not None else ()
        plan = ActivationPlan(loads, again, limit_bytes=self.requirements.limit_bytes)
        run = simulate_within(self.trace, plan, self.channel, limits)
        return None if run is None else SimulatedPlan(plan, run)

    def _chain(self, buffer: int) -> tuple[int, ...] | None:
        if buffer not in self.known.chains:
            self.known.chains[buffer] = chain_of(self.trace, buffer)
        return self.known.chains[buffer]

    def _not_nested(self, recomputed: frozenset[int]) -> frozenset[int]:
        """The recomputed buffers without those whose operands are recomputed only later."""
        return frozenset(buffer for buffer in recomputed if not self._made_of_later(buffer) & recomputed)

    def _made_of_later(self, buffer: int) -> frozenset[int]:
        """The saved buffers that a buffer is recomputed from and that the backward pass reads later than it."""
        if buffer not in self.known.later:
            kernels, returns = self.trace.kernels, self.trace.first_backward_use
            read = {other for place in self._chain(buffer) or () for other in kernels[place].reads}
            saved = read.intersection(self.trace.saved)
            self.known.later[buffer] = frozenset(other for other in saved if returns(other) > returns(buffer))
        return self.known.later[buffer]

    def _improve(self, found: SimulatedPlan, moves: _Moves) -> SimulatedPlan:
        """Offloads or recomputes buffers alive at the peak, one at a time, until that no longer helps."""
        while True:
            changed = (self._if_better(*change, found) for change in self._changes(found, moves))
            better = next(filter(None, changed), None)
            if better is None:
                return found
            found = better

    def _changes(self, found: SimulatedPlan, moves: _Moves) -> Iterable[tuple[frozenset[int], frozenset[int]]]:
        offloaded, recomputed = found.plan.offloaded, frozenset(found.plan.recomputed)
        there = self._at_the_peak(found)
        pointless = self._not_lowering_the_peak(found, there) if moves.recompute else frozenset()
        for buffer in (
            self._cheapest_to_recompute(there) if moves.cheapest_first else self._longest_unused(there, found)
        ):
            if moves.offload and buffer not in offloaded:
                yield offloaded | {buffer}, recomputed - {buffer}
            if not moves.recompute or buffer in recomputed or self._chain(buffer) is None:
                continue
            more = recomputed | {buffer}
            again = more if moves.nested else self._not_nested(more)
            if buffer in again and not (again == more and buffer in pointless):
                yield offloaded - {buffer}, again

    def _exchanges(self, buffer: int, found: SimulatedPlan) -> Iterable[_Choice]:
        """Choices in which a buffer leaves memory the other way or is kept: alone, or in exchange for another buffer
        that is large enough, smallest first."""
        offloaded, recomputed = (chosen - {buffer} for chosen in _choice(found.plan))
        if buffer not in found.plan.offloaded | found.plan.recomputed.keys() or not self.known.watch.has_time():
            return
        yield from (
            choice for choice in self._evictions(buffer, offloaded, recomputed) if choice != _choice(found.plan)
        )
        peak_bytes, there = self._peak(offloaded, recomputed)
        yield offloaded, recomputed
        more = peak_bytes - max(self.requirements.limit_bytes or 0, found.run.peak_bytes - 1)
        sizes = self.trace.sizes
        others = [other for other in there if sizes[other] >= more and other != buffer]
        for other in sorted(others, key=lambda other: (sizes[other], other))[:MAX_EXCHANGES]:
            yield from self._evictions(other, offloaded, recomputed)

    def _peak(self, offloaded: frozenset[int], recomputed: frozenset[int]) -> tuple[int, list[int]]:
        """The peak of a choice, and the large saved buffers that are alive then."""
        choice, peaks = (offloaded, recomputed), self.results.peaks
        if choice not in peaks:
            found = self._evaluate_fully(offloaded, recomputed)
            peaks[choice] = found.run.peak_bytes, self._at_the_peak(found)
        return peaks[choice]

    def _evictions(self, buffer: int, offloaded: frozenset[int], recomputed: frozenset[int]) -> Iterable[_Choice]:
        """The choices that offload or recompute a buffer that is kept so far."""
        if self.all_moves.offload:
            yield offloaded | {buffer}, recomputed
        if self.all_moves.recompute and self._chain(buffer) is not None:
            yield offloaded, recomputed | {buffer}

    def _not_lowering_the_peak(self, found: SimulatedPlan, buffers: Iterable[int]) -> frozenset[int]:
        """Buffers whose recomputation would not lower the peak, because it is also reached while they are in memory.

        Known only if nothing is offloaded: then no time at which memory is freed depends on another.
        """
        if found.plan.loads:
            return frozenset()
        trace, highest = self.trace, _Peaks(found.run)
        read = _read_again(trace, found.plan.recomputed, recomputed_before(trace, found.plan.recomputed))

        def there(buffer: int) -> int:
            needed = min(trace.first_backward_use(buffer), read.get(buffer, len(trace.kernels)))
            return max(highest.until(trace.last_forward_use(buffer)), highest.since(needed, trace.last_write(buffer)))

        return frozenset(buffer for buffer in buffers if there(buffer) >= found.run.peak_bytes)

    def _at_the_peak(self, found: SimulatedPlan) -> list[int]:
        """The large saved buffers that are alive at the peak."""
        alive, sizes = found.run.recording.alive_at(found.run.peak_us), self.trace.sizes
        return [buffer for buffer in self.large if buffer in alive and sizes[buffer]]

    def _longest_unused(self, buffers: Iterable[int], found: SimulatedPlan) -> list[int]:
        """The buffers, longest unused first."""
        starts = found.run.starts_us

        def unused_us(buffer: int) -> float:
            return starts[self.trace.first_backward_use(buffer)] - starts[self.trace.last_forward_use(buffer)]

        return sorted(buffers, key=lambda buffer: (-unused_us(buffer), buffer))

    def _cheapest_to_recompute(self, buffers: Iterable[int]) -> list[int]:
        """The buffers that can be recomputed, least time per byte first."""
        kernels = self.trace.kernels
        us_per_byte = {
            buffer: sum(kernels[place].time_us for place in chain) / self.trace.buffers[buffer].bytes
            for buffer in buffers
            if (chain := self._chain(buffer)) is not None
        }
        return sorted(us_per_byte, key=lambda buffer: (us_per_byte[buffer], buffer))

    def _prune(self, found: SimulatedPlan) -> SimulatedPlan:
        """Keeps the buffers that need not be offloaded or recomputed."""
        for buffer in (*found.plan.offloaded, *found.plan.recomputed):
            offloaded, recomputed = found.plan.offloaded - {buffer}, frozenset(found.plan.recomputed) - {buffer}
            found = self._if_better(offloaded, recomputed, found) or found
        return found

    def _without_forwarded(self, found: SimulatedPlan) -> SimulatedPlan:
        """Keeps the offloaded buffers that never leave memory, as they are needed before they are stored. All at once:
        without one alone, the useless store of another may begin in its place, and take longer."""
        loaded = {transfer.buffer for transfer in found.run.transfers if transfer.kind == "load"}
        if found.plan.offloaded <= loaded:
            return found
        kept = self._evaluate_fully(found.plan.offloaded & loaded, frozenset(found.plan.recomputed))
        return kept if self._key(kept) <= self._key(found) else found


def _choice(plan: ActivationPlan) -> _Choice:
    return plan.offloaded, frozenset(plan.recomputed)


class _Peaks:
    """The maximum of live bytes in a run up to each kernel, and from each kernel on."""

    def __init__(self, run: Run) -> None:
        self.kernels, self.place_of, peaks_bytes = run.recording.steps()
        self.peaks_until = list(accumulate(peaks_bytes, max))
        self.peaks_since = list(accumulate(reversed(peaks_bytes), max))[::-1]

    def until(self, kernel: int) -> int:
        """The maximum until a kernel ends."""
        return self.peaks_until[self.place_of[kernel]]

    def since(self, kernel: int, after: int) -> int:
        """The maximum since a kernel begins, including the reruns right before it from the first one of a kernel after
        `after` on."""
        end = self.place_of[kernel]
        later = (place for place in range(self.place_of[kernel - 1] + 1, end) if self.kernels[place] > after)
        return self.peaks_since[next(later, end)]


def chain_of(trace: Trace, buffer: int) -> tuple[int, ...] | None:
    """The kernels that recompute a saved buffer, in order; None if they are too many or an operand is unavailable.

    Their operands have to be saved too, be inputs, or be recomputed along with the buffer; operands in the chain are
    recomputed first. Data that was overwritten in the meantime, for example in place, is unavailable. Kernels that draw
    random numbers cannot run again.
    """
    there = set(trace.saved)
    place, chain = trace.first_backward_use(buffer), set()
    waiting, recomputed, seen = [buffer], {buffer}, set[int]()
    while waiting:
        current = waiting.pop()
        producers = [
            kernel
            for kernel in trace.uses[current]
            if trace.input_kernels <= kernel < trace.turn and current in trace.kernels[kernel].writes
        ]
        if not producers or any(trace.kernels[kernel].draws for kernel in producers):
            return None
        chain.update(producers)
        for kernel in producers:
            for read in trace.kernels[kernel].reads:
                if read in seen or read in recomputed or trace.buffers[read].fixed:
                    continue
                if read not in there:
                    recomputed.add(read)
                    waiting.append(read)
                seen.add(read)
        if len(chain) > LONGEST_CHAIN:
            return None
    if any(_is_overwritten(trace, kernel, place, recomputed) for kernel in chain):
        return None
    return tuple(sorted(chain))


def _is_overwritten(trace: Trace, kernel: int, place: int, recomputed: Container[int]) -> bool:
    """Whether rerunning a kernel before `place` would read, or destroy, data that has been written since it ran."""
    reads, writes = trace.kernels[kernel].reads, trace.kernels[kernel].writes
    return any(
        buffer not in recomputed
        and any(buffer in trace.kernels[use].writes for use in trace.uses[buffer] if since <= use < place)
        for since, buffers in ((kernel, reads), (kernel + 1, writes))
        for buffer in buffers
    )
