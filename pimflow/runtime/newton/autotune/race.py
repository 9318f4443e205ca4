"""Finds the fastest of some mappings of a problem by exact timing, of as few of them as bounds allow."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from itertools import accumulate

from pimflow.codegen import MatrixProblem
from pimflow.codegen.newton import Mapping
from pimflow.codegen.newton.im2col import Geometry, geometry
from pimflow.codegen.newton.lowering import Outline, outline
from pimflow.ir import Refusal
from pimflow.records import NamedTuple
from pimflow.runtime.newton.autotune.least import least_cycles
from pimflow.runtime.newton.autotune.rebalance import rebalanced
from pimflow.runtime.newton.cost import placement_cycles
from pimflow.runtime.newton.profiles.base import TimingProfile
from pimflow.runtime.newton.timing.streams import StreamCycles, StreamTimer


class Cycles(NamedTuple):
    """Cycles of a mapping (None if it does not fit), and whether they are exact or a lower bound."""

    cycles: float | None
    is_timed: bool


class Fastest(NamedTuple):
    """The fastest mapping of a race.

    Args:
        outline: the mapping, lowered.
        cycles: those of the slowest channel, with placement.
        channels: the cycles of its channels without placement, one for each class of streams.
        place: its place among the mappings given.
    """

    outline: Outline
    cycles: int
    channels: dict[int, StreamCycles]
    place: int


class Race:
    """Finds the fastest mapping of a problem; of equals, the first one given.

    Mappings wait until a result is needed. Then those with the lowest lower bounds are timed first: the bounds are
    within 2 % of the times in the mean, so most of the others need no timing.
    """

    def __init__(self, problem: MatrixProblem, profile: TimingProfile, timer: StreamTimer) -> None:
        self._problem = problem
        self._profile = profile
        self._timer = timer
        self._fastest: Fastest | None = None
        self._refusal: Refusal | None = None
        self._places: dict[Mapping, int] = {}
        self._waiting: list[tuple[int, Mapping]] = []
        self._known: dict[int, Cycles] = {}
        """By place, the cycles of every mapping that does not wait: exact, or a lower bound that is already too
        slow."""

    @cached_property
    def _shape(self) -> Geometry:
        return geometry(self._problem, self._profile.pim)

    def try_mappings(self, mappings: Iterable[Mapping]) -> None:
        """Adds mappings, each once."""
        for mapping in mappings:
            place = len(self._places)
            if self._places.setdefault(mapping, place) == place:
                self._waiting.append((place, mapping))

    def try_other_order(self) -> None:
        """Tries the fastest mapping with the other order of a READRES and the next GWRITE, if there is one.

        If each fill goes to the same buffer, one of the orders is slower for every fill. The closed forms tell which,
        unless their difference is less than a COMP. (Of 5,000 mappings timed to check this, none was faster.)
        """
        costs = self._profile.costs
        is_open = abs(costs.early - costs.plain) < costs.comp
        if not is_open and all(mapping.fills_held == 1 for _, mapping in self._waiting) and not self._fills_several():
            return
        best = self.fastest.outline.mapping if self.fastest else None
        if best is not None and best.order == "rows" and not best.prefetch and (is_open or best.fills_held > 1):
            self.try_mappings([replace(best, early_fill=not best.early_fill)])

    def _fills_several(self) -> bool:
        return self._fastest is not None and self._fastest.outline.mapping.fills_held > 1

    def try_rebalanced(self) -> None:
        """Tries the fastest mapping with its shares adjusted once so that its channel groups end at the same time."""
        fastest = self.fastest
        if fastest is None or len(fastest.outline.mapping.groups) == 1:
            return
        groups, channels = fastest.outline.mapping.groups, fastest.channels
        ends = accumulate(group.channels for group in groups)
        starts = (end - group.channels for end, group in zip(ends, groups, strict=True))
        cycles = [
            max((channels[at].cycles for at in range(start, start + group.channels) if at in channels), default=0)
            for start, group in zip(starts, groups, strict=True)
        ]
        moved = rebalanced(fastest.outline.mapping, cycles, fastest.outline.shape.row_pixels)
        if moved is not None:
            self.try_mappings([moved])
            self.try_other_order()

    @property
    def fastest(self) -> Fastest | None:
        """The fastest mapping given so far; None if none fits."""
        self._finish()
        return self._fastest

    @property
    def refusal(self) -> Refusal:
        """Why the nearest miss does not fit, if no mapping fits."""
        self._finish()
        return self._refusal or Refusal("no mapping of the policy fits the machine")

    def known(self, mapping: Mapping) -> Cycles:
        """The cycles of a mapping that was given: exact, or a lower bound that is already too slow."""
        self._finish()
        return self._known[self._places[mapping]]

    def time(self, mapping: Mapping) -> Cycles:
        """Times a mapping that was given and of which only a lower bound is known, although it is slow."""
        place = self._places[mapping]
        found = self._known[place] = self._time(mapping, place, fully=True)
        return found

    def is_beaten(self, mapping: Mapping) -> bool:
        """Whether a lower bound shows that a mapping is not faster than the fastest so far."""
        self._finish()
        return self._is_slow(self._least(mapping), len(self._places))

    def _finish(self) -> None:
        """Lowers and times the waiting mappings, except those whose lower bounds are too slow."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        ranked: list[tuple[float, int, Mapping]] = []
        enough = math.inf
        for place, mapping in waiting:  # what reaches the lowest bound so far does not come first anyway
            least = self._least(mapping, enough)
            enough = min(enough, least or math.inf)
            ranked.append((least, place, mapping))
        for least, place, mapping in sorted(ranked, key=lambda entry: entry[:2]):
            slow = self._is_slow(least, place)
            self._known[place] = Cycles(least, False) if slow else self._time(mapping, place)

    def _least(self, mapping: Mapping, enough: float = math.inf) -> float:
        """A lower bound on a mapping's cycles, found before its layout, 0 if unknown; it is not raised beyond `enough`,
        or the cycles of the fastest mapping so far."""
        costs, fastest = self._profile.least_costs, self._fastest
        most = enough if fastest is None else min(enough, fastest.cycles)
        return 0.0 if costs is None else least_cycles(mapping, self._shape, costs, most)

    def _time(self, mapping: Mapping, place: int, *, fully: bool = False) -> Cycles:
        """Times a mapping; unless `fully`, stops as soon as a lower bound shows that it is not the fastest."""
        outlined = outline(self._problem, mapping, self._profile.pim)
        if isinstance(outlined, Refusal):
            if self._refusal is None or (outlined.gap or 0) < (self._refusal.gap or 0):
                self._refusal = outlined
            return Cycles(None, True)
        channels: dict[int, StreamCycles] = {}
        found = self._cycles(outlined, channels, place, fully)
        if found.cycles is not None and not self._is_slow(found.cycles, place):
            self._fastest = Fastest(outlined, int(found.cycles), channels, place)
        return found

    def _cycles(self, outlined: Outline, channels: dict[int, StreamCycles], place: int, fully: bool) -> Cycles:
        """Cycles of the slowest channel including placement, or a lower bound if that is not below the fastest so far.

        Adds to `channels` the cycles of the first channel of each class of streams, without placement.
        """
        placing = placement_cycles(outlined, self._profile)
        loads = sorted(
            ((outlined.comps(channels[0]), channels[0]) for channels in outlined.channel_classes), reverse=True
        )
        slowest = 0
        for comps, channel in loads:
            least = placing + max(slowest, comps * self._profile.comp_cycles)
            if not fully and self._is_slow(least, place):
                return Cycles(least, False)
            channels[channel] = self._timer.cycles_of(outlined, channel)
            slowest = max(slowest, channels[channel].cycles)
        return Cycles(placing + slowest, True)

    def _is_slow(self, cycles: float, place: int) -> bool:
        """Whether a mapping that takes `cycles`, at a place among those given, is not faster than the fastest so far,
        or as fast and given later."""
        fastest = self._fastest
        return fastest is not None and (cycles, place) >= (fastest.cycles, fastest.place)
