"""Newton+ and Newton++: the mappings that PIMFlow published, with correct streams.

If K fits into one buffer, a fill holds as many pixels as possible. A longer K is processed in whole buffers with the
chunk loop outermost; the remainder is packed like a short K. With n global buffers, the channels form n groups that
share the fills; the (tile, pixel) units of a fill are divided among the group's channels, either in tile-major order or
by whole tiles. Newton+ uses one buffer with exposed GWRITE and the published order; Newton++ overlaps the GWRITE with
the first G_ACT.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from pimflow.codegen.newton.im2col import Geometry, geometry
from pimflow.codegen.newton.mapping import ChannelGroup, ChunkRun, Deal, Mapping, Share, acts_before_fill
from pimflow.codegen.newton.work_split import deal_units
from pimflow.codegen.work import MatrixProblem
from pimflow.targets import PimSpec

NewtonPolicy = Literal["newton+", "newton++"]


def newton_mappings(problem: MatrixProblem, pim: PimSpec, policy: NewtonPolicy) -> tuple[Mapping, ...]:
    """The policy's mappings: for every number of channel groups (powers of two), units divided both ways."""
    shape = geometry(problem, pim)
    if policy == "newton+":
        runs = newton_runs(shape, pim, 1)
        groups = _even_groups(shape.pixels, runs, pim.channels, 1)
        return (Mapping(policy, runs, groups, deal="units", gwrite_latency="exposed"),)
    counts = [1]
    while 2 * counts[-1] <= min(pim.buffers, pim.channels):
        counts.append(2 * counts[-1])
    deals: tuple[Deal, ...] = ("units", "tiles")
    acts_first, found = acts_before_fill(pim), []
    for count in counts:
        runs = newton_runs(shape, pim, count)
        groups = _even_groups(shape.pixels, runs, pim.channels, count)
        found += [Mapping(policy, runs, groups, deal=deal, acts_first=acts_first) for deal in deals]
    return tuple(found)


def newton_runs(shape: Geometry, pim: PimSpec, count: int) -> tuple[ChunkRun, ...]:
    """Chunks of whole buffers, then the remainder with as many pixels as fit.

    For `count` channel groups the whole chunks come as one run per group; leftover chunks are separate runs.
    """
    slots = min(pim.buffer_columns, pim.columns)
    full, rest = divmod(shape.slots, slots)
    if not rest and shape.ragged:
        full, rest = full - 1, slots
    each, left = divmod(full, count)
    runs = (ChunkRun(slots, 1, each),) * (count if each else 0) + (ChunkRun(slots, 1),) * (left if count > 1 else 0)
    return (*runs, ChunkRun(rest, max(1, min(slots // rest, shape.pixels)))) if rest else runs


@lru_cache(maxsize=1 << 16)
def _even_groups(pixels: int, runs: tuple[ChunkRun, ...], channels: int, count: int) -> tuple[ChannelGroup, ...]:
    """Channel groups of equal size with equal shares of the fills; groups without work are omitted."""
    shares: list[list[Share]] = [[] for _ in range(count)]
    long = [index for index, run in enumerate(runs) if run.pixels == 1 and run.columns == runs[0].columns]
    whole = count if runs[0].count > 1 or len(long) >= count else 0
    for index in range(whole):
        shares[index].append(Share(index, 0, pixels))
    # The remainder is divided separately: concatenated with whole chunks, one group would get only longer fills.
    single, rest = long[whole:], [index for index in range(whole, len(runs)) if index not in long]
    for indices, order in ((single, range(count)), (rest, range(count - 1, -1, -1))):
        fills = [(index, -(-pixels // runs[index].pixels)) for index in indices]
        for group, part in enumerate(order):
            shares[group].extend(_part_shares(pixels, runs, fills, part, count))
    sizes = [channels * (part + 1) // count - channels * part // count for part in range(count)]
    return tuple(ChannelGroup(size, tuple(share)) for size, share in zip(sizes, shares, strict=True) if share)


def _part_shares(
    pixels: int, runs: tuple[ChunkRun, ...], fills: list[tuple[int, int]], part: int, parts: int
) -> Iterator[Share]:
    """One of `parts` equal parts of the concatenated fills of several runs."""
    total = sum(number for _, number in fills)
    first, stop = total * part // parts, total * (part + 1) // parts
    for index, number in fills:
        low, high = max(first, 0), min(stop, number)
        if low < high:
            each = runs[index].pixels
            yield Share(index, low * each, min(high * each, pixels))
        first, stop = first - number, stop - number


def channel_loads(mapping: Mapping, shape: Geometry) -> frozenset[tuple[int, int]]:
    """(rows activated, COMPs) of channels under order "fills", per weight group; tails count as full fills."""
    loads: set[tuple[int, int]] = set()
    known: set[tuple[int, tuple[tuple[int, int], ...]]] = set()
    for group in mapping.groups:
        fills = tuple([(run, -(-(stop - start) // mapping.runs[run].pixels)) for run, start, stop in group.shares])
        if (group.channels, fills) not in known:
            known.add((group.channels, fills))
            loads.update(_group_loads(mapping, shape, group.channels, fills))
    return frozenset(loads)


def _group_loads(
    mapping: Mapping, shape: Geometry, channels: int, fills: tuple[tuple[int, int], ...]
) -> Iterator[tuple[int, int]]:
    """`channel_loads` of one group that fills its buffer the given number of times per chunk run."""
    runs = [mapping.runs[index] for index, _ in fills]
    counts = [count * run.count for (_, count), run in zip(fills, runs, strict=True)]
    chunks = tuple([(run.pixels, run.columns) for run in runs])
    for each in _alike_loads(shape.tiles, chunks, channels, mapping.deal):
        rows = sum([count * visited for count, (visited, _) in zip(counts, each, strict=True)])
        yield rows, sum([count * computed for count, (_, computed) in zip(counts, each, strict=True)])


@lru_cache(maxsize=1 << 16)
def _alike_loads(
    tiles: int, chunks: tuple[tuple[int, int], ...], channels: int, deal: Deal
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """The distinct (rows, COMPs) of channels, for one full fill of each of several (pixels, columns) chunks."""
    loads = (_dealt_loads(tiles, pixels, columns, channels, deal) for pixels, columns in chunks)
    return tuple(dict.fromkeys(zip(*loads, strict=True)))


@lru_cache(maxsize=1 << 16)
def _dealt_loads(tiles: int, pixels: int, columns: int, channels: int, deal: Deal) -> tuple[tuple[int, int], ...]:
    """(rows, COMPs) of every channel for one full fill."""
    return tuple(
        (sum(visit.count for visit in visits), sum(visit.count * visit.comps for visit in visits))
        for visits in deal_units(tiles, pixels, columns, channels, deal, 1)
    )
