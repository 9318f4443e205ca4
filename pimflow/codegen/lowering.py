"""Lowers a matrix problem under a mapping to one command stream per channel, with its views and weight layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from pimflow.codegen.deal import Visit, Visits, deal_units
from pimflow.codegen.emit import Emitter, Items, RowBase, Work, loop, term
from pimflow.codegen.layout import RowBlock, WeightLayout
from pimflow.codegen.mapping import ChannelGroup, ChunkRun, Mapping, Share
from pimflow.codegen.problem import ConvProblem, PimProblem, Refusal
from pimflow.codegen.stream import CommandStream
from pimflow.codegen.views import (
    Geometry,
    ResultView,
    SourceView,
    WeightView,
    geometry,
    result_view,
    source_view,
    weight_view,
)
from pimflow.targets import PimSpec


@dataclass(frozen=True, slots=True)
class StreamClass:
    """Channels whose streams differ in addresses only, so that one timing serves them all."""

    stream: CommandStream  # of the first of the channels
    channels: tuple[int, ...]


@dataclass(frozen=True)
class PimProgram:
    """A problem lowered to streams: everything that executing, timing and writing it needs.

    The streams compute the matrix product alone; bias and activation are added by whoever reads the result.
    """

    problem: PimProblem
    mapping: Mapping
    pim: PimSpec
    shape: Geometry
    classes: tuple[StreamClass, ...]  # idle channels are in none

    @property
    def channel_groups(self) -> tuple[tuple[int, ...], ...]:
        """Channels that share a global buffer, without those that compute nothing."""
        busy = {channel for entry in self.classes for channel in entry.channels}
        groups, first = [], 0
        for group in self.mapping.groups:
            groups.append(tuple(channel for channel in range(first, first + group.channels) if channel in busy))
            first += group.channels
        return tuple(groups)

    @cached_property
    def streams(self) -> tuple[CommandStream, ...]:
        """One stream for every PIM channel, empty for an idle one."""
        busy = {channel for entry in self.classes for channel in entry.channels}
        lowering = _Lowering(self.mapping, self.shape, self.pim)
        made = {channel: lowering.stream(channel) for channel in sorted(busy)}
        return tuple(made.get(channel) or CommandStream(channel, ()) for channel in range(self.pim.channels))

    def with_streams(self, streams: tuple[CommandStream, ...]) -> PimProgram:
        """The same program with other streams, one a channel: those read back from a file, or changed by hand."""
        classes = tuple(StreamClass(stream, (stream.channel,)) for stream in streams if stream.body)
        program = replace(self, classes=classes)
        program.__dict__["streams"] = streams  # fills the cached property
        return program

    @cached_property
    def layout(self) -> WeightLayout:
        """Where the weights lie."""
        return _Lowering(self.mapping, self.shape, self.pim).layout()

    @property
    def source(self) -> SourceView:
        """How the streams see the source tensor."""
        return source_view(self.problem, self.mapping.window_block)

    @property
    def weights(self) -> WeightView:
        """How the layout sees the weight tensor."""
        return weight_view(self.problem, self.mapping.window_block)

    @property
    def result(self) -> ResultView:
        """How the streams see the result tensor."""
        return result_view(self.problem, self.shape, self.pim)


def lower(problem: PimProblem, mapping: Mapping, pim: PimSpec) -> PimProgram | Refusal:
    """The streams of a problem under a mapping, or why the machine cannot have it so.

    Refused: depthwise convolutions, more channels, buffers, slots or rows than the machine has (`gap` counts those
    missing), features of COMP that it lacks, a mapping whose shares do not cover the problem.
    """
    if isinstance(problem, ConvProblem) and problem.groups > 1 and problem.groups == problem.in_channels:
        return Refusal("groups == channels, depthwise runs on the GPU")
    shape = geometry(problem, pim)
    refusal = _check_hardware(mapping, pim) or _check_cover(problem, mapping, shape)
    if refusal:
        return refusal
    lowering = _Lowering(mapping, shape, pim)
    rows = lowering.most_rows()
    if rows > pim.rows:
        return Refusal(f"its weights need {rows} rows of every bank, the banks have {pim.rows}", rows - pim.rows)
    return PimProgram(problem, mapping, pim, shape, tuple(lowering.classes()))


def _check_hardware(mapping: Mapping, pim: PimSpec) -> Refusal | None:
    channels = sum(group.channels for group in mapping.groups)
    width = max((run.columns for run in mapping.runs), default=0) * max(mapping.tiles_per_row, 1)
    slots = max((run.slots for run in mapping.runs), default=0)
    limits = (
        ("channels", channels, pim.channels),
        ("global buffers", len(mapping.groups), pim.buffers),
        ("buffers per channel", mapping.fills_held, pim.buffers_per_channel),
        ("buffer slots", slots, pim.buffer_columns),
        ("columns of a row", width if mapping.tiles_per_row else slots, pim.columns),
    )
    for what, needed, there in limits:
        if needed > there:
            return Refusal(f"the mapping needs {needed} {what}, the machine has {there}", needed - there)
    if mapping.prefetch and (mapping.fills_held < 2 or mapping.order != "rows" or not mapping.early_fill):
        return Refusal("prefetching needs a second buffer, open rows and early fills")
    strips = any(run.step != run.columns for run in mapping.runs)
    if (mapping.tiles_per_row or strips) and not pim.any_slot_any_column:
        return Refusal("the mapping pairs any slot with any column, which this machine's COMP cannot")
    if strips and not mapping.tiles_per_row:
        return Refusal("window strips need rows whose weights are not repeated")
    return None


def _check_cover(problem: PimProblem, mapping: Mapping, shape: Geometry) -> Refusal | None:
    if sum(run.columns * run.count for run in mapping.runs) != shape.slots:
        return Refusal("the mapping's chunks do not add up to the depth of the dot product")
    if mapping.runs[-1].count > 1 and shape.ragged:
        return Refusal("the mapping's last chunk is incomplete and must be a run of its own")
    strips = any(run.step != run.columns for run in mapping.runs)
    if strips and not _strips_fit(problem, mapping, shape):
        return Refusal("the mapping's window strips do not fit the convolution")
    covered: list[list[tuple[int, int]]] = [[] for _ in mapping.runs]
    for group in mapping.groups:
        for share in group.shares:
            covered[share.run].append((share.start, share.stop))
    for spans in covered:
        position = 0
        for start, stop in sorted(spans):
            if start != position or stop <= start:
                return Refusal("the mapping's shares do not cover every pixel once")
            position = stop
        if position != shape.pixels:
            return Refusal("the mapping's shares do not cover every pixel once")
    return None


def _strips_fit(problem: PimProblem, mapping: Mapping, shape: Geometry) -> bool:
    """Whether neighbouring windows lie `pitch` slots apart in every strip, and shares end with output rows."""
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
    """Visits, rows and streams of one mapping: what `PimProgram` is made from."""

    def __init__(self, mapping: Mapping, shape: Geometry, pim: PimSpec) -> None:
        self.mapping = mapping
        self.shape = shape
        self.pim = pim
        self.emitter = Emitter(mapping, shape, pim)
        starts = [0]
        for run in mapping.runs:
            starts.append(starts[-1] + run.columns * run.count)
        self.slots = starts
        self.visits = [self._group_visits(group) for group in mapping.groups]

    def _group_visits(self, group: ChannelGroup) -> dict[int, tuple[Visits, ...]]:
        """Visits of every channel of a group, by chunk run."""
        runs = dict.fromkeys(share.run for share in group.shares)
        if self.mapping.order == "latch":
            return {run: self._latch_visits(self.mapping.runs[run], group.channels) for run in runs}
        return {run: self._deal(self.mapping.runs[run], group.channels) for run in runs}

    def _deal(self, run: ChunkRun, channels: int) -> tuple[Visits, ...]:
        mapping = self.mapping
        return deal_units(
            self.shape.tiles, run.pixels, run.columns, channels, mapping.deal, max(mapping.tiles_per_row, 1)
        )

    def _latch_visits(self, run: ChunkRun, channels: int) -> tuple[Visits, ...]:
        """Tiles dealt alike for every chunk; those left over are split by columns of each."""
        left = self.shape.tiles % channels
        parts = min(channels // left, max(run.columns for run in self.mapping.runs)) if left else 1
        dealt = deal_units(self.shape.tiles, 1, parts, channels, "tiles", 1)
        return tuple(tuple(_rescale(visit, parts, run.columns) for visit in visits) for visits in dealt)

    def _channel(self, channel: int) -> tuple[int, int]:
        """(group, index in the group) of a channel; group -1 where it belongs to none."""
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
        return sum(
            runs[run].count * sum(visit.count for visit in visits[index]) for run, visits in self.visits[group].items()
        )

    def most_rows(self) -> int:
        """Rows of the fullest channel, all weight groups."""
        most = 0
        for group, entry in enumerate(self.mapping.groups):
            most = max(most, *(self.group_rows(group, index) for index in range(entry.channels)))
        return most * self.shape.groups

    def classes(self) -> Iterator[StreamClass]:
        """Channels by the shape of their streams, a stream for each shape."""
        first = 0
        for number, group in enumerate(self.mapping.groups):
            runs = self.mapping.runs
            tails = {share.run for share in group.shares if (share.stop - share.start) % runs[share.run].pixels}
            alike: dict[object, list[int]] = {}
            for index in range(group.channels):
                dealt = self.visits[number]
                if any(visits[index] for visits in dealt.values()):
                    key = tuple(_shape_key(visits[index], run in tails) for run, visits in dealt.items())
                    alike.setdefault(key, []).append(first + index)
            for channels in alike.values():
                yield StreamClass(self.stream(channels[0]), tuple(channels))
            first += group.channels

    def stream(self, channel: int) -> CommandStream:
        """The stream of a channel that computes something."""
        number, index = self._channel(channel)
        group = self.mapping.groups[number]
        stride = self.group_rows(number, index)
        outer = term("g", self.shape.groups, stride)
        bases, _ = self._row_bases(number, index)
        works = [self._work(number, index, share, bases[share.run], outer) for share in group.shares]
        body = self._latch_body(works) if self.mapping.order == "latch" else self._body(works)
        return CommandStream(channel, loop("g", self.shape.groups, body))

    def _body(self, works: list[Work]) -> Items:
        emit = self.emitter.rows_outer if self.mapping.order == "rows" else self.emitter.fills_outer
        items: Items = ()
        for work in works:
            items += emit(work)
        return items

    def _latch_body(self, works: list[Work]) -> Items:
        """Shares over the same pixels belong together: one of every run, in the order of the runs."""
        items: Items = ()
        spans = dict.fromkeys((work.start, work.line_pixels) for work in works)
        for span in spans:
            items += self.emitter.latch([work for work in works if (work.start, work.line_pixels) == span])
        return items

    def _row_bases(self, number: int, index: int) -> tuple[dict[int, tuple[int, ...]], int]:
        """First row of every visit, by run, and the rows in all."""
        row = 0
        bases = {}
        for run, visits in self.visits[number].items():
            rows = []
            for visit in visits[index]:
                rows.append(row)
                row += visit.count * self.mapping.runs[run].count
            bases[run] = tuple(rows)
        return bases, row

    def _work(
        self, number: int, index: int, share: Share, bases: tuple[int, ...], outer: tuple[tuple[str, int], ...]
    ) -> Work:
        run = self.mapping.runs[share.run]
        dealt = self.visits[number][share.run]
        visits = dealt[index]
        rows = tuple(
            RowBase(base, (*term("q", run.count, visit.count), *outer))
            for visit, base in zip(visits, bases, strict=True)
        )
        pixels = share.stop - share.start
        lines = pixels // self.shape.row_pixels if run.step != run.columns else 1
        passes = max(sum(visit.count for visit in visits) for visits in dealt)
        return Work(run, share.start, lines, pixels // lines, self.slots[share.run], visits, rows, passes)

    def layout(self) -> WeightLayout:
        """Row blocks of every channel."""
        blocks = []
        rows = []
        for channel in range(self.pim.channels):
            number, index = self._channel(channel)
            rows.append(self.group_rows(number, index))
            blocks.append(() if number < 0 else tuple(self._blocks(number, index)))
        return WeightLayout(tuple(blocks), tuple(rows), self.shape.groups)

    def _blocks(self, number: int, index: int) -> Iterator[RowBlock]:
        bases, _ = self._row_bases(number, index)
        for run_index, visits in self.visits[number].items():
            run = self.mapping.runs[run_index]
            for visit, base in zip(visits[index], bases[run_index], strict=True):
                copies = (0, 1) if self.mapping.tiles_per_row else visit.pixels
                yield RowBlock(
                    base, visit.count, visit.tile, visit.stride, visit.width, self.slots[run_index], visit.columns,
                    copies, run.columns, run.count, visit.count, run.columns,
                )  # fmt: skip


def _rescale(visit: Visit, parts: int, columns: int) -> Visit:
    low, high = visit.columns
    part = (columns * low // parts, columns * high // parts)
    return Visit(visit.tile, visit.stride, visit.count, visit.width, visit.pixels, part)


def _shape_key(visits: Visits, tails: bool) -> tuple[tuple[int, ...], ...]:
    """What of a channel's visits its timing depends on; where there are tails, also which pixels it works on."""
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
