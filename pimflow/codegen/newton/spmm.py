"""Lowers the aggregation over a graph's edges to command streams: features in the banks, weights in the buffers.

The features are stored transposed in the banks: bank b of tile u holds feature `u * banks + b`, one row of it a *block*
of 512 sources, one column a *group* of 16. Buffers hold the weights of edges. A COMP multiplies a group by the weights
of a destination, and is issued only if there is an edge between the two. The rows of a block stay open while all its
destinations are processed; weights of several destinations share a fill, each in its own slots. The part of a block
that belongs to one destination is a *unit*: COMPs, then one READRES. The reader of the results adds up the units of a
destination.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pimflow.codegen.newton.commands import ZERO, Affine, CommandStream, Comp, GAct, GWrite, Item, ReadRes
from pimflow.codegen.newton.emit import Items, loop, term
from pimflow.codegen.newton.lowering import StreamClass
from pimflow.codegen.work import Work
from pimflow.ir import Array, Refusal
from pimflow.records import dataclass
from pimflow.targets import PimSpec

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

MAX_ITEMS = 1 << 17
"""The maximum number of commands, and loops over neighbouring columns, in all streams of one program; those that loops
over tiles repeat count once. They are stored one by one, because no two destinations are alike."""


@dataclass(frozen=True)
class SpmmProblem(Work):
    """out[d] = sum over the edges e into d of weight[e] * x[col[e]].

    Args:
        edges_digest: identifies rowptr and col.
        sources, destinations, edges: the number of each.
        features: columns of x.
        scaled: whether rows of the result are scaled afterwards.
    """

    edges_digest: str
    sources: int
    destinations: int
    edges: int
    features: int
    scaled: bool = False


def block_columns(pim: PimSpec) -> int:
    """Groups of a block: the columns of a row for which a buffer has slots."""
    return min(pim.columns, pim.buffer_columns)


@dataclass(frozen=True, eq=False)
class Packing:
    """The place of every edge's weight. Edges between the same two nodes share a place, which holds the sum.

    A *cell* is the pair of a unit and a group: one COMP per tile.

    Args:
        columns: groups of a block.
        lanes: sources of a group.
        cell: for every edge, its cell.
        lane: for every edge, its source within the group.
        unit: for every cell, its unit.
        column: for every cell, its column within the block.
        slot: for every cell, its slot in the buffer.
        destination, fill: for every unit.
        block: for every fill. Fills are ordered by block, units by fill, cells by unit.
    """

    columns: int
    lanes: int
    cell: Ints
    lane: Ints
    unit: Ints
    column: Ints
    slot: Ints
    destination: Ints
    fill: Ints
    block: Ints

    @property
    def cells(self) -> int:
        """COMPs per tile."""
        return len(self.unit)

    @cached_property
    def run_starts(self) -> Ints:
        """The cells that do not continue the previous one in the next column and the next slot."""
        new_unit = _changes(self.unit)
        goes_on = (np.diff(self.column, prepend=-2) == 1) & (np.diff(self.slot, prepend=-2) == 1)
        return np.flatnonzero(new_unit | ~goes_on)

    @property
    def runs(self) -> int:
        """Sequences of COMPs per tile, each a loop or a single command."""
        return len(self.run_starts)

    @property
    def units(self) -> int:
        """READRES commands per tile."""
        return len(self.destination)

    @property
    def fills(self) -> int:
        """GWRITEs per tile."""
        return len(self.block)

    @property
    def is_partial(self) -> bool:
        """Whether any destination has several units, whose results must be added up."""
        return len(np.unique(self.destination)) < self.units

    def contents(self, weight: Array | None) -> Floats:
        """The contents of every fill: [fills, columns * lanes]; edges without weights count 1."""
        found = np.zeros((self.fills, self.columns * self.lanes), np.float32)
        fill = self.fill[self.unit[self.cell]]
        np.add.at(found, (fill, self.slot[self.cell] * self.lanes + self.lane), 1.0 if weight is None else weight)
        return found

    def added(self, partial: Floats, destinations: int) -> Floats:
        """The units' results [units, ...] added up per destination, in the order of units."""
        found = np.zeros((destinations, *partial.shape[1:]), np.float32)
        if len(partial):
            order = np.argsort(self.destination, kind="stable")
            targets, starts = np.unique(self.destination[order], return_index=True)
            found[targets] = np.add.reduceat(partial[order], starts, axis=0)
        return found


def pack(rowptr: Array, col: Array, pim: PimSpec) -> Packing:
    """The packing of edges given in compressed rows: the fills that first fit finds, the largest units first."""
    lanes, columns = pim.multipliers, block_columns(pim)
    pointers = np.asarray(rowptr, np.int64)
    degrees = pointers[1:] - pointers[:-1]
    source, row = np.asarray(col, np.int64), np.repeat(np.arange(len(degrees)), degrees)
    order = np.lexsort((source, row, source // (lanes * columns)))
    source, row = source[order], row[order]
    block = source // (lanes * columns)
    new_unit = _changes(block, row)
    new_cell = new_unit | _changes(source // lanes)
    cell = np.cumsum(new_cell) - 1
    unit_of_cell = (np.cumsum(new_unit) - 1)[new_cell]
    column = (source // lanes % columns)[new_cell]
    fill, slot, fill_block = _filled(unit_of_cell, column, block[new_unit], pim)
    by_fill = np.argsort(fill, kind="stable")
    unit_place = _inverse(by_fill)
    by_unit = np.argsort(unit_place[unit_of_cell], kind="stable")
    cell_place = _inverse(by_unit)
    of_edge, lane = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    of_edge[order], lane[order] = cell_place[cell], source % lanes
    return Packing(
        columns,
        lanes,
        of_edge,
        lane,
        unit_place[unit_of_cell][by_unit],
        column[by_unit],
        slot[by_unit],
        row[new_unit][by_fill],
        fill[by_fill],
        fill_block,
    )


def _changes(*keys: Ints) -> npt.NDArray[np.bool_]:
    """Where a sorted sequence of keys differs from the previous entry."""
    changed = np.zeros(len(keys[0]), bool)
    changed[:1] = True
    for key in keys:
        changed[1:] |= key[1:] != key[:-1]
    return changed


def _inverse(order: Ints) -> Ints:
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


def _filled(unit: Ints, column: Ints, block: Ints, pim: PimSpec) -> tuple[Ints, Ints, Ints]:
    """(fill of every unit, slot of every cell, block of every fill); units must be ordered by block."""
    bounds = np.searchsorted(unit, np.arange(len(block) + 1))
    fill, slot, fill_block = np.empty(len(block), np.int64), column.copy(), []
    first = 0
    edges = [*np.flatnonzero(_changes(block)).tolist(), len(block)]
    for start, stop in pairwise(edges):
        shelf = _NextFit(block_columns(pim)) if pim.any_slot_any_column else _FirstFit()
        sizes = np.diff(bounds[start : stop + 1])
        for place in np.argsort(-sizes, kind="stable") + start:
            cells = slice(bounds[place], bounds[place + 1])
            where, slots = shelf.put(column[cells].tolist())
            fill[place], slot[cells] = first + where, slots
        fill_block += [int(block[start])] * shelf.fills
        first += shelf.fills
    return fill, slot, np.array(fill_block, np.int64)


class _FirstFit:
    """Fills of a block if a column's weights must be in the slot of the same number: first fit."""

    def __init__(self) -> None:
        self._taken: list[int] = []  # slots of each fill, as bits
        self._first_free: dict[int, int] = {}  # by column, the first fill that may have room

    @property
    def fills(self) -> int:
        """The number of fills."""
        return len(self._taken)

    def put(self, columns: list[int]) -> tuple[int, list[int]]:
        """(fill, slots) for a unit with the given columns."""
        wanted = sum(1 << column for column in columns)
        at = max(self._first_free.get(column, 0) for column in columns)
        while at < len(self._taken) and self._taken[at] & wanted:
            at += 1
        if at == len(self._taken):
            self._taken.append(0)
        self._taken[at] |= wanted
        if len(columns) == 1:
            self._first_free[columns[0]] = at + 1
        return at, columns


class _NextFit:
    """Fills of a block if any slot can be paired with any column: filled in turn, the largest units first."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._taken: list[int] = []

    @property
    def fills(self) -> int:
        """The number of fills."""
        return len(self._taken)

    def put(self, columns: list[int]) -> tuple[int, list[int]]:
        """(fill, slots) for a unit with the given columns."""
        if not self._taken or self._taken[-1] + len(columns) > self._slots:
            self._taken.append(0)
        start = self._taken[-1]
        self._taken[-1] += len(columns)
        return len(self._taken) - 1, list(range(start, start + len(columns)))


@dataclass(frozen=True)
class SpmmMapping:
    """How an aggregation is distributed over the channels.

    Args:
        groups: channel groups, each with its own global buffer and fills.
        early_fill: whether a GWRITE is issued before the last READRES on the previous fill.
        gwrite_latency: "hidden" or "exposed".
    """

    groups: int
    early_fill: bool
    gwrite_latency: str


@dataclass(frozen=True)
class ChannelRole:
    """The share of one channel in the work of its group.

    Args:
        lane, lanes: the channel takes every `lanes`-th unit of every fill, starting at `lane`.
        tile, tiles, stride: its first tile, their number, and the distance between them.
    """

    lane: int
    lanes: int
    tile: int
    tiles: int
    stride: int


def roles(features: int, mapping: SpmmMapping, pim: PimSpec) -> tuple[ChannelRole, ...]:
    """The roles of a group's busy channels: one or more tiles each; with few tiles, several share the units of one."""
    channels, tiles = pim.channels // mapping.groups, -(-features // pim.banks)
    if tiles > channels:
        return tuple(ChannelRole(0, 1, first, -(-(tiles - first) // channels), channels) for first in range(channels))
    lanes = channels // tiles
    return tuple(ChannelRole(lane, lanes, tile, 1, 0) for lane in range(lanes) for tile in range(tiles))


def shares(packing: Packing, groups: int) -> tuple[tuple[int, int], ...]:
    """The fills (first, stop) of each group: ranges with about equal numbers of COMPs and READRESs."""
    load = np.bincount(packing.fill[packing.unit], minlength=packing.fills)
    total = np.cumsum(load + np.bincount(packing.fill, minlength=packing.fills))
    cuts = [int(np.searchsorted(total, total[-1] * part / groups)) for part in range(1, groups)] if len(total) else []
    bounds = [0, *cuts, packing.fills] if cuts else [0] + [packing.fills] * groups
    return tuple(pairwise(bounds))


@dataclass(frozen=True)
class SpmmProgram:
    """An aggregation lowered to streams. `first_row` is the row of every bank where the features begin."""

    problem: SpmmProblem
    mapping: SpmmMapping
    pim: PimSpec
    blocks: tuple[tuple[int, ...], ...]  # for every group, the blocks that its fills read, in order
    streams: tuple[CommandStream, ...]  # one for every channel, empty for an idle one
    first_row: int = 0

    @cached_property
    def roles(self) -> tuple[ChannelRole, ...]:
        """The roles of each group's busy channels."""
        return roles(self.problem.features, self.mapping, self.pim)

    @property
    def channel_groups(self) -> tuple[tuple[int, ...], ...]:
        """Busy channels by group."""
        size = self.pim.channels // self.mapping.groups
        return tuple(
            tuple(number * size + index for index in range(len(self.roles)) if self.streams[number * size + index].body)
            for number in range(self.mapping.groups)
        )

    @property
    def classes(self) -> tuple[StreamClass, ...]:
        """Channels whose streams differ only in addresses: those of a group with equal lane and number of tiles."""
        alike: dict[tuple[int, int, int], list[int]] = {}
        size = self.pim.channels // self.mapping.groups
        for number, channels in enumerate(self.channel_groups):
            for channel in channels:
                role = self.roles[channel - number * size]
                alike.setdefault((number, role.lane, role.tiles), []).append(channel)
        return tuple(StreamClass(self.streams[channels[0]], tuple(channels)) for channels in alike.values())

    def place(self, channel: int) -> tuple[ChannelRole, tuple[int, ...]]:
        """The role of a busy channel, and the blocks whose features it holds."""
        number, index = divmod(channel, self.pim.channels // self.mapping.groups)
        return self.roles[index], self.blocks[number]

    def slots_written(self, channel: int) -> int:
        """Column I/Os that store the features in each bank of a busy channel."""
        role, blocks = self.place(channel)
        columns = block_columns(self.pim)
        groups = -(-self.problem.sources // self.pim.multipliers)
        return role.tiles * sum(min(columns, groups - block * columns) for block in blocks)

    def rows_of(self, channel: int) -> int:
        """Rows of every bank of a busy channel that the features occupy."""
        role, blocks = self.place(channel)
        return role.tiles * len(blocks)

    @property
    def rows(self) -> int:
        """Rows of every bank in the fullest channel."""
        return max((self.rows_of(channel) for group in self.channel_groups for channel in group), default=0)

    def fill_banks(self, channel: int, features: Array) -> Floats:
        """The rows of a channel's banks [rows, banks, columns, multipliers], from features [sources, features]."""
        pim, (role, blocks) = self.pim, self.place(channel)
        columns = block_columns(pim)
        size = columns * pim.multipliers
        banks = np.zeros((len(blocks), role.tiles, pim.banks, pim.columns, pim.multipliers), np.float32)
        for index, block in enumerate(blocks):
            rows = features[block * size : (block + 1) * size]
            for turn in range(role.tiles):
                tile = role.tile + turn * role.stride
                part = np.zeros((size, pim.banks), np.float32)
                cut = rows[:, tile * pim.banks : (tile + 1) * pim.banks]
                part[: cut.shape[0], : cut.shape[1]] = cut
                banks[index, turn, :, :columns] = part.T.reshape(pim.banks, columns, pim.multipliers)
        return banks.reshape(len(blocks) * role.tiles, pim.banks, pim.columns, pim.multipliers)


def length_refusal(problem: SpmmProblem, pim: PimSpec, groups: int, each: int, fills: int = 0) -> Refusal | None:
    """Why the streams would be too long to store, or None.

    Args:
        problem, pim: the problem and the machine.
        groups: channel groups.
        each: runs of COMPs plus READRESs on one tile.
        fills: GWRITEs of all channels of a group.
    """
    items = min(-(-problem.features // pim.banks), pim.channels // groups) * each + fills
    if items <= MAX_ITEMS:
        return None
    reason = f"its streams would have {items:,} commands and loops, no two of them alike; the limit is {MAX_ITEMS:,}"
    return Refusal(reason, items, MAX_ITEMS, "commands and loops")


def packing_refusal(problem: SpmmProblem, packing: Packing, groups: int, pim: PimSpec) -> Refusal | None:
    """Why the streams of a packing would be too long to store, or None."""
    busy = len(roles(problem.features, SpmmMapping(groups, False, pim.gwrite_latency), pim))
    return length_refusal(problem, pim, groups, packing.runs + packing.units, busy * packing.fills)


class _Emitter:
    """Emits the streams of one group, whose channels all see the same fills in the same order."""

    def __init__(
        self, packing: Packing, mapping: SpmmMapping, pim: PimSpec, fills: tuple[int, int], passes: int
    ) -> None:
        self._packing, self._mapping, self._pim = packing, mapping, pim
        self._passes = passes  # over the fills of a block: the largest number of tiles of any channel
        first, stop = fills
        self._units_of = np.searchsorted(packing.fill, np.arange(packing.fills + 1)).tolist()
        self._cells_of = np.searchsorted(packing.unit, np.arange(packing.units + 1)).tolist()
        bounds = [*(first + np.flatnonzero(_changes(packing.block[first:stop]))).tolist(), stop]
        self._blocks = list(pairwise(bounds))
        self._gwrites = {fill: self._gwrite(fill) for fill in range(first, stop)}
        self._comps_of: dict[int, Items] = {}

    def _gwrite(self, fill: int) -> GWrite:
        """All weights of a fill, up to its last slot in use."""
        units = self._units_of
        cells = slice(self._cells_of[units[fill]], self._cells_of[units[fill + 1]])
        width = (int(self._packing.slot[cells].max()) + 1) * self._pim.multipliers
        return GWrite(Affine(fill), 1, ZERO, width, width)

    def body(self, role: ChannelRole) -> Items:
        """The stream of one channel; empty if the lane has no unit."""
        items: Items = ()
        computes = False
        for index, (first, stop) in enumerate(self._blocks):
            units = [self._lane_units(fill, role) for fill in range(first, stop)]
            bare: Items = tuple(self._gwrites[fill] for fill in range(first, stop))
            if not any(units):
                items += loop("i", self._passes, bare)
                continue
            computes = True
            row = Affine(index * role.tiles, term("i", role.tiles, 1))
            acts = tuple(GAct(group, row) for group in range(self._pim.bank_groups))
            items += loop("i", role.tiles, (bare[0], *acts, *self._fills(first, units, role)))
            items += loop("i", self._passes - role.tiles, bare)
        return items if computes else ()

    def _lane_units(self, fill: int, role: ChannelRole) -> range:
        """A lane's units of a fill; lanes take turns at having the first one."""
        first, stop = self._units_of[fill], self._units_of[fill + 1]
        return range(first + (role.lane + fill) % role.lanes, stop, role.lanes)

    def _fills(self, first: int, units: list[range], role: ChannelRole) -> Items:
        """The work on a block's fills, and every GWRITE except the first."""
        items: list[Item] = []
        for place, own in enumerate(units):
            following = (self._gwrites[first + place + 1],) if place + 1 < len(units) else ()
            for unit in own:
                items += self._comps(unit)
                if self._mapping.early_fill and unit == own[-1]:
                    items += following
                items.append(self._readres(unit, role))
            if not (self._mapping.early_fill and own):
                items += following
        return tuple(items)

    def _comps(self, unit: int) -> Items:
        """The COMPs of a unit; neighbouring columns in neighbouring slots form a loop."""
        if unit not in self._comps_of:
            packing = self._packing
            items: Items = ()
            first, last = np.searchsorted(packing.run_starts, self._cells_of[unit : unit + 2]).tolist()
            for start, stop in pairwise([*packing.run_starts[first:last].tolist(), self._cells_of[unit + 1]]):
                column, slot = int(packing.column[start]), int(packing.slot[start])
                inner = term("c", stop - start, 1)
                items += loop("c", stop - start, (Comp(Affine(column, inner), Affine(slot, inner)),))
            self._comps_of[unit] = items
        return self._comps_of[unit]

    def _readres(self, unit: int, role: ChannelRole) -> ReadRes:
        banks = self._pim.banks
        return ReadRes(Affine(unit), Affine(role.tile * banks, term("i", role.tiles, role.stride * banks)))


def lower_spmm(problem: SpmmProblem, packing: Packing, mapping: SpmmMapping, pim: PimSpec) -> SpmmProgram | Refusal:
    """The streams of an aggregation, or why there are none: too many commands or too many rows."""
    refusal = packing_refusal(problem, packing, mapping.groups, pim)
    if refusal is not None:
        return refusal
    parts = roles(problem.features, mapping, pim)
    cuts = shares(packing, mapping.groups)
    blocks = tuple(tuple(dict.fromkeys(packing.block[first:stop].tolist())) for first, stop in cuts)
    streams = [CommandStream(channel, ()) for channel in range(pim.channels)]
    size = pim.channels // mapping.groups
    for number, (first, stop) in enumerate(cuts):
        emitter = _Emitter(packing, mapping, pim, (first, stop), max(role.tiles for role in parts))
        for index, role in enumerate(parts):
            channel = number * size + index
            streams[channel] = CommandStream(channel, emitter.body(role))
    program = SpmmProgram(problem, mapping, pim, blocks, tuple(streams))
    if program.rows > pim.rows:
        reason = f"its features need {program.rows} rows of every bank, the banks have {pim.rows}"
        return Refusal(reason, program.rows, pim.rows, "rows of every bank", "a target with a larger pim.rows")
    return program
