"""Builds the loop nests of streams from visits and fills: one method per loop order of `Mapping`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast

from pimflow.codegen.newton.commands import Affine, Comp, GAct, GWrite, Item, Loop, ReadRes
from pimflow.codegen.newton.im2col import Geometry
from pimflow.codegen.newton.mapping import ChunkRun, Mapping
from pimflow.codegen.newton.work_split import Visit, Visits
from pimflow.records import NamedTuple, dataclass
from pimflow.targets import PimSpec

Made = TypeVar("Made")
"""The items that an emitter produces: commands and loops, or anything else in their order."""
Items = tuple[Item, ...]
Terms = tuple[tuple[str, int], ...]


def loop(var: str, count: int, body: Items) -> Items:
    """`count` executions of `body`: nothing for 0, the body itself for 1 (which must then not name `var`)."""
    if count == 1:
        return body
    return (Loop(var, count, body),) if count and body else ()


def term(var: str, count: int, stride: int) -> Terms:
    """stride * var, omitted if the loop runs once."""
    return ((var, stride),) if count > 1 and stride else ()


class RowBase(NamedTuple):
    """First row of a visit's tiles, and the terms of the loops around the visit."""

    row: int
    terms: Terms


ANYWHERE = RowBase(0, ())
"""The row base for emitters that do not use it."""


class ShareWork(NamedTuple):
    """The part of a share that concerns one channel: fills of one chunk run and the channel's visits to each."""

    run: ChunkRun
    start: int  # first pixel
    lines: int  # pixel ranges that fills do not cross (output rows for a strip, else one)
    line_pixels: int
    slot: int  # of K, at which the run starts
    visits: Visits
    rows: tuple[RowBase, ...]  # by visit
    passes: int  # sweeps of the group over the fills with order "rows"


@dataclass(frozen=True, slots=True)
class WeightGroups:
    """The weight groups that a channel processes one after the other (loop g)."""

    first: int
    count: int


class Fill(NamedTuple):
    """A filled buffer; its first pixel is the share's pixel `first` + terms."""

    buffer: int
    first: int
    terms: Terms


class Emitter(ABC, Generic[Made]):
    """Emits what one channel executes. All methods are pure; the fields are the context.

    This class determines the order; subclasses determine what a command and a loop are (`Made` is either).
    """

    names_rows: ClassVar[bool] = True
    """Whether it needs the row bases of visits."""

    def __init__(self, mapping: Mapping, shape: Geometry, pim: PimSpec, groups: WeightGroups) -> None:
        self.mapping = mapping
        self.shape = shape
        self.pim = pim
        self.first_pixel = groups.first * shape.pixel_step
        self.first_k = groups.first * shape.k_step
        self.first_channel = groups.first * shape.channel_step
        self.pixel_terms = term("g", groups.count, shape.pixel_step)
        self.k_terms = term("g", groups.count, shape.k_step)
        self.channel_terms = term("g", groups.count, shape.channel_step)
        self.partial = mapping.order != "latch" and sum(run.count for run in mapping.runs) > 1

    @abstractmethod
    def loop(self, var: str, count: int, body: tuple[Made, ...]) -> tuple[Made, ...]:
        """`count` executions of `body`: nothing for 0, the body itself for 1 (which must then not name `var`)."""

    @abstractmethod
    def gwrites(self, work: ShareWork, offset: int, terms: Terms, counts: Sequence[int]) -> tuple[Made, ...]:
        """One GWRITE per buffer, of `counts` pixels each, starting at the share's pixel `offset` + terms."""

    @abstractmethod
    def acts(self, visit: Visit, base: RowBase) -> tuple[Made, ...]:
        """The sweep over the bank groups that opens a visit's row."""

    @abstractmethod
    def comps(
        self, work: ShareWork, visit: Visit, buffer: int, tile: tuple[int, int], pixel: tuple[int, int]
    ) -> tuple[Made, ...]:
        """The COMPs of one unit inside loops u over tiles (first, count) and p over pixels (first, count)."""

    @abstractmethod
    def readres(
        self, work: ShareWork, visit: Visit, fill: Fill, tile: tuple[int, int], pixels: tuple[int, int]
    ) -> Made:
        """The READRES of one unit."""

    def written(self, run: ChunkRun, slot: int) -> int:
        """Columns of K that a GWRITE gathers for each pixel of a run that starts at the given slot."""
        multipliers = self.pim.multipliers
        return min(run.columns * multipliers, self.shape.depth - slot * multipliers)

    def units(
        self,
        work: ShareWork,
        visit: Visit,
        fill: Fill,
        tile: tuple[int, int],
        pixels: tuple[int, int],
        between: tuple[Made, ...] = (),
    ) -> tuple[Made, ...]:
        """COMPs and a READRES for every tile and pixel, each given as (first, count)."""
        body = (*self.comps(work, visit, fill.buffer, tile, pixels), *between)
        body = (*body, self.readres(work, visit, fill, tile, pixels))
        return self.loop("u", tile[1], self.loop("p", pixels[1], body))

    def block(
        self,
        work: ShareWork,
        visit: Visit,
        offset: int,
        terms: Terms,
        counts: Sequence[int],
        following: tuple[Made, ...] = (),
    ) -> tuple[Made, ...]:
        """A visit's computations on a batch of filled buffers; `following` are the GWRITEs of the next batch.

        They are issued before the last READRES or, with prefetching, each right after the work on the buffer that it
        fills.
        """
        items: tuple[Made, ...] = ()
        last = max((index for index in range(len(counts)) if visit.pixels[0] < counts[index]), default=-1)
        prefetch = self.mapping.prefetch
        for index, count in enumerate(counts):
            low, high = visit.pixels[0], min(visit.pixels[1], count)
            if low < high:
                fill = Fill(index, offset + index * work.run.pixels, terms)
                between = following if index == last and not prefetch else ()
                items += self._fill_units(work, visit, fill, (low, high), between)
            if prefetch:
                items += following[index : index + 1]
        return items + following if last < 0 and not prefetch else items

    def _fill_units(
        self,
        work: ShareWork,
        visit: Visit,
        fill: Fill,
        pixels: tuple[int, int],
        between: tuple[Made, ...],
    ) -> tuple[Made, ...]:
        """A visit's units on one fill; `between` is issued before the last READRES."""
        low, high = pixels
        if not between:
            return self.units(work, visit, fill, (0, visit.width), (low, high - low))
        last = visit.width - 1
        items = self.units(work, visit, fill, (0, last), (low, high - low)) if last else ()
        items += self.units(work, visit, fill, (last, 1), (low, high - low - 1)) if high - low > 1 else ()
        return items + self.units(work, visit, fill, (last, 1), (high - 1, 1), between)

    def batches(self, work: ShareWork) -> tuple[int, int, tuple[int, ...]]:
        """(full batches of a line, pixels of each, pixel counts of the last batch's fills)."""
        held, pixels = self.mapping.fills_held, work.run.pixels
        full, tail = divmod(work.line_pixels, pixels)
        batches, rest = divmod(full, held)
        last = (pixels,) * rest + ((tail,) if tail else ())
        return batches, held * pixels, last

    def line_terms(self, work: ShareWork) -> Terms:
        """The term of the loop over the lines of a share."""
        return term("l", work.lines, work.line_pixels)

    def fills_outer(self, work: ShareWork) -> tuple[Made, ...]:
        """Order "fills": every fill is followed by all tiles, with a row activation for each."""
        batches, size, last = self.batches(work)
        counts = (work.run.pixels,) * self.mapping.fills_held
        lines = self.line_terms(work)
        terms = (*term("f", batches, size), *lines)
        body = self.loop("f", batches, self.fill_and_tiles(work, 0, terms, counts)) if batches else ()
        if last:
            body += self.fill_and_tiles(work, batches * size, lines, last)
        return self.loop("q", work.run.count, self.loop("l", work.lines, body))

    def fill_and_tiles(self, work: ShareWork, offset: int, terms: Terms, counts: Sequence[int]) -> tuple[Made, ...]:
        """A batch of fills, then every visit to them; the mapping says how many rows are opened before the fills."""
        gwrites = self.gwrites(work, offset, terms, counts)
        active = [pair for pair in zip(work.visits, work.rows, strict=True) if pair[0].pixels[0] < max(counts)]
        first = self.mapping.acts_first
        if not active or not first:
            return gwrites + self._tiles(work, active, offset, terms, counts)
        (visit, base), *others = active
        if visit.count > 1:
            visit, rest = visit.peel()
            others.insert(0, (rest, RowBase(base.row + 1, base.terms)))
        acts, computed = self.acts(visit, base), self.block(work, visit, offset, terms, counts)
        later = self._tiles(work, others, offset, terms, counts)
        return (*acts[:first], *gwrites, *acts[first:], *computed, *later)

    def _tiles(
        self, work: ShareWork, visits: Sequence[tuple[Visit, RowBase]], offset: int, terms: Terms, counts: Sequence[int]
    ) -> tuple[Made, ...]:
        """Every row of the given visits, activated and computed."""
        items: tuple[Made, ...] = ()
        for visit, base in visits:
            body = (*self.acts(visit, base), *self.block(work, visit, offset, terms, counts))
            items += self.loop("i", visit.count, body)
        return items

    def rows_outer(self, work: ShareWork) -> tuple[Made, ...]:
        """Order "rows": a row stays open over all fills; the group repeats the fills for every row."""
        items: tuple[Made, ...] = ()
        passes = work.passes
        for visit, base in zip(work.visits, work.rows, strict=True):
            items += self.loop("i", visit.count, self._sweep(work, visit, base))
            passes -= visit.count
        if passes:
            items += self.loop("i", passes, self._bare_fills(work))
        return self.loop("q", work.run.count, items)

    def _bare_fills(self, work: ShareWork) -> tuple[Made, ...]:
        batches, size, last = self.batches(work)
        counts = (work.run.pixels,) * self.mapping.fills_held
        lines = self.line_terms(work)
        terms = (*term("f", batches, size), *lines)
        items = self.loop("f", batches, self.gwrites(work, 0, terms, counts)) if batches else ()
        return self.loop("l", work.lines, items + self.gwrites(work, batches * size, lines, last))

    def _sweep(self, work: ShareWork, visit: Visit, base: RowBase) -> tuple[Made, ...]:
        acts, first = self.acts(visit, base), self.mapping.acts_first
        start, body = self._early_line(work, visit) if self.mapping.early_fill else self._plain_line(work, visit)
        if work.lines > 1:
            return acts + self.loop("l", work.lines, start + body)
        return acts[:first] + start + acts[first:] + body

    def _plain_line(self, work: ShareWork, visit: Visit) -> tuple[tuple[Made, ...], tuple[Made, ...]]:
        """A line's fills, each followed by its COMPs; returned separately: the first GWRITE, the rest."""
        batches, size, last = self.batches(work)
        counts = (work.run.pixels,) * self.mapping.fills_held
        lines = self.line_terms(work)
        if not batches:
            return self.gwrites(work, 0, lines, last), self.block(work, visit, 0, lines, last)
        body = self.block(work, visit, 0, lines, counts)
        if batches > 1:
            terms = (*term("f", batches - 1, size), *lines)
            more = self.gwrites(work, size, terms, counts) + self.block(work, visit, size, terms, counts)
            body += self.loop("f", batches - 1, more)
        if last:
            end = batches * size
            body += self.gwrites(work, end, lines, last) + self.block(work, visit, end, lines, last)
        return self.gwrites(work, 0, lines, counts), body

    def _early_line(self, work: ShareWork, visit: Visit) -> tuple[tuple[Made, ...], tuple[Made, ...]]:
        """Like `_plain_line`, with each GWRITE before the last READRES of the previous fill."""
        batches, size, last = self.batches(work)
        counts = (work.run.pixels,) * self.mapping.fills_held
        lines = self.line_terms(work)
        if not batches:
            return self.gwrites(work, 0, lines, last), self.block(work, visit, 0, lines, last)
        body: tuple[Made, ...] = ()
        if batches > 1:
            terms = (*term("f", batches - 1, size), *lines)
            following = self.gwrites(work, size, terms, counts)
            body = self.loop("f", batches - 1, self.block(work, visit, 0, terms, counts, following))
        end = batches * size
        following = self.gwrites(work, end, lines, last)
        body += self.block(work, visit, end - size, lines, counts, following)
        if last:
            body += self.block(work, visit, end, lines, last)
        return self.gwrites(work, 0, lines, counts), body

    def latch(self, works: Sequence[ShareWork]) -> tuple[Made, ...]:
        """Order "latch": for every tile and pixel, all chunks in sequence and one READRES at the end.

        The works are the group's shares of all chunk runs over the same pixels; their visits correspond.
        """
        first = works[0]
        items: tuple[Made, ...] = ()
        pixel_terms = term("f", first.line_pixels, 1)
        for index, visit in enumerate(first.visits):
            body: tuple[Made, ...] = ()
            for work in works:
                part, base = work.visits[index], work.rows[index]
                if part.columns[0] == part.columns[1]:
                    body += self.loop("q", work.run.count, self.gwrites(work, 0, pixel_terms, (1,)))
                    continue
                computed = self.comps(work, part, 0, (0, 1), (0, 1))
                gwrites, acts = self.gwrites(work, 0, pixel_terms, (1,)), self.acts(part, base)
                cut = self.mapping.acts_first
                body += self.loop("q", work.run.count, (*acts[:cut], *gwrites, *acts[cut:], *computed))
            body += (self.readres(first, visit, Fill(0, 0, pixel_terms), (0, 1), (0, 1)),)
            items += self.loop("i", visit.count, self.loop("f", first.line_pixels, body))
        spare = first.passes - sum(visit.count for visit in first.visits)
        if spare:
            bare: tuple[Made, ...] = ()
            for work in works:
                bare += self.loop("q", work.run.count, self.gwrites(work, 0, pixel_terms, (1,)))
            items += self.loop("i", spare, self.loop("f", first.line_pixels, bare))
        return items


class Makers(NamedTuple):
    """What makes the commands of an `OperandEmitter` and their operands, each from the fields of the class of that
    name."""

    affine: Callable[[int, Terms], Any]
    gwrite: Callable[..., Any]
    g_act: Callable[..., Any]
    comp: Callable[..., Any]
    readres: Callable[..., Any]


class OperandEmitter(Emitter[Made]):
    """Emits commands with their operands, in the form that the makers give them."""

    makers: ClassVar[Makers]

    def gwrites(self, work: ShareWork, offset: int, terms: Terms, counts: Sequence[int]) -> tuple[Made, ...]:
        """GWRITEs with the elements that they gather."""
        run, multipliers = work.run, self.pim.multipliers
        affine, gwrite = self.makers.affine, self.makers.gwrite
        start, depth = work.slot * multipliers, self.written(run, work.slot)
        k = affine(self.first_k + start, (*term("q", run.count, run.columns * multipliers), *self.k_terms))
        pixel_terms = (*terms, *self.pixel_terms)
        first, pitch = self.first_pixel + work.start + offset, run.step * multipliers
        return tuple(
            [
                gwrite(affine(first + index * run.pixels, pixel_terms), count, k, depth, pitch, index, run.copies)
                for index, count in enumerate(counts)
            ]
        )

    def acts(self, visit: Visit, base: RowBase) -> tuple[Made, ...]:
        """G_ACTs with the row."""
        row = self.makers.affine(base.row, (*term("i", visit.count, 1), *base.terms))
        return tuple([self.makers.g_act(group, row) for group in range(self.pim.bank_groups)])

    def comps(
        self, work: ShareWork, visit: Visit, buffer: int, tile: tuple[int, int], pixel: tuple[int, int]
    ) -> tuple[Made, ...]:
        """COMPs with column and slot."""
        run, affine = work.run, self.makers.affine
        low, high = visit.columns
        count = high - low
        inner = term("c", count, 1)
        if run.copies > 1:
            first = (tile[0] * run.pixels + pixel[0]) * run.columns + low
            place = (*term("u", tile[1], run.pixels * run.columns), *term("p", pixel[1], run.columns))
            column = slot = affine(first, (*place, *inner))
        elif self.mapping.tiles_per_row:
            column = affine(tile[0] * run.columns + low, (*term("u", tile[1], run.columns), *inner))
            slot = affine(pixel[0] * run.step + low, (*term("p", pixel[1], run.step), *inner))
        else:
            column = slot = affine(pixel[0] * run.columns + low, (*term("p", pixel[1], run.columns), *inner))
        return self.loop("c", count, (self.makers.comp(column, slot, buffer),))

    def readres(
        self, work: ShareWork, visit: Visit, fill: Fill, tile: tuple[int, int], pixels: tuple[int, int]
    ) -> Made:
        """The READRES with the destination of its results."""
        banks, affine = self.pim.banks, self.makers.affine
        stride = visit.stride * banks
        channel = affine(
            self.first_channel + (visit.tile + tile[0]) * banks,
            (*term("i", visit.count, stride), *term("u", tile[1], banks), *self.channel_terms),
        )
        first = self.first_pixel + work.start + fill.first + pixels[0]
        where = affine(first, (*fill.terms, *self.pixel_terms, *term("p", pixels[1], 1)))
        add = self.partial or visit.columns[1] - visit.columns[0] < work.run.columns
        return cast(Made, self.makers.readres(where, channel, add))


class CommandEmitter(OperandEmitter[Item]):
    """Emits the commands themselves."""

    makers = Makers(Affine, GWrite, GAct, Comp, ReadRes)

    def loop(self, var: str, count: int, body: Items) -> Items:
        """The loop as a `Loop`."""
        return loop(var, count, body)
