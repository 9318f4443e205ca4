"""Times command streams: from loop nest to timing shape to cycles."""

from __future__ import annotations

from typing import NamedTuple

from pimflow.codegen.newton.commands import CommandCounts, CommandStream, Comp, GAct, GWrite, Item, Loop
from pimflow.errors import CommandOrderError, choice
from pimflow.runtime.newton.timing.artifact import ArtifactRules
from pimflow.runtime.newton.timing.engine import Engine
from pimflow.runtime.newton.timing.legality import Refused, first_illegal, first_out_of_range
from pimflow.runtime.newton.timing.nest import Repeat, ShapeItem
from pimflow.runtime.newton.timing.result import StreamTiming
from pimflow.runtime.newton.timing.rules import IllegalCommand, Rules
from pimflow.runtime.newton.timing.strict import StrictRules
from pimflow.targets import PimSpec

PROFILES = ("artifact", "strict")
GWRITE_LATENCIES = ("hidden", "exposed")


def time_stream(
    stream: CommandStream, pim: PimSpec, profile: str | None = None, gwrite_latency: str | None = None
) -> StreamTiming:
    """Exact timing of one channel's stream.

    Cost grows with the loops of the nest and with refreshes, not with commands, and what is learnt of one stream
    serves the next. Addresses do not matter to timing, only to the limits that `strict` checks.

    Args:
        stream: what the channel executes.
        pim: the machine.
        profile: "artifact" or "strict"; the machine's default if None.
        gwrite_latency: "hidden" or "exposed"; the machine's if None.

    Raises:
        OptionError: no such profile or latency.
        CommandOrderError: the machine would refuse a command; the message names its index in the expanded stream.
    """
    return _timer(pim, profile, gwrite_latency).time(stream)


def make_rules(pim: PimSpec, profile: str | None = None, gwrite_latency: str | None = None) -> Rules:
    """The rules of a machine's profile; None stands for the machine's default.

    Raises:
        OptionError: no such profile or latency.
    """
    profile = choice("timing profile", profile or pim.timing.default, PROFILES)
    latency = choice("GWRITE latency", gwrite_latency or pim.gwrite_latency, GWRITE_LATENCIES)
    return ArtifactRules(pim, latency) if profile == "artifact" else StrictRules(pim, latency)


def refusal(channel: int, *found: Refused | None) -> CommandOrderError:
    """The error that names the first of the refused commands."""
    first = min((refused for refused in found if refused is not None), key=lambda refused: refused.at)
    return CommandOrderError(
        f"channel {channel}, command {first.at}: {first.reason}", "the hardware would refuse it; correct the stream"
    )


class _Shape(NamedTuple):
    """A nest without operands, and what a timing tells of it beside cycles."""

    items: tuple[ShapeItem, ...]
    counts: tuple[int, int, int, int]  # GWRITE, G_ACT, COMP, READRES
    elements: int  # that its GWRITEs write


class _Timer:
    """Times streams on one machine under one profile."""

    def __init__(self, pim: PimSpec, profile: str | None, gwrite_latency: str | None) -> None:
        self.pim = pim
        self._profile, self._gwrite_latency = profile, gwrite_latency
        self._engine = Engine(make_rules(pim, profile, gwrite_latency))
        self._strict = isinstance(self._engine.rules, StrictRules)

    def time(self, stream: CommandStream) -> StreamTiming:
        if self._engine.full():
            self._engine = Engine(make_rules(self.pim, self._profile, self._gwrite_latency))
        shape = self._shape(stream.body)
        whole = self._engine.sequence(shape.items)
        outside = first_out_of_range(stream.body, self.pim) if self._strict else None
        try:
            cycles, preas, refs, reopened = self._engine.total(whole)
        except IllegalCommand:
            rules = self._engine.rules
            illegal = first_illegal(rules, whole, rules.initial())
            raise refusal(stream.channel, outside, illegal) from None
        if outside is not None:
            raise refusal(stream.channel, outside)
        gwrites, acts, comps, readres = shape.counts
        counts = CommandCounts(gwrites, acts + reopened, comps, readres)
        return StreamTiming(cycles, counts, preas, refs, shape.elements * self.pim.element_bytes)

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
                codes.extend(self._repeat(inner, count))
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

    def _repeat(self, items: tuple[ShapeItem, ...], count: int) -> tuple[ShapeItem, ...]:
        """A loop's items, in the plainest equal form: empty, unrolled if executed once, or one loop."""
        if not items or count < 1:
            return ()
        if count == 1:
            return items
        if len(items) == 1 and isinstance(items[0], Repeat):
            return (Repeat(items[0].body, items[0].times * count),)
        return (Repeat(self._engine.sequence(items), count),)


def forget_timings() -> None:
    """Drop all that earlier timings taught, as in a new process."""
    _timers.clear()


_timers: dict[tuple[int, str | None, str | None], _Timer] = {}


def _timer(pim: PimSpec, profile: str | None, gwrite_latency: str | None) -> _Timer:
    """The timer of this very object (hashing a whole machine on every call would cost more than timing)."""
    key = id(pim), profile, gwrite_latency
    timer = _timers.get(key)
    if timer is None or timer.pim is not pim:
        if len(_timers) > 32:
            _timers.clear()
        timer = _timers[key] = _Timer(pim, profile, gwrite_latency)
    return timer
