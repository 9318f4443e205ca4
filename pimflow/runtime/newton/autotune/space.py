"""The mapping space of one problem: a few dozen candidates with their estimated cycles.

A candidate is a scheme (how K is cut into chunks, the loop order, the buffering) and a partition of the channels into
groups. The fills of every chunk are shared among the groups so that all end at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import cache, lru_cache, partial
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from pimflow.codegen import MatmulProblem, MatrixProblem
from pimflow.codegen.newton import ChannelGroup, ChunkRun, Mapping, Share
from pimflow.codegen.newton.im2col import Geometry, geometry
from pimflow.codegen.newton.mapping import acts_before_fill
from pimflow.records import NamedTuple, dataclass
from pimflow.runtime.newton.autotune.estimate import fill_cycles, fill_load
from pimflow.runtime.newton.autotune.schemes import Chunks, Scheme, schemes
from pimflow.runtime.newton.profiles.base import TimingProfile, VisitCosts
from pimflow.targets import PimSpec

_FEWER = 4  # how many pixels fewer than fit into a fill to try, at most
_MAX_GROUPS = 8  # partitions into more groups than this have equal groups


@dataclass(slots=True)  # not frozen, because a search lists thousands of them
class Candidate:
    """A mapping, built on demand, with its estimated cycles.

    Args:
        cycles: the estimate.
        scheme: everything about the mapping except its channel groups.
        kind: `scheme.kind`; estimates of one kind err alike.
        build: builds the mapping for undivided buffers.
        buffer_parts: number of parts that each buffer is divided into.
    """

    cycles: float
    scheme: Scheme
    kind: tuple[object, ...]
    build: Callable[[], Mapping] = field(compare=False)
    buffer_parts: int = 1
    _built: Mapping | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def mapping(self) -> Mapping:
        """The mapping, built on first access."""
        if self._built is None:
            mapping = self.build()
            self._built = mapping if self.buffer_parts == 1 else replace(mapping, buffer_parts=self.buffer_parts)
        return self._built

    @property
    def thinned(self) -> bool:
        """Whether its fills hold fewer pixels than fit."""
        return self.scheme.thinned

    @property
    def fills_held(self) -> int:
        """As in `Mapping`."""
        return self.scheme.held


def candidates(problem: MatrixProblem, profile: TimingProfile) -> list[Candidate]:
    """Candidates for the profile's machine, with buffers whole and, if possible, divided; best estimate first."""
    found = _candidates(problem, profile)
    parts = profile.pim.buffer_parts
    if parts > 1:
        divided = _candidates(problem, profile.on(profile.pim.in_parts(parts)))
        found += [replace(entry, buffer_parts=parts) for entry in divided]
    found.sort(key=lambda candidate: candidate.cycles)
    return found


def _candidates(problem: MatrixProblem, profile: TimingProfile) -> list[Candidate]:
    pim, costs = profile.pim, profile.costs
    shape = geometry(problem, pim)
    placing = _placing_cycles(problem, pim)
    found: list[Candidate] = []
    listed = _all_schemes(problem, shape, pim, costs)
    if costs.early > costs.plain:
        listed = (scheme._replace(early=False) for scheme in listed)
    for scheme in listed:
        found.extend(_grouped(scheme, shape, pim, costs, placing))
        if shape.groups > 1:
            found.extend(_grouped(scheme._replace(spread=True), shape, pim, costs, placing))
    return found


def _all_schemes(problem: MatrixProblem, shape: Geometry, pim: PimSpec, costs: VisitCosts) -> Iterator[Scheme]:
    """Schemes with full fills, and those of their variants with fewer pixels per fill that may be better."""
    for scheme in schemes(problem, shape, pim):
        yield scheme
        if scheme.order != "latch" and not scheme.copied and not scheme.pitch:
            yield from _thinned(scheme, shape, pim, costs)


def _thinned(scheme: Scheme, shape: Geometry, pim: PimSpec, costs: VisitCosts) -> list[Scheme]:
    """Variants of a scheme with fewer pixels per fill than fit: the best estimates for each number of equal groups.

    Fewer may be better: five pixels on two channels are split into three and two, and a last fill that is not full
    also leaves channels idle.
    """
    most = max([pixels for _, pixels, _ in scheme.chunks])
    if most == 1:
        return []
    units = {pixels: _units(shape, scheme, pixels) for pixels in range(max(most - _FEWER, 1), most + 1)}
    found: set[int] = set()
    sizes = tuple([pim.channels // groups for groups in range(1, min(pim.buffers, pim.channels) + 1)])
    for groups, fewer in enumerate(_fewer_cycles(scheme, shape.tiles, sizes, costs), 1):
        _, pixels = min([(-(-units[pixels] // groups) * each, -pixels) for pixels, each in fewer])
        found.add(-pixels)
    chunks = (_limited(scheme.chunks, pixels) for pixels in sorted(found - {most}))
    return [scheme._replace(chunks=fewer, thinned=True) for fewer in chunks]


@lru_cache(maxsize=4096)
def _fewer_cycles(
    scheme: Scheme, tiles: int, sizes: tuple[int, ...], costs: VisitCosts
) -> tuple[list[tuple[int, float]], ...]:
    """(pixels, cycles of a fill) for as many pixels as fit and for a few fewer, on groups of each size."""
    columns, most, _ = max(scheme.chunks, key=lambda chunk: chunk[1])

    def cycles(pixels: int, channels: int) -> float:
        load = fill_load(tiles, pixels, columns, channels, max(scheme.width, 1))
        return fill_cycles(costs, load, scheme.order, pixels * columns, scheme.held, scheme.prefetch)[1]

    numbers = range(max(most - _FEWER, 1), most + 1)
    return tuple([(pixels, cycles(pixels, channels)) for pixels in numbers] for channels in sizes)


def _limited(chunks: Chunks, pixels: int) -> Chunks:
    """The chunks with at most `pixels` pixels per fill."""
    return tuple((columns, min(own, pixels), count) for columns, own, count in chunks)


def _placing_cycles(problem: MatrixProblem, pim: PimSpec) -> float:
    """Cycles to write one slot of weights into all banks of a channel; 0 if the weights are constant."""
    if not isinstance(problem, MatmulProblem) or problem.constant_rhs:
        return 0.0
    timing = pim.timing.strict
    return pim.banks * pim.multipliers * pim.element_bytes / timing.burst_bytes * timing.burst_cycles


class _Prices(NamedTuple):
    """Cycles of one chunk class by number of channels in a group: once per chunk, and per unit (see `_units`)."""

    once: tuple[float, ...]
    each: tuple[float, ...]


def _grouped(scheme: Scheme, shape: Geometry, pim: PimSpec, costs: VisitCosts, placing: float) -> Iterator[Candidate]:
    """Candidates that combine a scheme with the best partitions of the channels into groups."""
    prices = _prices(scheme, shape.tiles, shape.row_pixels if scheme.pitch else 0, pim.channels, costs, placing)
    kind = scheme.kind
    units = [_units(shape, scheme, pixels) for _, pixels, _ in scheme.chunks]
    alike = len(set(units)) == 1 and not any(own.once[-1] for own in prices)
    whole = _cycles_by_size(scheme, prices, [1] * len(units) if alike else units)
    rates = (0.0, *[1 / cycles for cycles in whole[1:]])
    for sizes in partitions(rates, pim.channels, min(pim.buffers, pim.channels)):
        if scheme.held > pim.fills_held(len(sizes)):
            continue
        if scheme.spread:
            number = units[0] if alike else 1
            yield _spread(scheme, shape, sizes, [number * whole[size] for size in sizes], pim)
            continue
        cycles, counts = _share_fills(scheme, units, shape.pixels, prices, sizes)
        yield Candidate(cycles * shape.groups, scheme, kind, partial(_mapping, scheme, shape, sizes, counts, pim))


def _cycles_by_size(scheme: Scheme, prices: tuple[_Prices, ...], units: Sequence[int]) -> list[float]:
    """Cycles of all chunks by number of channels in a group, given the units of each chunk class.

    If no chunk has a one-time cost and all have the same number of units, the best partitions of the channels do not
    depend on that number; the caller then passes 1.
    """
    whole = [0.0] * len(prices[0].each)
    for (_, _, count), own, number in zip(scheme.chunks, prices, units, strict=True):
        whole = [
            spent + count * (once + number * each) for spent, once, each in zip(whole, own.once, own.each, strict=True)
        ]
    return whole


def _spread(scheme: Scheme, shape: Geometry, sizes: Sequence[int], each: Sequence[float], pim: PimSpec) -> Candidate:
    """Deals the weight groups to the channel groups; `each` holds the cycles of one weight group on each of them."""
    spent = [0.0] * len(sizes)
    counts = _share_class(shape.groups, 1, [0.0] * len(sizes), each, spent)
    return Candidate(max(spent), scheme, scheme.kind, partial(_spread_mapping, scheme, shape, sizes, counts, pim))


def _spread_mapping(
    scheme: Scheme, shape: Geometry, sizes: Sequence[int], counts: Sequence[int], pim: PimSpec
) -> Mapping:
    runs = tuple(_run(scheme, chunk, chunk[2]) for chunk in scheme.chunks)
    shares = tuple(Share(index, 0, shape.pixels) for index in range(len(runs)))
    ends = list(accumulate(counts))
    groups = tuple(
        ChannelGroup(size, shares, (end - count, end))
        for size, count, end in zip(sizes, counts, ends, strict=True)
        if count
    )
    return _with_groups(scheme, runs, groups, pim)


@lru_cache(maxsize=8192)
def _prices(
    scheme: Scheme, tiles: int, row_pixels: int, channels: int, costs: VisitCosts, placing: float
) -> tuple[_Prices, ...]:
    """The prices of each chunk class. They do not depend on the number of output rows, so layers share them."""
    alike = scheme._replace(chunks=(), window_block=0, spread=False, early=True, thinned=False)
    chunks = [(columns, pixels) for columns, pixels, _ in scheme.chunks]
    return tuple([_chunk_prices(alike, chunk, tiles, row_pixels, channels, costs, placing) for chunk in chunks])


@lru_cache(maxsize=8192)
def _chunk_prices(
    scheme: Scheme,
    chunk: tuple[int, int],
    tiles: int,
    row_pixels: int,
    channels: int,
    costs: VisitCosts,
    placing: float,
) -> _Prices:
    """The prices of a chunk class, given as (columns, pixels per fill); `scheme` is without chunks."""
    own = [_price(scheme, chunk, tiles, row_pixels, size, costs, placing) for size in range(1, channels + 1)]
    once, each = zip(*own, strict=True)
    return _Prices((0.0, *once), (0.0, *each))


def _price(
    scheme: Scheme,
    chunk: tuple[int, int],
    tiles: int,
    row_pixels: int,
    size: int,
    costs: VisitCosts,
    placing: float,
) -> tuple[float, float]:
    """(cycles once per chunk, cycles per unit) on a group of `size` channels."""
    columns, pixels = chunk
    load = fill_load(tiles, pixels, columns, size, max(scheme.width, 1))
    copies = scheme.width if scheme.copied else 1
    slots = (copies * pixels - 1) * (scheme.pitch or columns) + columns
    once, each = fill_cycles(costs, load, scheme.order, slots, scheme.held, scheme.prefetch)
    if placing:
        stored = (load.rounds * load.full + load.left) / (pixels if scheme.width and not scheme.copied else 1)
        once += placing * stored
    return once, each * (-(-row_pixels // pixels) if scheme.pitch else 1)


@lru_cache(maxsize=4096)
def partitions(rates: tuple[float, ...], channels: int, groups: int) -> tuple[tuple[int, ...], ...]:
    """The channel group sizes with the highest throughput, for each number of groups, largest group first.

    `rates[m]` is the work per cycle of a group of m channels. A dynamic program over (groups, channels).
    """
    most = min(groups, _MAX_GROUPS)
    best = _one_group(rates, channels)
    found = [best[channels][1]]
    last = np.array((-math.inf, *rates[1:]))[_last_sizes(channels)]  # none has no channels
    for number in range(2, most + 1):
        first = channels if number == most else number  # the last number has to use all
        before = [rate for rate, _ in best]
        following = list(best)
        for used, others in enumerate((last[first:] + before).argmax(axis=1).tolist(), first):
            rate = before[others] + rates[used - others]
            if rate > before[used] * 1.0001:
                following[used] = rate, (*best[others][1], used - others)
        if following == best:
            break
        best = following
        sizes = tuple(sorted(best[channels][1], reverse=True))
        if sizes not in found:
            found.append(sizes)
    if groups > most:
        found += [(channels // count,) * count for count in range(most + 1, groups + 1) if channels % count == 0]
    return tuple(found)


@cache
def _last_sizes(channels: int) -> npt.NDArray[np.intp]:
    """[channels in use, channels of the other groups]: channels of the last group; 0 if the others use all or more."""
    used = np.arange(channels + 1)
    sizes: npt.NDArray[np.intp] = np.maximum(used[:, None] - used, 0)
    return sizes


def _one_group(rates: Sequence[float], channels: int) -> list[tuple[float, tuple[int, ...]]]:
    """(work per cycle, sizes) of the best single group of at most n channels, for n = 0 to `channels`."""
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for size in range(1, channels + 1):
        best.append((rates[size], (size,)) if rates[size] >= best[-1][0] else best[-1])
    return best


def _share_fills(
    scheme: Scheme, units: Sequence[int], pixels: int, prices: tuple[_Prices, ...], sizes: Sequence[int]
) -> tuple[float, list[list[int]]]:
    """(estimated cycles, fills of each group by chunk class), with the groups ending as close together as possible."""
    spent = [0.0] * len(sizes)
    numbers = [count for _, _, count in scheme.chunks]
    if scheme.order == "latch":  # a pixel's chunks stay together
        each = [sum([n * own.each[size] for n, own in zip(numbers, prices, strict=True)]) for size in sizes]
        shared = _share_class(pixels, 1, [0.0] * len(sizes), each, spent)
        return max(spent), [shared] * len(numbers)
    counts = []
    for number, count, own in zip(units, numbers, prices, strict=True):
        once, each = [own.once[size] for size in sizes], [own.each[size] for size in sizes]
        counts.append(_share_class(number, count, once, each, spent))
    return max(spent), counts


def _units(shape: Geometry, scheme: Scheme, pixels: int) -> int:
    """Units of one chunk that can be shared out: fills, or output rows of strips (which a share does not cut)."""
    return shape.pixels // shape.row_pixels if scheme.pitch else -(-shape.pixels // pixels)


def _share_class(
    fills: int, chunks: int, once: Sequence[float], each: Sequence[float], spent: list[float]
) -> list[int]:
    """Deals the fills of `chunks` equal chunks to the groups; adds their cycles to `spent`."""
    if chunks > 1:  # whole chunks go to one group
        each = [more + first / fills for first, more in zip(once, each, strict=True)]
        once = [0.0] * len(each)
    counts = _water_level(fills * chunks, each, [start + cost for start, cost in zip(spent, once, strict=True)])
    for group, count in enumerate(counts):
        if count:
            spent[group] += once[group] + count * each[group]
    return counts


def _water_level(total: int, each: Sequence[float], start: Sequence[float]) -> list[int]:
    """Integers n that add up to `total` and make start + n * each as even as possible."""
    number = len(each)
    if number == 1:
        return [total]
    if each.count(each[0]) == start.count(start[0]) == number:
        least, more = divmod(total, number)
        return [least + 1] * more + [least] * (number - more)
    groups = list(zip(start, each, strict=True))
    active, level = groups, 0.0
    while active:
        level = (total + sum([begin / cycles for begin, cycles in active])) / sum([1 / cycles for _, cycles in active])
        if max(active)[0] <= level:
            break
        active = [(begin, cycles) for begin, cycles in active if begin <= level]
    counts = [int((level - begin) / cycles) if begin <= level else 0 for begin, cycles in groups]
    ends = [begin + (count + 1) * cycles for count, (begin, cycles) in zip(counts, groups, strict=True)]
    for _ in range(total - sum(counts)):
        group = ends.index(min(ends))
        counts[group] += 1
        ends[group] = start[group] + (counts[group] + 1) * each[group]
    return counts


def _mapping(
    scheme: Scheme, shape: Geometry, sizes: Sequence[int], counts: Sequence[Sequence[int]], pim: PimSpec
) -> Mapping:
    runs: list[ChunkRun] = []
    shares: list[list[Share]] = [[] for _ in sizes]
    for chunk, dealt in zip(scheme.chunks, counts, strict=True):
        _, pixels, count = chunk
        unit = shape.row_pixels if scheme.pitch else pixels
        units = _units(shape, scheme, pixels)
        whole = scheme.order == "latch"
        for part in [_RunPart(count, _spans(dealt, 0, units))] if whole else _cut_runs(units, count, dealt):
            for group, start, stop in part.spans:
                shares[group].append(Share(len(runs), start * unit, min(stop * unit, shape.pixels)))
            runs.append(_run(scheme, chunk, part.count))
    groups = tuple([ChannelGroup(size, tuple(share)) for size, share in zip(sizes, shares, strict=True) if share])
    return _with_groups(scheme, tuple(runs), groups, pim)


def _run(scheme: Scheme, chunk: tuple[int, int, int], count: int) -> ChunkRun:
    columns, pixels, _ = chunk
    return ChunkRun(columns, pixels, count, scheme.pitch, scheme.width if scheme.copied else 1)


def _with_groups(scheme: Scheme, runs: tuple[ChunkRun, ...], groups: tuple[ChannelGroup, ...], pim: PimSpec) -> Mapping:
    return Mapping(
        "auto",
        runs,
        groups,
        order=scheme.order,
        deal="tiles",
        early_fill=scheme.prefetch or scheme.early,
        acts_first=pim.bank_groups if pim.gwrite_latency == "exposed" else acts_before_fill(pim),
        fills_held=scheme.held,
        prefetch=scheme.prefetch,
        tiles_per_row=scheme.width,
        window_block=scheme.window_block,
        reopens_rows=True,
    )


@dataclass(frozen=True, slots=True)
class _RunPart:
    """`count` chunks and the fills of each that a group works on: (group, first, stop)."""

    count: int
    spans: tuple[tuple[int, int, int], ...]


def _cut_runs(fills: int, chunks: int, counts: Sequence[int]) -> list[_RunPart]:
    """Lays the fills of equal chunks end to end and cuts them by group, into whole chunks for one group if possible."""
    if chunks == 1:
        return [_RunPart(1, _spans(counts, 0, fills))]
    parts: list[_RunPart] = []
    chunk = 0
    while chunk < chunks:
        spans = _spans(counts, chunk * fills, fills)
        group = spans[0][0]
        end = sum(counts[: group + 1])
        alone = end // fills - chunk if len(spans) == 1 else 1
        parts.append(_RunPart(alone, spans))
        chunk += alone
    return parts


def _spans(counts: Sequence[int], start: int, length: int) -> tuple[tuple[int, int, int], ...]:
    """The part of the groups' counts, laid end to end, from `start` on: (group, first, stop) relative to `start`."""
    spans = []
    first = 0
    for group, count in enumerate(counts):
        low, high = max(first, start), min(first + count, start + length)
        if low < high:
            spans.append((group, low - start, high - start))
        first += count
    return tuple(spans)
