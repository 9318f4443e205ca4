"""Newton+ and Newton++: the mappings that PIMFlow published, with streams that are right (see docs/mapping.md).

K <= one buffer: as many pixels in a fill as fit. Longer K: whole buffers with the chunk loop outermost, then the
remainder packed like a short K. n global buffers: the channels form n groups that share the fills; the (tile, pixel)
units of a fill are dealt round the group's channels. Newton+ is one buffer with exposed GWRITE.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from pimflow.codegen.deal import deal_units
from pimflow.codegen.mapping import ChannelGroup, ChunkRun, Mapping, Share, chunk_runs
from pimflow.codegen.problem import PimProblem, Refusal
from pimflow.codegen.views import Geometry, geometry
from pimflow.targets import PimSpec

NewtonPolicy = Literal["newton+", "newton++"]


def newton_mapping(problem: PimProblem, pim: PimSpec, policy: NewtonPolicy) -> Mapping | Refusal:
    """The published mapping with the published choice of n: fewest G_ACTs on the slowest channel, then fewest n."""
    shape = geometry(problem, pim)
    mappings = newton_mappings(problem, pim, policy)
    return min(mappings, key=lambda mapping: _row_visits(mapping, shape))


def newton_mappings(problem: PimProblem, pim: PimSpec, policy: NewtonPolicy) -> tuple[Mapping, ...]:
    """The policy's mapping for every number of channel groups that the machine allows (powers of two)."""
    shape = geometry(problem, pim)
    latency: Literal["exposed"] | None = "exposed" if policy == "newton+" else None
    counts = [1]
    while policy == "newton++" and 2 * counts[-1] <= min(pim.buffers, pim.channels):
        counts.append(2 * counts[-1])
    runs = newton_runs(shape, pim)
    return tuple(
        Mapping(policy, runs, _even_groups(shape, runs, pim.channels, count), gwrite_latency=latency)
        for count in counts
    )


def newton_runs(shape: Geometry, pim: PimSpec) -> tuple[ChunkRun, ...]:
    """Whole buffers, then the remainder with as many pixels as fit."""
    slots = min(pim.buffer_columns, pim.columns)
    full, rest = divmod(shape.slots, slots)
    chunks = ((slots, 1),) * full
    if rest:
        chunks += ((rest, min(slots // rest, shape.pixels)),)
    return chunk_runs(chunks, shape.ragged)


def _even_groups(shape: Geometry, runs: tuple[ChunkRun, ...], channels: int, count: int) -> tuple[ChannelGroup, ...]:
    """Equal groups of channels, the fills of every run in equal, contiguous shares."""
    shares: list[list[Share]] = [[] for _ in range(count)]
    for index, run in enumerate(runs):
        fills = -(-shape.pixels // run.pixels)
        for group in range(count):
            start, stop = (run.pixels * (fills * part // count) for part in (group, group + 1))
            if start < stop:
                shares[group].append(Share(index, start, min(stop, shape.pixels)))
    sizes = [channels * (part + 1) // count - channels * part // count for part in range(count)]
    return tuple(ChannelGroup(size, tuple(share)) for size, share in zip(sizes, shares, strict=True) if share)


def _row_visits(mapping: Mapping, shape: Geometry) -> int:
    """Rows that the slowest channel activates."""
    worst = 0
    for group in mapping.groups:
        visits = [0] * group.channels
        for share in group.shares:
            run = mapping.runs[share.run]
            fills = -(-(share.stop - share.start) // run.pixels) * run.count
            for channel, rows in enumerate(_rows_by_channel(shape.tiles, run, group.channels)):
                visits[channel] += fills * rows
        worst = max(worst, *visits)
    return worst


@lru_cache(maxsize=65536)
def _rows_by_channel(tiles: int, run: ChunkRun, channels: int) -> tuple[int, ...]:
    dealt = deal_units(tiles, run.pixels, run.columns, channels, "units", 1)
    return tuple(sum(visit.count for visit in visits) for visits in dealt)
