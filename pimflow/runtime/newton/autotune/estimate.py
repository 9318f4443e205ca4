"""Closed-form estimates of the cycles of a fill on a group of channels, to rank mappings before exact timing."""

from __future__ import annotations

from functools import lru_cache

from pimflow.codegen.newton.mapping import Order
from pimflow.codegen.newton.work_split import best_split
from pimflow.records import NamedTuple
from pimflow.runtime.newton.profiles.base import VisitCosts


class FillLoad(NamedTuple):
    """The work of one fill of a chunk on the slowest channel of a group.

    `rounds` rows with `full` COMPs each, then (if `left`) one row with `left` COMPs; `reads` READRES in total.
    """

    rounds: int
    full: int
    left: int
    reads: int

    @property
    def rows(self) -> int:
        """Rows visited."""
        return self.rounds + (self.left > 0)


@lru_cache(maxsize=1 << 16)
def fill_load(tiles: int, pixels: int, columns: int, channels: int, width: int) -> FillLoad:
    """The load of a full fill with tiles assigned round-robin (see `work_split`), `width` tiles to a row."""
    rows = -(-tiles // width)
    rounds, left = divmod(rows, channels)
    full = min(width, tiles) * pixels * columns
    if not left:
        return FillLoad(rounds, full, 0, rounds * full // columns)
    pixel_parts, column_parts = best_split(pixels, columns, channels // left)
    units = min(width, tiles) * -(-pixels // pixel_parts)
    return FillLoad(rounds, full, units * -(-columns // column_parts), rounds * full // columns + units)


def fill_cycles(
    costs: VisitCosts, load: FillLoad, order: Order, slots: int, held: int, prefetch: bool
) -> tuple[float, float]:
    """(cycles once per chunk, cycles of each fill) on the slowest channel, including refresh.

    Args:
        costs: closed-form costs of the machine.
        load: the work of one fill.
        order: loop order; with "latch" a fill is one chunk of one pixel, refilled for every row.
        slots: buffer slots that a fill writes.
        held: buffers filled at a time.
        prefetch: whether a buffer is filled while COMPs read another.
    """
    rows = load.rows
    computing = costs.comp * (load.rounds * load.full + load.left) + costs.read * (load.reads - rows)
    wait = (costs.fill + costs.fill_per_slot * slots * held + costs.next_fill * (held - 1)) / held
    if order == "rows":
        each = rows * (wait + (min(costs.early, costs.plain) - costs.comp) / held) + computing
        if prefetch:
            filling = costs.fill + costs.fill_per_slot * slots + costs.back
            first = computing / load.reads  # until the first READRES, which waits for the bus
            each = rows * (costs.plain + max(filling, first) - first) + computing
        slow = 1 / (1 - costs.idle_refresh)
        return rows * costs.sweep * slow, each * slow
    fills = rows if order == "latch" else 1
    each = rows * costs.sweep / held + fills * max(0.0, wait - costs.fill_hidden / held) + computing
    return 0.0, each / (1 - costs.busy_refresh)
