"""Plans without drives: the steps in another order, with any number of reruns.

The search goes backwards, as in `memory_bound`: the state at some time is a set of versions of buffers, each as one
step wrote it. The step that made one of them last is undone: its operands are needed instead. A path back to the inputs
on which the memory never exceeds the limit is a plan when read forwards. Paths are explored in the order of a lower
bound on what they still need, which counts every step at most once: first in steps, then in time, weighted against the
time so far, as long as the total is less than the best plan found (A*: Hart, Nilsson and Raphael, IEEE Transactions on
Systems Science and Cybernetics 4(2), 1968; weighted: Pohl, Artificial Intelligence 1(3), 1970).

A buffer holds one version at a time; writing to it again destroys the previous version. A step that draws random
numbers is undone only when no step before it needs its results.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import count

from pimflow.records import dataclass
from pimflow.runtime.offload.run import ActivationPlan, Moment, Recording, Rerun, Run, SimulatedPlan
from pimflow.runtime.offload.trace import Trace

MAX_SETS, MAX_SETS_ONCE_FOUND = 20_000, 2_000
"""The maximum number of sets that a search visits for up to a hundred steps, before and after a plan is found; fewer
for more steps, as each set takes longer."""

_WEIGHTS = (("steps", math.inf), ("time", 20.0), ("time", 1.25))
"""The searches: the unit in which the steps still needed count, and their weight relative to the time so far."""


def reordered_plan(
    trace: Trace, sizes: Sequence[int], limit_bytes: int, below_us: float = math.inf
) -> SimulatedPlan | None:
    """The fastest plan that the searches find; None where they find none.

    Args:
        trace: the steps; the first ones provide inputs, the last one takes results.
        sizes: sizes of its buffers in an arena.
        limit_bytes: the limit on live bytes.
        below_us: an upper bound on the time of the plan.
    """
    search = _BackwardSearch(trace, tuple(sizes), limit_bytes)
    best: tuple[int, ...] = ()
    for unit, weight in _WEIGHTS:
        found = search.path(unit, weight, below_us)
        if found:
            best, below_us = found, sum(trace.kernels[place].time_us for place in found)
    return plan_in_order(trace, best) if best else None


def plan_in_order(trace: Trace, path: Sequence[int]) -> SimulatedPlan | None:
    """The plan that runs all steps that write, and the last one, in an order, some of them more than once; None if the
    other steps (views) cannot be added."""
    order = _with_views(trace, path)
    if order is None:
        return None
    plan = ActivationPlan(recomputed=_reruns(trace, order), order=order)
    return SimulatedPlan(plan, simulate_in_order(trace, plan))


def _reruns(trace: Trace, order: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """The buffers that are written again, each with the steps that do so."""
    again: dict[int, tuple[int, ...]] = {}
    seen: set[int] = set()
    for place in order:
        for buffer in trace.kernels[place].writes if place in seen else ():
            again[buffer] = (*again.get(buffer, ()), place)
        seen.add(place)
    return again


def simulate_in_order(trace: Trace, plan: ActivationPlan) -> Run:
    """Simulates the steps in the order of a plan; nothing waits, and nothing is moved.

    A buffer is in memory from when a step writes it until the last later step that needs its content.
    """
    order = plan.order
    needed_after = list(_needed_after(trace, order))
    starts, ends, reruns = [0.0] * len(trace.kernels), [-1.0] * len(trace.kernels), list[Rerun]()
    log: list[Moment] = []
    alive: set[int] = set()
    now = recompute_us = 0.0
    for place, needed in zip(order, needed_after, strict=True):
        kernel, begin = trace.kernels[place], now
        for buffer in trace.accessed[place]:
            if buffer not in alive:
                alive.add(buffer)
                log.append(Moment(now, "allocate", buffer, trace.buffers[buffer].bytes))
        now += kernel.time_us
        again = ends[place] >= 0
        log.append(Moment(now, "again" if again else "run", place))
        if again:
            recompute_us += kernel.time_us
            reruns.append(Rerun(place, begin, now))
        else:
            starts[place], ends[place] = begin, now
        for buffer in sorted(alive - needed):
            alive.discard(buffer)
            log.append(Moment(now, "free", buffer, -trace.buffers[buffer].bytes))
    spans = (tuple(starts), tuple(ends))
    recording = Recording(trace, log, *spans)
    return Run(now, 0.0, recompute_us, 0.0, *recording.peak(), (), *spans, tuple(reruns), recording)


def _needed_after(trace: Trace, order: Sequence[int]) -> Iterator[set[int]]:
    """For each step in an order, the buffers whose content is needed after it."""
    first = {buffer: places[0] for buffer, places in enumerate(trace.uses) if places}
    needed: set[int] = set()
    after = []
    for place in reversed(order):
        after.append(set(needed))
        kernel = trace.kernels[place]
        needed.difference_update(buffer for buffer in kernel.writes if first[buffer] == place)
        needed.update(buffer for buffer in kernel.writes if first[buffer] != place)
        needed.update(kernel.reads)
    return reversed(after)


def _with_views(trace: Trace, path: Sequence[int]) -> tuple[int, ...] | None:
    """A path completed by the steps that write nothing (views), each as soon as its operand is written; None if one has
    several operands, which may never be in memory together."""
    last_writer: dict[int, int] = {}
    views: dict[int, list[int]] = {}
    for place, kernel in enumerate(trace.kernels[:-1]):
        if not kernel.writes:
            if len(kernel.reads) > 1:
                return None
            views.setdefault(last_writer[kernel.reads[0]] if kernel.reads else 0, []).append(place)
        last_writer.update(dict.fromkeys(kernel.writes, place))
    order: list[int] = []
    for place in path:
        order += (place, *views.pop(place, ()))
    return tuple(order)


@dataclass(frozen=True)
class _BackwardSearch:
    """Searches paths back from the results to the inputs. Sets of versions and of steps are bit masks."""

    trace: Trace
    sizes: tuple[int, ...]
    limit_bytes: int

    def path(self, unit: str, weight: float, below_us: float) -> tuple[int, ...]:
        """A plan that is faster than `below_us`: all steps that write, in order; () if none is found."""
        end, number = len(self.trace.kernels) - 1, count()
        start = self._reads[end]
        most = (MAX_SETS if below_us == math.inf else MAX_SETS_ONCE_FOUND) * 100 // max(100, end)
        remaining = self._count if unit == "steps" else self._time_us
        known, came = {start: 0.0}, dict[int, tuple[int, int]]()
        at_once = max(self._live_bytes(place, 0, 0) for place in (*range(self.trace.input_kernels), end))
        waiting = [(0.0, next(number), 0.0, start)] if at_once <= self.limit_bytes else []
        while waiting and len(known) <= most:
            _, _, spent_us, needed = heapq.heappop(waiting)
            if known[needed] < spent_us:
                continue
            if not needed & ~self._inputs:
                return (*range(self.trace.input_kernels), *_path_to_results(came, needed), end)
            for place, before in self._predecessors(needed):
                before_us = spent_us + self.trace.kernels[place].time_us
                ahead = self._ancestors_of(before)
                if before_us >= known.get(before, math.inf) or before_us + self._time_us(ahead) >= below_us:
                    continue
                known[before], came[before] = before_us, (needed, place)
                key = remaining(ahead) if weight == math.inf else before_us + weight * remaining(ahead)
                heapq.heappush(waiting, (key, next(number), before_us, before))
        return ()

    def _predecessors(self, needed: int) -> list[tuple[int, int]]:
        """The steps that may have made one of the needed versions last, each with the versions needed before it.

        One step suffices if all its operands are needed anyway, or if they are no larger than its results and no other
        required step reads these results: a schedule that has the results at some time can as well have the operands.
        """
        size = sum(self.sizes[self._versions[version][0]] for version in _bits(needed))
        found = []
        for place in sorted({self._versions[version][1] for version in _bits(needed & ~self._inputs)}, reverse=True):
            rest = needed & ~self._writes[place]
            before = rest | self._reads[place]
            if rest & self._overwritten[place] or self._live_bytes(place, needed, size) > self.limit_bytes:
                continue
            added = self._reads[place] & ~needed
            if any(self._other_versions[version] & before for version in _bits(added)):
                continue
            if self.trace.kernels[place].draws and self._ancestors_of(before) >> place & 1:
                continue  # it would run again
            if not added or self._replaces(place, rest, needed, added):
                return [(place, before)]
            found.append((place, before))
        return found

    def _replaces(self, place: int, rest: int, needed: int, added: int) -> bool:
        result_bytes = sum(self.sizes[self._versions[version][0]] for version in _bits(needed & ~rest))
        if sum(self.sizes[self._versions[version][0]] for version in _bits(added)) > result_bytes:
            return False
        if any(self._other_versions[version] & ~self._writes[place] for version in _bits(added)):
            return False
        return not any(self._readers[version] & self._ancestors_of(rest) for version in _bits(self._writes[place]))

    def _live_bytes(self, place: int, needed: int, size: int) -> int:
        """Bytes in memory while a step runs and `needed`, of `size` bytes, is required after it."""
        return size + sum(self.sizes[buffer] for buffer, held in self._accessed[place] if not held & needed)

    def _ancestors_of(self, needed: int) -> int:
        """The steps that the needed versions depend on."""
        steps = 0
        for version in _bits(needed & ~self._inputs):
            steps |= self._ancestors[self._versions[version][1]]
        return steps

    def _count(self, steps: int) -> float:
        return float(steps.bit_count())

    def _time_us(self, steps: int) -> float:
        return sum(self.trace.kernels[place].time_us for place in _bits(steps))

    @cached_property
    def _versions(self) -> tuple[tuple[int, int], ...]:
        """The versions: each a buffer with a step that writes it."""
        return tuple((buffer, place) for place, kernel in enumerate(self.trace.kernels) for buffer in kernel.writes)

    @cached_property
    def _versions_of(self) -> dict[int, int]:
        held: dict[int, int] = {}
        for version, (buffer, _) in enumerate(self._versions):
            held[buffer] = held.get(buffer, 0) | 1 << version
        return held

    @cached_property
    def _other_versions(self) -> tuple[int, ...]:
        """For each version, the other versions of its buffer."""
        return tuple(self._versions_of[buffer] & ~(1 << version) for version, (buffer, _) in enumerate(self._versions))

    @cached_property
    def _reads(self) -> tuple[int, ...]:
        """For each step, the versions that it reads, including those that it updates."""
        numbers = {write: version for version, write in enumerate(self._versions)}
        last, reads = dict[int, int](), []
        for place, kernel in enumerate(self.trace.kernels):
            reads.append(sum({1 << last[buffer] for buffer in {*kernel.reads, *kernel.writes} if buffer in last}))
            last.update({buffer: numbers[buffer, place] for buffer in kernel.writes})
        return tuple(reads)

    @cached_property
    def _writes(self) -> tuple[int, ...]:
        writes = [0] * len(self.trace.kernels)
        for version, (_, place) in enumerate(self._versions):
            writes[place] |= 1 << version
        return tuple(writes)

    @cached_property
    def _overwritten(self) -> tuple[int, ...]:
        """For each step, all other versions of the buffers that it writes."""
        held = self._versions_of
        return tuple(
            sum({held[buffer] for buffer in kernel.writes}) & ~self._writes[place]
            for place, kernel in enumerate(self.trace.kernels)
        )

    @cached_property
    def _accessed(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each step, the buffers that it accesses, with all their versions."""
        held = self._versions_of
        return tuple(
            tuple((buffer, held.get(buffer, 0)) for buffer in sorted({*kernel.reads, *kernel.writes}))
            for kernel in self.trace.kernels
        )

    @cached_property
    def _inputs(self) -> int:
        return sum(
            1 << version for version, (_, place) in enumerate(self._versions) if place < self.trace.input_kernels
        )

    @cached_property
    def _ancestors(self) -> tuple[int, ...]:
        """For each step, itself and the steps that it depends on."""
        ancestors: list[int] = []
        for place, reads in enumerate(self._reads):
            steps = 1 << place
            for version in _bits(reads & ~self._inputs):
                steps |= ancestors[self._versions[version][1]]
            ancestors.append(steps)
        return tuple(ancestors)

    @cached_property
    def _readers(self) -> tuple[int, ...]:
        """For each version, the steps that read it."""
        readers = [0] * len(self._versions)
        for place, reads in enumerate(self._reads):
            for version in _bits(reads):
                readers[version] |= 1 << place
        return tuple(readers)


def _path_to_results(came: dict[int, tuple[int, int]], needed: int) -> Iterator[int]:
    """The steps from a set of versions to the results."""
    while needed in came:
        needed, place = came[needed]
        yield place


def _bits(number: int) -> Iterator[int]:
    """The positions of the one bits of a number, from the lowest."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
