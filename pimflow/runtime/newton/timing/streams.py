"""Times command streams: from loop nest to timing shape to cycles."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import NamedTuple

from pimflow.codegen.newton.commands import (
    ZERO,
    CommandCounts,
    CommandStream,
    Comp,
    GAct,
    GWrite,
    Item,
    Loop,
    ReadRes,
)
from pimflow.codegen.newton.emit import CommandEmitter, Emitter, Fill, RowBase, ShareWork, Terms, WeightGroups
from pimflow.codegen.newton.im2col import Geometry
from pimflow.codegen.newton.lowering import Outline
from pimflow.codegen.newton.mapping import Mapping
from pimflow.codegen.newton.work_split import Visit
from pimflow.errors import CommandOrderError, choice
from pimflow.runtime.newton.profiles.base import GWRITE_LATENCIES, TimingProfile
from pimflow.runtime.newton.timing.engine import MOST_MEMORIES, Engine
from pimflow.runtime.newton.timing.legality import Refused, first_illegal, first_out_of_range
from pimflow.runtime.newton.timing.nest import Repeat, ShapeItem
from pimflow.runtime.newton.timing.result import StreamTiming, stream_timing
from pimflow.runtime.newton.timing.rules import IllegalCommand
from pimflow.targets import PimSpec


class StreamTimer:
    """Times streams exactly under one profile of one machine.

    Cost grows with the loops of the nest and with refreshes, not with commands, and what is learnt of one stream
    serves the next: keep a timer as long as there are streams to time. Addresses do not matter to timing, only to the
    limits that a profile may check.

    Args:
        profile: the rules of one machine.
        most_memories: how much of what is learnt is kept; beyond, all of it is forgotten.
    """

    def __init__(self, profile: TimingProfile, most_memories: int = MOST_MEMORIES) -> None:
        self.profile = profile
        self._most_memories = most_memories
        self._timers: dict[tuple[str, bool, int], _Timer] = {}

    def time(
        self,
        stream: CommandStream,
        gwrite_latency: str | None = None,
        reopens_rows: bool = False,
        buffer_parts: int = 1,
    ) -> StreamTiming:
        """Exact timing of one channel's stream.

        Args:
            stream: what the channel executes.
            gwrite_latency: "hidden" or "exposed"; the machine's if None.
            reopens_rows: whether the controller opens rows again that a refresh closed, if the profile leaves that.
            buffer_parts: into how many parts the stream divides buffers.

        Raises:
            OptionError: no such latency.
            CommandOrderError: the machine would refuse a command; names its index in the expanded stream.
        """
        return self._timer(gwrite_latency, reopens_rows, buffer_parts).time(stream)

    def cycles(self, outline: Outline, channel: int) -> int:
        """Cycles of one channel of a problem under a mapping, as `time` has them of its stream, which is not made.

        Addresses are not checked.

        Raises:
            CommandOrderError: the machine would refuse a command.
        """
        mapping = outline.mapping
        try:
            timer = self._timer(mapping.gwrite_latency, mapping.reopens_rows, mapping.buffer_parts)
            return timer.cycles(outline, channel)
        except IllegalCommand:
            stream = CommandStream(channel, outline.nest(channel, CommandEmitter))
            return self.time(stream, mapping.gwrite_latency, mapping.reopens_rows, mapping.buffer_parts).cycles

    def _timer(self, gwrite_latency: str | None, reopens_rows: bool, buffer_parts: int) -> _Timer:
        latency = choice("GWRITE latency", gwrite_latency or self.profile.pim.gwrite_latency, GWRITE_LATENCIES)
        key = latency, reopens_rows, buffer_parts
        if key not in self._timers:
            profile = self.profile.on(self.profile.pim.in_parts(buffer_parts))
            self._timers[key] = _Timer(profile, latency, reopens_rows, self._most_memories)
        return self._timers[key]


def repeated(engine: Engine, items: tuple[ShapeItem, ...], count: int) -> tuple[ShapeItem, ...]:
    """A loop's items, in the plainest equal form: empty, unrolled if executed once, or one loop."""
    if not items or count < 1:
        return ()
    if count == 1:
        return items
    if len(items) == 1 and isinstance(items[0], Repeat):
        return (Repeat(items[0].body, items[0].times * count),)
    return (Repeat(engine.sequence(items), count),)


def refusal(channel: int, *found: Refused | None) -> CommandOrderError:
    """The error that names the first of the refused commands."""
    first = min((refused for refused in found if refused is not None), key=lambda refused: refused.at)
    return CommandOrderError(
        f"channel {channel}, command {first.at}: {first.reason}", "the hardware would refuse it; correct the stream"
    )


class _Codes:
    """The codes of an engine's commands, each asked for once."""

    def __init__(self, engine: Engine, pim: PimSpec) -> None:
        self.engine = engine
        code = engine.rules.code
        self.acts: tuple[ShapeItem, ...] = tuple(code(GAct(group, ZERO)) for group in range(pim.bank_groups))
        self.readres = code(ReadRes(ZERO, ZERO))
        self._comps: dict[int, int] = {}
        self._gwrites: dict[tuple[int, int, int, Sequence[int]], tuple[ShapeItem, ...]] = {}
        self.blocks: dict[Hashable, tuple[ShapeItem, ...]] = {}
        """What visits compute on filled buffers, by all that it depends on where addresses do not matter."""

    def comp(self, buffer: int) -> int:
        """Of a COMP from a buffer."""
        if buffer not in self._comps:
            self._comps[buffer] = self.engine.rules.code(Comp(ZERO, ZERO, buffer))
        return self._comps[buffer]

    def gwrites(self, depth: int, pitch: int, copies: int, counts: Sequence[int]) -> tuple[ShapeItem, ...]:
        """Of a GWRITE to each buffer in turn, of so many pixels with `depth` columns of K each."""
        key = (depth, pitch, copies, counts)
        if key not in self._gwrites:
            writes = (GWrite(ZERO, count, ZERO, depth, pitch, at, copies) for at, count in enumerate(counts))
            self._gwrites[key] = tuple(map(self.engine.rules.code, writes))
        return self._gwrites[key]


class ShapeEmitter(Emitter[ShapeItem]):
    """Emits the timing shape of what a channel executes: command codes and counted loops, without operands."""

    def __init__(self, codes: _Codes, mapping: Mapping, shape: Geometry, pim: PimSpec, groups: WeightGroups) -> None:
        super().__init__(mapping, shape, pim, groups)
        self._codes = codes

    def loop(self, var: str, count: int, body: tuple[ShapeItem, ...]) -> tuple[ShapeItem, ...]:
        """In the plainest equal form."""
        return repeated(self._codes.engine, body, count)

    def gwrites(self, work: ShareWork, offset: int, terms: Terms, counts: Sequence[int]) -> tuple[ShapeItem, ...]:
        """By buffer, and by how much they write."""
        run = work.run
        return self._codes.gwrites(self.written(run, work.slot), run.step * self.pim.multipliers, run.copies, counts)

    def block(
        self,
        work: ShareWork,
        visit: Visit,
        offset: int,
        terms: Terms,
        counts: Sequence[int],
        following: tuple[ShapeItem, ...] = (),
    ) -> tuple[ShapeItem, ...]:
        """Each made once."""
        key = (visit.width, visit.pixels, visit.columns, counts, following, self.mapping.prefetch)
        known = self._codes.blocks.get(key)
        if known is None:
            known = self._codes.blocks[key] = super().block(work, visit, offset, terms, counts, following)
        return known

    def acts(self, visit: Visit, base: RowBase) -> tuple[ShapeItem, ...]:
        """One for every bank group."""
        return self._codes.acts

    def comps(
        self, work: ShareWork, visit: Visit, buffer: int, tile: tuple[int, int], pixel: tuple[int, int]
    ) -> tuple[ShapeItem, ...]:
        """By buffer."""
        low, high = visit.columns
        return self.loop("c", high - low, (self._codes.comp(buffer),))

    def readres(
        self, work: ShareWork, visit: Visit, fill: Fill, tile: tuple[int, int], pixels: tuple[int, int]
    ) -> ShapeItem:
        """All are alike."""
        return self._codes.readres


class _Shape(NamedTuple):
    """A nest without operands, and what is known of it without timing."""

    items: tuple[ShapeItem, ...]
    counts: tuple[int, int, int, int]  # GWRITE, G_ACT, COMP, READRES
    elements: int  # that its GWRITEs write


class _Timer:
    """Times streams under one profile, GWRITE latency and controller."""

    def __init__(self, profile: TimingProfile, gwrite_latency: str, reopens_rows: bool, most_memories: int) -> None:
        self.pim = profile.pim
        self._profile, self._most_memories = profile, most_memories
        self._gwrite_latency, self._reopens_rows = gwrite_latency, reopens_rows
        self._codes = self._fresh_codes()

    def _fresh_codes(self) -> _Codes:
        rules = self._profile.rules(self._gwrite_latency, self._reopens_rows)
        return _Codes(Engine(rules, self._most_memories), self.pim)

    @property
    def _engine(self) -> Engine:
        return self._codes.engine

    def cycles(self, outline: Outline, channel: int) -> int:
        """Cycles of one channel; whether its addresses are within the machine, `time` says of its stream.

        Raises:
            IllegalCommand: the machine would refuse a command.
        """
        self._forget_if_full()
        engine = self._engine
        return engine.total(engine.sequence(outline.nest(channel, partial(ShapeEmitter, self._codes))))[0]

    def _forget_if_full(self) -> None:
        if self._engine.full():
            self._codes = self._fresh_codes()

    def time(self, stream: CommandStream) -> StreamTiming:
        self._forget_if_full()
        shape = self._shape(stream.body)
        whole = self._engine.sequence(shape.items)
        outside = first_out_of_range(stream.body, self.pim) if self._profile.checks_addresses else None
        try:
            cycles, tally = self._engine.total(whole)
        except IllegalCommand:
            rules = self._engine.rules
            illegal = first_illegal(rules, whole, rules.initial())
            raise refusal(stream.channel, outside, illegal) from None
        if outside is not None:
            raise refusal(stream.channel, outside)
        return stream_timing(cycles, tally, CommandCounts(*shape.counts), shape.elements * self.pim.element_bytes)

    def _shape(self, items: tuple[Item, ...]) -> _Shape:
        codes: list[ShapeItem] = []
        gwrites = acts = comps = readres = elements = 0
        for item in items:
            if isinstance(item, Loop):
                inner, (g, a, c, r), e = self._shape(item.body)
                count = item.count
                gwrites, acts, comps, readres = (
                    gwrites + g * count,
                    acts + a * count,
                    comps + c * count,
                    readres + r * count,
                )
                elements += e * count
                codes.extend(repeated(self._engine, inner, count))
                continue
            codes.append(self._engine.rules.code(item))
            if isinstance(item, Comp):
                comps += 1
            elif isinstance(item, GWrite):
                gwrites += 1
                elements += item.elements
            elif isinstance(item, GAct):
                acts += 1
            else:
                readres += 1
        return _Shape(tuple(codes), (gwrites, acts, comps, readres), elements)
