"""Ways to compute one problem, apart from its channel groups: how K is cut into chunks, the loop order, the buffering.

Chunks whose length divides the buffer fill it without loss, so K is cut in the way that needs the fewest fills, and
into more chunks only where that saves fills.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, product

from pimflow.codegen import ConvProblem, MatmulProblem, MatrixProblem
from pimflow.codegen.newton.im2col import Geometry
from pimflow.codegen.newton.mapping import Order
from pimflow.records import NamedTuple
from pimflow.targets import PimSpec

Chunks = tuple[tuple[int, int, int], ...]
"""(columns, pixels per fill, count) of consecutive equal chunks."""

_MANY_PIXELS = 64  # the best cut of K does not depend on further pixels


class Scheme(NamedTuple):
    """Everything about a candidate except its channel groups.

    Args:
        chunks: how K is cut.
        order: as in `Mapping`.
        held: buffers of a channel filled at a time.
        prefetch: whether a buffer is filled while COMPs read another.
        width: tiles side by side in a row; 0 for one tile, replicated for every pixel of a fill.
        copied: whether each tile of a row has its own copy of the pixels in the buffer, for machines whose COMP cannot
            pair any slot with any column.
        pitch: distance of two windows in an im2win strip, in slots; 0 if there is no strip.
        window_block: as in `Mapping`.
        spread: whether each channel group has its own weight groups.
        early: whether a GWRITE issues before the READRES of the previous fill.
        thinned: whether fills hold fewer pixels than fit.
    """

    chunks: Chunks
    order: Order
    held: int = 1
    prefetch: bool = False
    width: int = 0
    copied: bool = False
    pitch: int = 0
    window_block: int = 0
    spread: bool = False
    early: bool = True
    thinned: bool = False

    @property
    def kind(self) -> tuple[object, ...]:
        """The properties on which the error of an estimate depends: loop order, buffering and weight layout."""
        return self.order, self.held, self.prefetch, self.width > 0, self.window_block > 0, self.spread


class _Limits(NamedTuple):
    """What schemes depend on of a machine; fields as in `PimSpec`."""

    channels: int
    columns: int
    buffer_columns: int
    any_slot_any_column: bool
    fills_per_channel: int


def schemes(problem: MatrixProblem, shape: Geometry, pim: PimSpec) -> Iterable[Scheme]:
    """The schemes of a problem with fills that hold as many pixels as fit; `shape` is its geometry on the machine."""
    limits = _Limits(pim.channels, pim.columns, pim.buffer_columns, pim.any_slot_any_column, pim.fills_per_channel)
    replicable = not isinstance(problem, MatmulProblem) or problem.constant_rhs
    pixels = min(shape.pixels, max(_MANY_PIXELS, pim.buffer_columns))  # more than a fill holds make no difference
    found = _schemes_of(shape.slots, shape.ragged, shape.tiles, pixels, replicable, limits)
    if pim.any_slot_any_column and isinstance(problem, ConvProblem):
        return chain(found, _strips(problem, pim))
    return found


@lru_cache(maxsize=4096)
def _schemes_of(
    slots: int, ragged: bool, tiles: int, pixels: int, replicable: bool, limits: _Limits
) -> tuple[Scheme, ...]:
    """The schemes of all problems with as many slots of K, tiles of N and pixels, except im2win strips.

    Args:
        slots, ragged, tiles, pixels: as in `Geometry`.
        replicable: whether weights can be replicated along a row at no cost.
        limits: those of the machine.
    """
    room = limits.buffer_columns if limits.any_slot_any_column else min(limits.buffer_columns, limits.columns)
    longest = min(room, limits.columns)
    cuts = chunk_lengths(slots, longest, room, min(pixels, _MANY_PIXELS))
    found: list[Scheme] = []
    for chunks in chain.from_iterable(_packings(cut, room, pixels, ragged, replicable) for cut in cuts):
        found += _orders_and_widths(chunks, limits)
        for width in _copied_widths(chunks, longest, tiles, pixels, limits):
            found.append(Scheme(chunks, "fills", width=width, copied=True))
    if slots > longest:
        found.append(Scheme(_pack(cuts[0], room, 1, ragged), "latch"))
    return tuple(found)


def _orders_and_widths(chunks: Chunks, limits: _Limits) -> Iterator[Scheme]:
    orders: tuple[Order, ...] = ("rows", "fills")
    for width, order in product(_widths(chunks, limits), orders):
        for buffering in _buffering(order, limits.fills_per_channel):
            yield Scheme(chunks, order, *buffering, width)


def _widths(chunks: Chunks, limits: _Limits) -> list[int]:
    """Values of `width`: 0 if a replicated tile fits; as many tiles side by side as fit, if COMP pairs freely."""
    widths = [0] if max(columns * pixels for columns, pixels, _ in chunks) <= limits.columns else []
    aside = limits.columns // max(columns for columns, _, _ in chunks)
    useful = aside > 1 or any(pixels > 1 for _, pixels, _ in chunks)
    return [*widths, aside] if limits.any_slot_any_column and useful else widths


def _copied_widths(chunks: Chunks, slots: int, tiles: int, pixels: int, limits: _Limits) -> list[int]:
    """How many tiles to place side by side if the buffer has room for all pixels and copies of them.

    As many as fit, or the fewest that take no more rounds, so that the last round uses more channels.
    """
    if any(held != pixels for _, held, _ in chunks):
        return []
    most = min(tiles, *(slots // (columns * held) for columns, held, _ in chunks))
    if most < 2:
        return []
    rounds = -(-tiles // (most * limits.channels))
    return sorted({most, -(-tiles // (rounds * limits.channels))} - {1})


def _buffering(order: Order, fills: int) -> Iterator[tuple[int, bool]]:
    """(buffers held, prefetch): any number filled together, or, with open rows, one refilled while another is read."""
    for held in range(1, fills + 1):
        yield held, False
        if order == "rows" and held > 1:
            yield held, True


def _packings(cut: tuple[int, ...], slots: int, pixels: int, ragged: bool, replicable: bool) -> list[Chunks]:
    """A cut of K with pixels packed into fills: as many as fit, and fewer if replicating the weights costs time."""
    limits = [pixels] if replicable else [pixels, *(limit for limit in (4, 1) if limit < pixels)]
    return list(dict.fromkeys(_pack(cut, slots, limit, ragged) for limit in limits))


def _pack(cut: tuple[int, ...], slots: int, limit: int, ragged: bool) -> Chunks:
    chunks: list[tuple[int, int, int]] = []
    for index, columns in enumerate(cut):
        pixels = max(1, min(slots // columns, limit))
        alone = ragged and index == len(cut) - 1
        if chunks and not alone and chunks[-1][:2] == (columns, pixels):
            chunks[-1] = (columns, pixels, chunks[-1][2] + 1)
        else:
            chunks.append((columns, pixels, 1))
    return tuple(chunks)


def _strips(problem: ConvProblem, pim: PimSpec) -> Iterator[Scheme]:
    """im2win strips: neighbouring windows share the input columns that both cover, so more fit into a buffer."""
    height, width = problem.kernel
    channels = problem.in_channels // problem.groups
    orders: tuple[Order, ...] = ("rows", "fills")
    if width <= problem.strides[1] or problem.dilations[1] != 1:
        return
    for blocks in range(1, channels + 1):
        block, rest = divmod(channels, blocks)
        columns, odd = divmod(block * height * width, pim.multipliers)
        pitch, uneven = divmod(block * height * problem.strides[1], pim.multipliers)
        if rest or odd or uneven or columns > min(pim.columns, pim.buffer_columns):
            continue
        pixels = min((pim.buffer_columns - columns) // pitch + 1, problem.out_w)
        chunks, aside = ((columns, pixels, blocks),), pim.columns // columns
        for order in orders:
            for buffering in _buffering(order, pim.fills_per_channel):
                yield Scheme(chunks, order, *buffering, aside, False, pitch, block)


@lru_cache(maxsize=4096)
def chunk_lengths(total: int, longest: int, slots: int, pixels: int) -> tuple[tuple[int, ...], ...]:
    """Ways to cut `total` slots of K: whole buffers, then one to four chunks; each has fewer fills than the way before.

    With few pixels there is nothing to pack; equal chunks for several channel groups are then included as well.
    """
    full, rest = divmod(total, longest)
    whole = (longest,) * full
    if not rest:
        cuts = [whole]
    else:
        cuts = [whole + tail for tail in _tails(rest, slots, pixels)]
        if full:
            more = [whole[:-1] + tail for tail in _tails(rest + longest, slots, pixels) if max(tail) <= longest]
            cuts += [cut for cut in more if len(cut) <= full + 1][:1]
    if pixels < 8 and total <= 4 * longest:
        for parts in range(2, 5):
            if parts <= total <= parts * longest:
                sizes = [total * (index + 1) // parts - total * index // parts for index in range(parts)]
                cuts.append(tuple(sorted(sizes, reverse=True)))
    return tuple(dict.fromkeys(cuts))


def _tails(rest: int, slots: int, pixels: int) -> list[tuple[int, ...]]:
    """For one to four chunks, the cut of `rest` with the fewest fills, if it has fewer than with fewer chunks."""
    best: list[tuple[int, ...]] = []
    fewest, pixels = float("inf"), min(pixels, slots)  # no fill has more
    for parts in range(1, 5):
        if fewest * 0.999 <= max(rest / slots, parts / pixels):  # without any loss
            break
        cut = _least_fills(rest, parts, rest, slots, pixels)
        if cut and cut[0] < fewest * 0.999:
            fewest = cut[0]
            best.append(cut[1])
    return best


@lru_cache(maxsize=1 << 15)
def _least_fills(rest: int, parts: int, largest: int, slots: int, pixels: int) -> tuple[float, tuple[int, ...]] | None:
    """(fills per pixel, chunks, longest first) of the best cut of `rest` into `parts` chunks of at most `largest`."""
    if parts == 1:
        if rest > min(largest, slots):
            return None
        return 1 / min(slots // rest, pixels), (rest,)
    best: tuple[float, tuple[int, ...]] | None = None
    for first in range(min(largest, slots, rest - parts + 1), -(-rest // parts) - 1, -1):
        tail = _least_fills(rest - first, parts - 1, first, slots, pixels)
        if tail is None:
            continue
        fills = 1 / min(slots // first, pixels) + tail[0]
        if best is None or fills < best[0] - 1e-9:
            best = fills, (first, *tail[1])
    return best
