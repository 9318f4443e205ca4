"""Lowers a matrix problem under a mapping to one command stream per channel, with its views and weight layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import field, replace
from functools import cached_property, lru_cache
from itertools import count

from pimflow.codegen.newton.commands import CommandStream
from pimflow.codegen.newton.emit import ANYWHERE, CommandEmitter, Emitter, Made, RowBase, ShareWork, WeightGroups, term
from pimflow.codegen.newton.im2col import (
    Geometry,
    ResultView,
    SourceView,
    WeightView,
    geometry,
    result_view,
    source_view,
    weight_view,
)
from pimflow.codegen.newton.mapping import ChannelGroup, ChunkRun, Deal, Mapping, Share
from pimflow.codegen.newton.weight_layout import RowBlock, WeightLayout
from pimflow.codegen.newton.work_split import Visits, deal_latched, deal_units
from pimflow.codegen.work import ConvProblem, MatrixProblem
from pimflow.ir import Refusal
from pimflow.records import dataclass
from pimflow.targets import PimSpec

MARK = 10**15
"""More than any address in a stream, to mark tiles."""

EmitterOf = Callable[[Mapping, Geometry, PimSpec, WeightGroups], Emitter[Made]]
"""The class of the emitter to create for one channel."""


@dataclass(frozen=True, slots=True)
class StreamClass:
    """Channels whose streams differ only in addresses, so that one timing is valid for all of them."""

    stream: CommandStream  # of the first channel
    channels: tuple[int, ...]


@dataclass(frozen=True)
class PimProgram:
    """A problem lowered to streams, with everything needed to execute, time and store it.

    The streams compute only the matrix product; the reader of the result adds bias and activation.
    """

    problem: MatrixProblem
    mapping: Mapping
    pim: PimSpec
    shape: Geometry
    channel_classes: tuple[tuple[int, ...], ...]  # as in `StreamClass`; contain no idle channels
    rows: int  # of every bank, occupied by its weights in the fullest channel
    first_row: int = 0  # of every bank, where the weights begin; streams count rows from here
    origin: PimProgram | None = field(default=None, compare=False, repr=False)  # the same elsewhere; has the streams
    # used instead of its own streams
    other_streams: tuple[CommandStream, ...] | None = field(default=None, repr=False)

    @cached_property
    def classes(self) -> tuple[StreamClass, ...]:
        """The stream classes, created once, wherever the weights are stored."""
        if self.other_streams is not None:
            return tuple(StreamClass(stream, (stream.channel,)) for stream in self.other_streams if stream.body)
        if self.origin is not None:
            return self.origin.classes
        lowering = _Lowering(self.mapping, self.shape, self.pim)
        return tuple(StreamClass(lowering.stream(channels[0]), channels) for channels in self.channel_classes)

    @property
    def channel_groups(self) -> tuple[tuple[int, ...], ...]:
        """Channels that share a global buffer, without idle ones."""
        busy = {channel for channels in self.channel_classes for channel in channels}
        groups, first = [], 0
        for group in self.mapping.groups:
            groups.append(tuple(channel for channel in range(first, first + group.channels) if channel in busy))
            first += group.channels
        return tuple(groups)

    @cached_property
    def streams(self) -> tuple[CommandStream, ...]:
        """One stream for every PIM channel, empty for an idle one; created once, wherever the weights are stored."""
        if self.other_streams is not None:
            return self.other_streams
        if self.origin is not None:
            return self.origin.streams
        lowering = _Lowering(self.mapping, self.shape, self.pim)
        made = {entry.stream.channel: entry.stream for entry in self.classes}
        made |= {channel: lowering.stream(channel) for entry in self.classes for channel in entry.channels[1:]}
        return tuple(made.get(channel) or CommandStream(channel, ()) for channel in range(self.pim.channels))

    def nests(self, emitter: EmitterOf[Made]) -> dict[int, tuple[Made, ...]]:
        """By busy channel, the loop nest that `lower` gave it, built by the given kind of emitter."""
        lowering = _Lowering(self.mapping, self.shape, self.pim)
        return {channel: lowering.nest(channel, emitter) for channels in self.channel_classes for channel in channels}

    def marked_nests(self, emitter: EmitterOf[Made]) -> Iterator[tuple[tuple[Made, ...], dict[int, tuple[int, ...]]]]:
        """Loop nests with marks in place of tiles, and the tiles of every busy channel that executes them, which are
        mostly all that channels differ in. The mark of tile n of a channel, counted from 1, is n * `MARK`."""
        busy = (channel for channels in self.channel_classes for channel in channels)
        return _Lowering(self.mapping, self.shape, self.pim).marked_nests(busy, emitter)

    def at(self, first_row: int) -> PimProgram:
        """The same program with its weights starting at the given row."""
        return replace(self, first_row=first_row, origin=self.origin or self)

    def with_streams(self, streams: tuple[CommandStream, ...]) -> PimProgram:
        """The same program with other streams, one per channel: those read back from a file, or changed by hand."""
        classes = tuple((stream.channel,) for stream in streams if stream.body)
        return replace(self, channel_classes=classes, other_streams=streams)

    @cached_property
    def layout(self) -> WeightLayout:
        """Where the weights are stored."""
        return _Lowering(self.mapping, self.shape, self.pim).layout()

    @property
    def source(self) -> SourceView:
        """The source tensor as the streams address it."""
        return source_view(self.problem, self.mapping.window_block)

    @property
    def weights(self) -> WeightView:
        """The weight tensor as the layout addresses it."""
        return weight_view(self.problem, self.mapping.window_block)

    @property
    def result(self) -> ResultView:
        """The result tensor as the streams address it."""
        return result_view(self.problem, self.shape, self.pim)


@dataclass(frozen=True)
class Outline:
    """A problem under a mapping before its streams are created: which channels have equal streams, and their contents.

    Args:
        channel_classes: channels whose streams differ only in addresses.
        rows: the rows of every bank that its weights occupy in the fullest channel.
    """

    problem: MatrixProblem
    mapping: Mapping
    pim: PimSpec
    shape: Geometry
    channel_classes: tuple[tuple[int, ...], ...]
    rows: int
    _lowering: _Lowering

    @property
    def layout(self) -> WeightLayout:
        """Where the weights are stored."""
        return self._lowering.layout()

    def nest(self, channel: int, emitter: EmitterOf[Made]) -> tuple[Made, ...]:
        """The loop nest that a channel executes, built by the given kind of emitter."""
        return self._lowering.nest(channel, emitter)

    def comps(self, channel: int) -> int:
        """The number of COMPs of a channel."""
        return self._lowering.comps(channel)

    def program(self) -> PimProgram:
        """The program, which creates its streams when they are first read."""
        return PimProgram(self.problem, self.mapping, self.pim, self.shape, self.channel_classes, self.rows)


def lower(problem: MatrixProblem, mapping: Mapping, pim: PimSpec) -> PimProgram | Refusal:
    """The streams of a problem under a mapping, or why the machine cannot run it (see `outline`)."""
    outlined = outline(problem, mapping, pim)
    return outlined if isinstance(outlined, Refusal) else outlined.program()


def outline(problem: MatrixProblem, mapping: Mapping, pim: PimSpec) -> Outline | Refusal:
    """The outline of what `lower` would produce for a problem under a mapping.

    Refused: depthwise convolutions; more channels, buffers, slots or rows than the machine has (`gap` counts the
    missing ones); COMP features that it lacks; a mapping whose shares do not cover the problem.
    """
    if isinstance(problem, ConvProblem) and problem.groups > 1 and problem.groups == problem.in_channels:
        return Refusal("groups == channels, depthwise runs on the GPU")
    if mapping.buffer_parts not in (1, pim.buffer_parts):
        reason = f"the mapping divides buffers into {mapping.buffer_parts} parts, the machine into {pim.buffer_parts}"
        return Refusal(reason, remedy=f"a target with pim.buffer_parts = {mapping.buffer_parts}")
    pim = pim.in_parts(mapping.buffer_parts)
    shape = geometry(problem, pim)
    refusal = _check_hardware(mapping, pim) or _check_cover(problem, mapping, shape)
    if refusal:
        return refusal
    lowering = _Lowering(mapping, shape, pim)
    rows = lowering.most_rows()
    if rows > pim.rows:
        reason = f"its weights need {rows} rows of every bank, the banks have {pim.rows}"
        return Refusal(reason, rows, pim.rows, "rows of every bank", "a target with a larger pim.rows")
    return Outline(problem, mapping, pim, shape, lowering.classes(), rows, lowering)


def _check_hardware(mapping: Mapping, pim: PimSpec) -> Refusal | None:
    channels = sum(group.channels for group in mapping.groups)
    aside = mapping.tiles_per_row and all(run.copies == 1 for run in mapping.runs)
    width = max((run.columns * mapping.tiles_per_row if aside else run.slots for run in mapping.runs), default=0)
    slots = max((run.slots for run in mapping.runs), default=0)
    limits = (
        ("channels", channels, pim.channels, "channels"),
        ("global buffers", len(mapping.groups), pim.buffers, "buffers"),
        ("buffers per channel", mapping.fills_held, pim.fills_held(len(mapping.groups)), "buffers_per_channel"),
        ("buffer slots", slots, pim.buffer_columns, "buffer_columns"),
        ("columns of a row", width, pim.columns, "columns"),
    )
    for unit, needed, there, key in limits:
        if needed > there:
            reason = f"the mapping needs {needed} {unit}, the machine has {there}"
            return Refusal(reason, needed, there, unit, f"a target with a larger pim.{key}")
    if mapping.prefetch and (mapping.fills_held < 2 or mapping.order != "rows" or not mapping.early_fill):
        return Refusal("prefetching needs a second buffer, open rows and early fills")
    strips = any(run.step != run.columns for run in mapping.runs)
    copied = any(run.copies > 1 for run in mapping.runs)
    if copied and any(run.copies != mapping.tiles_per_row for run in mapping.runs):
        return Refusal("the copies of pixels must match the tiles in a row")
    if (strips or (mapping.tiles_per_row and not copied)) and not pim.any_slot_any_column:
        return Refusal("the mapping pairs any slot with any column, which this machine's COMP cannot do")
    if strips and (copied or not mapping.tiles_per_row):
        return Refusal("window strips need rows whose weights are not repeated")
    return None


def _check_cover(problem: MatrixProblem, mapping: Mapping, shape: Geometry) -> Refusal | None:
    if sum(run.columns * run.count for run in mapping.runs) != shape.slots:
        return Refusal("the mapping's chunks do not add up to the depth of the dot product")
    if mapping.runs[-1].count > 1 and shape.ragged:
        return Refusal("the mapping's last chunk is incomplete and must be a separate run")
    strips = any(run.step != run.columns for run in mapping.runs)
    if strips and not _strips_fit(problem, mapping, shape):
        return Refusal("the mapping's window strips do not fit the convolution")
    if mapping.window_block and not _blocks_fit(problem, mapping.window_block):
        return Refusal("the mapping's blocks of channels do not divide the channels of the convolution")
    if any(share.run >= len(mapping.runs) for group in mapping.groups for share in group.shares):
        return Refusal("the mapping's shares name chunks that it does not have")
    ranges: dict[tuple[int, int], list[ChannelGroup]] = {}
    for group in mapping.groups:
        ranges.setdefault(group.weight_groups or (0, shape.groups), []).append(group)
    position = 0
    shares = (share for group in mapping.groups for share in group.shares)
    runs = mapping.runs
    if any(runs[share.run].copies > 1 and (share.stop - share.start) % runs[share.run].pixels for share in shares):
        return Refusal("the mapping's last fill is incomplete and cannot be copied")
    for (first, stop), groups in sorted(ranges.items()):
        if first != position or stop <= first or not _covers(groups, len(mapping.runs), shape.pixels):
            return Refusal("the mapping's shares do not cover every pixel exactly once")
        position = stop
    return None if position == shape.groups else Refusal("the mapping's shares do not cover every pixel exactly once")


def _covers(groups: list[ChannelGroup], runs: int, pixels: int) -> bool:
    """Whether the shares of some channel groups cover the pixels of every chunk run exactly once."""
    covered: list[list[tuple[int, int]]] = [[] for _ in range(runs)]
    for group in groups:
        for share in group.shares:
            covered[share.run].append((share.start, share.stop))
    for spans in covered:
        position = 0
        for start, stop in sorted(spans):
            if start != position or stop <= start:
                return False
            position = stop
        if position != pixels:
            return False
    return True


def _blocks_fit(problem: MatrixProblem, block: int) -> bool:
    """Whether blocks of that many channels divide the channels of every group of a convolution."""
    return isinstance(problem, ConvProblem) and (problem.in_channels // problem.groups) % block == 0


def _strips_fit(problem: MatrixProblem, mapping: Mapping, shape: Geometry) -> bool:
    """Whether neighbouring windows are `step` slots apart in every strip, and shares end with output rows."""
    if not isinstance(problem, ConvProblem) or not mapping.window_block or problem.dilations[1] != 1:
        return False
    height, width = problem.kernel
    columns = mapping.window_block * height * width
    step = mapping.window_block * height * problem.strides[1]
    shares = (share for group in mapping.groups for share in group.shares)
    return all(
        run.columns * shape.slot_elements == columns and run.step * shape.slot_elements == step for run in mapping.runs
    ) and all(share.start % problem.out_w == 0 and share.stop % problem.out_w == 0 for share in shares)


class _Lowering:
    """The visits, rows and streams of one mapping, from which a `PimProgram` is built."""

    def __init__(self, mapping: Mapping, shape: Geometry, pim: PimSpec) -> None:
        self.mapping = mapping
        self.shape = shape
        self.pim = pim
        self.weight_groups = [group.weight_groups or (0, shape.groups) for group in mapping.groups]
        starts = [0]
        for run in mapping.runs:
            starts.append(starts[-1] + run.columns * run.count)
        self.slots = starts
        self.visits = [self._group_visits(group) for group in mapping.groups]

    def _group_visits(self, group: ChannelGroup) -> dict[int, Dealt]:
        """Visits of every channel of a group, by chunk run."""
        runs = dict.fromkeys([share.run for share in group.shares])
        if self.mapping.order == "latch":
            return {run: self._latch_visits(self.mapping.runs[run], group.channels) for run in runs}
        return {run: self._deal(self.mapping.runs[run], group.channels) for run in runs}

    def _deal(self, run: ChunkRun, channels: int) -> Dealt:
        mapping = self.mapping
        return _dealt(self.shape.tiles, run.pixels, run.columns, channels, mapping.deal, max(mapping.tiles_per_row, 1))

    def _latch_visits(self, run: ChunkRun, channels: int) -> Dealt:
        longest = max(run.columns for run in self.mapping.runs)
        return Dealt(deal_latched(self.shape.tiles, run.columns, longest, channels))

    def _channel(self, channel: int) -> tuple[int, int]:
        """(group, index in the group) of a channel; group -1 if it belongs to none."""
        first = 0
        for index, group in enumerate(self.mapping.groups):
            if channel < first + group.channels:
                return index, channel - first
            first += group.channels
        return -1, 0

    def group_rows(self, group: int, index: int) -> int:
        """Rows that one channel needs for one weight group."""
        if group < 0:
            return 0
        runs = self.mapping.runs
        return sum(runs[run].count * dealt.rows[index] for run, dealt in self.visits[group].items())

    def most_rows(self) -> int:
        """Rows of the fullest channel, over all its weight groups."""
        most = 0
        for visits, (first, stop) in zip(self.visits, self.weight_groups, strict=True):
            by_run = (map(self.mapping.runs[run].count.__mul__, dealt.rows) for run, dealt in visits.items())
            most = max(most, (stop - first) * max(map(sum, zip(*by_run, strict=True)), default=0))
        return most

    def classes(self) -> tuple[tuple[int, ...], ...]:
        """Channels grouped by the shape of their streams."""
        alike: dict[object, list[int]] = {}
        base = 0
        runs = self.mapping.runs
        for number, group in enumerate(self.mapping.groups):
            first, stop = self.weight_groups[number]
            lengths = tuple([(run, stop - start) for run, start, stop in group.shares])
            tails = {run for run, length in lengths if runs[run].pixels > 1 and length % runs[run].pixels}
            tails |= {run for run, _ in lengths if runs[run].pitch}
            filled = self._filled(group)
            works = tuple([(dealt, run in tails, filled[run]) for run, dealt in self.visits[number].items()])
            for key, channels in _busy_alike(works):
                kind = (group.channels, stop - first, lengths, key)
                alike.setdefault(kind, []).extend([base + index for index in channels])
            base += group.channels
        return tuple(map(tuple, alike.values()))

    def _filled(self, group: ChannelGroup) -> dict[int, int]:
        """The most pixels in a fill of a group, by chunk run."""
        most: dict[int, int] = {}
        for share in group.shares:
            run = self.mapping.runs[share.run]
            pixels = min(run.pixels, self.shape.row_pixels if run.pitch else share.stop - share.start)
            most[share.run] = max(pixels, most.get(share.run, 0))
        return most

    def stream(self, channel: int) -> CommandStream:
        """The stream of a channel that computes something."""
        return CommandStream(channel, self.nest(channel, CommandEmitter))

    def nest(self, channel: int, emitter: EmitterOf[Made]) -> tuple[Made, ...]:
        """The loop nest that a busy channel executes, built by the given kind of emitter."""
        number, index = self._channel(channel)
        visits = {run: dealt.visits[index] for run, dealt in self.visits[number].items()}
        return self._nest(number, index, visits, emitter)

    def marked_nests(
        self, channels: Iterable[int], emitter: EmitterOf[Made]
    ) -> Iterator[tuple[tuple[Made, ...], dict[int, tuple[int, ...]]]]:
        """As in `PimProgram`, for some of the busy channels."""
        alike: dict[tuple[int, ...], list[int]] = {}
        for channel in channels:
            number, index = self._channel(channel)
            shapes = [dealt.alike_but_tiles[index] for dealt in self.visits[number].values()]
            alike.setdefault((number, *shapes), []).append(channel)
        for same in alike.values():
            number, index = self._channel(same[0])
            marks = count(MARK, MARK)
            visits = {
                run: tuple([replace(visit, tile=next(marks)) for visit in dealt.visits[index]])
                for run, dealt in self.visits[number].items()
            }
            yield self._nest(number, index, visits, emitter), {channel: self._tiles(channel) for channel in same}

    def _tiles(self, channel: int) -> tuple[int, ...]:
        """The first tile of every visit of a channel."""
        number, index = self._channel(channel)
        return tuple([visit.tile for dealt in self.visits[number].values() for visit in dealt.visits[index]])

    def _nest(self, number: int, index: int, visits: dict[int, Visits], emitter: EmitterOf[Made]) -> tuple[Made, ...]:
        """The loop nest of a channel of a group, given its visits by chunk run."""
        group = self.mapping.groups[number]
        first, stop = self.weight_groups[number]
        groups = WeightGroups(first, stop - first)
        made = emitter(self.mapping, self.shape, self.pim, groups)
        rows = self._rows(number, index, groups.count) if made.names_rows else {}
        works = [self._work(number, visits[share.run], share, rows.get(share.run)) for share in group.shares]
        body = self._latch_body(made, works) if self.mapping.order == "latch" else self._body(made, works)
        return made.loop("g", groups.count, body)

    def comps(self, channel: int) -> int:
        """The number of COMPs of a channel, over all its weight groups."""
        number, index = self._channel(channel)
        first, stop = self.weight_groups[number]
        total = 0
        for share in self.mapping.groups[number].shares:
            run = self.mapping.runs[share.run]
            pixels = share.stop - share.start
            line = self.shape.row_pixels if run.step != run.columns else pixels
            full, tail = divmod(line, run.pixels)
            for visit in self.visits[number][share.run].visits[index]:
                low, high = visit.pixels
                reached = full * (high - low) + max(0, min(high, tail) - low)
                total += (
                    run.count
                    * (pixels // line)
                    * visit.count
                    * visit.width
                    * reached
                    * (visit.columns[1] - visit.columns[0])
                )
        return total * (stop - first)

    def _body(self, emitter: Emitter[Made], works: list[ShareWork]) -> tuple[Made, ...]:
        emit = emitter.rows_outer if self.mapping.order == "rows" else emitter.fills_outer
        items: tuple[Made, ...] = ()
        for work in works:
            items += emit(work)
        return items

    def _latch_body(self, emitter: Emitter[Made], works: list[ShareWork]) -> tuple[Made, ...]:
        """Shares over the same pixels form one nest: one share of every run, in the order of the runs."""
        items: tuple[Made, ...] = ()
        spans = dict.fromkeys((work.start, work.line_pixels) for work in works)
        for span in spans:
            items += emitter.latch([work for work in works if (work.start, work.line_pixels) == span])
        return items

    def _row_bases(self, number: int, index: int) -> tuple[dict[int, tuple[int, ...]], int]:
        """First row of every visit, by run, and the total number of rows."""
        row = 0
        bases = {}
        for run, dealt in self.visits[number].items():
            rows = []
            for visit in dealt.visits[index]:
                rows.append(row)
                row += visit.count * self.mapping.runs[run].count
            bases[run] = tuple(rows)
        return bases, row

    def _rows(self, number: int, index: int, groups: int) -> dict[int, tuple[RowBase, ...]]:
        """Row bases of every visit, by run, for `groups` weight groups."""
        outer = term("g", groups, self.group_rows(number, index))
        bases, _ = self._row_bases(number, index)
        found = {}
        for run, dealt in self.visits[number].items():
            count = self.mapping.runs[run].count
            found[run] = tuple(
                RowBase(base, (*term("q", count, visit.count), *outer))
                for visit, base in zip(dealt.visits[index], bases[run], strict=True)
            )
        return found

    def _work(self, number: int, visits: Visits, share: Share, rows: tuple[RowBase, ...] | None) -> ShareWork:
        """The work of a share, with the row bases of its visits (`ANYWHERE` if `rows` is None)."""
        run = self.mapping.runs[share.run]
        dealt = self.visits[number][share.run]
        pixels = share.stop - share.start
        lines = pixels // self.shape.row_pixels if run.step != run.columns else 1
        rows = rows or (ANYWHERE,) * len(visits)
        return ShareWork(run, share.start, lines, pixels // lines, self.slots[share.run], visits, rows, dealt.most_rows)

    def layout(self) -> WeightLayout:
        """Row blocks of every channel."""
        channels = [self._channel(channel) for channel in range(self.pim.channels)]
        return WeightLayout(
            blocks=tuple(tuple(self._blocks(*place)) if place[0] >= 0 else () for place in channels),
            group_rows=tuple(self.group_rows(*place) for place in channels),
            weight_groups=tuple(self.weight_groups[number] if number >= 0 else (0, 0) for number, _ in channels),
        )

    def _blocks(self, number: int, index: int) -> Iterator[RowBlock]:
        bases, _ = self._row_bases(number, index)
        for run_index, dealt in self.visits[number].items():
            run = self.mapping.runs[run_index]
            for visit, base in zip(dealt.visits[index], bases[run_index], strict=True):
                copied = run.copies > 1 or not self.mapping.tiles_per_row
                copies, tile_pitch = (visit.pixels, run.pixels * run.columns) if copied else ((0, 1), run.columns)
                yield RowBlock(
                    base, visit.count, visit.tile, visit.stride, visit.width, self.slots[run_index], visit.columns,
                    copies, run.columns, tile_pitch, run.count, visit.count, run.columns,
                )  # fmt: skip


def _shape_key(visits: Visits, tails: bool) -> tuple[tuple[int, ...], ...]:
    """The part of a channel's visits that determines its timing; with tails, also which pixels it works on."""
    return tuple(
        (
            visit.count,
            visit.width,
            visit.pixels[0] if tails else 0,
            visit.pixels[1] - visit.pixels[0],
            visit.columns[1] - visit.columns[0],
        )
        for visit in visits
    )


class Dealt:
    """The visits that the channels of a group make on every fill.

    Args:
        visits: the visits of every channel.
    """

    def __init__(self, visits: tuple[Visits, ...]) -> None:
        self.visits = visits
        self.rows = tuple(sum(visit.count for visit in own) for own in visits)
        """The number of rows that every channel visits."""
        self.most_rows = max(self.rows)
        self.first_pixel = tuple(min((visit.pixels[0] for visit in own), default=math.inf) for own in visits)
        """The first pixel of a fill that every channel works on; infinite if it works on none."""
        self.alike = (_alike(visits, False), _alike(visits, True))
        """For every channel, the first channel with an equal stream: if all fills are full, and if some are not."""

    @cached_property
    def alike_but_tiles(self) -> tuple[int, ...]:
        """For every channel, the first channel whose visits are the same except for the tiles."""
        return _first([tuple([replace(visit, tile=0) for visit in own]) for own in self.visits])


def _alike(visits: tuple[Visits, ...], tails: bool) -> tuple[int, ...]:
    return _first([_shape_key(own, tails) for own in visits])


def _first(keys: Iterable[Hashable]) -> tuple[int, ...]:
    """For every key, the position of the first that equals it."""
    first: dict[Hashable, int] = {}
    return tuple([first.setdefault(key, index) for index, key in enumerate(keys)])


@lru_cache(maxsize=4096)
def _busy_alike(works: tuple[tuple[Dealt, bool, int], ...]) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """The busy channels of a group, by the shape of their streams.

    Args:
        works: for every chunk run, the visits of the channels, whether some fills are incomplete, and the largest
            number of pixels in a fill.
    """
    alike: dict[tuple[int, ...], list[int]] = {}
    for index, key in enumerate(zip(*(dealt.alike[tails] for dealt, tails, _ in works), strict=True)):
        if any(dealt.first_pixel[index] < most for dealt, _, most in works):
            alike.setdefault(key, []).append(index)
    return tuple((key, tuple(channels)) for key, channels in alike.items())


@lru_cache(maxsize=65536)
def _dealt(tiles: int, pixels: int, columns: int, channels: int, deal: Deal, tiles_per_row: int) -> Dealt:
    return Dealt(deal_units(tiles, pixels, columns, channels, deal, tiles_per_row))
