"""Times command streams: from loop nest to timing shape to cycles."""

from __future__ import annotations

from functools import partial

from pimflow.codegen.newton.commands import CommandCounts, CommandStream, Comp, GAct, GWrite, Item, Loop
from pimflow.codegen.newton.emit import CommandEmitter
from pimflow.codegen.newton.lowering import Outline, PimProgram
from pimflow.errors import CommandOrderError, choice
from pimflow.records import NamedTuple
from pimflow.runtime.newton.profiles.base import GWRITE_LATENCIES, TimingProfile
from pimflow.runtime.newton.timing.counts import Blocks, counted
from pimflow.runtime.newton.timing.engine import MAX_CACHE_ENTRIES, Engine
from pimflow.runtime.newton.timing.legality import Refused, first_illegal, first_out_of_range
from pimflow.runtime.newton.timing.nest import ShapeItem
from pimflow.runtime.newton.timing.result import StreamTiming, stream_timing
from pimflow.runtime.newton.timing.rules import IllegalCommand
from pimflow.runtime.newton.timing.shapes import Codes, ShapeEmitter, repeated


class StreamCycles(NamedTuple):
    """The cycles of a stream and its other counts (see `tally`)."""

    cycles: int
    tally: int


class StreamTimer:
    """Times streams exactly under one profile of one machine.

    The run time grows with the loops of the nest and with refreshes, not with commands. Results are cached across
    streams, so reuse one timer for all streams. Addresses do not affect timing; they matter only to the limits that a
    profile may check.

    Args:
        profile: the rules of one machine.
        max_cache_entries: the size of the caches; when it is exceeded, they are cleared.
    """

    def __init__(self, profile: TimingProfile, max_cache_entries: int = MAX_CACHE_ENTRIES) -> None:
        self.profile = profile
        self._max_cache_entries = max_cache_entries
        self._timers: dict[tuple[str, bool, int], _Timer] = {}
        self._blocks: Blocks = {}

    def time(
        self,
        stream: CommandStream,
        gwrite_latency: str | None = None,
        reopens_rows: bool = False,
        buffer_parts: int = 1,
    ) -> StreamTiming:
        """Exact timing of one channel's stream.

        Args:
            stream: the commands that the channel executes.
            gwrite_latency: "hidden" or "exposed"; the machine's if None.
            reopens_rows: whether the controller reopens rows that a refresh closed, if the profile leaves the choice.
            buffer_parts: number of parts into which the stream divides each buffer.

        Raises:
            OptionError: no such latency.
            CommandOrderError: the machine would refuse a command; names its index in the expanded stream.
        """
        return self._timer(gwrite_latency, reopens_rows, buffer_parts).time(stream)

    def cycles_of(self, outline: Outline, channel: int) -> StreamCycles:
        """The cycles and tally of one channel of a problem under a mapping, as `time` finds them, without its stream.

        Addresses are not checked.

        Raises:
            CommandOrderError: the machine would refuse a command.
        """
        mapping = outline.mapping
        setting = mapping.gwrite_latency, mapping.reopens_rows, mapping.buffer_parts
        try:
            return self._timer(*setting).cycles_of(outline, channel)
        except IllegalCommand:
            self.time(CommandStream(channel, outline.nest(channel, CommandEmitter)), *setting)
            raise

    def timing(self, outline: Outline, channel: int, known: StreamCycles | None = None) -> StreamTiming:
        """The timing of one channel of a problem under a mapping, as `time` finds it, without creating its stream.

        Args:
            outline: the problem under the mapping.
            channel: a channel that computes something.
            known: the result of `cycles_of` for the channel; None to compute it.

        Raises:
            CommandOrderError: as for `cycles_of`.
        """
        cycles, tally = known or self.cycles_of(outline, channel)
        commands, elements = counted(outline, channel, self._blocks)
        return stream_timing(cycles, tally, commands, elements * self.profile.pim.element_bytes)

    def check_addresses(self, program: PimProgram) -> None:
        """Refuses a program with a row, column, slot or fill outside the machine's limits, if the profile checks them.

        Raises:
            CommandOrderError: an address is out of range.
        """
        if not self.profile.checks_addresses:
            return
        for entry in program.classes:
            outside = first_out_of_range(entry.stream.body, program.pim)
            if outside is not None:
                raise refusal(entry.stream.channel, outside)

    def _timer(self, gwrite_latency: str | None, reopens_rows: bool, buffer_parts: int) -> _Timer:
        latency = choice("GWRITE latency", gwrite_latency or self.profile.pim.gwrite_latency, GWRITE_LATENCIES)
        key = latency, reopens_rows, buffer_parts
        if key not in self._timers:
            profile = self.profile.on(self.profile.pim.in_parts(buffer_parts))
            self._timers[key] = _Timer(profile, latency, reopens_rows, self._max_cache_entries)
        return self._timers[key]


def refusal(channel: int, *found: Refused | None) -> CommandOrderError:
    """The error for the first of the refused commands."""
    first = min((refused for refused in found if refused is not None), key=lambda refused: refused.at)
    return CommandOrderError(
        f"channel {channel}, command {first.at}: {first.reason}", "the hardware would refuse it; correct the stream"
    )


class _Shape(NamedTuple):
    """A nest without operands, and its counts."""

    items: tuple[ShapeItem, ...]
    counts: tuple[int, int, int, int]  # GWRITE, G_ACT, COMP, READRES
    elements: int  # written by its GWRITEs


class _Timer:
    """Times streams under one profile, GWRITE latency and controller."""

    def __init__(self, profile: TimingProfile, gwrite_latency: str, reopens_rows: bool, max_cache_entries: int) -> None:
        self.pim = profile.pim
        self._profile, self._max_cache_entries = profile, max_cache_entries
        self._gwrite_latency, self._reopens_rows = gwrite_latency, reopens_rows
        self._codes = self._fresh_codes()

    def _fresh_codes(self) -> Codes:
        rules = self._profile.rules(self._gwrite_latency, self._reopens_rows)
        return Codes(Engine(rules, self._max_cache_entries), self.pim)

    @property
    def _engine(self) -> Engine:
        return self._codes.engine

    def cycles_of(self, outline: Outline, channel: int) -> StreamCycles:
        """The cycles and tally of one channel; only `time` checks addresses.

        Raises:
            IllegalCommand: the machine would refuse a command.
        """
        self._forget_if_full()
        engine = self._engine
        return StreamCycles(
            *engine.total(engine.sequence(outline.nest(channel, partial(ShapeEmitter, codes=self._codes))))
        )

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
