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

MAX_SETS, MAX_SETS_OF_A_PROOF = 10_000, 30_000
"""The maximum number of sets to visit, normally and for a proof; the bound known by then is valid too."""

MAX_PLACES = 4
"""The number of kernels, in addition to the last, from which to search back: those that access most bytes."""

Version = tuple[int, int]
"""A version of a buffer: its number, and the kernel that wrote it last."""


@dataclass(frozen=True)
class MemoryBound:
    """A lower bound on the memory of every plan.

    Args:
        bytes: the bound.
        step: the kernel that needs so many bytes.
    """

    bytes: int
    step: str


def memory_lower_bound(
    trace: Trace, sizes: list[int], *, drives: bool, enough: int, proof: bool = False
) -> MemoryBound:
    """The highest lower bound found over the kernels.

    Args:
        trace: the steps.
        sizes: sizes of its buffers in an arena.
        drives: whether anything may be offloaded.
        enough: a bound above this need not be improved.
        proof: whether to search first, and longer, only for a bound above `enough`.
    """
    accessed = [sum(sizes[buffer] for buffer in {*kernel.reads, *kernel.writes}) for kernel in trace.kernels]
    place = max(range(len(accessed)), key=accessed.__getitem__)
    bound = MemoryBound(accessed[place], trace.kernels[place].name)
    if drives or bound.bytes > enough:
        return bound
    search = _BackwardSearch(trace, sizes)
    places = sorted(range(len(accessed)), key=lambda place: (-accessed[place], place))[:MAX_PLACES]
    for place in (len(accessed) - 1, *places):
        found = search.lowest_peak(place, enough, MAX_SETS_OF_A_PROOF, enough) if proof else 0
        found = found if found > enough else search.lowest_peak(place, enough, MAX_SETS)
        if found > bound.bytes:
            bound = MemoryBound(found, trace.kernels[place].name)
        if found > enough:
            break
    return bound


@dataclass
class _BackwardSearch:
    """The search from the buffers that a kernel needs back to the inputs."""

    trace: Trace
    sizes: list[int]
    reads: list[frozenset[Version]] = field(init=False)
    ancestors: list[int] = field(init=False)  # for each kernel, itself and those it depends on, as bits
    readers: dict[Version, int] = field(init=False)  # the kernels that read a version, as bits

    def __post_init__(self) -> None:
        self.reads, self.ancestors, self.readers, last = [], [], {}, dict[int, int]()
        for place, kernel in enumerate(self.trace.kernels):
            self.reads.append(frozenset((buffer, last.get(buffer, 0)) for buffer in kernel.reads))
            last.update(dict.fromkeys(kernel.writes, place))
            ancestors = 1 << place
            for version in self.reads[place]:
                ancestors |= self.ancestors[version[1]] if version[1] >= self.trace.input_kernels else 0
                self.readers[version] = self.readers.get(version, 0) | 1 << place
            self.ancestors.append(ancestors)

    def lowest_peak(self, place: int, enough: int, max_sets: int, floor: int = 0) -> int:
        """The lowest peak for one kernel, or a lower bound on it.

        Peaks up to `floor` are not distinguished, which proves soonest that all paths exceed it.
        """
        first = max(floor, self._live_bytes(place, frozenset()))
        number, beyond = count(), first
        waiting = [(first, place, next(number), self.reads[place])] if first <= enough else []
        seen = {self.reads[place]: first}
        while waiting:
            peak, _, _, needed = heapq.heappop(waiting)
            versions = [one for one in needed if one[1] >= self.trace.input_kernels]
            if not versions or len(seen) > max_sets:
                return peak
            for kernel in self._last_writers(needed, versions, peak):
                before = self._needed_before(kernel, needed)
                taken = max(peak, self._live_bytes(kernel, needed))
                if taken > enough:
                    beyond = taken if beyond <= enough else min(beyond, taken)
                elif taken < seen.get(before, taken + 1):
                    seen[before] = taken
                    heapq.heappush(
                        waiting, (taken, max((writer for _, writer in before), default=0), next(number), before)
                    )
        return beyond

    def _needed_before(self, kernel: int, needed: frozenset[Version]) -> frozenset[Version]:
        """The versions needed before a kernel made some of `needed`."""
        return frozenset(one for one in needed if one[1] != kernel) | self.reads[kernel]

    def _last_writers(self, needed: frozenset[Version], versions: list[Version], peak: int) -> list[int]:
        """The kernels that may have made one of the versions last.

        One kernel suffices if it does not raise the known peak, and its operands are needed anyway, or are no larger
        than its results and no ancestor of the other versions reads these results. Then a schedule that has the
        results at some time can as well have the operands until the results are needed.
        """
        kernels = sorted({kernel for _, kernel in versions})
        for kernel in kernels:
            if self._live_bytes(kernel, needed) <= peak and self._replaces(kernel, needed):
                return [kernel]
        return kernels

    def _replaces(self, kernel: int, needed: frozenset[Version]) -> bool:
        added = self.reads[kernel] - needed
        if not added:
            return True
        rest = frozenset(one for one in needed if one[1] != kernel)
        gone = {buffer for buffer, _ in needed - rest} - {buffer for buffer, _ in rest}
        if sum(self.sizes[buffer] for buffer in {buffer for buffer, _ in added}) > sum(self.sizes[b] for b in gone):
            return False
        ancestors = 0
        for _, producer in rest:
            ancestors |= self.ancestors[producer]
        return not any(
            self.readers.get((buffer, kernel), 0) & ancestors for buffer in self.trace.kernels[kernel].writes
        )

    def _live_bytes(self, kernel: int, needed: frozenset[Version]) -> int:
        """Bytes in memory while a kernel runs and `needed` is required after it."""
        there = {*self.trace.kernels[kernel].reads, *self.trace.kernels[kernel].writes}
        return sum(self.sizes[buffer] for buffer in there.union(buffer for buffer, _ in needed))
