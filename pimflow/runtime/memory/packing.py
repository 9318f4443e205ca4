"""Assigns offsets to blocks with sizes and lifetimes, so that blocks alive at the same time do not overlap.

Greedy best fit: blocks are placed one by one into the smallest gap between blocks alive at the same time (dynamic
storage allocation is NP-hard; greedy by size is within a few percent on networks: Pisarchyk and Lee, "Efficient Memory
Management for Deep Neural Net Inference", 2020). Several orders are tried until one meets the lower bound, each from
one end of the arena and from both: in a chain, where only neighbours' lifetimes overlap, alternating between both ends
is optimal.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from itertools import product
from math import inf
from operator import itemgetter
from random import Random

from pimflow.records import dataclass

MAX_REPAIRS = 300
"""How often up to a hundred blocks are placed again in each way, from each order, if there is too little room. With
more blocks, which take longer to place, the number falls with the square of their number."""


@dataclass(frozen=True, slots=True)
class Block:
    """`size` bytes that are alive from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


def live_peak(blocks: Sequence[Block]) -> int:
    """The most bytes alive at any step: a lower bound on every packing."""
    change: dict[int, int] = {}
    for block in blocks:
        change[block.first] = change.get(block.first, 0) + block.size
        change[block.last + 1] = change.get(block.last + 1, 0) - block.size
    peak = now = 0
    for step in sorted(change):
        now += change[step]
        peak = max(peak, now)
    return peak


def pack(blocks: Sequence[Block]) -> tuple[list[int], int]:
    """An offset for each block, and the total size. Deterministic.

    Offsets are sums of sizes: they are aligned if all sizes are.
    """
    bound = live_peak(blocks)
    best: tuple[list[int], int] | None = None
    for order, both_ends in product(_orders(blocks), (False, True)):
        found = _place(blocks, order, bound if both_ends else None)
        if best is None or found[1] < best[1]:
            best = found
        if best[1] == bound:
            return best
    assert best is not None
    return best


def pack_within(blocks: Sequence[Block], room: int) -> tuple[list[int], int]:
    """Like `pack`; if the result exceeds the room, blocks beyond it are moved forward in the order, and packing is
    repeated, as long as that may help: first always the first of them; then, from the orders that were closest, a
    random one to before a random block that it overlaps in time, unless more bytes are then beyond the room.
    """
    best = pack(blocks)
    repairs = MAX_REPAIRS * 100**2 // max(100, len(blocks)) ** 2
    if best[1] <= room or live_peak(blocks) > room or not repairs:
        return best
    packer = _Packer(blocks, room)
    closest: list[_Attempt] = []
    for order, ceiling in product(_orders(blocks)[:2], (None, room)):
        tried = [packer.attempt(order, ceiling)]
        while tried[-1].beyond and len(tried) < repairs:
            place = tried[-1].beyond[0]
            order.insert(place // 2, order.pop(place))
            tried.append(packer.attempt(order, ceiling, tried[-1]))
        if not tried[-1].beyond:
            return tried[-1].packed
        closest.append(min(tried, key=_excess))
        best = min(best, *(attempt.packed for attempt in tried), key=itemgetter(1))
    draws = Random(0)
    for start in sorted(closest, key=_excess):
        attempt = start
        for _ in range(repairs):
            order = _moved(blocks, attempt, draws)
            moved = packer.attempt(order, start.ceiling, attempt, most_excess=attempt.excess_bytes)
            if moved.excess_bytes > attempt.excess_bytes:
                continue
            attempt = moved
            best = min(best, attempt.packed, key=itemgetter(1))
            if not attempt.beyond:
                return attempt.packed
    return best


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A packing that may exceed a room.

    Args:
        order: the order in which the blocks were placed.
        ceiling: the room if they were placed from both ends, otherwise None.
        offsets: their offsets.
        size: the total size.
        beyond: the places in the order of the blocks that end beyond the room.
        excess_bytes: the sum of how far they do.
    """

    order: tuple[int, ...]
    ceiling: int | None
    offsets: list[int]
    size: int
    beyond: tuple[int, ...]
    excess_bytes: int

    @property
    def packed(self) -> tuple[list[int], int]:
        """The offsets and the total size, as `pack` returns them."""
        return self.offsets, self.size


def _excess(attempt: _Attempt) -> int:
    return attempt.excess_bytes


class _Packer:
    """Places the same blocks in one order after another."""

    def __init__(self, blocks: Sequence[Block], room: int) -> None:
        self.room = room
        self.sizes = [block.size for block in blocks]
        self.overlapping = [
            [
                other
                for other, another in enumerate(blocks)
                if other != index and another.size and another.first <= block.last and another.last >= block.first
            ]
            for index, block in enumerate(blocks)
        ]

    def attempt(
        self,
        order: Sequence[int],
        ceiling: int | None,
        like: _Attempt | None = None,
        most_excess: float = inf,
    ) -> _Attempt:
        """The packing of the blocks in an order.

        Args:
            like: an attempt with this ceiling; its blocks before the first place in which the orders differ stay.
            most_excess: nothing is placed once there are more bytes beyond the room.
        """
        kept = 0 if like is None else _common(order, like.order)
        sizes, room = self.sizes, self.room
        offsets, placed = [0] * len(sizes), [False] * len(sizes)
        size = excess = 0
        beyond: list[int] = []
        for place, index in enumerate(order):
            if not sizes[index]:
                continue
            if like is not None and place < kept:
                offset = like.offsets[index]
            else:
                others = [other for other in self.overlapping[index] if placed[other]]
                offset = _best_gap(sorted((offsets[other], sizes[other]) for other in others), sizes[index], ceiling)
            offsets[index], placed[index] = offset, True
            end = offset + sizes[index]
            size = max(size, end)
            if end > room:
                beyond.append(place)
                excess += end - room
                if excess > most_excess:
                    break
        return _Attempt(tuple(order), ceiling, offsets, size, tuple(beyond), excess)


def _common(some: Sequence[int], others: Sequence[int]) -> int:
    """The number of places before the first in which two orders of equal length differ."""
    return next((place for place, (one, other) in enumerate(zip(some, others, strict=True)) if one != other), len(some))


def _moved(blocks: Sequence[Block], attempt: _Attempt, draws: Random) -> list[int]:
    """The order with a random block that is beyond the room before a random earlier one that it overlaps in time."""
    order, place = list(attempt.order), _drawn(attempt.beyond, draws)
    block = blocks[order.pop(place)]
    overlapping = [
        other
        for other, index in enumerate(order[:place])
        if blocks[index].first <= block.last and blocks[index].last >= block.first
    ]
    order.insert(_drawn(overlapping, draws) if overlapping else 0, attempt.order[place])
    return order


def _drawn(places: Sequence[int], draws: Random) -> int:
    """One of some places, the same with every version of Python."""
    return places[int(draws.random() * len(places))]


def _orders(blocks: Sequence[Block]) -> list[list[int]]:
    """Orders of placing the blocks: by size, by size times lifetime, and by start."""
    keys: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda i: (-blocks[i].size, blocks[i].first, i),
        lambda i: (-blocks[i].size * (blocks[i].last - blocks[i].first + 1), blocks[i].first, i),
        lambda i: (blocks[i].first, -blocks[i].size, i),
    )
    return [sorted(range(len(blocks)), key=key) for key in keys]


def _place(blocks: Sequence[Block], order: Sequence[int], ceiling: int | None) -> tuple[list[int], int]:
    offsets = [0] * len(blocks)
    placed = _Intervals(1 + max((block.last for block in blocks), default=0))
    total = 0
    for index in order:
        block = blocks[index]
        if block.size == 0:
            continue
        taken = sorted((offsets[other], blocks[other].size) for other in placed.overlapping(block.first, block.last))
        offsets[index] = _best_gap(taken, block.size, ceiling)
        total = max(total, offsets[index] + block.size)
        placed.add(block.first, block.last, index)
    return offsets, total


def _best_gap(taken: Sequence[tuple[int, int]], size: int, ceiling: int | None) -> int:
    """An offset in the smallest gap of at least `size` between blocks sorted by offset; after all of them if none fits.

    With a ceiling, the space up to it is also a gap, and a gap that reaches the ceiling but not 0 is filled from above.
    """
    end = 0
    best, best_gap = -1, 0
    for offset, length in taken if ceiling is None else (*taken, (ceiling, 0)):
        gap = offset - end
        if gap >= size and (best < 0 or gap < best_gap):
            best = offset - size if offset == ceiling and end else end
            best_gap = gap
        if offset + length > end:  # max() would take a fifth of the time of packing
            end = offset + length
    if best >= 0:
        return best
    return max((offset + length for offset, length in taken), default=0)


class _Intervals:
    """Intervals of steps; finds those that intersect a given one in time linear in their number (plus a logarithm).

    An interval intersects [first, last] if it starts inside it, or if it contains `first`. For the former, starts are
    kept sorted. For the latter, each interval is stored in O(log n) nodes of a segment tree, so that those containing a
    step are on its path to the root.
    """

    def __init__(self, steps: int) -> None:
        self._leaves = 1
        while self._leaves < steps:
            self._leaves *= 2
        self._holding: dict[int, list[int]] = {}
        self._starts: list[tuple[int, int]] = []

    def add(self, first: int, last: int, index: int) -> None:
        insort(self._starts, (first, index))
        low, high = first + self._leaves, last + self._leaves + 1
        while low < high:
            if low & 1:
                self._holding.setdefault(low, []).append(index)
                low += 1
            if high & 1:
                high -= 1
                self._holding.setdefault(high, []).append(index)
            low //= 2
            high //= 2

    def overlapping(self, first: int, last: int) -> list[int]:
        low = bisect_left(self._starts, (first + 1, -1))
        high = bisect_left(self._starts, (last + 1, -1))
        found = [index for _, index in self._starts[low:high]]
        node = first + self._leaves
        while node:
            found.extend(self._holding.get(node, ()))
            node //= 2
        return found
