"""The parts of a decision in their order, and a lower bound on the length of their schedules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from pimflow.ir import Node
from pimflow.records import NamedTuple
from pimflow.search.part_prices import FREE, Part, PlacedPart


class Steps(NamedTuple):
    """The parts of a decision: where each runs, and which earlier parts it reads.

    `written` lists the parts that are jobs, in order, each with its node and stage, as far as they are known;
    `complete` is whether these alone determine a schedule. In that case `roots` has, by part, the part of the same rows
    that it is fused into if the host computes it, or the part itself. Where copies are parts (`with_copies`), `heads`
    has, by part, the first of those that belong to the same kernel.
    """

    devices: Sequence[str] = ()
    parts: Sequence[Part] = ()
    reads: Sequence[Sequence[int]] = ()
    written: Sequence[tuple[int, Node, int | None]] = ()
    roots: Sequence[int] = ()
    complete: bool = False
    heads: Sequence[int] = ()

    def epilogue_reads(self) -> dict[int, list[int]]:
        """By part, the parts that its fused parts read from other kernels."""
        kernels: list[int] = []
        found: dict[int, list[int]] = {}
        for at, root in enumerate(self.roots):
            if root == at or self.parts[at] is not FREE:
                kernels.append(self.heads[at] if self.heads else at)
                continue
            chain = [kernels[source] for source in self.reads[at] if self.roots[source] == root]
            kernel = next((one for one in reversed(chain) if one != root), root)  # as in `UnfuseEpilogues`
            kernels.append(kernel)
            others = [source for source in self.reads[at] if kernels[source] != kernel]
            if others:
                found.setdefault(kernel, []).extend(others)
        return found


def with_copies(steps: Steps) -> Steps:
    """The parts with the copies around them, which occupy other resources, as parts of their own."""
    if not any(part.before or part.after for part in steps.parts):
        return steps
    chains = [
        [*part.before, PlacedPart(device, part), *part.after]
        for device, part in zip(steps.devices, steps.parts, strict=True)
    ]
    ends = list(accumulate(map(len, chains)))
    starts = [end - len(chain) for end, chain in zip(ends, chains, strict=True)]
    reads: list[Sequence[int]] = []
    for start, end, sources in zip(starts, ends, steps.reads, strict=True):
        reads += [[ends[source] - 1 for source in sources], *([at] for at in range(start, end - 1))]
    return Steps(
        [link.resource for chain in chains for link in chain],
        [link.part for chain in chains for link in chain],
        reads,
        [(at, node, stage) for part, node, stage in steps.written for at in range(starts[part], ends[part])],
        [starts[root] for root, chain in zip(steps.roots, chains, strict=False) for _ in chain],
        steps.complete,
        [start for start, chain in zip(starts, chains, strict=True) for _ in chain],
    )


def independent_steps(parts: Sequence[tuple[str, Part]]) -> Steps:
    """Parts with their devices, none of which reads another."""
    return Steps([device for device, _ in parts], [part for _, part in parts], [()] * len(parts))


def least_makespan_us(steps: Steps) -> float:
    """A lower bound on the length of any schedule of the parts."""
    devices, parts, reads = steps.devices, steps.parts, steps.reads
    if len(parts) == 1:
        return parts[0].us
    us = [part.us - part.avoidable_us for part in parts]
    busy = [part.us - part.saved_us for part in parts]
    release: list[float] = []
    ends: list[float] = []
    for sources, own, whole in zip(reads, us, busy, strict=True):
        start = 0.0
        for source in sources:
            if ends[source] > start:
                start = ends[source]
        ahead = whole - own  # queued launches
        release.append(start - ahead if start > ahead else 0.0)
        ends.append(start + own if start > ahead else whole)
    behind = _behind(reads, us)
    by_device: dict[str, list[int]] = {}
    for index, where in enumerate(devices):
        if busy[index] > 0:
            by_device.setdefault(where, []).append(index)
    return max([_one_device(mine, busy, release, behind) for mine in by_device.values()], default=0.0)


def _behind(reads: Sequence[Sequence[int]], us: Sequence[float]) -> list[float]:
    """By part, the longest chain of parts behind it."""
    behind = [0.0] * len(us)
    for index in range(len(us) - 1, -1, -1):
        sources = reads[index]
        if not sources:
            continue
        after = behind[index] + us[index]
        for source in sources:
            if after > behind[source]:
                behind[source] = after
    return behind


def _one_device(mine: list[int], us: Sequence[float], release: Sequence[float], behind: Sequence[float]) -> float:
    """The bound from one device: the earliest start of its last parts, plus those parts, plus the shortest tail behind
    them, maximised over how many of them count as last."""
    mine.sort(key=release.__getitem__, reverse=True)
    best, total, tail = 0.0, 0.0, math.inf
    for index in mine:
        total += us[index]
        if behind[index] < tail:
            tail = behind[index]
        bound = release[index] + total + tail
        if bound > best:
            best = bound
    return best
