"""Closed-form estimates of what a fill costs a group of channels: they rank mappings before exact timing decides."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from pimflow.codegen.newton.mapping import Order
from pimflow.codegen.newton.work_split import best_split
from pimflow.targets import PimSpec


@dataclass(frozen=True, slots=True)
class VisitCosts:
    """Cycles of the parts of a stream under one profile of one machine, refresh apart.

    Args:
        comp: COMP to COMP.
        fill: GWRITE to the first COMP on it, per fill and (strict) per slot written.
        next_fill: GWRITE to the next GWRITE where several buffers are filled in a row.
        sweep: a row change: first G_ACT to the first COMP.
        settle: last COMP of a visit to what follows it.
        turn: what a GWRITE after a READRES adds before the next COMP, where that reads another buffer.
        read: what a READRES between COMPs adds.
        fill_hidden: how much of a fill's wait passes while a row changes.
        busy_refresh: share of all time that refresh takes from a stream that activates all the time.
        idle_refresh: the same for a stream whose rows stay open.
        sweep_refresh: refresh cycles that one sweep of a stream with open rows waits for, on average.
    """

    comp: int
    fill: float
    fill_per_slot: float
    next_fill: float
    sweep: float
    settle: float
    turn: float
    read: float
    fill_hidden: float
    busy_refresh: float
    idle_refresh: float
    sweep_refresh: float


def visit_costs(pim: PimSpec, profile: str | None, latency: str | None) -> VisitCosts:
    """The costs of a machine under a profile (None: its default) and a GWRITE latency (None: its own)."""
    if (profile or pim.timing.default) == "artifact":
        return artifact_costs(pim, (latency or pim.gwrite_latency) == "exposed")
    return strict_costs(pim)


def artifact_costs(pim: PimSpec, exposed: bool) -> VisitCosts:
    """Costs under `artifact`: a refresh delays the next G_ACT0 only, so that streams with open rows hardly see it."""
    timing = pim.timing.artifact
    sweep = (pim.bank_groups - 1) * timing.act_to_act + timing.act_to_comp
    return VisitCosts(
        comp=timing.comp_to_comp,
        fill=timing.gwrite_to_comp,
        fill_per_slot=0,
        next_fill=timing.gwrite_to_next_exposed if exposed else timing.gwrite_to_next_hidden,
        sweep=sweep,
        settle=timing.comp_to_readres,
        turn=timing.readres_to_gwrite + timing.gwrite_to_comp,
        read=max(0, timing.comp_to_readres + 1 - timing.comp_to_comp),
        fill_hidden=0 if exposed else sweep,
        busy_refresh=(timing.ref_to_act + timing.pre_to_act) / timing.refresh_interval,
        idle_refresh=(timing.pre_to_act + 1) / timing.refresh_interval,
        sweep_refresh=timing.ref_to_act**2 / (2 * timing.refresh_interval),
    )


def strict_costs(pim: PimSpec) -> VisitCosts:
    """Costs under `strict`: rows are precharged between visits, a fill takes the bus burst by burst."""
    timing = pim.timing.strict
    sweep = (pim.bank_groups - 1) * timing.t_faw + timing.t_rcd
    bursts = -(-pim.multipliers * pim.element_bytes // timing.burst_bytes)
    filling = bursts * pim.buffer_columns * timing.t_ccd  # passes while a refresh runs
    return VisitCosts(
        comp=timing.t_ccd,
        fill=timing.t_ccd,
        fill_per_slot=bursts * timing.t_ccd,
        next_fill=timing.t_ccd,
        sweep=sweep + timing.t_rtp + timing.t_rp,
        settle=timing.t_drain + timing.t_bl,
        turn=timing.t_rtw,
        read=timing.t_drain + 1,
        fill_hidden=sweep + timing.t_rtp + timing.t_rp,
        busy_refresh=(timing.t_rfc + timing.t_rp) / timing.t_refi,
        idle_refresh=max(0, timing.t_rfc + timing.t_rp + sweep - filling) / timing.t_refi,
        sweep_refresh=0,
    )


@dataclass(frozen=True, slots=True)
class FillLoad:
    """What one fill of a chunk asks of the slowest channel of a group.

    `rounds` rows with `full` COMPs each, then (if `left`) one row with `left` COMPs; `reads` READRES in all.
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
    """The load of a full fill with tiles dealt round (see `codegen.deal`); `width` tiles lie in a row."""
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
    """(cycles once per chunk, cycles of every fill) on the slowest channel, refresh included.

    Args:
        costs: of the machine.
        load: of one fill.
        order: loop order; with "latch" a fill is one chunk of one pixel, refilled for every row.
        slots: slots of the buffer that a fill writes.
        held: buffers filled at a time.
        prefetch: whether a buffer is filled while COMPs read another.
    """
    computing = costs.comp * (load.rounds * load.full + load.left) + costs.read * (load.reads - load.rows)
    wait = (costs.fill + costs.fill_per_slot * slots * held + costs.next_fill * (held - 1)) / held
    if order == "rows":
        each = load.rows * (wait + (costs.settle - costs.comp) / held) + computing
        if prefetch:
            filling = costs.fill + costs.fill_per_slot * slots
            first = computing / load.reads  # until a READRES, which waits for the bus
            each = load.rows * (max(filling, first) + costs.settle + costs.turn - first) + computing
        slow = 1 / (1 - costs.idle_refresh)
        return load.rows * (costs.sweep + costs.sweep_refresh) * slow, each * slow
    change = load.rows * (costs.sweep + costs.settle + 1 - costs.comp) / held
    fills = load.rows if order == "latch" else 1
    each = change + fills * max(0.0, wait - costs.fill_hidden / held) + computing
    return 0.0, each / (1 - costs.busy_refresh)
