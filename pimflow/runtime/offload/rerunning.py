"""Plans without drives: the steps in a given order; where memory is short, buffers are dropped, and made again when a
step needs them.

Among the buffers in memory, the one that is dropped costs least: the time of the steps that make it again (including
those of operands that are dropped as well), divided by powers of its bytes and of the steps until it is needed again.
With first powers this is the rule of Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021, except that the next
use, which is known here, takes the place of the last one. Several orders, powers and limits are tried.

A buffer holds one version at a time: what some step wrote last. Inputs, and what random numbers are drawn for, cannot
be made again; they stay until nothing needs them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import field
from itertools import product

from pimflow.records import dataclass
from pimflow.runtime.offload.reordered import plan_in_order
from pimflow.runtime.offload.run import SimulatedPlan
from pimflow.runtime.offload.trace import Trace

POWERS = ((1.0, 0.0), (0.5, 0.0), (1.0, 0.5), (1.0, 1.0), (1.0, 2.0), (1.0, 8.0))
"""The powers of a buffer's bytes and of the steps until its next use."""

LIMITS = (1.0, 15 / 16, 7 / 8)
"""The limits that are tried, relative to the given one: a plan for less memory is sometimes faster."""

MAX_RUNS = 12
"""The maximum number of steps that run in all, per step of the trace; plans that need more are given up."""

Version = tuple[int, int]
"""A buffer, and the step that wrote it last."""


def rerunning_plan(
    trace: Trace, sizes: Sequence[int], orders: Iterable[Sequence[int]], limit_bytes: int, below_us: float = math.inf
) -> SimulatedPlan | None:
    """The fastest plan that is found; None if there is none.

    Args:
        trace: the steps; the first ones provide inputs, the last one takes results.
        sizes: sizes of its buffers in an arena.
        orders: orders of all steps, each step once.
        limit_bytes: the limit on live bytes.
        below_us: an upper bound on the time of the plan.
    """
    needs = _Needs.of(trace, tuple(sizes))
    best: tuple[int, ...] = ()
    for order, share, powers in product(orders, LIMITS, POWERS):
        found = _Rerunning(needs, order, int(share * limit_bytes), powers, below_us).steps()
        if found:
            best, below_us = found, sum(trace.kernels[step].time_us for step in found)
    return plan_in_order(trace, best) if best else None


@dataclass(frozen=True)
class _Needs:
    """What the steps of a trace need.

    Args:
        times_us: the time of each step.
        writes: the buffers that each step writes.
        accessed: the buffers that each step reads or writes.
        versions: for each step, the versions of them that have to be in memory before it.
        lasting: versions that cannot be made again.
        sizes: sizes of the buffers.
    """

    times_us: tuple[float, ...]
    writes: tuple[tuple[int, ...], ...]
    accessed: tuple[tuple[int, ...], ...]
    versions: tuple[tuple[Version, ...], ...]
    lasting: frozenset[Version]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, trace: Trace, sizes: tuple[int, ...]) -> _Needs:
        """What the steps of a trace need."""
        accessed = tuple(tuple(sorted({*kernel.reads, *kernel.writes})) for kernel in trace.kernels)
        written: dict[int, int] = {}
        versions = []
        for step, kernel in enumerate(trace.kernels):
            versions.append(tuple((buffer, written[buffer]) for buffer in accessed[step] if buffer in written))
            written.update(dict.fromkeys(kernel.writes, step))
        lasting = frozenset(
            (buffer, step)
            for step, kernel in enumerate(trace.kernels)
            if step < trace.input_kernels or kernel.draws
            for buffer in kernel.writes
        )
        writes = tuple(kernel.writes for kernel in trace.kernels)
        return cls(trace.times_us, writes, accessed, tuple(versions), lasting, sizes)


@dataclass
class _Pending:
    """A step that waits for its operands: how often some were made again, and the buffers that it keeps in memory."""

    step: int
    attempts: int = 0
    kept: set[int] = field(default_factory=set)


class _Rerunning:
    """One attempt: an order, and a rule for what is dropped."""

    def __init__(
        self, needs: _Needs, order: Sequence[int], limit_bytes: int, powers: tuple[float, float], below_us: float
    ) -> None:
        self.needs, self.limit_bytes, self.powers = needs, limit_bytes, powers
        last = len(needs.writes) - 1
        self.order = [step for step in order if needs.writes[step] or step == last]
        self.spare_us = below_us - sum(needs.times_us[step] for step in self.order)
        self.uses: dict[Version, list[int]] = {}  # places in the order at which a version is needed, from the last
        for place in reversed(range(len(self.order))):
            for version in needs.versions[self.order[place]]:
                self.uses.setdefault(version, []).append(place)
        self.place = 0  # in the order
        self.ran: dict[int, None] = {}
        self.path: list[int] = []  # steps as they run
        self.held: dict[int, int] = {}  # for each buffer in memory, the step that wrote it last
        self.taken = 0  # live bytes
        self.pending: list[_Pending] = []

    def steps(self) -> tuple[int, ...]:
        """All steps as they run; () if a step does not fit, or if they take too long."""
        for place, step in enumerate(self.order):
            self.place = place
            if not self._complete(step):
                return ()
        return tuple(self.path)

    def _complete(self, step: int) -> bool:
        """Runs a step, and before it those that make its operands again. False if that fails."""
        self.pending = [_Pending(step)]
        while self.pending and self.spare_us > 0 and len(self.path) < MAX_RUNS * len(self.order):
            current = self.pending[-1]
            missing = [version for version in self.needs.versions[current.step] if not self._holds(version)]
            if not missing and self._make_room(current.step):
                self._run(current.step)
                self.pending.pop()
            elif not missing or not self._request(current, missing[0]):
                return False
        return not self.pending

    def _holds(self, version: Version) -> bool:
        return self.held.get(version[0]) == version[1]

    def _request(self, current: _Pending, version: Version) -> bool:
        """Has a missing operand made again, while the others stay. False if that is not possible."""
        needed = self.needs.versions[current.step]
        current.attempts += 1
        if version in self.needs.lasting or current.attempts > 2 * len(needed) or len(self.pending) > len(self.order):
            return False
        current.kept.update(other[0] for other in needed if self._holds(other))
        self.pending.append(_Pending(version[1]))
        return True

    def _run(self, step: int) -> None:
        if step in self.ran:
            self.spare_us -= self.needs.times_us[step]
        for buffer in self.needs.accessed[step]:
            if buffer not in self.held:
                self.taken += self.needs.sizes[buffer]
                self.held[buffer] = -1
        for buffer in self.needs.writes[step]:
            self.held[buffer] = step
        self.ran[step] = None
        self.path.append(step)

    def _make_room(self, step: int) -> bool:
        """Drops buffers until there is room for a step. False if too few can be dropped."""
        accessed = self.needs.accessed[step]
        limit = self.limit_bytes - sum(self.needs.sizes[buffer] for buffer in accessed if buffer not in self.held)
        if self.taken <= limit:
            return True
        following = self._next_uses()
        for version in [*self.held.items()]:
            if version not in following and version[0] not in accessed:
                self._drop(version[0])
        kept = {*accessed, *(buffer for pending in self.pending for buffer in pending.kept)}
        while self.taken > limit:
            held = (version for version in self.held.items() if version[0] not in kept)
            costs = ((self._cost(version, following), version) for version in held)
            cost, version = min(costs, default=(math.inf, (0, 0)))
            if cost == math.inf:
                return False
            self._drop(version[0])
            self._spread(following, [(following[version], other) for other in self.needs.versions[version[1]]])
        return True

    def _drop(self, buffer: int) -> None:
        del self.held[buffer]
        self.taken -= self.needs.sizes[buffer]

    def _cost(self, version: Version, following: dict[Version, int]) -> float:
        """The cost of dropping a version; infinite if it cannot be made again."""
        if version in self.needs.lasting:
            return math.inf
        distance, size = following[version] - self.place + 1, self.needs.sizes[version[0]]
        return self._time_us(version[1]) / (math.pow(size, self.powers[0]) * math.pow(distance, self.powers[1]))

    def _time_us(self, step: int) -> float:
        """The time of a step and of those that make its operands again; infinite if that is not possible."""
        steps, waiting = {step}, [step]
        while waiting:
            for version in self.needs.versions[waiting.pop()]:
                if not self._holds(version) and version[1] not in steps:
                    if version in self.needs.lasting:
                        return math.inf
                    steps.add(version[1])
                    waiting.append(version[1])
        return sum(self.needs.times_us[one] for one in steps)

    def _next_uses(self) -> dict[Version, int]:
        """For each version that is needed again, also to make others again, the place in the order where it is."""
        waiting = [(self.place, version) for one in self.pending for version in self.needs.versions[one.step]]
        for version, places in self.uses.items():
            while places and places[-1] < self.place:
                places.pop()
            if places:
                waiting.append((places[-1], version))
        waiting.sort(reverse=True)
        following: dict[Version, int] = {}
        self._spread(following, waiting)
        return following

    def _spread(self, following: dict[Version, int], waiting: list[tuple[int, Version]]) -> None:
        """Adds versions with the places where they are needed, and those that they are made of if they are dropped."""
        while waiting:
            place, version = waiting.pop()
            if following.get(version, place + 1) <= place:
                continue
            following[version] = place
            if not self._holds(version) and version not in self.needs.lasting:
                waiting += [(place, other) for other in self.needs.versions[version[1]]]
