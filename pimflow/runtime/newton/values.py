"""Executes PIM programs by value, from the streams alone: bank rows, global buffers, open rows, latches.

Nothing here knows what a convolution is. A GWRITE fills a buffer through the source view, a COMP multiplies a slot of
the buffer by a column of the open row in every bank, and a READRES stores or adds the latches at its result address.
A wrong address in a stream gives a wrong value; an impossible order is an error.

PIM does not compute bias and activation: the caller adds them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.codegen.newton import CommandStream, PimProgram
from pimflow.codegen.newton.commands import GWrite, ReadRes
from pimflow.codegen.newton.expand import COMP, G_ACT, GWRITE, READRES, FlatCommands, Ints, flatten
from pimflow.codegen.newton.im2col import SourceView
from pimflow.codegen.newton.spmm import Packing, SpmmProgram
from pimflow.errors import CommandOrderError, choice
from pimflow.ir import Array
from pimflow.records import dataclass
from pimflow.targets import PimSpec
from pimflow.targets.schema.newton import OPERANDS

Floats = npt.NDArray[np.floating[Any]]

ACCUMULATORS = ("fp32", "fp16")


def execute(
    program: PimProgram, source: Array, weights: Array, operand: str | None = None, accumulator: str | None = None
) -> Floats:
    """The result of the program's streams, as a float32 tensor of the problem's result shape.

    Args:
        program: the lowered problem.
        source: activations [N, C, H, W], or the left-hand matrix.
        weights: [O, C/groups, kh, kw], or the right-hand matrix [(batch,) k, n].
        operand: "fp16", "bf16" or "fp32", the type that source and weights are rounded to; the machine's if None.
        accumulator: "fp32" or "fp16", the type of the latches; if None, the machine's, but fp32 for fp32 operands,
            whose precision narrower latches would lose.

    Raises:
        OptionError: no such type.
        CommandOrderError: a COMP without a filled buffer or an open row, a READRES of nothing, an address out of
            range, or channels of one group that see different fills.
    """
    operand, half = _types(program.pim, operand, accumulator)
    matrix = round_to(program.weights.matrix(weights), operand)
    view, result = program.source, program.result
    machine = _Machine(
        program.pim, view, view.flatten(round_to(source, operand)), (result.pixels, result.channels), half
    )
    machine.run_groups(program, lambda channel: program.layout.fill_banks(channel, matrix, program.shape, program.pim))
    return result.tensor(machine.result.reshape(result.pixels, -1)).astype(np.float32)


def execute_bytes(program: PimProgram, source: Array, weights: Array) -> npt.NDArray[np.float64]:
    """The result of the program's streams on integers, exact like sums in 32 bits.

    The buffers hold bytes: the source minus its least element. That shifts 0, and with it the padding, to another byte.
    It adds a constant to the sums of each output channel, which is corrected afterwards.

    Args:
        program: the lowered problem, with 8-bit operands.
        source: integers as for `execute`, the largest at most 255 above the least.
        weights: signed 8-bit integers.

    Raises:
        ValueError: the numbers need more bits.
        CommandOrderError: as `execute`.
    """
    least = min(0.0, float(source.min()))
    if source.max() - least > 255 or weights.min() < -128 or weights.max() > 127:
        raise ValueError("operands need more than 8 bits")
    matrix, view, result = program.weights.matrix(weights).astype(np.float64), program.source, program.result
    contents = view.flatten(np.subtract(source, least), -least)
    shape = (result.pixels, result.channels)
    machine = _Machine(program.pim, view, contents, shape, half=False, dtype=np.float64)
    machine.run_groups(program, lambda channel: program.layout.fill_banks(channel, matrix, program.shape, program.pim))
    added = np.zeros((matrix.shape[0], result.padded))
    added[:, : result.columns] = least * matrix.sum(axis=1)
    sums = machine.result.reshape(result.pixels, -1)
    if program.shape.groups > 1 and result.groups == 1:  # groups of pixels, each with its own weights
        added = np.repeat(added, program.shape.pixels, axis=0)
    return result.tensor(sums + added.reshape(-1, sums.shape[1])).astype(np.float64)


def execute_spmm(
    program: SpmmProgram, packing: Packing, features: Array, weight: Array | None, operand: str | None = None
) -> Floats:
    """The results of the program's streams, added up by destination: [destinations, features].

    Args:
        program: the lowered aggregation.
        packing: the packing of its edges.
        features: [sources, features].
        weight: the weight of each edge; None if all are 1.
        operand: as for `execute`.

    Raises:
        OptionError: no such type.
        CommandOrderError: as `execute`.
    """
    operand, half = _types(program.pim, operand, None)
    contents = round_to(packing.contents(weight), operand)
    view = SourceView(
        contents.shape, (0, 0, 0, 0), ((contents.shape[0], contents.shape[1]),), ((contents.shape[1], 1),)
    )
    rounded = round_to(features, operand)
    width, banks = features.shape[1], program.pim.banks
    machine = _Machine(program.pim, view, contents.ravel(), (packing.units, -(-width // banks) * banks), half)
    machine.run_groups(program, lambda channel: program.fill_banks(channel, rounded))
    partial = machine.result.reshape(packing.units, -1)[:, :width]
    return packing.added(partial, program.problem.destinations)


def _types(pim: PimSpec, operand: str | None, accumulator: str | None) -> tuple[str, bool]:
    """(type of operands, whether latches are fp16)."""
    operand = operand or pim.operand
    accumulator = accumulator or ("fp32" if operand == "fp32" else pim.accumulator)
    operand = choice("operand type", operand, OPERANDS)
    return operand, choice("accumulator type", accumulator, ACCUMULATORS) == "fp16"


def round_to(array: Array, operand: str) -> Floats:
    """float32 values rounded to a narrower type, to nearest even."""
    values = np.asarray(array, dtype=np.float32)
    if operand == "fp16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    if operand == "bf16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        kept = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        return np.where(np.isfinite(values), kept, values).astype(np.float32)
    return values


@dataclass
class _State:
    """The state of one channel between two pieces of its stream."""

    buffers: Floats  # [buffers, slots, multipliers]
    filled: npt.NDArray[np.bool_]
    open_rows: Ints  # by bank group, -1 where closed
    latch: Floats  # [banks]
    pending: bool = False  # whether COMPs are in the latch
    executed: int = 0  # commands before this piece
    seen: hashlib._Hash = field(default_factory=hashlib.sha256)  # digest of the GWRITEs so far


class _Machine:
    """Source and result memory, and the execution of channels on them, one after the other."""

    def __init__(
        self,
        pim: PimSpec,
        view: SourceView,
        source: Array,
        result: tuple[int, int],
        half: bool,
        dtype: type[np.floating[Any]] = np.float32,
    ) -> None:
        self.pim = pim
        self.view = view
        self.source = source
        self.half = half
        self.dtype = dtype  # float32, or a type that holds sums of integers exactly
        self.pixels = result[0]
        self.tiles = result[1] // self.pim.banks
        self.result = np.zeros((self.pixels * self.tiles, self.pim.banks), dtype)
        self._fills: dict[bytes, Floats] = {}

    def run_groups(self, program: PimProgram | SpmmProgram, banks_of: Callable[[int], Array]) -> None:
        """Executes all channels' streams on their bank rows."""
        for channels in program.channel_groups:
            digests = {self.run(program.streams[channel], banks_of(channel)) for channel in channels}
            if len(digests) > 1:
                reason = f"channels {channels} share a buffer and see different fills"
                raise CommandOrderError(reason, "a bug in a mapping")

    def run(self, stream: CommandStream, banks: Array) -> bytes:
        """Executes one channel's stream on its bank rows; returns a digest of its fills."""
        pim = self.pim
        state = _State(
            np.zeros((pim.fills_per_channel, pim.buffer_columns, pim.multipliers), self.dtype),
            np.zeros(pim.fills_per_channel, np.bool_),
            np.full(pim.bank_groups, -1),
            np.zeros(pim.banks, self.dtype),
        )
        with np.errstate(invalid="ignore", over="ignore"):  # operands that overflowed give infinities and NaN
            for piece in flatten(stream.body):
                self._run_piece(piece, banks, state, stream.channel)
                state.executed += len(piece.kind)
        return state.seen.digest()

    def _run_piece(self, piece: FlatCommands, banks: Array, state: _State, channel: int) -> None:
        comps = np.flatnonzero(piece.kind == COMP)
        reads = np.flatnonzero(piece.kind == READRES)
        contents, fill_of = self._fill_buffers(piece, comps, state, channel)
        rows = self._open_rows(piece, comps, state, banks.shape[0], channel)
        columns, slots = piece.first[comps], piece.second[comps]
        self._check(columns, pim_limit=self.pim.columns, what="column", at=state.executed + comps, channel=channel)
        self._check(slots, pim_limit=self.pim.buffer_columns, what="slot", at=state.executed + comps, channel=channel)
        bounds = np.searchsorted(comps, reads)
        events = _Events(np.concatenate([[0], bounds, [len(comps)]]), rows, columns, fill_of, slots)
        latches = self._accumulate(events, contents, banks, len(reads) + 1)
        latches[0] += state.latch
        empty = np.diff(np.concatenate([[0], bounds])) == 0
        if state.pending and len(reads):
            empty[0] = False
        if empty.any():
            where = state.executed + reads[np.argmax(empty)]
            raise CommandOrderError(f"channel {channel}, command {where}: READRES with nothing in the latches")
        state.latch = latches[-1]
        state.pending = bool(len(comps) > (bounds[-1] if len(reads) else 0)) or (state.pending and not len(reads))
        self._store(piece, reads, latches[:-1], state, channel)

    def _fill_buffers(self, piece: FlatCommands, comps: Ints, state: _State, channel: int) -> tuple[Floats, Ints]:
        """Contents of all fills (first those held from earlier pieces), and for each COMP the fill that it reads."""
        held = len(state.filled)
        writes = np.flatnonzero(piece.kind == GWRITE)
        gathered = self._gather(piece, writes, state)
        contents = np.concatenate([state.buffers, gathered])
        leaf_buffer = np.array([getattr(leaf, "buffer", 0) for leaf in piece.leaves], np.int64)
        buffer_of = leaf_buffer[piece.leaf]
        last = np.empty((held, len(piece.kind)), np.int64)
        for buffer in range(held):
            marks = np.full(len(piece.kind), buffer if state.filled[buffer] else -1)
            own = np.flatnonzero(buffer_of[writes] == buffer)
            marks[writes[own]] = held + own
            last[buffer] = np.maximum.accumulate(marks)
        fill_of = last[buffer_of[comps], comps]
        if (fill_of < 0).any():
            where = state.executed + comps[np.argmax(fill_of < 0)]
            raise CommandOrderError(f"channel {channel}, command {where}: COMP before its buffer was filled")
        if len(piece.kind):
            final = last[:, -1]
            state.filled = final >= 0
            state.buffers = contents[np.maximum(final, 0)]
        return contents, fill_of

    def _gather(self, piece: FlatCommands, writes: Ints, state: _State) -> Floats:
        """Buffer contents [fills, slots, multipliers] of a piece's GWRITEs, cached for other channels of the group."""
        leaves, pixel, k = piece.leaf[writes], piece.first[writes], piece.second[writes]
        statics = [
            (leaf.pixels, leaf.k_count, leaf.pitch, leaf.copies, leaf.buffer) if isinstance(leaf, GWrite) else (0,) * 5
            for leaf in piece.leaves
        ]
        shape = np.array(statics, np.int64)[leaves]
        key = np.column_stack([pixel, k, shape]).tobytes()
        state.seen.update(key)
        if key not in self._fills:
            if len(self._fills) >= 4:
                self._fills.clear()
            self._fills[key] = self._gather_fills(pixel, k, shape)
        return self._fills[key]

    def _gather_fills(self, pixel: Ints, k: Ints, shape: Ints) -> Floats:
        size = self.pim.buffer_elements
        fills = np.zeros((len(pixel), size), self.dtype)
        alike, group = np.unique(np.column_stack([k, shape[:, :4]]), axis=0, return_inverse=True)
        for index, (start, pixels, depth, pitch, copies) in enumerate(alike.tolist()):
            members = np.flatnonzero(group.ravel() == index)
            if (copies * pixels - 1) * pitch + depth > size:
                raise CommandOrderError(f"a GWRITE of {pixels} x {depth} elements overflows the buffer of {size}")
            rows = (pixel[members][:, None] + np.arange(pixels)[None, :]).ravel()
            try:
                values = self.view.gather(self.source, rows, start + np.arange(depth))
            except IndexError as error:
                raise CommandOrderError(f"a GWRITE reads outside the source: {error}") from None
            values = values.reshape(len(members), pixels, depth)
            for place in range(copies * pixels):
                fills[members, place * pitch : place * pitch + depth] = values[:, place % pixels]
        return fills.reshape(len(pixel), self.pim.buffer_columns, self.pim.multipliers)

    def _open_rows(self, piece: FlatCommands, comps: Ints, state: _State, stored: int, channel: int) -> Ints:
        """The open row of each bank group at each COMP: [bank groups, comps]."""
        acts = np.flatnonzero(piece.kind == G_ACT)
        rows = np.empty((self.pim.bank_groups, len(comps)), np.int64)
        for group in range(self.pim.bank_groups):
            own = acts[piece.second[acts] == group]
            opened = np.concatenate([[state.open_rows[group]], piece.first[own]])
            rows[group] = opened[np.searchsorted(own, comps)]
            state.open_rows[group] = opened[-1]
        if (rows < 0).any():
            where = state.executed + comps[np.argmax((rows < 0).any(axis=0))]
            raise CommandOrderError(f"channel {channel}, command {where}: COMP with no open row")
        self._check(rows.max(axis=0), stored, "row", state.executed + comps, channel)
        return rows

    @staticmethod
    def _check(values: Ints, pim_limit: int, what: str, at: Ints, channel: int) -> None:
        wrong = (values < 0) | (values >= pim_limit)
        if wrong.any():
            index = int(np.argmax(wrong))
            raise CommandOrderError(f"channel {channel}, command {at[index]}: {what} {values[index]} is out of range")

    def _accumulate(self, events: _Events, contents: Floats, banks: Array, number: int) -> Floats:
        """Latch contents at each READRES and at the end: [number, banks]."""
        latches = np.zeros((number, self.pim.banks), self.dtype)
        same = bool((events.rows == events.rows[:1]).all())
        width = self.pim.banks if same else self.pim.banks_per_group
        for part in range(self.pim.banks // width):
            some = slice(part * width, (part + 1) * width)
            codes = events.rows[part] * self.pim.columns + events.columns
            for members, comps in events.alike(codes):
                rows, columns = events.rows[part][comps[0]], events.columns[comps[0]]
                weights = banks[rows, some, columns]  # [comps, banks, multipliers]
                vectors = contents[events.fills[comps], events.slots[comps]]  # [events, comps, multipliers]
                latches[members, some] = self._dot(vectors, weights)
        return latches

    def _dot(self, vectors: Floats, weights: Array) -> Floats:
        """Dot products of the events' vectors with the weights of each bank, in the latch's precision."""
        count, comps, lanes = vectors.shape
        if not self.half:
            stacked = weights.transpose(0, 2, 1).reshape(comps * lanes, -1)
            return np.asarray(vectors.reshape(count, comps * lanes) @ stacked, self.dtype)
        latch = np.zeros((count, weights.shape[1]), np.float16)
        for index in range(comps):
            latch = (latch + vectors[:, index] @ weights[index].T).astype(np.float16)
        return latch.astype(np.float32)

    def _store(self, piece: FlatCommands, reads: Ints, latches: Floats, state: _State, channel: int) -> None:
        if not len(reads):
            return
        at = state.executed + reads
        pixel, first = piece.first[reads], piece.second[reads]
        self._check(pixel, self.pixels, "READRES pixel", at, channel)
        tile, offset = np.divmod(first, self.pim.banks)
        self._check(np.where(offset == 0, tile, -1), self.tiles, "READRES tile", at, channel)
        flags = np.array([isinstance(leaf, ReadRes) and leaf.add for leaf in piece.leaves])
        where, add = pixel * self.tiles + tile, flags[piece.leaf[reads]]
        cuts = np.flatnonzero(np.diff(add)) + 1
        for part in np.split(np.arange(len(reads)), cuts):
            if add[part[0]]:
                self._add(where[part], latches[part])
            else:
                self.result[where[part]] = latches[part]

    def _add(self, where: Ints, values: Floats) -> None:
        order = np.argsort(where, kind="stable")
        targets, starts = np.unique(where[order], return_index=True)
        self.result[targets] += np.add.reduceat(values[order], starts, axis=0)


@dataclass(frozen=True)
class _Events:
    """The COMPs of a piece, cut into events: the COMPs before each READRES, and last those after all of them."""

    bounds: Ints  # [events + 1]
    rows: Ints  # [bank groups, comps]
    columns: Ints
    fills: Ints
    slots: Ints

    def alike(self, codes: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Groups of events that use equal rows and columns in the same order: (events, their COMPs [events, comps])."""
        lengths = np.diff(self.bounds)
        for length in np.unique(lengths[lengths > 0]).tolist():
            members = np.flatnonzero(lengths == length)
            comps = self.bounds[members][:, None] + np.arange(length)[None, :]
            for some in _equal_rows(codes[comps]):
                yield members[some], comps[some]


def _equal_rows(codes: Ints) -> list[Ints]:
    """Groups of indices of equal rows of a matrix, found by hash and then checked."""
    mixer = np.random.default_rng(0).integers(1, 1 << 62, codes.shape[1], dtype=np.int64)
    with np.errstate(over="ignore"):
        hashes = (codes * mixer).sum(axis=1)
    order = np.argsort(hashes, kind="stable")
    cuts = np.flatnonzero(np.diff(hashes[order])) + 1
    groups = np.split(order, cuts)
    if all((codes[group] == codes[group[0]]).all() for group in groups):
        return groups
    _, inverse = np.unique(codes, axis=0, return_inverse=True)
    return [np.flatnonzero(inverse.ravel() == value) for value in range(int(np.max(inverse)) + 1)]
