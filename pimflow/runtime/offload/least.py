"""A lower bound on the memory of every plan that keeps, offloads and recomputes activations.

With drives, only the buffers that one kernel accesses have to be in memory at a time. Without drives, the search
goes backwards. The state at some time is a set of buffers, each as some kernel has written it. One of them was made
last: while its kernel ran, all buffers that it accesses and all others of the set were in memory; before that, only
the others and the kernel's operands had to be. Any of them may be the one made last. The path back to the inputs with
the lowest peak bounds all schedules with any recomputation in any order (the pebble game: Sethi, Complete Register
Allocation Problems, SIAM Journal on Computing 4(3), 1975). Inputs cannot be recomputed: they stay as long as they are
needed.
"""

from __future__ import annotations

import heapq
from dataclasses import field
from itertools import count

from pimflow.records import dataclass
from pimflow.runtime.offload.trace import Trace

MOST_SETS, MOST_SETS_OF_A_PROOF = 10_000, 30_000
"""The maximum number of sets to visit, normally and for a proof; the bound known by then is valid too."""

MOST_PLACES = 4
"""The number of kernels, in addition to the last, from which to search back: those that access most bytes."""

Made = tuple[int, int]
"""A version of a buffer: its number, and the kernel that wrote it last."""


@dataclass(frozen=True)
class Least:
    """A lower bound on the memory of every plan.

    Args:
        bytes: the bound.
        step: the kernel that needs so many bytes.
    """

    bytes: int
    step: str


def least_room(trace: Trace, sizes: list[int], *, drives: bool, enough: int, proof: bool = False) -> Least:
    """The highest lower bound found over the kernels.

    Args:
        trace: the steps.
        sizes: sizes of its buffers in an arena.
        drives: whether anything may be offloaded.
        enough: a bound above this need not be improved.
        proof: whether to search first, and longer, only for a bound above `enough`.
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
    """The search from the buffers that a kernel needs back to the inputs."""

    trace: Trace
    sizes: list[int]
    reads: list[frozenset[Made]] = field(init=False)
    ancestors: list[int] = field(init=False)  # for each kernel, itself and those it depends on, as bits
    readers: dict[Made, int] = field(init=False)  # the kernels that read a version, as bits

    def __post_init__(self) -> None:
        self.reads, self.ancestors, self.readers, last = [], [], {}, dict[int, int]()
        for place, kernel in enumerate(self.trace.kernels):
            self.reads.append(frozenset((buffer, last.get(buffer, 0)) for buffer in kernel.reads))
            last.update(dict.fromkeys(kernel.writes, place))
            ancestors = 1 << place
            for made in self.reads[place]:
                ancestors |= self.ancestors[made[1]] if made[1] >= self.trace.input_kernels else 0
                self.readers[made] = self.readers.get(made, 0) | 1 << place
            self.ancestors.append(ancestors)

    def least(self, place: int, enough: int, most: int, floor: int = 0) -> int:
        """The lowest peak for one kernel, or a lower bound on it.

        Peaks up to `floor` are not distinguished, which proves soonest that all paths exceed it.
        """
        first = max(floor, self._taken(place, frozenset()))
        number, beyond = count(), first
        waiting = [(first, place, next(number), self.reads[place])] if first <= enough else []
        seen = {self.reads[place]: first}
        while waiting:
            peak, _, _, needed = heapq.heappop(waiting)
            made = [one for one in needed if one[1] >= self.trace.input_kernels]
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
        """The versions needed before a kernel made some of `needed`."""
        return frozenset(one for one in needed if one[1] != kernel) | self.reads[kernel]

    def _last_made(self, needed: frozenset[Made], made: list[Made], peak: int) -> list[int]:
        """The kernels that may have made one of the versions last.

        One kernel suffices if it does not raise the known peak, and its operands are needed anyway, or are no larger
        than its results and no ancestor of the other versions reads these results. Then a schedule that has the
        results at some time can as well have the operands until the results are needed.
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
        """Bytes in memory while a kernel runs and `needed` is required after it."""
        there = {*self.trace.kernels[kernel].reads, *self.trace.kernels[kernel].writes}
        return sum(self.sizes[buffer] for buffer in there.union(buffer for buffer, _ in needed))
