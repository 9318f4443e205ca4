"""A cache of whole rows, simulated step by step: the oracle of closed-form counts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


def misses(ids: Iterable[int], cache_rows: int) -> int:
    """The number of rows that the cache fetches, under least-recently-used replacement."""
    held: OrderedDict[int, None] = OrderedDict()
    missed = 0
    for row in ids:
        missed += row not in held
        held[row] = None
        held.move_to_end(row)
        if len(held) > cache_rows:
            held.popitem(last=False)
    return missed
