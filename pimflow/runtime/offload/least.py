"""The least memory that any way of keeping, offloading and recomputing needs.

With drives: what one kernel touches has to be there at once, and no more. Without them the search goes backwards. What
has to be there at some time is a set of buffers, each as some kernel has written it. One of them was made last, and as
it was, all that this kernel touches was there too, and all others of the set; before it, these and what it reads. Which
one was made last is free: the way back to the inputs with the least peak bounds all schedules with any recomputation,
in any order (the pebble game: Sethi, Complete Register Allocation Problems, SIAM Journal on Computing 4(3), 1975).
Inputs cannot be made again: they stay as long as they are needed.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count

from pimflow.runtime.offload.trace import Trace

MOST_SETS = 10_000
"""So many sets are looked at; what is known by then is a bound too."""

MOST_PLACES = 4
"""Kernels from which the search goes back, beside the last: those that touch most."""

Made = tuple[int, int]
"""A buffer, and the kernel that wrote it last."""


@dataclass(frozen=True)
class Least:
    """What no plan goes below.

    Args:
        bytes: so much.
        step: the kernel for which that has to be there.
    """

    bytes: int
    step: str


def least_room(trace: Trace, sizes: list[int], *, drives: bool, enough: int) -> Least:
    """The most that any kernel needs.

    Args:
        trace: the steps.
        sizes: of its buffers, as they lie in an arena.
        drives: whether anything may be offloaded.
        enough: a bound beyond that need not be better.
    """
    touched = [sum(sizes[buffer] for buffer in {*kernel.reads, *kernel.writes}) for kernel in trace.kernels]
    place = max(range(len(touched)), key=touched.__getitem__)
    least = Least(touched[place], trace.kernels[place].name)
    if drives or least.bytes > enough:
        return least
    back = _Back(trace, sizes)
    places = sorted(range(len(touched)), key=lambda place: (-touched[place], place))[:MOST_PLACES]
    for place in (len(touched) - 1, *places):
        found = back.least(place, enough)
        if found > least.bytes:
            least = Least(found, trace.kernels[place].name)
        if found > enough:
            break
    return least


@dataclass
class _Back:
    """The search from what a kernel needs back to the inputs."""

    trace: Trace
    sizes: list[int]
    reads: list[frozenset[Made]] = field(init=False)

    def __post_init__(self) -> None:
        self.reads, last = [], dict[int, int]()
        for place, kernel in enumerate(self.trace.kernels):
            self.reads.append(frozenset((buffer, last.get(buffer, 0)) for buffer in kernel.reads))
            last.update(dict.fromkeys(kernel.writes, place))

    def least(self, place: int, enough: int) -> int:
        """For one kernel: the least peak, or what is known to be no more than that."""
        first = self._taken(place, frozenset())
        number = count()
        waiting = [(first, place, next(number), self.reads[place])]
        seen = {self.reads[place]: first}
        while waiting:
            peak, _, _, needed = heapq.heappop(waiting)
            made = [one for one in needed if one[1] >= self.trace.given]
            if not made or peak > enough or len(seen) > MOST_SETS:
                return peak
            for kernel in sorted({kernel for _, kernel in made}):
                before = frozenset(one for one in needed if one[1] != kernel) | self.reads[kernel]
                taken = max(peak, self._taken(kernel, needed))
                if taken < seen.get(before, taken + 1):
                    seen[before] = taken
                    heapq.heappush(waiting, (taken, max((made for _, made in before), default=0), next(number), before))
        raise AssertionError("a way back ends at the inputs")

    def _taken(self, kernel: int, needed: frozenset[Made]) -> int:
        """What is there as a kernel runs, and others are needed behind it."""
        there = {*self.trace.kernels[kernel].reads, *self.trace.kernels[kernel].writes}
        return sum(self.sizes[buffer] for buffer in there.union(buffer for buffer, _ in needed))
