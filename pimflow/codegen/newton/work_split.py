"""Divides the (tile, pixel) units of a fill among the channels of a group, as visits to parts of rows."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from pimflow.codegen.newton.mapping import Deal
from pimflow.records import dataclass


@dataclass(frozen=True, slots=True)
class Visit:
    """`count` rows that a channel visits on every fill: tiles `tile`, `tile + stride`, ..., `width` tiles in each row.

    It computes the pixels `pixels` (first, stop) of a fill and the columns `columns` (first, stop) of a chunk.
    """

    tile: int
    stride: int
    count: int
    width: int
    pixels: tuple[int, int]
    columns: tuple[int, int]

    @property
    def comps(self) -> int:
        """COMPs of one row on a full fill."""
        return self.width * (self.pixels[1] - self.pixels[0]) * (self.columns[1] - self.columns[0])

    def peel(self) -> tuple[Visit, Visit]:
        """The first row, and the others."""
        return (
            replace(self, count=1),
            replace(self, tile=self.tile + self.stride, count=self.count - 1),
        )


Visits = tuple[Visit, ...]


@lru_cache(maxsize=65536)
def deal_units(
    tiles: int, pixels: int, columns: int, channels: int, deal: Deal, tiles_per_row: int
) -> tuple[Visits, ...]:
    """The visits of every channel of a group.

    Args:
        tiles: tiles of N.
        pixels: pixels of one full fill.
        columns: columns of one chunk.
        channels: channels of the group.
        deal: as in `Mapping`.
        tiles_per_row: the number of tiles side by side in one row (0 counts as 1).
    """
    if deal == "tiles" or tiles_per_row > 1:
        return _deal_tiles(tiles, pixels, columns, channels, max(tiles_per_row, 1))
    return _deal_units(tiles, pixels, columns, channels)


@lru_cache(maxsize=4096)
def deal_latched(tiles: int, columns: int, longest: int, channels: int) -> tuple[Visits, ...]:
    """The visits of every channel of a group to a chunk, with order "latch".

    Tiles are divided in the same way for every chunk; leftover tiles are split by the columns of each chunk.

    Args:
        tiles, channels: as for `deal_units`.
        columns: columns of the chunk.
        longest: columns of the longest chunk.
    """
    left = tiles % channels
    parts = min(channels // left, longest) if left else 1
    dealt = deal_units(tiles, 1, parts, channels, "tiles", 1)
    return tuple(tuple(_rescaled(visit, parts, columns) for visit in visits) for visits in dealt)


def _rescaled(visit: Visit, parts: int, columns: int) -> Visit:
    low, high = visit.columns
    return replace(visit, columns=(columns * low // parts, columns * high // parts))


def best_split(pixels: int, columns: int, parts: int) -> tuple[int, int]:
    """(pixel parts, column parts), their product at most `parts`, with the fewest COMPs in the largest part.

    Ties are broken in favour of fewer column parts, because those produce partial sums.
    """
    best, best_load = (1, 1), pixels * columns
    for pixel_parts in range(min(parts, pixels), 0, -1):
        column_parts = min(parts // pixel_parts, columns)
        load = -(-pixels // pixel_parts) * -(-columns // column_parts)
        if load < best_load:
            best, best_load = (pixel_parts, column_parts), load
    return best


def _part(total: int, parts: int, index: int) -> tuple[int, int]:
    return total * index // parts, total * (index + 1) // parts


def _deal_tiles(tiles: int, pixels: int, columns: int, channels: int, width: int) -> tuple[Visits, ...]:
    """Rows of `width` tiles assigned round-robin; rows of the last, incomplete round are split over the channels."""
    rows = -(-tiles // width)
    ragged = tiles % width
    rounds, left = divmod(rows, channels)
    if left == 0 and ragged:  # the last row is narrower: assign it in a separate round
        rounds, left = rounds - 1, channels
    visits: list[list[Visit]] = [[] for _ in range(channels)]
    if rounds:
        for channel in range(channels):
            visit = Visit(channel * width, channels * width, rounds, width, (0, pixels), (0, columns))
            visits[channel].append(visit)
    if left:
        pixel_parts, column_parts = best_split(pixels, columns, channels // left)
        parts = pixel_parts * column_parts
        for channel in range(left * parts):
            row, part = rounds * channels + channel // parts, channel % parts
            last = ragged if ragged and row == rows - 1 else width
            pixel = _part(pixels, pixel_parts, part // column_parts)
            column = _part(columns, column_parts, part % column_parts)
            visits[channel].append(Visit(row * width, 0, 1, last, pixel, column))
    return tuple(map(tuple, visits))


def _deal_units(tiles: int, pixels: int, columns: int, channels: int) -> tuple[Visits, ...]:
    """Units in tile-major order cut into equal lengths; if there are few, they are split by columns of K."""
    units = tiles * pixels
    if 2 * units <= channels:
        parts = min(channels // units, columns)
        visits = [
            (Visit(unit // pixels, 0, 1, 1, (unit % pixels, unit % pixels + 1), _part(columns, parts, part)),)
            for unit in range(units)
            for part in range(parts)
        ]
        return tuple(visits) + ((),) * (channels - units * parts)
    length = -(-units // channels)
    cuts = [min(length * channel, units) for channel in range(channels + 1)]
    return tuple(_unit_range(start, stop, pixels, columns) for start, stop in pairwise(cuts))


def _unit_range(start: int, stop: int, pixels: int, columns: int) -> Visits:
    visits: list[Visit] = []
    whole = (0, columns)
    first, low = divmod(start, pixels)
    last, high = divmod(stop, pixels)
    if start == stop:
        return ()
    if first == last:
        return (Visit(first, 0, 1, 1, (low, high), whole),)
    if low:
        visits.append(Visit(first, 0, 1, 1, (low, pixels), whole))
        first += 1
    if last > first:
        visits.append(Visit(first, 1, last - first, 1, (0, pixels), whole))
    if high:
        visits.append(Visit(last, 0, 1, 1, (0, high), whole))
    return tuple(visits)
