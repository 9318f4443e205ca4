"""Places intervals of time with sizes at offsets, so that those alive at the same time do not overlap.

Greedy best fit: blocks are placed one by one into the smallest gap that their contemporaries leave (dynamic storage
allocation is NP-hard; greedy by size is within a few percent on networks: Pisarchyk and Lee, "Efficient Memory
Management for Deep Neural Net Inference", 2020). Several orders are tried until one meets the lower bound, each from
one end of the arena and from both: in a chain, where only neighbours meet, filling both ends by turns is optimal.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from itertools import product
from operator import itemgetter

from pimflow.records import dataclass

MOST_REPAIRS = 300
"""So often a hundred blocks are placed anew from an order, where there is too little room; of more, which each take
longer to place, by the square of their number less often."""


@dataclass(frozen=True, slots=True)
class Block:
    """`size` bytes needed at every step from `first` to `last`, both included."""

    size: int
    first: int
    last: int


def live_peak(blocks: Sequence[Block]) -> int:
    """The most bytes needed at any one step: no packing takes less."""
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
    """An offset for every block, and the bytes taken in all. Deterministic.

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
    """The same; where that takes more than there is room for, what first lies beyond it is placed earlier, again and
    again, as long as that may help."""
    best = pack(blocks)
    if best[1] <= room or live_peak(blocks) > room:
        return best
    repairs = MOST_REPAIRS * 100**2 // max(100, len(blocks)) ** 2
    for order, ceiling in product(_orders(blocks)[:2], (None, room)):
        for _ in range(repairs):
            found = _place(blocks, order, ceiling)
            best = min(best, found, key=itemgetter(1))
            if best[1] <= room:
                return best
            place = next(place for place, i in enumerate(order) if found[0][i] + blocks[i].size > room)
            order.insert(place // 2, order.pop(place))
    return best


def _orders(blocks: Sequence[Block]) -> list[list[int]]:
    """In which blocks are placed: by size, by size and time, and by time."""
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
        taken = sorted((offsets[other], blocks[other].size) for other in placed.meeting(block.first, block.last))
        offsets[index] = _best_gap(taken, block.size, ceiling)
        total = max(total, offsets[index] + block.size)
        placed.add(block.first, block.last, index)
    return offsets, total


def _best_gap(taken: Sequence[tuple[int, int]], size: int, ceiling: int | None) -> int:
    """An offset in the smallest gap of at least `size` between blocks sorted by offset; behind all if there is none.

    With a ceiling the space up to it is a gap too, and a gap that reaches the ceiling but not 0 is filled from above.
    """
    end = 0
    best, best_gap = -1, 0
    for offset, length in taken if ceiling is None else (*taken, (ceiling, 0)):
        gap = offset - end
        if gap >= size and (best < 0 or gap < best_gap):
            best = offset - size if offset == ceiling and end else end
            best_gap = gap
        end = max(end, offset + length)
    if best >= 0:
        return best
    return max((offset + length for offset, length in taken), default=0)


class _Intervals:
    """Intervals of steps; finds those that meet another in time linear in their number (plus a logarithm).

    An interval meets [first, last] if it starts inside, or if it holds `first`. Starts are kept sorted; for the latter
    every interval hangs in O(log n) nodes of a segment tree, and those that hold a step hang on its path to the root.
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

    def meeting(self, first: int, last: int) -> list[int]:
        low = bisect_left(self._starts, (first + 1, -1))
        high = bisect_left(self._starts, (last + 1, -1))
        found = [index for _, index in self._starts[low:high]]
        node = first + self._leaves
        while node:
            found.extend(self._holding.get(node, ()))
            node //= 2
        return found
