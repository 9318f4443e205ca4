"""A lower bound on a mapping's cycles, computed from its shares before layout; it spares most mappings exact timing.

It counts, for each channel, what the COMPs wait for: the previous COMP, a READRES between two COMPs on one row, a
change of row, the fill of the buffer. Each is a minimum gap that the timing rules impose (`LeastVisits`), and no two
overlap. Refreshes are added as often as they are requested.
"""

from __future__ import annotations

from functools import lru_cache

from pimflow.codegen.newton import Mapping
from pimflow.codegen.newton.im2col import Geometry
from pimflow.codegen.newton.mapping import Deal
from pimflow.codegen.newton.work_split import Visit, deal_latched, deal_units
from pimflow.records import NamedTuple
from pimflow.runtime.newton.profiles.base import LeastVisits

_ROUNDS = 2
"""Iterations of counting the refreshes in a time that they prolong; the result of each is a valid lower bound."""


class _Filling(NamedTuple):
    """How a group of channels works on the fills of a chunk run.

    Args:
        tiles: tiles of N.
        channels: channels of the group.
        pixels, columns: size of a full fill.
        pixel_bytes: bytes that a fill writes for each pixel.
        deal: as in `Mapping`.
        stays: whether a row stays open over all fills.
        early: whether a GWRITE then issues before the last READRES of the previous fill.
    """

    tiles: int
    channels: int
    pixels: int
    columns: int
    pixel_bytes: int
    deal: Deal
    stays: bool
    early: bool


class _Spent(NamedTuple):
    """Cycles of each channel of a group, their maximum, and the longest gap between COMPs that they include."""

    cycles: tuple[int, ...]
    most: int
    longest: int


def least_cycles(mapping: Mapping, shape: Geometry, costs: LeastVisits, enough: float) -> float:
    """A lower bound on the cycles of the slowest channel, without placement; 0 for mappings that are not covered.

    It covers mappings whose weights are repeated along a row, with one buffer per channel that is filled as a whole.

    Args:
        mapping: the mapping.
        shape: geometry of the problem.
        costs: minimum gaps on the machine.
        enough: a bound that reaches this is not raised further.
    """
    if mapping.tiles_per_row or mapping.fills_held > 1 or mapping.buffer_parts > 1:
        return 0.0
    if mapping.order == "latch":
        return _latched(mapping, shape, costs)
    sizes = _pixel_bytes(mapping, shape, costs)
    fillings: dict[tuple[int, int], _Filling] = {}
    most = 0.0
    for group in mapping.groups:
        first, stop = group.weight_groups or (0, shape.groups)
        spent, longest = [], costs.change
        for run, start, end in group.shares:
            filling = fillings.get((run, group.channels))
            if filling is None:
                filling = fillings[run, group.channels] = _filling(mapping, run, group.channels, shape, sizes[run])
            more = _share(filling, *divmod(end - start, filling.pixels), costs)
            spent.append((mapping.runs[run].count, more))
            longest = max(longest, more.longest)
        # no COMP precedes the first
        most = max(most, _refreshed(costs.first + (stop - first) * _slowest(spent) - longest, longest, costs))
        if most >= enough:
            break
    return most


def _latched(mapping: Mapping, shape: Geometry, costs: LeastVisits) -> float:
    """The bound for order "latch": for each tile and pixel, every chunk opens its row and refills the buffer."""
    # over a change of chunk, its row opens, and the buffer is filled after the last COMP
    changes = [max(costs.change, costs.comp + costs.filling(size)) for size in _pixel_bytes(mapping, shape, costs)]
    runs = list(zip(mapping.runs, changes, strict=True))
    columns = max(run.columns for run in mapping.runs)
    longest = max(costs.change, *changes)
    most = 0.0
    for group in mapping.groups:
        first, stop = group.weight_groups or (0, shape.groups)
        spent = [0] * group.channels
        for number, start, end in group.shares:
            run, change = runs[number]
            dealt = deal_latched(shape.tiles, run.columns, columns, group.channels)
            for channel, visits in enumerate(dealt):
                each = (_chunk(visit, change, costs) for visit in visits)
                spent[channel] += (end - start) * run.count * sum(each)
        most = max(most, _refreshed(costs.first + (stop - first) * max(spent) - longest, longest, costs))
    return most


def _chunk(visit: Visit, change: int, costs: LeastVisits) -> int:
    """Cycles of a visit's tiles on a chunk for one pixel; 0 if the visit has no columns of the chunk."""
    columns = visit.columns[1] - visit.columns[0]
    return visit.count * ((columns - 1) * costs.comp + change) if columns else 0


def _slowest(spent: list[tuple[int, _Spent]]) -> int:
    """Cycles of a group's slowest channel on all its shares, given as (repetitions, cycles)."""
    if len(spent) == 1:
        ((count, alone),) = spent
        return count * alone.most
    each = ([count * cycles for cycles in own.cycles] for count, own in spent)
    return max(map(sum, zip(*each, strict=True)), default=0)


def _filling(mapping: Mapping, number: int, channels: int, shape: Geometry, pixel_bytes: int) -> _Filling:
    run, stays = mapping.runs[number], mapping.order == "rows"
    return _Filling(
        shape.tiles, channels, run.pixels, run.columns, pixel_bytes, mapping.deal, stays, mapping.early_fill
    )


def _pixel_bytes(mapping: Mapping, shape: Geometry, costs: LeastVisits) -> list[int]:
    """Bytes that a GWRITE writes for each pixel, by chunk run."""
    sizes, left = [], shape.depth
    for run in mapping.runs:
        sizes.append(min(run.columns * shape.slot_elements, left) * costs.element_bytes)
        left -= run.columns * run.count * shape.slot_elements
    return sizes


@lru_cache(maxsize=1 << 14)
def _share(filling: _Filling, full: int, tail: int, costs: LeastVisits) -> _Spent:
    """Cycles on `full` full fills of one chunk, and on one fill of `tail` pixels if that is not 0."""
    fills = [(number, pixels) for number, pixels in ((full, filling.pixels), (1, tail)) if number and pixels]
    each = [(number, _fill(filling, pixels, costs)) for number, pixels in fills]
    cycles = [0] * filling.channels
    for number, own in each:
        cycles = [spent + number * more for spent, more in zip(cycles, own.cycles, strict=True)]
    if filling.stays:  # at a row change COMPs wait for the row and for the fill, whichever takes longer
        _, pixels = fills[0]
        change = _turn(filling, pixels, costs) - _next(filling, pixels, costs)
        rows = _visits(filling, pixels)
        cycles = [spent + visit.rows * change for spent, visit in zip(cycles, rows, strict=True)]
    return _Spent(tuple(cycles), max(cycles), max(own.longest for _, own in each))


@lru_cache(maxsize=1 << 14)
def _fill(filling: _Filling, pixels: int, costs: LeastVisits) -> _Spent:
    """Cycles on a fill of `pixels` pixels, from its first COMP to the first COMP of the next fill."""
    turn, following = _turn(filling, pixels, costs), _next(filling, pixels, costs)
    cycles = []
    for visits in _visits(filling, pixels):
        spent = visits.comps * costs.comp + visits.reads * costs.read
        if filling.stays:
            spent += visits.rows * (following - costs.comp)
        elif visits.rows:
            spent += turn - costs.comp + (visits.rows - 1) * (costs.change - costs.comp)
        cycles.append(spent)
    return _Spent(tuple(cycles), max(cycles), max(turn, following))


def _turn(filling: _Filling, pixels: int, costs: LeastVisits) -> int:
    """Cycles from COMP to COMP if the row changes after a fill: opening it, and filling the buffer after a READRES."""
    return max(costs.change, costs.plain + costs.filling(pixels * filling.pixel_bytes))


def _next(filling: _Filling, pixels: int, costs: LeastVisits) -> int:
    """Cycles from COMP to COMP over a fill if the row stays open."""
    return (costs.early if filling.early else costs.plain) + costs.filling(pixels * filling.pixel_bytes)


class _Visits(NamedTuple):
    """The work of a channel on a fill: rows, COMPs, and READRES that are followed by more COMPs on the same row."""

    rows: int
    comps: int
    reads: int


@lru_cache(maxsize=1 << 14)
def _visits(filling: _Filling, pixels: int) -> tuple[_Visits, ...]:
    """The work of each channel on a fill of `pixels` pixels."""
    found = []
    dealt = deal_units(filling.tiles, filling.pixels, filling.columns, filling.channels, filling.deal, 1)
    for visits in dealt:
        rows = comps = reads = 0
        for visit in visits:
            low, high = visit.pixels
            units = visit.width * (min(high, pixels) - low)
            if units > 0:
                rows += visit.count
                comps += visit.count * units * (visit.columns[1] - visit.columns[0])
                reads += visit.count * (units - 1)
        found.append(_Visits(rows, comps, reads))
    return tuple(found)


def _refreshed(cycles: float, longest: int, costs: LeastVisits) -> float:
    """Adds the refreshes requested in the meantime, all of which are served before the end.

    A refresh closes the rows, which are reopened after it. So the gap that it falls into takes at least a row change
    plus the refresh, of which at most `longest` cycles are already counted.
    """
    each = max(0, costs.refresh - (longest - costs.change))
    total = cycles
    for _ in range(_ROUNDS):
        total = cycles + total // costs.refresh_interval * each
    return total
