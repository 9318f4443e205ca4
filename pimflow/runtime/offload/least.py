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
from dataclasses import field
from itertools import count

from pimflow.records import dataclass
from pimflow.runtime.offload.trace import Trace

MOST_SETS, MOST_SETS_OF_A_PROOF = 10_000, 30_000
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


def least_room(trace: Trace, sizes: list[int], *, drives: bool, enough: int, proof: bool = False) -> Least:
    """The most that any kernel needs.

    Args:
        trace: the steps.
        sizes: of its buffers, as they lie in an arena.
        drives: whether anything may be offloaded.
        enough: a bound beyond that need not be better.
        proof: whether to look first, and longer, for no more than a bound beyond that.
    """
    touched = [sum(sizes[buffer] for buffer in {*kernel.reads, *kernel.writes}) for kernel in trace.kernels]
    place = max(range(len(touched)), key=touched.__getitem__)
    least = Least(touched[place], trace.kernels[place].name)
    if drives or least.bytes > enough:
        return least
    back = _Back(trace, sizes)
    places = sorted(range(len(touched)), key=lambda place: (-touched[place], place))[:MOST_PLACES]
    for place in (len(touched) - 1, *places):
        found = back.least(place, enough, MOST_SETS_OF_A_PROOF, enough) if proof else 0
        found = found if found > enough else back.least(place, enough, MOST_SETS)
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
    ancestors: list[int] = field(init=False)  # of every kernel itself and those without which it cannot run, as bits
    readers: dict[Made, int] = field(init=False)  # the kernels that read it, as bits

    def __post_init__(self) -> None:
        self.reads, self.ancestors, self.readers, last = [], [], {}, dict[int, int]()
        for place, kernel in enumerate(self.trace.kernels):
            self.reads.append(frozenset((buffer, last.get(buffer, 0)) for buffer in kernel.reads))
            last.update(dict.fromkeys(kernel.writes, place))
            ancestors = 1 << place
            for made in self.reads[place]:
                ancestors |= self.ancestors[made[1]] if made[1] >= self.trace.given else 0
                self.readers[made] = self.readers.get(made, 0) | 1 << place
            self.ancestors.append(ancestors)

    def least(self, place: int, enough: int, most: int, floor: int = 0) -> int:
        """For one kernel: the least peak, or what is known to be no more than that.

        From a floor on: what takes no more is not told apart. So it is soonest known that all ways take more.
        """
        first = max(floor, self._taken(place, frozenset()))
        number, beyond = count(), first
        waiting = [(first, place, next(number), self.reads[place])] if first <= enough else []
        seen = {self.reads[place]: first}
        while waiting:
            peak, _, _, needed = heapq.heappop(waiting)
            made = [one for one in needed if one[1] >= self.trace.given]
            if not made or len(seen) > most:
                return peak
            for kernel in self._last_made(needed, made, peak):
                before = self._before(kernel, needed)
                taken = max(peak, self._taken(kernel, needed))
                if taken > enough:
                    beyond = taken if beyond <= enough else min(beyond, taken)
                elif taken < seen.get(before, taken + 1):
                    seen[before] = taken
                    heapq.heappush(waiting, (taken, max((made for _, made in before), default=0), next(number), before))
        return beyond

    def _before(self, kernel: int, needed: frozenset[Made]) -> frozenset[Made]:
        """What had to be there before a kernel made some of it."""
        return frozenset(one for one in needed if one[1] != kernel) | self.reads[kernel]

    def _last_made(self, needed: frozenset[Made], made: list[Made], peak: int) -> list[int]:
        """The kernels that may have made one of them last.

        One is enough where that takes no more than is known to be needed, and what it reads is needed anyway; or is
        smaller than what it made, which nothing reads that the others are made of: whoever has the one at some time
        may have the other from then on.
        """
        kernels = sorted({kernel for _, kernel in made})
        for kernel in kernels:
            if self._taken(kernel, needed) <= peak and self._replaces(kernel, needed):
                return [kernel]
        return kernels

    def _replaces(self, kernel: int, needed: frozenset[Made]) -> bool:
        added = self.reads[kernel] - needed
        if not added:
            return True
        rest = frozenset(one for one in needed if one[1] != kernel)
        gone = {buffer for buffer, _ in needed - rest} - {buffer for buffer, _ in rest}
        if sum(self.sizes[buffer] for buffer in {buffer for buffer, _ in added}) > sum(self.sizes[b] for b in gone):
            return False
        ancestors = 0
        for _, maker in rest:
            ancestors |= self.ancestors[maker]
        return not any(
            self.readers.get((buffer, kernel), 0) & ancestors for buffer in self.trace.kernels[kernel].writes
        )

    def _taken(self, kernel: int, needed: frozenset[Made]) -> int:
        """What is there as a kernel runs, and others are needed behind it."""
        there = {*self.trace.kernels[kernel].reads, *self.trace.kernels[kernel].writes}
        return sum(self.sizes[buffer] for buffer in there.union(buffer for buffer, _ in needed))
